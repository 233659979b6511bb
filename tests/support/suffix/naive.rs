//! The suffix drafter word for word: slow, short, and with nothing clever in it that could be wrong.
//! Its errors name the argument and nothing else.

use specdraft::suffix::{Document, Proposal, SuffixBackend, SuffixConfig, SuffixState};
use specdraft::{Error, Result};

/// Entries in a bucket.
const SLOTS: usize = 8;

/// A drafter that follows the definition without a thought for speed.
pub struct NaiveSuffix {
    config: SuffixConfig,
    rows: Vec<Vec<i32>>,
    total_len: Vec<i32>,
    state: SuffixState,
}

/// A place in the corpus where a row may go on.
#[derive(Clone)]
struct Candidate {
    entry: i64,
    pos: usize,
    len: usize,
    next: Vec<i32>,
}

impl NaiveSuffix {
    /// Builds a drafter with empty rows and an empty corpus.
    ///
    /// # Errors
    /// As [`SuffixConfig::validate`].
    pub fn new(config: SuffixConfig) -> Result<Self> {
        config.validate()?;
        Ok(Self {
            rows: vec![vec![0; config.max_model_len]; config.max_num_reqs],
            total_len: vec![0; config.max_num_reqs],
            state: SuffixState::new(&config),
            config,
        })
    }

    fn check(&self, idx_mapping: &[i32], others: &[(&str, usize, usize)]) -> Result<()> {
        if idx_mapping.len() > self.config.max_num_reqs {
            return refuse("idx_mapping");
        }
        for (argument, len, wanted) in others {
            if len != wanted {
                return refuse(argument);
            }
        }
        for (index, slot) in idx_mapping.iter().enumerate() {
            if self.exists(*slot) && idx_mapping[..index].contains(slot) {
                return refuse(&format!("idx_mapping[{index}]"));
            }
        }
        Ok(())
    }

    fn check_slot(&self, slot: usize) -> Result<()> {
        match slot < self.config.max_num_reqs {
            true => Ok(()),
            false => refuse("slot"),
        }
    }

    fn exists(&self, slot: i32) -> bool {
        (0..self.config.max_num_reqs as i64).contains(&slot.into())
    }

    fn row(&self, slot: i32) -> &[i32] {
        let len = self.total_len[slot as usize].clamp(0, self.config.max_model_len as i32);
        &self.rows[slot as usize][..len as usize]
    }

    /// The buckets of the last 4 and the last 2 tokens, as indexes into the table.
    fn bucket(&self, context: &[i32], key_len: usize) -> usize {
        let mut hash = 0i64;
        for &token in context.iter().rev().take(key_len) {
            hash = (hash ^ i64::from(token)).wrapping_mul(0x9E37_79B9_7F4A_7C15u64 as i64);
        }
        let buckets = self.config.num_buckets();
        let bucket = (hash ^ (hash >> 29)) & (buckets as i64 - 1);
        (if key_len == 4 { 0 } else { buckets }) + bucket as usize
    }

    fn append(&mut self, doc: Document) {
        let capacity = self.state.corpus.len() as i64;
        let end = self.row(doc.slot).len() as i64;
        let start = i64::from(doc.start).max(0).max(end - (capacity - 1));
        let tokens = match start < end {
            true => self.row(doc.slot)[start as usize..end as usize].to_vec(),
            false => vec![],
        };
        if self.state.head + tokens.len() as i64 + 1 > capacity {
            self.state.head = 0;
        }
        let doc_seq = self.state.doc_seq;
        for (j, &token) in tokens.iter().enumerate() {
            let pos = self.state.head + j as i64;
            self.state.corpus[pos as usize] = token;
            for key_len in [4, 2] {
                if j >= key_len {
                    let bucket = self.bucket(&tokens[..j], key_len);
                    let entry = &mut self.state.table[bucket * SLOTS + (doc_seq % 8) as usize];
                    *entry = (*entry).max(doc_seq << 32 | pos);
                }
            }
        }
        self.state.head += tokens.len() as i64 + 1;
        self.state.corpus[self.state.head as usize - 1] = -1;
        self.state.doc_seq += 1;
    }

    /// The best match within the row: its length and its end.
    fn own(&self, row: &[i32]) -> (usize, usize) {
        let mut best = (0, 0);
        for p in 1..row.len() {
            let mut m = 0;
            while m < self.config.max_depth && m < p && row[p - 1 - m] == row[row.len() - 1 - m] {
                m += 1;
            }
            if m > 0 {
                best = best.max((m, p));
            }
        }
        best
    }

    fn candidates(&self, row: &[i32]) -> Vec<Candidate> {
        let corpus = &self.state.corpus;
        let mut found: Vec<Candidate> = vec![];
        for key_len in [4, 2] {
            if corpus.is_empty() || row.len() < key_len {
                continue;
            }
            let bucket = self.bucket(row, key_len);
            for &entry in &self.state.table[bucket * SLOTS..][..SLOTS] {
                let pos = (entry & 0xFFFF_FFFF) as usize;
                if entry < 0 || pos >= corpus.len() || corpus[pos] < 0 {
                    continue;
                }
                let mut len = 0;
                while len < self.config.max_depth
                    && len < pos
                    && len < row.len()
                    && corpus[pos - 1 - len] >= 0
                    && corpus[pos - 1 - len] == row[row.len() - 1 - len]
                {
                    len += 1;
                }
                if len >= key_len && found.iter().all(|other| other.pos != pos) {
                    let next = corpus[pos..].iter().take(self.config.num_draft_tokens);
                    let next = next.copied().take_while(|&token| token >= 0).collect();
                    found.push(Candidate {
                        entry,
                        pos,
                        len,
                        next,
                    });
                }
            }
        }
        found
    }

    /// The corpus draft: match length and tokens.
    fn vote(&self, candidates: &[Candidate]) -> (usize, Vec<i32>) {
        let (mut best_num, mut best_den, mut best_len, mut best_chain) = (0, 1, 0, vec![]);
        for len in candidates.iter().map(|candidate| candidate.len) {
            let mut alive: Vec<_> = candidates.iter().filter(|c| c.len >= len).collect();
            let (mut num, den, mut chain) = (0, alive.len(), vec![]);
            for d in 0..self.config.num_draft_tokens {
                alive.retain(|candidate| candidate.next.len() > d);
                let votes = |token| alive.iter().filter(|c| c.next[d] == token).count();
                let winner = alive.iter().max_by_key(|c| (votes(c.next[d]), c.entry));
                let Some(token) = winner.map(|winner| winner.next[d]) else {
                    break;
                };
                num += votes(token);
                chain.push(token);
                alive.retain(|candidate| candidate.next[d] == token);
            }
            let (ours, theirs) = (num * best_den, best_num * den);
            if ours > theirs || (ours == theirs && len > best_len) {
                (best_num, best_den, best_len, best_chain) = (num, den, len, chain);
            }
        }
        (best_len, best_chain)
    }
}

impl SuffixBackend for NaiveSuffix {
    fn name(&self) -> &'static str {
        "naive"
    }

    fn config(&self) -> &SuffixConfig {
        &self.config
    }

    fn write_tokens(&mut self, slot: usize, offset: usize, tokens: &[i32]) -> Result<()> {
        self.check_slot(slot)?;
        let room = self.config.max_model_len.checked_sub(offset);
        if room.is_none_or(|room| tokens.len() > room) {
            return refuse("tokens");
        }
        self.rows[slot][offset..offset + tokens.len()].copy_from_slice(tokens);
        Ok(())
    }

    fn set_total_len(&mut self, slot: usize, len: i32) -> Result<()> {
        self.check_slot(slot)?;
        self.total_len[slot] = len;
        Ok(())
    }

    fn add_request(&mut self, slot: usize) -> Result<()> {
        self.check_slot(slot)?;
        self.state.last_bucket[slot] = -1;
        Ok(())
    }

    fn ingest(&mut self, docs: &[Document]) -> Result<()> {
        if docs.len() > self.config.max_num_reqs {
            return refuse("docs");
        }
        let docs: Vec<_> = docs.iter().filter(|doc| self.exists(doc.slot)).collect();
        if docs.is_empty() || self.state.corpus.is_empty() {
            return Ok(());
        }
        if self.state.doc_seq + docs.len() as i64 >= 1 << 31 {
            self.state.table.fill(-1);
            self.state.doc_seq = 0;
        }
        docs.into_iter().for_each(|&doc| self.append(doc));
        Ok(())
    }

    fn observe(
        &mut self,
        idx_mapping: &[i32],
        num_sampled: &[i32],
        num_rejected: &[i32],
    ) -> Result<()> {
        let batch = idx_mapping.len();
        let lengths = [
            ("num_sampled", num_sampled.len(), batch),
            ("num_rejected", num_rejected.len(), batch),
        ];
        self.check(idx_mapping, &lengths)?;
        if !self.config.adaptive || idx_mapping.is_empty() {
            return Ok(());
        }
        for (b, &slot) in idx_mapping.iter().enumerate() {
            if !self.exists(slot)
                || num_sampled[b] <= 0
                || self.state.last_bucket[slot as usize] < 0
            {
                continue;
            }
            let k = self.config.num_draft_tokens as i64;
            let accepted = i64::from(num_sampled[b]) - 1;
            let verified = accepted + i64::from(num_rejected[b]);
            let valid = i64::from(self.state.last_valid[slot as usize]);
            let bucket = i64::from(self.state.last_bucket[slot as usize]);
            for position in 0..k {
                if position <= accepted && position < verified && position < valid {
                    let count = ((bucket * k + position) * 2) as usize;
                    self.state.stats[count] += i64::from(position < accepted);
                    self.state.stats[count + 1] += 1;
                }
            }
            self.state.last_bucket[slot as usize] = -1;
        }
        self.state.steps += 1;
        if self.state.steps % 1024 == 0 {
            self.state.stats.iter_mut().for_each(|count| *count >>= 1);
        }
        Ok(())
    }

    fn propose(
        &mut self,
        idx_mapping: &[i32],
        num_sampled: &[i32],
        last_sampled: &[i64],
    ) -> Result<Proposal> {
        let lengths = [
            ("num_sampled", num_sampled.len(), idx_mapping.len()),
            ("last_sampled", last_sampled.len(), self.config.max_num_reqs),
        ];
        self.check(idx_mapping, &lengths)?;
        let k = self.config.num_draft_tokens;
        let mut out = Proposal::default();
        for (&slot, &sampled) in idx_mapping.iter().zip(num_sampled) {
            if !self.exists(slot) {
                out.drafts.extend(vec![-1; k]);
                out.num_valid.push(0);
                out.confidence
                    .extend(vec![0.0; if self.config.adaptive { k } else { 0 }]);
                continue;
            }
            let row = self.row(slot);
            let (own_len, end) = self.own(row);
            let (corpus_len, chain) = self.vote(&self.candidates(row));
            let (source, len, mut tokens) = if corpus_len > own_len {
                (1, corpus_len, chain)
            } else if own_len > 0 {
                (0, own_len, row[end..].iter().take(k).copied().collect())
            } else {
                (0, 0, vec![])
            };
            if sampled <= 0 {
                tokens.clear();
            }
            out.num_valid.push(tokens.len() as i32);
            for position in 0..k {
                let token = tokens.get(position).map(|&token| i64::from(token));
                out.drafts
                    .push(token.unwrap_or(last_sampled[slot as usize]));
            }
            if self.config.adaptive {
                let classes = [1, 2, 3, 4, 5, 6, 7, 11, 21];
                let class = classes.iter().rposition(|&least| least <= len).unwrap_or(0);
                let bucket = source * 9 + class;
                for position in 0..k {
                    let count = &self.state.stats[(bucket * k + position) * 2..][..2];
                    let confidence = (count[0] + 1) as f32 / (count[1] + 2) as f32;
                    let valid = position < tokens.len();
                    out.confidence.push(if valid { confidence } else { 0.0 });
                }
                let drafted = !tokens.is_empty();
                self.state.last_bucket[slot as usize] = if drafted { bucket as i32 } else { -1 };
                self.state.last_valid[slot as usize] = tokens.len() as i32;
            }
        }
        Ok(out)
    }

    fn reset(&mut self) -> Result<()> {
        self.state = SuffixState::new(&self.config);
        Ok(())
    }

    fn last_buckets(&mut self) -> Result<Vec<i32>> {
        Ok(self.state.last_bucket.clone())
    }

    fn state(&mut self) -> Result<SuffixState> {
        Ok(self.state.clone())
    }

    fn set_state(&mut self, state: &SuffixState) -> Result<()> {
        state.check(&self.config)?;
        self.state = state.clone();
        Ok(())
    }
}

fn refuse(argument: &str) -> Result<()> {
    Err(Error::OutOfRange {
        argument: argument.into(),
        expected: String::new(),
        got: String::new(),
        hint: "",
    })
}
