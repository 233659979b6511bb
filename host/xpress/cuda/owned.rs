//! The owning backend: specdraft's own context, stream and arrays; host arrays in, tokens out.

use std::sync::Arc;

use bytemuck::Pod;
use half::bf16;
use half::slice::HalfFloatSliceExt;

use super::{CudaXpress, DeviceBlocks, Step, XpressKernels};
use crate::driver::{
    Context, DeviceBuffer, DeviceSlice, DeviceSliceMut, Driver, Module, OwnedStream,
};
use crate::error::Result;
use crate::xpress::backend::{
    check_argmax, check_hidden, check_latents, check_len, check_readout, check_select,
};
use crate::xpress::plan::check_rows;
use crate::xpress::{
    BlockLayout, BlockView, Mlp, RefineInputs, XpressBackend, XpressConfig, XpressHead,
    XpressLimits, XpressMemory,
};

/// An XPress head on an NVIDIA GPU, everything it needs its own: for engines whose plug point is on the host, and for the tests that
/// compare backends.
///
/// A call uploads its arrays, waits for the result and frees them again. An engine whose arrays are on the GPU uses [`CudaXpress`].
#[derive(Debug)]
pub struct OwnedCudaXpress {
    // Dropped in this order: what uses the stream, then the stream; each holds the context.
    refiner: CudaXpress,
    stream: OwnedStream,
}

impl OwnedCudaXpress {
    /// A head on GPU `ordinal` (after `CUDA_VISIBLE_DEVICES`), in its primary context.
    ///
    /// # Errors
    /// Limits out of range, before the driver is looked for; no driver, no such GPU, one that no embedded PTX is for, too little memory.
    pub fn new(
        head: impl Into<Arc<XpressHead>>,
        limits: XpressLimits,
        ordinal: usize,
    ) -> Result<Self> {
        limits.validate()?;
        let device = Driver::load()?.device(ordinal)?;
        let context = Context::primary(&device)?;
        let kernels = XpressKernels::load(&Module::built_in(&context)?)?;
        Self::with_kernels(Arc::new(kernels), &head.into(), limits)
    }

    /// A head with kernels that are loaded already, in their context, on a stream of its own.
    ///
    /// # Errors
    /// Limits out of range; too little memory.
    pub fn with_kernels(
        kernels: Arc<XpressKernels>,
        head: &XpressHead,
        limits: XpressLimits,
    ) -> Result<Self> {
        let refiner = CudaXpress::with_kernels(kernels, head, limits)?;
        Ok(Self {
            stream: OwnedStream::new(refiner.context())?,
            refiner,
        })
    }

    /// The refiner below, with what it can tell of the GPU.
    pub fn inner(&self) -> &CudaXpress {
        &self.refiner
    }

    /// The refiner below, to set how it runs.
    pub fn inner_mut(&mut self) -> &mut CudaXpress {
        &mut self.refiner
    }

    fn upload<T: Pod>(&self, values: &[T], name: &'static str) -> Result<DeviceBuffer<T>> {
        let context = self.refiner.context();
        Ok(DeviceBuffer::from_slice(
            context,
            self.stream.borrow(),
            values,
            name,
        )?)
    }

    fn upload_bf16(&self, values: &[bf16], name: &'static str) -> Result<DeviceBuffer<u16>> {
        self.upload(values.reinterpret_cast(), name)
    }

    /// Words for an output of `bytes` bytes.
    fn output(&self, bytes: usize, name: &'static str) -> Result<DeviceBuffer<u64>> {
        let context = self.refiner.context();
        let words = bytes.div_ceil(8);
        Ok(DeviceBuffer::zeroed(
            context,
            self.stream.borrow(),
            words,
            name,
        )?)
    }

    fn read_bf16(&self, buffer: &DeviceBuffer<u64>, len: usize) -> Result<Vec<bf16>> {
        let words = buffer.to_vec(self.stream.borrow())?;
        let bits: &[u16] = bytemuck::cast_slice(&words);
        Ok(bits[..len]
            .iter()
            .map(|bits| bf16::from_bits(*bits))
            .collect())
    }
}

impl XpressBackend for OwnedCudaXpress {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn config(&self) -> &XpressConfig {
        self.refiner.config()
    }

    fn limits(&self) -> XpressLimits {
        self.refiner.limits()
    }

    fn memory(&self) -> XpressMemory {
        self.refiner.memory()
    }

    fn refine(&mut self, inputs: &RefineInputs<'_>) -> Result<Vec<i64>> {
        let n = inputs.check(self.config(), &self.limits())?;
        if n == 0 {
            return Ok(vec![]);
        }
        let base = self.upload_bf16(inputs.base.values(), "base")?;
        let (rows, layout) = aligned(inputs.hidden);
        let hidden = self.upload_bf16(&rows, "hidden")?;
        let anchors = self.upload(inputs.anchors, "anchors")?;
        let previous = self.upload(inputs.previous, "previous")?;
        let seeds = inputs
            .seeds
            .map(|seeds| self.upload(seeds, "seeds"))
            .transpose()?;
        let tokens = n * self.config().num_draft_tokens();
        let drafts: DeviceBuffer<i64> = self.upload(&vec![0; tokens], "drafts")?;
        let step = Step {
            base: blocks(&base, inputs.base.layout())?,
            hidden: blocks(&hidden, layout)?,
            anchors: anchors.slice(),
            previous: Some(previous.slice()),
            seeds: seeds.as_ref().map(DeviceBuffer::slice),
            passes: inputs.passes,
            topc: inputs.topc,
        };
        self.refiner
            .refine(self.stream.borrow(), &step, written(&drafts, tokens))?;
        Ok(drafts.to_vec(self.stream.borrow())?)
    }

    fn hidden_cache(&mut self, hidden: BlockView<'_>) -> Result<Vec<bf16>> {
        let n = check_hidden(hidden, self.config(), &self.limits())?;
        let len = n * self.config().block_size * self.config().rank;
        let (rows, layout) = aligned(hidden);
        let hidden = self.upload_bf16(&rows, "hidden")?;
        let xh = self.output(2 * len, "xh")?;
        let stream = self.stream.borrow();
        self.refiner
            .hidden_cache(stream, blocks(&hidden, layout)?, written(&xh, len))?;
        self.read_bf16(&xh, len)
    }

    fn latent_pass(
        &mut self,
        blocks: &[i64],
        previous: &[i64],
        xh: &[bf16],
        mlp: Mlp,
    ) -> Result<Vec<bf16>> {
        let n = check_latents(blocks, previous, xh, self.config(), &self.limits())?;
        let len = n * self.config().num_draft_tokens() * self.config().rank;
        let blocks = self.upload(blocks, "blocks")?;
        let previous = self.upload(previous, "previous")?;
        let xh = self.upload_bf16(xh, "xh")?;
        let latents = self.output(2 * len, "latents")?;
        self.refiner.latent_pass(
            self.stream.borrow(),
            (blocks.slice(), previous.slice()),
            bf16s(&xh),
            mlp,
            written(&latents, len),
        )?;
        self.read_bf16(&latents, len)
    }

    fn readout_argmax(
        &mut self,
        latents: &[bf16],
        base: BlockView<'_>,
        out: &mut [i64],
    ) -> Result<()> {
        check_readout(latents, base, out, self.config(), &self.limits())?;
        let latents = self.upload_bf16(latents, "latents")?;
        let logits = self.upload_bf16(base.values(), "base")?;
        let tokens = self.upload(out, "blocks")?;
        self.refiner.readout_argmax(
            self.stream.borrow(),
            bf16s(&latents),
            blocks(&logits, base.layout())?,
            written(&tokens, out.len()),
        )?;
        out.copy_from_slice(&tokens.to_vec(self.stream.borrow())?);
        Ok(())
    }

    fn select_topc(&mut self, base: BlockView<'_>, topc: usize) -> Result<Vec<i64>> {
        let (n, topc) = check_select(base, topc, self.config(), &self.limits())?;
        let len = n * self.config().num_draft_tokens() * topc;
        let layout = base.layout();
        let base = self.upload_bf16(base.values(), "base")?;
        let ids: DeviceBuffer<i32> = self.upload(&vec![0; len], "ids")?;
        let logits = self.output(2 * len, "logits")?;
        self.refiner.select_topc(
            self.stream.borrow(),
            blocks(&base, layout)?,
            topc,
            written(&ids, len),
            written(&logits, len),
        )?;
        let ids = ids.to_vec(self.stream.borrow())?;
        Ok(ids.into_iter().map(i64::from).collect())
    }

    fn add_argmax(
        &mut self,
        base: BlockView<'_>,
        bias: BlockView<'_>,
        out: &mut [i64],
    ) -> Result<()> {
        let slots = check_argmax(base, bias, out)? - 1;
        check_rows("base", &base.layout())?;
        let rows = base.layout().requests * slots;
        let logits = self.upload_bf16(base.values(), "base")?;
        let added = self.upload_bf16(bias.values(), "bias")?;
        let tokens = self.upload(out, "blocks")?;
        // As many rows as there are, not only those of the limits.
        let (keys, arrived) = (
            self.output(8 * rows, "keys")?,
            self.output(4 * rows, "arrived")?,
        );
        self.refiner.add_argmax_with(
            self.stream.borrow(),
            blocks(&logits, base.layout())?,
            blocks(&added, bias.layout())?,
            written(&tokens, out.len()),
            (keys.ptr(), arrived.ptr()),
        )?;
        out.copy_from_slice(&tokens.to_vec(self.stream.borrow())?);
        Ok(())
    }

    fn topc_argmax(
        &mut self,
        base: BlockView<'_>,
        bias: BlockView<'_>,
        candidates: &[i64],
        out: &mut [i64],
    ) -> Result<()> {
        let slots = check_argmax(base, bias, out)? - 1;
        let (n, c) = (base.layout().requests, base.layout().width);
        check_len("candidates", candidates.len(), &[n, slots, c])?;
        let logits = self.upload_bf16(base.values(), "base")?;
        let added = self.upload_bf16(bias.values(), "bias")?;
        let candidates = self.upload(candidates, "candidates")?;
        let tokens = self.upload(out, "blocks")?;
        self.refiner.topc_argmax(
            self.stream.borrow(),
            blocks(&logits, base.layout())?,
            blocks(&added, bias.layout())?,
            candidates.slice(),
            written(&tokens, out.len()),
        )?;
        out.copy_from_slice(&tokens.to_vec(self.stream.borrow())?);
        Ok(())
    }
}

/// The rows of a view as the kernels want hidden states: as they lie where they lie at multiples of 16 bytes, else one after another.
fn aligned(view: BlockView<'_>) -> (Vec<bf16>, BlockLayout) {
    let BlockLayout {
        requests,
        slots,
        width,
        request_stride,
        slot_stride,
    } = view.layout();
    if request_stride.is_multiple_of(8) && slot_stride.is_multiple_of(8) {
        return (view.values().to_vec(), view.layout());
    }
    let rows = (0..requests).flat_map(|n| (0..slots).map(move |b| (n, b)));
    let values = rows.flat_map(|(n, b)| view.row(n, b)).copied().collect();
    (values, BlockLayout::contiguous(requests, slots, width))
}

fn blocks(buffer: &DeviceBuffer<u16>, layout: BlockLayout) -> Result<DeviceBlocks<'_>> {
    DeviceBlocks::new(bf16s(buffer), layout)
}

fn bf16s(buffer: &DeviceBuffer<u16>) -> DeviceSlice<'_, bf16> {
    // SAFETY: the buffer's own elements, by their type's other name; it outlives the view, and dropping it waits for the work.
    unsafe { DeviceSlice::from_raw(buffer.ptr(), buffer.len()) }
}

/// The first `len` elements of a buffer that a call makes and reads when the work is done.
fn written<T, U: Pod>(buffer: &DeviceBuffer<U>, len: usize) -> DeviceSliceMut<'_, T> {
    debug_assert!((len * size_of::<T>()) as u64 <= buffer.bytes());
    // SAFETY: inside the buffer, which is used for this output alone until the stream has been waited for; it outlives the view, and
    // dropping it waits for the work.
    unsafe { DeviceSliceMut::from_raw(buffer.ptr(), len) }
}
