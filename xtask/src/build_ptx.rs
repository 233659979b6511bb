//! `cargo xtask build-ptx`: the kernels as PTX, in `ptx/` with a manifest and a table of resources, or elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use cuda_builder::manifest::{Manifest, PtxFile, Sources};
use cuda_builder::{Built, Codegen, CudaBuilder};

use crate::cuda_tools::CudaTools;
use crate::device::{self, Target};
use crate::{resources, workspace};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The code generator, nvvm or llvm [default: the one that ships]
    #[arg(long)]
    codegen: Option<Codegen>,
    /// Rebuild with both code generators and compare with ptx/, which stays as it is
    #[arg(long, conflicts_with_all = ["codegen", "out"])]
    check: bool,
    /// A folder to write the PTX to, instead of ptx/; needs no tool of NVIDIA's
    #[arg(long)]
    out: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let codegen = arguments.codegen.unwrap_or(device::SHIPPED);
    if arguments.check {
        return check();
    }
    if let Some(folder) = &arguments.out {
        return write_to(folder, codegen);
    }
    let generated = generate(codegen)?;
    let folder = workspace::root().join("ptx");
    fs::create_dir_all(&folder)?;
    for name in names(&folder)? {
        if !generated.contains_key(&name) {
            fs::remove_file(folder.join(&name))?;
        }
    }
    for (name, text) in &generated {
        fs::write(folder.join(name), text)?;
        println!("ptx/{name}");
    }
    Ok(())
}

/// Fails if `ptx/` is not what a build makes of the sources as they are.
pub(crate) fn check() -> Result<()> {
    let generated = generate(device::SHIPPED)?;
    let folder = workspace::root().join("ptx");
    let committed = names(&folder)?;
    let expected: BTreeSet<String> = generated.keys().cloned().collect();
    ensure!(
        committed == expected,
        "ptx/ holds {committed:?}, a build makes {expected:?}: run `cargo xtask build-ptx`"
    );
    for (name, text) in &generated {
        let path = folder.join(name);
        let old = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        if let Some(difference) = first_difference(&old, text) {
            bail!("ptx/{name} is stale: {difference}\nrun `cargo xtask build-ptx`");
        }
        println!("ptx/{name} is what a build makes");
    }
    Ok(())
}

/// One code generator's PTX alone.
pub(crate) fn write_to(folder: &Path, codegen: Codegen) -> Result<()> {
    let tools = CudaTools::find();
    for target in &device::TARGETS {
        let path = folder.join(target.file());
        let built = build(target, codegen, tools.as_ref(), &path)?;
        println!("{} ({})", path.display(), built.codegen);
    }
    Ok(())
}

/// The files of `ptx/`, by name. Both code generators' PTX is built and assembled.
fn generate(shipped: Codegen) -> Result<BTreeMap<String, String>> {
    let tools = CudaTools::require()?;
    let other = match shipped {
        Codegen::Nvvm => Codegen::Llvm,
        Codegen::Llvm => Codegen::Nvvm,
    };
    let mut files = BTreeMap::new();
    let mut manifest = Manifest {
        rustc: String::new(),
        codegen: shipped,
        codegen_version: String::new(),
        why: match shipped == device::SHIPPED {
            true => device::WHY.to_owned(),
            false => "asked for on the command line".to_owned(),
        },
        sources: sources()?,
        files: Vec::new(),
    };
    let mut usages = Vec::new();
    for codegen in [shipped, other] {
        let mut of_codegen = Vec::new();
        for target in &device::TARGETS {
            let path = workspace::target()
                .join("ptx")
                .join(codegen.name())
                .join(target.file());
            let built = build(target, codegen, Some(&tools), &path)?;
            ensure!(
                built.codegen == codegen,
                "{} was not built by {codegen}",
                target.file()
            );
            for gpu in target.gpus {
                let said = tools.assemble(&path, gpu)?;
                of_codegen.extend(resources::parse(&said, target.arch, gpu)?);
            }
            if codegen == shipped {
                manifest.rustc.clone_from(&built.rustc);
                manifest.codegen_version.clone_from(&built.codegen_version);
                manifest.files.push(PtxFile::of(&built, target.file())?);
                files.insert(target.file(), built.ptx);
            }
        }
        usages.push((codegen, of_codegen));
    }
    resources::check(&usages[0].1, &device::STACK_REASONS)?;
    files.insert(
        "MANIFEST.toml".to_owned(),
        format!("# Written by `cargo xtask build-ptx`.\n{manifest}"),
    );
    files.insert(
        "RESOURCES.md".to_owned(),
        resources::table(&tools.ptxas_version()?, &usages),
    );
    Ok(files)
}

fn build(
    target: &Target,
    codegen: Codegen,
    tools: Option<&CudaTools>,
    path: &Path,
) -> Result<Built> {
    eprintln!("building {} by {codegen}", target.file());
    let mut builder = CudaBuilder::new(workspace::root().join(device::CRATE))
        .arch(target.arch)
        .codegen(codegen)
        .target_dir(workspace::target().join("device"))
        .copy_to(path);
    if let Some((major, minor)) = target.ptx_version {
        builder = builder.ptx_version(major, minor);
    }
    if let Some(tools) = tools {
        builder = builder.libnvvm(tools.libnvvm());
    }
    let built = builder.build()?;
    for note in &built.notes {
        eprintln!("{note}");
    }
    eprint!("{}", built.warnings);
    Ok(built)
}

fn sources() -> Result<Sources> {
    let paths = device::SOURCES.map(str::to_owned).to_vec();
    Ok(Sources::hashed(paths, packages()?, workspace::root())?)
}

/// The packages from registries that the device build takes in, macros included.
fn packages() -> Result<Vec<String>> {
    let mut command = workspace::cargo();
    command
        .args(["tree", "--package", device::PACKAGE])
        .args(["--target", "nvptx64-nvidia-cuda", "--edges", "normal,build"])
        .args(["--prefix", "none", "--format", "{p}"]);
    let tree = workspace::output(&mut command)?;
    // `half v2.7.1`, `syn v2.0.1 (*)`, but `specdraft-cuda-std v0.1.0 (/a/path)`.
    let from_registry = tree.lines().filter(|line| !line.contains('/'));
    let names = from_registry.filter_map(|line| line.split(' ').next());
    let names: BTreeSet<&str> = names.filter(|name| !name.is_empty()).collect();
    Ok(names.into_iter().map(str::to_owned).collect())
}

fn names(folder: &Path) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for item in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        names.insert(item?.file_name().to_string_lossy().into_owned());
    }
    Ok(names)
}

fn first_difference(old: &str, new: &str) -> Option<String> {
    if old == new {
        return None;
    }
    let pairs = old.lines().zip(new.lines()).enumerate();
    for (index, (old, new)) in pairs {
        if old != new {
            return Some(format!(
                "line {}:\n  committed: {old}\n  built:     {new}",
                index + 1
            ));
        }
    }
    Some(format!(
        "{} lines are committed, {} built",
        old.lines().count(),
        new.lines().count()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_found() {
        assert_eq!(first_difference("a\nb\n", "a\nb\n"), None);
        let changed = first_difference("a\nb\n", "a\nc\n").unwrap();
        assert!(
            changed.starts_with("line 2:") && changed.contains("built:     c"),
            "{changed}"
        );
        assert_eq!(
            first_difference("a\n", "a\nb\n").unwrap(),
            "1 lines are committed, 2 built"
        );
        assert!(first_difference("a", "a\n").is_some());
    }

    #[test]
    fn macros_packages_count() {
        let packages = packages().unwrap();
        assert!(packages.iter().any(|name| name == "syn"), "{packages:?}");
        assert!(
            !packages.iter().any(|name| name.starts_with("specdraft")),
            "{packages:?}"
        );
    }
}
