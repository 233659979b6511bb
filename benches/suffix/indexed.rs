//! Proposing with a history index, and what entering whole histories costs.

use anyhow::Result;

use super::harness::profile::without_and_with;
use super::harness::time_graph;
use super::inputs::Kind;
use super::subject::{CORPUS, DEPTH, K, Subject};
use super::{Bench, INNER, INNER_INGEST, MOST_ROTATED, REPLAYS, ROTATED_BYTES};

impl Bench<'_> {
    /// As `propose`, with an index.
    pub(super) fn indexed(&mut self, requests: usize, len: usize, kind: Kind) -> Result<()> {
        let case = format!("propose n={requests} L={len} K={K} depth={DEPTH} corpus={CORPUS}");
        if !self.options.wants(&case) {
            return Ok(());
        }
        let copies = ROTATED_BYTES.div_ceil(4 * requests * len).max(INNER);
        let rotates = copies <= MOST_ROTATED;
        let copies = if rotates { copies } else { 1 };
        let mut subject = Subject::indexed(self.kernels, self.stream, requests, len, kind, copies)?;
        subject.fill_corpus()?;
        for copies in [1, copies] {
            for &dependent in without_and_with() {
                subject.drafter.set_dependent_launch(dependent);
                let before = subject.check_propose()?;
                let timing = time_graph(
                    self.kernels.module().context(),
                    self.stream.borrow(),
                    2 * copies.max(INNER / 2),
                    REPLAYS,
                    |number| subject.enqueue_indexed(number, copies),
                )?;
                let after = subject.outputs_are_right()?;
                let mut variant = format!("{} indexed", kind.name());
                for (name, on) in [(" rotated", copies > 1), (" dependent", dependent)] {
                    if on {
                        variant += name;
                    }
                }
                self.report.add(&case, &variant, timing, before && after)?;
            }
            if !rotates {
                break;
            }
        }
        Ok(())
    }

    /// New requests in all slots: clearing the index, the first drafts, and entering every token.
    pub(super) fn index(&mut self, requests: usize, len: usize) -> Result<()> {
        let case = format!("index n={requests} L={len}");
        if !self.options.wants(&case) {
            return Ok(());
        }
        let mut subject =
            Subject::indexed(self.kernels, self.stream, requests, len, Kind::Planted, 1)?;
        subject.fill_corpus()?;
        let before = subject.check_propose()?;
        let timing = time_graph(
            self.kernels.module().context(),
            self.stream.borrow(),
            INNER_INGEST,
            REPLAYS,
            |_| subject.enqueue_new(),
        )?;
        let after = subject.outputs_are_right()?;
        self.report
            .add_alone(&case, "add and propose", timing, before && after)
    }
}
