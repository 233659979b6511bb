//! Runs a case on two backends.

use std::fmt::Debug;
use std::ops::Add;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, ensure};
use specdraft::cpu::CpuXpress;
use specdraft::xpress::{
    BlockLayout, BlockView, Generate, Mlp, RefineInputs, XpressBackend, XpressConfig, XpressHead,
    XpressLimits, bf16,
};

use super::case::{Case, Run, Target, Values};
use super::spread;
use super::stages::Numbers;

/// Builds a backend for a head, which runs as told.
pub type RunFactory<'a> = dyn FnMut(Arc<XpressHead>, XpressLimits, &Run) -> specdraft::Result<Box<dyn XpressBackend>>
    + 'a;

/// What cases did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Batches that were not empty.
    pub batches: usize,
    /// Rows that were compared.
    pub rows: usize,
    /// Tokens that passes changed.
    pub refined: usize,
}

impl Add for Done {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            batches: self.batches + other.batches,
            rows: self.rows + other.rows,
            refined: self.refined + other.refined,
        }
    }
}

impl Case {
    /// Asks a CPU refiner and one of `candidate` for the same, and compares the answers bit for bit; NaN is NaN.
    ///
    /// # Errors
    /// The first difference. A panic of a backend is one, and so is an error.
    pub fn compare(&self, candidate: &mut RunFactory<'_>) -> Result<Done> {
        catch_unwind(AssertUnwindSafe(|| self.run(candidate))).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<&str>().copied();
            let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
            Err(anyhow!("panic: {}", text.unwrap_or("no message")))
        })
    }

    fn run(&self, candidate: &mut RunFactory<'_>) -> Result<Done> {
        let mut config = super::config(self.sizes);
        if self.target == Target::Argmax {
            // The rows are not the head's.
            config.vocab_size = 1;
        }
        let head = Arc::new(XpressHead::generate(&config, Generate::Exact, self.seed)?);
        let limits = XpressLimits {
            max_num_reqs: self.batches.iter().copied().fold(1, usize::max),
            max_topc: self.topc.min(config.vocab_size),
        };
        let mut cpu = CpuXpress::new(head.clone(), limits)?;
        let mut candidate = candidate(head, limits, &self.run)?;
        let mut done = Done::default();
        for (number, &n) in self.batches.iter().enumerate() {
            let seed = self.seed.wrapping_add(0x9E37 * (1 + number as u64));
            let batch = Batch::new(self, &config, n, seed)?;
            let changed = batch
                .compare(&mut cpu, &mut *candidate)
                .with_context(|| format!("batch {number}"))?;
            done = done
                + Done {
                    batches: usize::from(n > 0),
                    rows: n * config.num_draft_tokens(),
                    refined: changed,
                };
        }
        Ok(done)
    }
}

/// A batch's values.
struct Batch<'a> {
    case: &'a Case,
    config: &'a XpressConfig,
    n: usize,
    base: (Vec<bf16>, BlockLayout),
    hidden: (Vec<bf16>, BlockLayout),
    anchors: Vec<i64>,
    previous: Vec<i64>,
    seeds: Vec<i64>,
    numbers: Numbers,
}

impl<'a> Batch<'a> {
    fn new(case: &'a Case, config: &'a XpressConfig, n: usize, seed: u64) -> Result<Self> {
        let [v, d, .., b] = case.sizes;
        let mut numbers = Numbers(seed | 1);
        // The step's logits are made up here.
        let few = XpressConfig {
            vocab_size: 1,
            ..config.clone()
        };
        let step = few.generate_step(n, Generate::Exact, seed)?;
        let mut hidden = step.hidden;
        if case.latents == Values::Special && n > 0 {
            let special = [bf16::NAN, bf16::INFINITY, bf16::NEG_INFINITY];
            for _ in 0..3 {
                let at = numbers.below(hidden.len());
                hidden[at] = special[numbers.below(3)];
            }
        }
        let slots = if case.drafts_only { b - 1 } else { b };
        let mut base = rows(&mut numbers, case.logits, n * slots, v);
        if !case.drafts_only {
            // Nobody reads slot 0.
            for block in base.chunks_exact_mut(b * v) {
                block[..v].fill(bf16::NAN);
            }
        }
        let [gap, pad] = case.gaps;
        let [other_gap, other_pad] = case.other_gaps;
        let mut tokens = |count| tokens(&mut numbers, v, case.hostile_tokens, count);
        Ok(Self {
            case,
            config,
            n,
            base: spread(&base, n, slots, v, gap, pad),
            hidden: spread(&hidden, n, b, d, other_gap, other_pad),
            anchors: tokens(n),
            previous: tokens(n),
            seeds: tokens(n * (b - 1)),
            numbers,
        })
    }

    /// How many tokens the passes changed.
    fn compare(
        mut self,
        cpu: &mut dyn XpressBackend,
        candidate: &mut dyn XpressBackend,
    ) -> Result<usize> {
        match self.case.target {
            Target::Refine => return self.refine(cpu, candidate),
            Target::Latent => self.latent(cpu, candidate)?,
            Target::Readout => self.readout(cpu, candidate)?,
            Target::Select => {
                let topc = self.case.topc;
                let base = self.base()?;
                let ids = [
                    cpu.select_topc(base, topc)?,
                    candidate.select_topc(base, topc)?,
                ];
                same("candidates", &ids)?;
            }
            Target::Argmax => self.argmax(cpu, candidate)?,
        }
        Ok(0)
    }

    fn refine(
        &self,
        cpu: &mut dyn XpressBackend,
        candidate: &mut dyn XpressBackend,
    ) -> Result<usize> {
        let inputs = RefineInputs {
            base: self.base()?,
            hidden: self.hidden()?,
            anchors: &self.anchors,
            previous: &self.previous,
            seeds: self.case.seeded.then_some(&self.seeds[..]),
            passes: self.case.passes,
            topc: self.case.topc,
        };
        let drafts = [cpu.refine(&inputs)?, candidate.refine(&inputs)?];
        same("drafts", &drafts)?;
        let start = cpu.refine(&RefineInputs {
            passes: 0,
            ..inputs
        })?;
        Ok(drafts[0].iter().zip(&start).filter(|(a, b)| a != b).count())
    }

    /// Latents of the seeds, on the CPU's hidden cache.
    fn latent(&self, cpu: &mut dyn XpressBackend, candidate: &mut dyn XpressBackend) -> Result<()> {
        let hidden = self.hidden()?;
        let [cache, other] = [cpu.hidden_cache(hidden)?, candidate.hidden_cache(hidden)?];
        same("hidden cache", &[cache.clone(), other].map(comparable))?;
        let mut blocks = vec![];
        for (anchor, seeds) in self
            .anchors
            .iter()
            .zip(self.seeds.chunks_exact(self.config.num_draft_tokens()))
        {
            blocks.push(*anchor);
            blocks.extend(seeds);
        }
        for mlp in [Mlp::Run, Mlp::Skip] {
            let latents = [
                cpu.latent_pass(&blocks, &self.previous, &cache, mlp)?,
                candidate.latent_pass(&blocks, &self.previous, &cache, mlp)?,
            ];
            same(&format!("latents, mlp {mlp:?}"), &latents.map(comparable))?;
        }
        Ok(())
    }

    fn readout(
        &mut self,
        cpu: &mut dyn XpressBackend,
        candidate: &mut dyn XpressBackend,
    ) -> Result<()> {
        let slots = self.config.num_draft_tokens();
        let kind = match self.case.latents {
            Values::Bits => Values::Special,
            kind => kind,
        };
        let latents = rows(&mut self.numbers, kind, self.n * slots, self.config.rank);
        let base = self.base()?;
        let mut blocks = [
            vec![-7; self.n * (slots + 1)],
            vec![-7; self.n * (slots + 1)],
        ];
        cpu.readout_argmax(&latents, base, &mut blocks[0])?;
        candidate.readout_argmax(&latents, base, &mut blocks[1])?;
        same("blocks", &blocks)
    }

    fn argmax(
        &mut self,
        cpu: &mut dyn XpressBackend,
        candidate: &mut dyn XpressBackend,
    ) -> Result<()> {
        let (values, layout) = &self.base;
        let base = BlockView::new(values, *layout)?;
        let BlockLayout { slots, width, .. } = *layout;
        let bias = rows(&mut self.numbers, self.case.latents, self.n * slots, width);
        let [gap, pad] = self.case.other_gaps;
        let (bias, layout) = spread(&bias, self.n, slots, width, gap, pad);
        let bias = BlockView::new(&bias, layout)?;
        let ids = tokens(&mut self.numbers, width, true, self.n * slots * width);

        let mut blocks = [
            vec![-7; self.n * (slots + 1)],
            vec![-7; self.n * (slots + 1)],
        ];
        cpu.add_argmax(base, bias, &mut blocks[0])?;
        candidate.add_argmax(base, bias, &mut blocks[1])?;
        same("argmax", &blocks)?;
        cpu.topc_argmax(base, bias, &ids, &mut blocks[0])?;
        candidate.topc_argmax(base, bias, &ids, &mut blocks[1])?;
        same("argmax over candidates", &blocks)
    }

    fn base(&self) -> specdraft::Result<BlockView<'_>> {
        BlockView::new(&self.base.0, self.base.1)
    }

    fn hidden(&self) -> specdraft::Result<BlockView<'_>> {
        BlockView::new(&self.hidden.0, self.hidden.1)
    }
}

/// Made-up rows.
fn rows(numbers: &mut Numbers, kind: Values, count: usize, width: usize) -> Vec<bf16> {
    const KINDS: [Values; 7] = [
        Values::Plain,
        Values::Ties,
        Values::Zeros,
        Values::Peaks,
        Values::Special,
        Values::Lost,
        Values::Plain,
    ];
    let special = [bf16::NAN, bf16::INFINITY, bf16::NEG_INFINITY];
    let mut values = Vec::with_capacity(count * width);
    for _ in 0..count {
        let kind = match kind {
            Values::Mixed => KINDS[numbers.below(KINDS.len())],
            kind => kind,
        };
        let one = special[numbers.below(3)];
        values.extend((0..width).map(|_| {
            let word = numbers.next() >> 16;
            let plain = || bf16::from_f32((word % 1281) as f32 / 8.0 - 80.0);
            match kind {
                Values::Ties => bf16::from_f32((word % 5) as f32 - 2.0),
                Values::Zeros => [bf16::ZERO, bf16::NEG_ZERO][word as usize % 2],
                Values::Peaks if word.is_multiple_of(64) => {
                    bf16::from_f32(40.0 + (word / 64 % 3) as f32)
                }
                Values::Peaks => bf16::from_f32((word % 33) as f32 / 8.0 - 20.0),
                Values::Bits => bf16::from_bits(word as u16),
                Values::Special if word >> 20 & 3 == 0 => one,
                Values::Lost => [bf16::NAN, bf16::NEG_INFINITY][word as usize % 2],
                Values::Plain | Values::Special | Values::Mixed => plain(),
            }
        }));
    }
    values
}

/// Tokens below `v`; where they may be hostile, one in three is none.
fn tokens(numbers: &mut Numbers, v: usize, hostile: bool, count: usize) -> Vec<i64> {
    let none = [-1, v as i64, i64::MIN, i64::MAX, 1 << 32];
    let mut token = || match hostile && numbers.below(3) == 0 {
        true => none[numbers.below(none.len())],
        false => numbers.below(v) as i64,
    };
    (0..count).map(|_| token()).collect()
}

/// Values to be compared: all NaN are one.
fn comparable(values: Vec<bf16>) -> Vec<Option<f32>> {
    let number = |value: bf16| (!value.is_nan()).then_some(value.to_f32());
    values.into_iter().map(number).collect()
}

fn same<T: PartialEq + Debug>(what: &str, [cpu, candidate]: &[Vec<T>; 2]) -> Result<()> {
    ensure!(
        cpu.len() == candidate.len(),
        "{what}: lengths {} / {} (CPU / candidate)",
        cpu.len(),
        candidate.len()
    );
    let differs = cpu.iter().zip(candidate).position(|(a, b)| a != b);
    if let Some(i) = differs {
        let (a, b) = (&cpu[i], &candidate[i]);
        return Err(anyhow!("{what}[{i}]: {a:?} / {b:?} (CPU / candidate)"));
    }
    Ok(())
}
