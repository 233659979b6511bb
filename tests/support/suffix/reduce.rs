//! Makes a failing life small: drops calls, then rows, documents and tokens, then makes numbers plain.

use specdraft::suffix::SuffixConfig;

use super::life::{Layout, Life, Op, Preset};

/// Offers smaller and smaller lives.
///
/// Take [`candidate`](Self::candidate), find out whether it still fails, say so with [`judge`](Self::judge), until there
/// is none.
#[derive(Clone, Debug)]
pub struct Reducer {
    best: Life,
    edits: Vec<Edit>,
    next: usize,
    /// Edits tried since the last one that was kept.
    idle: usize,
    candidate: Option<Life>,
}

impl Reducer {
    /// Starts from a life that fails.
    pub fn new(life: Life) -> Self {
        Self {
            edits: edits(&life),
            best: life,
            next: 0,
            idle: 0,
            candidate: None,
        }
    }

    /// The life to look at: the candidate, or the smallest one known to fail.
    pub fn current(&self) -> &Life {
        self.candidate.as_ref().unwrap_or(&self.best)
    }

    /// A life to try, or `None` when nothing smaller fails.
    pub fn candidate(&mut self) -> Option<&Life> {
        while self.candidate.is_none() && self.idle < self.edits.len() {
            let edit = &self.edits[self.next % self.edits.len()];
            let mut life = self.best.clone();
            edit.apply(&mut life);
            if life != self.best {
                self.candidate = Some(life);
                break;
            }
            self.next += 1;
            self.idle += 1;
        }
        self.candidate.as_ref()
    }

    /// Says whether the candidate fails as well.
    pub fn judge(&mut self, fails: bool) {
        let Some(candidate) = self.candidate.take() else {
            return;
        };
        if fails {
            self.best = candidate;
            self.edits = edits(&self.best);
            self.idle = 0;
        } else {
            self.next += 1;
            self.idle += 1;
        }
    }

    /// Reduces until nothing smaller fails.
    pub fn run(mut self, mut fails: impl FnMut(&Life) -> bool) -> Life {
        while let Some(life) = self.candidate() {
            let verdict = fails(life);
            self.judge(verdict);
        }
        self.best
    }
}

/// One way to make a life smaller.
#[derive(Clone, Copy, Debug)]
enum Edit {
    DropOps {
        from: usize,
        count: usize,
    },
    DropItems {
        op: usize,
        from: usize,
        count: usize,
    },
    PlainItem {
        op: usize,
        item: usize,
    },
    PlainPreset {
        op: usize,
        part: usize,
    },
    Config {
        field: usize,
        value: usize,
    },
    PlainLayout(fn(&mut Layout)),
}

/// Every edit, the ones that save most first.
fn edits(life: &Life) -> Vec<Edit> {
    let mut edits = Vec::new();
    for (from, count) in spans(life.ops.len()) {
        edits.push(Edit::DropOps { from, count });
    }
    for (op, items) in life.ops.iter().map(items).enumerate() {
        for (from, count) in spans(items) {
            edits.push(Edit::DropItems { op, from, count });
        }
    }
    for (op, call) in life.ops.iter().enumerate() {
        if matches!(call, Op::Preset(_)) {
            edits.extend((0..7).map(|part| Edit::PlainPreset { op, part }));
        }
    }
    for field in 0..CONFIG_FIELDS.len() {
        for value in [1, 2, 4, 8, 16, 32, 64, 128, 256] {
            edits.push(Edit::Config { field, value });
        }
    }
    let layouts: [fn(&mut Layout); 6] = [
        |layout| *layout = Layout::default(),
        |layout| layout.seed = 0,
        |layout| layout.shuffled = false,
        |layout| layout.log2_blocks = 0,
        |layout| layout.row_offset = 0,
        |layout| layout.row_padding = 0,
    ];
    edits.extend(layouts.map(Edit::PlainLayout));
    for (op, items) in life.ops.iter().map(items).enumerate() {
        edits.extend((0..items).map(|item| Edit::PlainItem { op, item }));
    }
    edits
}

/// Halves, quarters, … and single items of a list.
fn spans(len: usize) -> Vec<(usize, usize)> {
    let mut spans = Vec::new();
    let mut count = len;
    while count > 0 {
        spans.extend((0..len).step_by(count).map(|from| (from, count)));
        count /= 2;
    }
    spans
}

/// How many things a call is about: tokens, documents, rows of the batch, table entries.
fn items(op: &Op) -> usize {
    match op {
        Op::Write { tokens, .. } => tokens.len(),
        Op::Ingest { docs } => docs.len(),
        Op::Observe { idx_mapping, .. } | Op::Propose { idx_mapping, .. } => idx_mapping.len(),
        Op::Preset(preset) => preset.table.len() + preset.corpus.len(),
        Op::SetLen { .. } => 1,
        Op::AddRequest { .. } | Op::Reset => 0,
    }
}

type Field = fn(&mut SuffixConfig) -> &mut usize;
const CONFIG_FIELDS: [Field; 5] = [
    |config| &mut config.max_num_reqs,
    |config| &mut config.max_model_len,
    |config| &mut config.num_draft_tokens,
    |config| &mut config.max_depth,
    |config| &mut config.corpus_tokens,
];

impl Edit {
    fn apply(self, life: &mut Life) {
        match self {
            Edit::DropOps { from, count } => drop_span(&mut life.ops, from, count),
            Edit::DropItems { op, from, count } => match &mut life.ops[op] {
                Op::Write { tokens, .. } => drop_span(tokens, from, count),
                Op::Ingest { docs } => drop_span(docs, from, count),
                Op::Observe {
                    idx_mapping,
                    num_sampled,
                    num_rejected,
                } => {
                    for words in [idx_mapping, num_sampled, num_rejected] {
                        drop_span(words, from, count);
                    }
                }
                Op::Propose {
                    idx_mapping,
                    num_sampled,
                    ..
                } => {
                    drop_span(idx_mapping, from, count);
                    drop_span(num_sampled, from, count);
                }
                Op::Preset(Preset { table, corpus, .. }) => match from.checked_sub(table.len()) {
                    None => drop_span(table, from, count),
                    Some(from) => drop_span(corpus, from, count),
                },
                Op::SetLen { len, .. } => *len /= 2,
                Op::AddRequest { .. } | Op::Reset => {}
            },
            Edit::PlainItem { op, item } => match &mut life.ops[op] {
                Op::Write { tokens, .. } => tokens[item] = 0,
                Op::Ingest { docs } => docs[item].1 = 0,
                Op::Observe {
                    num_sampled,
                    num_rejected,
                    ..
                } => {
                    set_one(num_sampled, item);
                    set_one(num_rejected, item);
                }
                Op::Propose {
                    num_sampled,
                    last_sampled,
                    ..
                } => {
                    set_one(num_sampled, item);
                    last_sampled.fill(0);
                }
                Op::SetLen { len, .. } => *len -= len.signum(),
                Op::Preset(_) | Op::AddRequest { .. } | Op::Reset => {}
            },
            Edit::PlainPreset { op, part } => {
                let Op::Preset(preset) = &mut life.ops[op] else {
                    return;
                };
                match part {
                    0 => preset.corpus.clear(),
                    1 => preset.table.clear(),
                    2 => preset.head = None,
                    3 => preset.doc_seq = None,
                    4 => preset.stats.clear(),
                    5 => preset.last.clear(),
                    _ => preset.steps = None,
                }
            }
            Edit::PlainLayout(edit) => edit(&mut life.layout),
            Edit::Config { field, value } => {
                let old = CONFIG_FIELDS[field](&mut life.config);
                *old = value.min(*old);
                let slots = life.config.max_num_reqs;
                for op in &mut life.ops {
                    if let Op::Propose { last_sampled, .. } = op {
                        last_sampled.truncate(slots);
                    }
                }
            }
        }
    }
}

/// The arrays of a batch that is to be refused have different lengths.
fn set_one(words: &mut [i32], index: usize) {
    if let Some(word) = words.get_mut(index) {
        *word = 1;
    }
}

fn drop_span<T>(list: &mut Vec<T>, from: usize, count: usize) {
    let from = from.min(list.len());
    list.drain(from..list.len().min(from + count));
}
