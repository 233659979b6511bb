//! What a loaded function is asked and told.

use std::ffi::c_int;

use cuda_std::Kernel;
use cust::sys::CUfunction;

use crate::driver::{Context, Driver, DriverError};

/// The ABI table against the loaded code, where the driver can tell (CUDA 12.4).
pub(super) fn check_code(
    driver: &Driver,
    function: CUfunction,
    kernel: &Kernel,
) -> Result<(), DriverError> {
    let Some(info) = driver.api().cuFuncGetParamInfo else {
        return Ok(());
    };
    let disagree = |what: String, expected: String, got: String| DriverError::KernelAbi {
        kernel: kernel.name.into(),
        what,
        expected,
        got,
    };
    for index in 0..=kernel.params.len() {
        let (mut offset, mut size) = (0usize, 0usize);
        // SAFETY: a live function; the call writes two sizes, or returns an error past the last parameter.
        let code = unsafe { info(function, index, &raw mut offset, &raw mut size) };
        match (kernel.params.get(index), code) {
            (Some(param), 0) if size == param.ty.size() => {}
            (Some(param), 0) => {
                return Err(disagree(
                    format!("size of parameter {index} ({})", param.name),
                    param.ty.size().to_string(),
                    size.to_string(),
                ));
            }
            (None, code) if code != 0 => {}
            (wanted, _) => {
                return Err(disagree(
                    "number of parameters in the loaded code".into(),
                    kernel.params.len().to_string(),
                    match wanted {
                        Some(_) => format!("{index}"),
                        None => format!("more than {}", kernel.params.len()),
                    },
                ));
            }
        }
    }
    Ok(())
}

/// Loads the code, where the driver would do so at the first launch: that one may be in a captured stream. Drivers
/// without the call (older than CUDA 12.4) load at the first question about the function, which follows.
pub(super) fn load_now(
    driver: &Driver,
    function: CUfunction,
    name: &str,
) -> Result<(), DriverError> {
    let Some(load) = driver.api().cuFuncLoad else {
        return Ok(());
    };
    // SAFETY: a live function of the current context.
    let code = unsafe { load(function) };
    driver.check("cuFuncLoad", code, || format!("loading kernel {name}"))
}

pub(super) fn allow_shared_bytes(
    context: &Context,
    function: CUfunction,
    name: &str,
    bytes: u32,
) -> Result<(), DriverError> {
    let driver = context.driver();
    // The driver refuses more than the GPU has, the kernel's own included.
    let own = attribute(driver, function, name, FUNC_SHARED)?;
    let most = context.device().max_shared_memory()?.saturating_sub(own);
    let value = c_int::try_from(bytes.min(most)).unwrap_or(c_int::MAX);
    set_attribute(driver, function, FUNC_MAX_DYNAMIC_SHARED, value, || {
        format!("allowing {name} {bytes} bytes of shared memory")
    })
}

pub(super) fn set_attribute(
    driver: &Driver,
    function: CUfunction,
    which: c_int,
    value: c_int,
    what: impl FnOnce() -> String,
) -> Result<(), DriverError> {
    // SAFETY: a live function of the current context.
    let code = unsafe { (driver.api().cuFuncSetAttribute)(function, which, value) };
    driver.check("cuFuncSetAttribute", code, what)
}

pub(super) fn attribute(
    driver: &Driver,
    function: CUfunction,
    name: &str,
    which: c_int,
) -> Result<u32, DriverError> {
    let mut value = 0;
    // SAFETY: a live function; the call writes one int.
    let code = unsafe { (driver.api().cuFuncGetAttribute)(&raw mut value, which, function) };
    driver.check("cuFuncGetAttribute", code, || {
        format!("asking attribute {which} of kernel {name}")
    })?;
    Ok(u32::try_from(value).unwrap_or(0))
}

// CUfunction_attribute
pub(super) const FUNC_MAX_THREADS: c_int = 0;
pub(super) const FUNC_SHARED: c_int = 1;
pub(super) const FUNC_LOCAL: c_int = 3;
pub(super) const FUNC_REGISTERS: c_int = 4;
const FUNC_MAX_DYNAMIC_SHARED: c_int = 8;
pub(super) const FUNC_SHARED_CARVEOUT: c_int = 9;
