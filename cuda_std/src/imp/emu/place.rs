//! What an access was, in 32 bits.

use super::access::Kind;
use std::panic::Location;

/// Which of the four bytes, how, and where in the source. Bits 0 to 3: the bytes. 4 and 5: read, atomic read, atomic write,
/// write. The others: the distance of the source location's record from a fixed place, in eights.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Place(u32);

/// Lies in the program's image, as the records of source locations do. A static has one address; a record may have copies.
static ANCHOR: u64 = 0;

/// By kind: the kinds it conflicts with, a bit each.
const CONFLICTS: [u32; 4] = [0b1100, 0b1000, 0b1001, 0b1111];

impl Place {
    #[inline]
    pub(crate) fn new(kind: Kind, bytes: u32, location: &'static Location<'static>) -> Self {
        let code = match kind {
            Kind::Read | Kind::ReadOnly => 0,
            Kind::AtomicRead => 1,
            Kind::AtomicWrite => 2,
            Kind::Write => 3,
        };
        let record = (&raw const *location).expose_provenance();
        let distance = record.wrapping_sub((&raw const ANCHOR).addr()) as isize >> 3;
        // Farther than 256 megabytes, in another library: unknown.
        let distance = if distance.unsigned_abs() < 1 << 25 {
            distance as u32
        } else {
            0
        };
        Self(distance << 6 | code << 4 | bytes)
    }

    #[inline]
    pub(crate) fn code(self) -> u32 {
        self.0 >> 4 & 3
    }

    #[inline]
    pub(crate) fn overlaps(self, other: Self) -> bool {
        self.0 & other.0 & 15 != 0
    }

    /// Whether it has all the other's bytes.
    #[inline]
    pub(crate) fn covers(self, other: Self) -> bool {
        other.0 & !self.0 & 15 == 0
    }

    #[inline]
    pub(crate) fn conflicts(self, other: Self) -> bool {
        CONFLICTS[self.code() as usize] >> other.code() & 1 != 0
    }

    #[inline]
    pub(crate) fn conflicts_with_all_of(self, other: Self) -> bool {
        CONFLICTS[other.code() as usize] & !CONFLICTS[self.code() as usize] == 0
    }

    /// Whether both are of the same bytes and kind.
    #[inline]
    pub(crate) fn is_same_access(self, other: Self) -> bool {
        (self.0 ^ other.0) & 63 == 0
    }

    #[inline]
    pub(crate) fn with_bytes_of(self, other: Self) -> Self {
        Self(self.0 | other.0 & 15)
    }

    #[inline]
    pub(crate) fn kind(self) -> Kind {
        [Kind::Read, Kind::AtomicRead, Kind::AtomicWrite, Kind::Write][self.code() as usize]
    }

    pub(crate) fn location(self) -> Option<&'static Location<'static>> {
        let distance = (self.0 as i32 >> 6) as isize;
        let address = (&raw const ANCHOR).addr().wrapping_add_signed(distance * 8);
        // SAFETY: `new` got the distance from such a reference, which lives for ever, and exposed it.
        (distance != 0).then(|| unsafe { &*std::ptr::with_exposed_provenance(address) })
    }
}
