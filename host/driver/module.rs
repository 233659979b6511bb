//! PTX: which one this GPU takes, and loading it.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex, PoisonError};

use cust::sys::{CUfunction, CUmodule};

use super::entries::Entries;
use super::error::PTX_HINT;
use super::{Context, Device, DriverError, jit};
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
                    hint: PTX_HINT,
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
                hint: PTX_HINT,
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

/// A PTX text for one context, whose kernels are compiled as they are looked up: each alone, once. Cheap to clone; unloaded with the last
/// clone and the last function.
#[derive(Clone)]
pub struct Module {
    inner: Arc<Inner>,
}

struct Inner {
    context: Context,
    entries: Entries,
    name: String,
    version: String,
    target: String,
    capability: (u32, u32),
    /// By kernel.
    loaded: Mutex<HashMap<&'static str, CUmodule>>,
}

// SAFETY: a module handle may be used from any thread; each call makes its context current first.
unsafe impl Send for Inner {}
// SAFETY: as above; what changes is behind a lock.
unsafe impl Sync for Inner {}

impl Module {
    /// The best of the PTX that the library carries, or the file that the variable `SPECDRAFT_PTX` names, whose code is trusted as
    /// `LD_PRELOAD`'s is. A driver that is too old for the
    /// best one (that for Hopper takes CUDA 12.3) gets the next.
    ///
    /// # Errors
    /// Those of [`Ptx::pick`] and [`load`](Self::load); a file that cannot be read.
    pub fn built_in(context: &Context) -> Result<Self, DriverError> {
        let texts = ptx::candidates().map_err(|(path, error)| DriverError::Argument {
            argument: ptx::OVERRIDE,
            expected: "a PTX file that can be read".into(),
            got: format!("{}: {error}", path.display()),
            hint: "name a file of `cargo xtask build-ptx`, or unset the variable",
        })?;
        let parsed = texts.iter().map(|ptx| Ptx::parse(&ptx.name, &ptx.text));
        let all: Vec<_> = parsed.collect::<Result<_, _>>()?;
        let best = Ptx::pick(&all, context.device())?;
        // SAFETY: this crate's own texts, or the file that the user of the process vouches for in naming it.
        match unsafe { Self::load(context, best) } {
            Err(error) if error.is_old_driver() => {
                let others: Vec<_> = all.into_iter().filter(|ptx| *ptx != best).collect();
                let next = Ptx::pick(&others, context.device());
                // SAFETY: as above.
                next.and_then(|next| unsafe { Self::load(context, next) })
                    .map_err(|_| error)
            }
            loaded => loaded,
        }
    }

    /// A PTX text that the driver takes: it is given all but the kernels.
    ///
    /// # Safety
    /// - The text is of this version's device crate: its kernels keep to the arrays that they are given.
    ///
    /// # Errors
    /// [`DriverError::Jit`] with the GPU, the driver's and the PTX's versions and the JIT's log.
    pub unsafe fn load(context: &Context, ptx: Ptx<'_>) -> Result<Self, DriverError> {
        let entries = Entries::cut(ptx.text);
        let tried = jit::load(context, ptx, entries.common())?;
        // SAFETY: loaded just now in this context, and used by nothing.
        unsafe { jit::unload(context, tried)? };
        Ok(Self {
            inner: Arc::new(Inner {
                context: context.clone(),
                entries,
                name: ptx.name.into(),
                version: ptx.version.into(),
                target: ptx.target.into(),
                capability: ptx.capability().map_or((0, 0), |(c, _)| c),
                loaded: Mutex::default(),
            }),
        })
    }

    /// The `.target` of the text.
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

    /// Whether the text has such a kernel.
    ///
    /// # Errors
    /// [`DriverError::KernelAbi`] if it has not.
    pub(crate) fn holds(&self, kernel: &str) -> Result<(), DriverError> {
        match self.inner.entries.holds(kernel) {
            true => Ok(()),
            false => Err(self.inner.lacks(kernel)),
        }
    }

    /// A kernel, which the driver compiles now (or finds in its own cache on disk), unless it has done so before.
    pub(crate) fn function(&self, name: &'static str) -> Result<CUfunction, DriverError> {
        let driver = self.inner.context.driver();
        let module = self.inner.module_of(name)?;
        let symbol = CString::new(name).map_err(|_| DriverError::Argument {
            argument: "name",
            expected: "a name without a nul".into(),
            got: name.into(),
            hint: "name a kernel of the device crate",
        })?;
        let mut raw: CUfunction = std::ptr::null_mut();
        // SAFETY: the module is loaded, the name ends in a nul, the call writes one handle.
        let code =
            unsafe { (driver.api().cuModuleGetFunction)(&raw mut raw, module, symbol.as_ptr()) };
        driver.check("cuModuleGetFunction", code, || {
            format!("looking up kernel {name} in the {} PTX", self.inner.target)
        })?;
        Ok(raw)
    }
}

impl Inner {
    fn module_of(&self, kernel: &'static str) -> Result<CUmodule, DriverError> {
        // Nothing panics while the lock is held.
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&module) = loaded.get(kernel) {
            return Ok(module);
        }
        let text = self.entries.alone(kernel);
        let text = text.ok_or_else(|| self.lacks(kernel))?;
        let ptx = Ptx {
            name: &self.name,
            version: &self.version,
            target: &self.target,
            text: &text,
        };
        let module = jit::load(&self.context, ptx, &text)?;
        loaded.insert(kernel, module);
        Ok(module)
    }

    fn lacks(&self, kernel: &str) -> DriverError {
        DriverError::KernelAbi {
            kernel: kernel.into(),
            what: "PTX".into(),
            expected: "an entry of that name".into(),
            got: format!("none in {}", self.name),
        }
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
        // After the kernels that may still run. Errors leave nothing to do.
        // SAFETY: a call without arguments.
        let _ = unsafe { (self.context.driver().api().cuCtxSynchronize)() };
        let loaded = self
            .loaded
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        for module in std::mem::take(loaded).into_values() {
            // SAFETY: loaded in this context; what had its kernels held this object.
            let _ = unsafe { jit::unload(&self.context, module) };
        }
    }
}

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
