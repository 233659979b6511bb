//! Launches: a kernel is checked against the ABI table once, then only enqueued.

mod function;

use std::ffi::{c_int, c_uint, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use cuda_std::Kernel;
use cust::sys::CUfunction;

use super::api::{LaunchAttributeRaw, LaunchConfigRaw};
use super::{Driver, DriverError, Module, Stream};
use function::{
    FUNC_LOCAL, FUNC_MAX_THREADS, FUNC_REGISTERS, FUNC_SHARED, FUNC_SHARED_CARVEOUT,
    allow_shared_bytes, attribute, check_code, load_now, set_attribute,
};

/// The shape of one launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchShape {
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block in x; y and z are 1.
    pub threads: u32,
    /// Dynamic shared memory in bytes.
    pub shared_bytes: u32,
    /// Whether the kernel may start while the work before it on the stream still runs (programmatic dependent
    /// launch). It is ignored where the loaded PTX does not wait by itself ([`Module::has_dependent_launch`]) or the
    /// driver is older than CUDA 11.8.
    pub dependent: bool,
}

/// A kernel of `N` parameters, checked against the ABI table: launching it needs no further checks.
///
/// An argument is a word: a scalar or a device address in its low bits, as [`cuda_std::KernelParam::to_word`] puts it
/// there.
pub struct PreparedKernel<const N: usize> {
    module: Module,
    kernel: Kernel,
    may_depend: bool,
    /// Dynamic shared memory that launches are allowed, if more than by themselves.
    shared_bytes: AtomicU32,
    /// Whether to ask for all shared memory of a multiprocessor.
    keeps_company: AtomicBool,
    code: OnceLock<Code>,
}

/// A compiled kernel.
struct Code {
    raw: CUfunction,
    max_threads: u32,
}

// SAFETY: a function handle may be used from any thread and lives as long as the module, which is held beside it.
unsafe impl Send for Code {}
// SAFETY: as above; nothing is changed after construction but by driver calls, which are thread-safe.
unsafe impl Sync for Code {}

impl<const N: usize> PreparedKernel<N> {
    /// Looks the kernel up, checks `N` against the ABI table, and the table against the compiled code where the driver can tell.
    ///
    /// # Errors
    /// [`DriverError::KernelAbi`] where they disagree, or the module has no such kernel; [`DriverError::Jit`].
    pub fn new(module: &Module, kernel: &Kernel) -> Result<Self, DriverError> {
        let kernel = Self::deferred(module, kernel)?;
        kernel.compile()?;
        Ok(kernel)
    }

    /// As [`new`](Self::new), for a kernel that may never be used: the driver is to compile it by [`compile`](Self::compile). A launch
    /// or a question about the kernel does that too, but is no longer a matter of microseconds then, nor fit for a captured stream.
    ///
    /// # Errors
    /// [`DriverError::KernelAbi`] where `N` and the table disagree, or the module has no such kernel.
    pub fn deferred(module: &Module, kernel: &Kernel) -> Result<Self, DriverError> {
        if kernel.params.len() != N {
            return Err(DriverError::KernelAbi {
                kernel: kernel.name.into(),
                what: "number of arguments".into(),
                expected: kernel.params.len().to_string(),
                got: N.to_string(),
            });
        }
        module.holds(kernel.name)?;
        let driver = module.context().driver();
        Ok(Self {
            module: module.clone(),
            kernel: *kernel,
            may_depend: module.has_dependent_launch() && driver.api().cuLaunchKernelEx.is_some(),
            shared_bytes: AtomicU32::new(0),
            keeps_company: AtomicBool::new(false),
            code: OnceLock::new(),
        })
    }

    /// The kernel's entry name.
    pub fn name(&self) -> &'static str {
        self.kernel.name
    }

    /// Has the driver compile the kernel, unless it has done so before: half a second for the largest the first time on a machine, a
    /// millisecond from the driver's cache.
    ///
    /// # Errors
    /// [`DriverError::Jit`]; [`DriverError::KernelAbi`] where the code is not what the ABI table says.
    pub fn compile(&self) -> Result<(), DriverError> {
        self.code().map(drop)
    }

    fn code(&self) -> Result<&Code, DriverError> {
        if let Some(code) = self.code.get() {
            return Ok(code);
        }
        // Two threads may both come here: the module compiles once, and the rest is the same twice.
        let code = self.load()?;
        Ok(self.code.get_or_init(|| code))
    }

    fn load(&self) -> Result<Code, DriverError> {
        let (context, kernel) = (self.module.context(), &self.kernel);
        let driver = context.driver();
        let _current = context.enter()?;
        let raw = self.module.function(kernel.name)?;
        check_code(driver, raw, kernel)?;
        load_now(driver, raw, kernel.name)?;
        let max_threads = attribute(driver, raw, kernel.name, FUNC_MAX_THREADS)?;
        if let Some(threads) = kernel.threads
            && max_threads < threads
        {
            return Err(DriverError::KernelAbi {
                kernel: kernel.name.into(),
                what: "threads of a block".into(),
                expected: format!("{threads}, which its code is written for"),
                got: format!("at most {max_threads} on this GPU"),
            });
        }
        let shared_bytes = self.shared_bytes.load(Relaxed);
        if shared_bytes > 0 {
            allow_shared_bytes(self.module.context(), raw, kernel.name, shared_bytes)?;
        }
        if self.keeps_company.load(Relaxed) {
            let what = || format!("asking for all shared memory for {}", kernel.name);
            set_attribute(driver, raw, FUNC_SHARED_CARVEOUT, 100, what)?;
        }
        Ok(Code { raw, max_threads })
    }

    /// Allows launches of up to `bytes` of dynamic shared memory, or of as much as the GPU has beside the kernel's own.
    ///
    /// # Errors
    /// The driver's.
    pub fn allow_shared_bytes(&self, bytes: u32) -> Result<(), DriverError> {
        self.shared_bytes.store(bytes, Relaxed);
        let Some(code) = self.code.get() else {
            return Ok(());
        };
        let context = self.module.context();
        let _current = context.enter()?;
        allow_shared_bytes(context, code.raw, self.kernel.name, bytes)
    }

    /// Asks for as much shared memory a multiprocessor as there is, also for launches that need little: to be called before the kernel is
    /// compiled.
    ///
    /// How much of its cache a multiprocessor uses as shared memory is the driver's choice for each kernel, and changes only when no block
    /// runs there. Launches that are to run beside each other have to agree on it.
    pub fn share_multiprocessors(&self) {
        debug_assert!(self.code.get().is_none(), "{}", self.kernel.name);
        self.keeps_company.store(true, Relaxed);
    }

    /// How many of its blocks run on one multiprocessor at a time.
    pub fn blocks_per_multiprocessor(
        &self,
        threads: u32,
        shared_bytes: u32,
    ) -> Result<u32, DriverError> {
        let code = self.code()?;
        let context = self.module.context();
        let driver = context.driver();
        let _current = context.enter()?;
        let mut blocks = 0;
        // SAFETY: a live function of the current context; the call writes one int.
        let code = unsafe {
            (driver.api().cuOccupancyMaxActiveBlocksPerMultiprocessor)(
                &raw mut blocks,
                code.raw,
                c_int::try_from(threads).unwrap_or(c_int::MAX),
                shared_bytes as usize,
            )
        };
        driver.check("cuOccupancyMaxActiveBlocksPerMultiprocessor", code, || {
            format!("asking the occupancy of {}", self.name())
        })?;
        Ok(u32::try_from(blocks).unwrap_or(0))
    }

    /// What the compiler made of it on this GPU.
    pub fn resources(&self) -> Result<KernelResources, DriverError> {
        let code = self.code()?;
        let context = self.module.context();
        let driver = context.driver();
        let _current = context.enter()?;
        let get = |which| attribute(driver, code.raw, self.name(), which);
        Ok(KernelResources {
            registers: get(FUNC_REGISTERS)?,
            shared_bytes: get(FUNC_SHARED)?,
            local_bytes: get(FUNC_LOCAL)?,
            max_threads: code.max_threads,
        })
    }

    /// How many clusters of `cluster` of its blocks run on the GPU at a time: 0 where there are none (below compute capability 9.0, a driver
    /// older than CUDA 11.8), or where one takes too much.
    pub fn max_clusters(
        &self,
        cluster: u32,
        threads: u32,
        shared_bytes: u32,
    ) -> Result<u32, DriverError> {
        let context = self.module.context();
        let driver = context.driver();
        let (Some(occupancy), Some(_)) = (
            driver.api().cuOccupancyMaxActiveClusters,
            driver.api().cuLaunchKernelEx,
        ) else {
            return Ok(0);
        };
        if context.device().capability() < (9, 0) {
            return Ok(0);
        }
        let code = self.code()?;
        let _current = context.enter()?;
        let attributes = [of_clusters(cluster)];
        let config = LaunchConfigRaw {
            grid: [cluster, 1, 1],
            block: [threads, 1, 1],
            shared_bytes,
            stream: std::ptr::null_mut(),
            attributes: attributes.as_ptr(),
            num_attributes: 1,
        };
        let mut clusters = 0;
        // SAFETY: a live function of the current context; the configuration and its attribute outlive the call, which writes one int.
        let code = unsafe { occupancy(&raw mut clusters, code.raw, &raw const config) };
        driver.check("cuOccupancyMaxActiveClusters", code, || {
            format!("asking how many clusters of {} fit", self.name())
        })?;
        Ok(u32::try_from(clusters).unwrap_or(0))
    }

    /// Enqueues the kernel. A grid with no block enqueues nothing.
    ///
    /// # Safety
    /// - Each of `args` has its parameter's type. Pointers and lengths are what the kernel's documentation asks for,
    ///   and stay so until the launch, and every replay of a graph that captured it, has completed.
    /// - `stream` is a stream of the module's context.
    /// - The kernel is not one for clusters.
    pub unsafe fn launch(
        &self,
        stream: Stream<'_>,
        shape: LaunchShape,
        args: [u64; N],
    ) -> Result<(), DriverError> {
        // SAFETY: the caller's contract.
        unsafe { self.launch_clusters(stream, shape, 1, args) }
    }

    /// As [`launch`](Self::launch), in clusters of `cluster` blocks in x: these run at the same time and reach each other's shared memory.
    ///
    /// # Errors
    /// [`DriverError::MissingEntry`] for clusters of several blocks and a driver older than CUDA 11.8; the driver's own.
    ///
    /// # Safety
    /// - As [`launch`](Self::launch), with the clusters that the kernel asks for.
    pub unsafe fn launch_clusters(
        &self,
        stream: Stream<'_>,
        shape: LaunchShape,
        cluster: u32,
        args: [u64; N],
    ) -> Result<(), DriverError> {
        // SAFETY: the caller's contract.
        unsafe { self.launch_with(stream, shape, (cluster, false), args) }
    }

    /// As [`launch_clusters`](Self::launch_clusters), all clusters at the same time: they may wait for each other. Whatever else
    /// runs on the GPU, none of them starts before there is room for all.
    ///
    /// # Errors
    /// As there; the driver's, where the GPU has not room enough: ask [`max_clusters`](Self::max_clusters), and
    /// [`Device::has_cooperative_launch`](super::Device::has_cooperative_launch).
    ///
    /// # Safety
    /// - As [`launch_clusters`](Self::launch_clusters).
    pub unsafe fn launch_cooperative(
        &self,
        stream: Stream<'_>,
        shape: LaunchShape,
        cluster: u32,
        args: [u64; N],
    ) -> Result<(), DriverError> {
        // SAFETY: the caller's contract.
        unsafe { self.launch_with(stream, shape, (cluster, true), args) }
    }

    /// # Safety
    /// - As [`launch_clusters`](Self::launch_clusters).
    unsafe fn launch_with(
        &self,
        stream: Stream<'_>,
        shape: LaunchShape,
        (cluster, cooperative): (u32, bool),
        mut args: [u64; N],
    ) -> Result<(), DriverError> {
        debug_assert!(
            self.kernel.threads.is_none_or(|t| t == shape.threads),
            "{} is written for blocks of {:?} threads",
            self.name(),
            self.kernel.threads
        );
        debug_assert!(cluster > 0 && shape.grid[0].is_multiple_of(cluster));
        if shape.grid.contains(&0) {
            return Ok(());
        }
        let context = self.module.context();
        let driver = context.driver();
        if (cluster > 1 || cooperative) && driver.api().cuLaunchKernelEx.is_none() {
            return Err(DriverError::MissingEntry {
                entry: "cuLaunchKernelEx",
                driver: driver.version().to_string(),
                since: "11.8",
            });
        }
        let code = self.code()?;
        debug_assert!(shape.threads > 0 && shape.threads <= code.max_threads);
        let _current = context.enter()?;
        let mut params = args.each_mut().map(|word| (&raw mut *word).cast());
        let kind = (cluster, cooperative);
        // SAFETY: one pointer a parameter (`new` checked how many), each to a word whose low bytes are the argument:
        // the hosts of NVIDIA GPUs are little-endian. The rest is this function's contract.
        let code = unsafe { self.enqueue(driver, code, stream, shape, kind, &mut params) };
        driver.check("cuLaunchKernel", code, || {
            format!(
                "launching {} on a grid of {:?}, clusters of {cluster}{}, {} threads a block, {} bytes of shared memory, on {stream:?}",
                self.name(),
                shape.grid,
                if cooperative { " all at once" } else { "" },
                shape.threads,
                shape.shared_bytes
            )
        })
    }

    /// # Safety
    /// - As for `launch_clusters`; `params` points to one value for each parameter of the kernel.
    unsafe fn enqueue(
        &self,
        driver: &Driver,
        code: &Code,
        stream: Stream<'_>,
        shape: LaunchShape,
        (cluster, cooperative): (u32, bool),
        params: &mut [*mut c_void; N],
    ) -> c_int {
        let [x, y, z] = shape.grid;
        let dependent = shape.dependent && self.may_depend;
        match driver.api().cuLaunchKernelEx {
            Some(launch) if dependent || cooperative || cluster > 1 => {
                let wanted = [
                    (cluster > 1, of_clusters(cluster)),
                    (dependent, DEPENDENT),
                    (cooperative, COOPERATIVE),
                ];
                let mut attributes = [COOPERATIVE; 3];
                let mut count = 0;
                for (_, attribute) in wanted.into_iter().filter(|(wanted, _)| *wanted) {
                    attributes[count] = attribute;
                    count += 1;
                }
                let config = LaunchConfigRaw {
                    grid: shape.grid,
                    block: [shape.threads, 1, 1],
                    shared_bytes: shape.shared_bytes,
                    stream: stream.raw(),
                    attributes: attributes.as_ptr(),
                    num_attributes: count as c_uint,
                };
                // SAFETY: the configuration and its attributes outlive the call; the rest is the caller's.
                unsafe {
                    launch(
                        &raw const config,
                        code.raw,
                        params.as_mut_ptr(),
                        std::ptr::null_mut(),
                    )
                }
            }
            // SAFETY: the caller's contract.
            _ => unsafe {
                (driver.api().cuLaunchKernel)(
                    code.raw,
                    x,
                    y,
                    z,
                    shape.threads,
                    1,
                    1,
                    shape.shared_bytes,
                    stream.raw(),
                    params.as_mut_ptr(),
                    std::ptr::null_mut(),
                )
            },
        }
    }
}

impl<const N: usize> std::fmt::Debug for PreparedKernel<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PreparedKernel({})", self.name())
    }
}

/// What a kernel takes of the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelResources {
    /// Registers of a thread.
    pub registers: u32,
    /// Static shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// Local memory (stack and spills) of a thread, in bytes.
    pub local_bytes: u32,
    /// The largest block it can be launched with.
    pub max_threads: u32,
}

// CUlaunchAttributeID
const ATTRIBUTE_COOPERATIVE: c_uint = 2;
const ATTRIBUTE_CLUSTER_DIMENSION: c_uint = 4;
const ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION: c_uint = 6;

/// The attribute of a launch that may start while the one before it still runs.
const DEPENDENT: LaunchAttributeRaw =
    attribute_of(ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, [1, 0, 0]);

/// The attribute of a launch whose blocks all run at the same time.
const COOPERATIVE: LaunchAttributeRaw = attribute_of(ATTRIBUTE_COOPERATIVE, [1, 0, 0]);

/// The attribute of clusters of so many blocks in x.
const fn of_clusters(blocks: u32) -> LaunchAttributeRaw {
    attribute_of(ATTRIBUTE_CLUSTER_DIMENSION, [blocks, 1, 1])
}

const fn attribute_of(id: c_uint, [x, y, z]: [u32; 3]) -> LaunchAttributeRaw {
    let mut value = [0; 16];
    (value[0], value[1], value[2]) = (x, y, z);
    LaunchAttributeRaw { id, pad: 0, value }
}

const _: () = assert!(
    cfg!(target_endian = "little"),
    "arguments are passed as the low bytes of words"
);
