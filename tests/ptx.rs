//! The committed PTX: that it is the kernels' table, and what the compilers must not have done to it.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use cuda_builder::manifest::{EntryRecord, Manifest};
use cuda_builder::ptx::{Entry, Module};
use cuda_std::{Kernel, ParamType};
use specdraft_kernels::abi::KERNELS;

/// File, `.target`, `.version`: the oldest PTX, so the oldest driver, that each target needs.
const FILES: [(&str, &str, &str); 2] = [
    ("specdraft.sm_80.ptx", "sm_80", "7.0"),
    ("specdraft.sm_90a.ptx", "sm_90a", "8.3"),
];

/// The kernels that a target's PTX holds.
fn kernels_of(target: &str) -> impl Iterator<Item = &'static Kernel> {
    let arch = target.strip_prefix("sm_");
    KERNELS
        .iter()
        .filter(move |kernel| kernel.arch.is_none() || kernel.arch == arch)
}

/// How often each collective stands in each entry, for either target, in the order of [`COLLECTIVES`].
///
/// An optimiser that copies one into both sides of a branch hangs the kernel, and shows up here. A number that changes with the source is
/// to be understood, then written down; a failure prints the table as it is now.
#[rustfmt::skip]
const COUNTS: &[(&str, [usize; COLLECTIVES.len()])] = &[
    ("suffix_add_request", [0, 0, 0, 0, 0, 0, 0]),
    ("suffix_clear_index", [0, 0, 0, 0, 0, 0, 0]),
    ("suffix_ingest_copy", [0, 0, 0, 0, 0, 0, 0]),
    ("suffix_ingest_place", [0, 3, 16, 3, 0, 1, 0]),
    ("suffix_observe", [3, 0, 0, 15, 0, 1, 0]),
    ("suffix_propose", [1, 2, 40, 56, 2, 19, 0]),
    ("suffix_propose_indexed", [2, 2, 48, 88, 2, 24, 0]),
    ("suffix_propose_indexed_k8", [2, 2, 48, 98, 2, 30, 0]),
    ("suffix_propose_k8", [1, 2, 51, 68, 2, 19, 0]),
    ("suffix_reset", [0, 0, 0, 0, 0, 0, 0]),
    ("xpress_add_argmax", [1, 0, 10, 0, 0, 0, 0]),
    ("xpress_combine_32", [3, 0, 0, 0, 0, 0, 48]),
    ("xpress_combine_64", [1, 0, 0, 0, 0, 0, 48]),
    ("xpress_combine_resident_32x32", [3, 0, 0, 0, 0, 0, 96]),
    ("xpress_combine_resident_64x32", [3, 0, 0, 0, 0, 0, 168]),
    ("xpress_combine_resident_64x64", [3, 0, 0, 0, 0, 0, 288]),
    ("xpress_down_32", [3, 0, 0, 0, 0, 0, 48]),
    ("xpress_down_64", [1, 0, 0, 0, 0, 0, 48]),
    ("xpress_down_resident_32x32", [3, 0, 0, 0, 0, 0, 96]),
    ("xpress_down_resident_64x32", [3, 0, 0, 0, 0, 0, 168]),
    ("xpress_down_resident_64x64", [3, 0, 0, 0, 0, 0, 288]),
    ("xpress_gate_up_32", [3, 0, 0, 0, 0, 0, 48]),
    ("xpress_gate_up_64", [1, 0, 0, 0, 0, 0, 48]),
    ("xpress_gate_up_resident_128", [2, 0, 0, 0, 0, 0, 880]),
    ("xpress_gate_up_resident_32", [2, 0, 0, 0, 0, 0, 280]),
    ("xpress_gate_up_resident_64", [2, 0, 0, 0, 0, 0, 480]),
    ("xpress_latent_1", [9, 0, 6, 0, 0, 0, 56]),
    ("xpress_latent_2", [9, 0, 12, 0, 0, 0, 112]),
    ("xpress_latent_3", [9, 0, 18, 0, 0, 0, 168]),
    ("xpress_latent_rows", [7, 1, 3, 0, 0, 0, 36]),
    ("xpress_mix", [5, 0, 0, 0, 0, 0, 48]),
    ("xpress_mix_resident_32x32", [4, 0, 0, 0, 0, 0, 96]),
    ("xpress_mix_resident_64x32", [4, 0, 0, 0, 0, 0, 168]),
    ("xpress_mix_resident_64x64", [4, 0, 0, 0, 0, 0, 288]),
    ("xpress_project_128x128", [4, 0, 0, 0, 0, 0, 120]),
    ("xpress_project_64x32", [4, 0, 0, 0, 0, 0, 48]),
    ("xpress_project_64x64", [4, 0, 0, 0, 0, 0, 60]),
    ("xpress_prune", [4, 0, 16, 5, 0, 0, 16]),
    ("xpress_readout_128", [6, 0, 32, 0, 0, 0, 88]),
    ("xpress_readout_16", [6, 0, 8, 0, 0, 0, 16]),
    ("xpress_readout_32", [6, 0, 16, 0, 0, 0, 28]),
    ("xpress_readout_64", [6, 0, 16, 0, 0, 0, 48]),
    ("xpress_readout_sm90_128", [3, 3, 12, 2, 0, 0, 52]),
    ("xpress_readout_sm90_192", [3, 3, 12, 2, 0, 0, 52]),
    ("xpress_readout_sm90_256", [3, 11, 24, 3, 0, 0, 120]),
    ("xpress_readout_sm90_64", [3, 3, 12, 2, 0, 0, 52]),
    ("xpress_refine_resident_1", [12, 1, 11, 1, 0, 0, 48]),
    ("xpress_refine_resident_3", [12, 1, 15, 1, 0, 0, 80]),
    ("xpress_refine_resident_5", [12, 1, 19, 1, 0, 0, 112]),
    ("xpress_refine_topc_1", [11, 0, 21, 0, 0, 0, 44]),
    ("xpress_refine_topc_2", [11, 0, 32, 0, 0, 0, 72]),
    ("xpress_refine_topc_3", [11, 0, 45, 0, 0, 0, 116]),
    ("xpress_score", [1, 2, 10, 0, 0, 0, 16]),
    ("xpress_select", [30, 0, 85, 0, 0, 3, 0]),
    ("xpress_select_few", [30, 0, 69, 0, 0, 3, 0]),
    ("xpress_start", [1, 0, 18, 0, 0, 0, 0]),
    ("xpress_tensor_maps", [0, 0, 0, 0, 0, 0, 0]),
    ("xpress_topc_argmax", [0, 0, 10, 0, 0, 0, 0]),
];

/// Opcodes, by how they start: block barriers, warp barriers, shuffles, votes, matches, reductions, tensor instructions.
const COLLECTIVES: [&[&str]; 7] = [
    &["bar.sync", "bar.arrive", "bar.red", "barrier."],
    &["bar.warp"],
    &["shfl."],
    &["vote."],
    &["match."],
    &["redux."],
    &["mma.", "wmma.", "wgmma.", "ldmatrix."],
];

#[test]
fn every_target_holds_every_kernel() {
    for (file, target, version) in FILES {
        let text = read(file);
        let module = Module::parse(&text).unwrap();
        assert_eq!((module.target, module.version), (target, version), "{file}");

        let entries: BTreeSet<_> = module.entries.iter().map(|entry| entry.name).collect();
        let kernels: BTreeSet<_> = kernels_of(target).map(|kernel| kernel.name).collect();
        assert_eq!(entries, kernels, "{file}");
        assert_eq!(
            entries.len(),
            module.entries.len(),
            "{file}: an entry twice"
        );
    }
}

#[test]
fn parameters_and_launch_bounds_are_the_tables() {
    for (file, ..) in FILES {
        let text = read(file);
        for entry in Module::parse(&text).unwrap().entries {
            let kernel = KERNELS.iter().find(|kernel| kernel.name == entry.name);
            let kernel = kernel.unwrap_or_else(|| panic!("{file}: {} is no kernel", entry.name));
            let params: Vec<_> = kernel
                .params
                .iter()
                .map(|param| ptx_type(param.ty))
                .collect();
            assert_eq!(entry.params, params, "{file}: {}", entry.name);
            assert_eq!(entry.max_threads, kernel.threads, "{file}: {}", entry.name);
            assert_eq!(
                entry.min_blocks, kernel.min_blocks,
                "{file}: {}",
                entry.name
            );
        }
    }
}

/// A call is a panic that was not optimised away, or a function that was not inlined; local memory is an array indexed at
/// run time. Both are slow, and neither fails any other test.
#[test]
fn no_calls_and_no_local_memory() {
    for (file, ..) in FILES {
        let text = read(file);
        assert!(
            !text.contains(".func"),
            "{file} has a function that is no kernel"
        );
        assert!(
            !text.contains(".extern .func"),
            "{file} calls what it does not hold"
        );
        assert!(!text.contains("//"), "{file} has a comment");
        for entry in Module::parse(&text).unwrap().entries {
            assert!(
                !entry.body.contains(".local"),
                "{file}: {} uses local memory",
                entry.name
            );
            assert_eq!(entry.count("call"), 0, "{file}: {} calls", entry.name);
            assert!(
                entry.opcodes().any(|opcode| opcode == "ret"),
                "{file}: {} has no end",
                entry.name
            );
        }
    }
}

/// Without a rounding mode ptxas may fuse a product and a sum, and `approx` is what it says: other bits than the CPU's.
#[test]
fn floats_round_as_on_the_cpu() {
    // The refiner's SiLU, whose result is rounded to bf16 next.
    const SILU: [&str; 2] = ["ex2.approx.ftz.f32", "rcp.approx.ftz.f32"];
    for (file, ..) in FILES {
        let text = read(file);
        for entry in Module::parse(&text).unwrap().entries {
            for opcode in entry.opcodes().filter(|opcode| opcode.ends_with(".f32")) {
                let fusible = ["add.f32", "sub.f32", "mul.f32", "mad.f32"].contains(&opcode);
                let parts = [".approx", ".full", ".ftz"];
                let approximate = parts.iter().any(|part| opcode.contains(part));
                let silu = entry.name.starts_with("xpress_") && SILU.contains(&opcode);
                assert!(
                    !fusible && (!approximate || silu),
                    "{file}: {} has {opcode}",
                    entry.name
                );
            }
            let [exponentials, reciprocals] = SILU.map(|opcode| entry.count(opcode));
            assert_eq!(exponentials, reciprocals, "{file}: {}", entry.name);
        }
    }
}

#[test]
fn no_collective_was_copied() {
    for (file, target, _) in FILES {
        let text = read(file);
        let entries = Module::parse(&text).unwrap().entries;
        let now = entries
            .iter()
            .map(|entry| (entry.name, COLLECTIVES.map(|opcodes| count(entry, opcodes))));
        let now: Vec<_> = now.collect();
        let held: BTreeSet<_> = kernels_of(target).map(|kernel| kernel.name).collect();
        let expected: Vec<_> = COUNTS
            .iter()
            .copied()
            .filter(|(name, _)| held.contains(name))
            .collect();
        if now != expected {
            let table: String = now.iter().map(|row| format!("    {row:?},\n")).collect();
            panic!("the counts of {file} are now:\n{table}");
        }
    }
}

#[test]
fn the_manifest_describes_the_files() {
    let manifest = manifest();
    let names: Vec<_> = manifest
        .files
        .iter()
        .map(|file| file.name.as_str())
        .collect();
    assert_eq!(names, FILES.map(|(file, ..)| file));
    for file in &manifest.files {
        let text = read(&file.name);
        let module = Module::parse(&text).unwrap();
        assert_eq!(
            (file.target.as_str(), file.version.as_str()),
            (module.target, module.version)
        );
        let entries: Vec<_> = module.entries.iter().map(EntryRecord::from).collect();
        assert_eq!(file.entries, entries, "{}", file.name);
        assert!(
            file.rustflags
                .iter()
                .any(|flag| flag == "-Zmir-enable-passes=-JumpThreading")
        );
        assert!(
            file.rustflags
                .contains(&format!("-Ctarget-cpu={}", file.target))
        );
    }
    for word in [manifest.rustc, manifest.codegen_version, manifest.why] {
        assert!(!word.is_empty());
    }
}

#[test]
fn the_ptx_is_of_these_sources() {
    let sources = manifest().sources;
    assert_eq!(
        sources.hash_now(&root()).unwrap(),
        sources.hash,
        "ptx/ is older than the device sources: run `cargo xtask build-ptx`"
    );
}

/// What ptxas made of the code generator's output that ships: every kernel, for every GPU.
#[test]
fn resources_are_recorded() {
    let text = read("RESOURCES.md");
    let ships = text.split("\n## ").nth(1).unwrap();
    let codegen = manifest().codegen.name();
    assert!(
        ships.starts_with(&format!("{codegen}, which ships\n")),
        "{ships}"
    );
    let columns = [
        "sm_80",
        "sm_80 on sm_89",
        "sm_80 on sm_90",
        "sm_80 on sm_100",
        "sm_80 on sm_120",
        "sm_90a",
    ];
    let head = format!("| kernel | shared | {} |", columns.join(" | "));
    assert!(ships.contains(&head), "no {head}");
    for kernel in KERNELS {
        let start = format!("| {} |", kernel.name);
        let row = ships.lines().find(|line| line.starts_with(&start));
        let row = row.unwrap_or_else(|| panic!("no row for {}", kernel.name));
        let cells: Vec<_> = row
            .trim_matches('|')
            .split('|')
            .skip(2)
            .map(str::trim)
            .collect();
        assert_eq!(cells.len(), columns.len(), "{row}");
        for (cell, column) in cells.into_iter().zip(columns) {
            let target = column.split(' ').next().unwrap();
            if kernels_of(target).all(|held| held.name != kernel.name) {
                assert_eq!(cell, "", "{row}");
                continue;
            }
            let registers = cell.split(',').next().unwrap().parse::<u32>();
            assert!(
                registers.is_ok_and(|registers| (1..=255).contains(&registers)),
                "{row}"
            );
        }
    }
}

fn ptx_type(ty: ParamType) -> &'static str {
    match ty {
        ParamType::Ptr | ParamType::I64 | ParamType::U64 => "u64",
        ParamType::I32 | ParamType::U32 => "u32",
        ParamType::F32 => "f32",
    }
}

fn count(entry: &Entry<'_>, opcodes: &[&str]) -> usize {
    opcodes.iter().map(|opcode| entry.count(opcode)).sum()
}

fn manifest() -> Manifest {
    read("MANIFEST.toml").parse().unwrap()
}

fn read(file: &str) -> String {
    let path = root().join("ptx").join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn root() -> PathBuf {
    // Found at run time: test programs are carried to machines that the sources are not on.
    std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| PathBuf::from("."), PathBuf::from)
}
