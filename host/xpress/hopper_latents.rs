//! The latent stage's and the candidate passes' twins for Hopper: which calls they take, and launching them.

use specdraft_kernels::xpress::latent::{DownArgs, MixArgs};
use specdraft_kernels::xpress::latent_sm90::{
    self, LatentArgs, MAX_ROWS, ROWS_BYTES, XPRESS_LATENT_1, XPRESS_LATENT_2, XPRESS_LATENT_3,
    XPRESS_LATENT_ROWS,
};
use specdraft_kernels::xpress::refine_topc_sm90::{
    self, MAX_CANDIDATES, MAX_PASSES, RefineArgs, XPRESS_REFINE_TOPC_1, XPRESS_REFINE_TOPC_2,
    XPRESS_REFINE_TOPC_3,
};
use specdraft_kernels::xpress::score::ScoreArgs;
use specdraft_kernels::xpress::stages_sm90::{CLUSTER, RANK, SLOTS, THREADS, UNITS};

use super::XpressHead;
use super::hopper_resident::Resident;
use super::packed::Packed;
use crate::driver::{
    DeviceBuffer, DriverError, KernelResources, LaunchShape, Module, PreparedKernel, Stream,
};

/// The kernels that spread a request over a cluster of eight multiprocessors, loaded, and the head's weights in their order.
///
/// They are for GPUs of compute capability 9.0 and heads of rank 256, 512 hidden units and blocks of 16. Their tokens are the general
/// kernels', but where two logits lie within a rounding step: sums are taken in another order.
#[derive(Debug)]
pub struct HopperLatents {
    rows: Clustered<{ XPRESS_LATENT_ROWS.params.len() }>,
    latents: [Clustered<{ XPRESS_LATENT_1.params.len() }>; 3],
    refine: [Clustered<{ XPRESS_REFINE_TOPC_1.params.len() }>; 3],
    resident: Option<Resident>,
    use_resident: bool,
    matrices: DeviceBuffer<u32>,
    mixer_rows: DeviceBuffer<u32>,
    mixer_columns: DeviceBuffer<u32>,
    multiprocessors: u32,
}

/// A kernel, and what its clusters take.
#[derive(Debug)]
pub(super) struct Clustered<const N: usize> {
    pub(super) kernel: PreparedKernel<N>,
    pub(super) shared_bytes: u32,
    /// Clusters that run at the same time.
    pub(super) resident: u32,
}

/// A kernel's index, and its grid in clusters.
type Pick = (usize, u32);

impl HopperLatents {
    /// Loads the kernels and uploads the weights. `None` if the GPU, the module or the head is not one that the kernels are for.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(
        module: &Module,
        stream: Stream<'_>,
        head: &XpressHead,
    ) -> Result<Option<Self>, DriverError> {
        let context = module.context();
        let is_hopper = context.device().capability() == (9, 0) && module.target() == "sm_90a";
        if !is_hopper {
            return Ok(None);
        }
        let Some(packed) = Packed::new(head) else {
            return Ok(None);
        };
        let latent =
            |kernel, requests| Clustered::new(module, kernel, latent_sm90::bytes(requests));
        let refine =
            |kernel, requests| Clustered::new(module, kernel, refine_topc_sm90::bytes(requests));
        let upload = |values: &[half::bf16], name| {
            let words: Vec<u32> = values
                .chunks_exact(2)
                .map(|pair| u32::from(pair[0].to_bits()) | u32::from(pair[1].to_bits()) << 16)
                .collect();
            DeviceBuffer::from_slice(context, stream, &words, name)
        };
        let all = Self {
            rows: Clustered::new(module, &XPRESS_LATENT_ROWS, ROWS_BYTES)?,
            latents: [
                latent(&XPRESS_LATENT_1, 1)?,
                latent(&XPRESS_LATENT_2, 2)?,
                latent(&XPRESS_LATENT_3, 3)?,
            ],
            refine: [
                refine(&XPRESS_REFINE_TOPC_1, 1)?,
                refine(&XPRESS_REFINE_TOPC_2, 2)?,
                refine(&XPRESS_REFINE_TOPC_3, 3)?,
            ],
            resident: Resident::new(module, stream)?,
            use_resident: true,
            matrices: upload(&packed.matrices, "packed weights")?,
            mixer_rows: upload(&packed.mixer_rows, "packed mixer")?,
            mixer_columns: upload(&packed.mixer_columns, "packed mixer")?,
            multiprocessors: context.device().multiprocessors(),
        };
        // A partition of a GPU may be too small for a cluster.
        let resident = all.latents.iter().map(|kernel| kernel.resident);
        let resident = resident.chain(all.refine.iter().map(|kernel| kernel.resident));
        let fits = all.rows.resident > 0 && resident.min() > Some(0);
        Ok(fits.then_some(all))
    }

    /// GPU memory that the weights hold, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.matrices.bytes() + self.mixer_rows.bytes() + self.mixer_columns.bytes()
    }

    /// GPU memory that launches share, in bytes.
    pub fn scratch_bytes(&self) -> u64 {
        self.resident.as_ref().map_or(0, Resident::memory_bytes)
    }

    /// Whether up to five requests may be refined by a launch that holds nine tenths of the GPU's multiprocessors and starts when they are
    /// free (a cooperative launch): on at first, without effect where the GPU cannot. The tokens are the same.
    pub fn set_cooperative(&mut self, on: bool) {
        self.use_resident = on;
    }

    /// Each kernel's name, and what it takes of the GPU.
    ///
    /// # Errors
    /// The driver's.
    pub fn resources(&self) -> Result<Vec<(&'static str, KernelResources)>, DriverError> {
        let mut all = vec![self.rows.resources()?];
        for kernel in &self.latents {
            all.push(kernel.resources()?);
        }
        for kernel in &self.refine {
            all.push(kernel.resources()?);
        }
        if let Some(resident) = &self.resident {
            all.extend(resident.resources()?);
        }
        Ok(all)
    }

    /// The kernel that computes the latents of a call of the general kernels with these arguments; `None` if they do it themselves.
    pub fn latents_kernel(&self, mix: &MixArgs, down: &DownArgs) -> Option<&'static str> {
        self.takes_latents(mix, down)
            .then(|| match self.pick_latents(mix.requests) {
                None => self.rows.kernel.name(),
                Some((i, _)) => self.latents[i].kernel.name(),
            })
    }

    /// Enqueues the latent stage in the stead of the general kernels of a pass, whose first and last have these arguments; `false`, and
    /// nothing is enqueued, if it does not take them.
    ///
    /// # Safety
    /// - The contract of the general kernels, but for grids and what they pass to each other.
    /// - The head is that of [`new`](Self::new), and w1 was written before.
    /// - As [`PreparedKernel::launch`].
    ///
    /// # Errors
    /// The driver's.
    pub unsafe fn latents(
        &self,
        stream: Stream<'_>,
        dependent: bool,
        mix: &MixArgs,
        down: &DownArgs,
    ) -> Result<bool, DriverError> {
        if !self.takes_latents(mix, down) {
            return Ok(false);
        }
        let mut args = LatentArgs {
            blocks: mix.blocks,
            previous: mix.previous,
            xh: mix.xh,
            w1: mix.w1,
            weights: std::ptr::with_exposed_provenance(self.matrices.ptr() as usize),
            mixer: std::ptr::with_exposed_provenance(self.mixer_rows.ptr() as usize),
            latents: down.latents,
            flag: mix.flag,
            requests: mix.requests,
            vocabulary: mix.vocabulary,
            rows: 0,
        };
        let launch = match self.pick_latents(mix.requests) {
            Some((i, clusters)) => (&self.latents[i], clusters),
            None => {
                let clusters;
                (args.rows, clusters) = self.rows_of(mix.requests);
                (&self.rows, clusters)
            }
        };
        let (kernel, clusters) = launch;
        // SAFETY: the caller's contract; the weights are this object's.
        unsafe { kernel.launch(stream, dependent, clusters, args.words())? };
        Ok(true)
    }

    /// The kernel that runs all passes over candidates of a refinement whose passes have these arguments; `None` if the general ones do.
    pub fn refine_kernel(
        &self,
        mix: &MixArgs,
        down: &DownArgs,
        score: &ScoreArgs,
        passes: u32,
    ) -> Option<&'static str> {
        self.takes_refine(mix, down, score, passes).then(|| {
            let resident = self.resident().and_then(|all| all.kernel(mix.requests));
            resident.unwrap_or_else(|| {
                let (i, _) = self.pick_refine(mix.requests);
                self.refine[i].kernel.name()
            })
        })
    }

    /// Enqueues all passes over candidates in one launch, in the stead of `passes` times the general kernels, whose arguments these are in the
    /// first pass; `false`, and nothing is enqueued, if it does not take them. No flags are written: where `score` has one, passes may
    /// end after one that changes nothing.
    ///
    /// # Safety
    /// - As [`latents`](Self::latents); w2 was written before, and the calls on this object are ordered on the GPU.
    ///
    /// # Errors
    /// The driver's.
    pub unsafe fn refine_topc(
        &self,
        stream: Stream<'_>,
        dependent: bool,
        (mix, down, score): (&MixArgs, &DownArgs, &ScoreArgs),
        passes: u32,
    ) -> Result<bool, DriverError> {
        if !self.takes_refine(mix, down, score, passes) {
            return Ok(false);
        }
        let mut args = RefineArgs {
            blocks: score.blocks,
            previous: mix.previous,
            xh: mix.xh,
            w1: mix.w1,
            weights: std::ptr::with_exposed_provenance(self.matrices.ptr() as usize),
            mixer: std::ptr::with_exposed_provenance(self.mixer_rows.ptr() as usize),
            w2: score.w2,
            ids: score.ids,
            logits: score.logits,
            drafts: score.drafts,
            requests: mix.requests,
            passes,
            count: score.count,
            vocabulary: mix.vocabulary,
        };
        if let Some(resident) = self.resident() {
            let stop_early = !score.changed.is_null();
            // SAFETY: the caller's contract; the weights are this object's.
            if unsafe { resident.refine(stream, dependent, &args, stop_early)? } {
                return Ok(true);
            }
        }
        args.mixer = std::ptr::with_exposed_provenance(self.mixer_columns.ptr() as usize);
        let (i, clusters) = self.pick_refine(mix.requests);
        // SAFETY: as above.
        unsafe { self.refine[i].launch(stream, dependent, clusters, args.words())? };
        Ok(true)
    }

    fn takes_latents(&self, mix: &MixArgs, down: &DownArgs) -> bool {
        let sizes = [mix.rank, down.units, mix.slots] == [RANK, UNITS, SLOTS];
        sizes
            && mix.requests > 0
            && self.is_faster(mix.requests)
            && down.latents.addr().is_multiple_of(4)
            && mix.w1.addr().is_multiple_of(16)
    }

    fn takes_refine(&self, mix: &MixArgs, down: &DownArgs, score: &ScoreArgs, passes: u32) -> bool {
        let sizes = [mix.rank, down.units, mix.slots] == [RANK, UNITS, SLOTS];
        let aligned = [mix.xh, mix.w1, score.w2, score.logits]
            .iter()
            .all(|array| array.addr().is_multiple_of(16));
        sizes
            && aligned
            && mix.requests > 0
            && mix.flag.is_null()
            && mix.blocks == score.blocks.cast_const()
            && (1..=MAX_PASSES).contains(&passes)
            && (1..=MAX_CANDIDATES).contains(&score.count)
    }

    /// Whether the general kernels take longer.
    fn is_faster(&self, requests: u32) -> bool {
        let residents = residents(&self.latents);
        self.is_few(requests)
            || cost(requests, residents, LATENT_COSTS)
                < general_cost(requests, self.multiprocessors)
    }

    /// Whether there are clusters enough for two a request.
    fn is_few(&self, requests: u32) -> bool {
        2 * u64::from(requests) <= self.rows.resident.into()
    }

    /// The kernel for whole requests, `None` for [`XPRESS_LATENT_ROWS`], which takes few.
    fn pick_latents(&self, requests: u32) -> Option<Pick> {
        (!self.is_few(requests)).then(|| pick(requests, residents(&self.latents), LATENT_COSTS))
    }

    /// Slots of a cluster, and clusters, of [`XPRESS_LATENT_ROWS`]. For one request, many clusters of two slots: fewer rows travel. No more
    /// of them, so that the next launch, or this one, finds multiprocessors free while the other still runs.
    fn rows_of(&self, requests: u32) -> (u32, u32) {
        let rows = if requests == 1 && self.rows.resident >= 8 {
            2
        } else {
            MAX_ROWS
        };
        (rows, requests * (SLOTS - 1).div_ceil(rows))
    }

    fn resident(&self) -> Option<&Resident> {
        self.resident.as_ref().filter(|_| self.use_resident)
    }

    fn pick_refine(&self, requests: u32) -> Pick {
        pick(requests, residents(&self.refine), REFINE_COSTS)
    }
}

impl<const N: usize> Clustered<N> {
    pub(super) fn new(
        module: &Module,
        kernel: &cuda_std::Kernel,
        shared_bytes: u32,
    ) -> Result<Self, DriverError> {
        let kernel = PreparedKernel::new(module, kernel)?;
        kernel.allow_shared_bytes(shared_bytes)?;
        let resident = kernel.max_clusters(CLUSTER, THREADS, shared_bytes)?;
        Ok(Self {
            kernel,
            shared_bytes,
            resident,
        })
    }

    pub(super) fn resources(&self) -> Result<(&'static str, KernelResources), DriverError> {
        Ok((self.kernel.name(), self.kernel.resources()?))
    }

    /// # Safety
    /// - As [`PreparedKernel::launch_clusters`].
    unsafe fn launch(
        &self,
        stream: Stream<'_>,
        dependent: bool,
        clusters: u32,
        words: [u64; N],
    ) -> Result<(), DriverError> {
        let shape = LaunchShape {
            grid: [clusters * CLUSTER, 1, 1],
            threads: THREADS,
            shared_bytes: self.shared_bytes,
            dependent,
        };
        // SAFETY: the caller's contract.
        unsafe { self.kernel.launch_clusters(stream, shape, CLUSTER, words) }
    }
}

fn residents<const N: usize>(kernels: &[Clustered<N>; 3]) -> [u32; 3] {
    kernels.each_ref().map(|kernel| kernel.resident)
}

/// What a round takes of the kernels for 1, 2 and 3 requests a cluster: tenths of microseconds and microseconds on an H200.
const LATENT_COSTS: [u32; 3] = [55, 75, 97];
const REFINE_COSTS: [u32; 3] = [40, 64, 94];

/// What the general kernels take for latents, in the same unit, as far as it matters: they are slower once a multiprocessor has more than one
/// tile of two requests by 32 channels. On an H200 30 requests take 7.3 us in clusters and 8.4 in tiles, 32 take 9.1 and 8.5, 48 take
/// 12.0 and 11.4.
fn general_cost(requests: u32, multiprocessors: u32) -> u32 {
    let tiles = u64::from(requests.div_ceil(2)) * u64::from(RANK / 32);
    if tiles <= multiprocessors.into() {
        85
    } else {
        115
    }
}

/// The kernel whose rounds take the least time in all, and its clusters: as many as run at the same time, if there is work for all.
/// `resident` says how many of each kernel that is.
fn pick(requests: u32, resident: [u32; 3], costs: [u32; 3]) -> Pick {
    let of = |i: usize| cost_of(requests, i, resident, costs);
    let i = (0..3).min_by_key(|&i| of(i)).unwrap_or(0);
    (i, clusters(requests, i).min(resident[i].max(1)))
}

/// What that takes.
fn cost(requests: u32, resident: [u32; 3], costs: [u32; 3]) -> u32 {
    let of = |i: usize| cost_of(requests, i, resident, costs);
    of(0).min(of(1)).min(of(2))
}

fn cost_of(requests: u32, i: usize, resident: [u32; 3], costs: [u32; 3]) -> u32 {
    clusters(requests, i).div_ceil(resident[i].max(1)) * costs[i]
}

/// Clusters with `i + 1` requests each.
fn clusters(requests: u32, i: usize) -> u32 {
    requests.div_ceil(i as u32 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tiles where they are faster: past two requests a cluster, but for what three a cluster take in a round and tiles in two.
    #[test]
    fn latents_are_made_in_clusters_or_tiles() {
        let in_clusters =
            |requests| cost(requests, [15; 3], LATENT_COSTS) < general_cost(requests, 132);
        for requests in [8, 15, 16, 30, 33, 45] {
            assert!(in_clusters(requests), "{requests} requests");
        }
        for requests in [31, 32, 46, 60, 64, 90, 128, 65_536] {
            assert!(!in_clusters(requests), "{requests} requests");
        }
    }

    #[test]
    fn rounds_are_few_and_full() {
        let on_an_h200 = |requests| pick(requests, [15; 3], REFINE_COSTS);
        let cases = [
            (1, (0, 1)),
            (15, (0, 15)),
            (16, (1, 8)),
            (30, (1, 15)),
            (31, (2, 11)),
            (45, (2, 15)),
            (60, (1, 15)),
            (90, (2, 15)),
        ];
        for (requests, expected) in cases {
            assert_eq!(on_an_h200(requests), expected, "{requests} requests");
        }
        // A part of a GPU, where one cluster fits.
        assert_eq!(pick(1, [1; 3], LATENT_COSTS), (0, 1));
        assert_eq!(pick(128, [1; 3], LATENT_COSTS), (2, 1));
        assert_eq!(pick(65_536, [16, 15, 1], REFINE_COSTS).1, 15);
    }
}
