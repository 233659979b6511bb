//! PTX: which one this GPU takes, and loading it.

use std::ffi::{CString, c_int, c_void};
use std::sync::Arc;

use cust::sys::{CUfunction, CUmodule};

use super::error::{JitError, hint};
use super::{Context, Device, DriverError};
use crate::ptx;

/// One PTX text and what its header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ptx<'a> {
    /// The file's name, for messages.
    pub name: &'a str,
    /// `.version`, such as `7.0`.
    pub version: &'a str,
    /// `.target`, such as `sm_90a`.
    pub target: &'a str,
    /// The text.
    pub text: &'a str,
}

impl<'a> Ptx<'a> {
    /// Reads the header of a PTX text.
    ///
    /// # Errors
    /// [`DriverError::Argument`] if there is no `.version` or no `.target sm_…`.
    pub fn parse(name: &'a str, text: &'a str) -> Result<Self, DriverError> {
        let directive = |key: &'static str| {
            text.lines()
                .filter_map(|line| line.trim().strip_prefix(key))
                .filter_map(|rest| rest.trim().split([',', ' ']).next())
                .find(|value| !value.is_empty())
                .ok_or_else(|| DriverError::Argument {
                    argument: "ptx",
                    expected: format!("a text with a {key} line"),
                    got: format!("{name} without one"),
                })
        };
        let ptx = Self {
            name,
            version: directive(".version ")?,
            target: directive(".target ")?,
            text,
        };
        match ptx.capability() {
            Some(_) => Ok(ptx),
            None => Err(DriverError::Argument {
                argument: "ptx",
                expected: "a .target such as sm_80 or sm_90a".into(),
                got: format!("{} in {name}", ptx.target),
            }),
        }
    }

    /// The compute capability it is for, and whether it runs on that one only (`sm_90a`) or on all later ones too
    /// (`sm_80`).
    pub fn capability(&self) -> Option<((u32, u32), bool)> {
        let digits = self.target.strip_prefix("sm_")?;
        let exact = digits.ends_with('a');
        let number: u32 = digits.trim_end_matches('a').parse().ok()?;
        Some(((number / 10, number % 10), exact))
    }

    /// Whether a GPU of this compute capability takes it.
    pub fn runs_on(&self, capability: (u32, u32)) -> bool {
        match self.capability() {
            Some((own, true)) => own == capability,
            Some((own, false)) => own <= capability,
            None => false,
        }
    }

    /// The best of `all` for this GPU: the highest capability it takes, one made for it alone first.
    ///
    /// # Errors
    /// [`DriverError::UnsupportedDevice`] if it takes none.
    pub fn pick(all: &[Self], device: &Device) -> Result<Self, DriverError> {
        Self::best(all, device.capability()).ok_or_else(|| DriverError::UnsupportedDevice {
            device: device.name().into(),
            capability: device.capability(),
            available: match all {
                [] => "no target at all".into(),
                _ => all.iter().map(|p| p.target).collect::<Vec<_>>().join(", "),
            },
        })
    }

    fn best(all: &[Self], capability: (u32, u32)) -> Option<Self> {
        all.iter()
            .filter(|ptx| ptx.runs_on(capability))
            .max_by_key(|ptx| ptx.capability())
            .copied()
    }
}

impl Ptx<'static> {
    /// All that the library carries.
    ///
    /// # Errors
    /// Those of [`parse`](Self::parse): none, for a library that was built whole.
    pub fn built_in() -> Result<Vec<Self>, DriverError> {
        let parse = |&(name, text)| Self::parse(name, text);
        ptx::BUILT_IN.iter().map(parse).collect()
    }
}

/// Kernels loaded in a context. Cheap to clone; unloaded with the last clone and the last function.
#[derive(Clone)]
pub struct Module {
    inner: Arc<Inner>,
}

struct Inner {
    context: Context,
    raw: CUmodule,
    target: String,
    capability: (u32, u32),
}

// SAFETY: a module handle may be used from any thread; each call makes its context current first.
unsafe impl Send for Inner {}
// SAFETY: as above; the struct is not changed after construction.
unsafe impl Sync for Inner {}

impl Module {
    /// Loads the best of the PTX that the library carries, or the file that `SPECDRAFT_PTX` names. A driver that is too old for the
    /// best one (that for Hopper takes CUDA 12.3) gets the next.
    ///
    /// # Errors
    /// Those of [`Ptx::pick`] and [`load`](Self::load); a file that cannot be read.
    pub fn built_in(context: &Context) -> Result<Self, DriverError> {
        let texts = ptx::candidates().map_err(|(path, error)| DriverError::Argument {
            argument: ptx::OVERRIDE,
            expected: "a PTX file that can be read".into(),
            got: format!("{}: {error}", path.display()),
        })?;
        let parsed = texts.iter().map(|ptx| Ptx::parse(&ptx.name, &ptx.text));
        let all: Vec<_> = parsed.collect::<Result<_, _>>()?;
        let best = Ptx::pick(&all, context.device())?;
        match Self::load(context, best) {
            Err(error) if error.is_old_driver() => {
                let others: Vec<_> = all.into_iter().filter(|ptx| *ptx != best).collect();
                let next = Ptx::pick(&others, context.device());
                next.and_then(|next| Self::load(context, next))
                    .map_err(|_| error)
            }
            loaded => loaded,
        }
    }

    /// Loads a PTX text: the driver compiles it for the GPU (and keeps the result in its own cache on disk).
    ///
    /// # Errors
    /// [`DriverError::Jit`] with the GPU, the driver's and the PTX's versions and the JIT's log.
    pub fn load(context: &Context, ptx: Ptx<'_>) -> Result<Self, DriverError> {
        let text = CString::new(ptx.text).map_err(|e| DriverError::Argument {
            argument: "ptx",
            expected: "a text without a nul".into(),
            got: format!("one at byte {} of {}", e.nul_position(), ptx.name),
        })?;
        let driver = context.driver();
        let _current = context.enter()?;
        let mut error_log = vec![0u8; LOG_BYTES];
        let mut info_log = vec![0u8; LOG_BYTES];
        // Each value is an address or a number of its own, in a pointer-sized cell.
        let size = std::ptr::without_provenance_mut::<c_void>(LOG_BYTES);
        let mut options = [
            JIT_INFO_LOG,
            JIT_INFO_LOG_SIZE,
            JIT_ERROR_LOG,
            JIT_ERROR_LOG_SIZE,
        ];
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
        if code != 0 {
            let device = context.device();
            return Err(DriverError::Jit(Box::new(JitError {
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
            })));
        }
        Ok(Self {
            inner: Arc::new(Inner {
                context: context.clone(),
                raw,
                target: ptx.target.into(),
                capability: ptx.capability().map_or((0, 0), |(c, _)| c),
            }),
        })
    }

    /// The `.target` that was loaded.
    pub fn target(&self) -> &str {
        &self.inner.target
    }

    /// The context it is loaded in.
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// Whether its kernels wait for the work before them by themselves (`griddepcontrol`, from sm_90 on), so that
    /// they may be launched while that work still runs.
    pub fn has_dependent_launch(&self) -> bool {
        self.inner.capability >= (9, 0)
    }

    pub(crate) fn function(&self, name: &'static str) -> Result<CUfunction, DriverError> {
        let driver = self.inner.context.driver();
        let symbol = CString::new(name).map_err(|_| DriverError::Argument {
            argument: "name",
            expected: "a name without a nul".into(),
            got: name.into(),
        })?;
        let mut raw: CUfunction = std::ptr::null_mut();
        // SAFETY: the module is loaded, the name ends in a nul, the call writes one handle.
        let code = unsafe {
            (driver.api().cuModuleGetFunction)(&raw mut raw, self.inner.raw, symbol.as_ptr())
        };
        driver.check("cuModuleGetFunction", code, || {
            format!("looking up kernel {name} in the {} PTX", self.inner.target)
        })?;
        Ok(raw)
    }
}

impl std::fmt::Debug for Module {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Module({})", self.inner.target)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let Ok(_current) = self.context.enter() else {
            return;
        };
        let api = self.context.driver().api();
        // SAFETY: loaded here, unloaded once, after the kernels that may still run. Errors leave nothing to do.
        unsafe {
            let _ = (api.cuCtxSynchronize)();
            let _ = (api.cuModuleUnload)(self.raw);
        }
    }
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
const JIT_INFO_LOG: c_int = 3;
const JIT_INFO_LOG_SIZE: c_int = 4;
const JIT_ERROR_LOG: c_int = 5;
const JIT_ERROR_LOG_SIZE: c_int = 6;

#[cfg(test)]
mod tests {
    use super::*;

    const SM80: &str = "//\n.version 7.0\n.target sm_80\n.address_size 64\n";
    const SM90A: &str = "//\n.version 8.0\n.target sm_90a, debug\n.address_size 64\n";

    #[test]
    fn a_header_is_read() {
        let ptx = Ptx::parse("a", SM90A).unwrap();
        assert_eq!((ptx.version, ptx.target), ("8.0", "sm_90a"));
        assert_eq!(ptx.capability(), Some(((9, 0), true)));
    }

    #[test]
    fn a_text_without_a_header_is_an_error() {
        for text in ["", ".version 7.0\n", ".version 7.0\n.target nothing\n"] {
            let error = Ptx::parse("a.ptx", text).unwrap_err().to_string();
            assert!(error.contains("a.ptx"), "{error}");
        }
    }

    #[test]
    fn the_best_ptx_follows_the_capability() {
        let all = [
            Ptx::parse("a", SM80).unwrap(),
            Ptx::parse("b", SM90A).unwrap(),
        ];
        let target = |capability| Ptx::best(&all, capability).map(|p| p.target);
        assert_eq!(target((7, 5)), None);
        assert_eq!(target((8, 0)), Some("sm_80"));
        assert_eq!(target((8, 9)), Some("sm_80"));
        assert_eq!(target((9, 0)), Some("sm_90a"));
        assert_eq!(target((10, 0)), Some("sm_80"));
        assert_eq!(target((12, 1)), Some("sm_80"));
    }
}
