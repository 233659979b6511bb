//! The driver's compiler: PTX in, a loaded module out.

use std::ffi::{CString, c_int, c_void};

use cust::sys::CUmodule;

use super::error::{JitError, PTX_HINT, hint};
use super::{Context, DriverError, Ptx};

/// Has the driver compile a text for the GPU (it keeps the result in its own cache on disk), and loads it. `text` is of `ptx`, whose header goes
/// into errors.
///
/// # Errors
/// [`DriverError::Jit`] with the GPU, the driver's and the PTX's versions and the JIT's log.
pub(super) fn load(context: &Context, ptx: Ptx<'_>, text: &str) -> Result<CUmodule, DriverError> {
    let text = CString::new(text).map_err(|e| DriverError::Argument {
        argument: "ptx",
        expected: "a text without a nul".into(),
        got: format!("one at byte {} of {}", e.nul_position(), ptx.name),
        hint: PTX_HINT,
    })?;
    let driver = context.driver();
    let _current = context.enter()?;
    let mut error_log = vec![0u8; LOG_BYTES];
    let mut info_log = vec![0u8; LOG_BYTES];
    // Each value is an address or a number of its own, in a pointer-sized cell.
    let size = std::ptr::without_provenance_mut::<c_void>(LOG_BYTES);
    let mut options = [INFO_LOG, INFO_LOG_SIZE, ERROR_LOG, ERROR_LOG_SIZE];
    let mut values = [
        info_log.as_mut_ptr().cast(),
        size,
        error_log.as_mut_ptr().cast(),
        size,
    ];
    let mut raw: CUmodule = std::ptr::null_mut();
    // SAFETY: the text ends in a nul; options and values are as many as said and of the options' types; both logs
    // have the size said.
    let code = unsafe {
        (driver.api().cuModuleLoadDataEx)(
            &raw mut raw,
            text.as_ptr().cast(),
            options.len() as u32,
            options.as_mut_ptr(),
            values.as_mut_ptr(),
        )
    };
    if code == 0 {
        return Ok(raw);
    }
    let device = context.device();
    Err(DriverError::Jit(Box::new(JitError {
        ptx: ptx.name.into(),
        ptx_version: ptx.version.into(),
        target: ptx.target.into(),
        device: device.name().into(),
        capability: device.capability(),
        driver: driver.version(),
        code,
        name: driver.code_name(code),
        hint: hint(code),
        log: join_logs(&error_log, &info_log),
    })))
}

/// Unloads a module.
///
/// # Safety
/// - `module` came from [`load`] in this context; neither it nor its kernels are used again.
///
/// # Errors
/// The driver's.
pub(super) unsafe fn unload(context: &Context, module: CUmodule) -> Result<(), DriverError> {
    let _current = context.enter()?;
    let driver = context.driver();
    // SAFETY: the caller's contract.
    let code = unsafe { (driver.api().cuModuleUnload)(module) };
    driver.check("cuModuleUnload", code, || "unloading kernels".into())
}

fn join_logs(error: &[u8], info: &[u8]) -> String {
    let text = |log: &[u8]| {
        let end = log.iter().position(|&b| b == 0).unwrap_or(log.len());
        String::from_utf8_lossy(&log[..end]).trim().to_owned()
    };
    let (error, info) = (text(error), text(info));
    match (error.is_empty(), info.is_empty()) {
        (false, false) => format!("{error}\n{info}"),
        _ => error + &info,
    }
}

const LOG_BYTES: usize = 16 * 1024;
// CUjit_option
const INFO_LOG: c_int = 3;
const INFO_LOG_SIZE: c_int = 4;
const ERROR_LOG: c_int = 5;
const ERROR_LOG_SIZE: c_int = 6;
