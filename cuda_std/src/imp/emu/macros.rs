//! What the public macros expand to here.

pub use super::shared::SharedView;
pub use crate::{__entry as entry, __static_shared as static_shared};

/// Launch bounds are in the kernel's table.
#[inline(always)]
pub fn launch_bounds<const THREADS: u32, const MIN_BLOCKS: u32>() {}

#[doc(hidden)]
#[macro_export]
macro_rules! __entry {
    ($entry:ident) => {
        $entry
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __static_shared {
    ($name:ident, $bytes:expr) => {
        $crate::__private::SharedView::array(::core::stringify!($name), $bytes)
    };
}
