//! Latents and candidate passes on arrays of our own: the cluster kernels, the general ones, and the reference on the CPU.

use half::bf16;
use specdraft::cpu::CpuXpress;
use specdraft::driver::{
    Context, DeviceBuffer, Driver, LaunchShape, Module, OwnedStream, PreparedKernel,
};
use specdraft::xpress::hopper_latents::HopperLatents;
use specdraft::xpress::{Generate, Mlp, XpressBackend, XpressConfig, XpressHead, XpressLimits};
use specdraft_kernels::xpress::latent::{
    self, DownArgs, GateUpArgs, MixArgs, XPRESS_DOWN_32, XPRESS_GATE_UP_32, XPRESS_MIX,
};
use specdraft_kernels::xpress::score::{self, ScoreArgs, XPRESS_SCORE};
use specdraft_kernels::xpress::tile;
pub(crate) use test_support::xpress::prepared::{Step, hostile_logits, hostile_tokens};

pub(crate) const RANK: usize = 256;
const UNITS: usize = 512;
const SLOTS: usize = 16;
const DRAFTS: usize = SLOTS - 1;

/// A head on the GPU, and the kernels.
pub(crate) struct Bench {
    pub(crate) context: Context,
    pub(crate) stream: OwnedStream,
    pub(crate) hopper: HopperLatents,
    pub(crate) cpu: CpuXpress,
    pub(crate) how: Generate,
    /// Whether passes may end after one that changes nothing.
    pub(crate) stop_early: bool,
    weights: Weights,
    mix: PreparedKernel<{ XPRESS_MIX.params.len() }>,
    gate_up: PreparedKernel<{ XPRESS_GATE_UP_32.params.len() }>,
    down: PreparedKernel<{ XPRESS_DOWN_32.params.len() }>,
    score: PreparedKernel<{ XPRESS_SCORE.params.len() }>,
}

struct Weights {
    w1: DeviceBuffer<u32>,
    in_proj: DeviceBuffer<u32>,
    mixer: DeviceBuffer<u32>,
    gate_up: DeviceBuffer<u32>,
    down: DeviceBuffer<u32>,
    w2: DeviceBuffer<u32>,
}

/// A step on the GPU, and the scratch of its kernels.
pub(crate) struct OnGpu {
    requests: usize,
    count: usize,
    blocks: DeviceBuffer<i64>,
    previous: DeviceBuffer<i64>,
    xh: DeviceBuffer<u32>,
    ids: DeviceBuffer<i32>,
    logits: DeviceBuffer<u32>,
    u: DeviceBuffer<u32>,
    mixed: DeviceBuffer<u32>,
    units: DeviceBuffer<u32>,
    latents: DeviceBuffer<u32>,
    drafts: DeviceBuffer<i64>,
    keys: DeviceBuffer<u64>,
    arrived: DeviceBuffer<u32>,
    flags: DeviceBuffer<u32>,
}

impl Bench {
    pub(crate) fn new(vocab_size: usize, how: Generate, seed: u64) -> Self {
        let config = XpressConfig {
            vocab_size,
            hidden_size: 64,
            rank: RANK,
            mlp_hidden: UNITS,
            block_size: SLOTS,
            num_passes: 6,
            topc: 512,
        };
        let head = XpressHead::generate(&config, how, seed).unwrap();
        let driver = Driver::load().unwrap_or_else(|error| panic!("{error}"));
        let device = driver.device(0).unwrap_or_else(|error| panic!("{error}"));
        let context = Context::primary(&device).unwrap_or_else(|error| panic!("{error}"));
        let module = Module::built_in(&context).unwrap_or_else(|error| panic!("{error}"));
        let stream = OwnedStream::new(&context).unwrap();
        let hopper = HopperLatents::new(&module, stream.borrow(), &head).unwrap();
        let weights = {
            let weights = head.weights();
            let upload = |values: &[bf16]| upload(&context, &stream, values);
            Weights {
                w1: upload(&weights.w1),
                in_proj: upload(&weights.in_proj),
                mixer: upload(weights.mixer.values()),
                gate_up: upload(&[&weights.gate[..], &weights.up[..]].concat()),
                down: upload(&weights.down),
                w2: upload(&weights.w2),
            }
        };
        let mix = PreparedKernel::new(&module, &XPRESS_MIX).unwrap();
        let shared = latent::mix_bytes(SLOTS as u32);
        mix.allow_shared_bytes(shared).unwrap();
        let limits = XpressLimits {
            max_num_reqs: 1024,
            max_topc: 512,
        };
        Self {
            hopper: hopper.expect("a GPU of compute capability 9.0 and the PTX for it"),
            cpu: CpuXpress::new(head, limits).unwrap(),
            how,
            stop_early: true,
            weights,
            mix,
            gate_up: PreparedKernel::new(&module, &XPRESS_GATE_UP_32).unwrap(),
            down: PreparedKernel::new(&module, &XPRESS_DOWN_32).unwrap(),
            score: PreparedKernel::new(&module, &XPRESS_SCORE).unwrap(),
            context,
            stream,
        }
    }

    /// As [`Step::new`].
    pub(crate) fn step(&mut self, requests: usize, count: usize, passes: usize, seed: u64) -> Step {
        Step::new(&mut self.cpu, self.how, (requests, count, passes), seed)
    }

    pub(crate) fn upload(&self, step: &Step) -> OnGpu {
        let (context, stream) = (&self.context, &self.stream);
        let rows = step.requests * DRAFTS;
        let tokens = |values: &[i64]| {
            DeviceBuffer::from_slice(context, stream.borrow(), values, "test").unwrap()
        };
        let words = |len| DeviceBuffer::filled(context, stream.borrow(), len, !0, "test").unwrap();
        let zeros = |len| DeviceBuffer::zeroed(context, stream.borrow(), len, "test").unwrap();
        OnGpu {
            requests: step.requests,
            count: step.count,
            blocks: tokens(&step.blocks),
            previous: tokens(&step.previous),
            xh: upload(context, stream, &step.xh),
            ids: DeviceBuffer::from_slice(context, stream.borrow(), &step.ids, "test").unwrap(),
            logits: upload(context, stream, &step.logits),
            u: words(rows * RANK),
            mixed: words(rows * RANK / 2),
            units: words(rows * UNITS / 2),
            latents: words(rows * RANK / 2),
            drafts: tokens(&vec![-7; rows]),
            keys: DeviceBuffer::zeroed(context, stream.borrow(), rows, "test").unwrap(),
            arrived: zeros(rows),
            flags: zeros(32),
        }
    }

    /// The latents of one pass over the step's blocks: by the cluster kernels, or by the general ones.
    pub(crate) fn latents(&self, on_gpu: &OnGpu, hopper: bool) -> Vec<bf16> {
        self.enqueue_latents(on_gpu, hopper);
        self.read_latents(on_gpu)
    }

    /// The cluster kernels' latents after a pass that left this flag, where they are all NaN before.
    pub(crate) fn latents_after(&self, on_gpu: &mut OnGpu, flag: u32) -> Vec<bf16> {
        let stream = self.stream.borrow();
        let poison = vec![!0; on_gpu.latents.len()];
        on_gpu.latents.write(stream, 0, &poison).unwrap();
        on_gpu.flags.write(stream, 0, &[flag]).unwrap();
        let (mut mix, mut down) = self.latent_args(on_gpu);
        mix.flag = pointer(on_gpu.flags.ptr());
        down.flag = mix.flag;
        // SAFETY: the step's arrays, of the lengths that the kernels ask for; one stream.
        let taken = unsafe { self.hopper.latents(stream, true, &mix, &down) };
        assert!(taken.unwrap(), "{} requests", on_gpu.requests);
        self.read_latents(on_gpu)
    }

    fn read_latents(&self, on_gpu: &OnGpu) -> Vec<bf16> {
        let words = on_gpu.latents.to_vec(self.stream.borrow()).unwrap();
        words
            .iter()
            .flat_map(|word| [*word as u16, (*word >> 16) as u16])
            .map(bf16::from_bits)
            .collect()
    }

    /// The tokens after so many passes.
    pub(crate) fn refine(
        &self,
        on_gpu: &mut OnGpu,
        step: &Step,
        passes: u32,
        hopper: bool,
    ) -> Vec<i64> {
        self.write(on_gpu, step);
        self.enqueue_refine(on_gpu, passes, hopper);
        self.drafts(on_gpu)
    }

    /// Puts a step's arrays in the place of those of another of its sizes.
    pub(crate) fn write(&self, on_gpu: &mut OnGpu, step: &Step) {
        let stream = self.stream.borrow();
        on_gpu.blocks.write(stream, 0, &step.blocks).unwrap();
        on_gpu.previous.write(stream, 0, &step.previous).unwrap();
        on_gpu.xh.write(stream, 0, &words(&step.xh)).unwrap();
        on_gpu.ids.write(stream, 0, &step.ids).unwrap();
        on_gpu
            .logits
            .write(stream, 0, &words(&step.logits))
            .unwrap();
        let none = vec![-7; step.requests * DRAFTS];
        on_gpu.drafts.write(stream, 0, &none).unwrap();
    }

    /// The tokens of the last refinement.
    pub(crate) fn drafts(&self, on_gpu: &OnGpu) -> Vec<i64> {
        on_gpu.drafts.to_vec(self.stream.borrow()).unwrap()
    }

    pub(crate) fn enqueue_latents(&self, on_gpu: &OnGpu, hopper: bool) {
        let (mix, down) = self.latent_args(on_gpu);
        let stream = self.stream.borrow();
        if hopper {
            // SAFETY: the step's arrays, of the lengths that the kernels ask for; one stream.
            let taken = unsafe { self.hopper.latents(stream, true, &mix, &down) };
            assert!(taken.unwrap(), "{} requests", on_gpu.requests);
            return;
        }
        let rows = down.rows;
        let gate_up = GateUpArgs {
            mixed: mix.mixed.cast_const(),
            gate_up: pointer(self.weights.gate_up.ptr()),
            hidden: pointer_mut(on_gpu.units.ptr()),
            flag: std::ptr::null(),
            rows,
            rank: RANK as u32,
            units: UNITS as u32,
        };
        let tiles = |columns: usize| [rows.div_ceil(32), columns as u32 / 32, 1];
        let shape = |grid, shared_bytes| LaunchShape {
            grid,
            threads: tile::THREADS,
            shared_bytes,
            dependent: true,
        };
        let mixes = [
            mix.requests.div_ceil(latent::mix_requests(SLOTS as u32)),
            RANK as u32 / 32,
            1,
        ];
        let ring = tile::ring_bytes(1);
        // SAFETY: as above.
        unsafe {
            let shared = latent::mix_bytes(SLOTS as u32);
            self.mix
                .launch(stream, shape(mixes, shared), mix.words())
                .unwrap();
            let units = shape(tiles(2 * UNITS), ring);
            self.gate_up.launch(stream, units, gate_up.words()).unwrap();
            self.down
                .launch(stream, shape(tiles(RANK), ring), down.words())
                .unwrap();
        }
    }

    /// The cluster kernel that refines a step.
    pub(crate) fn refine_kernel(&self, on_gpu: &OnGpu, passes: u32) -> Option<&'static str> {
        let (mix, down) = self.latent_args(on_gpu);
        self.hopper
            .refine_kernel(&mix, &down, &self.score_args(on_gpu), passes)
    }

    fn score_args(&self, on_gpu: &OnGpu) -> ScoreArgs {
        let (mix, down) = self.latent_args(on_gpu);
        ScoreArgs {
            latents: down.latents.cast_const(),
            w2: pointer(self.weights.w2.ptr()),
            ids: pointer(on_gpu.ids.ptr()),
            logits: pointer(on_gpu.logits.ptr()),
            blocks: pointer_mut(on_gpu.blocks.ptr()),
            drafts: pointer_mut(on_gpu.drafts.ptr()),
            keys: pointer_mut(on_gpu.keys.ptr()),
            arrived: pointer_mut(on_gpu.arrived.ptr()),
            flag: std::ptr::null(),
            changed: if self.stop_early {
                pointer_mut(on_gpu.flags.ptr())
            } else {
                std::ptr::null_mut()
            },
            rows: down.rows,
            slots: DRAFTS as u32,
            rank: RANK as u32,
            vocabulary: mix.vocabulary,
            count: on_gpu.count as u32,
            part: score::PART,
        }
    }

    pub(crate) fn enqueue_refine(&self, on_gpu: &OnGpu, passes: u32, hopper: bool) {
        let (mix, down) = self.latent_args(on_gpu);
        let score = self.score_args(on_gpu);
        let stream = self.stream.borrow();
        if hopper {
            let args = (&mix, &down, &score);
            // SAFETY: the step's arrays, of the lengths that the kernels ask for; one stream.
            let taken = unsafe { self.hopper.refine_topc(stream, true, args, passes) };
            assert!(taken.unwrap(), "{} requests", on_gpu.requests);
            return;
        }
        for _ in 0..passes {
            self.enqueue_latents(on_gpu, false);
            let shape = LaunchShape {
                grid: [score.rows * score.count.div_ceil(score.part), 1, 1],
                threads: score::THREADS,
                shared_bytes: 0,
                dependent: true,
            };
            // SAFETY: as above.
            unsafe { self.score.launch(stream, shape, score.words()).unwrap() };
        }
    }

    /// The cluster kernel that makes a step's latents.
    pub(crate) fn latents_kernel(&self, on_gpu: &OnGpu) -> Option<&'static str> {
        let (mix, down) = self.latent_args(on_gpu);
        self.hopper.latents_kernel(&mix, &down)
    }

    fn latent_args(&self, on_gpu: &OnGpu) -> (MixArgs, DownArgs) {
        let mix = MixArgs {
            blocks: pointer(on_gpu.blocks.ptr()),
            previous: pointer(on_gpu.previous.ptr()),
            xh: pointer(on_gpu.xh.ptr()),
            w1: pointer(self.weights.w1.ptr()),
            in_proj: pointer(self.weights.in_proj.ptr()),
            mixer: pointer(self.weights.mixer.ptr()),
            u: pointer_mut(on_gpu.u.ptr()),
            mixed: pointer_mut(on_gpu.mixed.ptr()),
            flag: std::ptr::null(),
            requests: on_gpu.requests as u32,
            slots: SLOTS as u32,
            rank: RANK as u32,
            vocabulary: self.cpu.config().vocab_size as u32,
        };
        let down = DownArgs {
            hidden: pointer(on_gpu.units.ptr()),
            down: pointer(self.weights.down.ptr()),
            u: pointer(on_gpu.u.ptr()),
            latents: pointer_mut(on_gpu.latents.ptr()),
            flag: std::ptr::null(),
            rows: (on_gpu.requests * DRAFTS) as u32,
            rank: RANK as u32,
            units: UNITS as u32,
        };
        (mix, down)
    }
}

/// The reference's latents of one pass over a step's blocks.
pub(crate) fn reference_latents(cpu: &mut CpuXpress, step: &Step) -> Vec<bf16> {
    cpu.latent_pass(&step.blocks, &step.previous, &step.xh, Mlp::Run)
        .unwrap()
}

fn upload(context: &Context, stream: &OwnedStream, values: &[bf16]) -> DeviceBuffer<u32> {
    DeviceBuffer::from_slice(context, stream.borrow(), &words(values), "test").unwrap()
}

/// Two values a word.
fn words(values: &[bf16]) -> Vec<u32> {
    values
        .chunks(2)
        .map(|pair| {
            let high = pair.get(1).map_or(0, |value| value.to_bits());
            u32::from(pair[0].to_bits()) | u32::from(high) << 16
        })
        .collect()
}

fn pointer<T>(address: u64) -> *const T {
    std::ptr::with_exposed_provenance(address as usize)
}

fn pointer_mut<T>(address: u64) -> *mut T {
    std::ptr::with_exposed_provenance_mut(address as usize)
}
