//! What holds for every backend, whatever the head.

use std::sync::Arc;

use anyhow::{Result, ensure};
use specdraft::xpress::{
    BlockView, Generate, GeneratedStep, Mlp, RefineInputs, XpressBackend, XpressConfig, XpressHead,
    bf16,
};

use super::rounding::rounding;
use super::stages::{self, Numbers};
use super::{
    Check, ExactCase, Factory, Reference, SIZES, all_sizes, config, inputs, limits, spread,
};

/// The properties, by name.
pub const PROPERTIES: &[(&str, Check)] = &[
    ("exact_steps_equal_the_reference", exact),
    ("rounding_is_where_it_is_documented", rounding),
    ("enough_passes_equal_sequential_decoding", sequential),
    ("a_settled_prefix_never_changes", settled),
    ("a_slot_depends_on_no_later_slot", causal),
    ("permuting_requests_permutes_results", permuted),
    ("a_request_does_not_see_its_batch", alone),
    ("all_candidates_equal_the_full_vocabulary", all_candidates),
    ("few_and_many_passes_end_where_they_should", passes),
    ("strides_do_not_change_results", strides),
    ("special_logits_stay_in_their_rows", special),
    ("tokens_outside_the_vocabulary_count_as_zeros", outside),
    ("stages_compose_to_a_refinement", stages::compose),
    ("selection_is_exact", stages::select),
    ("argmax_stages_take_the_first_maximum", stages::argmax),
];

/// A made-up head on a backend, and a step for it.
struct Setup {
    config: XpressConfig,
    head: Arc<XpressHead>,
    step: GeneratedStep,
    backend: Box<dyn XpressBackend>,
}

impl Setup {
    fn new(factory: &mut Factory<'_>, sizes: [usize; 5], n: usize, how: Generate) -> Result<Self> {
        let config = config(sizes);
        let seed = 1000 * sizes[0] as u64 + n as u64;
        let head = Arc::new(XpressHead::generate(&config, how, seed)?);
        let step = config.generate_step(n, how, seed + 1)?;
        let backend = factory(head.clone(), limits(n, &config))?;
        Ok(Self {
            config,
            head,
            step,
            backend,
        })
    }

    fn refine(&mut self, passes: usize, topc: usize) -> Result<Vec<i64>> {
        Ok(self.backend.refine(&inputs(&self.step, passes, topc)?)?)
    }

    fn slots(&self) -> usize {
        self.config.num_draft_tokens()
    }
}

fn exact(factory: &mut Factory<'_>) -> Result<()> {
    for (i, sizes) in all_sizes().enumerate() {
        for (n, passes, topc) in [(1, 6, 0), (3, 3, 0), (3, 3, 7), (1, 2, sizes[0] + 5)] {
            let seed = 100 * i as u64 + n as u64;
            ExactCase::new(sizes, n, passes, topc, seed).check(factory)?;
        }
    }
    ExactCase::new(SIZES[0], 33, 2, 0, 9).check(factory)
}

/// B - 1 passes or more give the greedy decode, one slot after another: against the reference where all sums are
/// exact, and against the backend's own stages where they are not.
fn sequential(factory: &mut Factory<'_>) -> Result<()> {
    for sizes in all_sizes() {
        for topc in [0, 20] {
            let mut exact = Setup::new(factory, sizes, 2, Generate::Exact)?;
            let slots = exact.slots();
            let reference = Reference::new(&exact.head);
            let expected: Vec<i64> = (0..2)
                .flat_map(|n| reference.greedy(&exact.step, n, topc))
                .collect();
            let got = exact.refine(slots, topc)?;
            ensure!(
                got == expected,
                "{sizes:?}, top {topc}: {got:?}, expected {expected:?}"
            );
        }
        let mut normal = Setup::new(factory, sizes, 2, Generate::Normal)?;
        let (b, slots) = (normal.config.block_size, normal.slots());
        let xh = normal.backend.hidden_cache(normal.step.hidden()?)?;
        // Later slots hold what they may: decoding in order never looks at them.
        let mut blocks = vec![-1; 2 * b];
        blocks
            .iter_mut()
            .step_by(b)
            .zip(&normal.step.anchors)
            .for_each(|(slot, t)| *slot = *t);
        for slot in 1..b {
            let latents =
                normal
                    .backend
                    .latent_pass(&blocks, &normal.step.previous, &xh, Mlp::Run)?;
            let mut decided = blocks.clone();
            normal
                .backend
                .readout_argmax(&latents, normal.step.base()?, &mut decided)?;
            for n in 0..2 {
                blocks[n * b + slot] = decided[n * b + slot];
            }
        }
        let expected: Vec<i64> = blocks
            .chunks(b)
            .flat_map(|block| &block[1..])
            .copied()
            .collect();
        for passes in [slots, slots + 3] {
            let got = normal.refine(passes, 0)?;
            ensure!(
                got == expected,
                "{sizes:?}, {passes} passes: {got:?}, expected {expected:?}"
            );
        }
    }
    Ok(())
}

/// After pass p the first p draft slots are final.
fn settled(factory: &mut Factory<'_>) -> Result<()> {
    for sizes in &SIZES[1..4] {
        let mut setup = Setup::new(factory, *sizes, 3, Generate::Normal)?;
        let slots = setup.slots();
        let trace = setup
            .backend
            .refine_trace(&inputs(&setup.step, slots, 0)?)?;
        for (pass, tokens) in trace.iter().enumerate() {
            for (now, last) in tokens.chunks(slots).zip(trace[slots].chunks(slots)) {
                ensure!(
                    now[..pass] == last[..pass],
                    "{sizes:?}, pass {pass}: {now:?}, in the end {last:?}"
                );
            }
        }
    }
    Ok(())
}

/// Other seeds or other logits from some slot on change nothing before it.
fn causal(factory: &mut Factory<'_>) -> Result<()> {
    for sizes in &SIZES[1..] {
        let mut setup = Setup::new(factory, *sizes, 1, Generate::Normal)?;
        let (slots, v) = (setup.slots(), setup.config.vocab_size);
        let plain = inputs(&setup.step, 2, 0)?;
        let start = setup.backend.refine(&RefineInputs { passes: 0, ..plain })?;
        let expected = setup.backend.refine(&plain)?;
        for from in 0..slots {
            let mut seeds = start.clone();
            seeds[from..]
                .iter_mut()
                .for_each(|seed| *seed = (*seed + 1) % v as i64);
            let got = setup.backend.refine(&RefineInputs {
                seeds: Some(&seeds),
                ..plain
            })?;
            // A slot reads the one before it, so the slot with the first other seed is itself the same after a pass.
            let same = (from + 1).min(slots);
            ensure!(
                got[..same] == expected[..same],
                "{sizes:?}: seeds from {from} changed {got:?}"
            );

            let mut other = setup.step.clone();
            other.base[(from + 1) * v..]
                .iter_mut()
                .for_each(|logit| *logit = -*logit);
            let got = setup.backend.refine(&inputs(&other, 2, 0)?)?;
            ensure!(
                got[..from] == expected[..from],
                "{sizes:?}: logits from {from} changed {got:?}"
            );
        }
    }
    Ok(())
}

fn permuted(factory: &mut Factory<'_>) -> Result<()> {
    for (sizes, n) in [(SIZES[1], 3), (SIZES[0], 33)] {
        let mut setup = Setup::new(factory, sizes, n, Generate::Normal)?;
        let slots = setup.slots();
        // 5 divides neither batch: i -> 5 i + 1 meets every request.
        let order: Vec<usize> = (0..n).map(|i| (5 * i + 1) % n).collect();
        let other = setup.step.pick(&order);
        for topc in [0, 9] {
            let plain = setup.refine(3, topc)?;
            let got = setup.backend.refine(&inputs(&other, 3, topc)?)?;
            let expected: Vec<i64> = order
                .iter()
                .flat_map(|i| &plain[i * slots..(i + 1) * slots])
                .copied()
                .collect();
            ensure!(
                got == expected,
                "{sizes:?}, {n} requests: {got:?}, expected {expected:?}"
            );
        }
    }
    Ok(())
}

/// Each request of a batch gets what it gets alone.
fn alone(factory: &mut Factory<'_>) -> Result<()> {
    for (sizes, n) in [(SIZES[2], 3), (SIZES[0], 33)] {
        let mut setup = Setup::new(factory, sizes, n, Generate::Exact)?;
        let slots = setup.slots();
        let batch = setup.refine(4, 0)?;
        for i in 0..n {
            let got = setup
                .backend
                .refine(&inputs(&setup.step.pick(&[i]), 4, 0)?)?;
            let expected = &batch[i * slots..(i + 1) * slots];
            ensure!(
                got == expected,
                "{sizes:?}, request {i} of {n}: {got:?} alone, {expected:?} in the batch"
            );
        }
    }
    Ok(())
}

/// With the vocabulary as candidates, ids ascending, ties too are decided alike.
fn all_candidates(factory: &mut Factory<'_>) -> Result<()> {
    for sizes in all_sizes() {
        for how in [Generate::Exact, Generate::Normal] {
            let mut setup = Setup::new(factory, sizes, 3, how)?;
            let full = setup.refine(4, 0)?;
            for topc in [sizes[0], sizes[0] + 100] {
                let got = setup.refine(4, topc)?;
                ensure!(
                    got == full,
                    "{sizes:?}, {how:?}, top {topc}: {got:?}, full vocabulary {full:?}"
                );
            }
        }
    }
    Ok(())
}

/// No pass is the drafter's own choice, and the start may be given.
fn passes(factory: &mut Factory<'_>) -> Result<()> {
    for sizes in all_sizes() {
        let mut setup = Setup::new(factory, sizes, 3, Generate::Normal)?;
        let slots = setup.slots();
        let start = setup.refine(0, 0)?;
        for (i, token) in start.iter().enumerate() {
            let row = setup.step.base()?.row(i / slots, 1 + i % slots);
            let best = (0..row.len())
                .rev()
                .max_by(|a, b| row[*a].partial_cmp(&row[*b]).unwrap());
            ensure!(
                Some(*token as usize) == best,
                "{sizes:?}: row {i} starts from {token}"
            );
        }
        let plain = inputs(&setup.step, 3, 0)?;
        let expected = setup.backend.refine(&plain)?;
        let seeded = RefineInputs {
            seeds: Some(&start),
            ..plain
        };
        ensure!(
            setup.backend.refine(&seeded)? == expected,
            "{sizes:?}: seeds equal to the start"
        );
        let seeds: Vec<i64> = (0..start.len() as i64)
            .map(|i| i % sizes[0] as i64)
            .collect();
        let unrefined = RefineInputs {
            seeds: Some(&seeds),
            passes: 0,
            ..plain
        };
        ensure!(
            setup.backend.refine(&unrefined)? == seeds,
            "{sizes:?}: seeds without a pass"
        );
        let (enough, more) = (setup.refine(slots, 0)?, setup.refine(1_000_000, 0)?);
        ensure!(
            enough == more,
            "{sizes:?}: passes after the last slot settled changed something"
        );
        // From the end, another pass changes nothing.
        let again = RefineInputs {
            seeds: Some(&enough),
            passes: 1,
            ..inputs(&setup.step, 1, 0)?
        };
        ensure!(
            setup.backend.refine(&again)? == enough,
            "{sizes:?}: not a fixed point"
        );
    }
    Ok(())
}

/// Gaps between rows are not read, and logits may come without slot 0.
fn strides(factory: &mut Factory<'_>) -> Result<()> {
    for sizes in all_sizes() {
        let n = 3;
        let mut setup = Setup::new(factory, sizes, n, Generate::Normal)?;
        let (b, v, d) = (
            setup.config.block_size,
            setup.config.vocab_size,
            setup.config.hidden_size,
        );
        let (base, base_layout) = spread(&setup.step.base, n, b, v, 3, 11);
        let (hidden, hidden_layout) = spread(&setup.step.hidden, n, b, d, 8, 16);
        let drafts: Vec<bf16> = setup
            .step
            .base
            .chunks(b * v)
            .flat_map(|block| &block[v..])
            .copied()
            .collect();
        for topc in [0, 9] {
            let plain = inputs(&setup.step, 3, topc)?;
            let expected = setup.backend.refine(&plain)?;
            let spread = RefineInputs {
                base: BlockView::new(&base, base_layout)?,
                hidden: BlockView::new(&hidden, hidden_layout)?,
                ..plain
            };
            let without = RefineInputs {
                base: BlockView::contiguous(&drafts, n, b - 1, v)?,
                ..plain
            };
            for inputs in [spread, without] {
                let got = setup.backend.refine(&inputs)?;
                ensure!(
                    got == expected,
                    "{sizes:?}, top {topc}: {got:?}, expected {expected:?}"
                );
            }
        }
    }
    Ok(())
}

/// NaN and infinities decide their own row by the rules, and no other request's.
fn special(factory: &mut Factory<'_>) -> Result<()> {
    for topc in [0, 9] {
        let mut setup = Setup::new(factory, SIZES[1], 3, Generate::Normal)?;
        let (slots, v) = (setup.slots(), setup.config.vocab_size);
        let plain = setup.refine(3, topc)?;
        let row = |slot: usize| (slots + 1 + slot) * v..(slots + 1 + slot + 1) * v;
        // The middle request: a row of -inf, a row of NaN, one finite logit among NaN, and a +inf.
        setup.step.base[row(1)].fill(bf16::NEG_INFINITY);
        setup.step.base[row(2)].fill(bf16::NAN);
        setup.step.base[row(3)].fill(bf16::NAN);
        setup.step.base[row(3).start + 77] = bf16::from_f32(-300.0);
        setup.step.base[row(4).start + 55] = bf16::INFINITY;
        for passes in [0, 1, 3] {
            let got = setup.refine(passes, topc)?;
            let middle = &got[slots..2 * slots];
            ensure!(
                middle == [0, 0, 77, 55],
                "top {topc}, {passes} passes: {middle:?}"
            );
        }
        let others = |tokens: &[i64]| [&tokens[..slots], &tokens[2 * slots..]].concat();
        let got = setup.refine(3, topc)?;
        ensure!(
            others(&got) == others(&plain),
            "top {topc}: special logits changed other requests"
        );

        // A NaN hidden state makes every bias of its request NaN: no logit is left.
        let d = setup.config.hidden_size;
        setup.step.hidden[(slots + 1) * d] = bf16::NAN;
        let got = setup.refine(3, topc)?;
        let middle = &got[slots..2 * slots];
        ensure!(
            topc > 0 || middle == [0; 4],
            "a NaN hidden state: {middle:?}"
        );
        ensure!(
            others(&got) == others(&plain),
            "top {topc}: a NaN hidden state changed other requests"
        );
    }
    Ok(())
}

/// A previous token that is none is read as a row of zeros, wherever it stands.
fn outside(factory: &mut Factory<'_>) -> Result<()> {
    let config = config(SIZES[2]);
    let (v, r, slots) = (
        config.vocab_size as i64,
        config.rank,
        config.num_draft_tokens(),
    );
    let made = XpressHead::generate(&config, Generate::Normal, 5)?;
    let mut weights = made.weights().clone();
    let zero_token = 13;
    weights.w1[zero_token * r..(zero_token + 1) * r].fill(bf16::ZERO);
    let head = Arc::new(XpressHead::from_parts(config.clone(), weights)?);
    let step = config.generate_step(2, Generate::Normal, 6)?;
    let mut backend = factory(head, limits(2, &config))?;
    let mut numbers = Numbers(3);
    let mut tokens = |count: usize, outside: i64| -> [Vec<i64>; 2] {
        let known: Vec<i64> = (0..count)
            .map(|_| (numbers.next() % v as u64) as i64)
            .collect();
        let hostile = known
            .iter()
            .enumerate()
            .map(|(i, t)| if i % 2 == 0 { outside } else { *t });
        let zeroed = known
            .iter()
            .enumerate()
            .map(|(i, t)| if i % 2 == 0 { zero_token as i64 } else { *t });
        [hostile.collect(), zeroed.collect()]
    };
    for outside in [
        -1,
        v,
        v + 1,
        -v,
        i64::from(i32::MAX),
        1 << 32,
        (1 << 32) + 7,
        i64::MIN,
        i64::MAX,
    ] {
        let [anchors, zeroed_anchors] = tokens(2, outside);
        let [previous, zeroed_previous] = tokens(2, outside);
        let [seeds, zeroed_seeds] = tokens(2 * slots, outside);
        for topc in [0, 9] {
            let plain = inputs(&step, 1, topc)?;
            let hostile = RefineInputs {
                anchors: &anchors,
                previous: &previous,
                seeds: Some(&seeds),
                ..plain
            };
            let zeroed = RefineInputs {
                anchors: &zeroed_anchors,
                previous: &zeroed_previous,
                seeds: Some(&zeroed_seeds),
                ..plain
            };
            let (got, expected) = (backend.refine(&hostile)?, backend.refine(&zeroed)?);
            ensure!(
                got == expected,
                "token {outside}, top {topc}: {got:?}, expected {expected:?}"
            );
        }
    }
    Ok(())
}
