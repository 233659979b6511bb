//! The history index in the emulator: the drafts are the CPU drafter's, whatever the history and its past.

use specdraft::cpu::CpuSuffix;
use specdraft::emulator::{EmulatorOptions, EmulatorSuffix, Schedule};
use specdraft::suffix::{SuffixBackend, SuffixConfig};
use test_support::suffix::{
    Factory, Target, Twice, check_bad_input, check_equal_matches, check_golden, check_histories,
    run_targets,
};

const SCHEDULES: [Schedule; 3] = [Schedule::Sequential, Schedule::Shuffled, Schedule::Parallel];

#[test]
fn golden_vectors() {
    for (log2_blocks, schedule) in (0..).zip(SCHEDULES) {
        let emulator: &mut Factory<'_> = &mut |config| backend(config, log2_blocks, schedule);
        let report = check_golden(&mut Twice::indexed(emulator)).unwrap();
        assert!(report.proposes > 0, "{report:?}");
    }
}

#[test]
fn random_lives() {
    let emulator: &mut Factory<'_> = &mut |config| backend(config, 1, Schedule::Shuffled);
    for (target, lives) in [(Target::Life, 300), (Target::Propose, 100)] {
        run_targets(&mut Twice::indexed(emulator), target, lives, 9)
            .unwrap_or_else(|failure| panic!("{failure}"));
    }
}

#[test]
fn bad_input() {
    let emulator: &mut Factory<'_> = &mut |config| backend(config, 0, Schedule::Sequential);
    check_bad_input(&mut Twice::indexed(emulator));
}

#[test]
fn adversarial_histories() {
    for (log2_blocks, schedule) in [(0, Schedule::Sequential), (2, Schedule::Shuffled)] {
        let emulator: &mut Factory<'_> = &mut |config| backend(config, log2_blocks, schedule);
        check_histories(&mut Twice::indexed(emulator), 2900);
    }
}

/// More blocks than the words of a warp have bits; the best match lies in the oldest, or in between.
#[test]
fn a_row_of_300_000_tokens() {
    let len = 300_000;
    let config = SuffixConfig {
        max_num_reqs: 1,
        max_model_len: len,
        corpus_tokens: 0,
        history_index: true,
        ..SuffixConfig::default()
    };
    let mut emulator = backend(&config, 0, Schedule::Sequential).unwrap();
    let mut cpu = CpuSuffix::new(config).unwrap();
    let mut row: Vec<i32> = (1000..1000 + len as i32).collect();
    let quoted = row[5..15].to_vec();
    row[150_000..150_009].copy_from_slice(&quoted[1..]);
    row[len - 10..].copy_from_slice(&quoted);
    let mut both = |row: &[i32], from: usize| {
        let mut drafts = Vec::new();
        for backend in [&mut *emulator, &mut cpu as &mut dyn SuffixBackend] {
            backend.write_tokens(0, from, &row[from..]).unwrap();
            backend.set_total_len(0, row.len() as i32).unwrap();
            drafts.push(backend.propose(&[0], &[1], &[0]).unwrap());
        }
        assert_eq!(drafts[0], drafts[1]);
        drafts[0].drafts[0]
    };
    assert_eq!(both(&row[..len - 9], 0), i64::from(row[6]));
    for end in len - 8..=len {
        both(&row[..end], end - 1);
    }
    assert_eq!(both(&row, len), i64::from(row[15]));
}

#[test]
fn the_newest_of_many_equal_matches() {
    for schedule in SCHEDULES {
        let emulator: &mut Factory<'_> = &mut |config| backend(config, 0, schedule);
        check_equal_matches(&mut Twice::indexed(emulator));
    }
}

fn backend(
    config: &SuffixConfig,
    log2_blocks: u32,
    schedule: Schedule,
) -> specdraft::Result<Box<dyn SuffixBackend>> {
    let options = EmulatorOptions {
        seed: 3,
        schedule,
        log2_blocks,
        row_offset: log2_blocks as usize,
        row_padding: 1,
    };
    Ok(Box::new(EmulatorSuffix::with_options(
        config.clone(),
        options,
    )?))
}
