//! What a block brings to shared memory: chunks of w2, its rows' latents, and tiles of base logits.

use super::super::row::{NOTHING, Row, RowWalk};
use super::super::tile::{CHUNK, piece};
use super::{BASE_PITCH, Job, THREADS, TILE};
use cuda_std::thread::thread_idx_x;
use cuda_std::{Global, Shared, bf16, cp_async};

impl Job {
    /// Starts the copies of 64 columns of a tile of w2.
    ///
    /// # Safety
    /// - Nobody uses the stage.
    #[inline(always)]
    pub(super) unsafe fn copy_w2(&self, stage: Shared<bf16>, tile: u32, chunk: u32) {
        let (row, p) = (thread_idx_x() / 8, thread_idx_x() % 8);
        let k = chunk * CHUNK + 8 * p;
        each!(I in 0 1 2 3 {
            let row = row + 32 * I as u32;
            let entry = tile * TILE + row;
            let known = (entry < self.vocabulary) & (k < self.rank);
            let from = u64::from(entry) * u64::from(self.rank) + u64::from(k);
            // SAFETY: the caller's contract.
            unsafe { cp_async::copy16_or_zero(stage, piece(row, p), self.w2, from, known) };
        });
    }

    /// Starts the copies of the block's latents, chunk by chunk.
    ///
    /// # Safety
    /// - Nobody uses `to`.
    #[inline(always)]
    pub(super) unsafe fn copy_latents<const ROWS: u32>(&self, to: Shared<bf16>, chunks: u32) {
        let p = thread_idx_x() % 8;
        let mut at = thread_idx_x() / 8;
        while at < ROWS * chunks {
            let (chunk, row) = (at / ROWS, at % ROWS);
            let (k, from) = (chunk * CHUNK + 8 * p, self.row_block * ROWS + row);
            let known = (from < self.rows) & (k < self.rank);
            let from = u64::from(from) * u64::from(self.rank) + u64::from(k);
            // SAFETY: the caller's contract.
            unsafe {
                cp_async::copy16_or_zero(
                    to,
                    chunk * ROWS * CHUNK + piece(row, p),
                    self.latents,
                    from,
                    known,
                )
            };
            at += THREADS / 8;
        }
    }

    /// -inf for the base logits of rows past the last, which nothing else writes.
    ///
    /// # Safety
    /// - Nobody uses `to`.
    #[inline(always)]
    pub(super) unsafe fn silence_rows<const ROWS: u32>(&self, to: Shared<bf16>) {
        let last = (self.rows - self.row_block * ROWS).min(ROWS);
        let to = to.cast::<u32>();
        let mut at = last * BASE_PITCH / 8 + thread_idx_x();
        while at < ROWS * BASE_PITCH / 8 {
            // SAFETY: the caller's contract.
            unsafe { to.st4(4 * at, [NOTHING; 4]) };
            at += THREADS;
        }
    }

    /// Starts the copies of a tile of base logits: the vectors of memory that hold it, one after another.
    ///
    /// # Safety
    /// - Nobody uses `to`.
    #[inline(always)]
    pub(super) unsafe fn copy_base<const ROWS: u32>(
        &self,
        to: Shared<bf16>,
        tile: u32,
        rows: &RowWalk,
    ) {
        let p = thread_idx_x() % 16;
        let mut row = thread_idx_x() / 16;
        let end = (self.rows - self.row_block * ROWS).min(ROWS);
        let mut walk = *rows;
        let inside = self.aligned & (tile * TILE + TILE <= self.vocabulary);
        while row < end {
            let at = row * BASE_PITCH + 8 * p;
            let first = self.base.first.wrapping_add(walk.start as usize);
            // SAFETY: the caller's contract. A row that is not aligned has part of the tile in a 17th vector.
            unsafe {
                if inside {
                    let all = Global::new(first, self.vocabulary);
                    cp_async::copy16(to, at, all, tile * TILE + 8 * p);
                } else {
                    let row = Row::new(first, self.vocabulary);
                    row.copy(to, at, tile * (TILE / 8) + p);
                    if !self.aligned & (p == 0) {
                        row.copy(to, at + TILE, (tile + 1) * (TILE / 8));
                    }
                }
            }
            walk.step(&self.base, THREADS / 16);
            row += THREADS / 16;
        }
    }
}
