//! `specdraft doctor`: what this machine can run, and why not more.

use std::io::{self, Write};

use anyhow::Context as _;
use serde::Serialize;
use specdraft::driver::{Device, Driver, DriverError, Ptx};
use specdraft::suffix::{SuffixConfig, SuffixDrafter};

use crate::args::Doctor;
use crate::failure::{Exit, OrExit, Result};
use crate::tools::{self, Tool};

/// Looks around and says what there is. Finding no GPU is no failure.
pub(crate) fn doctor(args: &Doctor) -> Result<()> {
    let findings = Findings::gather();
    let mut out = io::stdout().lock();
    let written = match args.json {
        true => serde_json::to_writer(&mut out, &findings)
            .map_err(io::Error::from)
            .and_then(|()| writeln!(out)),
        false => findings.write(&mut out),
    };
    written
        .and_then(|()| out.flush())
        .context("cannot write the report")
        .or_exit(Exit::Failed)
}

#[derive(Serialize)]
struct Findings {
    version: &'static str,
    backends: Vec<Backend>,
    /// The CUDA version that the driver supports.
    driver: Option<String>,
    gpus: Vec<Gpu>,
    ptx: Vec<BuiltIn>,
    /// The file that `SPECDRAFT_PTX` names, loaded instead.
    ptx_override: Option<String>,
    tools: Vec<Tool>,
    advice: Vec<String>,
}

#[derive(Serialize)]
struct Backend {
    name: &'static str,
    works: bool,
    why_not: Option<String>,
}

#[derive(Serialize)]
struct Gpu {
    ordinal: usize,
    name: String,
    capability: String,
    multiprocessors: u32,
    memory_bytes: u64,
    /// The PTX picked for it.
    ptx: Option<BuiltIn>,
    works: bool,
    why_not: Option<String>,
}

#[derive(Clone, Serialize)]
struct BuiltIn {
    name: String,
    version: String,
    target: String,
    runs_on: String,
}

impl Findings {
    fn gather() -> Self {
        let carried = Ptx::built_in().unwrap_or_default();
        let driver = Driver::load();
        let (gpus, no_gpu) = match driver
            .as_ref()
            .map_err(Clone::clone)
            .and_then(Driver::devices)
        {
            Ok(devices) => {
                let gpus = devices.iter().enumerate();
                let gpus: Vec<Gpu> = gpus
                    .map(|(ordinal, device)| Gpu::examine(ordinal, device, &carried))
                    .collect();
                let none = gpus
                    .is_empty()
                    .then(|| "the driver shows no GPU".to_owned());
                (gpus, none)
            }
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        let cuda_works = gpus.first().is_some_and(|gpu| gpu.works);
        let why_not = no_gpu.or_else(|| gpus.first().and_then(|gpu| gpu.why_not.clone()));
        let tools = tools::find();
        Self {
            version: env!("CARGO_PKG_VERSION"),
            backends: vec![
                Backend::tried("cpu", SuffixDrafter::cpu(small())),
                Backend::tried("emulator", SuffixDrafter::emulator(small())),
                Backend {
                    name: "cuda",
                    works: cuda_works,
                    why_not: why_not.filter(|_| !cuda_works),
                },
            ],
            advice: advice(&driver, &gpus, &tools),
            driver: driver.ok().map(|driver| driver.version().to_string()),
            gpus,
            ptx: carried.iter().map(BuiltIn::of).collect(),
            ptx_override: std::env::var("SPECDRAFT_PTX")
                .ok()
                .filter(|path| !path.is_empty()),
            tools,
        }
    }

    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "specdraft {}", self.version)?;
        writeln!(out, "\nBackends")?;
        for backend in &self.backends {
            let state = match &backend.why_not {
                None => "works".to_owned(),
                Some(why) => format!("does not work: {}", indented(why)),
            };
            writeln!(out, "  {:<10} {state}", backend.name)?;
        }
        writeln!(out, "\nGPUs")?;
        match &self.driver {
            Some(version) => writeln!(out, "  driver     for CUDA {version}")?,
            None => writeln!(out, "  driver     none")?,
        }
        for gpu in &self.gpus {
            gpu.write(out)?;
        }
        writeln!(out, "\nKernels in this program")?;
        for ptx in &self.ptx {
            let BuiltIn {
                name,
                version,
                target,
                runs_on,
            } = ptx;
            writeln!(
                out,
                "  {name}: .target {target}, .version {version}, for {runs_on}"
            )?;
        }
        if let Some(path) = &self.ptx_override {
            writeln!(out, "  SPECDRAFT_PTX is set: {path} is loaded instead")?;
        }
        writeln!(out, "\nTools for changing kernels")?;
        for tool in &self.tools {
            let place = tool.path.as_deref().unwrap_or("not found");
            writeln!(out, "  {:<10} {place}", tool.name)?;
        }
        writeln!(out, "\nWhat to do")?;
        for advice in &self.advice {
            writeln!(out, "  - {advice}")?;
        }
        Ok(())
    }
}

impl Backend {
    fn tried(name: &'static str, drafter: specdraft::Result<SuffixDrafter>) -> Self {
        let why_not = drafter
            .map_err(|error| error.to_string())
            .and_then(drafts)
            .err();
        Self {
            name,
            works: why_not.is_none(),
            why_not,
        }
    }
}

impl Gpu {
    fn examine(ordinal: usize, device: &Device, carried: &[Ptx<'static>]) -> Self {
        let (major, minor) = device.capability();
        let picked = Ptx::pick(carried, device);
        let drafter = SuffixDrafter::cuda(small(), ordinal);
        let why_not = drafter
            .map_err(|error| error.to_string())
            .and_then(drafts)
            .err();
        Self {
            ordinal,
            name: device.name().to_owned(),
            capability: format!("{major}.{minor}"),
            multiprocessors: device.multiprocessors(),
            memory_bytes: device.total_memory(),
            ptx: picked.ok().as_ref().map(BuiltIn::of),
            works: why_not.is_none(),
            why_not,
        }
    }

    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let memory = self.memory_bytes as f64 / (1u64 << 30) as f64;
        let (number, name) = (self.ordinal, &self.name);
        writeln!(
            out,
            "  GPU {number:<6} {name}, compute capability {}, {} multiprocessors, {memory:.1} GiB",
            self.capability, self.multiprocessors
        )?;
        let picked = self.ptx.as_ref().map_or("no kernels", |ptx| &ptx.name);
        match &self.why_not {
            None => writeln!(out, "             picks {picked}; drafts as the CPU does"),
            Some(why) => writeln!(
                out,
                "             picks {picked}; does not work: {}",
                indented(why)
            ),
        }
    }
}

impl BuiltIn {
    fn of(ptx: &Ptx<'_>) -> Self {
        Self {
            name: ptx.name.to_owned(),
            version: ptx.version.to_owned(),
            target: ptx.target.to_owned(),
            runs_on: match ptx.capability() {
                Some(((major, minor), true)) => format!("compute capability {major}.{minor} only"),
                Some(((major, minor), false)) => {
                    format!("compute capability {major}.{minor} and later")
                }
                None => "no GPU".into(),
            },
        }
    }
}

fn small() -> SuffixConfig {
    SuffixConfig {
        max_num_reqs: 1,
        max_model_len: 64,
        corpus_tokens: 64,
        ..SuffixConfig::default()
    }
}

/// Drafts once and looks at the draft.
fn drafts(mut drafter: SuffixDrafter) -> std::result::Result<(), String> {
    let draft = drafter
        .start(0, &[11, 12, 13, 14, 15, 11, 12])
        .and_then(|()| drafter.draft(&[0]))
        .map_err(|error| error.to_string())?;
    match draft.first() {
        Some(draft) if draft.tokens == [13, 14, 15, 11, 12] => Ok(()),
        other => Err(format!(
            "wrong draft: expected 13, 14, 15, 11, 12, got {:?}; please report this",
            other.map(|draft| &draft.tokens)
        )),
    }
}

fn advice(
    driver: &std::result::Result<Driver, DriverError>,
    gpus: &[Gpu],
    tools: &[Tool],
) -> Vec<String> {
    let mut advice = Vec::new();
    match driver {
        Ok(_) if gpus.first().is_some_and(|gpu| gpu.works) => {
            advice.push("Nothing: `specdraft replay` uses the GPU.".to_owned());
        }
        Ok(_) if gpus.is_empty() => advice.push(
            "To use a GPU, make one visible: look at `nvidia-smi -L` and CUDA_VISIBLE_DEVICES. Until then, replay runs on the CPU and gives the same numbers.".to_owned(),
        ),
        Ok(_) => advice.push(
            "Follow what is said beside the GPU. Until it works, replay runs on the CPU and gives the same numbers.".to_owned(),
        ),
        Err(error) if error.is_no_driver() => advice.push(
            "Without a GPU: nothing, replay runs on the CPU and gives the same numbers. With one: install NVIDIA's driver, or start the container with GPU access.".to_owned(),
        ),
        Err(error) if error.is_old_driver() => advice.push("Update NVIDIA's driver to one for CUDA 11.4 or newer.".to_owned()),
        Err(_) => advice.push("Follow what is said beside the cuda backend.".to_owned()),
    }
    if tools.iter().any(|tool| tool.path.is_none()) {
        advice.push(
            "To change kernels, in the repository: `cargo xtask setup` installs libNVVM and ptxas, `rustup component add rust-src` the rest. Using specdraft needs none of them.".to_owned(),
        );
    }
    advice
}

fn indented(text: &str) -> String {
    text.replace('\n', "\n             ")
}
