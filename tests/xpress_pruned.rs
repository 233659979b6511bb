//! Pruned passes in the emulator: the tokens of passes that look at everything, for next to none of the work where logits are peaked.

use specdraft::emulator::{EmulatorXpress, EmulatorXpressOptions, Schedule};
use specdraft::xpress::{XpressBackend, XpressConfig, XpressLimits};
use specdraft_kernels::xpress::prune::PAUSE;
use test_support::xpress::inputs;
use test_support::xpress::pruned::{PEAKS, Peaks, Readouts, check_pruned, head, step};

#[test]
fn pruned_passes_give_the_same_tokens() {
    // Vocabularies in one chunk and in many, ends of rows at any place.
    for (vocabulary, rank, offset) in [(100, 16, 0), (1000, 16, 3), (1537, 80, 7)] {
        for peaks in PEAKS {
            check(vocabulary, rank, offset, peaks, Readouts::Drawn);
        }
    }
}

#[test]
fn norms_that_are_no_numbers_prune_nothing_wrong() {
    for readouts in [Readouts::Tiny, Readouts::Huge, Readouts::Special] {
        for peaks in PEAKS {
            check(600, 16, 5, peaks, readouts);
        }
    }
}

fn check(vocabulary: usize, rank: usize, offset: usize, peaks: Peaks, readouts: Readouts) {
    let all = [(1, 16), (2, 128)];
    for (seed, readout_rows) in all.into_iter().skip((readouts != Readouts::Drawn).into()) {
        let config = config(vocabulary, rank);
        let checked = check_pruned(
            &mut |head, n, prune| {
                let options = EmulatorXpressOptions {
                    seed,
                    schedule: Schedule::Shuffled,
                    prune,
                    readout_rows,
                    logits_offset: offset,
                    ..Default::default()
                };
                let limits = limits(n);
                Ok(Box::new(EmulatorXpress::with_options(
                    head, limits, options,
                )?))
            },
            &config,
            2,
            peaks,
            readouts,
        );
        checked.unwrap_or_else(|error| panic!("offset {offset}: {error:#}"));
    }
}

/// Where each row has a token far above the others, no readout looks at anything; where hundreds share the best, it does.
#[test]
fn peaked_logits_leave_nothing_to_the_readout() {
    let config = config(3000, 32);
    for (peaks, leaves_nothing) in [(Peaks::Peaked, true), (Peaks::Ties, false)] {
        let work = |prune| {
            let options = EmulatorXpressOptions {
                prune,
                ..Default::default()
            };
            let head = head(&config, Readouts::Drawn).unwrap();
            let mut backend = EmulatorXpress::with_options(head, limits(3), options).unwrap();
            refine(&mut backend, &config, peaks);
            let launches = backend.launches().iter();
            let readouts = launches.filter(|(name, _)| name.starts_with("xpress_readout"));
            readouts.map(|(_, steps)| *steps).collect::<Vec<_>>()
        };
        let (all, left) = (work(false), work(true));
        assert_eq!(left.len(), all.len());
        for (left, all) in left.iter().zip(all) {
            assert_eq!(
                10 * left < all,
                leaves_nothing,
                "{peaks:?}: {left} of {all}"
            );
        }
    }
}

/// After flat logits steps do not try, whatever their logits, and look for no maxima; then one does, and peaked logits are pruned again.
#[test]
fn flat_logits_pause_pruning() {
    let config = config(3000, 32);
    let [mut plain, mut pruned] = [false, true].map(|prune| {
        let options = EmulatorXpressOptions {
            prune,
            stop_early: false,
            ..Default::default()
        };
        let head = head(&config, Readouts::Drawn).unwrap();
        EmulatorXpress::with_options(head, limits(3), options).unwrap()
    });
    let mut step = |peaks| {
        let want = refine(&mut plain, &config, peaks);
        assert_eq!(refine(&mut pruned, &config, peaks), want, "{peaks:?}");
        let steps = |backend: &EmulatorXpress, kernel| -> Vec<u64> {
            let launches = backend.launches().iter();
            let of = launches.filter(|(name, _)| *name == kernel);
            of.map(|(_, steps)| *steps).collect()
        };
        let (start, plain_start) = (
            steps(&pruned, "xpress_start"),
            steps(&plain, "xpress_start"),
        );
        let steps = steps(&pruned, "xpress_prune");
        // A block that does not try ends at once.
        let tries = steps.iter().filter(|steps| **steps > 20_000).count();
        assert_eq!(start > plain_start, tries > 0, "{start:?} {plain_start:?}");
        tries
    };
    assert_eq!(step(Peaks::Peaked), 2);
    for _ in 0..2 {
        assert_eq!(step(Peaks::Flat), 1, "the first pass alone");
        for i in 0..PAUSE {
            let peaks = [Peaks::Flat, Peaks::Peaked][i as usize % 2];
            assert_eq!(step(peaks), 0, "step {i} of the pause");
        }
    }
    assert_eq!(step(Peaks::Peaked), 2);
}

fn refine(backend: &mut EmulatorXpress, config: &XpressConfig, peaks: Peaks) -> Vec<i64> {
    let step = step(config, 3, peaks).unwrap();
    let inputs = inputs(&step, 2, 0).unwrap();
    backend.refine(&inputs).unwrap()
}

fn config(vocab_size: usize, rank: usize) -> XpressConfig {
    XpressConfig {
        vocab_size,
        hidden_size: 16,
        rank,
        mlp_hidden: 32,
        block_size: 6,
        num_passes: 3,
        topc: 0,
    }
}

fn limits(max_num_reqs: usize) -> XpressLimits {
    XpressLimits {
        max_num_reqs,
        max_topc: 0,
    }
}
