//! A backend that is asked everything about drafts twice.

use specdraft::Result;
use specdraft::suffix::{Document, Proposal, SuffixBackend, SuffixConfig, SuffixState};

use super::Factory;

/// A backend that proposes twice and must give the same drafts again: with a history index the first time from tokens
/// that are not in it, the second time from ones that are.
pub struct Twice(Box<dyn SuffixBackend>);

impl Twice {
    /// A factory of such backends, all of them with a history index.
    pub fn indexed<'a>(
        factory: &'a mut Factory<'_>,
    ) -> impl FnMut(&SuffixConfig) -> Result<Box<dyn SuffixBackend>> + 'a {
        |config| {
            let history_index = true;
            let backend = factory(&SuffixConfig {
                history_index,
                ..config.clone()
            })?;
            Ok(Box::new(Self(backend)))
        }
    }
}

impl SuffixBackend for Twice {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn config(&self) -> &SuffixConfig {
        self.0.config()
    }

    fn write_tokens(&mut self, slot: usize, offset: usize, tokens: &[i32]) -> Result<()> {
        self.0.write_tokens(slot, offset, tokens)
    }

    fn set_total_len(&mut self, slot: usize, len: i32) -> Result<()> {
        self.0.set_total_len(slot, len)
    }

    fn add_request(&mut self, slot: usize) -> Result<()> {
        self.0.add_request(slot)
    }

    fn ingest(&mut self, docs: &[Document]) -> Result<()> {
        self.0.ingest(docs)
    }

    fn observe(
        &mut self,
        idx_mapping: &[i32],
        num_sampled: &[i32],
        num_rejected: &[i32],
    ) -> Result<()> {
        self.0.observe(idx_mapping, num_sampled, num_rejected)
    }

    fn propose(
        &mut self,
        idx_mapping: &[i32],
        num_sampled: &[i32],
        last_sampled: &[i64],
    ) -> Result<Proposal> {
        let first = self.0.propose(idx_mapping, num_sampled, last_sampled)?;
        let second = self.0.propose(idx_mapping, num_sampled, last_sampled)?;
        assert_eq!(first, second, "the same question, another answer");
        Ok(first)
    }

    fn reset(&mut self) -> Result<()> {
        self.0.reset()
    }

    fn last_buckets(&mut self) -> Result<Vec<i32>> {
        self.0.last_buckets()
    }

    fn state(&mut self) -> Result<SuffixState> {
        self.0.state()
    }

    fn set_state(&mut self, state: &SuffixState) -> Result<()> {
        self.0.set_state(state)
    }
}
