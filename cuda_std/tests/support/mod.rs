//! What the emulator's tests share.
#![allow(dead_code, unreachable_pub, reason = "every test takes its part of it")]

use cuda_std::Kernel;
use cuda_std::emu::{Buffer, EmuError, ErrorKind, LaunchConfig, Options, Report, launch};

/// Runs a kernel that reaches memory by views only.
pub fn run(
    kernel: &Kernel,
    config: LaunchConfig,
    arguments: &[u64],
    options: &Options,
) -> Result<Report, EmuError> {
    // SAFETY: the kernels of these tests reach memory by views only.
    unsafe { launch(kernel, config, arguments, options) }
}

/// One of each schedule, and more of the shuffled ones.
pub fn schedules() -> Vec<Options> {
    let mut all = vec![Options::default(), Options::parallel(1)];
    all.extend((0..20).map(Options::shuffled));
    all
}

/// A kernel whose last argument says whether to do it wrong: the fault is found in every schedule, with both places; the
/// clean twin runs in every schedule.
pub struct Planted<'a> {
    pub kernel: &'a Kernel,
    pub config: LaunchConfig,
    /// The test's source, where comments mark the places.
    pub source: &'a str,
}

impl Planted<'_> {
    /// `arguments` makes fresh buffers, and the arguments but the last.
    pub fn check(
        &self,
        kind: ErrorKind,
        marks: &[&str],
        arguments: impl Fn() -> (Vec<Buffer<u32>>, Vec<u64>),
    ) {
        for options in schedules() {
            let (_buffers, mut words) = arguments();
            words.push(0);
            if let Err(error) = run(self.kernel, self.config, &words, &options) {
                panic!("the clean twin: {error}");
            }
            let (_buffers, mut words) = arguments();
            words.push(1);
            let error =
                run(self.kernel, self.config, &words, &options).expect_err("the planted fault");
            assert_eq!(error.kind, kind, "{error}");
            assert_eq!(error.kernel, self.kernel.name);
            for mark in marks {
                let line = line_of(self.source, mark);
                let found = error
                    .sites
                    .iter()
                    .any(|site| site.location.is_some_and(|at| at.line() == line));
                assert!(found, "no site at line {line} ({mark}): {error}");
                assert!(error.to_string().contains(&format!(":{line}:")), "{error}");
            }
        }
    }
}

/// The line that ends with the comment `// mark`.
pub fn line_of(source: &str, mark: &str) -> u32 {
    let comment = format!("// {mark}");
    let at = source
        .lines()
        .position(|line| line.trim_end().ends_with(&comment));
    at.unwrap_or_else(|| panic!("no line ends with {comment:?}")) as u32 + 1
}

/// Fresh zeroed buffers of these lengths, and their addresses.
pub fn zeros(lengths: &[usize]) -> (Vec<Buffer<u32>>, Vec<u64>) {
    let buffers: Vec<_> = lengths.iter().map(|&len| Buffer::new(len)).collect();
    let words = buffers.iter().map(Buffer::arg).collect();
    (buffers, words)
}
