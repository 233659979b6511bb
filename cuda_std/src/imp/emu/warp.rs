//! Warp operations.

use super::collective::{Lanes, Outputs, collective, name};
use super::context::{Thread, current};
use super::error::ErrorKind;
use super::order;
use super::scalar::{MatchScalar, ReduceScalar, ShuffleScalar};
use std::panic::Location;

pub(crate) fn lane_id() -> u32 {
    current().lane
}

/// The lanes that run together: here, this one.
pub(crate) fn activemask() -> u32 {
    current().bit()
}

#[track_caller]
pub(crate) fn sync_warp(mask: u32) {
    collective(
        name!("sync_warp"),
        mask,
        (),
        Location::caller(),
        |thread, lanes, outputs| {
            order::meet_lanes(thread, lanes.mask());
            outputs.fill(());
        },
    )
}

/// How a lane's source is found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Idx,
    Up,
    Down,
    Xor,
}

/// What a lane brings to a shuffle.
#[derive(Clone, Copy)]
struct Shuffle {
    bits: u64,
    operand: u32,
    width: u32,
    source: Source,
    location: &'static Location<'static>,
}

fn shuffle<T: ShuffleScalar>(
    mask: u32,
    value: T,
    operand: u32,
    width: u32,
    source: Source,
    location: &'static Location<'static>,
) -> (T, bool) {
    if !width.is_power_of_two() || width > 32 {
        let message = format!("a shuffle of width {width}: a power of two up to 32");
        current().report(ErrorKind::Divergence, message, "called it", location);
    }
    let name = match source {
        Source::Idx => name!("warp_shuffle_idx"),
        Source::Up => name!("warp_shuffle_up"),
        Source::Down => name!("warp_shuffle_down"),
        Source::Xor => name!("warp_shuffle_xor"),
    };
    let input = Shuffle {
        bits: value.to_word(),
        operand,
        width,
        source,
        location,
    };
    let (bits, moved) = collective(name, mask, input, location, move_values);
    (T::from_word(bits), moved)
}

fn move_values(thread: &Thread, lanes: &Lanes<Shuffle>, outputs: &mut Outputs<(u64, bool)>) {
    for (lane, own) in lanes.iter() {
        match source_lane(lane as u32, &own) {
            None => outputs.set(lane, (own.bits, false)),
            Some(source) => match lanes.get(source as usize) {
                Some(other) => outputs.set(lane, (other.bits, true)),
                None => {
                    let message = format!(
                        "lane {lane} reads from lane {source}, which has ended, does not exist or is not in the mask"
                    );
                    let reader = &thread.block().threads[thread.number as usize / 32 * 32 + lane];
                    thread.fault(
                        super::error::Fault::new(ErrorKind::Divergence, message).with(
                            reader,
                            "shuffles",
                            own.location,
                        ),
                    );
                }
            },
        }
    }
}

/// The lane to read from; none if it is outside the segment.
fn source_lane(lane: u32, own: &Shuffle) -> Option<u32> {
    let first = lane & !(own.width - 1);
    let last = first + own.width - 1;
    match own.source {
        Source::Idx => Some(first | own.operand & (own.width - 1)),
        Source::Up => lane
            .checked_sub(own.operand & 31)
            .filter(|&source| source >= first),
        Source::Down => Some(lane + (own.operand & 31)).filter(|&source| source <= last),
        Source::Xor => Some(lane ^ own.operand & 31).filter(|&source| source <= last),
    }
}

macro_rules! shuffles {
    ($($masked:ident $full:ident $source:ident;)*) => { $(
        #[track_caller]
        pub(crate) fn $masked<T: ShuffleScalar>(mask: u32, value: T, operand: u32, width: u32) -> (T, bool) {
            shuffle(mask, value, operand, width, Source::$source, Location::caller())
        }

        #[track_caller]
        pub(crate) fn $full<T: ShuffleScalar>(value: T, operand: u32) -> T {
            shuffle(u32::MAX, value, operand, 32, Source::$source, Location::caller()).0
        }
    )* };
}
shuffles! {
    warp_shuffle_idx shuffle_idx Idx;
    warp_shuffle_up shuffle_up Up;
    warp_shuffle_down shuffle_down Down;
    warp_shuffle_xor shuffle_xor Xor;
}

/// The lanes whose predicate holds.
fn true_lanes(lanes: &Lanes<bool>) -> u32 {
    lanes.iter().fold(0, |mask, (lane, predicate)| {
        mask | u32::from(predicate) << lane
    })
}

#[track_caller]
pub(crate) fn vote_all(mask: u32, predicate: bool) -> bool {
    collective(
        name!("warp_vote_all"),
        mask,
        predicate,
        Location::caller(),
        |_, lanes, outputs| {
            outputs.fill(true_lanes(lanes) == lanes.mask());
        },
    )
}

#[track_caller]
pub(crate) fn vote_any(mask: u32, predicate: bool) -> bool {
    collective(
        name!("warp_vote_any"),
        mask,
        predicate,
        Location::caller(),
        |_, lanes, outputs| {
            outputs.fill(true_lanes(lanes) != 0);
        },
    )
}

#[track_caller]
pub(crate) fn ballot(mask: u32, predicate: bool) -> u32 {
    collective(
        name!("warp_vote_ballot"),
        mask,
        predicate,
        Location::caller(),
        |_, lanes, outputs| {
            outputs.fill(true_lanes(lanes));
        },
    )
}

#[track_caller]
pub(crate) fn match_any<T: MatchScalar>(mask: u32, value: T) -> u32 {
    collective(
        name!("warp_match_any"),
        mask,
        value.to_word(),
        Location::caller(),
        |_, lanes: &Lanes<u64>, outputs| {
            for (lane, own) in lanes.iter() {
                outputs.set(
                    lane,
                    lanes.iter().fold(0, |mask, (other, value)| {
                        mask | u32::from(value == own) << other
                    }),
                );
            }
        },
    )
}

#[track_caller]
pub(crate) fn match_all<T: MatchScalar>(mask: u32, value: T) -> (u32, bool) {
    let all = match_any(mask, value) == mask;
    (if all { mask } else { 0 }, all)
}

macro_rules! reductions {
    ($($name:ident $label:literal $fold:expr;)*) => { $(
        #[track_caller]
        pub(crate) fn $name(mask: u32, value: u32) -> u32 {
            collective(name!($label), mask, value, Location::caller(), |_, lanes, outputs| {
                outputs.fill(lanes.iter().map(|(_, value)| value).reduce($fold).unwrap_or(0));
            })
        }
    )* };
}
reductions! {
    reduce_add "warp_reduce_add" u32::wrapping_add;
    reduce_and "warp_reduce_and" |a, b| a & b;
    reduce_or "warp_reduce_or" |a, b| a | b;
    reduce_xor "warp_reduce_xor" |a, b| a ^ b;
}

#[track_caller]
pub(crate) fn reduce_min<T: ReduceScalar>(mask: u32, value: T) -> T {
    collective(
        name!("warp_reduce_min"),
        mask,
        value,
        Location::caller(),
        |_, lanes, outputs| {
            outputs.fill(
                lanes
                    .iter()
                    .map(|(_, value)| value)
                    .min()
                    .expect("the calling lane takes part"),
            );
        },
    )
}

#[track_caller]
pub(crate) fn reduce_max<T: ReduceScalar>(mask: u32, value: T) -> T {
    collective(
        name!("warp_reduce_max"),
        mask,
        value,
        Location::caller(),
        |_, lanes, outputs| {
            outputs.fill(
                lanes
                    .iter()
                    .map(|(_, value)| value)
                    .max()
                    .expect("the calling lane takes part"),
            );
        },
    )
}
