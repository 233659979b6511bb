//! Long histories on which a search of a row is hard to get right, or fast, as they grow, shrink and change.

use specdraft::cpu::CpuSuffix;
use specdraft::suffix::{SuffixBackend, SuffixConfig};

use super::Factory;

/// Compares a backend with the CPU drafter on adversarial histories of about `len` tokens, for shapes of both kernels,
/// while the rows gain tokens, have the tokens of rejected drafts behind them, lose tokens and start anew.
///
/// # Panics
/// Where the drafts differ.
pub fn check_histories(factory: &mut Factory<'_>, len: usize) {
    let mut random = Random(5);
    let rows = adversaries(len, &mut random);
    for (num_draft_tokens, max_depth) in [(8, 24), (3, 1), (4, 2), (8, 5), (8, 8), (40, 64)] {
        let config = SuffixConfig {
            max_num_reqs: rows.len(),
            max_model_len: len + 300,
            num_draft_tokens,
            max_depth,
            corpus_tokens: 0,
            ..SuffixConfig::default()
        };
        let mut pair = Pair {
            cpu: CpuSuffix::new(config.clone()).expect("a valid configuration"),
            other: factory(&config).expect("a valid configuration"),
            lens: vec![0; rows.len()],
        };
        for (slot, row) in rows.iter().enumerate() {
            pair.start(slot, row);
        }
        pair.compare("as they are");
        for round in 0..6 {
            for slot in 0..rows.len() {
                // What the target said, over the drafts that it refused.
                let said = pair.continuation(slot, &mut random);
                let refused: Vec<i32> = said.iter().map(|token| token ^ 1).collect();
                pair.write(slot, pair.lens[slot], &refused);
                let gained = random.below(said.len() + 1);
                pair.write(slot, pair.lens[slot], &said[..gained]);
                pair.set_len(slot, pair.lens[slot] + gained);
            }
            pair.compare(&format!("after {round} more steps"));
        }
        for slot in 0..rows.len() {
            pair.set_len(slot, pair.lens[slot] - random.below(len / 2));
        }
        pair.compare("cut short");
        for (slot, row) in rows.iter().rev().enumerate() {
            // Other tokens in a part that was seen, and behind it.
            let from = random.below(pair.lens[slot]);
            pair.write(slot, from, &row[from..]);
            pair.set_len(slot, row.len());
        }
        pair.compare("rewritten");
        for (slot, row) in rows.iter().enumerate() {
            pair.start(slot, &row[..row.len() / 3]);
        }
        pair.compare("new requests");
    }
}

/// Asks for the newest of many equal matches: every block of a history index has one as long as its level's can be, but the newest
/// one's is shorter. So the second newest wins, which its warp looks at when others have found older ones.
///
/// # Panics
/// Where another one wins.
pub fn check_equal_matches(factory: &mut Factory<'_>) {
    const BLOCK: usize = 256;
    let len = 40 * BLOCK;
    let config = SuffixConfig {
        max_num_reqs: 1,
        max_model_len: len,
        corpus_tokens: 0,
        ..SuffixConfig::default()
    };
    for (quoted, shorter) in [(3, 2), (7, 5), (config.max_depth, 10)] {
        let mut row: Vec<i32> = (1000..1000 + len as i32).collect();
        let quote: Vec<i32> = (1..=quoted as i32).collect();
        for end in (150..len - BLOCK).step_by(BLOCK).chain([len]) {
            row[end - quoted..end].copy_from_slice(&quote);
        }
        let end = len - BLOCK + 150;
        row[end - shorter..end].copy_from_slice(&quote[quoted - shorter..]);
        let mut backend = factory(&config).expect("a valid configuration");
        backend.write_tokens(0, 0, &row).expect("a row's tokens");
        backend
            .set_total_len(0, len as i32)
            .expect("a row's length");
        // The second time nothing is new.
        for time in 1..=2 {
            let proposal = backend.propose(&[0], &[1], &[0]).expect("a batch");
            let want = i64::from(row[end - BLOCK]);
            assert_eq!(proposal.drafts[0], want, "{quoted} tokens, time {time}");
        }
    }
}

/// One token, every period up to 64, words with few repetitions, few letters, a frequent token, a distant match.
fn adversaries(len: usize, random: &mut Random) -> Vec<Vec<i32>> {
    let mut rows = vec![vec![7; len], fibonacci_word(len), (0..len as i32).collect()];
    let periods = [
        2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 23, 24, 25, 31, 32, 33, 48, 63, 64,
    ];
    for period in periods {
        rows.push(
            (0..len - period)
                .map(|i| (i % period * 7919 % 61) as i32)
                .collect(),
        );
    }
    // A period that is broken now and then: the longest match may be anywhere.
    for every in [19, 300] {
        let mut row: Vec<i32> = (0..len).map(|i| (i % 61) as i32).collect();
        row.iter_mut().step_by(every).for_each(|token| *token = 99);
        rows.push(row);
    }
    for letters in [2, 3, 5, 30, 30_000] {
        rows.push((0..len).map(|_| random.below(letters) as i32).collect());
    }
    // Every 25th token is the newest one; and what stands at the end stands far away, too.
    for repeated in [1, 2, 3, 4, 7, 8, 9, 23, 24, 25, 40] {
        let mut row: Vec<i32> = (0..len).map(|_| 5 + random.below(30_000) as i32).collect();
        for _ in 0..len / 25 {
            row[random.below(len)] = 1;
        }
        let from = random.below(len / 2);
        row[from + repeated - 1] = 1;
        row.extend_from_within(from..from + repeated);
        rows.push(row);
    }
    rows
}

/// `f(n) = f(n-1) f(n-2)`
fn fibonacci_word(len: usize) -> Vec<i32> {
    let (mut short, mut long) = (vec![1], vec![1, 0]);
    while long.len() < len {
        let longer = [long.clone(), short].concat();
        (short, long) = (long, longer);
    }
    long.truncate(len);
    long
}

struct Pair {
    cpu: CpuSuffix,
    other: Box<dyn SuffixBackend>,
    lens: Vec<usize>,
}

impl Pair {
    fn start(&mut self, slot: usize, row: &[i32]) {
        self.write(slot, 0, row);
        self.set_len(slot, row.len());
        self.both(|backend| backend.add_request(slot).expect("a slot"));
    }

    fn write(&mut self, slot: usize, offset: usize, tokens: &[i32]) {
        self.both(|backend| {
            backend
                .write_tokens(slot, offset, tokens)
                .expect("tokens that fit");
        });
    }

    fn set_len(&mut self, slot: usize, len: usize) {
        self.lens[slot] = len;
        self.both(|backend| backend.set_total_len(slot, len as i32).expect("a slot"));
    }

    /// Tokens for a row to go on with: what was drafted, and a surprise now and then.
    fn continuation(&mut self, slot: usize, random: &mut Random) -> Vec<i32> {
        let fillers = vec![3; self.lens.len()];
        let drafted = self.cpu.propose(&[slot as i32], &[1], &fillers);
        let mut tokens = drafted.expect("a slot").drafts;
        tokens.push(random.below(30) as i64);
        if random.below(4) == 0 {
            tokens[0] = random.below(30) as i64;
        }
        tokens.into_iter().map(|token| token as i32).collect()
    }

    fn compare(&mut self, when: &str) {
        let slots: Vec<i32> = (0..self.lens.len() as i32).rev().collect();
        let (ones, fillers) = (vec![1; slots.len()], vec![-7; slots.len()]);
        let want = self.cpu.propose(&slots, &ones, &fillers).expect("slots");
        let got = self.other.propose(&slots, &ones, &fillers).expect("slots");
        let config = self.cpu.config();
        assert!(want.num_valid.iter().any(|&valid| valid > 0));
        let k = config.num_draft_tokens;
        for (b, &slot) in slots.iter().enumerate() {
            let of_row = b * k..(b + 1) * k;
            assert_eq!(
                (want.num_valid[b], &want.drafts[of_row.clone()]),
                (got.num_valid[b], &got.drafts[of_row]),
                "history {slot}, {when}, {config:?}"
            );
        }
    }

    fn both(&mut self, tell: impl Fn(&mut dyn SuffixBackend)) {
        tell(&mut self.cpu);
        tell(&mut *self.other);
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}
