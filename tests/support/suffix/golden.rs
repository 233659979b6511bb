//! A backend against the golden vectors of vLLM's Triton kernels.

use std::fmt::Debug;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use specdraft::suffix::{Document, SuffixBackend, SuffixConfig, SuffixState};

use super::Factory;
use crate::golden::GoldenFile;

/// The Triton kernel's division is approximate.
const CONFIDENCE_ULP: u32 = 2;

/// What was compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GoldenReport {
    /// Files read.
    pub files: usize,
    /// Drafter lives.
    pub cases: usize,
    /// Ingest steps.
    pub ingests: usize,
    /// Propose steps (with their observe, where adaptive).
    pub proposes: usize,
}

/// Runs every `suffix*` golden file through backends from `factory` and compares every tensor: integers exactly,
/// confidences to 2 units in the last place.
///
/// # Errors
/// A missing file, an error of the backend, or a difference; each names file, case, step and tensor.
pub fn check_golden(factory: &mut Factory<'_>) -> Result<GoldenReport> {
    let mut report = GoldenReport::default();
    for file in GoldenFile::all("suffix")? {
        report.files += 1;
        for (number, case) in file.cases::<Vec<Case>>()?.iter().enumerate() {
            report.cases += 1;
            let mut backend = factory(&case.config())?;
            for (step, kind) in case.steps.iter().enumerate() {
                let prefix = format!("case{number:03}.step{step}.");
                let result = match kind.as_str() {
                    "ingest" => {
                        report.ingests += 1;
                        ingest(&file, &prefix, &mut *backend)
                    }
                    "propose" => {
                        report.proposes += 1;
                        propose(&file, &prefix, &mut *backend)
                    }
                    _ => bail!("unknown kind of step: {kind}"),
                };
                result.with_context(|| format!("{}: {prefix}{kind}", file.path.display()))?;
            }
        }
    }
    Ok(report)
}

/// One drafter's life.
#[derive(Deserialize)]
struct Case {
    max_num_reqs: usize,
    max_model_len: usize,
    num_speculative_tokens: usize,
    max_depth: usize,
    corpus_tokens: usize,
    adaptive: bool,
    steps: Vec<String>,
}

impl Case {
    fn config(&self) -> SuffixConfig {
        SuffixConfig {
            max_num_reqs: self.max_num_reqs,
            max_model_len: self.max_model_len,
            num_draft_tokens: self.num_speculative_tokens,
            max_depth: self.max_depth,
            corpus_tokens: self.corpus_tokens,
            adaptive: self.adaptive,
            history_index: false,
        }
    }
}

fn ingest(file: &GoldenFile, prefix: &str, backend: &mut dyn SuffixBackend) -> Result<()> {
    let tensor = |name: &str| format!("{prefix}{name}");
    write_rows(file, prefix, backend)?;
    let docs = file.i32(&tensor("docs"))?;
    let docs = docs
        .as_chunks()
        .0
        .iter()
        .map(|&[slot, start]| Document { slot, start });
    backend.ingest(&docs.collect::<Vec<_>>())?;

    let state = backend.state()?;
    equal("corpus", &state.corpus, &file.i32(&tensor("corpus"))?)?;
    equal("table", &state.table, &file.i64(&tensor("table"))?)?;
    equal("head", &[state.head], &file.i64(&tensor("head"))?)?;
    equal("doc_seq", &[state.doc_seq], &file.i64(&tensor("doc_seq"))?)
}

fn propose(file: &GoldenFile, prefix: &str, backend: &mut dyn SuffixBackend) -> Result<()> {
    let tensor = |name: &str| format!("{prefix}{name}");
    write_rows(file, prefix, backend)?;
    let idx_mapping = file.i32(&tensor("idx_mapping"))?;
    let num_sampled = file.i32(&tensor("num_sampled"))?;
    let num_rejected = file.i32(&tensor("num_rejected"))?;
    let last_sampled = file.i64(&tensor("last_sampled"))?;
    backend.observe(&idx_mapping, &num_sampled, &num_rejected)?;
    let got = backend.propose(&idx_mapping, &num_sampled, &last_sampled)?;

    equal("drafts", &got.drafts, &file.i64(&tensor("drafts"))?)?;
    equal(
        "num_valid",
        &got.num_valid,
        &file.i32(&tensor("num_valid"))?,
    )?;
    if !backend.config().adaptive {
        return equal("confidence", &got.confidence, &[]);
    }
    close(
        "confidence",
        &got.confidence,
        &file.f32(&tensor("confidence"))?,
    )?;
    let SuffixState {
        stats,
        last_bucket,
        last_valid,
        ..
    } = backend.state()?;
    equal("stats", &stats, &file.i64(&tensor("stats"))?)?;
    equal(
        "last_bucket",
        &last_bucket,
        &file.i32(&tensor("last_bucket"))?,
    )?;
    equal("last_valid", &last_valid, &file.i32(&tensor("last_valid"))?)
}

/// Gives the backend every word of every row, stale ones after a row's end included.
fn write_rows(file: &GoldenFile, prefix: &str, backend: &mut dyn SuffixBackend) -> Result<()> {
    let name = format!("{prefix}token_ids");
    let tokens = file.i32(&name)?;
    let stride = backend.config().max_model_len;
    ensure!(
        file.shape(&name) == Some(&[backend.config().max_num_reqs, stride]),
        "{name} has another shape than the case"
    );
    for (slot, row) in tokens.chunks_exact(stride).enumerate() {
        backend.write_tokens(slot, 0, row)?;
    }
    let lengths = file.i32(&format!("{prefix}total_len"))?;
    for (slot, &len) in lengths.iter().enumerate() {
        backend.set_total_len(slot, len)?;
    }
    Ok(())
}

fn equal<T: PartialEq + Debug>(name: &str, got: &[T], want: &[T]) -> Result<()> {
    compare(name, got, want, |got, want| got == want)
}

fn close(name: &str, got: &[f32], want: &[f32]) -> Result<()> {
    // Confidences are never negative, so their bits are in the order of their values.
    compare(name, got, want, |got, want| {
        got.to_bits().abs_diff(want.to_bits()) <= CONFIDENCE_ULP
    })
}

fn compare<T: Debug>(
    name: &str,
    got: &[T],
    want: &[T],
    same: impl Fn(&T, &T) -> bool,
) -> Result<()> {
    ensure!(
        got.len() == want.len(),
        "{name}: {} words, expected {}",
        got.len(),
        want.len()
    );
    for (index, (got, want)) in got.iter().zip(want).enumerate() {
        ensure!(
            same(got, want),
            "{name}[{index}]: got {got:?}, expected {want:?}"
        );
    }
    Ok(())
}
