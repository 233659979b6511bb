//! NVIDIA's libNVVM, loaded at run time: LLVM IR in, PTX out.
//!
//! libNVVM of CUDA 13 is built on an LLVM as new as rustc's. It reads rustc's textual IR after two edits ([`edit_ir`]): its own
//! data layout, and the metadata that says which NVVM IR this is. For GPUs before Blackwell it expects LLVM 7's IR, unless
//! told `-nvvm-latest`.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr;

use libloading::Library;

use crate::arch::Arch;
use crate::{Error, Result};

/// A loaded libNVVM, and its entry points.
pub(crate) struct Libnvvm {
    path: PathBuf,
    api: Api,
    /// Keeps the entry points' code mapped.
    _library: Library,
}

/// What libNVVM is told. Without `-fma=0` it would contract `a * b + c`: other bits than Rust's.
pub(crate) fn options(arch: Arch) -> Vec<String> {
    let mut options = vec![format!("-arch=compute_{}", arch.number())];
    options
        .extend(["-opt=3", "-fma=0", "-ftz=0", "-prec-div=1", "-prec-sqrt=1"].map(str::to_owned));
    if !arch.is_blackwell_or_later() {
        options.push("-nvvm-latest".to_owned());
    }
    options
}

const LAYOUT: &str = "e-p:64:64:64-p6:32:32:32-i1:8:8-i8:8:8-i16:16:16-i32:32:32-i64:64:64-i128:128:128-f32:32:32-f64:64:64-f128:128:128-v16:16:16-v32:32:32-v64:64:64-v128:128:128-n16:32:64-a:8:8";

/// rustc's IR as NVVM IR 2.0 (debug metadata 3.2, of which there is none).
pub(crate) fn edit_ir(ir: &str) -> String {
    let mut edited = String::with_capacity(ir.len() + 1024);
    let mut next_node = 0;
    for line in ir.lines() {
        if line.starts_with("target datalayout = ") {
            edited.push_str(&format!("target datalayout = \"{LAYOUT}\""));
        } else {
            edited.push_str(line);
        }
        edited.push('\n');
        let node = line
            .strip_prefix('!')
            .and_then(|rest| rest.split_once(" = "));
        if let Some(number) = node.and_then(|(number, _)| number.parse::<u32>().ok()) {
            next_node = next_node.max(number + 1);
        }
    }
    edited.push_str(&format!(
        "\n!nvvmir.version = !{{!{next_node}}}\n!{next_node} = !{{i32 2, i32 0, i32 3, i32 2}}\n"
    ));
    edited
}

impl Libnvvm {
    /// `first` if given, else that of an installed CUDA toolkit: the first that loads and reads IR of LLVM `llvm_major`.
    /// The error lists what was tried.
    pub(crate) fn find(first: Option<&Path>, llvm_major: i32) -> Result<Self, String> {
        let mut tried = Vec::new();
        for path in first.map(Path::to_owned).into_iter().chain(toolkits()) {
            match Self::load(&path, llvm_major) {
                Ok(library) => return Ok(library),
                Err(why) => tried.push(format!("{}: {why}", path.display())),
            }
        }
        Err(tried.join("; "))
    }

    fn load(path: &Path, llvm_major: i32) -> Result<Self, String> {
        if !path.is_file() {
            return Err("not there".to_owned());
        }
        // SAFETY: loading runs the library's initialisers; the path is one where NVIDIA's libNVVM lives, or that the caller named.
        let library = unsafe { Library::new(path) }.map_err(|error| error.to_string())?;
        // SAFETY: the library is libNVVM, whose C functions have the types that `Api` declares (nvvm.h); the addresses stay
        // valid as long as `library`, which is kept beside them.
        let api = unsafe { Api::load(&library) }.map_err(|error| error.to_string())?;
        let mut reads = 0;
        // SAFETY: a null-terminated name, and a place for one int.
        let status = unsafe { (api.llvm_version)(c"compute_100".as_ptr(), &mut reads) };
        if status != 0 {
            return Err("does not know compute_100, so it is older than CUDA 12.8".to_owned());
        }
        if reads != llvm_major {
            return Err(format!("reads LLVM {reads} IR"));
        }
        Ok(Self {
            path: path.to_owned(),
            api,
            _library: library,
        })
    }

    /// As PTX for `arch`, the header still that of the newest PTX.
    pub(crate) fn compile(&self, ir: &str, arch: Arch) -> Result<String> {
        let options = options(arch);
        let options: Vec<CString> = options
            .into_iter()
            .map(|option| CString::new(option).expect("options hold no NUL"))
            .collect();
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let count = options.len() as c_int;

        let program = Program::new(self)?;
        let raw = program.raw;
        // SAFETY: the program is live; `ir` is passed with its length, and libNVVM copies it; the name is null-terminated.
        let status =
            unsafe { (self.api.add_module)(raw, ir.as_ptr().cast(), ir.len(), c"device".as_ptr()) };
        program.check(status, "nvvmAddModuleToProgram")?;
        // SAFETY: the program is live; `count` null-terminated options, which outlive the call.
        let status = unsafe { (self.api.verify)(raw, count, options.as_ptr()) };
        program.check(status, "nvvmVerifyProgram")?;
        // SAFETY: as for the verification.
        let status = unsafe { (self.api.compile)(raw, count, options.as_ptr()) };
        program.check(status, "nvvmCompileProgram")?;
        let (status, ptx) = program.text(self.api.result_size, self.api.result);
        program.check(status, "nvvmGetCompiledResult")?;
        Ok(ptx)
    }
}

/// `libNVVM 13.5.37, NVVM 23.0.0`, from the comments at the head of the PTX that it wrote: the API tells only its own version.
pub(crate) fn version_in(ptx: &str) -> String {
    let comments = || {
        ptx.lines()
            .take_while(|line| line.is_empty() || line.starts_with("//"))
    };
    let after = |key: &str| {
        comments()
            .find_map(|line| line.split_once(key))
            .map(|found| found.1.trim())
    };
    match (after(", V"), after("Based on NVVM ")) {
        (Some(release), Some(nvvm)) => format!("libNVVM {release}, NVVM {nvvm}"),
        (Some(release), None) => format!("libNVVM {release}"),
        (None, _) => "libNVVM of an unknown version".to_owned(),
    }
}

/// Where CUDA toolkits put it.
fn toolkits() -> impl Iterator<Item = PathBuf> {
    const FILE: &str = "nvvm/lib64/libnvvm.so.4";
    let variables = ["CUDA_HOME", "CUDA_PATH"].into_iter();
    let named = variables.filter_map(|name| std::env::var_os(name).map(PathBuf::from));
    named
        .chain(["/usr/local/cuda", "/opt/cuda"].map(PathBuf::from))
        .map(|folder| folder.join(FILE))
}

/// A program under construction, destroyed when dropped.
struct Program<'a> {
    library: &'a Libnvvm,
    raw: RawProgram,
}

impl<'a> Program<'a> {
    fn new(library: &'a Libnvvm) -> Result<Self> {
        let mut program = Self {
            library,
            raw: ptr::null_mut(),
        };
        // SAFETY: a place for one handle.
        let status = unsafe { (library.api.create)(&mut program.raw) };
        program.check(status, "nvvmCreateProgram")?;
        Ok(program)
    }

    fn check(&self, status: c_int, call: &'static str) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: libNVVM returns a static, null-terminated string for every status.
        let reason = unsafe { CStr::from_ptr((self.library.api.error_string)(status)) };
        let log = if self.raw.is_null() {
            String::new()
        } else {
            self.text(self.library.api.log_size, self.library.api.log).1
        };
        Err(Error::Nvvm {
            library: self.library.path.display().to_string(),
            call,
            reason: reason.to_string_lossy().into_owned(),
            log,
        })
    }

    /// One of the texts that libNVVM hands out as a size and a copy, without its final NUL.
    fn text(&self, size: SizeFn, copy: CopyFn) -> (c_int, String) {
        let mut length = 0;
        // SAFETY: the program is live; a place for one size.
        let status = unsafe { size(self.raw, &mut length) };
        if status != 0 {
            return (status, String::new());
        }
        let mut text = vec![0_u8; length];
        // SAFETY: the program is live, and the buffer has the size that libNVVM asked for.
        let status = unsafe { copy(self.raw, text.as_mut_ptr().cast()) };
        while text.last() == Some(&0) {
            text.pop();
        }
        (status, String::from_utf8_lossy(&text).into_owned())
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: a live program, destroyed once; the call nulls the handle.
            unsafe { (self.library.api.destroy)(&mut self.raw) };
        }
    }
}

type RawProgram = *mut c_void;
type SizeFn = unsafe extern "C" fn(RawProgram, *mut usize) -> c_int;
type CopyFn = unsafe extern "C" fn(RawProgram, *mut c_char) -> c_int;
type OptionsFn = unsafe extern "C" fn(RawProgram, c_int, *const *const c_char) -> c_int;

/// The functions of nvvm.h that are called here; each but `error_string` returns an `nvvmResult`, 0 for success.
struct Api {
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    llvm_version: unsafe extern "C" fn(*const c_char, *mut c_int) -> c_int,
    create: unsafe extern "C" fn(*mut RawProgram) -> c_int,
    destroy: unsafe extern "C" fn(*mut RawProgram) -> c_int,
    add_module: unsafe extern "C" fn(RawProgram, *const c_char, usize, *const c_char) -> c_int,
    verify: OptionsFn,
    compile: OptionsFn,
    result_size: SizeFn,
    result: CopyFn,
    log_size: SizeFn,
    log: CopyFn,
}

impl Api {
    /// # Safety
    ///
    /// - `library` is libNVVM.
    /// - The functions are called only while `library` is loaded.
    unsafe fn load(library: &Library) -> Result<Self, libloading::Error> {
        // SAFETY: the caller's library is libNVVM; the types are those of nvvm.h.
        unsafe {
            Ok(Self {
                error_string: *library.get(b"nvvmGetErrorString")?,
                llvm_version: *library.get(b"nvvmLLVMVersion")?,
                create: *library.get(b"nvvmCreateProgram")?,
                destroy: *library.get(b"nvvmDestroyProgram")?,
                add_module: *library.get(b"nvvmAddModuleToProgram")?,
                verify: *library.get(b"nvvmVerifyProgram")?,
                compile: *library.get(b"nvvmCompileProgram")?,
                result_size: *library.get(b"nvvmGetCompiledResultSize")?,
                result: *library.get(b"nvvmGetCompiledResult")?,
                log_size: *library.get(b"nvvmGetProgramLogSize")?,
                log: *library.get(b"nvvmGetProgramLog")?,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ir_gets_layout_and_version() {
        let ir = "source_filename = \"k\"\ntarget datalayout = \"e-i64:64\"\n\n!llvm.ident = !{!1}\n!0 = !{}\n!11 = !{i64 3}\n!2 = !{}\n";
        let edited = edit_ir(ir);
        assert!(edited.contains(&format!("\ntarget datalayout = \"{LAYOUT}\"\n")));
        assert!(!edited.contains("e-i64:64\""));
        assert!(
            edited.ends_with("!nvvmir.version = !{!12}\n!12 = !{i32 2, i32 0, i32 3, i32 2}\n")
        );
    }

    #[test]
    fn older_gpus_need_to_be_asked_for() {
        let of = |name| options(Arch::parse(name).unwrap());
        assert_eq!(of("sm_90a")[0], "-arch=compute_90a");
        assert!(of("sm_90a").contains(&"-nvvm-latest".to_owned()));
        assert!(!of("sm_120").contains(&"-nvvm-latest".to_owned()));
        assert!(of("sm_120").contains(&"-fma=0".to_owned()));
    }

    #[test]
    fn the_version_is_in_the_head() {
        let head = "\n//\n// Generated by NVIDIA NVVM Compiler\n// Cuda compilation tools, release 13.5, V13.5.37\n// Based on NVVM 23.0.0\n//\n\n.version 9.5\n// a, V1\n";
        assert_eq!(version_in(head), "libNVVM 13.5.37, NVVM 23.0.0");
        assert_eq!(
            version_in(".version 9.5\n// a, V1\n"),
            "libNVVM of an unknown version"
        );
    }

    #[test]
    fn a_library_that_is_not_there_is_named() {
        let Err(tried) = Libnvvm::find(Some(Path::new("/nowhere/libnvvm.so.4")), -1) else {
            panic!("found a libNVVM that reads LLVM -1");
        };
        assert!(
            tried.contains("/nowhere/libnvvm.so.4: not there"),
            "{tried}"
        );
        assert!(tried.contains("/usr/local/cuda"), "{tried}");
    }
}
