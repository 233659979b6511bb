//! What an engine hands in: views of its device arrays, and their checks.

use crate::driver::argument::{Extent, at_least, check, check_read, read};
use crate::driver::{DeviceRows, DeviceSlice, DeviceSliceMut};
use crate::error::{Error, Result};
use crate::suffix::SuffixConfig;

/// The engine's tokens: one row a slot.
#[derive(Clone, Copy, Debug)]
pub struct History<'a> {
    /// `[max_num_reqs, stride]` token ids, `stride >= max_model_len`; the rows need no alignment beyond 4 bytes.
    pub token_ids: DeviceRows<'a, i32>,
    /// `[max_num_reqs]`: how many tokens of each row count.
    pub total_len: DeviceSlice<'a, i32>,
}

/// The requests of one step.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// `[B]`: the slot of each row of the batch; its length is the batch. Each slot once, which only the caller can
    /// see to.
    pub idx_mapping: DeviceSlice<'a, i32>,
    /// At least `[B]`: tokens that each request gained in this step; 0 gets no draft.
    pub num_sampled: DeviceSlice<'a, i32>,
}

/// What the target said of a batch's last drafts.
#[derive(Clone, Copy, Debug)]
pub struct Verdicts<'a> {
    /// The requests.
    pub batch: Batch<'a>,
    /// At least `[B]`: drafted tokens of each request that the target refused.
    pub num_rejected: DeviceSlice<'a, i32>,
}

/// Where the drafts go. Each array is written up to the batch's length.
#[derive(Debug)]
pub struct Drafts<'a> {
    /// At least `[B, K]`: drafted tokens, then the request's `last_sampled` token as filler.
    pub drafts: DeviceSliceMut<'a, i64>,
    /// At least `[B]`: how many of a row's drafts are real.
    pub num_valid: DeviceSliceMut<'a, i32>,
    /// At least `[B, K]`, for adaptive drafters only: the confidence in each draft.
    pub confidence: Option<DeviceSliceMut<'a, f32>>,
}

impl History<'_> {
    pub(super) fn check(&self, config: &SuffixConfig) -> Result<()> {
        let rows = &self.token_ids;
        if rows.rows() < config.max_num_reqs {
            return Err(Error::length(
                "token_ids",
                format_args!("at least {} rows (max_num_reqs)", config.max_num_reqs),
                rows.rows(),
                "give one row for each slot, or build the drafter with fewer slots",
            ));
        }
        if rows.stride() < config.max_model_len {
            return Err(Error::out_of_range(
                "token_ids.stride",
                format_args!("at least {} (max_model_len)", config.max_model_len),
                rows.stride(),
                "the stride counts elements, not bytes; a row must hold the longest request",
            ));
        }
        let elements = (rows.rows() as u64).checked_mul(rows.stride() as u64);
        let Some(elements) = elements.filter(|&n| n <= i64::MAX as u64 / 4) else {
            return Err(Error::out_of_range(
                "token_ids",
                "rows * stride elements that fit the address space",
                format_args!("{} rows of {}", rows.rows(), rows.stride()),
                "the stride counts elements, not bytes",
            ));
        };
        check::<i32>("token_ids", rows.ptr(), elements)?;
        at_least(
            "total_len",
            self.total_len.len(),
            config.max_num_reqs,
            BY_SLOT,
        )?;
        check::<i32>(
            "total_len",
            self.total_len.ptr(),
            self.total_len.len() as u64,
        )
    }

    fn extents(&self) -> [Extent; 2] {
        let words = (self.token_ids.rows() as u64) * (self.token_ids.stride() as u64);
        [
            Extent {
                name: "token_ids",
                ptr: self.token_ids.ptr(),
                bytes: words * 4,
            },
            read("total_len", &self.total_len),
        ]
    }
}

impl Batch<'_> {
    /// The size of the batch.
    pub fn len(&self) -> usize {
        self.idx_mapping.len()
    }

    /// Whether the batch has no request.
    pub fn is_empty(&self) -> bool {
        self.idx_mapping.is_empty()
    }

    pub(super) fn check(&self, config: &SuffixConfig) -> Result<()> {
        at_most("idx_mapping", self.len(), config.max_num_reqs)?;
        check_read("idx_mapping", &self.idx_mapping)?;
        at_least("num_sampled", self.num_sampled.len(), self.len(), BY_ROW)?;
        check_read("num_sampled", &self.num_sampled)
    }

    /// Of these arrays only the batch's part is read; a longer `num_sampled` counts as a whole.
    fn extents(&self) -> [Extent; 2] {
        [
            read("idx_mapping", &self.idx_mapping),
            read("num_sampled", &self.num_sampled),
        ]
    }
}

impl Verdicts<'_> {
    pub(super) fn check(&self, config: &SuffixConfig) -> Result<()> {
        self.batch.check(config)?;
        at_least(
            "num_rejected",
            self.num_rejected.len(),
            self.batch.len(),
            BY_ROW,
        )?;
        check_read("num_rejected", &self.num_rejected)
    }
}

impl Drafts<'_> {
    /// Checks the outputs, and that they overlap neither each other nor what is read meanwhile.
    pub(super) fn check(
        &self,
        config: &SuffixConfig,
        history: &History<'_>,
        batch: &Batch<'_>,
        last_sampled: &DeviceSlice<'_, i64>,
    ) -> Result<()> {
        let rows = batch.len();
        let tokens = rows * config.num_draft_tokens;
        at_least("drafts", self.drafts.len(), tokens, B_TIMES_K)?;
        check::<i64>("drafts", self.drafts.ptr(), self.drafts.len() as u64)?;
        at_least("num_valid", self.num_valid.len(), rows, BY_ROW)?;
        check::<i32>(
            "num_valid",
            self.num_valid.ptr(),
            self.num_valid.len() as u64,
        )?;
        match (&self.confidence, config.adaptive) {
            (Some(confidence), true) => {
                at_least("confidence", confidence.len(), tokens, B_TIMES_K)?;
                check::<f32>("confidence", confidence.ptr(), confidence.len() as u64)?;
            }
            (None, false) => {}
            (given, _) => {
                return Err(Error::out_of_range(
                    "confidence",
                    if config.adaptive {
                        "an array, since the drafter is adaptive"
                    } else {
                        "None, since the drafter is not adaptive"
                    },
                    if given.is_some() { "an array" } else { "None" },
                    "set `adaptive` in the configuration to get confidences",
                ));
            }
        }
        let (rows, tokens) = (rows as u64, tokens as u64);
        let confidence = self.confidence.as_ref().map_or(0, DeviceSliceMut::ptr);
        let written = [
            Extent {
                name: "drafts",
                ptr: self.drafts.ptr(),
                bytes: tokens * 8,
            },
            Extent {
                name: "num_valid",
                ptr: self.num_valid.ptr(),
                bytes: rows * 4,
            },
            Extent {
                name: "confidence",
                ptr: confidence,
                bytes: if config.adaptive { tokens * 4 } else { 0 },
            },
        ];
        let [token_ids, total_len] = history.extents();
        let [idx_mapping, num_sampled] = batch.extents();
        let last_sampled = read("last_sampled", last_sampled);
        let inputs = [token_ids, total_len, idx_mapping, num_sampled, last_sampled];
        for (index, output) in written.iter().enumerate() {
            for other in written[..index].iter().chain(&inputs) {
                output.apart_from(other)?;
            }
        }
        Ok(())
    }
}

/// Checks an array by slot.
pub(super) fn check_by_slot<T>(
    name: &'static str,
    array: &DeviceSlice<'_, T>,
    slots: usize,
) -> Result<()> {
    at_least(name, array.len(), slots, BY_SLOT)?;
    check_read(name, array)
}

/// Checks a list of at most `limit` items.
pub(super) fn check_list<T>(
    name: &'static str,
    array: &DeviceSlice<'_, T>,
    limit: usize,
) -> Result<()> {
    at_most(name, array.len(), limit)?;
    check_read(name, array)
}

fn at_most(name: &'static str, got: usize, limit: usize) -> Result<()> {
    if got <= limit {
        return Ok(());
    }
    Err(Error::length(
        name,
        format_args!("at most {limit} (max_num_reqs)"),
        got,
        "split the batch or build the drafter with more slots",
    ))
}

const BY_SLOT: &str = "it is indexed by slot: give max_num_reqs elements";
const BY_ROW: &str = "give one element for each row of the batch";
const B_TIMES_K: &str = "give num_draft_tokens elements for each row of the batch";
