//! A drafter's life as data: what is called, in order. Two backends that live it must give the same answers.

use std::any::Any;
use std::fmt::{self, Debug, Display};
use std::ops::Add;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::{Deserialize, Serialize};
use specdraft::suffix::{Document, Proposal, SuffixBackend, SuffixConfig, SuffixState};

use super::{LayoutFactory, cpu};

/// A configuration and the calls made on a drafter that has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Life {
    /// The drafter.
    #[serde(with = "Config")]
    pub config: SuffixConfig,
    /// Where the drafter's memory lies and how it runs.
    pub layout: Layout,
    /// The calls.
    pub ops: Vec<Op>,
}

/// What must make no difference. A backend heeds what it can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Of all that is random in how threads run.
    pub seed: u64,
    /// Threads run in random order, not one after the other.
    pub shuffled: bool,
    /// Blocks that share a request, as a power of two.
    pub log2_blocks: u32,
    /// Words before the first row.
    pub row_offset: usize,
    /// Words between two rows.
    pub row_padding: usize,
}

/// One call on a [`SuffixBackend`]; fields are its arguments.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are the trait's arguments")]
pub enum Op {
    Write {
        slot: usize,
        offset: usize,
        tokens: Vec<i32>,
    },
    SetLen {
        slot: usize,
        len: i32,
    },
    AddRequest {
        slot: usize,
    },
    Ingest {
        /// Slot and start of each document.
        docs: Vec<(i32, i32)>,
    },
    Observe {
        idx_mapping: Vec<i32>,
        num_sampled: Vec<i32>,
        num_rejected: Vec<i32>,
    },
    Propose {
        idx_mapping: Vec<i32>,
        num_sampled: Vec<i32>,
        last_sampled: Vec<i64>,
    },
    Reset,
    /// Replaces parts of the state.
    Preset(Preset),
}

/// Parts of a state to replace; a list is repeated over the whole array, an empty one leaves it as it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are those of SuffixState")]
pub struct Preset {
    pub corpus: Vec<i32>,
    pub table: Vec<i64>,
    pub head: Option<i64>,
    pub doc_seq: Option<i64>,
    /// Accepted and observed.
    pub stats: Vec<(i64, i64)>,
    /// `last_bucket` and `last_valid`.
    pub last: Vec<(i32, i32)>,
    pub steps: Option<i64>,
}

/// The mirror of [`SuffixConfig`] that serde reads and writes.
#[derive(Serialize, Deserialize)]
#[serde(remote = "SuffixConfig")]
struct Config {
    max_num_reqs: usize,
    max_model_len: usize,
    num_draft_tokens: usize,
    max_depth: usize,
    corpus_tokens: usize,
    adaptive: bool,
    #[serde(default)]
    history_index: bool,
}

/// Where two backends part.
#[derive(Clone, Debug)]
pub struct Difference {
    /// Index of the call in the life; its length when building a backend failed.
    pub op: usize,
    /// What differs, in both backends.
    pub what: String,
}

/// What a life did, to see that lives do something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Rows proposed for.
    pub proposals: usize,
    /// Rows that got a draft.
    pub drafts: usize,
    /// Rows that got a draft from the corpus (adaptive drafters).
    pub corpus_drafts: usize,
    /// Documents ingested.
    pub docs: usize,
    /// Verdicts observed that changed a count.
    pub verdicts: usize,
    /// Calls refused by both backends.
    pub refused: usize,
}

impl Add for Done {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            proposals: self.proposals + other.proposals,
            drafts: self.drafts + other.drafts,
            corpus_drafts: self.corpus_drafts + other.corpus_drafts,
            docs: self.docs + other.docs,
            verdicts: self.verdicts + other.verdicts,
            refused: self.refused + other.refused,
        }
    }
}

impl Life {
    /// Lives this life on a new CPU drafter and on a new backend of `candidate` and compares every answer and every
    /// state.
    ///
    /// # Errors
    /// The first [`Difference`]. A panic of a backend is one, and so is an error that blames no argument.
    pub fn compare(&self, candidate: &mut LayoutFactory<'_>) -> Result<Done, Difference> {
        let at = |op| move |what| Difference { op, what };
        let mut done = Done::default();
        let (mut cpu, mut candidate) =
            match (cpu(&self.config), candidate(&self.config, &self.layout)) {
                (Ok(cpu), Ok(candidate)) => (cpu, candidate),
                (cpu, candidate) => {
                    done.refused = 1;
                    let refusal = same_refusal(cpu.err(), candidate.err());
                    return refusal.map(|()| done).map_err(at(self.ops.len()));
                }
            };
        for (index, op) in self.ops.iter().enumerate() {
            let step = || op.compare(&mut *cpu, &mut *candidate, &mut done);
            catch_unwind(AssertUnwindSafe(step))
                .unwrap_or_else(|panic| Err(format!("panic: {}", panic_text(&*panic))))
                .map_err(at(index))?;
        }
        Ok(done)
    }
}

impl Op {
    fn compare(
        &self,
        a: &mut dyn SuffixBackend,
        b: &mut dyn SuffixBackend,
        done: &mut Done,
    ) -> Result<(), String> {
        let before = match self {
            Op::Observe { .. } => Some(a.state().map_err(|error| error.to_string())?),
            _ => None,
        };
        let (a_answer, b_answer) = match (self.call(a), self.call(b)) {
            (Ok(a), Ok(b)) => (a, b),
            (a, b) => {
                done.refused += 1;
                return same_refusal(a.err(), b.err());
            }
        };
        same_proposal(&a_answer, &b_answer)?;
        if matches!(self, Op::Write { .. } | Op::SetLen { .. }) {
            return Ok(());
        }
        let states = (a.state(), b.state());
        let (a_state, b_state) = match states {
            (Ok(a), Ok(b)) => (a, b),
            (a, b) => return same_refusal(a.err(), b.err()),
        };
        same_state(&a_state, &b_state)?;

        match self {
            Op::Propose { idx_mapping, .. } => {
                done.proposals += idx_mapping.len();
                for (&slot, &valid) in idx_mapping.iter().zip(&a_answer.num_valid) {
                    done.drafts += usize::from(valid > 0);
                    let bucket = usize::try_from(slot).map_or(-1, |slot| {
                        a_state.last_bucket.get(slot).copied().unwrap_or(-1)
                    });
                    done.corpus_drafts += usize::from(valid > 0 && bucket >= 9);
                }
            }
            Op::Ingest { docs } => done.docs += docs.len(),
            Op::Observe { .. } => {
                done.verdicts += usize::from(before.is_some_and(|old| old.stats != a_state.stats));
            }
            _ => {}
        }
        Ok(())
    }

    /// Makes the call. The answer of all but `Propose` is empty.
    fn call(&self, backend: &mut dyn SuffixBackend) -> specdraft::Result<Proposal> {
        match self {
            Op::Write {
                slot,
                offset,
                tokens,
            } => backend.write_tokens(*slot, *offset, tokens)?,
            Op::SetLen { slot, len } => backend.set_total_len(*slot, *len)?,
            Op::AddRequest { slot } => backend.add_request(*slot)?,
            Op::Ingest { docs } => {
                let docs = docs.iter().map(|&(slot, start)| Document { slot, start });
                backend.ingest(&docs.collect::<Vec<_>>())?;
            }
            Op::Observe {
                idx_mapping,
                num_sampled,
                num_rejected,
            } => backend.observe(idx_mapping, num_sampled, num_rejected)?,
            Op::Propose {
                idx_mapping,
                num_sampled,
                last_sampled,
            } => return backend.propose(idx_mapping, num_sampled, last_sampled),
            Op::Reset => backend.reset()?,
            Op::Preset(preset) => {
                let mut state = backend.state()?;
                preset.apply(&mut state);
                backend.set_state(&state)?;
            }
        }
        Ok(Proposal::default())
    }
}

impl Preset {
    fn apply(&self, state: &mut SuffixState) {
        repeat(&mut state.corpus, self.corpus.iter().copied());
        repeat(&mut state.table, self.table.iter().copied());
        state.head = self.head.unwrap_or(state.head);
        state.doc_seq = self.doc_seq.unwrap_or(state.doc_seq);
        let counts = self.stats.iter().flat_map(|&(a, o)| [a, o]);
        repeat(&mut state.stats, counts);
        repeat(&mut state.last_bucket, self.last.iter().map(|last| last.0));
        repeat(&mut state.last_valid, self.last.iter().map(|last| last.1));
        state.steps = self.steps.unwrap_or(state.steps);
    }
}

fn repeat<T>(words: &mut [T], pattern: impl Iterator<Item = T> + Clone) {
    for (word, new) in words.iter_mut().zip(pattern.cycle()) {
        *word = new;
    }
}

/// Both backends must refuse a call, and for the same argument.
fn same_refusal(
    reference: Option<specdraft::Error>,
    candidate: Option<specdraft::Error>,
) -> Result<(), String> {
    match (&reference, &candidate) {
        (Some(a), Some(b)) if a.argument().is_some() && a.argument() == b.argument() => Ok(()),
        _ => Err(format!(
            "errors differ: {} / {}",
            outcome(&reference),
            outcome(&candidate)
        )),
    }
}

fn outcome(error: &Option<specdraft::Error>) -> String {
    error
        .as_ref()
        .map_or("no error".into(), |error| error.to_string())
}

fn same_proposal(a: &Proposal, b: &Proposal) -> Result<(), String> {
    same("num_valid", &a.num_valid, &b.num_valid)?;
    same("drafts", &a.drafts, &b.drafts)?;
    let bits = |p: &Proposal| p.confidence.iter().map(|c| c.to_bits()).collect::<Vec<_>>();
    same("confidence (bits)", &bits(a), &bits(b))
}

fn same_state(a: &SuffixState, b: &SuffixState) -> Result<(), String> {
    same("corpus", &a.corpus, &b.corpus)?;
    same("table", &a.table, &b.table)?;
    same("head", &[a.head], &[b.head])?;
    same("doc_seq", &[a.doc_seq], &[b.doc_seq])?;
    same("stats", &a.stats, &b.stats)?;
    same("last_bucket", &a.last_bucket, &b.last_bucket)?;
    same("last_valid", &a.last_valid, &b.last_valid)?;
    same("steps", &[a.steps], &[b.steps])
}

fn same<T: PartialEq + Debug>(name: &str, a: &[T], b: &[T]) -> Result<(), String> {
    if a.len() != b.len() {
        return Err(format!("{name}: lengths {} / {}", a.len(), b.len()));
    }
    match a.iter().zip(b).position(|(a, b)| a != b) {
        Some(index) => Err(format!("{name}[{index}]: {:?} / {:?}", a[index], b[index])),
        None => Ok(()),
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

/// JSON, a line for each call.
impl Display for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let json = |value: serde_json::Result<String>| value.map_err(|_| fmt::Error);
        let empty = Life {
            config: self.config.clone(),
            layout: self.layout,
            ops: vec![],
        };
        let head = json(serde_json::to_string(&empty))?;
        let head = head.strip_suffix("]}").ok_or(fmt::Error)?;
        write!(f, "{head}")?;
        for (index, op) in self.ops.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}\n  {}", json(serde_json::to_string(op))?)?;
        }
        write!(f, "\n]}}")
    }
}

impl Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "call {}: {} (CPU / candidate)", self.op, self.what)
    }
}
