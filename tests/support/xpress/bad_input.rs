//! Bad input: an error that names the argument, changes nothing and leaves the backend usable.

use std::sync::Arc;

use specdraft::xpress::{
    BlockLayout, BlockView, Generate, GeneratedStep, Mlp, RefineInputs, XpressBackend,
    XpressConfig, XpressHead, XpressLimits, bf16,
};
use specdraft::{Error, Result};

use super::Factory;

const SIZES: [usize; 5] = [50, 16, 32, 48, 4];
const MAX_NUM_REQS: usize = 3;
const MAX_TOPC: usize = 8;

/// Checks that a backend refuses bad arguments.
///
/// # Panics
/// Where it does not, or where it no longer works afterwards.
pub fn check_bad_input(factory: &mut Factory<'_>) {
    let config = super::config(SIZES);
    let head = Arc::new(XpressHead::generate(&config, Generate::Exact, 1).expect("valid sizes"));
    for max_num_reqs in [0, 65537, usize::MAX] {
        let limits = XpressLimits {
            max_num_reqs,
            max_topc: 0,
        };
        let error = factory(head.clone(), limits)
            .err()
            .expect("limits that are not supported");
        names(&error, "XpressLimits.max_num_reqs");
    }
    let limits = XpressLimits {
        max_num_reqs: MAX_NUM_REQS,
        max_topc: MAX_TOPC,
    };
    let mut backend = factory(head, limits).expect("valid limits");
    assert_eq!(backend.limits(), limits);
    assert_eq!(backend.config(), &config);
    assert!(
        backend.memory().weights >= 2 * (50 * 32 * 2),
        "{:?}",
        backend.memory()
    );

    let step = config
        .generate_step(2, Generate::Exact, 2)
        .expect("valid sizes");
    let before = good(&mut *backend, &step);
    refuses_inputs_that_do_not_fit(&mut *backend, &step, &before);
    refuses_batches_over_the_limit(&mut *backend, &config, &step, &before);
    refuses_stage_buffers_that_do_not_fit(&mut *backend, &step, &before);
    takes_an_empty_batch(&mut *backend, &config);
    assert_eq!(good(&mut *backend, &step), before);
}

fn good(backend: &mut dyn XpressBackend, step: &GeneratedStep) -> Vec<i64> {
    backend.refine(&inputs(step)).expect("good input after bad")
}

fn inputs(step: &GeneratedStep) -> RefineInputs<'_> {
    super::inputs(step, 2, MAX_TOPC).expect("a generated step fits itself")
}

fn names(error: &Error, argument: &str) {
    assert_eq!(error.argument(), Some(argument), "{error}");
    assert!(error.to_string().contains("expected"), "{error}");
}

fn refuses_inputs_that_do_not_fit(
    backend: &mut dyn XpressBackend,
    step: &GeneratedStep,
    before: &[i64],
) {
    let plain = inputs(step);
    let zeros = vec![bf16::ZERO; 10_000];
    let view = |n, slots, width| {
        BlockView::contiguous(&zeros[..n * slots * width], n, slots, width).unwrap()
    };
    let bad = [
        (
            "base",
            RefineInputs {
                base: view(2, 4, 49),
                ..plain
            },
        ),
        (
            "base",
            RefineInputs {
                base: view(2, 5, 50),
                ..plain
            },
        ),
        (
            "base",
            RefineInputs {
                base: view(2, 2, 50),
                ..plain
            },
        ),
        (
            "base",
            RefineInputs {
                base: view(1, 4, 50),
                ..plain
            },
        ),
        (
            "base",
            RefineInputs {
                base: view(3, 3, 50),
                ..plain
            },
        ),
        (
            "hidden",
            RefineInputs {
                hidden: view(2, 3, 16),
                ..plain
            },
        ),
        (
            "hidden",
            RefineInputs {
                hidden: view(2, 4, 8),
                ..plain
            },
        ),
        (
            "hidden",
            RefineInputs {
                hidden: view(2, 4, 17),
                ..plain
            },
        ),
        (
            "anchors",
            RefineInputs {
                anchors: &[1],
                ..plain
            },
        ),
        (
            "anchors",
            RefineInputs {
                anchors: &[1, 2, 3],
                ..plain
            },
        ),
        (
            "previous",
            RefineInputs {
                previous: &[],
                ..plain
            },
        ),
        (
            "seeds",
            RefineInputs {
                seeds: Some(&[0; 5]),
                ..plain
            },
        ),
        (
            "seeds",
            RefineInputs {
                seeds: Some(&[0; 8]),
                ..plain
            },
        ),
        (
            "topc",
            RefineInputs {
                topc: MAX_TOPC + 1,
                ..plain
            },
        ),
        (
            "topc",
            RefineInputs {
                topc: usize::MAX,
                ..plain
            },
        ),
    ];
    for (argument, bad) in bad {
        names(&backend.refine(&bad).expect_err(argument), argument);
        names(&backend.refine_trace(&bad).expect_err(argument), argument);
        assert_eq!(good(backend, step), before, "after a bad {argument}");
    }
}

fn refuses_batches_over_the_limit(
    backend: &mut dyn XpressBackend,
    config: &XpressConfig,
    step: &GeneratedStep,
    before: &[i64],
) {
    let n = MAX_NUM_REQS + 1;
    let large = config
        .generate_step(n, Generate::Exact, 3)
        .expect("valid sizes");
    let (xh, tokens) = (vec![bf16::ZERO; n * 4 * 32], vec![0; n * 4]);
    let errors = [
        ("hidden", backend.refine(&inputs(&large)).map(drop)),
        (
            "hidden",
            backend.hidden_cache(large.hidden().unwrap()).map(drop),
        ),
        (
            "previous",
            backend
                .latent_pass(&tokens, &tokens[..n], &xh, Mlp::Run)
                .map(drop),
        ),
        (
            "base",
            backend.readout_argmax(
                &xh[..n * 3 * 32],
                large.base().unwrap(),
                &mut tokens.clone(),
            ),
        ),
        (
            "base",
            backend.select_topc(large.base().unwrap(), 1).map(drop),
        ),
    ];
    for (argument, result) in errors {
        let error = result.expect_err("more requests than the limit");
        names(&error, argument);
        assert!(error.to_string().contains("at most 3 requests"), "{error}");
    }

    // More than there is memory for, in a few values: all requests are the same one.
    let few = vec![bf16::ZERO; 4 * 50];
    let same = |slots, width| {
        let layout = BlockLayout {
            requests: 1 << 40,
            slots,
            width,
            request_stride: 0,
            slot_stride: width,
        };
        BlockView::new(&few, layout).unwrap()
    };
    for (argument, result) in [
        ("hidden", backend.hidden_cache(same(4, 48)).map(drop)),
        ("base", backend.select_topc(same(3, 50), 8).map(drop)),
        ("base", backend.readout_argmax(&[], same(3, 50), &mut [])),
        (
            "blocks",
            backend.add_argmax(same(3, 50), same(3, 50), &mut []),
        ),
    ] {
        names(&result.expect_err("2^40 requests"), argument);
    }
    let slots = BlockLayout {
        requests: 1,
        slots: usize::MAX,
        width: 1,
        request_stride: 0,
        slot_stride: 0,
    };
    let slots = BlockView::new(&few, slots).unwrap();
    names(
        &backend.add_argmax(slots, slots, &mut []).unwrap_err(),
        "blocks",
    );
    assert_eq!(good(backend, step), before);
}

fn refuses_stage_buffers_that_do_not_fit(
    backend: &mut dyn XpressBackend,
    step: &GeneratedStep,
    before: &[i64],
) {
    let zeros = vec![bf16::ZERO; 10_000];
    let view = |n, slots, width| {
        BlockView::contiguous(&zeros[..n * slots * width], n, slots, width).unwrap()
    };
    let refused = |what: &str, result: Result<()>| names(&result.expect_err(what), what);
    refused("hidden", backend.hidden_cache(view(2, 4, 24)).map(drop));

    let mut latents = |blocks: &[i64], previous: &[i64], xh: usize| {
        backend
            .latent_pass(blocks, previous, &zeros[..xh], Mlp::Skip)
            .map(drop)
    };
    refused("blocks", latents(&[0; 7], &[0; 2], 256));
    refused("xh", latents(&[0; 8], &[0; 2], 255));
    refused("blocks", latents(&[0; 8], &[0; 1], 256));

    let mut blocks = [5; 8];
    let base = step.base().unwrap();
    refused(
        "latents",
        backend.readout_argmax(&zeros[..191], base, &mut blocks),
    );
    refused(
        "blocks",
        backend.readout_argmax(&zeros[..192], base, &mut blocks[..7]),
    );
    refused(
        "base",
        backend.readout_argmax(&zeros[..192], view(2, 4, 51), &mut blocks),
    );

    refused("topc", backend.select_topc(base, 0).map(drop));
    refused("topc", backend.select_topc(base, MAX_TOPC + 1).map(drop));
    refused("base", backend.select_topc(view(2, 2, 50), 1).map(drop));

    let (rows, empty) = (view(2, 3, 10), view(2, 3, 0));
    refused(
        "bias",
        backend.add_argmax(rows, view(2, 3, 11), &mut blocks),
    );
    refused(
        "bias",
        backend.add_argmax(rows, view(3, 2, 10), &mut blocks),
    );
    refused("blocks", backend.add_argmax(rows, rows, &mut blocks[..6]));
    refused("base", backend.add_argmax(empty, empty, &mut blocks));
    refused(
        "bias",
        backend.topc_argmax(rows, view(2, 3, 11), &[0; 60], &mut blocks),
    );
    refused(
        "candidates",
        backend.topc_argmax(rows, rows, &[0; 59], &mut blocks),
    );
    refused(
        "blocks",
        backend.topc_argmax(rows, rows, &[0; 60], &mut blocks[..4]),
    );
    refused("base", backend.topc_argmax(empty, empty, &[], &mut blocks));
    assert_eq!(blocks, [5; 8], "a refused call wrote");
    assert_eq!(good(backend, step), before);
}

fn takes_an_empty_batch(backend: &mut dyn XpressBackend, config: &XpressConfig) {
    let none = config
        .generate_step(0, Generate::Exact, 4)
        .expect("valid sizes");
    assert_eq!(backend.refine(&inputs(&none)).unwrap(), [0; 0]);
    assert_eq!(backend.hidden_cache(none.hidden().unwrap()).unwrap(), []);
    assert_eq!(backend.latent_pass(&[], &[], &[], Mlp::Run).unwrap(), []);
    assert_eq!(
        backend.select_topc(none.base().unwrap(), 3).unwrap(),
        [0; 0]
    );
    let rows = BlockView::contiguous(&[], 0, 3, 10).unwrap();
    backend.add_argmax(rows, rows, &mut []).unwrap();
    backend.topc_argmax(rows, rows, &[], &mut []).unwrap();
}
