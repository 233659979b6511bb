//! The driver's entry points, found at run time.
//!
//! The library never links libcuda: a program built with it starts on any machine and learns here whether there is a
//! driver. The types are `cust`'s raw ones; the functions are declared anew, each returning a plain `c_int`, because
//! `cust`'s error enum ends with CUDA 11.4 and a newer code in it would be undefined behaviour.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use cust::sys::{
    CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUgraph, CUgraphExec, CUmodule, CUstream,
};

use super::DriverError;
use super::tensor_map::TensorMapRaw;

/// A `CUlaunchConfig`, CUDA 11.8's.
#[repr(C)]
pub(crate) struct LaunchConfigRaw {
    pub(crate) grid: [c_uint; 3],
    pub(crate) block: [c_uint; 3],
    pub(crate) shared_bytes: c_uint,
    pub(crate) stream: CUstream,
    pub(crate) attributes: *const LaunchAttributeRaw,
    pub(crate) num_attributes: c_uint,
}

/// A `CUlaunchAttribute`: an id, and a union of 64 bytes that starts at offset 8.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(crate) struct LaunchAttributeRaw {
    pub(crate) id: c_uint,
    pub(crate) pad: c_uint,
    pub(crate) value: [u32; 16],
}

macro_rules! entry_points {
    (
        required { $(fn $name:ident($($arg:ident: $ty:ty),* $(,)?);)* }
        optional { $(fn $opt:ident($($opt_arg:ident: $opt_ty:ty),* $(,)?);)* }
    ) => {
        /// The entry points, under the driver's own names.
        #[allow(non_snake_case, reason = "the driver's own names")]
        pub(crate) struct Api {
            $(pub(crate) $name: unsafe extern "C" fn($($arg: $ty),*) -> c_int,)*
            $(pub(crate) $opt: Option<unsafe extern "C" fn($($opt_arg: $opt_ty),*) -> c_int>,)*
        }

        impl Api {
            /// Fills the table from `lookup`, which gives a symbol's address or null.
            ///
            /// # Safety
            /// - For each name the address is null or a function with the signature of the driver API's function of
            ///   that name.
            /// - The functions stay callable for the rest of the process.
            pub(crate) unsafe fn resolve(
                lookup: &dyn Fn(&CStr) -> *const c_void,
            ) -> Result<Self, DriverError> {
                Ok(Self {
                    $($name: {
                        let address = lookup(symbol(concat!(stringify!($name), "\0")));
                        if address.is_null() {
                            return Err(DriverError::MissingEntry {
                                entry: stringify!($name),
                                driver: version_text(lookup),
                                since: "11.4",
                            });
                        }
                        // SAFETY: not null, and the caller vouches for the signature.
                        unsafe {
                            std::mem::transmute::<
                                *const c_void,
                                unsafe extern "C" fn($($ty),*) -> c_int,
                            >(address)
                        }
                    },)*
                    $($opt: {
                        let address = lookup(symbol(concat!(stringify!($opt), "\0")));
                        // SAFETY: null becomes `None` (the null-pointer optimisation), else the caller vouches for
                        // the signature.
                        unsafe {
                            std::mem::transmute::<
                                *const c_void,
                                Option<unsafe extern "C" fn($($opt_ty),*) -> c_int>,
                            >(address)
                        }
                    },)*
                })
            }
        }
    };
}

// `_v2` and the like are the names that cuda.h's macros stand for, and have been since CUDA 11. The newest required one,
// `cuGraphInstantiateWithFlags`, is of CUDA 11.4.
entry_points! {
    required {
        fn cuInit(flags: c_uint);
        fn cuDriverGetVersion(version: *mut c_int);
        fn cuGetErrorName(code: c_int, text: *mut *const c_char);
        fn cuGetErrorString(code: c_int, text: *mut *const c_char);
        fn cuDeviceGetCount(count: *mut c_int);
        fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
        fn cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice);
        fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: CUdevice);
        fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
        fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
        fn cuDevicePrimaryCtxRelease_v2(device: CUdevice);
        fn cuCtxPushCurrent_v2(context: CUcontext);
        fn cuCtxPopCurrent_v2(context: *mut CUcontext);
        fn cuCtxGetDevice(device: *mut CUdevice);
        fn cuCtxSynchronize();
        fn cuModuleLoadDataEx(
            module: *mut CUmodule, image: *const c_void, count: c_uint, options: *mut c_int, values: *mut *mut c_void,
        );
        fn cuModuleUnload(module: CUmodule);
        fn cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
        fn cuFuncGetAttribute(value: *mut c_int, attribute: c_int, function: CUfunction);
        fn cuFuncSetAttribute(function: CUfunction, attribute: c_int, value: c_int);
        fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
            blocks: *mut c_int, function: CUfunction, block_size: c_int, shared_bytes: usize,
        );
        fn cuLaunchKernel(
            function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
            block_z: c_uint, shared_bytes: c_uint, stream: CUstream, params: *mut *mut c_void, extra: *mut *mut c_void,
        );
        fn cuMemAlloc_v2(ptr: *mut CUdeviceptr, bytes: usize);
        fn cuMemFree_v2(ptr: CUdeviceptr);
        fn cuMemHostAlloc(ptr: *mut *mut c_void, bytes: usize, flags: c_uint);
        fn cuMemFreeHost(ptr: *mut c_void);
        fn cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream);
        fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);
        fn cuMemsetD32Async(ptr: CUdeviceptr, value: c_uint, count: usize, stream: CUstream);
        fn cuStreamCreate(stream: *mut CUstream, flags: c_uint);
        fn cuStreamDestroy_v2(stream: CUstream);
        fn cuStreamSynchronize(stream: CUstream);
        fn cuStreamBeginCapture_v2(stream: CUstream, mode: c_int);
        fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph);
        fn cuGraphInstantiateWithFlags(exec: *mut CUgraphExec, graph: CUgraph, flags: u64);
        fn cuGraphLaunch(exec: CUgraphExec, stream: CUstream);
        fn cuGraphExecDestroy(exec: CUgraphExec);
        fn cuGraphDestroy(graph: CUgraph);
        fn cuEventCreate(event: *mut CUevent, flags: c_uint);
        fn cuEventRecord(event: CUevent, stream: CUstream);
        fn cuEventSynchronize(event: CUevent);
        fn cuEventElapsedTime(milliseconds: *mut f32, from: CUevent, to: CUevent);
        fn cuEventDestroy_v2(event: CUevent);
    }
    optional {
        // CUDA 11.8
        fn cuLaunchKernelEx(
            config: *const LaunchConfigRaw, function: CUfunction, params: *mut *mut c_void, extra: *mut *mut c_void,
        );
        fn cuOccupancyMaxActiveClusters(clusters: *mut c_int, function: CUfunction, config: *const LaunchConfigRaw);
        // CUDA 12.0
        fn cuTensorMapEncodeTiled(
            map: *mut TensorMapRaw, data_type: c_int, rank: c_uint, address: u64, sizes: *const u64, strides: *const u64,
            boxes: *const u32, steps: *const u32, interleave: c_int, swizzle: c_int, promotion: c_int, outside: c_int,
        );
        // CUDA 12.4
        fn cuFuncLoad(function: CUfunction);
        fn cuFuncGetParamInfo(function: CUfunction, index: usize, offset: *mut usize, size: *mut usize);
    }
}

fn symbol(name: &'static str) -> &'static CStr {
    CStr::from_bytes_with_nul(name.as_bytes()).unwrap_or_default()
}

/// The driver's version for an error message, when the table is not there yet.
fn version_text(lookup: &dyn Fn(&CStr) -> *const c_void) -> String {
    let address = lookup(c"cuDriverGetVersion");
    if address.is_null() {
        return "version unknown".into();
    }
    // SAFETY: not null, and `resolve`'s caller vouches for the signature.
    let get = unsafe {
        std::mem::transmute::<*const c_void, unsafe extern "C" fn(*mut c_int) -> c_int>(address)
    };
    let mut number = 0;
    // SAFETY: the function writes one int; it may be called before cuInit.
    match unsafe { get(&raw mut number) } {
        0 => format!("for CUDA {}", super::DriverVersion::from_number(number)),
        code => format!("version unknown, error {code}"),
    }
}

const _: () = {
    assert!(size_of::<LaunchAttributeRaw>() == 72);
    assert!(std::mem::offset_of!(LaunchAttributeRaw, value) == 8);
    assert!(size_of::<LaunchConfigRaw>() == 56);
};
