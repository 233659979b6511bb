//! Asynchronous copies: they read at once and write when they are waited for, as late as the GPU may.
//!
//! Until then the target counts as unwritten, so whoever reads without waiting is reported; and both ends of the copy are
//! writes, so whoever still reads what is overwritten, or reads without a barrier after the wait, races.

use super::context::current;
use super::error::ErrorKind;
use super::global::{self, GlobalView};
use super::shared::SharedView;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::panic::Location;

/// A thread's copies that are not complete.
#[derive(Default)]
pub(crate) struct Copies {
    pending: RefCell<VecDeque<Copy>>,
    /// Groups closed so far.
    groups: Cell<u32>,
}

struct Copy {
    group: u32,
    to: SharedView,
    words: [u32; 4],
    location: &'static Location<'static>,
}

impl Copies {
    /// As new, for the next block.
    pub(crate) fn reset(&self) {
        self.pending.borrow_mut().clear();
        self.groups.set(0);
    }
}

/// # Safety
///
/// - The contract of the views' accesses; but here what breaks it is reported.
#[track_caller]
pub(crate) unsafe fn copy16<T>(
    to: SharedView,
    i: usize,
    from: GlobalView,
    j: usize,
    condition: bool,
) {
    let (thread, location) = (current(), Location::caller());
    let words = if condition {
        let byte = j.wrapping_mul(size_of::<T>());
        if !byte.is_multiple_of(4) {
            let message = format!("16 bytes at byte {byte} of a view: no multiple of 16");
            thread.report(ErrorKind::Misaligned, message, "copied", location);
        }
        // SAFETY: the caller keeps the contract.
        unsafe { global::ld4::<u32>(from, byte / 4) }
    } else {
        [0; 4]
    };
    let to = to.begin_copy16(i.wrapping_mul(size_of::<T>()), location);
    let group = thread.copies.groups.get();
    thread.copies.pending.borrow_mut().push_back(Copy {
        group,
        to,
        words,
        location,
    });
}

pub(crate) fn commit() {
    let groups = &current().copies.groups;
    groups.set(groups.get() + 1);
}

pub(crate) fn wait<const PENDING: u32>() {
    let copies = &current().copies;
    // Copies of groups before this one have to be complete. Those after the last commit are in none.
    let first_open = copies.groups.get().saturating_sub(PENDING);
    loop {
        let mut pending = copies.pending.borrow_mut();
        if pending.front().is_none_or(|copy| copy.group >= first_open) {
            return;
        }
        let copy = pending.pop_front();
        // Not held while the thread may be suspended.
        drop(pending);
        if let Some(Copy {
            to,
            words,
            location,
            ..
        }) = copy
        {
            to.end_copy16(words, location);
        }
    }
}
