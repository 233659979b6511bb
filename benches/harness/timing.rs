//! Times of replayed graphs.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use specdraft::driver::{Context, Event, Graph, Stream};

use super::profile;

/// Microseconds of one operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    /// The median of the replays.
    pub(crate) median: f64,
    /// The fastest replay.
    pub(crate) fastest: f64,
    /// The slowest replay.
    pub(crate) slowest: f64,
}

impl Timing {
    /// One measurement.
    pub(crate) fn once(us: f64) -> Self {
        Self::of(vec![us])
    }

    fn of(mut samples: Vec<f64>) -> Self {
        samples.sort_by(f64::total_cmp);
        let middle = samples.len() / 2;
        let median = if samples.len().is_multiple_of(2) {
            f64::midpoint(samples[middle - 1], samples[middle])
        } else {
            samples[middle]
        };
        Self {
            median,
            fastest: samples[0],
            slowest: samples[samples.len() - 1],
        }
    }
}

/// Milliseconds without work before each measurement: the clock recovers from what ran before.
static PAUSE: AtomicU64 = AtomicU64::new(20);

/// Sets the pause before each measurement.
pub(crate) fn set_pause(milliseconds: u64) {
    PAUSE.store(milliseconds, Relaxed);
}

/// Captures `inner` calls of `enqueue` (it is given 0, 1, …) in a graph and times `replays` replays after 3 to warm
/// up, which follow a pause.
///
/// # Errors
/// Those of `enqueue`, and the driver's.
pub(crate) fn time_graph(
    context: &Context,
    stream: Stream<'_>,
    inner: usize,
    replays: usize,
    mut enqueue: impl FnMut(usize) -> specdraft::Result<()>,
) -> Result<Timing> {
    if profile::is_on() {
        profile::call(context, stream, || enqueue(0))?;
        return Ok(Timing::once(0.0));
    }
    let graph = Graph::capture(context, stream, || (0..inner).try_for_each(&mut enqueue))?;
    // SAFETY: the caller's buffers and drafters outlive this function, and only this thread uses them.
    let replay = || unsafe { graph.launch(stream) };
    stream.synchronize(context)?;
    thread::sleep(Duration::from_millis(PAUSE.load(Relaxed)));
    for _ in 0..3 {
        replay()?;
    }
    stream.synchronize(context)?;
    let (start, end) = (Event::new(context)?, Event::new(context)?);
    let mut samples = Vec::with_capacity(replays);
    for _ in 0..replays {
        start.record(stream)?;
        replay()?;
        end.record(stream)?;
        let ms = end.milliseconds_since(&start)?;
        samples.push(f64::from(ms) * 1000.0 / inner as f64);
    }
    Ok(Timing::of(samples))
}

/// What it costs the host to enqueue: microseconds of each of `calls` calls, with a wait after every `burst`.
///
/// # Errors
/// Those of `enqueue`, and the driver's.
pub(crate) fn host_us(
    context: &Context,
    stream: Stream<'_>,
    calls: usize,
    burst: usize,
    mut enqueue: impl FnMut() -> specdraft::Result<()>,
) -> Result<Timing> {
    let mut samples = Vec::with_capacity(calls);
    for call in 0..calls {
        if call.is_multiple_of(burst) {
            stream.synchronize(context)?;
        }
        let start = Instant::now();
        enqueue()?;
        samples.push(start.elapsed().as_secs_f64() * 1e6);
    }
    stream.synchronize(context)?;
    Ok(Timing::of(samples))
}
