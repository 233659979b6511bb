//! The XPress refiner under test.

mod bad_input;
mod case;
mod checkpoint;
mod compare;
mod draw;
mod exact;
mod fuzz;
mod golden;
pub mod prepared;
mod properties;
pub mod pruned;
mod reduce;
mod reference;
mod rounding;
mod stages;
#[cfg(feature = "cuda")]
mod watched;

pub use bad_input::check_bad_input;
pub use case::{Case, Order, Run, Target, Values};
pub use checkpoint::{Checkpoint, Folder, Tensor};
pub use compare::{Done, RunFactory};
pub use draw::Scale;
pub use exact::ExactCase;
#[cfg(feature = "emulator")]
pub use fuzz::check_emulator;
pub use fuzz::{CaseKind, Differing, fuzz_one};
pub use golden::{GoldenReport, check_golden};
pub use properties::PROPERTIES;
pub use reference::Reference;
#[cfg(feature = "cuda")]
pub use watched::Watched;

use std::sync::Arc;

use specdraft::xpress::{
    BlockLayout, GeneratedStep, RefineInputs, XpressBackend, XpressConfig, XpressHead,
    XpressLimits, bf16,
};

/// Builds a backend for a head.
pub type Factory<'a> =
    dyn FnMut(Arc<XpressHead>, XpressLimits) -> specdraft::Result<Box<dyn XpressBackend>> + 'a;

/// A check of a backend.
pub type Check = fn(&mut Factory<'_>) -> anyhow::Result<()>;

/// Builds the kernels' refiner in the emulator.
///
/// # Errors
/// As [`EmulatorXpress::new`](specdraft::emulator::EmulatorXpress::new).
#[cfg(feature = "emulator")]
pub fn emulator(
    head: Arc<XpressHead>,
    limits: XpressLimits,
    run: &Run,
) -> specdraft::Result<Box<dyn XpressBackend>> {
    use specdraft::emulator::{EmulatorXpress, EmulatorXpressOptions, Schedule};

    let options = EmulatorXpressOptions {
        seed: run.seed,
        schedule: match run.order {
            Order::Sequential => Schedule::Sequential,
            Order::Shuffled => Schedule::Shuffled,
            Order::Parallel => Schedule::Parallel,
        },
        multiprocessors: 1 + run.multiprocessors,
        shared_bytes: [0, 48, 99, 227][(run.seed % 4) as usize] << 10,
        stop_early: !run.all_passes,
        // Half of the runs.
        prune: run.seed.is_multiple_of(2),
        readout_rows: 16 << run.log2_rows.min(3),
        logits_offset: run.offset,
    };
    Ok(Box::new(EmulatorXpress::with_options(
        head, limits, options,
    )?))
}

/// Builds the refiner on a GPU.
///
/// # Errors
/// As [`OwnedCudaXpress::with_kernels`](specdraft::xpress::cuda::OwnedCudaXpress::with_kernels).
#[cfg(feature = "cuda")]
pub fn cuda(
    kernels: &Arc<specdraft::xpress::cuda::XpressKernels>,
    head: &XpressHead,
    limits: XpressLimits,
    run: &Run,
) -> specdraft::Result<specdraft::xpress::cuda::OwnedCudaXpress> {
    let mut backend =
        specdraft::xpress::cuda::OwnedCudaXpress::with_kernels(kernels.clone(), head, limits)?;
    let refiner = backend.inner_mut();
    refiner.set_early_stop(!run.all_passes);
    refiner.set_dependent_launch(!run.apart);
    // Half of the runs.
    refiner.set_pruning(run.seed.is_multiple_of(2))?;
    if run.general {
        refiner.set_hopper(false)?;
    }
    Ok(backend)
}

/// Makes one `#[test]` of each property, for backends from `$factory`; ignored ones with `ignore = "why";` before it.
///
/// ```ignore
/// test_support::xpress_property_tests!(|head, limits| Ok(Box::new(CpuXpress::new(head, limits)?)));
/// ```
#[macro_export]
macro_rules! xpress_property_tests {
    (ignore = $why:literal; $factory:expr) => {
        $crate::xpress_property_tests! { @all [#[ignore = $why]] $factory }
    };
    (@all $attributes:tt $factory:expr) => {
        $crate::xpress_property_tests! {
            @each $attributes $factory;
            exact_steps_equal_the_reference
            rounding_is_where_it_is_documented
            enough_passes_equal_sequential_decoding
            a_settled_prefix_never_changes
            a_slot_depends_on_no_later_slot
            permuting_requests_permutes_results
            a_request_does_not_see_its_batch
            all_candidates_equal_the_full_vocabulary
            few_and_many_passes_end_where_they_should
            strides_do_not_change_results
            special_logits_stay_in_their_rows
            tokens_outside_the_vocabulary_count_as_zeros
            stages_compose_to_a_refinement
            selection_is_exact
            argmax_stages_take_the_first_maximum
        }
    };
    (@each $attributes:tt $factory:expr; $($name:ident)*) => {
        $($crate::xpress_property_tests! { @one $attributes $factory; $name })*

        #[test]
        fn every_property_has_its_test() {
            let names: Vec<&str> = $crate::xpress::PROPERTIES.iter().map(|(name, _)| *name).collect();
            assert_eq!(names, [$(stringify!($name)),*]);
        }
    };
    (@one [$($attribute:tt)*] $factory:expr; $name:ident) => {
        #[test]
        $($attribute)*
        fn $name() {
            $crate::xpress::run_property(stringify!($name), &mut $factory);
        }
    };
    ($factory:expr) => {
        $crate::xpress_property_tests! { @all [] $factory }
    };
}

/// Runs one property by its name.
///
/// # Panics
/// If there is no such property or it does not hold.
pub fn run_property(name: &str, factory: &mut Factory<'_>) {
    let property = PROPERTIES.iter().find(|(known, _)| *known == name);
    let (_, check) = property.unwrap_or_else(|| panic!("no property {name}"));
    check(factory).unwrap_or_else(|error| panic!("{error:#}"));
}

/// Sizes at the edges of what is supported, none of them round: V, D, R, H, B.
pub(crate) const SIZES: [[usize; 5]; 5] = [
    [37, 8, 16, 16, 2],
    [101, 24, 48, 80, 5],
    [300, 40, 32, 64, 8],
    [257, 16, 16, 32, 16],
    [64, 16, 64, 48, 32],
];

/// [`SIZES`], or the one of them that is most like the others.
pub(crate) fn all_sizes() -> impl Iterator<Item = [usize; 5]> {
    crate::all_or_few(&SIZES, &SIZES[1..2]).iter().copied()
}

/// A configuration of these sizes: V, D, R, H, B.
pub fn config([vocab_size, hidden_size, rank, mlp_hidden, block_size]: [usize; 5]) -> XpressConfig {
    XpressConfig {
        vocab_size,
        hidden_size,
        rank,
        mlp_hidden,
        block_size,
        num_passes: 6,
        topc: 0,
    }
}

/// Limits for `n` requests and any number of candidates.
pub fn limits(n: usize, config: &XpressConfig) -> XpressLimits {
    XpressLimits {
        max_num_reqs: n.max(1),
        max_topc: config.vocab_size,
    }
}

/// A generated step's inputs, without seeds.
///
/// # Errors
/// As [`GeneratedStep::base`].
pub fn inputs(
    step: &GeneratedStep,
    passes: usize,
    topc: usize,
) -> specdraft::Result<RefineInputs<'_>> {
    Ok(RefineInputs {
        base: step.base()?,
        hidden: step.hidden()?,
        anchors: &step.anchors,
        previous: &step.previous,
        seeds: None,
        passes,
        topc,
    })
}

/// The same rows with `gap` values after each and `pad` after each request, all of those NaN.
pub(crate) fn spread(
    values: &[bf16],
    requests: usize,
    slots: usize,
    width: usize,
    gap: usize,
    pad: usize,
) -> (Vec<bf16>, BlockLayout) {
    let slot_stride = width + gap;
    let request_stride = slots * slot_stride + pad;
    let layout = BlockLayout {
        requests,
        slots,
        width,
        request_stride,
        slot_stride,
    };
    let mut spread = vec![bf16::NAN; requests * request_stride];
    for (i, row) in values.chunks_exact(width).enumerate() {
        let start = i / slots * request_stride + i % slots * slot_stride;
        spread[start..start + width].copy_from_slice(row);
    }
    (spread, layout)
}
