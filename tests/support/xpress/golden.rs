//! A backend against the golden vectors of vLLM's Triton kernels.

use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use specdraft::xpress::{
    BlockView, FoldedMixer, Mlp, RefineInputs, XpressBackend, XpressConfig, XpressHead,
    XpressLimits, XpressWeights, bf16,
};

use super::Factory;
use crate::golden::GoldenFile;

/// How much farther than the golden kernel a latent may be from the float64 formula.
const LATENT_SLACK: f64 = 1.5;

/// What was compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GoldenReport {
    /// Files read.
    pub files: usize,
    /// Latent stages, with the MLP or without.
    pub latents: usize,
    /// Argmax stages over a vocabulary.
    pub argmaxes: usize,
    /// Argmax stages over candidates.
    pub topcs: usize,
    /// Whole refinements.
    pub refinements: usize,
    /// Tokens of the refinements, over all passes.
    pub tokens: usize,
    /// Those among them where the two best logits lie within a rounding step and the other one won.
    pub ties: usize,
}

/// Runs every `xpress*` golden file through backends from `factory`.
///
/// The argmax stages are compared exactly. Latents must lie within bf16 rounding of the float64 formula, and no farther
/// from it than 1.5 times the golden kernel's own error. Tokens of a refinement must be equal wherever the margin
/// between the two best logits exceeds the rounding of bias and sum.
///
/// # Errors
/// A missing file, an error of the backend, or a difference; each names file and case.
pub fn check_golden(factory: &mut Factory<'_>) -> Result<GoldenReport> {
    let mut report = GoldenReport::default();
    for file in GoldenFile::all("xpress")? {
        report.files += 1;
        for case in file.cases::<Vec<Case>>()? {
            let case = Golden { file: &file, case };
            case.check(factory, &mut report)
                .with_context(|| format!("{}: {}", file.path.display(), case.case.tag))?;
        }
    }
    Ok(report)
}

#[derive(Deserialize)]
#[allow(non_snake_case, reason = "the letters of the golden files")]
struct Case {
    tag: String,
    kind: String,
    N: usize,
    B: usize,
    V: usize,
    #[serde(default)]
    R: usize,
    #[serde(default)]
    H: usize,
    #[serde(default)]
    C: usize,
    #[serde(default)]
    do_mlp: bool,
    #[serde(default)]
    passes: usize,
}

struct Golden<'a> {
    file: &'a GoldenFile,
    case: Case,
}

impl Golden<'_> {
    fn check(&self, factory: &mut Factory<'_>, report: &mut GoldenReport) -> Result<()> {
        match self.case.kind.as_str() {
            "latent" => {
                report.latents += 1;
                self.latent(factory)
            }
            "argmax" => {
                report.argmaxes += 1;
                self.argmax(factory)
            }
            "topc" => {
                report.topcs += 1;
                self.topc(factory)
            }
            "refine" => {
                report.refinements += 1;
                self.refine(factory, report)
            }
            other => bail!("unknown kind of case: {other}"),
        }
    }

    fn latent(&self, factory: &mut Factory<'_>) -> Result<()> {
        let mut backend = self.backend(factory, self.head(false)?)?;
        let mlp = if self.case.do_mlp {
            Mlp::Run
        } else {
            Mlp::Skip
        };
        let (blocks, previous) = (self.i64("blk")?, self.i64("am1")?);
        let got = backend.latent_pass(&blocks, &previous, &self.bf16("xh")?, mlp)?;
        let exact = self.file.f32(&self.name("lat_f64"))?;
        let golden = self.bf16("lat")?;
        ensure!(
            got.len() == exact.len(),
            "{} latents, expected {}",
            got.len(),
            exact.len()
        );

        let distance = |latents: &[bf16]| -> Vec<f64> {
            latents
                .iter()
                .zip(&exact)
                .map(|(l, e)| (l.to_f64() - f64::from(*e)).abs())
                .collect()
        };
        let (ours, theirs) = (distance(&got), distance(&golden));
        let norm = |d: &[f64]| d.iter().map(|d| d * d).sum::<f64>().sqrt();
        let largest = |d: &[f64]| d.iter().copied().fold(0.0, f64::max);
        for (what, ours, theirs) in [
            ("norm", norm(&ours), norm(&theirs)),
            ("largest", largest(&ours), largest(&theirs)),
        ] {
            ensure!(
                ours <= LATENT_SLACK * theirs,
                "{what} of the error {ours:.3e}, the golden kernel's {theirs:.3e}"
            );
        }
        // The latent is rounded once; with the MLP, u and the product were rounded before it.
        let size = exact.iter().map(|e| f64::from(e.abs())).fold(0.0, f64::max);
        for (i, (ours, exact)) in ours.iter().zip(&exact).enumerate() {
            let half_step = step_of(f64::from(*exact)) / 2.0;
            let before = if self.case.do_mlp {
                step_of(size)
            } else {
                1e-5 * size
            };
            ensure!(
                *ours <= half_step + before,
                "latent {i}: {}, expected {exact} (error {ours:.3e})",
                got[i]
            );
        }
        Ok(())
    }

    fn argmax(&self, factory: &mut Factory<'_>) -> Result<()> {
        let Case { N, B, V, .. } = self.case;
        let mut backend = self.backend(factory, self.small_head()?)?;
        let (base, bias) = (self.bf16("base")?, self.bf16("bias")?);
        let mut blocks = vec![-7; N * B];
        backend.add_argmax(
            BlockView::contiguous(&base, N, B - 1, V)?,
            BlockView::contiguous(&bias, N, B - 1, V)?,
            &mut blocks,
        )?;
        let golden = self.i64("blk")?;
        ensure!(blocks == golden, "blocks {blocks:?}, expected {golden:?}");
        Ok(())
    }

    fn topc(&self, factory: &mut Factory<'_>) -> Result<()> {
        let Case { N, B, C, .. } = self.case;
        let mut backend = self.backend(factory, self.small_head()?)?;
        let (base, bias) = (self.bf16("base_c")?, self.bf16("bias_c")?);
        let mut blocks = vec![-7; N * B];
        backend.topc_argmax(
            BlockView::contiguous(&base, N, B - 1, C)?,
            BlockView::contiguous(&bias, N, B - 1, C)?,
            &self.i64("cand")?,
            &mut blocks,
        )?;
        let golden = self.i64("blk")?;
        ensure!(blocks == golden, "blocks {blocks:?}, expected {golden:?}");
        Ok(())
    }

    /// Runs all passes, and each pass alone from the golden block before it: a legitimate other winner then does not
    /// hide the passes after it.
    fn refine(&self, factory: &mut Factory<'_>, report: &mut GoldenReport) -> Result<()> {
        let Case {
            N, B, V, R, passes, ..
        } = self.case;
        let slots = B - 1;
        let mut backend = self.backend(factory, self.head(true)?)?;
        let (base, xh) = (self.bf16("base")?, self.bf16("xh")?);
        let (start, trace) = (self.i64("blk_start")?, self.i64("blk_trace")?);
        let margins = self.file.f32(&self.name("top2_margin"))?;
        let previous = self.i64("am1")?;
        let anchors: Vec<i64> = start.iter().step_by(B).copied().collect();
        let draft_slots = |blocks: &[i64]| -> Vec<i64> {
            blocks
                .chunks_exact(B)
                .flat_map(|block| &block[1..])
                .copied()
                .collect()
        };
        let golden: Vec<Vec<i64>> = std::iter::once(&start[..])
            .chain(trace.chunks_exact(N * B))
            .map(draft_slots)
            .collect();
        let inputs = RefineInputs {
            base: BlockView::contiguous(&base, N, slots, V)?,
            hidden: BlockView::contiguous(&xh, N, B, R)?,
            anchors: &anchors,
            previous: &previous,
            seeds: None,
            passes,
            topc: 0,
        };
        let ours = backend.refine_trace(&inputs)?;
        ensure!(
            ours[0] == golden[0],
            "start {:?}, expected {:?}",
            ours[0],
            golden[0]
        );

        for pass in 1..=passes {
            let alone = backend.refine(&RefineInputs {
                seeds: Some(&golden[pass - 1]),
                passes: 1,
                ..inputs
            })?;
            for i in 0..N * slots {
                report.tokens += 1;
                let (first, row) = (i - i % slots, &base[i * V..(i + 1) * V]);
                let want = golden[pass][i];
                let margin = f64::from(margins[(pass - 1) * N * slots + i]);
                // Bias and sum may each fall on the other side of a rounding step, for either of the two tokens.
                let rounding = 2.0 * step_of(row[want as usize].to_f64().abs() + margin + 4.0);
                let same_input = ours[pass - 1][first..i] == golden[pass - 1][first..i];
                for (got, told) in [(alone[i], true), (ours[pass][i], same_input)] {
                    let context = || {
                        format!(
                            "pass {pass}, row {i}: token {got}, expected {want} (margin {margin})"
                        )
                    };
                    ensure!(got == want || !told || margin <= rounding, context());
                }
                report.ties += usize::from(alone[i] != want);
            }
        }
        Ok(())
    }

    fn backend(
        &self,
        factory: &mut Factory<'_>,
        head: XpressHead,
    ) -> Result<Box<dyn XpressBackend>> {
        let limits = XpressLimits {
            max_num_reqs: self.case.N,
            max_topc: 0,
        };
        Ok(factory(Arc::new(head), limits)?)
    }

    /// The case's head. The golden vectors begin with the hidden cache: with these projections it equals the hidden
    /// states.
    fn head(&self, readout: bool) -> Result<XpressHead> {
        let Case { B, V, R, H, .. } = self.case;
        let config = XpressConfig {
            vocab_size: V,
            hidden_size: R,
            rank: R,
            mlp_hidden: H,
            block_size: B,
            num_passes: self.case.passes,
            topc: 0,
        };
        let w1 = self.bf16("w1")?;
        let tokens = transposed(&self.bf16("wlat_t")?, R, R);
        let mut in_proj = vec![bf16::ZERO; R * 3 * R];
        let mut down_h = vec![bf16::ZERO; R * R];
        for c in 0..R {
            down_h[c * R + c] = bf16::ONE;
            in_proj[c * 3 * R + c] = bf16::ONE;
            in_proj[c * 3 * R + 2 * R..][..R].copy_from_slice(&tokens[c * R..][..R]);
        }
        let weights = XpressWeights {
            w2: if readout {
                self.bf16("w2")?
            } else {
                w1.clone()
            },
            w1,
            down_h,
            down_g: vec![bf16::ZERO; R * R],
            in_proj,
            mixer: FoldedMixer::from_folded(R, B, self.bf16("mix_kjc")?)?,
            gate: transposed(&self.bf16("wg_t")?, R, H),
            up: transposed(&self.bf16("wu_t")?, R, H),
            down: transposed(&self.bf16("wd_t")?, H, R),
        };
        Ok(XpressHead::from_parts(config, weights)?)
    }

    /// A head for stages that use none of it.
    fn small_head(&self) -> Result<XpressHead> {
        let config = super::config([16, 8, 16, 16, self.case.B]);
        Ok(XpressHead::generate(
            &config,
            specdraft::xpress::Generate::Normal,
            0,
        )?)
    }

    fn name(&self, tensor: &str) -> String {
        format!("{}{tensor}", self.case.tag)
    }

    fn i64(&self, tensor: &str) -> Result<Vec<i64>> {
        self.file.i64(&self.name(tensor))
    }

    fn bf16(&self, tensor: &str) -> Result<Vec<bf16>> {
        Ok(self
            .file
            .bf16(&self.name(tensor))?
            .into_iter()
            .map(bf16::from_bits)
            .collect())
    }
}

/// The distance between two neighbouring bf16 at this size.
fn step_of(value: f64) -> f64 {
    2f64.powi(value.abs().max(1e-30).log2().floor() as i32 - 7)
}

/// `[rows, columns]` to `[columns, rows]`.
fn transposed(matrix: &[bf16], rows: usize, columns: usize) -> Vec<bf16> {
    (0..rows * columns)
        .map(|i| matrix[(i % rows) * columns + i / rows])
        .collect()
}
