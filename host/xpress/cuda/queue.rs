//! A plan's launches on a stream.

use super::XpressKernels;
use crate::driver::Stream;
use crate::error::Result;
use crate::xpress::hopper::{HopperReadout, Readout};
use crate::xpress::plan::{Call, Enqueue, Launch};

/// Where launches go. The kernels' context is current as long as it lives, and every launch's arrays were checked.
pub(super) struct Queue<'a> {
    pub(super) kernels: &'a XpressKernels,
    pub(super) hopper: Option<&'a mut HopperReadout>,
    pub(super) stream: Stream<'a>,
    pub(super) dependent: bool,
    /// The kernel that read out last.
    pub(super) readout: Option<Readout>,
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
        // SAFETY: the plan gives each kernel the arrays that its contract asks for: those of the call were checked, the head's were
        // made for its configuration, the rest is scratch of `Scratch::bytes`. Keys and counters were zero at first, and are
        // again after every launch.
        unsafe { self.kernels.launch(self.stream, self.dependent, launch)? };
        Ok(())
    }
}
