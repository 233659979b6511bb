//! Whose turn it is.

use super::block::Slot;
use super::collective::bits;
use super::context::{Block, Pause};
use super::launch::Random;

/// Steps of a slice where the order is fixed.
const LONG: u32 = 1 << 16;

/// The last turn, and how the next one is chosen.
pub(crate) struct Turns {
    random: Option<Random>,
    /// Random: the longest slice, and how often of 256 times the next thread is of the same warp.
    longest: u32,
    stay: u64,
    slot: usize,
    warp: u32,
    lane: u32,
    /// Whether a lane of the warp has polled in vain during the warp's turn.
    polled: bool,
}

impl Turns {
    pub(crate) fn new(mut random: Option<Random>) -> Self {
        let (longest, stay) = match &mut random {
            None => (LONG, 256),
            Some(random) => (
                [4, 32, 256, LONG][random.below(4) as usize],
                [0, 240, 256][random.below(3) as usize],
            ),
        };
        Self {
            random,
            longest,
            stay,
            slot: 0,
            warp: 0,
            lane: 31,
            polled: false,
        }
    }

    /// Steps of the next slice.
    pub(crate) fn quantum(&mut self) -> u32 {
        match &mut self.random {
            None => LONG,
            Some(random) => 1 + random.below(self.longest.into()) as u32,
        }
    }

    /// A slot and a thread that can run.
    #[inline]
    pub(crate) fn next(&mut self, slots: &[Slot], pause: Pause) -> Option<(usize, usize)> {
        let ready = |slot: usize, warp: u32| {
            slots
                .get(slot)
                .and_then(|s| s.block.warps.get(warp as usize))
                .map_or(0, |w| w.ready.get())
        };
        let here = ready(self.slot, self.warp);
        if let Some(random) = &mut self.random {
            if here == 0 || pause == Pause::Poll || random.below(256) >= self.stay {
                let start = random.below(slots.len() as u64) as usize;
                self.slot = (0..slots.len())
                    .map(|k| (start + k) % slots.len())
                    .find(|&slot| slots[slot].block.has_ready())?;
                let warps = slots[self.slot].block.ready_warps.get();
                self.warp = pick(warps, random);
            }
            self.lane = pick(ready(self.slot, self.warp), random);
        } else {
            let later = here & (u32::MAX << self.lane << 1);
            self.polled |= pause == Pause::Poll;
            if later != 0 {
                self.lane = later.trailing_zeros();
            } else {
                // The last lane may wait for those that poll.
                if here == 0 || self.polled || pause == Pause::Yield {
                    self.next_warp(slots)?;
                    self.polled = false;
                }
                self.lane = ready(self.slot, self.warp).trailing_zeros();
            }
        }
        Some((self.slot, (self.warp * 32 + self.lane) as usize))
    }

    /// Moves on to the next warp with threads that can run, maybe the same one.
    fn next_warp(&mut self, slots: &[Slot]) -> Option<()> {
        if let Some(slot) = slots.get(self.slot)
            && slot.block.has_ready()
        {
            let later = slot.block.ready_warps.get() & (u32::MAX << self.warp << 1);
            if later != 0 {
                self.warp = later.trailing_zeros();
                return Some(());
            }
        }
        self.slot = (1..=slots.len())
            .map(|k| (self.slot + k) % slots.len())
            .find(|&slot| slots[slot].block.has_ready())?;
        self.warp = slots[self.slot].block.ready_warps.get().trailing_zeros();
        Some(())
    }
}

impl Block {
    /// Whether some thread can run; forgets the warps of which none can.
    fn has_ready(&self) -> bool {
        for w in bits(self.ready_warps.get()) {
            if self.warps[w].ready.get() == 0 {
                self.ready_warps.set(self.ready_warps.get() & !(1 << w));
            }
        }
        self.ready_warps.get() != 0
    }
}

/// The position of one of the word's ones, each as likely.
fn pick(mut word: u32, random: &mut Random) -> u32 {
    for _ in 0..random.below(word.count_ones().into()) {
        word &= word - 1;
    }
    word.trailing_zeros()
}
