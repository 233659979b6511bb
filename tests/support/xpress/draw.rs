//! Draws cases from bytes: for the property tests, the fuzzer and the cargo-fuzz targets.

use arbitrary::{Arbitrary, Result, Unstructured};

use super::case::{Case, Order, Run, Target, Values};

/// How large cases may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// For the emulator, which takes its time.
    Small,
    /// For GPUs: half of the cases have the sizes that kernels of their own are for.
    Large,
}

/// R, H and B that there are special kernels for.
const USUAL: [usize; 3] = [256, 512, 16];

impl Target {
    /// Draws a case. Any bytes give one.
    ///
    /// # Errors
    /// As [`Unstructured`].
    pub fn draw(self, u: &mut Unstructured<'_>, scale: Scale) -> Result<Case> {
        let large = scale == Scale::Large;
        let is_usual = self.has_head() && u.ratio(1, if large { 2 } else { 24 })?;
        let sizes = if is_usual {
            usual_sizes(u, large)?
        } else {
            any_sizes(u, self, large)?
        };
        let [v, .., b] = sizes;
        let most = if is_usual && !large { 2 } else { 4 };
        let mut batches = vec![];
        for _ in 0..u.int_in_range(1..=2)? {
            batches.push(match u.int_in_range(0..=15)? {
                0 if most > 2 => u.int_in_range(0..=if large { 40 } else { 12 })?,
                1 => 0,
                2 if large => u.int_in_range(8..=40)?,
                _ => u.int_in_range(1..=most)?,
            });
        }
        Ok(Case {
            target: self,
            sizes,
            batches,
            passes: match u.int_in_range(0..=15)? {
                0 => u.int_in_range(0..=b + 1)?,
                _ => u.int_in_range(0..=3)?,
            },
            topc: topc(u, self, v)?,
            seeded: u.ratio(1, 3)?,
            hostile_tokens: u.ratio(1, 3)?,
            logits: values(u)?,
            latents: values(u)?,
            gaps: gaps(u, v)?,
            other_gaps: gaps(u, if self == Target::Argmax { v } else { sizes[1] })?,
            drafts_only: u.ratio(1, 4)?,
            seed: u64::arbitrary(u)?,
            run: Run {
                seed: u.int_in_range(0..=u16::MAX.into())?,
                order: *u.choose(&[Order::Sequential, Order::Shuffled, Order::Parallel])?,
                multiprocessors: *u.choose(&[3, 0, 1, 4, 39])?,
                all_passes: u.ratio(1, 4)?,
                log2_rows: u.int_in_range(0..=3)?,
                offset: u.int_in_range(0..=9)?,
                general: u.ratio(1, 8)?,
                apart: u.ratio(1, 4)?,
            },
        })
    }

    /// Whether the head's sizes matter, not only those of rows.
    fn has_head(self) -> bool {
        matches!(self, Target::Refine | Target::Latent | Target::Readout)
    }
}

fn usual_sizes(u: &mut Unstructured<'_>, large: bool) -> Result<[usize; 5]> {
    let v = match u.int_in_range(0..=7)? {
        0 if large => u.int_in_range(1000..=20_000)?,
        1 => u.int_in_range(1..=127)?,
        _ => u.int_in_range(128..=if large { 1500 } else { 300 })?,
    };
    let [r, h, b] = USUAL;
    Ok([v, 8 * u.int_in_range(1..=8)?, r, h, b])
}

fn any_sizes(u: &mut Unstructured<'_>, target: Target, large: bool) -> Result<[usize; 5]> {
    let rows_only = !target.has_head();
    let v = match u.int_in_range(0..=31)? {
        0 if rows_only && large => u.int_in_range(20_000..=200_000)?,
        0 | 1 if rows_only => u.int_in_range(3000..=20_000)?,
        0..=3 => u.int_in_range(200..=3000)?,
        _ => u.int_in_range(1..=200)?,
    };
    // Many slots only where rows are short: the emulator takes its time.
    let most_slots = match v {
        _ if large => 32,
        0..=200 if u.ratio(1, 4)? => 32,
        0..=200 => 9,
        _ => 4,
    };
    let b = u.int_in_range(2..=most_slots)?;
    let mut size = |unit: usize, few: usize, many: usize| {
        let most = if u.ratio(1, 16)? { many } else { few };
        Ok(unit * u.int_in_range(1..=most)?)
    };
    // What a head's sizes are matters little to rows.
    let (d, r, h) = match rows_only {
        true => (8, 16, 16),
        false => (size(8, 8, 70)?, size(16, 5, 32)?, size(16, 7, 40)?),
    };
    Ok([v, d, r, h, b])
}

fn topc(u: &mut Unstructured<'_>, target: Target, v: usize) -> Result<usize> {
    let any = match u.int_in_range(0..=3)? {
        0 => u.int_in_range(1..=v + 1)?,
        1 => u.int_in_range(1..=v.min(64))?,
        2 => v.min(512),
        _ => 0,
    };
    let always = target == Target::Select;
    Ok(if always { any.max(1) } else { any })
}

fn values(u: &mut Unstructured<'_>) -> Result<Values> {
    u.choose(&[
        Values::Plain,
        Values::Ties,
        Values::Peaks,
        Values::Mixed,
        Values::Plain,
        Values::Special,
        Values::Bits,
        Values::Zeros,
        Values::Lost,
    ])
    .copied()
}

/// None, any, or such that rows lie at multiples of 16 bytes.
fn gaps(u: &mut Unstructured<'_>, width: usize) -> Result<[usize; 2]> {
    Ok(match u.int_in_range(0..=3)? {
        0 => [0, 0],
        1 => [u.int_in_range(0..=9)?, u.int_in_range(0..=9)?],
        _ => {
            let aligned = width.next_multiple_of(8) - width;
            [
                aligned + 8 * u.int_in_range(0..=1)?,
                8 * u.int_in_range(0..=2)?,
            ]
        }
    })
}
