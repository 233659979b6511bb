//! What the fake driver knows.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{c_int, c_void};

use cuda_std::Kernel;
use cuda_std::emu::{Buffer, LaunchConfig, Mark, Options, launch, mark};

use super::launch::How;

thread_local! {
    static STATE: RefCell<State> = RefCell::new(State::new((9, 0), 13_000));
}

/// Lets `f` at this thread's state.
pub(super) fn with<R>(f: impl FnOnce(&mut State) -> R) -> R {
    STATE.with_borrow_mut(f)
}

// CUresult
pub(super) const INVALID_VALUE: c_int = 1;
pub(super) const OUT_OF_MEMORY: c_int = 2;
pub(super) const INVALID_DEVICE: c_int = 101;
pub(super) const INVALID_PTX: c_int = 218;
pub(super) const UNSUPPORTED_PTX_VERSION: c_int = 222;
pub(super) const INVALID_CONTEXT: c_int = 201;
pub(super) const INVALID_HANDLE: c_int = 400;
pub(super) const NOT_FOUND: c_int = 500;
pub(super) const CAPTURE_UNSUPPORTED: c_int = 900;
pub(super) const CAPTURE_INVALIDATED: c_int = 901;
pub(super) const LAUNCH_FAILED: c_int = 719;

/// What a handle is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Context,
    Stream,
    Module,
    Graph,
    GraphExec,
    Event,
}

/// Work that waits on a stream.
#[derive(Clone, Debug)]
pub(super) enum Work {
    Launch {
        kernel: &'static Kernel,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u32,
        how: How,
        args: Vec<u64>,
    },
    Fill {
        to: u64,
        word: u32,
        count: usize,
    },
    /// From page-locked memory: read when the copy runs.
    Upload {
        to: u64,
        from: usize,
        bytes: usize,
    },
    /// From other memory: staged when it was enqueued.
    Store {
        to: u64,
        data: Vec<u8>,
    },
    Download {
        to: usize,
        from: u64,
        bytes: usize,
    },
}

/// A stream being captured.
#[derive(Debug, Default)]
struct Capture {
    work: Vec<Work>,
    spoiled: bool,
}

/// What the tests look at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Every call since the last report, in order.
    pub calls: Vec<&'static str>,
    /// Kernels in the PTX that was compiled since the last report.
    pub compiled: Vec<&'static str>,
    /// Kernels launched since the last report, with grid and threads of a block.
    pub launches: Vec<(&'static str, [u32; 3], u32)>,
    /// Of the launches, how many may overlap the work before them.
    pub dependent: usize,
    /// Streams of the launches, as numbers.
    pub streams: Vec<usize>,
    /// Handles and memory that are live.
    pub live: usize,
    /// Bytes of device memory that are live.
    pub device_bytes: u64,
    /// Handles destroyed so far, by number.
    pub destroyed: Vec<usize>,
    /// Primary contexts retained and not released.
    pub primary: usize,
}

pub(super) struct State {
    pub(super) capability: (c_int, c_int),
    pub(super) version: c_int,
    pub(super) hidden: Vec<&'static str>,
    pub(super) fail: Option<(&'static str, usize, c_int)>,
    pub(super) current: Vec<usize>,
    pub(super) primary: Option<(usize, usize)>,
    functions: HashMap<usize, (usize, &'static Kernel)>,
    pub(super) graphs: HashMap<usize, Vec<Work>>,
    pub(super) memory: BTreeMap<u64, Buffer<u32>>,
    pub(super) pinned: BTreeMap<usize, Vec<u64>>,
    pub(super) log: Report,
    handles: BTreeMap<usize, Kind>,
    next: usize,
    queue: Vec<Work>,
    captures: HashMap<usize, Capture>,
    failed: Option<c_int>,
    /// Launches since may still run when a dependent one starts: what came after anything else than such a one.
    chain: Mark,
}

impl State {
    pub(super) fn new(capability: (c_int, c_int), version: c_int) -> Self {
        Self {
            capability,
            version,
            hidden: Vec::new(),
            fail: None,
            current: Vec::new(),
            primary: None,
            functions: HashMap::new(),
            graphs: HashMap::new(),
            memory: BTreeMap::new(),
            pinned: BTreeMap::new(),
            log: Report::default(),
            handles: BTreeMap::new(),
            next: 0x1000,
            queue: Vec::new(),
            captures: HashMap::new(),
            failed: None,
            chain: mark(),
        }
    }

    /// Notes a call. Some error if it is to fail, or if a kernel failed before it.
    pub(super) fn call(&mut self, name: &'static str) -> Result<(), c_int> {
        self.log.calls.push(name);
        if let Some((call, skip, code)) = &mut self.fail
            && *call == name
        {
            if *skip == 0 {
                let code = *code;
                self.fail = None;
                return Err(code);
            }
            *skip -= 1;
        }
        Ok(())
    }

    pub(super) fn report(&mut self) -> Report {
        let primary = self.primary.map_or(0, |(_, count)| count);
        let report = Report {
            live: self.handles.len() + self.memory.len() + self.pinned.len(),
            device_bytes: self.memory.values().map(|b| 4 * b.len() as u64).sum(),
            primary,
            destroyed: self.log.destroyed.clone(),
            ..std::mem::take(&mut self.log)
        };
        self.log.destroyed = report.destroyed.clone();
        report
    }

    pub(super) fn handle(&mut self, kind: Kind) -> *mut c_void {
        self.next += 0x10;
        self.handles.insert(self.next, kind);
        std::ptr::without_provenance_mut(self.next)
    }

    pub(super) fn alive(&self, handle: *mut c_void, kind: Kind) -> Result<usize, c_int> {
        match self.handles.get(&handle.addr()) {
            Some(&found) if found == kind => Ok(handle.addr()),
            _ => Err(INVALID_HANDLE),
        }
    }

    pub(super) fn destroy(&mut self, handle: *mut c_void, kind: Kind) -> Result<usize, c_int> {
        let handle = self.alive(handle, kind)?;
        self.handles.remove(&handle);
        self.log.destroyed.push(handle);
        Ok(handle)
    }

    /// The stream's number; streams need a current context.
    pub(super) fn stream(&self, stream: *mut c_void) -> Result<usize, c_int> {
        self.in_context()?;
        match stream.addr() {
            special @ 0..=2 => Ok(special),
            _ => self.alive(stream, Kind::Stream),
        }
    }

    pub(super) fn in_context(&self) -> Result<usize, c_int> {
        let &context = self.current.last().ok_or(INVALID_CONTEXT)?;
        match self.handles.get(&context) {
            Some(Kind::Context) => Ok(context),
            _ => Err(INVALID_CONTEXT),
        }
    }

    /// Whether the device memory `bytes` from `ptr` on is one live allocation's.
    pub(super) fn inside(&self, ptr: u64, bytes: usize) -> Result<(), c_int> {
        let (&start, buffer) = self.memory.range(..=ptr).next_back().ok_or(INVALID_VALUE)?;
        let end = start + 4 * buffer.len() as u64;
        if ptr + bytes as u64 <= end {
            Ok(())
        } else {
            Err(INVALID_VALUE)
        }
    }

    pub(super) fn is_pinned(&self, ptr: usize, bytes: usize) -> bool {
        self.pinned
            .range(..=ptr)
            .next_back()
            .is_some_and(|(&start, words)| ptr + bytes <= start + 8 * words.len())
    }

    pub(super) fn enqueue(&mut self, stream: usize, work: Work) -> Result<(), c_int> {
        match self.captures.get_mut(&stream) {
            Some(capture) => capture.work.push(work),
            None => self.queue.push(work),
        }
        Ok(())
    }

    pub(super) fn begin_capture(&mut self, stream: usize) -> Result<(), c_int> {
        // The legacy default stream cannot be captured.
        if stream < 2 || self.captures.contains_key(&stream) {
            return Err(CAPTURE_UNSUPPORTED);
        }
        self.captures.insert(stream, Capture::default());
        Ok(())
    }

    pub(super) fn end_capture(&mut self, stream: usize) -> Result<Vec<Work>, c_int> {
        let capture = self.captures.remove(&stream).ok_or(INVALID_VALUE)?;
        if capture.spoiled {
            return Err(CAPTURE_INVALIDATED);
        }
        Ok(capture.work)
    }

    pub(super) fn is_capturing(&self, stream: usize) -> bool {
        self.captures.contains_key(&stream)
    }

    /// A call that may not be made while a stream is being captured.
    pub(super) fn not_while_capturing(&mut self) -> Result<(), c_int> {
        for capture in self.captures.values_mut() {
            capture.spoiled = true;
        }
        if self.captures.is_empty() {
            Ok(())
        } else {
            Err(CAPTURE_UNSUPPORTED)
        }
    }

    /// Runs what was enqueued. As in the real driver, a failed kernel makes every later wait fail.
    pub(super) fn drain(&mut self) -> Result<(), c_int> {
        for work in std::mem::take(&mut self.queue) {
            if self.failed.is_none() {
                self.failed = self.run(work).err();
            }
        }
        self.failed.map_or(Ok(()), Err)
    }

    /// A kernel of a loaded module, as a handle that lives as long as the module.
    pub(super) fn function(&mut self, module: usize, kernel: &'static Kernel) -> *mut c_void {
        self.next += 0x10;
        self.functions.insert(self.next, (module, kernel));
        std::ptr::without_provenance_mut(self.next)
    }

    pub(super) fn kernel(&self, function: *mut c_void) -> Result<&'static Kernel, c_int> {
        self.in_context()?;
        let (_, kernel) = self.functions.get(&function.addr()).ok_or(INVALID_HANDLE)?;
        Ok(kernel)
    }

    pub(super) fn unload(&mut self, module: *mut c_void) -> Result<(), c_int> {
        let module = self.destroy(module, Kind::Module)?;
        self.functions.retain(|_, (owner, _)| *owner != module);
        Ok(())
    }

    /// Device memory, unwritten.
    pub(super) fn allocate(&mut self, bytes: usize) -> u64 {
        let buffer = Buffer::uninit(bytes.div_ceil(4));
        let address = buffer.arg();
        self.memory.insert(address, buffer);
        address
    }

    fn run(&mut self, work: Work) -> Result<(), c_int> {
        if !matches!(&work, Work::Launch { how, .. } if how.dependent) {
            self.chain = mark();
        }
        match work {
            Work::Launch {
                kernel,
                grid,
                block,
                shared_bytes,
                how,
                args,
            } => {
                let config = LaunchConfig {
                    dynamic_shared: shared_bytes as usize,
                    cluster: how.cluster,
                    cooperative: how.cooperative,
                    ..LaunchConfig::new(grid, block)
                };
                let options = Options {
                    // Blocks that run all at once talk by values alone.
                    data_orders: how.cooperative,
                    overlaps: how.dependent.then_some(self.chain),
                    ..Options::default()
                };
                // SAFETY: the arguments are what the library passed for this kernel's parameters.
                let ran = unsafe { launch(kernel, config, &args, &options) };
                if let Err(error) = ran {
                    eprintln!("{}: {error}", kernel.name);
                    return Err(LAUNCH_FAILED);
                }
            }
            Work::Fill { to, word, count } => self.store(to, &vec![word; count]),
            Work::Upload { to, from, bytes } => {
                let from = std::ptr::with_exposed_provenance::<u8>(from);
                // SAFETY: page-locked memory of that size, live since it was enqueued.
                let data = unsafe { std::slice::from_raw_parts(from, bytes) };
                self.store(to, &words(data));
            }
            Work::Store { to, data } => self.store(to, &words(&data)),
            Work::Download { to, from, bytes } => {
                let (buffer, at) = self.at(from);
                for (index, word) in (0..bytes / 4).map(|i| (i, buffer.get(at + i))) {
                    let to = std::ptr::with_exposed_provenance_mut::<u32>(to);
                    // SAFETY: host memory of that size, which the library keeps until the copy has run.
                    unsafe { to.add(index).write_unaligned(word) };
                }
            }
        }
        Ok(())
    }

    fn store(&mut self, to: u64, words: &[u32]) {
        let (buffer, at) = self.at(to);
        buffer.write_at(at, words);
    }

    /// The allocation that holds an address, and the address's word in it. Enqueuing has checked that there is one.
    fn at(&mut self, ptr: u64) -> (&mut Buffer<u32>, usize) {
        let found = self.memory.range_mut(..=ptr).next_back();
        let (start, buffer) = found.expect("memory is freed only after the work that uses it");
        (buffer, (ptr - start) as usize / 4)
    }
}

/// Memory is in words: what a copy leaves of the last one becomes zeros.
fn words(bytes: &[u8]) -> Vec<u32> {
    let word = |bytes: &[u8]| {
        let mut word = [0; 4];
        word[..bytes.len()].copy_from_slice(bytes);
        u32::from_ne_bytes(word)
    };
    bytes.chunks(4).map(word).collect()
}
