//! The kernels that keep a few requests on the whole GPU for all passes over candidates: which calls they take, and launching them.

use specdraft_kernels::xpress::refine_resident_sm90::{
    CLUSTERS, PACKETS, ResidentArgs, THREADS, TURNS, XPRESS_REFINE_RESIDENT_1,
    XPRESS_REFINE_RESIDENT_3, XPRESS_REFINE_RESIDENT_5, bytes, requests,
};
use specdraft_kernels::xpress::refine_topc_sm90::RefineArgs;
use specdraft_kernels::xpress::stages_sm90::CLUSTER;

use super::hopper_latents::Clustered;
use crate::driver::{DeviceBuffer, DriverError, KernelResources, LaunchShape, Module, Stream};

/// The kernels, loaded, with the memory that their launches share.
#[derive(Debug)]
pub(super) struct Resident {
    kernels: [Clustered<{ XPRESS_REFINE_RESIDENT_1.params.len() }>; 3],
    packets: DeviceBuffer<u64>,
    turns: DeviceBuffer<u32>,
}

/// Slots of a cluster of each kernel.
const SLOTS: [u32; 3] = [1, 3, 5];

impl Resident {
    /// `None` where the GPU cannot run all clusters at the same time.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn new(module: &Module, stream: Stream<'_>) -> Result<Option<Self>, DriverError> {
        let context = module.context();
        let kernel = |kernel, slots| Clustered::new(module, kernel, bytes(slots));
        let kernels = [
            kernel(&XPRESS_REFINE_RESIDENT_1, SLOTS[0])?,
            kernel(&XPRESS_REFINE_RESIDENT_3, SLOTS[1])?,
            kernel(&XPRESS_REFINE_RESIDENT_5, SLOTS[2])?,
        ];
        let fits = kernels.iter().all(|kernel| kernel.resident >= CLUSTERS);
        if !fits || !context.device().has_cooperative_launch()? {
            return Ok(None);
        }
        Ok(Some(Self {
            kernels,
            packets: DeviceBuffer::zeroed(context, stream, PACKETS as usize, "packets")?,
            turns: DeviceBuffer::zeroed(context, stream, TURNS as usize, "launch counters")?,
        }))
    }

    /// GPU memory that it holds, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.packets.bytes() + self.turns.bytes()
    }

    /// Each kernel's name, and what it takes of the GPU.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn resources(&self) -> Result<Vec<(&'static str, KernelResources)>, DriverError> {
        self.kernels.iter().map(Clustered::resources).collect()
    }

    /// The kernel for so many requests; `None` if there are too many.
    pub(super) fn kernel(&self, requests: u32) -> Option<&'static str> {
        Some(self.kernels[pick(requests)?].kernel.name())
    }

    /// Enqueues all passes; `false`, and nothing is enqueued, for too many requests. `args` are those of the kernels that take more, but for
    /// the mixer, which is the one packed by rows.
    ///
    /// # Safety
    /// - The contract of [`xpress_refine_resident_1`](specdraft_kernels::xpress::refine_resident_sm90::xpress_refine_resident_1), but for
    ///   the grid, packets and turns; the calls on this object are ordered on the GPU.
    /// - As [`PreparedKernel::launch`](crate::driver::PreparedKernel::launch).
    ///
    /// # Errors
    /// The driver's.
    pub(super) unsafe fn refine(
        &self,
        stream: Stream<'_>,
        dependent: bool,
        args: &RefineArgs,
        stop_early: bool,
    ) -> Result<bool, DriverError> {
        let Some(i) = pick(args.requests) else {
            return Ok(false);
        };
        let &RefineArgs {
            blocks,
            previous,
            xh,
            w1,
            weights,
            mixer,
            w2,
            ids,
            logits,
            drafts,
            requests,
            passes,
            count,
            vocabulary,
        } = args;
        let words = ResidentArgs {
            blocks,
            previous,
            xh,
            w1,
            weights,
            mixer,
            w2,
            ids,
            logits,
            drafts,
            packets: std::ptr::with_exposed_provenance_mut(self.packets.ptr() as usize),
            turns: std::ptr::with_exposed_provenance_mut(self.turns.ptr() as usize),
            requests,
            passes,
            count,
            vocabulary,
            stop_early: stop_early.into(),
        }
        .words();
        let kernel = &self.kernels[i];
        let shape = LaunchShape {
            grid: [CLUSTERS * CLUSTER, 1, 1],
            threads: THREADS,
            shared_bytes: kernel.shared_bytes,
            dependent,
        };
        // SAFETY: the caller's contract; packets and turns are this object's, of the lengths that the kernel asks for, zero at first.
        unsafe {
            kernel
                .kernel
                .launch_cooperative(stream, shape, CLUSTER, words)?;
        }
        Ok(true)
    }
}

/// The kernel with the fewest slots a cluster that takes so many requests.
fn pick(count: u32) -> Option<usize> {
    SLOTS
        .iter()
        .position(|slots| (1..=requests(*slots)).contains(&count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_requests_get_many_clusters() {
        let slots = |requests| pick(requests).map(|i| SLOTS[i]);
        let expected = [None, Some(1), Some(3), Some(3), Some(5), Some(5), None];
        for (requests, expected) in expected.into_iter().enumerate() {
            assert_eq!(slots(requests as u32), expected, "{requests} requests");
        }
    }
}
