//! Indices into views, and divisors that cannot be zero.

use core::num::NonZero;

/// An integer that counts elements of a view. Negative ones are out of bounds of every view.
pub trait Index: Copy {
    /// The index, sign-extended.
    fn to_usize(self) -> usize;
}

macro_rules! index {
    ($($t:ty)*) => { $(
        impl Index for $t {
            #[inline(always)]
            fn to_usize(self) -> usize {
                self as usize
            }
        }
    )* };
}
index!(i32 u32 i64 u64 isize usize);

/// `x`, or one for zero: `a / at_least_one(b)` has no branch to a panic.
#[inline(always)]
pub fn at_least_one(x: u32) -> NonZero<u32> {
    NonZero::new(x).unwrap_or(NonZero::<u32>::MIN)
}
