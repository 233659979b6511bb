//! Types as memory and registers hold them.

use half::bf16;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// A type that lies in memory, in one piece of 1, 2, 4 or 8 bytes.
///
/// All accesses to emulated memory are atomic ones of the host, so that a kernel's race is a report and not undefined
/// behaviour here.
pub trait Scalar: Copy + 'static {
    /// # Safety
    ///
    /// - `ptr` is aligned and valid for reads and writes, and everybody accesses it atomically.
    unsafe fn load(ptr: *mut u8) -> Self;
    /// # Safety
    ///
    /// - As for `load`.
    unsafe fn store(self, ptr: *mut u8);
}

macro_rules! scalars {
    ($($t:ty, $atomic:ty, $to:expr, $from:expr;)*) => { $(
        impl Scalar for $t {
            #[inline(always)]
            unsafe fn load(ptr: *mut u8) -> Self {
                debug_assert!(ptr.cast::<$atomic>().is_aligned());
                // SAFETY: the caller's promise.
                ($from)(unsafe { <$atomic>::from_ptr(ptr.cast()) }.load(Ordering::Relaxed))
            }
            #[inline(always)]
            unsafe fn store(self, ptr: *mut u8) {
                debug_assert!(ptr.cast::<$atomic>().is_aligned());
                // SAFETY: the caller's promise.
                unsafe { <$atomic>::from_ptr(ptr.cast()) }.store(($to)(self), Ordering::Relaxed);
            }
        }
    )* };
}
scalars! {
    u8, AtomicU8, |x| x, |x| x;
    u16, AtomicU16, |x| x, |x| x;
    bf16, AtomicU16, bf16::to_bits, bf16::from_bits;
    u32, AtomicU32, |x| x, |x| x;
    i32, AtomicU32, |x| x as u32, |x| x as i32;
    f32, AtomicU32, f32::to_bits, f32::from_bits;
    u64, AtomicU64, |x| x, |x| x;
    i64, AtomicU64, |x| x as u64, |x| x as i64;
}

/// Elements of four bytes.
pub trait WordScalar: Scalar {
    /// Four neighbours.
    ///
    /// # Safety
    ///
    /// - As for `load`, of four elements.
    #[inline(always)]
    unsafe fn load4(ptr: *mut u8) -> [Self; 4] {
        // SAFETY: the caller's promise.
        std::array::from_fn(|k| unsafe { Self::load(ptr.add(k * 4)) })
    }
    /// # Safety
    ///
    /// - As for `load4`.
    #[inline(always)]
    unsafe fn store4(values: [Self; 4], ptr: *mut u8) {
        for (k, value) in values.into_iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { value.store(ptr.add(k * 4)) };
        }
    }
}
impl WordScalar for i32 {}
impl WordScalar for u32 {}
impl WordScalar for f32 {}

/// Elements that can be updated atomically.
pub trait AtomicScalar: Scalar + Ord {
    /// Puts `next(old)` in the place of the old value; the old value.
    ///
    /// # Safety
    ///
    /// - As for [`Scalar::load`].
    unsafe fn update(ptr: *mut u8, next: impl Fn(Self) -> Self) -> Self;
    fn add(self, other: Self) -> Self;
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
}

macro_rules! atomics {
    ($($t:ty, $unsigned:ty, $atomic:ty;)*) => { $(
        impl AtomicScalar for $t {
            #[inline]
            unsafe fn update(ptr: *mut u8, next: impl Fn(Self) -> Self) -> Self {
                debug_assert!(ptr.cast::<$atomic>().is_aligned());
                // SAFETY: the caller's promise.
                let place = unsafe { <$atomic>::from_ptr(ptr.cast()) };
                let mut old = place.load(Ordering::Relaxed);
                loop {
                    match place.compare_exchange_weak(old, next(old as $t) as $unsigned, Ordering::AcqRel, Ordering::Relaxed) {
                        Ok(_) => return old as $t,
                        Err(now) => old = now,
                    }
                }
            }
            #[inline]
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline]
            fn and(self, other: Self) -> Self {
                self & other
            }
            #[inline]
            fn or(self, other: Self) -> Self {
                self | other
            }
            #[inline]
            fn xor(self, other: Self) -> Self {
                self ^ other
            }
        }
    )* };
}
atomics! {
    i32, u32, AtomicU32;
    u32, u32, AtomicU32;
    i64, u64, AtomicU64;
    u64, u64, AtomicU64;
}

/// Values of collectives, as a word.
pub trait ShuffleScalar: Copy {
    fn to_word(self) -> u64;
    fn from_word(word: u64) -> Self;
}

macro_rules! words {
    ($($t:ty, $to:expr, $from:expr;)*) => { $(
        impl ShuffleScalar for $t {
            #[inline]
            fn to_word(self) -> u64 {
                ($to)(self)
            }
            #[inline]
            fn from_word(word: u64) -> Self {
                ($from)(word)
            }
        }
    )* };
}
words! {
    i32, |x| x as u64, |w| w as i32;
    u32, u64::from, |w| w as u32;
    f32, |x: f32| u64::from(x.to_bits()), |w| f32::from_bits(w as u32);
    i64, |x| x as u64, |w| w as i64;
    u64, |x| x, |w| w;
}

/// Values that matches compare.
pub trait MatchScalar: ShuffleScalar {}
impl MatchScalar for i32 {}
impl MatchScalar for u32 {}
impl MatchScalar for i64 {}
impl MatchScalar for u64 {}

/// Values that minimum and maximum order.
pub trait ReduceScalar: Copy + Ord + 'static {}
impl ReduceScalar for i32 {}
impl ReduceScalar for u32 {}
