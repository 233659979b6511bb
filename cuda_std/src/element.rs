//! Types that lie in memory.

use crate::imp::scalar::{AtomicScalar, Scalar, WordScalar};
use half::bf16;

/// What global and shared memory hold: u8, u16, i32, u32, i64, u64, f32, bf16. Sealed.
pub trait Element: Scalar {}

/// Elements with atomic operations: i32, u32, i64, u64. Sealed.
pub trait AtomicElement: Element + AtomicScalar {}

/// Elements of four bytes, which 16-byte accesses take by fours: i32, u32, f32. Sealed.
pub trait Word: Element + WordScalar {}

impl Element for u8 {}
impl Element for u16 {}
impl Element for bf16 {}
impl Element for i32 {}
impl Element for u32 {}
impl Element for f32 {}
impl Element for i64 {}
impl Element for u64 {}

impl AtomicElement for i32 {}
impl AtomicElement for u32 {}
impl AtomicElement for i64 {}
impl AtomicElement for u64 {}

impl Word for i32 {}
impl Word for u32 {}
impl Word for f32 {}
