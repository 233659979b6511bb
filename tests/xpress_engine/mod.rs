//! An engine as the CUDA tests of the refiner play it: its own device arrays, handed over as views; and what is checked with it, on
//! any driver.

use std::sync::Arc;

use specdraft::Result;
use specdraft::cpu::CpuXpress;
use specdraft::driver::{
    Context, DeviceBuffer, DeviceSlice, DeviceSliceMut, DriverError, Graph, OwnedStream, Stream,
};
use specdraft::xpress::cuda::{CudaXpress, DeviceBlocks, OwnedCudaXpress, Step, XpressKernels};
use specdraft::xpress::{
    BlockLayout, BlockView, Generate, GeneratedStep, Mlp, RefineInputs, XpressBackend,
    XpressConfig, XpressHead, XpressLimits, bf16,
};
use test_support::xpress::inputs;

/// Values that nobody may read: NaN.
const RUBBISH: u16 = 0x7FFF;

/// The engine's arrays for one batch: logits at any alignment, with gaps between rows.
pub(crate) struct Engine {
    config: XpressConfig,
    n: usize,
    /// Values before the first logit.
    offset: usize,
    base: DeviceBuffer<u16>,
    base_layout: BlockLayout,
    hidden: DeviceBuffer<u16>,
    anchors: DeviceBuffer<i64>,
    previous: DeviceBuffer<i64>,
    seeds: DeviceBuffer<i64>,
    drafts: DeviceBuffer<i64>,
}

impl Engine {
    /// Arrays for batches of `n`, their logits `offset` values off 256 bytes, `gap` values between rows.
    pub(crate) fn new(
        context: &Context,
        config: &XpressConfig,
        n: usize,
        [offset, gap]: [usize; 2],
    ) -> Result<Self, DriverError> {
        let (b, v, d) = (config.block_size, config.vocab_size, config.hidden_size);
        let base_layout = BlockLayout {
            requests: n,
            slots: b,
            width: v,
            request_stride: b * (v + gap) + 2 * gap,
            slot_stride: v + gap,
        };
        let stream = Stream::PER_THREAD;
        let rubbish =
            |len| DeviceBuffer::from_slice(context, stream, &vec![RUBBISH; len], "a test's array");
        let tokens = |len| DeviceBuffer::from_slice(context, stream, &vec![-1i64; len], "tokens");
        let engine = Self {
            config: config.clone(),
            n,
            offset,
            base: rubbish((offset + n * base_layout.request_stride).next_multiple_of(2))?,
            base_layout,
            hidden: rubbish(n * b * d)?,
            anchors: tokens(n)?,
            previous: tokens(n)?,
            seeds: tokens(n * (b - 1))?,
            drafts: tokens(n * (b - 1))?,
        };
        stream.synchronize(context)?;
        Ok(engine)
    }

    /// Sets the arrays' contents; waits for the stream.
    pub(crate) fn set(
        &mut self,
        stream: Stream<'_>,
        step: &GeneratedStep,
        seeds: &[i64],
    ) -> Result<(), DriverError> {
        let (b, v) = (self.config.block_size, self.config.vocab_size);
        let mut values = vec![RUBBISH; self.base.len()];
        for (row, logits) in step.base.chunks_exact(v).enumerate() {
            let BlockLayout {
                request_stride,
                slot_stride,
                ..
            } = self.base_layout;
            let at = self.offset + row / b * request_stride + row % b * slot_stride;
            for (to, logit) in values[at..at + v].iter_mut().zip(logits) {
                *to = logit.to_bits();
            }
        }
        let hidden: Vec<u16> = step.hidden.iter().map(|value| value.to_bits()).collect();
        self.base.write(stream, 0, &values)?;
        self.hidden.write(stream, 0, &hidden)?;
        self.anchors.write(stream, 0, &step.anchors)?;
        self.previous.write(stream, 0, &step.previous)?;
        self.seeds.write(stream, 0, seeds)
    }

    pub(crate) fn step(&self, seeded: bool, passes: usize, topc: usize) -> Result<Step<'_>> {
        let (b, d) = (self.config.block_size, self.config.hidden_size);
        let base = bf16s(&self.base, self.offset);
        Ok(Step {
            base: DeviceBlocks::new(base, self.base_layout)?,
            hidden: DeviceBlocks::new(
                bf16s(&self.hidden, 0),
                BlockLayout::contiguous(self.n, b, d),
            )?,
            anchors: self.anchors.slice(),
            previous: Some(self.previous.slice()),
            seeds: seeded.then(|| self.seeds.slice()),
            passes,
            topc,
        })
    }

    /// Where the drafts go. The engine reads them only after it has waited for the work.
    pub(crate) fn out(&self) -> DeviceSliceMut<'_, i64> {
        // SAFETY: the engine's own array, which it uses for nothing else.
        unsafe { DeviceSliceMut::from_raw(self.drafts.ptr(), self.drafts.len()) }
    }

    pub(crate) fn drafts(&self, stream: Stream<'_>) -> Result<Vec<i64>, DriverError> {
        self.drafts.to_vec(stream)
    }
}

/// bf16 values of a buffer of their bits.
fn bf16s(buffer: &DeviceBuffer<u16>, offset: usize) -> DeviceSlice<'_, bf16> {
    // SAFETY: inside the buffer, by the elements' other name.
    unsafe { DeviceSlice::from_raw(buffer.ptr() + 2 * offset as u64, buffer.len() - offset) }
}

/// A made-up head, its refiner, and the CPU's.
pub(crate) struct Setup {
    pub(crate) config: XpressConfig,
    pub(crate) refiner: CudaXpress,
    cpu: CpuXpress,
}

impl Setup {
    pub(crate) fn new(
        kernels: &Arc<XpressKernels>,
        config: &XpressConfig,
        limits: XpressLimits,
    ) -> Result<Self> {
        let head = Arc::new(XpressHead::generate(config, Generate::Exact, 11)?);
        Ok(Self {
            config: config.clone(),
            refiner: CudaXpress::with_kernels(kernels.clone(), &head, limits)?,
            cpu: CpuXpress::new(head, limits)?,
        })
    }

    /// A step, tokens to start from, and what the CPU makes of them.
    fn expected(
        &mut self,
        n: usize,
        seed: u64,
        [passes, topc]: [usize; 2],
        seeded: bool,
    ) -> Result<(GeneratedStep, Vec<i64>, Vec<i64>)> {
        let step = self.config.generate_step(n, Generate::Exact, seed)?;
        let v = self.config.vocab_size as u64;
        let count = (n * self.config.num_draft_tokens()) as u64;
        let seeds: Vec<i64> = (0..count).map(|i| ((i * 7919 + seed) % v) as i64).collect();
        let drafts = self.cpu.refine(&RefineInputs {
            seeds: seeded.then_some(&seeds[..]),
            ..inputs(&step, passes, topc)?
        })?;
        Ok((step, seeds, drafts))
    }
}

/// Refinements on an engine's arrays give the CPU's tokens: at any alignment, with and without seeds and candidates, with and without
/// what makes launches faster.
pub(crate) fn steps_equal_the_cpu(
    kernels: &Arc<XpressKernels>,
    config: &XpressConfig,
    sizes: &[usize],
    topc: usize,
) {
    let context = kernels.module().context();
    let stream = OwnedStream::new(context).unwrap();
    let limits = XpressLimits {
        max_num_reqs: sizes.iter().copied().max().unwrap_or(1),
        max_topc: topc,
    };
    let mut setup = Setup::new(kernels, config, limits).unwrap();
    for (i, &n) in sizes.iter().enumerate() {
        for (seeded, topc, place) in [
            (false, 0, [0, 0]),
            (true, 0, [3, 5]),
            (false, topc, [8, 0]),
            (true, topc, [1, 1]),
        ] {
            let (step, seeds, expected) = setup
                .expected(n, 100 + i as u64, [3, topc], seeded)
                .unwrap();
            let mut engine = Engine::new(context, config, n, place).unwrap();
            engine.set(stream.borrow(), &step, &seeds).unwrap();
            for (dependent, early_stop, prune) in [
                (true, true, true),
                (true, true, false),
                (false, false, true),
                (false, false, false),
            ] {
                setup.refiner.set_dependent_launch(dependent);
                setup.refiner.set_early_stop(early_stop);
                setup.refiner.set_pruning(prune).unwrap();
                let step = engine.step(seeded, 3, topc).unwrap();
                setup
                    .refiner
                    .refine(stream.borrow(), &step, engine.out())
                    .unwrap();
                let got = engine.drafts(stream.borrow()).unwrap();
                assert!(
                    got == expected,
                    "{n} requests, seeded {seeded}, {topc} candidates, {place:?}: {got:?}, expected {expected:?}"
                );
            }
        }
    }
}

/// A captured step, replayed on other inputs, gives what a direct call gives; whatever padding rows hold changes nothing else.
pub(crate) fn a_captured_step_replays(
    kernels: &Arc<XpressKernels>,
    config: &XpressConfig,
    n: usize,
    topc: usize,
) {
    let context = kernels.module().context();
    let stream = OwnedStream::new(context).unwrap();
    let on = stream.borrow();
    let limits = XpressLimits {
        max_num_reqs: n,
        max_topc: topc,
    };
    let mut setup = Setup::new(kernels, config, limits).unwrap();
    let mut engine = Engine::new(context, config, n, [0, 0]).unwrap();
    let graph = Graph::capture(context, on, || {
        let step = engine.step(false, 3, topc)?;
        setup.refiner.refine(on, &step, engine.out())
    })
    .unwrap();
    let slots = config.num_draft_tokens();
    for seed in 0..3 {
        let (mut step, seeds, mut expected) =
            setup.expected(n, 7 * seed, [3, topc], false).unwrap();
        // The last request is padding: not a number, no tokens.
        if seed == 2 && n > 1 {
            let (b, v, d) = (config.block_size, config.vocab_size, config.hidden_size);
            step.base[(n - 1) * b * v..].fill(bf16::NAN);
            step.hidden[(n - 1) * b * d..].fill(bf16::NAN);
            step.anchors[n - 1] = i64::MIN;
            step.previous[n - 1] = -1;
            expected.truncate((n - 1) * slots);
        }
        engine.set(on, &step, &seeds).unwrap();
        // SAFETY: the refiner and the engine's arrays are live, and nothing else uses them.
        unsafe { graph.launch(on) }.unwrap();
        let got = engine.drafts(on).unwrap();
        assert!(
            got[..expected.len()] == expected,
            "{got:?}, expected {expected:?}"
        );
    }
}

/// The stages on borrowed arrays are those of the owning backend.
pub(crate) fn stages_equal_the_owning_backend(kernels: &Arc<XpressKernels>, config: &XpressConfig) {
    let context = kernels.module().context();
    let stream = OwnedStream::new(context).unwrap();
    let on = stream.borrow();
    let (n, b, r) = (3, config.block_size, config.rank);
    let limits = XpressLimits {
        max_num_reqs: n,
        max_topc: 8,
    };
    let head = XpressHead::generate(config, Generate::Normal, 5).unwrap();
    let mut owned = OwnedCudaXpress::with_kernels(kernels.clone(), &head, limits).unwrap();
    let mut refiner = CudaXpress::with_kernels(kernels.clone(), &head, limits).unwrap();
    let step = config.generate_step(n, Generate::Normal, 6).unwrap();
    let xh = owned.hidden_cache(step.hidden().unwrap()).unwrap();
    let blocks: Vec<i64> = (0..n * b).map(|i| (i % config.vocab_size) as i64).collect();
    let latents = owned
        .latent_pass(&blocks, &step.previous, &xh, Mlp::Run)
        .unwrap();

    let bits =
        |values: &[bf16]| -> Vec<u16> { values.iter().map(|value| value.to_bits()).collect() };
    let upload = |values: &[u16]| DeviceBuffer::from_slice(context, on, values, "values").unwrap();
    let tokens = |values: &[i64]| DeviceBuffer::from_slice(context, on, values, "tokens").unwrap();
    let (hidden, base) = (upload(&bits(&step.hidden)), upload(&bits(&step.base)));
    let (cache, out) = (
        upload(&vec![0; n * b * r]),
        upload(&vec![0; n * (b - 1) * r]),
    );
    let (on_device, previous) = (tokens(&blocks), tokens(&step.previous));
    let view = |buffer: &DeviceBuffer<u16>, width| {
        let values = bf16s(buffer, 0);
        // SAFETY: the buffers outlive all work here.
        let values = unsafe { DeviceSlice::from_raw(values.ptr(), values.len()) };
        DeviceBlocks::new(values, BlockLayout::contiguous(n, b, width)).unwrap()
    };
    // SAFETY: the test's own arrays, each written by one call at a time.
    let write = |buffer: &DeviceBuffer<u16>| unsafe {
        DeviceSliceMut::from_raw(buffer.ptr(), buffer.len())
    };
    refiner
        .hidden_cache(on, view(&hidden, config.hidden_size), write(&cache))
        .unwrap();
    assert_eq!(cache.to_vec(on).unwrap(), bits(&xh));
    let inputs = (on_device.slice(), previous.slice());
    let cache = bf16s(&cache, 0);
    refiner
        .latent_pass(on, inputs, cache, Mlp::Run, write(&out))
        .unwrap();
    assert_eq!(out.to_vec(on).unwrap(), bits(&latents));

    let mut expected = blocks.clone();
    owned
        .readout_argmax(&latents, step.base().unwrap(), &mut expected)
        .unwrap();
    // SAFETY: as above.
    let to = unsafe { DeviceSliceMut::from_raw(on_device.ptr(), on_device.len()) };
    let read = bf16s(&out, 0);
    refiner
        .readout_argmax(on, read, view(&base, config.vocab_size), to)
        .unwrap();
    assert_eq!(on_device.to_vec(on).unwrap(), expected);

    let topc = 8;
    let chosen = owned.select_topc(step.base().unwrap(), topc).unwrap();
    let ids = DeviceBuffer::from_slice(context, on, &vec![0i32; chosen.len()], "ids").unwrap();
    let logits = upload(&vec![0; chosen.len()]);
    // SAFETY: as above.
    let to = unsafe { DeviceSliceMut::from_raw(ids.ptr(), ids.len()) };
    refiner
        .select_topc(on, view(&base, config.vocab_size), topc, to, write(&logits))
        .unwrap();
    let ids = ids.to_vec(on).unwrap();
    assert!(
        ids.iter().zip(&chosen).all(|(a, b)| i64::from(*a) == *b),
        "{ids:?}, expected {chosen:?}"
    );
    let base = step.base().unwrap();
    for (i, (id, logit)) in chosen.iter().zip(logits.to_vec(on).unwrap()).enumerate() {
        let row = i / topc;
        let value = base.row(row / (b - 1), row % (b - 1) + 1)[*id as usize];
        assert_eq!(logit, value.to_bits(), "logit {i}");
    }

    // The argmaxes on given buffers: the logits with themselves.
    let draft_slots = |values: &BlockView<'_>| -> Vec<u16> {
        let rows = (0..n).flat_map(|i| (1..b).map(move |slot| (i, slot)));
        rows.flat_map(|(i, slot)| bits(values.row(i, slot)))
            .collect()
    };
    let values = upload(&draft_slots(&base));
    let layout = BlockLayout::contiguous(n, b - 1, config.vocab_size);
    let pair = DeviceBlocks::new(bf16s(&values, 0), layout).unwrap();
    // SAFETY: as above.
    let to = unsafe { DeviceSliceMut::from_raw(on_device.ptr(), on_device.len()) };
    refiner.add_argmax(on, pair, pair, to).unwrap();
    let winners = on_device.to_vec(on).unwrap();
    let candidates: Vec<i64> = (0..n * (b - 1) * config.vocab_size)
        .map(|i| (i % config.vocab_size) as i64 + 1000)
        .collect();
    let candidates = tokens(&candidates);
    // SAFETY: as above.
    let to = unsafe { DeviceSliceMut::from_raw(on_device.ptr(), on_device.len()) };
    refiner
        .topc_argmax(on, pair, pair, candidates.slice(), to)
        .unwrap();
    let moved = on_device.to_vec(on).unwrap();
    for (i, (winner, moved)) in winners.iter().zip(moved).enumerate() {
        let expected = if i % b == 0 { *winner } else { winner + 1000 };
        assert_eq!(moved, expected, "token {i}");
    }
}
