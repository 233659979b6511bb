//! Operations of a warp's lanes together: whoever comes last does the work for all.

use super::context::{Thread, current};
use super::error::{ErrorKind, Fault};
use std::any::TypeId;
use std::cell::Cell;
use std::mem::MaybeUninit;
use std::panic::Location;

/// A lane that waits at a collective.
#[derive(Clone, Copy)]
pub(crate) struct Arrival {
    operation: &'static str,
    waiting: &'static str,
    mask: u32,
    types: TypeId,
    input: *const (),
    output: *mut (),
    /// A `Body<I, O>`, and what knows its types.
    body: *const (),
    run: unsafe fn(&Thread, u32, *const ()),
    location: &'static Location<'static>,
}

/// What a collective does once all lanes are there: sets every lane's output.
type Body<I, O> = fn(&Thread, &Lanes<I>, &mut Outputs<O>);

/// The inputs of the lanes that take part.
pub(crate) struct Lanes<I> {
    mask: u32,
    inputs: [*const I; 32],
}

/// Where their results go.
pub(crate) struct Outputs<O> {
    mask: u32,
    outputs: [*mut MaybeUninit<O>; 32],
}

/// A name for reports: what the operation is called and how one waits there.
#[derive(Clone, Copy)]
pub(crate) struct Name {
    pub(crate) operation: &'static str,
    pub(crate) waiting: &'static str,
}

macro_rules! name {
    ($name:expr) => {
        $crate::imp::collective::Name {
            operation: $name,
            waiting: concat!("waits at ", $name),
        }
    };
}
pub(crate) use name;

/// Waits for the lanes of `mask` and gives this lane its output of `body`, which runs once for all of them and must set
/// every lane's.
///
/// Lanes that have ended do not take part. All lanes must come with the same name and mask from the same place.
#[inline]
pub(crate) fn collective<I: Copy + 'static, O: Copy + 'static>(
    name: Name,
    mask: u32,
    input: I,
    location: &'static Location<'static>,
    body: Body<I, O>,
) -> O {
    let thread = current();
    thread.step(location);
    let warp = thread.warp();
    if mask & thread.bit() == 0 {
        let message = format!(
            "{} with mask {mask:#010x}, which lacks the calling lane {}",
            name.operation, thread.lane
        );
        thread.report(ErrorKind::Divergence, message, "called it", location);
    }
    let mut output = MaybeUninit::<O>::uninit();
    warp.arrivals[thread.lane as usize].set(Arrival {
        operation: name.operation,
        waiting: name.waiting,
        mask,
        types: TypeId::of::<(I, O)>(),
        input: (&raw const input).cast(),
        output: (&raw mut output).cast(),
        body: body as *const (),
        run: run::<I, O>,
        location,
    });
    let arrived = warp.arrived.get() | thread.bit();
    warp.arrived.set(arrived);
    let needed = mask & warp.exist & !warp.done.get();
    if arrived & needed != needed || !complete(thread, thread.lane, needed) {
        thread.block_on(name.waiting, location);
    }
    // SAFETY: the body has set the outputs of all lanes, before it woke this one.
    unsafe { output.assume_init() }
}

/// A lane has ended: what others wait for may be complete without it.
pub(crate) fn lane_ended(thread: &Thread) {
    let warp = thread.warp();
    for lane in 0..32 {
        let arrived = warp.arrived.get();
        if arrived >> lane & 1 != 0 {
            let needed = warp.arrivals[lane as usize].get().mask & warp.exist & !warp.done.get();
            if arrived & needed == needed {
                complete(thread, lane, needed);
            }
        }
    }
}

/// Does what the lane waits for, now that the lanes that it needs have arrived somewhere, and wakes them but the one that
/// runs. False if one of them is somewhere else.
fn complete(thread: &Thread, lane: u32, needed: u32) -> bool {
    let warp = thread.warp();
    let arrival = warp.arrivals[lane as usize].get();
    if !all_same(thread, &arrival, lane, needed) {
        return false;
    }
    warp.arrived.set(warp.arrived.get() & !needed);
    // SAFETY: `run` and `body` come from one arrival, whose types all the lanes' inputs and outputs have; they lie on the stacks
    // of lanes that wait, or of the one that runs this.
    unsafe { (arrival.run)(thread, needed, arrival.body) };
    let others = needed & !thread.bit();
    if others != 0 {
        thread.block().wake(warp, others);
    }
    true
}

/// Runs a body over the lanes of `needed`.
///
/// # Safety
///
/// - `body` is a `Body<I, O>`.
/// - The arrivals of the lanes of `needed` point to inputs and outputs of these types.
unsafe fn run<I: Copy + 'static, O: Copy + 'static>(thread: &Thread, needed: u32, body: *const ()) {
    let warp = thread.warp();
    let mut lanes = Lanes {
        mask: needed,
        inputs: [std::ptr::null(); 32],
    };
    let mut outputs = Outputs {
        mask: needed,
        outputs: [std::ptr::null_mut(); 32],
    };
    for lane in bits(needed) {
        let arrival = warp.arrivals[lane].get();
        lanes.inputs[lane] = arrival.input.cast();
        outputs.outputs[lane] = arrival.output.cast();
    }
    // SAFETY: the caller's promise.
    let body = unsafe { std::mem::transmute::<*const (), Body<I, O>>(body) };
    body(thread, &lanes, &mut outputs);
}

/// The lanes of `needed` have all arrived somewhere: all for this? A lane may still wait for others with another mask; but
/// not for something else with the same mask, nor for this lane with another.
#[inline]
fn all_same(thread: &Thread, own: &Arrival, own_lane: u32, needed: u32) -> bool {
    let warp = thread.warp();
    let is_same = |lane: usize| {
        let other = warp.arrivals[lane].get();
        other.mask == own.mask
            && other.types == own.types
            && (std::ptr::eq(other.operation, own.operation) || other.operation == own.operation)
            && (std::ptr::eq(other.location, own.location) || other.location == own.location)
    };
    let others = bits(needed)
        .filter(|&lane| !is_same(lane))
        .fold(0, |lanes, lane| lanes | 1 << lane);
    for lane in bits(others) {
        let other = warp.arrivals[lane].get();
        // Those who wait for that lane, and for whom it waits.
        if other.mask & needed & !others != 0 {
            meet_differently(thread, (own_lane, own), (lane as u32, &other));
        }
    }
    others == 0
}

#[cold]
fn meet_differently(
    thread: &Thread,
    (own_lane, own): (u32, &Arrival),
    (lane, other): (u32, &Arrival),
) -> ! {
    let message = if other.mask != own.mask {
        format!(
            "lanes of a warp wait for each other with masks {:#010x} and {:#010x}",
            own.mask, other.mask
        )
    } else if other.operation != own.operation {
        format!(
            "lanes of a warp meet at {} and {}",
            own.operation, other.operation
        )
    } else {
        format!("lanes of a warp meet at {} in two places", own.operation)
    };
    let lane_thread =
        |lane: u32| &thread.block().threads[(thread.warp().index * 32 + lane) as usize];
    let fault = Fault::new(ErrorKind::Divergence, message).with(
        lane_thread(own_lane),
        own.waiting,
        own.location,
    );
    thread.fault(fault.with(lane_thread(lane), other.waiting, other.location));
}

impl<I: Copy> Lanes<I> {
    /// The lanes that take part, as bits.
    #[inline]
    pub(crate) fn mask(&self) -> u32 {
        self.mask
    }

    /// A lane's input, if it takes part.
    #[inline]
    pub(crate) fn get(&self, lane: usize) -> Option<I> {
        // SAFETY: the input of a lane that takes part lies on its stack, where the lane waits.
        (self.mask >> lane & 1 != 0).then(|| unsafe { *self.inputs[lane] })
    }

    /// Lanes and inputs.
    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, I)> + '_ {
        // SAFETY: as in `get`.
        bits(self.mask).map(|lane| (lane, unsafe { *self.inputs[lane] }))
    }
}

impl<O: Copy> Outputs<O> {
    /// Sets a lane's result.
    #[inline]
    pub(crate) fn set(&mut self, lane: usize, value: O) {
        debug_assert!(self.mask >> lane & 1 != 0);
        // SAFETY: the output of a lane that takes part lies on its stack, where the lane waits.
        unsafe { (*self.outputs[lane]).write(value) };
    }

    /// Sets all lanes' results.
    #[inline]
    pub(crate) fn fill(&mut self, value: O) {
        for lane in bits(self.mask) {
            self.set(lane, value);
        }
    }
}

/// The positions of a word's ones.
#[inline]
pub(crate) fn bits(mut word: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        (word != 0).then(|| {
            let bit = word.trailing_zeros() as usize;
            word &= word - 1;
            bit
        })
    })
}

impl Arrival {
    pub(crate) fn none() -> Cell<Self> {
        Cell::new(Self {
            operation: "",
            waiting: "",
            mask: 0,
            types: TypeId::of::<()>(),
            input: std::ptr::null(),
            output: std::ptr::null_mut(),
            body: std::ptr::null(),
            run: run::<(), ()>,
            location: Location::caller(),
        })
    }
}
