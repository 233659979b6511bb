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

/// What the attributes ask for.
#[derive(Clone, Copy, Debug)]
pub(super) struct How {
    pub(super) cluster: [u32; 3],
    pub(super) cooperative: bool,
    pub(super) dependent: bool,
}

impl LaunchConfig {
    /// What its attributes ask for, on a GPU of this compute capability.
    ///
    /// # Safety
    /// - As for `cuLaunchKernelEx`: there are as many attributes as it says.
    pub(super) unsafe fn how(&self, capability: (c_int, c_int)) -> Result<How, c_int> {
        let mut how = How {
            cluster: [1; 3],
            cooperative: false,
            dependent: false,
        };
        let word =
            |attribute: &LaunchAttribute, i: usize| (attribute.value[i / 2] >> (i % 2 * 32)) as u32;
        for i in 0..self.num_attributes as usize {
            // SAFETY: the caller's.
            let attribute = unsafe { &*self.attributes.add(i) };
            match (attribute.id, word(attribute, 0)) {
                (4 | 6, _) if capability < (9, 0) => return Err(NOT_SUPPORTED),
                (2, 1) => how.cooperative = true,
                (4, _) => how.cluster = [0, 1, 2].map(|k| word(attribute, k)),
                (6, 1) => how.dependent = true,
                _ => return Err(INVALID_VALUE),
            }
        }
        if how.cluster.contains(&0) {
            return Err(INVALID_VALUE);
        }
        Ok(how)
    }
}

/// `CUDA_ERROR_NOT_SUPPORTED`.
const NOT_SUPPORTED: c_int = 801;

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
/// - As for `cuLaunchKernelEx`: `params` points to one value for each parameter of the kernel, and `config` has as many attributes as it says.
pub(super) unsafe fn launch(
    state: &mut State,
    function: Handle,
    config: &LaunchConfig,
    params: *mut *mut c_void,
) -> Result<(), c_int> {
    let kernel = state.kernel(function)?;
    let stream = state.stream(config.stream)?;
    // SAFETY: the caller's.
    let how = unsafe { config.how(state.capability) }?;
    let (grid, block) = (config.grid, config.block);
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
    state.log.dependent += usize::from(how.dependent);
    state.enqueue(
        stream,
        Work::Launch {
            kernel,
            grid,
            block,
            shared_bytes: config.shared_bytes,
            how,
            args,
        },
    )
}
