//! A launch, and the shared memory that it may ask for.

use std::ffi::{c_int, c_uint, c_void};

use super::calls::Handle;
use super::state::{INVALID_VALUE, State, Work};

/// `CUlaunchConfig`, as cuda.h lays it out.
#[repr(C)]
pub(super) struct LaunchConfig {
    pub(super) grid: [c_uint; 3],
    pub(super) block: [c_uint; 3],
    pub(super) shared_bytes: c_uint,
    pub(super) stream: Handle,
    pub(super) attributes: *const LaunchAttribute,
    pub(super) num_attributes: c_uint,
}

/// `CUlaunchAttribute`, as cuda.h lays it out.
#[repr(C)]
pub(super) struct LaunchAttribute {
    pub(super) id: c_uint,
    pad: [u8; 4],
    pub(super) value: [u64; 8],
}

/// Shared memory that a block may have.
pub(super) fn most_shared(capability: (c_int, c_int)) -> c_int {
    match capability {
        (8, 0) => 166_912,
        (9 | 10, _) => 232_448,
        _ => 101_376,
    }
}

/// Shared memory of a kernel that no launch asks for: of those that also have some that launches ask for.
pub(super) fn own_shared(kernel: &str) -> c_int {
    if kernel.starts_with("xpress_select") {
        4368
    } else {
        0
    }
}

/// # Safety
/// - As for `cuLaunchKernel`: `params` points to one value for each parameter of the kernel.
pub(super) unsafe fn launch(
    state: &mut State,
    function: Handle,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    stream: Handle,
    params: *mut *mut c_void,
) -> Result<(), c_int> {
    let kernel = state.kernel(function)?;
    let stream = state.stream(stream)?;
    let threads = block[0] * block[1] * block[2];
    let wrong_block = kernel.threads.is_some_and(|t| t != threads) || threads > 1024;
    if wrong_block || threads == 0 || grid.contains(&0) || grid[1] > 65_535 || grid[2] > 65_535 {
        return Err(INVALID_VALUE);
    }
    let args = kernel.params.iter().enumerate().map(|(index, param)| {
        // SAFETY: the caller's: a value of the parameter's size.
        unsafe {
            let value = *params.add(index);
            match param.ty.size() {
                4 => value.cast::<u32>().read().into(),
                _ => value.cast::<u64>().read(),
            }
        }
    });
    let args = args.collect();
    state.log.launches.push((kernel.name, grid, block[0]));
    state.log.streams.push(stream);
    state.enqueue(
        stream,
        Work::Launch {
            kernel,
            grid,
            block,
            shared_bytes,
            args,
        },
    )
}
