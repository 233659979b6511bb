//! Which tiles of the vocabulary a pruned readout looks at: a bit each, for every row block.
//!
//! A readout without bits, or of a pass after one that could leave out too little, looks at all tiles.

use cuda_std::Global;

/// Vocabulary entries of a tile, in both readouts.
pub const TILE: u32 = 128;

/// Words of a row block: how many of its rows are open, then a bit for each tile.
pub const fn words(vocabulary: u32) -> u32 {
    1 + vocabulary.div_ceil(TILE).div_ceil(32)
}

/// The words of a row block.
#[inline(always)]
pub(super) fn words_of(bits: *mut u32, row_block: u32, vocabulary: u32) -> Global<u32> {
    let words = u64::from(words(vocabulary));
    let all = Global::new(bits, (u64::from(row_block) + 1) * words);
    all.slice(u64::from(row_block) * words, words)
}

/// What the passes of a step know about pruning.
#[derive(Clone, Copy)]
pub(super) struct Needed {
    /// `[row blocks, words]`, or null for all tiles.
    pub(super) bits: *mut u32,
    /// `[rows]`: not 0 for rows that are open, and so the readout's.
    pub(super) open: *const u32,
    /// How many tiles the pass before needed, with [`FLAT`]; null for none.
    pub(super) flat: *const u32,
}

/// The bit of a pass's count of needed tiles that is set once they are half of all tiles or more, because what is left of the readout then
/// costs more than pruning spares; and if the pass does not try.
pub(super) const FLAT: u32 = 1 << 31;

impl Needed {
    /// With all tiles if the pass before was flat: then pruning is not tried.
    ///
    /// # Safety
    /// - The pointers are null or valid, and the launches that wrote there are complete.
    #[inline(always)]
    pub(super) unsafe fn unless_flat(self) -> Self {
        // SAFETY: the caller's contract.
        if !self.is_all() && unsafe { is_flat(self.flat) } {
            return Self {
                bits: core::ptr::null_mut(),
                ..self
            };
        }
        self
    }

    #[inline(always)]
    pub(super) fn is_all(&self) -> bool {
        self.bits.is_null()
    }

    /// The words of a row block.
    #[inline(always)]
    pub(super) fn words(&self, row_block: u32, vocabulary: u32) -> Global<u32> {
        words_of(self.bits, row_block, vocabulary)
    }

    /// How many rows of a row block are open; 1 if all tiles are needed.
    ///
    /// # Safety
    /// - As [`unless_flat`](Self::unless_flat).
    #[inline(always)]
    pub(super) unsafe fn open_rows(&self, row_block: u32, vocabulary: u32) -> u32 {
        let words = self.words(row_block, vocabulary);
        // SAFETY: the caller's contract; nothing is read at null.
        unsafe { words.ld_if(0u32, !self.is_all(), 1) }
    }

    /// Whether the readout decides this row.
    ///
    /// # Safety
    /// - As [`unless_flat`](Self::unless_flat).
    #[inline(always)]
    pub(super) unsafe fn is_open(&self, row: u32) -> bool {
        // SAFETY: the caller's contract; nothing is read at null.
        self.is_all() || unsafe { Global::new(self.open, row + 1).ld(row) } != 0
    }
}

/// Whether the pass before needed too many tiles, or did not try.
///
/// # Safety
/// - As [`Needed::unless_flat`].
#[inline(always)]
pub(super) unsafe fn is_flat(flat: *const u32) -> bool {
    // SAFETY: the caller's contract.
    !flat.is_null() && unsafe { Global::new(flat, 1u32).ld(0u32) } >= FLAT
}

/// Walks over a row block's tiles in rising order. Three numbers, since the thread that fetches has few registers.
#[derive(Clone, Copy)]
pub(super) struct Walk {
    /// The word that it is at; [`ALL`] if all tiles are needed.
    word: u32,
    /// The word's bits that are not passed.
    left: u32,
    /// How many bits are.
    passed: u32,
}

const ALL: u32 = u32::MAX;

impl Walk {
    #[inline(always)]
    pub(super) fn new(is_all: bool) -> Self {
        Self {
            word: if is_all { ALL } else { 0 },
            left: 0,
            passed: 0,
        }
    }

    /// The tile of this place among those that are needed, or any number from the number of tiles on if there are not so many.
    /// Places rise from call to call. `bits` is the row block's words.
    ///
    /// # Safety
    /// - The bits may be read.
    #[inline(always)]
    pub(super) unsafe fn tile(&mut self, bits: Global<u32>, tiles: u32, place: u32) -> u32 {
        if self.word == ALL {
            return place;
        }
        loop {
            let count = self.left.count_ones();
            if place < self.passed + count {
                while self.passed < place {
                    self.left &= self.left - 1;
                    self.passed += 1;
                }
                return (self.word - 1) * 32 + self.left.trailing_zeros();
            }
            self.passed += count;
            self.left = 0;
            if self.word * 32 >= tiles {
                return tiles;
            }
            self.word += 1;
            // SAFETY: the caller's contract; word w's bits are element w of the row block's, after the rows.
            self.left = unsafe { bits.ld(self.word) };
        }
    }
}
