//! The suffix drafter's kernels in the emulator, beside the CPU drafter: the same bits in every schedule, for every
//! number of blocks a request and every alignment of the rows.

use specdraft::Result;
use specdraft::cpu::CpuSuffix;
use specdraft::emulator::{EmulatorOptions, EmulatorSuffix, Schedule};
use specdraft::suffix::{Document, Proposal, SuffixBackend, SuffixConfig, SuffixState};
use test_support::suffix::{Factory, check_golden};

const SCHEDULES: [Schedule; 3] = [Schedule::Sequential, Schedule::Shuffled, Schedule::Parallel];

#[test]
fn golden_vectors_one_block_a_request() {
    for (seed, schedule) in SCHEDULES.into_iter().enumerate() {
        golden(EmulatorOptions {
            seed: seed as u64,
            schedule,
            ..EmulatorOptions::default()
        });
    }
}

#[test]
fn golden_vectors_several_blocks_a_request() {
    for (log2_blocks, schedule) in (1..=3).zip(SCHEDULES) {
        golden(EmulatorOptions {
            seed: 7,
            schedule,
            log2_blocks,
            row_offset: log2_blocks as usize,
            row_padding: 5,
        });
    }
}

/// Histories on which the scan finds matches everywhere, too long for one block.
#[test]
fn long_repetitive_rows() {
    let period = |p: usize| move |i: usize| ((i % p) * 7919 % 61) as i32;
    let mut rows: Vec<Vec<i32>> = vec![vec![5; 4500]];
    for p in [2, 3, 5, 63, 64, 65] {
        rows.push((0..4700 + p).map(period(p)).collect());
    }
    rows.push(fibonacci_word(5003));
    // A long period broken near its end: the longest match is far from the newest token.
    let mut broken: Vec<i32> = (0..6000).map(period(61)).collect();
    for i in (2000..6000).step_by(19) {
        broken[i] = 99;
    }
    rows.push(broken);
    compare(&rows, 24);
    compare(&rows[6..], 64);
}

/// Every 25th token is the newest one, as a comma is in text.
#[test]
fn long_rows_with_a_frequent_token() {
    let mut random = Random(3);
    let rows: Vec<Vec<i32>> = (0..6)
        .map(|row| {
            let len = 3000 + random.below(3000);
            let alphabet = [2, 3, 30_000][row % 3];
            let mut tokens: Vec<i32> = (0..len).map(|_| random.below(alphabet) as i32).collect();
            for _ in 0..len / 25 {
                tokens[random.below(len)] = 1;
            }
            let quoted = random.below(len - 60);
            tokens.extend_from_within(quoted..quoted + 20);
            tokens.push(1);
            tokens
        })
        .collect();
    compare(&rows, 24);
    compare(&rows, 1);
}

/// More blocks than a warp has lanes; the best match lies in each in turn, or in the corpus.
#[test]
fn a_long_row_in_64_blocks() {
    let len = 64 * 512 + 17;
    for num_draft_tokens in [8, 40] {
        let config = SuffixConfig {
            max_num_reqs: 2,
            max_model_len: len,
            num_draft_tokens,
            corpus_tokens: 500,
            ..SuffixConfig::default()
        };
        let options = EmulatorOptions {
            schedule: Schedule::Shuffled,
            log2_blocks: 6,
            row_offset: 1,
            ..EmulatorOptions::default()
        };
        let mut twin = Twin::new(&config, options).unwrap();
        let mut row: Vec<i32> = (0..len as i32).map(|i| i + 100).collect();
        row[len - 30..].fill(6); // nothing like it elsewhere
        row[len - 4..].copy_from_slice(&[1, 2, 3, 4]);
        let document: Vec<i32> = (0..60).chain(1..50).collect();
        twin.write_tokens(1, 0, &document).unwrap();
        twin.set_total_len(1, document.len() as i32).unwrap();
        twin.set_total_len(0, len as i32).unwrap();
        for place in [3, 511, 512, 20_000, len - 100] {
            let was = row[place..place + 4].to_vec();
            row[place..place + 4].copy_from_slice(&[1, 2, 3, 4]);
            twin.write_tokens(0, 0, &row).unwrap();
            twin.propose(&[0], &[1], &[0, 0]).unwrap();
            row[place..place + 4].copy_from_slice(&was);
        }
        // The corpus knows more than the row: five tokens of context.
        row[len - 5] = 0;
        twin.write_tokens(0, 0, &row).unwrap();
        twin.ingest(&[Document { slot: 1, start: 0 }]).unwrap();
        let proposal = twin.propose(&[0], &[1], &[0, 0]).unwrap();
        assert_eq!(proposal.drafts[..2], [5, 6]);
    }
}

/// Rows around the sizes where a vector, a unit or a part ends.
#[test]
fn rows_of_every_small_length() {
    let config = SuffixConfig {
        max_num_reqs: 1,
        max_model_len: 1040,
        corpus_tokens: 0,
        ..SuffixConfig::default()
    };
    let lens = (0..=40)
        .chain(500..=530)
        .chain(1012..=1040)
        .collect::<Vec<_>>();
    for row_offset in 0..4 {
        let mut twin = Twin::new(
            &config,
            EmulatorOptions {
                log2_blocks: 1,
                row_offset,
                ..EmulatorOptions::default()
            },
        )
        .unwrap();
        for &len in &lens {
            // All different but for the last token, which is also the first one that it can be.
            let mut row: Vec<i32> = (0..len).collect();
            if let Some(last) = row.last_mut() {
                *last = (len - 2).clamp(0, 1);
            }
            twin.write_tokens(0, 0, &row).unwrap();
            twin.set_total_len(0, len).unwrap();
            let proposal = twin.propose(&[0], &[1], &[-7]).unwrap();
            assert_eq!(proposal.num_valid[0] > 0, len > 1, "{len} tokens");
        }
    }
}

/// A batch that goes round the ring several times, in which newer documents hide older ones' entries.
#[test]
fn documents_round_the_ring() {
    let config = SuffixConfig {
        max_num_reqs: 70,
        max_model_len: 90,
        corpus_tokens: 700,
        ..SuffixConfig::default()
    };
    let mut random = Random(11);
    let mut twin = Twin::new(&config, EmulatorOptions::default()).unwrap();
    for slot in 0..70 {
        let len = random.below(91);
        let tokens: Vec<i32> = (0..len).map(|_| random.below(3) as i32).collect();
        twin.write_tokens(slot, 0, &tokens).unwrap();
        twin.set_total_len(slot, len as i32).unwrap();
    }
    for round in 0..6 {
        let docs: Vec<Document> = (0..70)
            .map(|i| Document {
                slot: (i * 7 + round) % 73 - 1, // some are no slots
                start: random.below(95) as i32 - 3,
            })
            .collect();
        twin.ingest(&docs).unwrap();
    }
    // The document numbers run out: the index starts anew.
    let mut state = twin.state().unwrap();
    state.doc_seq = (1 << 31) - 71;
    twin.set_state(&state).unwrap();
    for last in [1, 70] {
        let docs: Vec<Document> = (0..last).map(|slot| Document { slot, start: 0 }).collect();
        twin.ingest(&docs).unwrap();
        let entries = twin.state().unwrap().table;
        let old = entries.iter().any(|&entry| entry >= 71 << 32);
        assert_eq!(old, last == 1);
    }
}

fn golden(options: EmulatorOptions) {
    let factory: &mut Factory<'_> = &mut |config: &SuffixConfig| {
        Ok(Box::new(Twin::new(config, options)?) as Box<dyn SuffixBackend>)
    };
    let report = check_golden(factory).unwrap_or_else(|error| panic!("{options:?}: {error:#}"));
    assert!(report.ingests > 0 && report.proposes > 0, "{report:?}");
}

/// Drafts for rows, alone and with the others' tokens in the corpus, in 1, 2, 4 and 8 blocks and every alignment.
fn compare(rows: &[Vec<i32>], max_depth: usize) {
    let config = SuffixConfig {
        max_num_reqs: rows.len(),
        max_model_len: rows.iter().map(Vec::len).max().unwrap(),
        max_depth,
        corpus_tokens: 20_000,
        adaptive: true,
        ..SuffixConfig::default()
    };
    for log2_blocks in 0..4 {
        let options = EmulatorOptions {
            seed: log2_blocks.into(),
            schedule: SCHEDULES[log2_blocks as usize % 3],
            log2_blocks,
            row_offset: log2_blocks as usize,
            row_padding: 1,
        };
        let mut twin = Twin::new(&config, options).unwrap();
        for (slot, row) in rows.iter().enumerate() {
            twin.write_tokens(slot, 0, row).unwrap();
            twin.set_total_len(slot, row.len() as i32).unwrap();
        }
        let slots: Vec<i32> = (0..rows.len() as i32).rev().collect();
        let (ones, filler) = (vec![1; rows.len()], vec![3; rows.len()]);
        let alone = twin.propose(&slots, &ones, &filler).unwrap();
        assert!(alone.num_valid.iter().any(|&valid| valid > 0));
        let docs: Vec<Document> = slots
            .iter()
            .map(|&slot| Document { slot, start: 0 })
            .collect();
        twin.ingest(&docs).unwrap();
        twin.propose(&slots, &ones, &filler).unwrap();
    }
}

/// The word in which no letter repeats more than it must: `f(n) = f(n-1) f(n-2)`.
fn fibonacci_word(len: usize) -> Vec<i32> {
    let (mut short, mut long) = (vec![1], vec![1, 0]);
    while long.len() < len {
        let longer = [long.clone(), short].concat();
        (short, long) = (long, longer);
    }
    long.truncate(len);
    long
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

/// The emulator and the CPU drafter as one backend: whatever is asked of it, both give the same answer, and are left in
/// the same state.
struct Twin {
    emulator: EmulatorSuffix,
    cpu: CpuSuffix,
}

impl Twin {
    fn new(config: &SuffixConfig, options: EmulatorOptions) -> Result<Self> {
        Ok(Self {
            emulator: EmulatorSuffix::with_options(config.clone(), options)?,
            cpu: CpuSuffix::new(config.clone())?,
        })
    }

    /// Asks both.
    fn both<T>(&mut self, ask: impl Fn(&mut dyn SuffixBackend) -> Result<T>) -> Result<(T, T)> {
        Ok((ask(&mut self.emulator)?, ask(&mut self.cpu)?))
    }

    fn same_state(&mut self) -> Result<SuffixState> {
        let (emulator, cpu) = self.both(|backend| backend.state())?;
        assert!(emulator == cpu, "states differ");
        Ok(emulator)
    }
}

impl SuffixBackend for Twin {
    fn name(&self) -> &'static str {
        "emulator and cpu"
    }

    fn config(&self) -> &SuffixConfig {
        self.cpu.config()
    }

    fn write_tokens(&mut self, slot: usize, offset: usize, tokens: &[i32]) -> Result<()> {
        self.both(|backend| backend.write_tokens(slot, offset, tokens))?;
        Ok(())
    }

    fn set_total_len(&mut self, slot: usize, len: i32) -> Result<()> {
        self.both(|backend| backend.set_total_len(slot, len))?;
        Ok(())
    }

    fn add_request(&mut self, slot: usize) -> Result<()> {
        self.both(|backend| backend.add_request(slot))?;
        Ok(())
    }

    fn ingest(&mut self, docs: &[Document]) -> Result<()> {
        self.both(|backend| backend.ingest(docs))?;
        self.same_state()?;
        Ok(())
    }

    fn observe(
        &mut self,
        idx_mapping: &[i32],
        num_sampled: &[i32],
        num_rejected: &[i32],
    ) -> Result<()> {
        self.both(|backend| backend.observe(idx_mapping, num_sampled, num_rejected))?;
        Ok(())
    }

    fn propose(
        &mut self,
        idx_mapping: &[i32],
        num_sampled: &[i32],
        last_sampled: &[i64],
    ) -> Result<Proposal> {
        let (emulator, cpu) =
            self.both(|backend| backend.propose(idx_mapping, num_sampled, last_sampled))?;
        assert_eq!(emulator, cpu);
        self.same_state()?;
        Ok(emulator)
    }

    fn reset(&mut self) -> Result<()> {
        self.both(|backend| backend.reset())?;
        Ok(())
    }

    fn last_buckets(&mut self) -> Result<Vec<i32>> {
        Ok(self.both(|backend| backend.last_buckets())?.0)
    }

    fn state(&mut self) -> Result<SuffixState> {
        self.same_state()
    }

    fn set_state(&mut self, state: &SuffixState) -> Result<()> {
        self.both(|backend| backend.set_state(state))?;
        Ok(())
    }
}
