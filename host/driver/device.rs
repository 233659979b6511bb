//! The driver and the GPUs it shows.

use std::error::Error;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Arc, OnceLock};

use cust::sys::CUdevice;

use super::DriverError;
use super::api::Api;
use super::error::{DriverVersion, hint};

/// The NVIDIA driver, loaded at run time. Cheap to clone.
#[derive(Clone)]
pub struct Driver {
    api: Arc<Api>,
    version: DriverVersion,
}

impl Driver {
    /// Loads `libcuda.so.1` (`nvcuda.dll` on Windows) and initialises it; a second call gives the same driver.
    ///
    /// # Errors
    /// [`DriverError::NoDriver`] without a driver, [`DriverError::MissingEntry`] for one too old, and the driver's own
    /// error if it does not initialise (no GPU visible, say).
    pub fn load() -> Result<Self, DriverError> {
        static LOADED: OnceLock<Driver> = OnceLock::new();
        if let Some(driver) = LOADED.get() {
            return Ok(driver.clone());
        }
        let name = if cfg!(windows) {
            "nvcuda.dll"
        } else {
            "libcuda.so.1"
        };
        let driver = Self::load_from(name)?;
        Ok(LOADED.get_or_init(|| driver).clone())
    }

    /// Takes the driver's entry points from `lookup`, which gives a symbol's address or null: for engines that have
    /// the driver loaded already, for interception layers and for tests.
    ///
    /// # Safety
    /// - For each name the address is null or a function with the signature that the CUDA driver API gives that name
    ///   (CUDA 11.4 or newer).
    /// - The functions stay callable for the rest of the process.
    pub unsafe fn from_lookup(
        lookup: &dyn Fn(&CStr) -> *const c_void,
    ) -> Result<Self, DriverError> {
        // SAFETY: passed on to the caller.
        let api = Arc::new(unsafe { Api::resolve(lookup) }?);
        let mut driver = Self {
            api,
            version: DriverVersion::from_number(0),
        };
        // SAFETY: cuInit takes no pointers and may be called again.
        driver.check("cuInit", unsafe { (driver.api.cuInit)(0) }, || {
            "initialising the driver".into()
        })?;
        let mut number = 0;
        // SAFETY: the call writes one int.
        let code = unsafe { (driver.api.cuDriverGetVersion)(&raw mut number) };
        driver.check("cuDriverGetVersion", code, || {
            "asking the driver's version".into()
        })?;
        driver.version = DriverVersion::from_number(number);
        Ok(driver)
    }

    /// The CUDA version that the driver supports.
    pub fn version(&self) -> DriverVersion {
        self.version
    }

    /// How many GPUs are visible.
    pub fn device_count(&self) -> Result<usize, DriverError> {
        let mut count = 0;
        // SAFETY: the call writes one int.
        let code = unsafe { (self.api.cuDeviceGetCount)(&raw mut count) };
        self.check("cuDeviceGetCount", code, || "counting the GPUs".into())?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// The GPU with this ordinal (after `CUDA_VISIBLE_DEVICES`).
    pub fn device(&self, ordinal: usize) -> Result<Device, DriverError> {
        let mut raw: CUdevice = 0;
        let number = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
        // SAFETY: the call writes one handle.
        let code = unsafe { (self.api.cuDeviceGet)(&raw mut raw, number) };
        self.check("cuDeviceGet", code, || format!("opening GPU {ordinal}"))?;
        Device::query(self.clone(), raw)
    }

    /// All visible GPUs.
    pub fn devices(&self) -> Result<Vec<Device>, DriverError> {
        (0..self.device_count()?).map(|i| self.device(i)).collect()
    }

    pub(crate) fn api(&self) -> &Api {
        &self.api
    }

    /// Turns a code into a result; `doing` is only called for an error.
    pub(crate) fn check(
        &self,
        call: &'static str,
        code: c_int,
        doing: impl FnOnce() -> String,
    ) -> Result<(), DriverError> {
        if code == 0 {
            return Ok(());
        }
        Err(DriverError::Call {
            doing: doing(),
            call,
            code,
            name: self.code_name(code),
            text: self.text(self.api.cuGetErrorString, code),
            hint: hint(code),
        })
    }

    pub(crate) fn code_name(&self, code: c_int) -> String {
        self.text(self.api.cuGetErrorName, code)
    }

    fn load_from(name: &str) -> Result<Self, DriverError> {
        // SAFETY: loading the driver runs its initialisers, as every CUDA program does.
        let library = unsafe { libloading::Library::new(name) };
        let library = library.map_err(|error| DriverError::NoDriver {
            library: name.into(),
            // The loader's words are in the source.
            detail: error.source().map_or(error.to_string(), |s| s.to_string()),
        })?;
        let lookup = |symbol: &CStr| {
            // SAFETY: the symbol is only taken as an address here.
            let found = unsafe { library.get::<*const c_void>(symbol.to_bytes_with_nul()) };
            found.map_or(std::ptr::null(), |address| *address)
        };
        // SAFETY: the symbols are those of NVIDIA's driver, whose signatures are fixed by name, and the library stays
        // loaded (next line).
        let driver = unsafe { Self::from_lookup(&lookup) };
        // Contexts and the driver's threads outlive every handle of ours.
        std::mem::forget(library);
        driver
    }

    fn text(
        &self,
        get: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int,
        code: c_int,
    ) -> String {
        let mut text = std::ptr::null();
        // SAFETY: the call writes one pointer, to a static string or null.
        let found = unsafe { get(code, &raw mut text) } == 0 && !text.is_null();
        if found {
            // SAFETY: not null, and the driver's strings are static and end in a nul.
            unsafe { CStr::from_ptr(text) }
                .to_string_lossy()
                .into_owned()
        } else {
            "a code this driver has no text for".into()
        }
    }
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Driver(CUDA {})", self.version)
    }
}

/// A GPU, and what launches need to know of it.
#[derive(Clone, Debug)]
pub struct Device {
    driver: Driver,
    raw: CUdevice,
    name: String,
    capability: (u32, u32),
    multiprocessors: u32,
    total_memory: u64,
}

impl Device {
    /// The marketing name, such as `NVIDIA H200`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The compute capability, (9, 0) for an H200.
    pub fn capability(&self) -> (u32, u32) {
        self.capability
    }

    /// How many multiprocessors it has.
    pub fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    /// Its memory in bytes.
    pub fn total_memory(&self) -> u64 {
        self.total_memory
    }

    /// The highest SM clock in kHz, if the driver says.
    pub fn clock_khz(&self) -> Option<u32> {
        self.attribute(ATTRIBUTE_CLOCK_RATE).ok()
    }

    /// The largest dynamic shared memory a block may opt in to, in bytes.
    pub fn max_shared_memory(&self) -> Result<u32, DriverError> {
        self.attribute(ATTRIBUTE_MAX_SHARED_OPTIN)
    }

    /// Whether it can run all blocks of a launch at the same time, if asked to.
    pub fn has_cooperative_launch(&self) -> Result<bool, DriverError> {
        Ok(self.attribute(ATTRIBUTE_COOPERATIVE_LAUNCH)? != 0)
    }

    /// The driver that shows it.
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    pub(crate) fn raw(&self) -> CUdevice {
        self.raw
    }

    pub(crate) fn query(driver: Driver, raw: CUdevice) -> Result<Self, DriverError> {
        let mut name = [0 as c_char; 256];
        // SAFETY: the call writes at most 256 bytes, the last one a nul.
        let code = unsafe { (driver.api.cuDeviceGetName)(name.as_mut_ptr(), 256, raw) };
        driver.check("cuDeviceGetName", code, || "asking a GPU's name".into())?;
        name[255] = 0;
        // SAFETY: the array ends in a nul.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }
            .to_string_lossy()
            .into_owned();
        let mut bytes = 0usize;
        // SAFETY: the call writes one size.
        let code = unsafe { (driver.api.cuDeviceTotalMem_v2)(&raw mut bytes, raw) };
        driver.check("cuDeviceTotalMem_v2", code, || {
            format!("asking {name}'s memory")
        })?;
        let mut device = Self {
            driver,
            raw,
            name,
            capability: (0, 0),
            multiprocessors: 0,
            total_memory: bytes as u64,
        };
        device.capability = (
            device.attribute(ATTRIBUTE_CAPABILITY_MAJOR)?,
            device.attribute(ATTRIBUTE_CAPABILITY_MINOR)?,
        );
        device.multiprocessors = device.attribute(ATTRIBUTE_MULTIPROCESSORS)?;
        Ok(device)
    }

    fn attribute(&self, attribute: c_int) -> Result<u32, DriverError> {
        let mut value = 0;
        // SAFETY: the call writes one int.
        let code =
            unsafe { (self.driver.api.cuDeviceGetAttribute)(&raw mut value, attribute, self.raw) };
        self.driver.check("cuDeviceGetAttribute", code, || {
            format!("asking attribute {attribute} of {}", self.name)
        })?;
        Ok(u32::try_from(value).unwrap_or(0))
    }
}

// CUdevice_attribute
const ATTRIBUTE_CLOCK_RATE: c_int = 13;
const ATTRIBUTE_MULTIPROCESSORS: c_int = 16;
const ATTRIBUTE_CAPABILITY_MAJOR: c_int = 75;
const ATTRIBUTE_CAPABILITY_MINOR: c_int = 76;
const ATTRIBUTE_COOPERATIVE_LAUNCH: c_int = 95;
const ATTRIBUTE_MAX_SHARED_OPTIN: c_int = 97;
