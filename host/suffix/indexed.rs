//! What a backend that owns the rows knows of their index.

use super::config::SuffixConfig;

/// How many tokens of each row the index vouches for, or fewer.
#[derive(Debug)]
pub(crate) struct Indexed {
    on: bool,
    max_model_len: usize,
    /// Each row's length.
    total_len: Vec<usize>,
    /// At least as many as the index on the device has.
    indexed: Vec<usize>,
}

impl Indexed {
    pub(crate) fn new(config: &SuffixConfig) -> Self {
        Self {
            on: config.history_index,
            max_model_len: config.max_model_len,
            total_len: vec![0; config.max_num_reqs],
            indexed: vec![0; config.max_num_reqs],
        }
    }

    /// Whether there is an index.
    #[cfg(feature = "emulator")]
    pub(crate) fn is_on(&self) -> bool {
        self.on
    }

    /// A row's length was set.
    pub(crate) fn set_total_len(&mut self, slot: usize, len: i32) {
        self.total_len[slot] = usize::try_from(len).map_or(0, |len| len.min(self.max_model_len));
    }

    /// `len` tokens of a row are about to be written, from `offset` on. Whether its index has to start anew.
    pub(crate) fn write(&mut self, slot: usize, offset: usize, len: usize) -> bool {
        let changes = self.on && len > 0 && offset < self.indexed[slot];
        if changes {
            self.indexed[slot] = 0;
        }
        changes
    }

    /// A slot's index starts anew.
    pub(crate) fn clear(&mut self, slot: usize) {
        self.indexed[slot] = 0;
    }

    /// A batch is drafted for.
    pub(crate) fn propose(&mut self, idx_mapping: &[i32]) {
        for &slot in idx_mapping {
            let slot = usize::try_from(slot).unwrap_or(usize::MAX);
            if let (Some(indexed), Some(&len)) =
                (self.indexed.get_mut(slot), self.total_len.get(slot))
            {
                *indexed = len.max(*indexed);
            }
        }
    }
}
