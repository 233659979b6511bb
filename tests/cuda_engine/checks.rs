//! Checks that a GPU and the fake driver both have to pass.

use specdraft::cpu::CpuSuffix;
use specdraft::driver::{Context, DeviceBuffer, Graph, OwnedStream, Stream};
use specdraft::suffix::cuda::CudaSuffix;
use specdraft::suffix::{SuffixBackend, SuffixConfig};
use specdraft_kernels::suffix::propose::Grid;

use crate::cuda_engine::{Engine, Step};

/// How a check is sized.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) steps: u32,
    pub(crate) batch: usize,
    pub(crate) docs: usize,
}

/// Steps on an engine's arrays, on all kinds of streams and rows at any address, give the CPU drafter's drafts and
/// state, and write nothing beside the batch's outputs.
pub(crate) fn steps_equal_the_cpu(context: &Context, config: &SuffixConfig, size: Size) {
    let own = OwnedStream::new(context).unwrap();
    let streams = [
        Stream::DEFAULT,
        Stream::LEGACY,
        Stream::PER_THREAD,
        own.borrow(),
    ];
    // Word offsets of the first row, and strides that put the next rows elsewhere.
    for offset in 0..4 {
        let stride = config.max_model_len + offset;
        let mut engine = Engine::new(context, config, stride, offset).unwrap();
        let mut drafter = CudaSuffix::new(context, config.clone()).unwrap();
        let mut cpu = CpuSuffix::new(config.clone()).unwrap();
        for number in 0..size.steps {
            let stream = streams[number as usize % streams.len()];
            let step = Step::drawn(config, number, size.batch, size.docs);
            engine.set(stream, &step).unwrap();
            engine
                .enqueue(&mut drafter, stream, size.docs, size.batch)
                .unwrap();
            let got = engine.read(stream, size.batch).unwrap();
            let want = step.run(&mut cpu).unwrap();
            assert_eq!(got, want, "step {number} at offset {offset} on {stream:?}");
            engine.check_untouched(stream, size.batch).unwrap();
            let state = drafter.state(stream).unwrap();
            let same = state == cpu.state().unwrap();
            assert!(same, "state after step {number} at offset {offset}");
        }
    }
}

/// A whole step, captured once and replayed on changed inputs, gives the bits of direct launches and of the CPU.
pub(crate) fn a_captured_step_replays(context: &Context, config: &SuffixConfig, size: Size) {
    let stream = OwnedStream::new(context).unwrap();
    let stream = stream.borrow();
    let mut engine = Engine::new(context, config, config.max_model_len, 0).unwrap();
    let mut replayed = CudaSuffix::new(context, config.clone()).unwrap();
    let mut direct = CudaSuffix::new(context, config.clone()).unwrap();
    let mut cpu = CpuSuffix::new(config.clone()).unwrap();
    let graph = Graph::capture(context, stream, || {
        engine.enqueue(&mut replayed, stream, size.docs, size.batch)
    })
    .unwrap();
    let mut drafted = 0;
    for number in 0..size.steps {
        let step = Step::drawn(config, 1000 + number, size.batch, size.docs);
        let want = step.run(&mut cpu).unwrap();
        engine.set(stream, &step).unwrap();
        engine
            .enqueue(&mut direct, stream, size.docs, size.batch)
            .unwrap();
        assert_eq!(engine.read(stream, size.batch).unwrap(), want, "direct");
        engine.set(stream, &step).unwrap();
        // SAFETY: drafter and arrays are alive, and only this thread uses them.
        unsafe { graph.launch(stream) }.unwrap();
        assert_eq!(engine.read(stream, size.batch).unwrap(), want, "replayed");
        let state = replayed.state(stream).unwrap();
        assert!(state == direct.state(stream).unwrap(), "step {number}");
        assert!(state == cpu.state().unwrap(), "step {number}");
        drafted += want.num_valid.iter().sum::<i32>();
    }
    let least = size.steps as i32;
    assert!(drafted >= least, "only {drafted} tokens were drafted");
}

/// Whatever grid `propose` is launched on, the answer is the CPU drafter's.
pub(crate) fn grids_change_no_answer(context: &Context, config: &SuffixConfig, size: Size) {
    let stream = Stream::PER_THREAD;
    let mut engine = Engine::new(context, config, config.max_model_len, 1).unwrap();
    let mut drafter = CudaSuffix::new(context, config.clone()).unwrap();
    let mut cpu = CpuSuffix::new(config.clone()).unwrap();
    let mut grids = 0;
    for number in 0..size.steps {
        let grid = Grid {
            log2_blocks: number % 6,
            log2_min_units: number % 4,
        };
        if drafter.set_propose_grid(Some(grid)).is_err() {
            continue;
        }
        grids += 1;
        let step = Step::drawn(config, 2000 + number, size.batch, size.docs);
        engine.set(stream, &step).unwrap();
        engine
            .enqueue(&mut drafter, stream, size.docs, size.batch)
            .unwrap();
        let got = engine.read(stream, size.batch).unwrap();
        assert_eq!(got, step.run(&mut cpu).unwrap(), "{grid:?}");
    }
    assert!(grids >= size.steps / 2, "only {grids} grids were taken");
}

/// With a history index: rows that grow, by steps that are launched or replayed, that are cut short, and that become
/// other requests'.
pub(crate) fn indexed_histories_change(context: &Context, config: &SuffixConfig, size: Size) {
    let config = SuffixConfig {
        history_index: true,
        ..config.clone()
    };
    let stream = OwnedStream::new(context).unwrap();
    let stream = stream.borrow();
    let all: Vec<i32> = (0..config.max_num_reqs as i32).collect();
    let slots = DeviceBuffer::from_slice(context, stream, &all, "slots").unwrap();
    for offset in 0..2 {
        let stride = config.max_model_len + offset;
        let mut engine = Engine::new(context, &config, stride, offset).unwrap();
        let mut drafter = CudaSuffix::new(context, config.clone()).unwrap();
        let mut cpu = CpuSuffix::new(config.clone()).unwrap();
        let graph = Graph::capture(context, stream, || {
            engine.enqueue(&mut drafter, stream, size.docs, size.batch)
        })
        .unwrap();
        for number in 0..size.steps {
            let whole = Step::drawn(&config, 3000 + number, size.batch, size.docs);
            drafter.add_requests(stream, slots.slice()).unwrap();
            for &slot in &all {
                cpu.add_request(slot as usize).unwrap();
            }
            for (turn, share) in [0.5, 0.51, 0.53, 0.9, 0.2, 0.8, 1.0]
                .into_iter()
                .enumerate()
            {
                let mut step = whole.clone();
                for row in &mut step.rows {
                    row.truncate((row.len() as f64 * share) as usize);
                }
                engine.set(stream, &step).unwrap();
                if turn % 2 == 0 {
                    // SAFETY: drafter and arrays are alive, and only this thread uses them.
                    unsafe { graph.launch(stream) }.unwrap();
                } else {
                    engine
                        .enqueue(&mut drafter, stream, size.docs, size.batch)
                        .unwrap();
                }
                let got = engine.read(stream, size.batch).unwrap();
                let want = step.run(&mut cpu).unwrap();
                assert_eq!(got, want, "history {number}, turn {turn}, offset {offset}");
            }
        }
    }
}
