//! Makes a failing case small: fewer batches, requests and passes, smaller sizes, plainer values.

use super::case::{Case, Run, Values};

/// Seeds to try, where an edit changes what is made up and the difference goes.
const SEEDS: u64 = 8;

/// The smallest case that still fails, as far as edits find it.
pub(super) fn reduce(mut case: Case, mut fails: impl FnMut(&Case) -> bool) -> Case {
    loop {
        let edits = edits(&case);
        let reseeded = edits.iter().flat_map(|edited| {
            (0..SEEDS).map(|seed| Case {
                seed,
                ..edited.clone()
            })
        });
        let smaller = edits.iter().cloned().chain(reseeded).find(&mut fails);
        match smaller {
            Some(smaller) => case = smaller,
            None => return case,
        }
    }
}

/// Every case that is one edit smaller, those that save most first.
fn edits(case: &Case) -> Vec<Case> {
    let mut edits = vec![];
    let mut edit = |change: &dyn Fn(&mut Case)| {
        let mut edited = case.clone();
        change(&mut edited);
        if edited != *case {
            edits.push(edited);
        }
    };
    for at in 0..case.batches.len() {
        edit(&|case| {
            case.batches.remove(at);
        });
        for smaller in smaller(case.batches[at], 0, 1) {
            edit(&|case| case.batches[at] = smaller);
        }
    }
    for smaller in smaller(case.passes, 0, 1) {
        edit(&|case| case.passes = smaller);
    }
    for (at, [least, unit]) in [[1, 1], [8, 8], [16, 16], [16, 16], [2, 1]]
        .iter()
        .enumerate()
    {
        for smaller in smaller(case.sizes[at], *least, *unit) {
            edit(&|case| case.sizes[at] = smaller);
        }
    }
    // 0 would be another thing.
    for smaller in smaller(case.topc, case.topc.min(1), 1) {
        edit(&|case| case.topc = smaller);
    }
    let plain: [&dyn Fn(&mut Case); 16] = [
        &|case| case.seeded = false,
        &|case| case.hostile_tokens = false,
        &|case| case.logits = Values::Plain,
        &|case| case.latents = Values::Plain,
        &|case| case.gaps = [0, 0],
        &|case| case.other_gaps = [0, 0],
        &|case| case.drafts_only = false,
        &|case| case.run = Run::default(),
        &|case| case.run.seed = 0,
        &|case| case.run.order = Run::default().order,
        &|case| case.run.multiprocessors = 0,
        &|case| case.run.all_passes = false,
        &|case| case.run.log2_rows = 0,
        &|case| case.run.offset = 0,
        &|case| case.run.apart = false,
        &|case| case.seed %= SEEDS,
    ];
    for change in plain {
        edit(change);
    }
    edits
}

/// The least, half, and one unit less.
fn smaller(value: usize, least: usize, unit: usize) -> impl Iterator<Item = usize> {
    let all = [least, value / 2 / unit * unit, value.saturating_sub(unit)];
    all.into_iter()
        .filter(move |new| (least..value).contains(new))
}
