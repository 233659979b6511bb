//! The corpus: a ring of finished responses with an index on their 2-token and 4-token contexts.

use super::filled;
use super::scan::common_suffix;
use crate::error::Result;
use crate::suffix::{BUCKET_SLOTS, MAX_DRAFT_TOKENS, SuffixConfig};

/// Candidates of one lookup: a bucket of each key length.
const CANDIDATES: usize = 2 * BUCKET_SLOTS;
/// Key lengths, in the order of the table's halves.
const KEY_LENS: [usize; 2] = [4, 2];
const HASH_MUL: u64 = 0x9E37_79B9_7F4A_7C15;

#[derive(Debug)]
pub(super) struct Corpus {
    pub(super) tokens: Vec<i32>,
    /// `[2, num_buckets, 8]`.
    pub(super) table: Vec<i64>,
    pub(super) head: usize,
    pub(super) doc_seq: i64,
    num_buckets: usize,
}

/// A draft from the corpus: `len` tokens of context agreed.
#[derive(Debug)]
pub(super) struct CorpusDraft {
    pub(super) len: usize,
    chain: [i32; MAX_DRAFT_TOKENS],
    num_tokens: usize,
}

impl CorpusDraft {
    pub(super) fn tokens(&self) -> &[i32] {
        &self.chain[..self.num_tokens]
    }
}

impl Corpus {
    pub(super) fn new(config: &SuffixConfig) -> Result<Self> {
        Ok(Self {
            tokens: filled("corpus", -1, config.effective_corpus_tokens())?,
            table: filled("corpus index", -1, config.table_len())?,
            head: 0,
            doc_seq: 0,
            num_buckets: config.num_buckets(),
        })
    }

    pub(super) fn is_on(&self) -> bool {
        !self.tokens.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.tokens.fill(-1);
        self.table.fill(-1);
        self.head = 0;
        self.doc_seq = 0;
    }

    /// Makes room for the numbers of `docs` documents: entries keep 31 bits of them, so the index starts anew before
    /// they run out. The ring stays.
    pub(super) fn start_batch(&mut self, docs: i64) {
        if docs > 0 && self.doc_seq + docs >= 1 << 31 {
            self.table.fill(-1);
            self.doc_seq = 0;
        }
    }

    /// Appends one document, or its newest tokens that fit.
    pub(super) fn append(&mut self, row: &[i32]) {
        let capacity = self.tokens.len();
        let doc = &row[row.len() - row.len().min(capacity - 1)..];
        if self.head + doc.len() + 1 > capacity {
            self.head = 0;
        }
        let separator = self.head + doc.len();
        self.tokens[self.head..separator].copy_from_slice(doc);
        self.tokens[separator] = -1;

        let slot = (self.doc_seq % BUCKET_SLOTS as i64) as usize;
        for j in KEY_LENS[1]..doc.len() {
            let entry = self.doc_seq << 32 | (self.head + j) as i64;
            let mut keys = Keys::of(&doc[..j], self.num_buckets);
            for bucket in keys.buckets.iter_mut().flatten() {
                let old = &mut self.table[*bucket * BUCKET_SLOTS + slot];
                *old = entry.max(*old);
            }
        }
        self.head = separator + 1;
        self.doc_seq += 1;
    }

    /// The draft that the corpus suggests after `row`, if more than `own_len` tokens of context agree with it.
    pub(super) fn draft(
        &self,
        row: &[i32],
        k: usize,
        max_depth: usize,
        own_len: usize,
    ) -> Option<CorpusDraft> {
        let mut room = [Candidate::default(); CANDIDATES];
        let found = self.candidates(row, k, max_depth, &mut room);
        let draft = vote(&room[..found], k)?;
        (draft.len > own_len).then_some(draft)
    }

    /// Finds the places in the corpus that the row's last tokens lead to and that hold, longest match first. Gives
    /// their number.
    fn candidates<'a>(
        &'a self,
        row: &[i32],
        k: usize,
        max_depth: usize,
        room: &mut [Candidate<'a>; CANDIDATES],
    ) -> usize {
        let mut found = 0;
        if !self.is_on() {
            return found;
        }
        let keys = Keys::of(row, self.num_buckets);
        for (bucket, key_len) in keys.buckets.into_iter().zip(KEY_LENS) {
            let Some(bucket) = bucket else { continue };
            for &entry in &self.table[bucket * BUCKET_SLOTS..][..BUCKET_SLOTS] {
                let pos = (entry & 0xFFFF_FFFF) as usize;
                let seen = room[..found].iter().any(|other| other.pos == pos);
                if entry < 0 || pos >= self.tokens.len() || self.tokens[pos] < 0 || seen {
                    continue;
                }
                let len = self.match_len(pos, row, max_depth);
                if len < key_len {
                    continue;
                }
                let ahead = &self.tokens[pos..];
                let ahead = &ahead[..ahead.len().min(k)];
                let end = ahead.iter().position(|&token| token < 0);
                room[found] = Candidate {
                    entry,
                    pos,
                    len,
                    ahead: &ahead[..end.unwrap_or(ahead.len())],
                };
                found += 1;
            }
        }
        room[..found].sort_unstable_by_key(|candidate| std::cmp::Reverse(candidate.len));
        found
    }

    /// How many tokens before `pos` agree with the row's last ones. A negative token is a separator here: it agrees
    /// with nothing.
    fn match_len(&self, pos: usize, row: &[i32], max_depth: usize) -> usize {
        let len = common_suffix(&self.tokens[..pos], row, max_depth);
        let agreeing = &self.tokens[pos - len..pos];
        let separator = agreeing.iter().rev().position(|&token| token < 0);
        separator.unwrap_or(len)
    }
}

/// The buckets that the last tokens of a text lead to: of its 4-token key and of its 2-token key.
struct Keys {
    buckets: [Option<usize>; 2],
}

impl Keys {
    fn of(text: &[i32], num_buckets: usize) -> Self {
        let mut buckets = [None; 2];
        let mut hash = 0u64;
        for (index, &token) in text.iter().rev().take(KEY_LENS[0]).enumerate() {
            hash = (hash ^ i64::from(token) as u64).wrapping_mul(HASH_MUL);
            let bucket = (hash ^ ((hash as i64) >> 29) as u64) as usize & (num_buckets - 1);
            match index + 1 {
                2 => buckets[1] = Some(num_buckets + bucket),
                4 => buckets[0] = Some(bucket),
                _ => {}
            }
        }
        Self { buckets }
    }
}

/// A place in the corpus where the row may go on.
#[derive(Clone, Copy, Debug, Default)]
struct Candidate<'a> {
    entry: i64,
    pos: usize,
    len: usize,
    /// What follows there, at most K tokens of the same document.
    ahead: &'a [i32],
}

/// The chain of tokens with the best score over all match lengths.
///
/// The candidates that match at least L tokens vote token by token, each as long as it agrees with the chain; a chain's
/// score is its votes over its candidates. `candidates` come longest first, so a longer match wins a tie by being first.
fn vote(candidates: &[Candidate<'_>], k: usize) -> Option<CorpusDraft> {
    let mut best: Option<(Chain, usize, usize)> = None;
    for (index, candidate) in candidates.iter().enumerate() {
        let next = candidates.get(index + 1);
        if next.is_some_and(|next| next.len == candidate.len) {
            continue;
        }
        let count = index + 1;
        let chain = Chain::of(&candidates[..count], k);
        let better = best
            .as_ref()
            .is_none_or(|(best, best_count, _)| chain.votes * best_count > best.votes * count);
        if better {
            // No score is higher than K.
            let highest = chain.votes == k * count;
            best = Some((chain, count, candidate.len));
            if highest {
                break;
            }
        }
    }
    let (chain, _, len) = best?;
    Some(CorpusDraft {
        len,
        chain: chain.tokens,
        num_tokens: chain.len,
    })
}

/// What a set of candidates agrees on.
struct Chain {
    tokens: [i32; MAX_DRAFT_TOKENS],
    len: usize,
    votes: usize,
}

impl Chain {
    fn of(candidates: &[Candidate<'_>], k: usize) -> Self {
        let mut chain = Chain {
            tokens: [0; MAX_DRAFT_TOKENS],
            len: 0,
            votes: 0,
        };
        // One bit a candidate that has said every token of the chain so far.
        let mut agreeing = (1u32 << candidates.len()) - 1;
        for step in 0..k {
            let says = |index: &usize, word: i32| candidates[*index].ahead.get(step) == Some(&word);
            let (mut most, mut winner) = ((0, -1), None);
            for candidate in bits(agreeing).map(|index| &candidates[index]) {
                let Some(&word) = candidate.ahead.get(step) else {
                    continue;
                };
                let voters = bits(agreeing).filter(|index| says(index, word));
                let voters = voters.fold(0u32, |set, index| set | 1 << index);
                // Ties go to the newest candidate.
                let votes = (voters.count_ones(), candidate.entry);
                if votes > most {
                    (most, winner) = (votes, Some((word, voters)));
                }
                if voters == agreeing {
                    break;
                }
            }
            let Some((word, voters)) = winner else { break };
            chain.tokens[step] = word;
            chain.len += 1;
            chain.votes += most.0 as usize;
            agreeing = voters;
        }
        chain
    }
}

/// The set bits of a word, lowest first.
fn bits(mut word: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let index = (word != 0).then(|| word.trailing_zeros() as usize)?;
        word &= word - 1;
        Some(index)
    })
}
