//! Launching a kernel.

use super::error::{EmuError, ErrorKind, Fault};
use super::order::Stamp;
use super::region::Region;
use super::scheduler::{Wave, run_wave};
use super::shared::MAX_SHARED;
use super::stack;
use crate::Kernel;
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Sizes of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchConfig {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block, at most 1024 in all.
    pub block: [u32; 3],
    /// Blocks of a cluster, which run at the same time; divides the grid. At most 16 in all.
    pub cluster: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub dynamic_shared: usize,
    /// Whether all blocks run at the same time, so that they may wait for each other.
    pub cooperative: bool,
}

impl LaunchConfig {
    /// Clusters of one block, no dynamic shared memory, not cooperative.
    pub fn new(grid: [u32; 3], block: [u32; 3]) -> Self {
        Self {
            grid,
            block,
            cluster: [1; 3],
            dynamic_shared: 0,
            cooperative: false,
        }
    }

    /// One dimension.
    pub fn linear(blocks: u32, threads: u32) -> Self {
        Self::new([blocks, 1, 1], [threads, 1, 1])
    }
}

/// How a launch runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Of what is random. The same seed and schedule give the same run, except in parallel.
    pub seed: u64,
    /// The order of threads and blocks.
    pub schedule: Schedule,
    /// Steps (accesses to memory, barriers, collectives) after which the launch fails.
    pub max_steps: u64,
    /// Whether relaxed atomics on global memory order what is before and after them, as releases and acquires do: for kernels whose blocks talk
    /// by values alone, where who sees a value knows that all it was computed from has been read. All other data races are still errors.
    pub data_orders: bool,
    /// For a launch that starts before those since this mark have ended ([`pdl`](crate::pdl)): what they may still use is not touched before
    /// `pdl::wait`.
    pub overlaps: Option<Mark>,
}

/// A moment: launches are before it or after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(pub(crate) u64);

/// Now.
pub fn mark() -> Mark {
    Mark(NEXT_BLOCK.load(Ordering::Relaxed))
}

/// The order in which threads and blocks run. Correct kernels do the same in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Schedule {
    /// Blocks one after the other, in each the warps, until they wait. The fastest on one core.
    Sequential,
    /// Drawn from the seed: the order of blocks, how many run at a time, which thread runs next and for how long, also in
    /// the middle of straight-line code.
    Shuffled,
    /// Blocks in a shuffled order on rayon's threads, those of a cluster on one; each as in `Sequential`. Of a cooperative launch all on one.
    Parallel,
}

impl Default for Options {
    /// Sequential, a budget of 2^28 steps, data orders nothing, no launch overlaps.
    fn default() -> Self {
        Self {
            seed: 0,
            schedule: Schedule::Sequential,
            max_steps: 1 << 28,
            data_orders: false,
            overlaps: None,
        }
    }
}

impl Options {
    /// The shuffled schedule of a seed.
    pub fn shuffled(seed: u64) -> Self {
        Self {
            seed,
            schedule: Schedule::Shuffled,
            ..Self::default()
        }
    }

    /// The parallel schedule, blocks in the order of a seed.
    pub fn parallel(seed: u64) -> Self {
        Self {
            seed,
            schedule: Schedule::Parallel,
            ..Self::default()
        }
    }
}

/// What a launch that succeeded did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Blocks that ran.
    pub blocks: u64,
    /// Accesses to memory, barriers and collectives.
    pub steps: u64,
}

/// Runs a kernel to its end. `arguments` are the kernel's, as words ([`KernelParam::to_word`](crate::KernelParam::to_word),
/// [`Buffer::arg`](super::buffer::Buffer::arg)).
///
/// # Errors
///
/// A configuration that does not fit the kernel, and everything in [`ErrorKind`] that the kernel does. What it wrote until
/// then stays written.
///
/// # Safety
///
/// - The kernel reaches memory only by views, which are checked; or the arguments keep its contract.
pub unsafe fn launch(
    kernel: &Kernel,
    config: LaunchConfig,
    arguments: &[u64],
    options: &Options,
) -> Result<Report, EmuError> {
    let error = |fault: Fault| EmuError {
        kernel: kernel.name,
        kind: fault.kind,
        message: fault.message,
        sites: fault.sites,
        schedule: format!("{:?} schedule, seed {}", options.schedule, options.seed).to_lowercase(),
    };
    check_config(kernel, &config, arguments)
        .map_err(|message| error(Fault::new(ErrorKind::Config, message)))?;
    let launch = Launch::new(*kernel, config, arguments, *options);
    launch.run().map_err(error)
}

fn check_config(kernel: &Kernel, config: &LaunchConfig, arguments: &[u64]) -> Result<(), String> {
    if arguments.len() != kernel.params.len() {
        return Err(format!(
            "{} arguments, the kernel takes {}",
            arguments.len(),
            kernel.params.len()
        ));
    }
    for (what, size, most) in [
        ("grid", config.grid, [i32::MAX as u32, 65535, 65535]),
        ("block", config.block, [1024, 1024, 64]),
    ] {
        if (0..3).any(|k| size[k] == 0 || size[k] > most[k]) {
            return Err(format!("{what} {size:?}: from 1 to {most:?}"));
        }
    }
    let threads = count(config.block);
    if threads > 1024 {
        return Err(format!("blocks of {threads} threads, of at most 1024"));
    }
    if let Some(bound) = kernel.threads
        && (config.block != [bound, 1, 1])
    {
        return Err(format!(
            "blocks of {:?} threads, the kernel's launch bounds say [{bound}, 1, 1]",
            config.block
        ));
    }
    if (0..3).any(|k| config.cluster[k] == 0 || !config.grid[k].is_multiple_of(config.cluster[k]))
        || count(config.cluster) > 16
    {
        return Err(format!(
            "clusters of {:?} blocks in a grid of {:?}: divisors, at most 16 in all",
            config.cluster, config.grid
        ));
    }
    let at_once = count(config.grid).saturating_mul(threads);
    if config.cooperative && at_once > stack::LIMIT as u64 {
        return Err(format!(
            "{at_once} threads of a cooperative launch, of at most {}",
            stack::LIMIT
        ));
    }
    if config.dynamic_shared > MAX_SHARED {
        return Err(format!(
            "{} bytes of dynamic shared memory, of at most {MAX_SHARED}",
            config.dynamic_shared
        ));
    }
    Ok(())
}

pub(crate) fn count(size: [u32; 3]) -> u64 {
    size.into_iter().map(u64::from).product()
}

/// The next block's number, unlike any before; 0 stands for none.
static NEXT_BLOCK: AtomicU64 = AtomicU64::new(1);

/// A launch that runs.
pub(crate) struct Launch<'a> {
    pub(crate) kernel: Kernel,
    pub(crate) config: LaunchConfig,
    pub(crate) arguments: &'a [u64],
    pub(crate) options: Options,
    /// The id of block 0; the others follow.
    pub(crate) first_block: u64,
    /// Stamps before it are of earlier launches.
    pub(crate) first_stamp: Stamp,
    pub(crate) blocks: u64,
    spent: AtomicU64,
    stop: AtomicBool,
    fault: Mutex<Option<Fault>>,
    used: Mutex<BTreeMap<usize, Arc<Region>>>,
}

impl<'a> Launch<'a> {
    fn new(kernel: Kernel, config: LaunchConfig, arguments: &'a [u64], options: Options) -> Self {
        let blocks = count(config.grid);
        let first_block = NEXT_BLOCK.fetch_add(blocks, Ordering::Relaxed);
        Self {
            kernel,
            config,
            arguments,
            options,
            first_block,
            first_stamp: Stamp::new(first_block, 0, 0),
            blocks,
            spent: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            fault: Mutex::new(None),
            used: Mutex::default(),
        }
    }

    fn run(&self) -> Result<Report, Fault> {
        let clusters = self.blocks / count(self.config.cluster);
        let mut random = Random::new(self.options.seed);
        let cooperative = self.config.cooperative;
        match self.options.schedule {
            Schedule::Parallel if cooperative => {
                let order = random.order(clusters);
                run_wave(
                    Wave::new(self),
                    &mut order.into_iter(),
                    clusters as usize,
                    None,
                );
            }
            Schedule::Sequential => {
                let at_a_time = if cooperative { clusters } else { 1 };
                run_wave(
                    Wave::new(self),
                    &mut (0..clusters),
                    at_a_time as usize,
                    None,
                );
            }
            Schedule::Shuffled => {
                let order = random.order(clusters);
                let most =
                    (16384 / (count(self.config.block) * count(self.config.cluster))).clamp(1, 4);
                let drawn = 1 + random.below(most);
                let at_a_time = if cooperative { clusters } else { drawn };
                run_wave(
                    Wave::new(self),
                    &mut order.into_iter(),
                    at_a_time as usize,
                    Some(random),
                );
            }
            Schedule::Parallel => random.order(clusters).into_par_iter().for_each(|cluster| {
                if !self.stop.load(Ordering::Relaxed) {
                    run_wave(Wave::new(self), &mut std::iter::once(cluster), 1, None);
                }
            }),
        }
        for region in self
            .used
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .values()
        {
            region.release(self.first_block);
        }
        match self
            .fault
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
        {
            Some(fault) => Err(fault),
            None => Ok(Report {
                blocks: self.blocks,
                steps: self.spent.load(Ordering::Relaxed),
            }),
        }
    }

    /// A wave has taken so many steps more.
    pub(crate) fn spend(&self, steps: u64) -> Result<(), Fault> {
        let spent = self.spent.fetch_add(steps, Ordering::Relaxed) + steps;
        if spent > self.options.max_steps {
            let message = format!(
                "the launch took more than its {} steps",
                self.options.max_steps
            );
            return Err(Fault::new(ErrorKind::StepLimit, message));
        }
        Ok(())
    }

    /// Whether another wave has failed.
    pub(crate) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// A wave has ended: the buffers it has met, and its error if it has one. The first one counts.
    pub(crate) fn wave_ended(&self, regions: Vec<Arc<Region>>, fault: Option<Fault>) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.extend(
            regions
                .into_iter()
                .map(|region| (region.base().addr(), region)),
        );
        if let Some(fault) = fault {
            self.stop.store(true, Ordering::Relaxed);
            self.fault
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .get_or_insert(fault);
        }
    }

    /// Whether several host threads run it.
    #[inline]
    pub(crate) fn is_parallel(&self) -> bool {
        self.options.schedule == Schedule::Parallel
    }

    /// The index in the grid of the block with this id.
    pub(crate) fn block_index(&self, id: u64) -> [u32; 3] {
        let n = id - self.first_block;
        let [x, y, _] = self.config.grid.map(u64::from);
        [n % x, n / x % y, n / (x * y)].map(|k| k as u32)
    }
}

/// A small generator (splitmix64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ x >> 31
    }

    /// A number below `n`.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    /// The numbers below `n` in a random order.
    fn order(&mut self, n: u64) -> Vec<u64> {
        let mut order: Vec<u64> = (0..n).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, self.below(i as u64 + 1) as usize);
        }
        order
    }
}
