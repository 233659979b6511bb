//! What every body of the refiner does: the trait that the CPU, the emulator and the GPU implement.

use half::bf16;

use super::{BlockLayout, BlockView, XpressConfig};
use crate::error::{Error, Result};

/// One XPress head on one backend, its inputs shaped as an engine holds them.
///
/// A draft step is one [`refine`](Self::refine). The other calls are its stages on buffers of the caller, for engines
/// that put the step together themselves and for tests; they share no state with it and keep none.
///
/// # What is computed
///
/// Sizes are those of [`XpressConfig`]: N requests (at most [`XpressLimits::max_num_reqs`]) with blocks of B slots, of
/// which slot 0 is the verified anchor. With all matrices as `y = W x`:
///
/// ```text
/// hidden cache  mean   = bf16(sum over slots of h, times f32(1/B))                  once a step
///               xh     = bf16(in_proj[:, :2R] [bf16(down_h h) | bf16(down_g mean)])
/// start         block  = anchor, then the seeds or the argmax of the base logits
/// pass          x      = xh + in_proj[:, 2R:] w1[previous token]                    f32, K times
///               u      = sum over j <= b of L[b, j] * x[j], channel by channel      f32
///               m      = bf16(silu(gate bf16(u)) * (up bf16(u)))
///               latent = bf16(u + down m)                                           slots 1..
///               bias   = bf16(w2 latent)
///               block[b] = argmax of bf16(base + bias)                              slots 1..
/// ```
///
/// Every `bf16(…)` rounds once, to nearest even; everything between is f32. Matrix products take bf16 values and sum in
/// f32. The order of the terms of a sum is each backend's own: where f32 sums are exact all backends agree bit for bit,
/// elsewhere a latent may differ in its last bit, and a token where two logits lie within a rounding step.
///
/// With candidates (`topc` > 0) only the `topc` largest base logits of a slot take part; they are selected once a step.
///
/// # Values that only the device sees
///
/// An engine's arrays live on the device, so their values cannot be checked before a launch. Whatever they are, no
/// backend reads or writes out of bounds, and all backends give the same result:
///
/// | value | result |
/// |---|---|
/// | `previous`, an anchor or a seed that is no token of the vocabulary | read as a row of zeros: `w1` is not touched |
/// | a NaN logit, or a sum that is NaN | never wins: as -inf |
/// | a row whose logits are all -inf or NaN | index 0; with candidates the first candidate |
/// | equal logits, also +0 and -0 | the lowest index; with candidates of the caller the first in their order |
/// | a NaN hidden state or latent | its own request's rows alone are affected |
///
/// What the host sees is checked: shapes, lengths and the size of the batch, each an error before anything changes.
/// A batch of 0 gives an empty result.
pub trait XpressBackend: Send {
    /// `"cpu"`, `"emulator"` or `"cuda"`.
    fn name(&self) -> &'static str;

    /// The sizes of the head.
    fn config(&self) -> &XpressConfig;

    /// The batch and the number of candidates that the backend has memory for.
    fn limits(&self) -> XpressLimits;

    /// The memory that the backend holds.
    fn memory(&self) -> XpressMemory;

    /// Refines a batch of blocks: `[N, B-1]` tokens, the draft slots of each request.
    ///
    /// # Errors
    /// See [`RefineInputs::check`].
    fn refine(&mut self, inputs: &RefineInputs<'_>) -> Result<Vec<i64>>;

    /// The draft slots after each pass: `passes + 1` times `[N, B-1]`, the start first.
    ///
    /// Refining is deterministic, so pass p of a longer refinement is the end of a shorter one; this runs one for each.
    ///
    /// # Errors
    /// See [`RefineInputs::check`].
    fn refine_trace(&mut self, inputs: &RefineInputs<'_>) -> Result<Vec<Vec<i64>>> {
        (0..=inputs.passes)
            .map(|passes| self.refine(&RefineInputs { passes, ..*inputs }))
            .collect()
    }

    /// Stage: the hidden cache `xh`, `[N, B, R]`, of hidden states `[N, B, D]`.
    ///
    /// # Errors
    /// [`Error::Shape`] for another shape; [`Error::Length`] for more than `max_num_reqs` requests.
    fn hidden_cache(&mut self, hidden: BlockView<'_>) -> Result<Vec<bf16>>;

    /// Stage: the latents `[N, B-1, R]` of one pass over blocks `[N, B]` (vLLM's `xpress_latent_pass`).
    ///
    /// `previous` is `[N]`, the token before each anchor; `xh` is `[N, B, R]`. Without the MLP the latent is `bf16(u)`.
    ///
    /// # Errors
    /// [`Error::Length`] for arrays of other lengths or more than `max_num_reqs` requests.
    fn latent_pass(
        &mut self,
        blocks: &[i64],
        previous: &[i64],
        xh: &[bf16],
        mlp: Mlp,
    ) -> Result<Vec<bf16>>;

    /// Stage: reads out latents `[N, B-1, R]` over the whole vocabulary and writes the winners to slots 1.. of
    /// `blocks`, `[N, B]`. `base` is as in [`RefineInputs::base`].
    ///
    /// # Errors
    /// [`Error::Shape`] and [`Error::Length`] for arrays of other sizes or more than `max_num_reqs` requests.
    fn readout_argmax(
        &mut self,
        latents: &[bf16],
        base: BlockView<'_>,
        blocks: &mut [i64],
    ) -> Result<()>;

    /// Stage: the `topc` largest base logits of each draft slot, their ids ascending: `[N, B-1, C]` with
    /// C = min(`topc`, V). Exact: of equal logits at the boundary the lower ids are taken; NaN counts as -inf.
    ///
    /// # Errors
    /// [`Error::Shape`] for another shape; [`Error::Length`] for more than `max_num_reqs` requests;
    /// [`Error::OutOfRange`] for a `topc` of 0 or over `max_topc`.
    fn select_topc(&mut self, base: BlockView<'_>, topc: usize) -> Result<Vec<i64>>;

    /// Stage: `blocks[n, 1 + b] = argmax over v of bf16(base[n, b, v] + bias[n, b, v])` (vLLM's
    /// `fused_add_argmax_to_blk`).
    ///
    /// Any number of slots and any width, the head's or not; `base` and `bias` are alike, `blocks` has one slot more
    /// than they have, and its slot 0 is left as it is.
    ///
    /// # Errors
    /// [`Error::Shape`] and [`Error::Length`] for arrays that do not fit each other, and for empty rows.
    fn add_argmax(
        &mut self,
        base: BlockView<'_>,
        bias: BlockView<'_>,
        blocks: &mut [i64],
    ) -> Result<()>;

    /// Stage: [`add_argmax`](Self::add_argmax) over candidates (vLLM's `fused_topc_argmax_to_blk`): `base` and `bias`
    /// hold a slot's candidates, `candidates` (contiguous, of the same shape) their vocabulary ids. The winner is the
    /// first maximum in candidate order; its id, whatever it is, is written.
    ///
    /// # Errors
    /// [`Error::Shape`] and [`Error::Length`] for arrays that do not fit each other, and for empty rows.
    fn topc_argmax(
        &mut self,
        base: BlockView<'_>,
        bias: BlockView<'_>,
        candidates: &[i64],
        blocks: &mut [i64],
    ) -> Result<()>;
}

/// Whether the latent stage runs the SwiGLU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mlp {
    /// Mixer, SwiGLU and residual: the latent that is read out.
    Run,
    /// Stop after the mixer: for engines that run the SwiGLU themselves.
    Skip,
}

/// What a backend is built for. Its memory grows with both numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XpressLimits {
    /// Most requests in a batch: N.
    pub max_num_reqs: usize,
    /// Most candidates of a slot; 0 if the full vocabulary is always read out.
    pub max_topc: usize,
}

impl XpressLimits {
    /// For batches of `max_num_reqs` and the number of candidates that the head's configuration names.
    pub fn new(max_num_reqs: usize, config: &XpressConfig) -> Self {
        Self {
            max_num_reqs,
            max_topc: config.topc.min(config.vocab_size),
        }
    }

    /// Checks that the batch is not empty and that its tokens can be counted.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] names the field.
    pub fn validate(&self) -> Result<()> {
        let (expected, hint) = (
            "1 to 65536",
            "give the largest batch that the engine schedules",
        );
        match self.max_num_reqs {
            1..=65536 => Ok(()),
            got => Err(Error::out_of_range(
                "XpressLimits.max_num_reqs",
                expected,
                got,
                hint,
            )),
        }
    }
}

/// The memory of a backend, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XpressMemory {
    /// The head's weights, in every form in which the backend keeps them.
    pub weights: u64,
    /// Everything else, allocated when the backend is built.
    pub scratch: u64,
}

/// One draft step's inputs.
#[derive(Clone, Copy, Debug)]
pub struct RefineInputs<'a> {
    /// The drafter's logits: `[N, B, V]`, whose slot 0 is never read, or `[N, B-1, V]`, the draft slots alone.
    pub base: BlockView<'a>,
    /// The drafter's hidden states, `[N, B, D]`.
    pub hidden: BlockView<'a>,
    /// `[N]`: the last verified token of each request.
    pub anchors: &'a [i64],
    /// `[N]`: the token before each anchor. vLLM gives the anchor itself.
    pub previous: &'a [i64],
    /// `[N, B-1]`: the tokens to start from; `None` for the argmax of the base logits.
    pub seeds: Option<&'a [i64]>,
    /// K, Jacobi passes. 0 returns the start.
    pub passes: usize,
    /// C, candidates a slot; more than V is V, 0 is the full vocabulary.
    pub topc: usize,
}

impl RefineInputs<'_> {
    /// Checks everything that the host can see, as every backend does first, and returns N.
    ///
    /// # Errors
    /// [`Error::Shape`] and [`Error::Length`] name the array that does not fit and the sizes wanted, or a batch over
    /// `max_num_reqs`; [`Error::OutOfRange`] names `topc` if it is over `max_topc`.
    pub fn check(&self, config: &XpressConfig, limits: &XpressLimits) -> Result<usize> {
        let n = self.hidden.layout().requests;
        let slots = config.num_draft_tokens();
        check_batch("hidden", n, limits)?;
        check_shape(
            "hidden",
            self.hidden,
            [n, config.block_size, config.hidden_size],
        )?;
        check_base("base", self.base, n, config)?;
        check_len("anchors", self.anchors.len(), &[n])?;
        check_len("previous", self.previous.len(), &[n])?;
        if let Some(seeds) = self.seeds {
            check_len("seeds", seeds.len(), &[n, slots])?;
        }
        self.candidates(config, limits)?;
        Ok(n)
    }

    /// The candidates of a slot, `None` for the full vocabulary.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for more than `max_topc`.
    pub fn candidates(
        &self,
        config: &XpressConfig,
        limits: &XpressLimits,
    ) -> Result<Option<usize>> {
        match self.topc {
            0 => Ok(None),
            c => check_topc(c.min(config.vocab_size), limits).map(Some),
        }
    }
}

/// Checks a batch against the backend's memory.
pub(crate) fn check_batch(argument: &str, n: usize, limits: &XpressLimits) -> Result<()> {
    if n <= limits.max_num_reqs {
        return Ok(());
    }
    let expected = format!("at most {} requests", limits.max_num_reqs);
    Err(Error::length(
        argument,
        expected,
        n,
        "split the batch, or raise XpressLimits.max_num_reqs",
    ))
}

pub(crate) fn check_topc(topc: usize, limits: &XpressLimits) -> Result<usize> {
    if (1..=limits.max_topc).contains(&topc) {
        return Ok(topc);
    }
    let (expected, hint) = match limits.max_topc {
        0 => (
            "none, as these limits have no candidates".to_owned(),
            "refine over the whole vocabulary (topc 0), or raise XpressLimits.max_topc",
        ),
        most => (
            format!("1 to {most}"),
            "ask for fewer candidates, refine over the whole vocabulary (topc 0), or raise XpressLimits.max_topc",
        ),
    };
    Err(Error::out_of_range("topc", expected, topc, hint))
}

pub(crate) fn check_len(argument: &str, got: usize, shape: &[usize]) -> Result<()> {
    let product = shape
        .iter()
        .try_fold(1usize, |product, &d| product.checked_mul(d));
    if product == Some(got) {
        return Ok(());
    }
    Err(Error::length(
        argument,
        format!("{shape:?}"),
        got,
        "all arrays of a call are for one batch",
    ))
}

pub(crate) fn check_shape(argument: &str, view: BlockView<'_>, shape: [usize; 3]) -> Result<()> {
    let BlockLayout {
        requests,
        slots,
        width,
        ..
    } = view.layout();
    let got = [requests, slots, width];
    if got == shape {
        return Ok(());
    }
    let (expected, hint) = (
        format!("{shape:?}"),
        "give a view of [requests, slots, width]",
    );
    Err(Error::Shape {
        argument: argument.into(),
        expected,
        got: format!("{got:?}"),
        hint,
    })
}

/// Checks base logits, with slot 0 or without.
pub(crate) fn check_base(
    argument: &str,
    base: BlockView<'_>,
    n: usize,
    config: &XpressConfig,
) -> Result<()> {
    let slots = match base.layout().slots {
        slots if slots == config.num_draft_tokens() => slots,
        _ => config.block_size,
    };
    check_shape(argument, base, [n, slots, config.vocab_size])
}

/// Checks the arguments of [`XpressBackend::hidden_cache`], and returns N.
pub(crate) fn check_hidden(
    hidden: BlockView<'_>,
    config: &XpressConfig,
    limits: &XpressLimits,
) -> Result<usize> {
    let n = hidden.layout().requests;
    check_batch("hidden", n, limits)?;
    check_shape("hidden", hidden, [n, config.block_size, config.hidden_size])?;
    Ok(n)
}

/// Checks the arguments of [`XpressBackend::latent_pass`], and returns N.
pub(crate) fn check_latents(
    blocks: &[i64],
    previous: &[i64],
    xh: &[bf16],
    config: &XpressConfig,
    limits: &XpressLimits,
) -> Result<usize> {
    let (n, b) = (previous.len(), config.block_size);
    check_batch("previous", n, limits)?;
    check_len("blocks", blocks.len(), &[n, b])?;
    check_len("xh", xh.len(), &[n, b, config.rank])?;
    Ok(n)
}

/// Checks the arguments of [`XpressBackend::readout_argmax`], and returns N.
pub(crate) fn check_readout(
    latents: &[bf16],
    base: BlockView<'_>,
    blocks: &[i64],
    config: &XpressConfig,
    limits: &XpressLimits,
) -> Result<usize> {
    let (n, slots) = (base.layout().requests, config.num_draft_tokens());
    check_batch("base", n, limits)?;
    check_base("base", base, n, config)?;
    check_len("latents", latents.len(), &[n, slots, config.rank])?;
    check_len("blocks", blocks.len(), &[n, slots + 1])?;
    Ok(n)
}

/// Checks the arguments of [`XpressBackend::select_topc`], and returns N and how many candidates there are.
pub(crate) fn check_select(
    base: BlockView<'_>,
    topc: usize,
    config: &XpressConfig,
    limits: &XpressLimits,
) -> Result<(usize, usize)> {
    let n = base.layout().requests;
    check_batch("base", n, limits)?;
    check_base("base", base, n, config)?;
    Ok((n, check_topc(topc.min(config.vocab_size), limits)?))
}

/// Checks the arrays of the two stages on given buffers, and returns the blocks' slots.
pub(crate) fn check_argmax(
    base: BlockView<'_>,
    bias: BlockView<'_>,
    blocks: &[i64],
) -> Result<usize> {
    let BlockLayout {
        requests,
        slots,
        width,
        ..
    } = base.layout();
    check_shape("bias", bias, [requests, slots, width])?;
    if width == 0 {
        let (expected, hint) = (
            "1 or more logits in a row",
            "an empty row has no largest logit",
        );
        return Err(Error::length("base", expected, 0, hint));
    }
    let slots = slots.saturating_add(1);
    check_len("blocks", blocks.len(), &[requests, slots])?;
    Ok(slots)
}
