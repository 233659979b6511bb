//! `ptx/RESOURCES.md`: what each kernel takes of a multiprocessor, as ptxas says.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::{Context, Result, bail};
use cuda_builder::Codegen;

use crate::device;

/// One kernel, assembled for one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) kernel: String,
    /// The PTX's target.
    pub(crate) target: String,
    pub(crate) gpu: String,
    pub(crate) registers: u32,
    /// Static shared memory, in bytes.
    pub(crate) shared: u32,
    /// Stack frame, in bytes a thread.
    pub(crate) stack: u32,
    /// Stored and loaded, in bytes a thread.
    pub(crate) spills: u32,
}

/// Reads the output of `ptxas -v`.
pub(crate) fn parse(text: &str, target: &str, gpu: &str) -> Result<Vec<Usage>> {
    let mut usages: Vec<Usage> = Vec::new();
    // Functions report too, after the kernel that calls them.
    let mut of_kernel = false;
    for line in text.lines() {
        if let Some(rest) = line.split_once("Compiling entry function '") {
            let kernel = rest.1.split('\'').next().unwrap_or_default();
            usages.push(Usage {
                kernel: kernel.to_owned(),
                target: target.to_owned(),
                gpu: gpu.to_owned(),
                ..Usage::default()
            });
        } else if let Some((_, function)) = line.split_once("Function properties for ") {
            of_kernel = usages
                .last()
                .is_some_and(|usage| usage.kernel == function.trim());
        } else if let (true, Some(usage)) = (of_kernel, usages.last_mut()) {
            for part in line.rsplit(" : ").next().unwrap_or(line).split(',') {
                usage.add(part.trim())?;
            }
        }
    }
    usages.sort_by(|a, b| a.kernel.cmp(&b.kernel));
    Ok(usages)
}

impl Usage {
    fn cell(&self) -> String {
        let mut cell = self.registers.to_string();
        if self.stack > 0 {
            cell += &format!(", stack {}", self.stack);
        }
        if self.spills > 0 {
            cell += &format!(", spills {}", self.spills);
        }
        cell
    }

    fn add(&mut self, part: &str) -> Result<()> {
        let part = part.strip_prefix("Used ").unwrap_or(part);
        let Some((number, what)) = part.split_once(' ') else {
            return Ok(());
        };
        let place = match what {
            "registers" => &mut self.registers,
            "bytes smem" => &mut self.shared,
            "bytes stack frame" => &mut self.stack,
            "bytes spill stores" | "bytes spill loads" => &mut self.spills,
            _ => return Ok(()),
        };
        let number: u32 = number
            .parse()
            .with_context(|| format!("ptxas says `{part}`"))?;
        *place += number;
        Ok(())
    }
}

/// Fails if a kernel uses local memory without a reason in [`device::STACK_REASONS`], or has a reason that it needs no more.
pub(crate) fn check(usages: &[Usage], reasons: &[(&str, &str)]) -> Result<()> {
    for usage in usages {
        let excused = reasons.iter().any(|(kernel, _)| *kernel == usage.kernel);
        if (usage.stack > 0 || usage.spills > 0) && !excused {
            bail!(
                "{} for {} on {}: {} bytes of stack frame, {} bytes spilled. An array indexed at run time or too few registers, typically; if it must be, give the reason in xtask/src/device.rs",
                usage.kernel,
                usage.target,
                usage.gpu,
                usage.stack,
                usage.spills
            );
        }
    }
    for (kernel, _) in reasons {
        let needed = usages
            .iter()
            .any(|usage| usage.kernel == *kernel && (usage.stack > 0 || usage.spills > 0));
        if !needed {
            bail!("{kernel} uses no local memory: remove its reason from xtask/src/device.rs");
        }
    }
    Ok(())
}

/// The file's text. The first code generator is the one that ships.
pub(crate) fn table(ptxas: &str, usages: &[(Codegen, Vec<Usage>)]) -> String {
    let mut text = format!(
        "# What the kernels use\n\n\
         Written by `cargo xtask build-ptx` from `ptxas -v` (ptxas {ptxas}). Shared: bytes a block, without dynamic shared memory. Then, for each \
         PTX and the GPUs that it is assembled for, registers a thread; a stack frame or spilled registers, if any, beside them in bytes.\n"
    );
    for (index, (codegen, usages)) in usages.iter().enumerate() {
        let role = if index == 0 {
            ", which ships"
        } else {
            ", for comparison"
        };
        line(&mut text, format_args!("\n## {codegen}{role}\n"));
        rows(&mut text, usages);
    }
    for (kernel, reason) in device::STACK_REASONS {
        line(&mut text, format_args!("\n- {kernel}: {reason}"));
    }
    text
}

/// One row a kernel, one column an assembly.
fn rows(text: &mut String, usages: &[Usage]) {
    let mut columns = Vec::new();
    let mut kernels: BTreeMap<&str, Vec<&Usage>> = BTreeMap::new();
    for usage in usages {
        let column = (usage.target.as_str(), usage.gpu.as_str());
        if !columns.contains(&column) {
            columns.push(column);
        }
        kernels.entry(&usage.kernel).or_default().push(usage);
    }
    let heads = columns.iter().map(|(target, gpu)| match target == gpu {
        true => format!(" {gpu} |"),
        false => format!(" {target} on {gpu} |"),
    });
    line(
        text,
        format_args!("| kernel | shared |{}", heads.collect::<String>()),
    );
    line(
        text,
        format_args!("|---|--:|{}", "--:|".repeat(columns.len())),
    );
    for (kernel, usages) in kernels {
        let shared = usages.iter().map(|usage| usage.shared).max();
        let mut row = format!("| {kernel} | {} |", shared.unwrap_or(0));
        for column in &columns {
            let found = usages
                .iter()
                .find(|usage| (usage.target.as_str(), usage.gpu.as_str()) == *column);
            row += &found.map_or_else(|| " |".to_owned(), |usage| format!(" {} |", usage.cell()));
        }
        line(text, format_args!("{row}"));
    }
}

fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    writeln!(text, "{arguments}").expect("a String takes every write");
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTXAS: &str = "\
ptxas info    : 28 bytes gmem, 8 bytes cmem[4]
ptxas info    : Compiling entry function 'hello' for 'sm_80'
ptxas info    : Function properties for hello
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 1 barriers, 1024 bytes smem, 364 bytes cmem[0]
ptxas info    : Compile time = 4.345 ms
ptxas info    : Compiling entry function 'bad' for 'sm_80'
ptxas info    : Function properties for bad
    64 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers, 64 bytes cumulative stack size, 372 bytes cmem[0]
ptxas info    : Function properties for helper
    16 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
";

    fn usages() -> Vec<Usage> {
        parse(PTXAS, "sm_80", "sm_89").unwrap()
    }

    #[test]
    fn ptxas_is_understood() {
        let [bad, hello] = &usages()[..] else {
            panic!("{:?}", usages());
        };
        assert_eq!(
            (bad.registers, bad.shared, bad.stack, bad.spills),
            (8, 0, 64, 20)
        );
        assert_eq!(
            (hello.registers, hello.shared, hello.stack, hello.spills),
            (10, 1024, 0, 0)
        );
        assert_eq!((&*hello.target, &*hello.gpu), ("sm_80", "sm_89"));
    }

    #[test]
    fn local_memory_needs_a_reason_and_a_reason_local_memory() {
        let error = check(&usages(), &[]).unwrap_err().to_string();
        assert!(
            error.contains("bad for sm_80 on sm_89: 64 bytes of stack frame, 20 bytes spilled"),
            "{error}"
        );
        check(&usages(), &[("bad", "rarely runs")]).unwrap();
        let error = check(&usages(), &[("bad", "rarely runs"), ("hello", "")]).unwrap_err();
        assert!(error.to_string().starts_with("hello uses no local memory"));
    }

    #[test]
    fn the_table_has_a_row_a_kernel_and_a_column_an_assembly() {
        let mut all = usages();
        all.extend(
            parse(PTXAS, "sm_90a", "sm_90a")
                .unwrap()
                .into_iter()
                .take(1),
        );
        let text = table(
            "13.5.37",
            &[(Codegen::Nvvm, all), (Codegen::Llvm, Vec::new())],
        );
        let (ships, other) = text.split_once("## llvm, for comparison").unwrap();
        assert!(ships.contains("## nvvm, which ships"));
        assert!(
            ships.contains("\n| kernel | shared | sm_80 on sm_89 | sm_90a |\n|---|--:|--:|--:|\n")
        );
        assert!(
            ships.contains("\n| bad | 0 | 8, stack 64, spills 20 | 8, stack 64, spills 20 |\n")
        );
        assert!(ships.contains("\n| hello | 1024 | 10 | |\n"));
        assert!(!other.contains("hello"));
    }
}
