//! A plan's launches on a stream.

use specdraft_kernels::xpress::latent::{DownArgs, MixArgs};
use specdraft_kernels::xpress::readout::ReadoutArgs;
use specdraft_kernels::xpress::score::ScoreArgs;

use super::XpressKernels;
use crate::driver::Stream;
use crate::error::Result;
use crate::xpress::hopper::{HopperReadout, Readout};
use crate::xpress::hopper_latents::HopperLatents;
use crate::xpress::plan::{Call, Enqueue, Launch};

/// Where launches go. The kernels' context is current as long as it lives, and every launch's arrays were checked.
pub(super) struct Queue<'a> {
    pub(super) kernels: &'a XpressKernels,
    pub(super) hopper: Option<&'a mut HopperReadout>,
    pub(super) clusters: Option<&'a HopperLatents>,
    pub(super) stream: Stream<'a>,
    pub(super) dependent: bool,
    /// The kernel that read out last.
    pub(super) readout: Option<Readout>,
    /// The kernel that made latents last.
    pub(super) latents: Option<&'static str>,
}

impl Enqueue for Queue<'_> {
    fn enqueue(&mut self, launch: &Launch) -> Result<()> {
        if let (Some(hopper), Call::Readout(_, args)) = (&mut self.hopper, &launch.call) {
            // SAFETY: as below; a refiner's calls are ordered by the caller, and w2 was uploaded before they were made.
            if unsafe { hopper.enqueue(self.stream, self.dependent, args)? } {
                self.readout = Some(Readout::Hopper);
                return Ok(());
            }
        }
        if matches!(launch.call, Call::Readout(..)) {
            self.readout = Some(Readout::General);
        }
        self.latents = self.kernels.first_of_latents(&launch.call).or(self.latents);
        // SAFETY: the plan gives each kernel the arrays that its contract asks for: those of the call were checked, the head's were
        // made for its configuration, the rest is scratch of `Scratch::bytes`. Keys and counters were zero at first, and are
        // again after every launch.
        unsafe { self.kernels.launch(self.stream, self.dependent, launch)? };
        Ok(())
    }

    fn readout_rows(&self, args: &ReadoutArgs) -> Option<u32> {
        self.hopper.as_ref()?.row_block(args)
    }

    fn latents(&mut self, mix: &MixArgs, down: &DownArgs) -> Result<bool> {
        let Some(clusters) = self.clusters else {
            return Ok(false);
        };
        let kernel = clusters.latents_kernel(mix, down);
        // SAFETY: as for `enqueue`; the head's weights were uploaded before the refiner's first call.
        let taken = unsafe { clusters.latents(self.stream, self.dependent, mix, down)? };
        self.latents = kernel.or(self.latents);
        Ok(taken)
    }

    fn refine_topc(
        &mut self,
        (mix, down, score): (&MixArgs, &DownArgs, &ScoreArgs),
        passes: usize,
    ) -> Result<bool> {
        let (Some(clusters), Ok(passes)) = (self.clusters, u32::try_from(passes)) else {
            return Ok(false);
        };
        let kernel = clusters.refine_kernel(mix, down, score, passes);
        let args = (mix, down, score);
        // SAFETY: as for `latents`.
        let taken = unsafe { clusters.refine_topc(self.stream, self.dependent, args, passes)? };
        self.latents = kernel.or(self.latents);
        Ok(taken)
    }
}
