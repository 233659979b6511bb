//! Readouts on arrays of our own: drawn logits, latents and weights, both kernels, and a plain loop.

use half::bf16;
use specdraft::driver::{
    Context, DeviceBuffer, Driver, LaunchShape, Module, OwnedStream, PreparedKernel,
};
use specdraft::xpress::hopper::HopperReadout;
use specdraft_kernels::xpress::ROW_BLOCKS;
use specdraft_kernels::xpress::readout::{
    self, ReadoutArgs, XPRESS_READOUT_16, XPRESS_READOUT_128,
};

const RANK: usize = 256;
const MAX_ROWS: usize = 128 * 31;

/// What is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Small integers: exact sums, masses of ties, zeros of both signs.
    Ties,
    /// As ties, one base logit in eight NaN and one -inf; row 0 all -inf, row 1 all NaN, row 2 all zeros of both signs.
    Special,
    /// About as logits are.
    Random,
}

/// Where rows lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// One distance from row to row.
    Even,
    /// Requests with a row more than slots.
    Apart,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) requests: usize,
    pub(crate) slots: usize,
    pub(crate) layout: Layout,
}

/// Arrays for any case up to a size.
pub(crate) struct Logits {
    pub(crate) vocabulary: usize,
    kind: Kind,
    /// Elements from row to row: the vocabulary, rounded up to 16 bytes.
    stride: usize,
    base: Vec<u16>,
    latents: Vec<u16>,
    w2: Vec<u16>,
    on_gpu: [DeviceBuffer<u32>; 3],
}

pub(crate) struct Bench {
    pub(crate) context: Context,
    pub(crate) stream: OwnedStream,
    pub(crate) hopper: HopperReadout,
    module: Module,
    general: [PreparedKernel<{ XPRESS_READOUT_16.params.len() }>; 2],
    keys: DeviceBuffer<u64>,
    arrived: DeviceBuffer<u32>,
    blocks: DeviceBuffer<i64>,
    drafts: DeviceBuffer<i64>,
    flags: DeviceBuffer<u32>,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let driver = Driver::load().unwrap_or_else(|error| panic!("{error}"));
        let device = driver.device(0).unwrap_or_else(|error| panic!("{error}"));
        let context = Context::primary(&device).unwrap_or_else(|error| panic!("{error}"));
        let module = Module::built_in(&context).unwrap_or_else(|error| panic!("{error}"));
        let stream = OwnedStream::new(&context).unwrap();
        let on = stream.borrow();
        let general = [XPRESS_READOUT_16, XPRESS_READOUT_128].map(|kernel| {
            let kernel = PreparedKernel::new(&module, &kernel).unwrap();
            let bytes = readout::bytes(ROW_BLOCKS[3], RANK as u32);
            kernel.allow_shared_bytes(bytes).unwrap();
            kernel
        });
        let zeroed = |len| DeviceBuffer::zeroed(&context, on, len, "test").unwrap();
        let blocks: DeviceBuffer<i64> = zeroed(2 * MAX_ROWS);
        // Made anew for each w2.
        let hopper = HopperReadout::new(&module, on, blocks.ptr(), [128, 256], 1).unwrap();
        let hopper = hopper.expect("a GPU of compute capability 9.0 and the PTX for it");
        Self {
            hopper,
            general,
            keys: DeviceBuffer::zeroed(&context, on, MAX_ROWS, "test").unwrap(),
            arrived: DeviceBuffer::zeroed(&context, on, MAX_ROWS, "test").unwrap(),
            blocks,
            drafts: zeroed(MAX_ROWS),
            flags: DeviceBuffer::zeroed(&context, on, 2, "test").unwrap(),
            context,
            stream,
            module,
        }
    }

    /// Draws arrays for up to `requests` requests of `slots` rows, and takes their w2 for the head's.
    pub(crate) fn logits(
        &mut self,
        vocabulary: usize,
        kind: Kind,
        requests: usize,
        slots: usize,
    ) -> Logits {
        let stride = vocabulary.next_multiple_of(8);
        let rows = requests * slots;
        let (base, latents, w2) = (
            vec![0; rows * stride],
            vec![0; rows * RANK],
            vec![0; vocabulary * RANK],
        );
        let lengths = [base.len(), latents.len(), w2.len()];
        let on_gpu = lengths.map(|len| {
            DeviceBuffer::zeroed(&self.context, self.stream.borrow(), len / 2, "test").unwrap()
        });
        let mut logits = Logits {
            vocabulary,
            kind,
            stride,
            base,
            latents,
            w2,
            on_gpu,
        };
        self.redraw(&mut logits, kind);
        let hopper = HopperReadout::new(
            &self.module,
            self.stream.borrow(),
            logits.on_gpu[2].ptr(),
            [vocabulary as u32, RANK as u32],
            MAX_ROWS as u32,
        );
        self.hopper = hopper.unwrap().unwrap();
        logits
    }

    /// Draws anew, into the same arrays.
    pub(crate) fn redraw(&self, logits: &mut Logits, kind: Kind) {
        logits.kind = kind;
        let stride = logits.stride;
        let mut seed = 0;
        let mut next = |values: &mut [u16], value: &(dyn Fn(usize, u64) -> f32 + Sync)| {
            seed += 1;
            fill(values, seed, value);
        };
        match kind {
            Kind::Random => {
                next(&mut logits.base, &|_, bits| 2.0 * normal(bits));
                next(&mut logits.latents, &|_, bits| normal(bits));
                next(&mut logits.w2, &|_, bits| 0.05 * normal(bits));
            }
            Kind::Ties | Kind::Special => {
                let small = |bits: u64| ((bits >> 20) % 5) as f32 - 2.0;
                next(
                    &mut logits.base,
                    &|i, bits| match (kind, i / stride, bits % 8) {
                        (Kind::Special, 0, _) => f32::NEG_INFINITY,
                        (Kind::Special, 1, _) => f32::NAN,
                        (Kind::Special, 2, _) => {
                            if bits % 2 == 0 {
                                0.0
                            } else {
                                -0.0
                            }
                        }
                        (Kind::Special, _, 0) => f32::NAN,
                        (Kind::Special, _, 1) => f32::NEG_INFINITY,
                        (_, _, 2) => -0.0,
                        _ => 8.0 * small(bits),
                    },
                );
                next(&mut logits.latents, &|i, bits| match (kind, i / RANK) {
                    (Kind::Special, 2) => 0.0,
                    // Few terms, so that sums tie with each other's.
                    _ => {
                        if bits % 16 == 0 {
                            small(bits)
                        } else {
                            0.0
                        }
                    }
                });
                next(&mut logits.w2, &|_, bits| small(bits));
            }
        }
        for (buffer, values) in
            logits
                .on_gpu
                .iter_mut()
                .zip([&logits.base, &logits.latents, &logits.w2])
        {
            buffer
                .write(self.stream.borrow(), 0, bytemuck::cast_slice(values))
                .unwrap();
        }
    }

    pub(crate) fn args(&self, logits: &Logits, case: Case) -> ReadoutArgs {
        let (slots, stride) = (case.slots as u64, logits.stride as u64);
        let rows_of_request = match case.layout {
            Layout::Even => slots,
            Layout::Apart => slots + 1,
        };
        let [base, latents, w2] = logits
            .on_gpu
            .each_ref()
            .map(|buffer| std::ptr::with_exposed_provenance::<bf16>(buffer.ptr() as usize));
        ReadoutArgs {
            latents,
            w2,
            base,
            request_stride: rows_of_request * stride,
            slot_stride: stride,
            blocks: std::ptr::with_exposed_provenance_mut(self.blocks.ptr() as usize),
            drafts: std::ptr::with_exposed_provenance_mut(self.drafts.ptr() as usize),
            keys: std::ptr::with_exposed_provenance_mut(self.keys.ptr() as usize),
            arrived: std::ptr::with_exposed_provenance_mut(self.arrived.ptr() as usize),
            flag: std::ptr::null(),
            changed: std::ptr::null_mut(),
            needed: std::ptr::null_mut(),
            open: std::ptr::null(),
            flat: std::ptr::null(),
            rows: (case.requests * case.slots) as u32,
            slots: case.slots as u32,
            rank: RANK as u32,
            vocabulary: logits.vocabulary as u32,
            aligned: 1,
        }
    }

    /// The blocks that the general kernel makes.
    pub(crate) fn run_general(&mut self, logits: &Logits, case: Case) -> Vec<i64> {
        self.set_blocks(&self.stale());
        let args = self.args(logits, case);
        let which = usize::from(args.rows > ROW_BLOCKS[0]);
        let block = [ROW_BLOCKS[0], ROW_BLOCKS[3]][which];
        let row_blocks = args.rows.div_ceil(block);
        let shares = (self.context.device().multiprocessors() / row_blocks)
            .clamp(1, args.vocabulary.div_ceil(readout::TILE));
        let shape = LaunchShape {
            grid: [row_blocks * shares, 1, 1],
            threads: readout::THREADS,
            shared_bytes: readout::bytes(block, args.rank),
            dependent: false,
        };
        // SAFETY: the arguments are of our own arrays, which are long enough for the case.
        unsafe {
            self.general[which]
                .launch(self.stream.borrow(), shape, args.words())
                .unwrap()
        };
        self.blocks()
    }

    pub(crate) fn run_hopper(&mut self, logits: &Logits, case: Case) {
        let args = self.args(logits, case);
        self.enqueue(&args);
    }

    /// With the flags as those of the pass before and of this one.
    pub(crate) fn run_hopper_with_flags(&mut self, logits: &Logits, case: Case) {
        let args = ReadoutArgs {
            flag: std::ptr::with_exposed_provenance(self.flags.ptr() as usize),
            changed: std::ptr::with_exposed_provenance_mut(self.flags.ptr() as usize + 4),
            ..self.args(logits, case)
        };
        self.hopper.begin();
        self.enqueue(&args);
    }

    fn enqueue(&mut self, args: &ReadoutArgs) {
        // SAFETY: the arguments are of our own arrays, which are long enough for the case.
        let taken = unsafe { self.hopper.enqueue(self.stream.borrow(), true, args) };
        assert!(taken.unwrap(), "{args:?}");
    }

    /// Blocks and drafts are those that the general kernel made; with random logits, as good within a rounding step.
    pub(crate) fn expect(&self, logits: &Logits, case: Case, want: &[i64]) {
        let (got, slots) = (self.blocks(), case.slots);
        let drafts = self
            .drafts
            .read(self.stream.borrow(), 0, case.requests * slots)
            .unwrap();
        for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
            let (request, slot) = (i / (slots + 1), i % (slots + 1));
            if request >= case.requests || slot == 0 {
                assert_eq!(got, want, "{case:?}: element {i} is none of the kernel's");
                continue;
            }
            let row = request * slots + slot - 1;
            assert_eq!(drafts[row], got, "{case:?}: draft of row {row}");
            if got != want && logits.kind == Kind::Random {
                let [got, want] = [got, want].map(|token| logits.sum(case, row, token as usize));
                assert!(
                    (got - want).abs() <= want.abs() / 64.0,
                    "{case:?}: row {row}: {got} against {want}"
                );
            } else {
                assert_eq!(
                    got, want,
                    "{case:?} of {} {:?}: row {row}",
                    logits.vocabulary, logits.kind
                );
            }
        }
    }

    /// Blocks are those of a plain loop, where sums are exact.
    pub(crate) fn expect_of_cpu(&self, logits: &Logits, case: Case) {
        if logits.kind == Kind::Random {
            return;
        }
        let blocks = self.blocks();
        for row in 0..case.requests * case.slots {
            let (mut best, mut token) = (f32::NEG_INFINITY, 0);
            for v in 0..logits.vocabulary {
                let s = logits.sum(case, row, v) as f32;
                if s > best {
                    (best, token) = (s, v);
                }
            }
            let at = row / case.slots * (case.slots + 1) + 1 + row % case.slots;
            assert_eq!(
                blocks[at], token as i64,
                "{case:?} of {} {:?}: row {row}",
                logits.vocabulary, logits.kind
            );
        }
    }

    /// Blocks as they may be before a pass.
    pub(crate) fn stale(&self) -> Vec<i64> {
        (0..self.blocks.len() as i64).map(|i| -2 - i).collect()
    }

    pub(crate) fn blocks(&self) -> Vec<i64> {
        self.blocks.to_vec(self.stream.borrow()).unwrap()
    }

    pub(crate) fn set_blocks(&mut self, blocks: &[i64]) {
        self.blocks.write(self.stream.borrow(), 0, blocks).unwrap();
    }

    pub(crate) fn flags(&self) -> [u32; 2] {
        self.flags
            .to_vec(self.stream.borrow())
            .unwrap()
            .try_into()
            .unwrap()
    }

    pub(crate) fn set_flags(&mut self, flags: [u32; 2]) {
        self.flags.write(self.stream.borrow(), 0, &flags).unwrap();
    }
}

impl Logits {
    /// Base logit and product of a row and a token, unrounded.
    fn sum(&self, case: Case, row: usize, token: usize) -> f64 {
        let apart = usize::from(case.layout == Layout::Apart);
        let base_row = row / case.slots * (case.slots + apart) + row % case.slots;
        let value = |bits: u16| f64::from(bf16::from_bits(bits).to_f32());
        let latents = &self.latents[row * RANK..][..RANK];
        let weights = &self.w2[token * RANK..][..RANK];
        let product: f64 = latents
            .iter()
            .zip(weights)
            .map(|(&a, &b)| value(a) * value(b))
            .sum();
        value(self.base[base_row * self.stride + token]) + product
    }
}

/// Values of their places and a hash, on all cores.
fn fill(values: &mut [u16], seed: u64, value: &(dyn Fn(usize, u64) -> f32 + Sync)) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let share = values.len().div_ceil(threads).max(1);
    std::thread::scope(|scope| {
        for (part, values) in values.chunks_mut(share).enumerate() {
            scope.spawn(move || {
                for (i, to) in values.iter_mut().enumerate() {
                    let i = part * share + i;
                    *to = bf16::from_f32(value(i, hash(i as u64 ^ seed << 40))).to_bits();
                }
            });
        }
    });
}

/// About normal: the sum of four uniform numbers.
fn normal(bits: u64) -> f32 {
    let parts = [bits, bits >> 16, bits >> 32, bits >> 48].map(|part| (part & 0xffff) as f32);
    (parts.iter().sum::<f32>() / 65536.0 - 2.0) * 1.732
}

/// SplitMix64's output function.
fn hash(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}
