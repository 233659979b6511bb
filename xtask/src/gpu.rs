//! Whether this machine can run the GPU tests.

use std::ffi::c_int;

use libloading::Library;

/// How many GPUs the driver shows, at least one; else why there is none.
pub(crate) fn count() -> Result<usize, String> {
    const DRIVER: &str = "libcuda.so.1";
    // SAFETY: the driver's initialisers have no preconditions.
    let driver = unsafe { Library::new(DRIVER) };
    let driver = driver.map_err(|error| match std::error::Error::source(&error) {
        Some(why) => format!("no NVIDIA driver here ({why})"),
        None => format!("no NVIDIA driver here ({error})"),
    })?;
    let mut count: c_int = 0;
    // SAFETY: the types are those of cuda.h; `driver` stays loaded during the calls.
    let status = unsafe {
        let init = driver.get::<unsafe extern "C" fn(u32) -> c_int>(b"cuInit");
        let devices = driver.get::<unsafe extern "C" fn(*mut c_int) -> c_int>(b"cuDeviceGetCount");
        match (init, devices) {
            (Ok(init), Ok(devices)) => match init(0) {
                0 => devices(&mut count),
                status => status,
            },
            _ => return Err(format!("{DRIVER} is no CUDA driver")),
        }
    };
    match (status, usize::try_from(count)) {
        (0, Ok(count @ 1..)) => Ok(count),
        (0, _) => Err("the NVIDIA driver shows no GPU".to_owned()),
        (status, _) => Err(format!(
            "the NVIDIA driver does not start (CUDA error {status})"
        )),
    }
}
