//! What can go wrong between this library and the GPU.

use std::ffi::c_int;

/// An error of the CUDA driver layer.
///
/// Every message names what was being done, what came back and what to do about it.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// The driver's library could not be loaded: typically a machine without an NVIDIA driver, or a container started
    /// without `--gpus`.
    #[error(
        "no NVIDIA driver: {library} could not be loaded ({detail}); install the driver (in a container, start it with GPU access), or use the cpu backend"
    )]
    NoDriver {
        /// The library that was looked for.
        library: String,
        /// The loader's own words.
        detail: String,
    },

    /// The driver is there but lacks an entry point: typically one older than CUDA 11.4.
    #[error(
        "the NVIDIA driver ({driver}) has no entry point {entry}; update it to one for CUDA {since} or newer"
    )]
    MissingEntry {
        /// The entry point's name.
        entry: &'static str,
        /// The driver's version, if it could be asked.
        driver: String,
        /// The CUDA version whose drivers have it.
        since: &'static str,
    },

    /// A driver call returned an error code.
    #[error("{doing}: {call} returned {code} ({name}: {text}); {hint}")]
    Call {
        /// What the library was doing, with kernel names and sizes.
        doing: String,
        /// The driver's entry point.
        call: &'static str,
        /// The `CUresult` it returned.
        code: c_int,
        /// The code's name, such as `CUDA_ERROR_OUT_OF_MEMORY`.
        name: String,
        /// The driver's description of the code.
        text: String,
        /// What to do about it.
        hint: &'static str,
    },

    /// No embedded PTX runs on this GPU.
    #[error(
        "no kernels for {device} (compute capability {}.{}): this build carries PTX for {available}; use a GPU of capability 8.0 or newer, or the cpu backend",
        capability.0, capability.1
    )]
    UnsupportedDevice {
        /// The GPU's name.
        device: String,
        /// Its compute capability.
        capability: (u32, u32),
        /// The targets this build carries.
        available: String,
    },

    /// The driver refused the PTX, or failed to compile it.
    #[error(transparent)]
    Jit(Box<JitError>),

    /// The loaded code and the library's table of kernels disagree: typically PTX from another version of the device
    /// crate.
    #[error(
        "kernel {kernel}: {what}: expected {expected}, got {got}; rebuild the PTX with `cargo xtask build-ptx`"
    )]
    KernelAbi {
        /// The kernel's entry name.
        kernel: String,
        /// Which part disagrees.
        what: String,
        /// What the library's table says.
        expected: String,
        /// What was found.
        got: String,
    },

    /// A request to this layer that no driver call could serve.
    #[error("{argument}: expected {expected}, got {got}; {hint}")]
    Argument {
        /// The argument's name.
        argument: &'static str,
        /// What it must be.
        expected: String,
        /// What it was.
        got: String,
        /// What to do about it.
        hint: &'static str,
    },
}

/// The driver refused the PTX, or failed to compile it: typically a driver older than the PTX.
#[derive(Debug, Clone, thiserror::Error)]
#[error(
    "the driver could not load {ptx} (.version {ptx_version}, .target {target}) on {device} (compute capability {}.{}, driver for CUDA {driver}): {code} ({name}); {hint}{}",
    capability.0, capability.1, fmt_log(log)
)]
pub struct JitError {
    /// The PTX's file name.
    pub ptx: String,
    /// Its `.version`.
    pub ptx_version: String,
    /// Its `.target`.
    pub target: String,
    /// The GPU's name.
    pub device: String,
    /// The GPU's compute capability.
    pub capability: (u32, u32),
    /// The CUDA version that the driver supports.
    pub driver: DriverVersion,
    /// The `CUresult`.
    pub code: c_int,
    /// The code's name.
    pub name: String,
    /// What to do about it.
    pub hint: &'static str,
    /// The JIT compiler's log, empty if it said nothing.
    pub log: String,
}

/// The CUDA version a driver supports, as `cuDriverGetVersion` reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DriverVersion {
    /// 12 of CUDA 12.4.
    pub major: u32,
    /// 4 of CUDA 12.4.
    pub minor: u32,
}

impl DriverVersion {
    /// From the driver's own number, `1000 * major + 10 * minor`.
    pub(crate) fn from_number(n: c_int) -> Self {
        let n = n.max(0) as u32;
        Self {
            major: n / 1000,
            minor: n % 1000 / 10,
        }
    }
}

impl std::fmt::Display for DriverVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl DriverError {
    /// No driver, or one without a usable GPU: what "auto" backends fall back on.
    pub fn is_no_driver(&self) -> bool {
        matches!(self, Self::NoDriver { .. }) || self.has_code(&[NO_DEVICE, STUB_LIBRARY])
    }

    /// The driver is too old: for the entry points used here, or for the PTX.
    pub fn is_old_driver(&self) -> bool {
        matches!(self, Self::MissingEntry { .. }) || self.has_code(&[UNSUPPORTED_PTX_VERSION])
    }

    /// The GPU or the driver does not take this build's PTX.
    pub fn is_unsupported_ptx(&self) -> bool {
        matches!(self, Self::UnsupportedDevice { .. })
            || self.has_code(&[NO_BINARY_FOR_GPU, UNSUPPORTED_PTX_VERSION])
    }

    /// The GPU has too little free memory.
    pub fn is_out_of_memory(&self) -> bool {
        self.has_code(&[OUT_OF_MEMORY])
    }

    /// The call is not allowed while the stream is being captured in a graph.
    pub fn is_capture_violation(&self) -> bool {
        self.code().is_some_and(|c| (900..=908).contains(&c))
    }

    /// The context is unusable from now on: every later call in it fails too.
    pub fn is_context_lost(&self) -> bool {
        self.code()
            .is_some_and(|c| matches!(c, 700 | 702 | 709 | 710 | 714..=719))
    }

    /// The driver's code, where there is one.
    pub fn code(&self) -> Option<c_int> {
        match self {
            Self::Call { code, .. } => Some(*code),
            Self::Jit(error) => Some(error.code),
            _ => None,
        }
    }

    fn has_code(&self, codes: &[c_int]) -> bool {
        self.code().is_some_and(|c| codes.contains(&c))
    }
}

/// Of a text that is no PTX.
pub(super) const PTX_HINT: &str = "give a file that `cargo xtask build-ptx` wrote";

pub(crate) const OUT_OF_MEMORY: c_int = 2;
pub(crate) const STUB_LIBRARY: c_int = 34;
pub(crate) const NO_DEVICE: c_int = 100;
pub(crate) const NO_BINARY_FOR_GPU: c_int = 209;
pub(crate) const UNSUPPORTED_PTX_VERSION: c_int = 222;

/// What to do about a code. The codes are the driver API's `CUresult`; ones newer than this list get the last line.
pub(crate) fn hint(code: c_int) -> &'static str {
    match code {
        1 => "this is a bug of this library or a bad handle: please report it",
        OUT_OF_MEMORY => {
            "free GPU memory, or lower max_num_reqs, max_model_len or corpus_tokens (memory_bytes says how much they take)"
        }
        3 | 4 => "the driver is not initialised, or the process is ending",
        STUB_LIBRARY => {
            "the library found is the CUDA toolkit's link stub, not a driver: take its folder out of LD_LIBRARY_PATH"
        }
        46 => "the GPU is in exclusive mode and in use by another process",
        NO_DEVICE => "no GPU is visible: look at CUDA_VISIBLE_DEVICES and nvidia-smi",
        101 => "there is no GPU with this ordinal: nvidia-smi -L lists them",
        200 | 218 => "the driver finds the PTX malformed: rebuild it with `cargo xtask build-ptx`",
        201 | 709 => "the context handle is not a live context of this process",
        NO_BINARY_FOR_GPU => "this GPU needs another PTX target",
        220 => "an NVLink failed: look at nvidia-smi nvlink -e and the system's log",
        221 => "the driver has no JIT compiler: install the full driver package",
        UNSUPPORTED_PTX_VERSION => {
            "the driver is older than the PTX: update the driver, or rebuild the PTX with an older .version"
        }
        304 => "the operating system refused: look at the permissions of /dev/nvidia*",
        400 => "a handle (stream, event or graph) is not a live handle of this context",
        500 => "a symbol is missing from the loaded PTX: rebuild it with `cargo xtask build-ptx`",
        700 => {
            "a kernel accessed memory out of bounds, typically through a device pointer or length that is not what it was said to be; the context is lost"
        }
        701 => "the launch needs more registers or shared memory than the GPU has",
        719 | 702 | 710 | 714..=718 => {
            "a kernel failed; the context is lost, and the process should end"
        }
        801 => "the GPU or the driver does not support this",
        802 | 803 => {
            "the GPU system is not ready: check the driver and, on HGX, the fabric manager"
        }
        900..=908 => {
            "this is not allowed while a stream is being captured: do it before or after the capture"
        }
        _ => "see the CUDA driver API's list of CUresult",
    }
}

fn fmt_log(log: &str) -> String {
    if log.is_empty() {
        String::new()
    } else {
        format!("\nthe JIT's log:\n{log}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(code: c_int) -> DriverError {
        DriverError::Call {
            doing: "testing".into(),
            call: "cuTest",
            code,
            name: "CUDA_ERROR_TEST".into(),
            text: "a test".into(),
            hint: hint(code),
        }
    }

    #[test]
    fn predicates_follow_the_codes() {
        assert!(call(NO_DEVICE).is_no_driver());
        assert!(call(OUT_OF_MEMORY).is_out_of_memory());
        assert!(call(UNSUPPORTED_PTX_VERSION).is_unsupported_ptx());
        assert!(call(UNSUPPORTED_PTX_VERSION).is_old_driver());
        assert!(call(NO_BINARY_FOR_GPU).is_unsupported_ptx());
        assert!(call(900).is_capture_violation());
        assert!(call(700).is_context_lost());
        let other = call(1);
        assert!(!other.is_no_driver() && !other.is_out_of_memory());
        assert!(!other.is_unsupported_ptx() && !other.is_context_lost());
    }

    #[test]
    fn a_message_names_the_deed_the_call_the_code_and_the_cure() {
        let text = call(2).to_string();
        for part in [
            "testing",
            "cuTest",
            "2",
            "CUDA_ERROR_TEST",
            "free GPU memory",
        ] {
            assert!(text.contains(part), "{text:?} lacks {part:?}");
        }
    }

    #[test]
    fn a_version_is_read_from_the_drivers_number() {
        assert_eq!(DriverVersion::from_number(12040).to_string(), "12.4");
        assert_eq!(DriverVersion::from_number(13000).to_string(), "13.0");
    }
}
