//! What this project builds for GPUs: from which sources, for which targets, by which code generator.

use cuda_builder::Codegen;

/// The device crate's folder.
pub(crate) const CRATE: &str = "kernels-gpu";

/// The device crate's package.
pub(crate) const PACKAGE: &str = "specdraft-kernels";

/// The code generator whose PTX is committed.
pub(crate) const SHIPPED: Codegen = Codegen::Nvvm;

/// Why that one; copied to `ptx/MANIFEST.toml`.
pub(crate) const WHY: &str = "faster on an H200: rustc's backend takes 6 % longer for the suffix drafter's kernels and 1 % less \
    for the refiner's (geometric means, benches/record/h200/2026-11-30.json)";

/// One PTX file.
pub(crate) struct Target {
    pub(crate) arch: &'static str,
    /// A newer PTX version than the architecture's own, if an instruction needs it.
    pub(crate) ptx_version: Option<(u8, u8)>,
    /// The GPUs that it is assembled for, as the driver will.
    pub(crate) gpus: &'static [&'static str],
}

pub(crate) const TARGETS: [Target; 2] = [
    Target {
        arch: "sm_80",
        ptx_version: None,
        gpus: &["sm_80", "sm_89", "sm_90", "sm_100", "sm_120"],
    },
    Target {
        arch: "sm_90a",
        // fence.proxy.tensormap
        ptx_version: Some((8, 3)),
        gpus: &["sm_90a"],
    },
];

impl Target {
    /// The file's name in `ptx/`.
    pub(crate) fn file(&self) -> String {
        format!("specdraft.{}.ptx", self.arch)
    }
}

/// What PTX is made from, for the hash in the manifest. The emulator's half of `cuda_std` is not.
pub(crate) const SOURCES: [&str; 7] = [
    "rust-toolchain.toml",
    "kernels-gpu",
    "cuda_std",
    "!cuda_std/src/imp/emu",
    "!cuda_std/tests",
    "cuda_builder/src",
    "xtask/src/device.rs",
];

/// Kernels that use a stack frame or spill registers in the PTX that ships, and why that is fine.
pub(crate) const STACK_REASONS: [(&str, &str); 1] = [(
    "xpress_readout_sm90_256",
    "two groups' latents and a product's sums are 192 of the 240 registers that a thread gets; the rest does not fit, \
     but other ways to take so many rows read w2 twice, and are slower",
)];
