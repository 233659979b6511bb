//! The project's own commands: `cargo xtask help`.

mod bench;
mod build_ptx;
mod bundle;
mod cuda_tools;
mod device;
mod fuzz;
mod gpu;
mod plots;
mod report;
mod resources;
mod setup;
mod test;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "specdraft's own commands",
    disable_version_flag = true
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Install NVIDIA's compiler and tools into target/cuda-tools
    Setup,
    /// Build the kernels into ptx/
    BuildPtx(build_ptx::Arguments),
    /// Run every check that this machine can run
    Test,
    /// Compare the kernels with the CPU drafter on generated lives
    Fuzz(fuzz::Arguments),
    /// Time the drafters beside their peers
    Bench(bench::Arguments),
    /// Draw how the times grow, from a record
    Plots(plots::Arguments),
    /// Pack what the GPU tests need, to run them on another machine
    Bundle,
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Setup => setup::run(),
        Command::BuildPtx(arguments) => build_ptx::run(&arguments),
        Command::Test => test::run(),
        Command::Fuzz(arguments) => fuzz::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Plots(arguments) => plots::run(&arguments),
        Command::Bundle => bundle::run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
