//! What the public macros expand to here.

pub use super::shared::SharedView;
pub use crate::{__entry as entry, __static_shared as static_shared};

use core::arch::asm;

/// Leaves the launch bounds in the PTX.
#[inline(always)]
pub fn launch_bounds<const THREADS: u32, const MIN_BLOCKS: u32>() {
    // SAFETY: a comment.
    unsafe {
        asm!("//cuda_std launch_bounds {0} {1}", const THREADS, const MIN_BLOCKS, options(nomem, nostack))
    }
}

#[doc(hidden)]
#[macro_export]
macro_rules! __entry {
    ($entry:ident) => {
        ()
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __static_shared {
    ($name:ident, $bytes:expr) => {{
        let addr: u32;
        // SAFETY: the builder declares the symbol.
        unsafe {
            ::core::arch::asm!(
                ::core::concat!("//cuda_std shared ", ::core::stringify!($name), " {1} 16\n\tmov.u32 {0}, ", ::core::stringify!($name), ";"),
                out(reg32) addr,
                const $bytes,
                options(pure, nomem, nostack)
            );
        }
        $crate::__private::SharedView::new(addr)
    }};
}
