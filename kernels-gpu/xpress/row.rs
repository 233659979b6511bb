//! Rows of bf16 logits at any address, read as the 16-byte vectors of memory that they lie in.
//!
//! A row starts anywhere: its vectors are those of memory, and the first and last may hold only part of it. What a
//! vector holds outside the row is not read; in its place stands -inf, which wins nothing.

use cuda_std::{Global, Shared, at_least_one, bf16, bf16x2, cp_async};

/// Two times -inf.
pub(super) const NOTHING: u32 = 0xff80_ff80;

/// Where the rows of `[requests, slots, width]` logits lie, in elements.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub(super) first: *const bf16,
    pub(super) request_stride: u64,
    pub(super) slot_stride: u64,
    pub(super) slots: u32,
    pub(super) width: u32,
}

impl Rows {
    #[inline(always)]
    pub(super) fn get(&self, row: u32) -> Row {
        let slots = at_least_one(self.slots);
        let (request, slot) = (row / slots, row % slots);
        let start = u64::from(request) * self.request_stride + u64::from(slot) * self.slot_stride;
        Row::new(self.first.wrapping_add(start as usize), self.width)
    }
}

/// A row's start, found from an earlier row's without a division.
#[derive(Clone, Copy)]
pub(super) struct RowWalk {
    pub(super) start: u64,
    slot: u32,
}

impl RowWalk {
    #[inline(always)]
    pub(super) fn new(rows: &Rows, row: u32) -> Self {
        let slots = at_least_one(rows.slots);
        let (request, slot) = (row / slots, row % slots);
        Self {
            start: u64::from(request) * rows.request_stride + u64::from(slot) * rows.slot_stride,
            slot,
        }
    }

    /// Goes `count` rows on.
    #[inline(always)]
    pub(super) fn step(&mut self, rows: &Rows, count: u32) {
        let slots = at_least_one(rows.slots);
        let (requests, slot) = (count / slots, count % slots);
        self.start = self.start.wrapping_add(
            u64::from(requests) * rows.request_stride + u64::from(slot) * rows.slot_stride,
        );
        self.slot += slot;
        if self.slot >= rows.slots {
            self.slot -= rows.slots;
            self.start = self
                .start
                .wrapping_add(rows.request_stride)
                .wrapping_sub(u64::from(rows.slots) * rows.slot_stride);
        }
    }
}

/// One row.
#[derive(Clone, Copy)]
pub(super) struct Row {
    values: Global<bf16>,
    vectors: Global<u32>,
    /// Elements of the first vector that lie before the row.
    shift: u32,
    width: u32,
}

impl Row {
    #[inline(always)]
    pub(super) fn new(first: *const bf16, width: u32) -> Self {
        let shift = (first.addr() / 2 % 8) as u32;
        let aligned = first.wrapping_sub(shift as usize);
        let count = (u64::from(shift) + u64::from(width)).div_ceil(8);
        Self {
            values: Global::new(first, width),
            vectors: Global::new(aligned.cast(), count * 4),
            shift,
            width,
        }
    }

    /// Vectors that hold some of the row.
    #[inline(always)]
    pub(super) fn count(&self) -> u32 {
        (u64::from(self.shift) + u64::from(self.width)).div_ceil(8) as u32
    }

    /// How many elements of the first vector lie before the row.
    #[inline(always)]
    pub(super) fn shift(&self) -> u32 {
        self.shift
    }

    /// The row's element that lies first in a vector: negative, and not of the row, in vector 0 of a row that is not aligned.
    #[inline(always)]
    pub(super) fn element(&self, vector: u32) -> i64 {
        i64::from(vector) * 8 - i64::from(self.shift)
    }

    /// Reads a vector below `end` that lies in the row with all its elements; [`NOTHING`] for any other.
    ///
    /// # Safety
    /// - The row may be read, and no thread of the launch writes it.
    #[inline(always)]
    pub(super) unsafe fn whole(&self, vector: u32, end: u32) -> [u32; 4] {
        // SAFETY: the caller's contract; the vector is inside the row.
        unsafe {
            self.vectors.ld4_nc_if(
                u64::from(vector) * 4,
                (vector < end) & self.is_whole(vector),
                NOTHING,
            )
        }
    }

    /// From which vector on, and up to which, all elements lie in the row.
    #[inline(always)]
    pub(super) fn wholes(&self) -> (u32, u32) {
        (u32::from(self.shift != 0), (self.shift + self.width) / 8)
    }

    /// Reads a vector if `condition`, else [`NOTHING`].
    ///
    /// # Safety
    /// - As [`whole`](Self::whole); if `condition`, the vector's elements all lie in the row.
    #[inline(always)]
    pub(super) unsafe fn vector_if(&self, vector: u32, condition: bool) -> [u32; 4] {
        // SAFETY: the caller's contract.
        unsafe {
            self.vectors
                .ld4_nc_if(u64::from(vector) * 4, condition, NOTHING)
        }
    }

    /// Whether all elements of a vector lie in the row.
    #[inline(always)]
    pub(super) fn is_whole(&self, vector: u32) -> bool {
        let element = self.element(vector);
        (element >= 0) & (element + 8 <= i64::from(self.width))
    }

    /// Which of a vector's elements are the row's, a bit each.
    #[inline(always)]
    pub(super) fn inside(&self, vector: u32) -> u32 {
        let (first, width) = (self.element(vector), i64::from(self.width));
        let from = (-first).clamp(0, 8) as u32;
        let upto = (width - first).clamp(0, 8) as u32;
        ((1 << upto) - 1) & !((1 << from) - 1)
    }

    /// Starts the copy of a vector to shared memory; writes it there element by element if it is not whole.
    ///
    /// # Safety
    /// - As [`whole`](Self::whole), and as [`cp_async::copy16`].
    #[inline(always)]
    pub(super) unsafe fn copy(&self, to: Shared<bf16>, at: u32, vector: u32) {
        // SAFETY: the caller's contract.
        unsafe {
            if self.is_whole(vector) {
                cp_async::copy16(to.cast(), at / 2, self.vectors, u64::from(vector) * 4);
            } else {
                to.cast::<u32>()
                    .st4(at / 2, self.elements(self.element(vector)));
            }
        }
    }

    /// Eight elements from this one on, read one by one; -inf for what is none of the row's.
    ///
    /// # Safety
    /// - As [`whole`](Self::whole).
    #[inline(always)]
    pub(super) unsafe fn elements(&self, first: i64) -> [u32; 4] {
        let mut words = [NOTHING; 4];
        each!(W in 0 1 2 3 {
            // SAFETY: the caller's contract.
            words[W] = unsafe { self.one(first + 2 * W as i64) | self.one(first + 2 * W as i64 + 1) << 16 };
        });
        words
    }

    /// The bits of an element; -inf for what is none of the row's.
    ///
    /// # Safety
    /// - As [`whole`](Self::whole).
    #[inline(always)]
    pub(super) unsafe fn one(&self, element: i64) -> u32 {
        let inside = (element >= 0) & (element < i64::from(self.width));
        // SAFETY: the caller's contract; inside the row.
        let value = unsafe { self.values.ld_nc_if(element, inside, bf16::NEG_INFINITY) };
        u32::from(value.to_bits())
    }
}

/// The largest of eight values that is a number; NaN if none is.
#[inline(always)]
pub(super) fn largest(words: [u32; 4]) -> f32 {
    let [a, b, c, d] = words;
    let pair = bf16x2::max(bf16x2::max(a, b), bf16x2::max(c, d));
    bf16x2::low(pair).max(bf16x2::high(pair))
}
