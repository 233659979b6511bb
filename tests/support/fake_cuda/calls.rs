//! The driver API's functions, over the state.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use cuda_std::Kernel;
use specdraft_kernels::abi::KERNELS;

use super::launch::{LaunchConfig, launch, most_shared, own_shared};
use super::state::{
    CAPTURE_INVALIDATED, INVALID_DEVICE, INVALID_PTX, INVALID_VALUE, Kind, NOT_FOUND,
    OUT_OF_MEMORY, UNSUPPORTED_PTX_VERSION, Work, with,
};

pub(super) type Handle = *mut c_void;

/// Defines each function with the driver's name and C signature, and `address`, which finds them.
macro_rules! functions {
    ($($(#[$meta:meta])* fn $name:ident($state:ident $(, $arg:ident: $ty:ty)* $(,)?) $body:block)*) => {
        pub(super) fn address(name: &str) -> *const c_void {
            match name {
                $(stringify!($name) => $name as *const c_void,)*
                _ => std::ptr::null(),
            }
        }

        $(
            $(#[$meta])*
            #[allow(non_snake_case, reason = "the driver's own names")]
            unsafe extern "C" fn $name($($arg: $ty),*) -> c_int {
                let result: Result<(), c_int> = with(|$state| {
                    $state.call(stringify!($name))?;
                    $body
                });
                result.err().unwrap_or(0)
            }
        )*
    };
}

/// Writes a result through the caller's pointer.
///
/// # Safety
/// - `to` is valid for a write, as the driver API asks of every such argument.
unsafe fn put<T>(to: *mut T, value: T) {
    assert!(
        !to.is_null(),
        "the driver would write through a null pointer"
    );
    // SAFETY: the caller's.
    unsafe { to.write(value) };
}

fn kernel(name: &str) -> Option<&'static Kernel> {
    KERNELS.iter().find(|kernel| kernel.name == name)
}

const MULTIPROCESSORS: c_int = 132;

/// Of a multiprocessor.
const SHARED_BYTES: usize = 228 << 10;

functions! {
    fn cuInit(state, _flags: c_uint) { let _ = state; Ok(()) }

    fn cuDriverGetVersion(state, version: *mut c_int) {
        // SAFETY: the driver API's contract.
        unsafe { put(version, state.version) };
        Ok(())
    }

    fn cuGetErrorName(state, code: c_int, text: *mut *const c_char) {
        let _ = state;
        let name = match code {
            2 => c"CUDA_ERROR_OUT_OF_MEMORY",
            100 => c"CUDA_ERROR_NO_DEVICE",
            218 => c"CUDA_ERROR_INVALID_PTX",
            719 => c"CUDA_ERROR_LAUNCH_FAILED",
            900 => c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
            _ => return Err(INVALID_VALUE),
        };
        // SAFETY: the driver API's contract.
        unsafe { put(text, name.as_ptr()) };
        Ok(())
    }

    fn cuGetErrorString(state, _code: c_int, text: *mut *const c_char) {
        let _ = state;
        // SAFETY: the driver API's contract.
        unsafe { put(text, c"the fake driver says so".as_ptr()) };
        Ok(())
    }

    fn cuDeviceGetCount(state, count: *mut c_int) {
        let _ = state;
        // SAFETY: the driver API's contract.
        unsafe { put(count, 1) };
        Ok(())
    }

    fn cuDeviceGet(state, device: *mut c_int, ordinal: c_int) {
        let _ = state;
        if ordinal != 0 {
            return Err(INVALID_DEVICE);
        }
        // SAFETY: the driver API's contract.
        unsafe { put(device, 0) };
        Ok(())
    }

    fn cuDeviceGetName(state, name: *mut c_char, len: c_int, _device: c_int) {
        let _ = state;
        let text = b"Fake GPU\0";
        assert!(text.len() <= len as usize);
        // SAFETY: the caller's array has `len` bytes.
        unsafe { name.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len()) };
        Ok(())
    }

    fn cuDeviceGetAttribute(state, value: *mut c_int, attribute: c_int, _device: c_int) {
        let answer = match attribute {
            13 => 1_980_000,
            16 => MULTIPROCESSORS,
            75 => state.capability.0,
            76 => state.capability.1,
            95 => 1,
            97 => most_shared(state.capability),
            _ => return Err(INVALID_VALUE),
        };
        // SAFETY: the driver API's contract.
        unsafe { put(value, answer) };
        Ok(())
    }

    fn cuDeviceTotalMem_v2(state, bytes: *mut usize, _device: c_int) {
        let _ = state;
        // SAFETY: the driver API's contract.
        unsafe { put(bytes, 1 << 34) };
        Ok(())
    }

    fn cuDevicePrimaryCtxRetain(state, context: *mut Handle, _device: c_int) {
        let (handle, count) = match state.primary {
            Some(primary) => primary,
            None => (state.handle(Kind::Context).addr(), 0),
        };
        state.primary = Some((handle, count + 1));
        // SAFETY: the driver API's contract.
        unsafe { put(context, std::ptr::without_provenance_mut(handle)) };
        Ok(())
    }

    fn cuDevicePrimaryCtxRelease_v2(state, _device: c_int) {
        match state.primary {
            Some((handle, 1)) => {
                state.primary = None;
                state.destroy(std::ptr::without_provenance_mut(handle), Kind::Context).map(drop)
            }
            Some((handle, count)) => {
                state.primary = Some((handle, count - 1));
                Ok(())
            }
            None => Err(INVALID_VALUE),
        }
    }

    fn cuCtxPushCurrent_v2(state, context: Handle) {
        let context = state.alive(context, Kind::Context)?;
        state.current.push(context);
        Ok(())
    }

    fn cuCtxPopCurrent_v2(state, context: *mut Handle) {
        let popped = state.in_context()?;
        state.current.pop();
        // SAFETY: the driver API's contract.
        unsafe { put(context, std::ptr::without_provenance_mut(popped)) };
        Ok(())
    }

    fn cuCtxGetDevice(state, device: *mut c_int) {
        state.in_context()?;
        // SAFETY: the driver API's contract.
        unsafe { put(device, 0) };
        Ok(())
    }

    fn cuCtxSynchronize(state) {
        state.in_context()?;
        state.not_while_capturing()?;
        state.drain()
    }

    fn cuModuleLoadDataEx(
        state, module: *mut Handle, image: *const c_void, count: c_uint, options: *mut c_int, values: *mut *mut c_void,
    ) {
        state.in_context()?;
        state.not_while_capturing()?;
        // SAFETY: the image is a text that ends in a nul.
        let text = unsafe { CStr::from_ptr(image.cast()) }.to_string_lossy();
        if !text.contains(".target sm_") {
            for index in 0..count as usize {
                // SAFETY: `count` options and values; option 5 is an error log as long as option 6's value says.
                unsafe {
                    if *options.add(index) == 5 {
                        let log = b"ptxas fatal: no target\0";
                        (*values.add(index)).cast::<u8>().copy_from_nonoverlapping(log.as_ptr(), log.len());
                    }
                }
            }
            return Err(INVALID_PTX);
        }
        if text.contains(".version 8.") && state.version < 12_030 {
            return Err(UNSUPPORTED_PTX_VERSION);
        }
        let entries = text.split(".entry ").skip(1);
        let kernels = entries.filter_map(|entry| kernel(entry.split('(').next()?));
        state.log.compiled.extend(kernels.map(|kernel| kernel.name));
        // SAFETY: the driver API's contract.
        unsafe { put(module, state.handle(Kind::Module)) };
        Ok(())
    }

    fn cuModuleUnload(state, module: Handle) {
        state.not_while_capturing()?;
        state.unload(module)
    }

    fn cuModuleGetFunction(state, function: *mut Handle, module: Handle, name: *const c_char) {
        let module = state.alive(module, Kind::Module)?;
        // SAFETY: a text that ends in a nul.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        let kernel = kernel(&name).ok_or(NOT_FOUND)?;
        let handle = state.function(module, kernel);
        // SAFETY: the driver API's contract.
        unsafe { put(function, handle) };
        Ok(())
    }

    fn cuFuncGetAttribute(state, value: *mut c_int, attribute: c_int, function: Handle) {
        let kernel = state.kernel(function)?;
        let answer = match attribute {
            0 => kernel.threads.unwrap_or(1024) as c_int,
            1 => own_shared(kernel.name),
            3 | 8 => 0,
            4 => 64,
            _ => return Err(INVALID_VALUE),
        };
        // SAFETY: the driver API's contract.
        unsafe { put(value, answer) };
        Ok(())
    }

    fn cuFuncSetAttribute(state, function: Handle, attribute: c_int, value: c_int) {
        let own = own_shared(state.kernel(function)?.name);
        if attribute == 8 && value + own > most_shared(state.capability) {
            return Err(INVALID_VALUE);
        }
        Ok(())
    }

    fn cuFuncLoad(state, function: Handle) {
        state.not_while_capturing()?;
        state.kernel(function).map(drop)
    }

    fn cuFuncGetParamInfo(state, function: Handle, index: usize, offset: *mut usize, size: *mut usize) {
        let kernel = state.kernel(function)?;
        let mut end = 0usize;
        for (position, param) in kernel.params.iter().enumerate() {
            let bytes = param.ty.size();
            end = end.next_multiple_of(bytes);
            if position == index {
                // SAFETY: the driver API's contract.
                unsafe { put(offset, end); put(size, bytes) };
                return Ok(());
            }
            end += bytes;
        }
        Err(INVALID_VALUE)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        state, blocks: *mut c_int, function: Handle, block_size: c_int, shared_bytes: usize,
    ) {
        state.kernel(function)?;
        // SAFETY: the driver API's contract.
        unsafe { put(blocks, (2048 / block_size).min((SHARED_BYTES / (shared_bytes + 1024)) as c_int)) };
        Ok(())
    }

    fn cuLaunchKernel(
        state, function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared_bytes: c_uint, stream: Handle, params: *mut *mut c_void, _extra: *mut *mut c_void,
    ) {
        let config = LaunchConfig {
            grid: [grid_x, grid_y, grid_z],
            block: [block_x, block_y, block_z],
            shared_bytes,
            stream,
            attributes: std::ptr::null(),
            num_attributes: 0,
        };
        // SAFETY: the driver API's contract.
        unsafe { launch(state, function, &config, params) }
    }

    fn cuLaunchKernelEx(
        state, config: *const LaunchConfig, function: Handle, params: *mut *mut c_void, _extra: *mut *mut c_void,
    ) {
        // SAFETY: the driver API's contract.
        unsafe { launch(state, function, &*config, params) }
    }

    fn cuOccupancyMaxActiveClusters(
        state, clusters: *mut c_int, function: Handle, config: *const LaunchConfig,
    ) {
        state.kernel(function)?;
        // SAFETY: the driver API's contract.
        let how = unsafe { (*config).how(state.capability) }?;
        let blocks: u32 = how.cluster.iter().product();
        // SAFETY: the driver API's contract.
        unsafe { put(clusters, (120 / blocks) as c_int) };
        Ok(())
    }

    fn cuMemAlloc_v2(state, ptr: *mut u64, bytes: usize) {
        state.in_context()?;
        state.not_while_capturing()?;
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        if bytes > 1 << 32 {
            return Err(OUT_OF_MEMORY);
        }
        let address = state.allocate(bytes);
        // SAFETY: the driver API's contract.
        unsafe { put(ptr, address) };
        Ok(())
    }

    fn cuMemFree_v2(state, ptr: u64) {
        state.in_context()?;
        state.not_while_capturing()?;
        state.drain()?;
        state.memory.remove(&ptr).map(drop).ok_or(INVALID_VALUE)
    }

    fn cuMemHostAlloc(state, ptr: *mut *mut c_void, bytes: usize, _flags: c_uint) {
        state.in_context()?;
        state.not_while_capturing()?;
        // As much garbage as fresh page-locked memory holds.
        let mut words = vec![0xDEAD_BEEF_DEAD_BEEF_u64; bytes.div_ceil(8)];
        let address = words.as_mut_ptr();
        state.pinned.insert(address.expose_provenance(), words);
        // SAFETY: the driver API's contract.
        unsafe { put(ptr, address.cast()) };
        Ok(())
    }

    fn cuMemFreeHost(state, ptr: *mut c_void) {
        state.not_while_capturing()?;
        state.drain()?;
        state.pinned.remove(&ptr.addr()).map(drop).ok_or(INVALID_VALUE)
    }

    fn cuMemcpyHtoDAsync_v2(state, to: u64, from: *const c_void, bytes: usize, stream: Handle) {
        let stream = state.stream(stream)?;
        state.inside(to, bytes)?;
        let from = from.cast::<u8>();
        if state.is_pinned(from.addr(), bytes) {
            let from = from.expose_provenance();
            return state.enqueue(stream, Work::Upload { to, from, bytes });
        }
        if state.is_capturing(stream) {
            return state.not_while_capturing();
        }
        // SAFETY: the caller's `bytes`.
        let data = unsafe { std::slice::from_raw_parts(from, bytes) }.to_vec();
        state.enqueue(stream, Work::Store { to, data })
    }

    fn cuMemcpyDtoHAsync_v2(state, to: *mut c_void, from: u64, bytes: usize, stream: Handle) {
        let stream = state.stream(stream)?;
        state.inside(from, bytes)?;
        let to = to.expose_provenance();
        if state.is_capturing(stream) && !state.is_pinned(to, bytes) {
            return state.not_while_capturing();
        }
        state.enqueue(stream, Work::Download { to, from, bytes })
    }

    fn cuMemsetD32Async(state, to: u64, word: c_uint, count: usize, stream: Handle) {
        let stream = state.stream(stream)?;
        state.inside(to, 4 * count)?;
        state.enqueue(stream, Work::Fill { to, word, count })
    }

    fn cuStreamCreate(state, stream: *mut Handle, _flags: c_uint) {
        state.in_context()?;
        // SAFETY: the driver API's contract.
        unsafe { put(stream, state.handle(Kind::Stream)) };
        Ok(())
    }

    fn cuStreamDestroy_v2(state, stream: Handle) {
        state.in_context()?;
        state.destroy(stream, Kind::Stream).map(drop)
    }

    fn cuStreamSynchronize(state, stream: Handle) {
        let stream = state.stream(stream)?;
        if state.is_capturing(stream) {
            return state.not_while_capturing();
        }
        state.drain()
    }

    fn cuStreamBeginCapture_v2(state, stream: Handle, _mode: c_int) {
        let stream = state.stream(stream)?;
        state.begin_capture(stream)
    }

    fn cuStreamEndCapture(state, stream: Handle, graph: *mut Handle) {
        let stream = state.stream(stream)?;
        let work = state.end_capture(stream);
        if matches!(work, Err(CAPTURE_INVALIDATED)) {
            // SAFETY: the driver API's contract.
            unsafe { put(graph, std::ptr::null_mut()) };
        }
        let work = work?;
        let handle = state.handle(Kind::Graph);
        state.graphs.insert(handle.addr(), work);
        // SAFETY: the driver API's contract.
        unsafe { put(graph, handle) };
        Ok(())
    }

    fn cuGraphInstantiateWithFlags(state, exec: *mut Handle, graph: Handle, _flags: u64) {
        let graph = state.alive(graph, Kind::Graph)?;
        let work = state.graphs[&graph].clone();
        let handle = state.handle(Kind::GraphExec);
        state.graphs.insert(handle.addr(), work);
        // SAFETY: the driver API's contract.
        unsafe { put(exec, handle) };
        Ok(())
    }

    fn cuGraphLaunch(state, exec: Handle, stream: Handle) {
        let exec = state.alive(exec, Kind::GraphExec)?;
        let stream = state.stream(stream)?;
        for work in state.graphs[&exec].clone() {
            state.enqueue(stream, work)?;
        }
        Ok(())
    }

    fn cuGraphExecDestroy(state, exec: Handle) {
        state.destroy(exec, Kind::GraphExec).map(drop)
    }

    fn cuGraphDestroy(state, graph: Handle) {
        state.destroy(graph, Kind::Graph).map(drop)
    }

    fn cuEventCreate(state, event: *mut Handle, _flags: c_uint) {
        state.in_context()?;
        // SAFETY: the driver API's contract.
        unsafe { put(event, state.handle(Kind::Event)) };
        Ok(())
    }

    fn cuEventRecord(state, event: Handle, stream: Handle) {
        state.alive(event, Kind::Event)?;
        state.stream(stream).map(drop)
    }

    fn cuEventSynchronize(state, event: Handle) {
        state.alive(event, Kind::Event)?;
        state.not_while_capturing()?;
        state.drain()
    }

    fn cuEventElapsedTime(state, milliseconds: *mut f32, from: Handle, to: Handle) {
        state.alive(from, Kind::Event)?;
        state.alive(to, Kind::Event)?;
        // SAFETY: the driver API's contract.
        unsafe { put(milliseconds, 1.0) };
        Ok(())
    }

    fn cuEventDestroy_v2(state, event: Handle) {
        state.destroy(event, Kind::Event).map(drop)
    }
}
