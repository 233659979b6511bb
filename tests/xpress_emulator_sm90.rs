//! The refiner's cluster kernels in the emulator: the reference's answers, with accesses, barriers and races checked; data
//! orders where a test says so.

use std::sync::{Arc, LazyLock};

use cuda_std::Kernel;
use cuda_std::emu::{self, Buffer, LaunchConfig, Options};
use specdraft::cpu::CpuXpress;
use specdraft::xpress::packed::Packed;
use specdraft::xpress::{
    Generate, Mlp, XpressBackend, XpressConfig, XpressHead, XpressLimits, bf16,
};
use specdraft_kernels::xpress::latent_sm90::{self, LatentArgs};
use specdraft_kernels::xpress::refine_resident_sm90::{
    self, CLUSTERS, PACKETS, ResidentArgs, TURNS,
};
use specdraft_kernels::xpress::refine_topc_sm90::{self, RefineArgs};
use test_support::xpress::prepared::{Step, hostile_logits, hostile_tokens};

const CONFIG: XpressConfig = XpressConfig {
    vocab_size: 700,
    hidden_size: 16,
    rank: 256,
    mlp_hidden: 512,
    block_size: 16,
    num_passes: 6,
    topc: 512,
};
const DRAFTS: usize = 15;
const CLUSTER: u32 = 8;

/// A head, its reference, and its arrays where kernels read them.
struct Bench {
    cpu: CpuXpress,
    weights: Buffer<bf16>,
    mixer_rows: Buffer<bf16>,
    mixer_columns: Buffer<bf16>,
    w1: Buffer<bf16>,
    w2: Buffer<bf16>,
}

impl Bench {
    fn new() -> Self {
        let head = Arc::new(XpressHead::generate(&CONFIG, Generate::Exact, 1).unwrap());
        let packed = Packed::new(&head).unwrap();
        let limits = XpressLimits {
            max_num_reqs: 8,
            max_topc: 512,
        };
        Self {
            weights: Buffer::from_slice(&packed.matrices),
            mixer_rows: Buffer::from_slice(&packed.mixer_rows),
            mixer_columns: Buffer::from_slice(&packed.mixer_columns),
            w1: Buffer::from_slice(&head.weights().w1),
            w2: Buffer::from_slice(&head.weights().w2),
            cpu: CpuXpress::new(head, limits).unwrap(),
        }
    }

    fn step(&mut self, requests: usize, count: usize, passes: usize, seed: u64) -> Step {
        Step::new(
            &mut self.cpu,
            Generate::Exact,
            (requests, count, passes),
            seed,
        )
    }

    /// The latents of a kernel, which are the reference's.
    fn check_latents(
        &mut self,
        kernel: &Kernel,
        requests: usize,
        (clusters, rows, bytes): (u32, u32, u32),
        options: Options,
    ) {
        let step = self.step(requests, 1, 0, requests as u64);
        let expected = self
            .cpu
            .latent_pass(&step.blocks, &step.previous, &step.xh, Mlp::Run)
            .unwrap();
        let latents = Buffer::<bf16>::uninit(requests * DRAFTS * 256);
        let [blocks, previous] = [&step.blocks, &step.previous].map(|v| Buffer::from_slice(v));
        let xh = Buffer::from_slice(&step.xh);
        let args = LatentArgs {
            blocks: pointer(&blocks),
            previous: pointer(&previous),
            xh: pointer(&xh),
            w1: pointer(&self.w1),
            weights: pointer(&self.weights),
            mixer: pointer(&self.mixer_rows),
            latents: pointer(&latents).cast_mut(),
            flag: std::ptr::null(),
            requests: requests as u32,
            vocabulary: CONFIG.vocab_size as u32,
            rows,
        };
        run(kernel, clusters, bytes, &args.words(), options);
        let what = format!("{}, {requests} requests, {options:?}", kernel.name);
        assert!(latents.read() == expected, "{what}");
    }

    /// The tokens of a kernel, which are the reference's.
    fn check_refinement(
        &mut self,
        work: &Work<'_>,
        requests: usize,
        (count, passes): (usize, u32),
        options: Options,
    ) {
        let step = self.step(requests, count, passes as usize, u64::from(passes));
        let (drafts, what) = self.refine(work, &step, (count, passes), options);
        assert_eq!(drafts, step.refined, "{what}");
    }

    /// The tokens of a kernel, and what was done.
    fn refine(
        &self,
        work: &Work<'_>,
        step: &Step,
        (count, passes): (usize, u32),
        options: Options,
    ) -> (Vec<i64>, String) {
        let requests = step.requests;
        let [blocks, previous] = [&step.blocks, &step.previous].map(|v| Buffer::from_slice(v));
        let (xh, ids) = (Buffer::from_slice(&step.xh), Buffer::from_slice(&step.ids));
        let logits = Buffer::from_slice(&step.logits);
        let drafts = Buffer::<i64>::uninit(requests * DRAFTS);
        let args = RefineArgs {
            blocks: pointer(&blocks).cast_mut(),
            previous: pointer(&previous),
            xh: pointer(&xh),
            w1: pointer(&self.w1),
            weights: pointer(&self.weights),
            mixer: pointer(&self.mixer_columns),
            w2: pointer(&self.w2),
            ids: pointer(&ids),
            logits: pointer(&logits),
            drafts: pointer(&drafts).cast_mut(),
            requests: requests as u32,
            passes,
            count: count as u32,
            vocabulary: CONFIG.vocab_size as u32,
        };
        let name = match work {
            Work::Slots(n, clusters) => {
                let kernel = &SLOT_BY_SLOT[*n as usize - 1];
                let bytes = refine_topc_sm90::bytes(*n);
                run(kernel, *clusters, bytes, &args.words(), options);
                kernel.name
            }
            Work::Passes(kernel, slots, scratch) => {
                let args = scratch.args(&args, &self.mixer_rows);
                let bytes = refine_resident_sm90::bytes(*slots);
                run(kernel, CLUSTERS, bytes, &args.words(), options);
                kernel.name
            }
        };
        let what = format!(
            "{name}, {requests} requests, {count} candidates, {passes} passes, {options:?}"
        );
        let (blocks, drafts) = (blocks.read(), drafts.read());
        for (block, drafts) in blocks.chunks_exact(16).zip(drafts.chunks_exact(DRAFTS)) {
            assert_eq!(&block[1..], drafts, "{what}: the blocks");
        }
        (drafts, what)
    }
}

/// A kernel that refines: slot by slot, of so many requests a cluster and clusters; or pass by pass, of so many slots a cluster.
enum Work<'a> {
    Slots(u32, u32),
    Passes(&'a Kernel, u32, &'a Scratch),
}

const SLOT_BY_SLOT: [Kernel; 3] = [
    refine_topc_sm90::XPRESS_REFINE_TOPC_1,
    refine_topc_sm90::XPRESS_REFINE_TOPC_2,
    refine_topc_sm90::XPRESS_REFINE_TOPC_3,
];

/// What launches pass by pass leave to each other.
struct Scratch {
    packets: Buffer<u64>,
    turns: Buffer<u32>,
    stop_early: bool,
}

impl Scratch {
    fn new(stop_early: bool) -> Self {
        Self {
            packets: Buffer::new(PACKETS as usize),
            turns: Buffer::new(TURNS as usize),
            stop_early,
        }
    }

    fn args(&self, args: &RefineArgs, mixer: &Buffer<bf16>) -> ResidentArgs {
        ResidentArgs {
            blocks: args.blocks,
            previous: args.previous,
            xh: args.xh,
            w1: args.w1,
            weights: args.weights,
            mixer: pointer(mixer),
            w2: args.w2,
            ids: args.ids,
            logits: args.logits,
            drafts: args.drafts,
            packets: pointer(&self.packets).cast_mut(),
            turns: pointer(&self.turns).cast_mut(),
            requests: args.requests,
            passes: args.passes,
            count: args.count,
            vocabulary: args.vocabulary,
            stop_early: self.stop_early.into(),
        }
    }
}

fn pointer<T: cuda_std::Element>(buffer: &Buffer<T>) -> *const T {
    std::ptr::with_exposed_provenance(buffer.arg() as usize)
}

fn run(kernel: &Kernel, clusters: u32, bytes: u32, arguments: &[u64], options: Options) {
    let config = LaunchConfig {
        cluster: [CLUSTER, 1, 1],
        dynamic_shared: bytes as usize,
        cooperative: kernel.name.contains("resident"),
        ..LaunchConfig::linear(clusters * CLUSTER, refine_topc_sm90::THREADS)
    };
    // All launches may overlap.
    static FIRST: LazyLock<emu::Mark> = LazyLock::new(emu::mark);
    let options = Options {
        overlaps: Some(*FIRST),
        ..options
    };
    // SAFETY: arrays of the lengths that the kernels ask for.
    let result = unsafe { emu::launch(kernel, config, arguments, &options) };
    if let Err(error) = result {
        panic!("{error}");
    }
}

fn options() -> [Options; 3] {
    [
        Options::default(),
        Options::shuffled(1),
        Options::shuffled(2),
    ]
}

#[test]
fn latents_equal_the_reference() {
    let mut bench = Bench::new();
    for options in options() {
        for rows in [8, 3] {
            let clusters = 2 * DRAFTS.div_ceil(rows) as u32;
            let launch = (clusters, rows as u32, latent_sm90::ROWS_BYTES);
            bench.check_latents(&latent_sm90::XPRESS_LATENT_ROWS, 2, launch, options);
        }
    }
    let kernels = [
        latent_sm90::XPRESS_LATENT_1,
        latent_sm90::XPRESS_LATENT_2,
        latent_sm90::XPRESS_LATENT_3,
    ];
    for (n, kernel) in (1..).zip(&kernels) {
        // A round that is full and one that is not.
        let launch = (1, 0, latent_sm90::bytes(n));
        bench.check_latents(kernel, n as usize + 1, launch, Options::default());
    }
}

#[test]
fn refinements_of_one_request_a_cluster_equal_the_reference() {
    let mut bench = Bench::new();
    for (i, options) in options().into_iter().enumerate() {
        let (count, passes) = [(512, 6), (100, 8), (7, 1)][i];
        bench.check_refinement(&Work::Slots(1, 2), 2, (count, passes), options);
    }
    bench.check_refinement(&Work::Slots(1, 1), 2, (65, 3), Options::default());
}

#[test]
fn refinements_of_several_requests_a_cluster_equal_the_reference() {
    let mut bench = Bench::new();
    bench.check_refinement(&Work::Slots(2, 1), 3, (512, 6), Options::default());
    bench.check_refinement(&Work::Slots(3, 1), 4, (200, 2), Options::default());
    bench.check_refinement(&Work::Slots(3, 1), 2, (130, 4), Options::shuffled(3));
}

/// Launches that share a scratch, as those of a stream do. Their blocks read what others sent before they write a packet that depends on it, and
/// send anew after reading such packets: ordered by data.
#[test]
fn refinements_pass_by_pass_equal_the_reference() {
    let mut bench = Bench::new();
    let (one, three, five) = (
        refine_resident_sm90::XPRESS_REFINE_RESIDENT_1,
        refine_resident_sm90::XPRESS_REFINE_RESIDENT_3,
        refine_resident_sm90::XPRESS_REFINE_RESIDENT_5,
    );
    let scratch = Scratch::new(true);
    let in_order = Options {
        data_orders: true,
        ..Options::default()
    };
    let launches = [
        (&five, 5, 2, (512, 3)),
        (&three, 3, 1, (100, 2)),
        (&one, 1, 1, (65, 2)),
        (&five, 5, 1, (200, 8)),
    ];
    for (kernel, slots, requests, work) in launches {
        let kernel = Work::Passes(kernel, slots, &scratch);
        bench.check_refinement(&kernel, requests, work, in_order);
    }
    let all_passes = Scratch::new(false);
    let kernel = Work::Passes(&five, 5, &all_passes);
    let shuffled = Options {
        data_orders: true,
        ..Options::shuffled(4)
    };
    bench.check_refinement(&kernel, 1, (200, 2), shuffled);
}

/// Tokens and candidates that are none, logits that are no numbers: nothing outside the tables is read, and all kernels agree.
#[test]
fn hostile_values_are_handled_alike() {
    let mut bench = Bench::new();
    let mut step = bench.step(2, 100, 0, 9);
    hostile_tokens(&mut step, CONFIG.vocab_size as i64);
    hostile_logits(&mut step);
    let scratch = Scratch::new(false);
    let five = refine_resident_sm90::XPRESS_REFINE_RESIDENT_5;
    let in_order = |data_orders| Options {
        data_orders,
        ..Options::default()
    };
    let all = [
        (Work::Slots(1, 1), false),
        (Work::Slots(2, 1), false),
        (Work::Slots(3, 1), false),
        (Work::Passes(&five, 5, &scratch), true),
    ];
    let all = all.map(|(work, by_data)| bench.refine(&work, &step, (100, 2), in_order(by_data)));
    for (drafts, what) in &all {
        assert_eq!(*drafts, all[0].0, "{what}");
    }
}
