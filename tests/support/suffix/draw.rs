//! Draws lives from bytes. The property tests, the fuzzer and the cargo-fuzz targets all draw here.

use arbitrary::{Arbitrary, Result, Unstructured};
use specdraft::suffix::SuffixConfig;

use super::life::{Layout, Life, Op, Preset};

/// What a life is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// An engine's life: requests come, grow, shrink, finish.
    Life,
    /// Proposals from any state.
    Propose,
    /// Documents into any state.
    Ingest,
    /// Verdicts on any state.
    Observe,
}

impl Target {
    /// Every target.
    pub const ALL: [Target; 4] = [
        Target::Life,
        Target::Propose,
        Target::Ingest,
        Target::Observe,
    ];

    /// The name of the cargo-fuzz target.
    pub fn name(self) -> &'static str {
        match self {
            Target::Life => "suffix_life",
            Target::Propose => "suffix_propose",
            Target::Ingest => "suffix_ingest",
            Target::Observe => "suffix_observe",
        }
    }

    /// Draws a life of this kind. Any bytes give one; few bytes give a short one.
    ///
    /// # Errors
    /// As [`Unstructured`].
    pub fn draw(self, u: &mut Unstructured<'_>) -> Result<Life> {
        let mut draw = Draw::new(self, u)?;
        match self {
            Target::Life => draw.life()?,
            Target::Propose => draw.propose_case()?,
            Target::Ingest => draw.ingest_case()?,
            Target::Observe => draw.observe_case()?,
        }
        Ok(Life {
            config: draw.config,
            layout: draw.layout,
            ops: draw.ops,
        })
    }
}

impl<'a> Arbitrary<'a> for Life {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        Target::Life.draw(u)
    }
}

/// Calls in a life, at most.
const MAX_OPS: usize = 48;
/// Numbers that only a bug or an attacker sends.
const HOSTILE: [i32; 6] = [-1, i32::MIN, i32::MAX, -2, 1 << 30, i32::MIN + 1];

struct Draw<'a, 'u> {
    u: &'a mut Unstructured<'u>,
    config: SuffixConfig,
    layout: Layout,
    ops: Vec<Op>,
    /// Tokens are below this.
    alphabet: i32,
    /// Now and then draw values that no sane engine sends.
    hostile: bool,
    /// Texts so far; new ones quote them.
    texts: Vec<Vec<i32>>,
    /// Length of each slot's row.
    lens: Vec<usize>,
}

impl<'a, 'u> Draw<'a, 'u> {
    fn new(target: Target, u: &'a mut Unstructured<'u>) -> Result<Self> {
        let max_num_reqs = match target {
            Target::Life | Target::Propose => u.int_in_range(1..=6)?,
            Target::Ingest | Target::Observe => *u.choose(&[1, 3, 8, 33, 40])?,
        };
        let max_model_len = match u.int_in_range(0..=63)? {
            0 => u.int_in_range(4000..=9000)?,
            1..=6 => u.int_in_range(520..=2100)?, // from here on several blocks share a row
            7..=12 => u.int_in_range(100..=520)?,
            13..=40 => u.int_in_range(20..=100)?,
            _ => u.int_in_range(1..=20)?,
        };
        let corpus_tokens = match u.int_in_range(0..=9)? {
            0 => 0,
            1..=3 => u.int_in_range(1..=40)?,
            4..=8 => u.int_in_range(41..=400)?,
            _ => u.int_in_range(401..=3000)?,
        };
        let config = SuffixConfig {
            max_num_reqs,
            max_model_len,
            num_draft_tokens: match u.ratio(1, 4)? {
                true => u.int_in_range(1..=64)?,
                false => *u.choose(&[8, 1, 2, 3, 4, 5, 7])?,
            },
            max_depth: match u.ratio(1, 2)? {
                true => u.int_in_range(1..=64)?,
                false => *u.choose(&[24, 1, 2, 3, 4, 5, 8])?,
            },
            corpus_tokens,
            adaptive: target == Target::Observe || u.ratio(3, 4)?,
            history_index: u.ratio(1, 2)?,
        };
        let layout = Layout {
            seed: u.int_in_range(0..=u16::MAX.into())?,
            shuffled: u.ratio(1, 4)?,
            log2_blocks: u.int_in_range(0..=3)?,
            row_offset: u.int_in_range(0..=5)?,
            row_padding: u.int_in_range(0..=5)?,
        };
        Ok(Self {
            layout,
            alphabet: *u.choose(&[2, 1, 3, 4, 6, 12, 40, 200_000, i32::MAX])?,
            hostile: u.ratio(1, 2)?,
            ops: Vec::new(),
            texts: Vec::new(),
            lens: vec![0; config.max_num_reqs],
            u,
            config,
        })
    }

    fn life(&mut self) -> Result<()> {
        for slot in 0..self.config.max_num_reqs {
            self.start(slot)?;
        }
        while self.ops.len() < MAX_OPS && !self.u.is_empty() {
            let slot = self.u.choose_index(self.config.max_num_reqs)?;
            match self.u.int_in_range(0..=31)? {
                0..=4 => self.start(slot)?,
                5..=9 => self.grow(slot)?,
                10 => self.shrink(slot)?,
                11 if self.hostile => {
                    let len = self.hostile_number()?;
                    self.ops.push(Op::SetLen { slot, len });
                }
                12..=18 => self.ingest()?,
                19 => self.preset()?,
                20 if self.u.ratio(1, 4)? => self.ops.push(Op::Reset),
                21 => self.observe()?,
                22..=25 => self.propose()?,
                _ => {
                    self.observe()?;
                    self.propose()?;
                }
            }
        }
        Ok(())
    }

    fn propose_case(&mut self) -> Result<()> {
        self.rows()?;
        for _ in 0..self.u.int_in_range(1..=3)? {
            self.preset()?;
            self.propose()?;
        }
        Ok(())
    }

    fn ingest_case(&mut self) -> Result<()> {
        self.rows()?;
        for _ in 0..self.u.int_in_range(1..=3)? {
            self.preset()?;
            self.ingest()?;
            self.ingest()?;
        }
        Ok(())
    }

    fn observe_case(&mut self) -> Result<()> {
        for _ in 0..self.u.int_in_range(1..=3)? {
            self.preset()?;
            self.observe()?;
            self.observe()?;
        }
        Ok(())
    }

    fn rows(&mut self) -> Result<()> {
        for slot in 0..self.config.max_num_reqs {
            self.start(slot)?;
            if self.hostile && self.u.ratio(1, 16)? {
                let len = self.hostile_number()?;
                self.ops.push(Op::SetLen { slot, len });
            }
        }
        Ok(())
    }

    /// A new request: its row is written beyond its length, so that the tokens after it are stale ones.
    fn start(&mut self, slot: usize) -> Result<()> {
        let written = self.u.int_in_range(0..=self.config.max_model_len)?;
        let len = match self.u.int_in_range(0..=3)? {
            0 => written,
            _ => self.u.int_in_range(0..=written)?,
        };
        let mut tokens = self.text(written)?;
        if self.u.ratio(1, 2)? {
            self.quote_before(&mut tokens[..len])?;
        }
        self.ops.push(Op::Write {
            slot,
            offset: 0,
            tokens,
        });
        self.set_len(slot, len);
        if !self.u.ratio(1, 8)? {
            self.ops.push(Op::AddRequest { slot });
        }
        Ok(())
    }

    fn grow(&mut self, slot: usize) -> Result<()> {
        let old = self.lens[slot];
        let room = self.config.max_model_len - old;
        let more = self
            .u
            .int_in_range(0..=room.min(self.config.num_draft_tokens + 1))?;
        let tokens = self.text(more)?;
        self.ops.push(Op::Write {
            slot,
            offset: old,
            tokens,
        });
        self.set_len(slot, old + more);
        Ok(())
    }

    fn shrink(&mut self, slot: usize) -> Result<()> {
        let len = self.u.int_in_range(0..=self.lens[slot])?;
        self.set_len(slot, len);
        Ok(())
    }

    fn set_len(&mut self, slot: usize, len: usize) {
        self.lens[slot] = len;
        self.ops.push(Op::SetLen {
            slot,
            len: len as i32,
        });
    }

    fn ingest(&mut self) -> Result<()> {
        let count = self.u.int_in_range(0..=self.config.max_num_reqs)?;
        let mut docs = Vec::new();
        for _ in 0..count {
            let slot = self.slot()?;
            let len = usize::try_from(slot)
                .ok()
                .and_then(|slot| self.lens.get(slot));
            let len = len.map_or(0, |&len| len as i32);
            let start = match self.u.int_in_range(0..=7)? {
                0..=2 => 0,
                3 if self.hostile => self.hostile_number()?,
                _ => self.u.int_in_range(0..=len)?,
            };
            docs.push((slot, start));
        }
        self.ops.push(Op::Ingest { docs });
        Ok(())
    }

    fn observe(&mut self) -> Result<()> {
        let idx_mapping = self.batch()?;
        let mut num_sampled = Vec::new();
        let mut num_rejected = Vec::new();
        let k = self.config.num_draft_tokens as i32;
        for _ in 0..idx_mapping.len() {
            let sampled = self.num_sampled()?;
            num_sampled.push(sampled);
            num_rejected.push(match self.hostile && self.u.ratio(1, 10)? {
                true => self.hostile_number()?,
                false => self.u.int_in_range(0..=k)?,
            });
        }
        self.wrong_length(&mut num_rejected)?;
        self.ops.push(Op::Observe {
            idx_mapping,
            num_sampled,
            num_rejected,
        });
        Ok(())
    }

    fn propose(&mut self) -> Result<()> {
        let idx_mapping = self.batch()?;
        let mut num_sampled = Vec::new();
        for _ in 0..idx_mapping.len() {
            num_sampled.push(self.num_sampled()?);
        }
        self.wrong_length(&mut num_sampled)?;
        let fillers: &[i64] = match self.hostile {
            true => &[7, 0, -1, i64::MIN, i64::MAX],
            false => &[7, 0],
        };
        let mut last_sampled = Vec::new();
        for slot in 0..self.config.max_num_reqs as i64 {
            last_sampled.push(self.u.choose(fillers)?.wrapping_add(slot));
        }
        self.ops.push(Op::Propose {
            idx_mapping,
            num_sampled,
            last_sampled,
        });
        Ok(())
    }

    /// Any state: a ring and an index full of anything, numbers about to overflow, statistics about to be halved.
    fn preset(&mut self) -> Result<()> {
        let mut preset = Preset::default();
        let capacity = self.config.effective_corpus_tokens();
        if self.u.ratio(1, 2)? && capacity > 0 {
            let len = self.u.int_in_range(1..=capacity.min(300))?;
            preset.corpus = self.text(len)?;
            for _ in 0..self.u.int_in_range(0..=4)? {
                let at = self.u.choose_index(len)?;
                preset.corpus[at] = -1;
            }
        }
        if self.u.ratio(1, 2)? && capacity > 0 {
            for _ in 0..self.u.int_in_range(1..=29)? {
                let doc = *self.u.choose(&[0, 1, 5, (1 << 31) - 1])?;
                let pos = match self.u.int_in_range(0..=15)? {
                    0 => *self
                        .u
                        .choose(&[capacity as i64, u32::MAX.into(), 1 << 31])?,
                    _ => self.u.int_in_range(0..=capacity as i64 - 1)?,
                };
                let free = self.u.ratio(1, 8)?;
                preset.table.push(if free { -1 } else { doc << 32 | pos });
            }
        }
        if self.u.ratio(1, 2)? {
            preset.head = Some(self.u.int_in_range(0..=capacity as i64)?);
        }
        if self.u.ratio(1, 2)? {
            preset.doc_seq = Some((1 << 31) - self.u.int_in_range(1..=48)?);
        }
        if self.u.ratio(1, 2)? {
            preset.steps = Some(1024 * self.u.int_in_range(1..=3)? - self.u.int_in_range(1..=3)?);
        }
        if self.u.ratio(1, 2)? {
            for _ in 0..self.u.int_in_range(1..=7)? {
                let observed = *self.u.choose(&[0, 1, 2, 7, 1000, 1 << 24, (1 << 40) + 1])?;
                let accepted = self.u.int_in_range(0..=observed)?;
                preset.stats.push((accepted, observed));
            }
        }
        if self.u.ratio(1, 2)? {
            for _ in 0..self.u.int_in_range(1..=5)? {
                let bucket = self.u.int_in_range(-1..=17)?;
                let valid = self
                    .u
                    .int_in_range(0..=self.config.num_draft_tokens as i32)?;
                preset.last.push((bucket, valid));
            }
        }
        self.ops.push(Op::Preset(preset));
        Ok(())
    }

    /// Slots of a batch: each at most once, in any order; now and then one that does not exist, seldom one twice.
    fn batch(&mut self) -> Result<Vec<i32>> {
        let mut left: Vec<i32> = (0..self.config.max_num_reqs as i32).collect();
        let count = self.u.int_in_range(0..=left.len())?;
        let mut batch = Vec::new();
        for _ in 0..count {
            let index = self.u.choose_index(left.len())?;
            batch.push(left.swap_remove(index));
        }
        if self.hostile && !batch.is_empty() {
            if self.u.ratio(1, 4)? {
                let index = self.u.choose_index(batch.len())?;
                batch[index] = self.slot()?;
            }
            if self.u.ratio(1, 64)? {
                batch.push(self.config.max_num_reqs as i32);
            }
        }
        Ok(batch)
    }

    fn slot(&mut self) -> Result<i32> {
        if self.hostile && self.u.ratio(1, 8)? {
            let past = self.config.max_num_reqs as i32;
            let number = self.hostile_number()?;
            return Ok(*self.u.choose(&[past, past + 1, number])?);
        }
        Ok(self.u.choose_index(self.config.max_num_reqs)? as i32)
    }

    fn num_sampled(&mut self) -> Result<i32> {
        let k = self.config.num_draft_tokens as i32;
        match self.u.int_in_range(0..=9)? {
            0..=4 => Ok(1),
            5 => Ok(0),
            6 if self.hostile => self.hostile_number(),
            _ => self.u.int_in_range(1..=k + 1),
        }
    }

    /// Seldom makes an array too short for its batch.
    fn wrong_length(&mut self, words: &mut Vec<i32>) -> Result<()> {
        if self.hostile && self.u.ratio(1, 64)? {
            words.pop();
        }
        Ok(())
    }

    /// Makes a row end in the middle of an earlier text, as a request does that says what another has said.
    fn quote_before(&mut self, row: &mut [i32]) -> Result<()> {
        let quoted = &self.texts[self.u.choose_index(self.texts.len().max(1))?..];
        let Some(quoted) = quoted.first() else {
            return Ok(());
        };
        let span = self
            .u
            .int_in_range(0..=row.len().min(quoted.len()).min(12))?;
        let from = self.u.int_in_range(0..=quoted.len() - span)?;
        let end = row.len() - span;
        row[end..].copy_from_slice(&quoted[from..from + span]);
        Ok(())
    }

    fn hostile_number(&mut self) -> Result<i32> {
        match self.u.ratio(1, 4)? {
            true => self.u.arbitrary(),
            false => Ok(*self.u.choose(&HOSTILE)?),
        }
    }

    /// Tokens with repeats of many lengths: spans of earlier texts, of this one, and new tokens.
    fn text(&mut self, len: usize) -> Result<Vec<i32>> {
        let longest = match self.u.ratio(1, 2)? {
            true => len.div_ceil(3),
            false => 24.max(len / 40),
        };
        let mut text: Vec<i32> = Vec::with_capacity(len);
        while text.len() < len {
            let room = (len - text.len()).min(longest);
            match self.u.int_in_range(0..=9)? {
                0..=3 if !self.texts.is_empty() => {
                    let quoted = &self.texts[self.u.choose_index(self.texts.len())?];
                    let from = self.u.choose_index(quoted.len())?;
                    let span = self.u.int_in_range(1..=room.min(quoted.len() - from))?;
                    text.extend_from_slice(&quoted[from..from + span]);
                }
                4..=5 if !text.is_empty() => {
                    let from = self.u.choose_index(text.len())?;
                    let span = self.u.int_in_range(1..=room)?;
                    // May run into the tokens it appends: a period.
                    for index in from..from + span {
                        text.push(text[index]);
                    }
                }
                6 if self.hostile && self.u.ratio(1, 4)? => text.push(self.hostile_number()?),
                _ => text.push(self.u.int_in_range(0..=self.alphabet - 1)?),
            }
        }
        if !text.is_empty() {
            self.texts.push(text.clone());
        }
        Ok(text)
    }
}
