//! Tensor copies and warpgroup products, which sm_90a alone has: here each function says so, and the launch fails. Kernels that use them have a
//! general twin, which runs.

use super::context::current;
use super::error::ErrorKind;
use super::shared::SharedView;
use crate::tma::TensorMap;
use std::panic::Location;

#[track_caller]
fn gpu_only(what: &str) -> ! {
    current().report(
        ErrorKind::Unsupported,
        format!("{what} needs a GPU of sm_90a; the emulator runs the kernel's general twin"),
        "called it",
        Location::caller(),
    )
}

/// Modules of functions that all end in [`gpu_only`]; `[unsafe]` before a name as on the GPU.
macro_rules! gpu_only {
    ($($module:ident { $([$($safety:tt)?] $name:ident$(<$count:ident>)?($($ty:ty),*) -> $out:ty;)* })*) => { $(
        pub(crate) mod $module {
            use super::*;

            $(
                #[track_caller]
                pub(crate) $($safety)? fn $name$(<const $count: u32>)?($(_: $ty),*) -> $out {
                    gpu_only(concat!(stringify!($module), "::", stringify!($name)))
                }
            )*
        }
    )* };
}
gpu_only! {
    tma {
        [] evict_first() -> u64;
        [] evict_normal() -> u64;
        [] evict_last() -> u64;
        [unsafe] prefetch(*const TensorMap) -> ();
        [] release() -> ();
        [unsafe] acquire(*const TensorMap) -> ();
        [unsafe] load_2d(SharedView, *const TensorMap, [u32; 2], SharedView, u64) -> ();
        [unsafe] load_3d(SharedView, *const TensorMap, [u32; 3], SharedView, u64) -> ();
    }
    wgmma {
        [unsafe] product_64x128x256(&[u32; 64], SharedView, (SharedView, u32), (SharedView, bool), (SharedView, bool)) -> [f32; 64];
        [unsafe] increase_registers<COUNT>() -> ();
        [unsafe] decrease_registers<COUNT>() -> ();
    }
}
