//! Checks of a batch that every backend makes before it starts on one.

use super::backend::Document;
use super::config::SuffixConfig;
use crate::error::{Error, Result};

/// Checks the arguments of a backend's calls.
#[derive(Debug)]
pub(crate) struct BatchCheck {
    max_num_reqs: usize,
    max_model_len: usize,
    named: NamedSlots,
}

impl BatchCheck {
    pub(crate) fn new(config: &SuffixConfig) -> Self {
        Self {
            max_num_reqs: config.max_num_reqs,
            max_model_len: config.max_model_len,
            named: NamedSlots::new(config.max_num_reqs),
        }
    }

    /// Checks the arguments of `propose`.
    pub(crate) fn propose(
        &mut self,
        idx_mapping: &[i32],
        num_sampled: &[i32],
        last_sampled: &[i64],
    ) -> Result<()> {
        self.fits("idx_mapping", idx_mapping.len())?;
        same_length("num_sampled", num_sampled.len(), idx_mapping.len())?;
        if last_sampled.len() != self.max_num_reqs {
            return Err(Error::length(
                "last_sampled",
                format_args!("{} (max_num_reqs)", self.max_num_reqs),
                last_sampled.len(),
                "it is indexed by slot, not by batch row",
            ));
        }
        self.distinct(idx_mapping)
    }

    /// Checks the arguments of `observe`.
    pub(crate) fn observe(
        &mut self,
        idx_mapping: &[i32],
        num_sampled: &[i32],
        num_rejected: &[i32],
    ) -> Result<()> {
        self.fits("idx_mapping", idx_mapping.len())?;
        same_length("num_sampled", num_sampled.len(), idx_mapping.len())?;
        same_length("num_rejected", num_rejected.len(), idx_mapping.len())?;
        self.distinct(idx_mapping)
    }

    /// Checks the arguments of `ingest`.
    pub(crate) fn ingest(&self, docs: &[Document]) -> Result<()> {
        self.fits("docs", docs.len())
    }

    /// Checks a slot that the host names.
    pub(crate) fn slot(&self, slot: usize) -> Result<()> {
        if slot < self.max_num_reqs {
            return Ok(());
        }
        Err(Error::out_of_range(
            "slot",
            format_args!("0..{} (max_num_reqs)", self.max_num_reqs),
            slot,
            "use a smaller slot or build the drafter with more",
        ))
    }

    /// Checks the arguments of `write_tokens`.
    pub(crate) fn tokens(&self, slot: usize, offset: usize, len: usize) -> Result<()> {
        self.slot(slot)?;
        if offset <= self.max_model_len && len <= self.max_model_len - offset {
            return Ok(());
        }
        Err(Error::length(
            "tokens",
            format_args!(
                "at most {} at offset {offset} (max_model_len {})",
                self.max_model_len.saturating_sub(offset),
                self.max_model_len
            ),
            len,
            "cut the row or build the drafter with a larger max_model_len",
        ))
    }

    fn fits(&self, argument: &'static str, len: usize) -> Result<()> {
        if len <= self.max_num_reqs {
            return Ok(());
        }
        Err(Error::length(
            argument,
            format_args!("at most {} (max_num_reqs)", self.max_num_reqs),
            len,
            "split the batch or build the drafter with more slots",
        ))
    }

    /// Slots outside `0..max_num_reqs` may repeat: nothing is read or written for them.
    fn distinct(&mut self, idx_mapping: &[i32]) -> Result<()> {
        self.named.start_batch();
        for (index, &slot) in idx_mapping.iter().enumerate() {
            let Some(slot) = usize::try_from(slot)
                .ok()
                .filter(|&slot| slot < self.max_num_reqs)
            else {
                continue;
            };
            self.named
                .add(slot, index, || format!("idx_mapping[{index}]"))?;
        }
        Ok(())
    }
}

/// Finds slots named twice in a batch, without a search and without clearing anything between batches.
#[derive(Debug)]
pub(crate) struct NamedSlots {
    /// For each slot, the batch that named it last and at which index.
    last: Vec<(u64, u32)>,
    batch: u64,
}

impl NamedSlots {
    pub(crate) fn new(max_num_reqs: usize) -> Self {
        Self {
            last: vec![(0, 0); max_num_reqs],
            batch: 0,
        }
    }

    pub(crate) fn start_batch(&mut self) {
        self.batch += 1;
    }

    /// Notes that the batch names `slot`, below `max_num_reqs`, at `index`.
    pub(crate) fn add(
        &mut self,
        slot: usize,
        index: usize,
        argument: impl FnOnce() -> String,
    ) -> Result<()> {
        let (batch, first) = std::mem::replace(&mut self.last[slot], (self.batch, index as u32));
        if batch != self.batch {
            return Ok(());
        }
        Err(Error::DuplicateSlot {
            argument: argument(),
            got: slot,
            first: first as usize,
            hint: "give each request one row of the batch",
        })
    }
}

fn same_length(argument: &'static str, got: usize, batch: usize) -> Result<()> {
    if got == batch {
        return Ok(());
    }
    Err(Error::length(
        argument,
        format_args!("{batch} (the length of idx_mapping)"),
        got,
        "give one value for each row of the batch",
    ))
}
