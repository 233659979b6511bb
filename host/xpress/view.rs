//! Blocks of values with strides: how the drafter's logits and hidden states are handed over.

use half::bf16;

use crate::error::{Error, Result};

/// Where the values of `[requests, slots, width]` lie. Rows are contiguous; everything is counted in values.
///
/// It holds no memory, so host slices and device pointers are described by the same type and checked once by
/// [`check`](Self::check).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockLayout {
    /// Blocks, one a request: N.
    pub requests: usize,
    /// Rows of a block: its slots, or its draft slots alone.
    pub slots: usize,
    /// Values of a row.
    pub width: usize,
    /// From the first value of a request to that of the next.
    pub request_stride: usize,
    /// From the first value of a slot to that of the next.
    pub slot_stride: usize,
}

impl BlockLayout {
    /// Rows one after another.
    pub fn contiguous(requests: usize, slots: usize, width: usize) -> Self {
        let request_stride = slots.saturating_mul(width);
        Self {
            requests,
            slots,
            width,
            request_stride,
            slot_stride: width,
        }
    }

    /// How many values the layout reaches over, gaps included; `None` if a `usize` cannot count them.
    pub fn extent(&self) -> Option<usize> {
        if self.requests == 0 || self.slots == 0 || self.width == 0 {
            return Some(0);
        }
        let requests = (self.requests - 1).checked_mul(self.request_stride)?;
        let slots = (self.slots - 1).checked_mul(self.slot_stride)?;
        requests.checked_add(slots)?.checked_add(self.width)
    }

    /// Checks that memory of `len` values holds all rows. Rows may overlap: they are only read.
    ///
    /// # Errors
    /// [`Error::Length`] names `argument`.
    pub fn check(&self, argument: &str, len: usize) -> Result<()> {
        match self.extent() {
            Some(extent) if extent <= len => Ok(()),
            extent => {
                let extent = extent.map_or("more than a usize counts".into(), |e| e.to_string());
                let expected = format!("at least {extent} for {self:?}");
                Err(Error::length(
                    argument,
                    expected,
                    len,
                    "give the whole buffer, or smaller strides",
                ))
            }
        }
    }

    /// Where a row starts.
    pub(crate) fn row_start(&self, request: usize, slot: usize) -> usize {
        request * self.request_stride + slot * self.slot_stride
    }
}

/// Borrowed bf16 values `[requests, slots, width]` on the host, each row contiguous.
#[derive(Clone, Copy, Debug)]
pub struct BlockView<'a> {
    values: &'a [bf16],
    layout: BlockLayout,
}

impl<'a> BlockView<'a> {
    /// A view with strides.
    ///
    /// # Errors
    /// [`Error::Length`] if `values` is too short for the layout.
    pub fn new(values: &'a [bf16], layout: BlockLayout) -> Result<Self> {
        layout.check("values", values.len())?;
        Ok(Self { values, layout })
    }

    /// A view of rows one after another.
    ///
    /// # Errors
    /// [`Error::Length`] if `values` does not have exactly `requests * slots * width` values.
    pub fn contiguous(
        values: &'a [bf16],
        requests: usize,
        slots: usize,
        width: usize,
    ) -> Result<Self> {
        let layout = BlockLayout::contiguous(requests, slots, width);
        let product = requests
            .checked_mul(slots)
            .and_then(|rows| rows.checked_mul(width));
        if product != Some(values.len()) {
            let expected = format!("{requests} x {slots} x {width}");
            return Err(Error::length(
                "values",
                expected,
                values.len(),
                "give one value for each place",
            ));
        }
        Self::new(values, layout)
    }

    /// The sizes and strides.
    pub fn layout(&self) -> BlockLayout {
        self.layout
    }

    /// The whole buffer under the view.
    pub fn values(&self) -> &'a [bf16] {
        self.values
    }

    /// One row.
    ///
    /// # Panics
    /// If the request or the slot is out of range.
    pub fn row(&self, request: usize, slot: usize) -> &'a [bf16] {
        assert!(request < self.layout.requests && slot < self.layout.slots);
        let start = self.layout.row_start(request, slot);
        &self.values[start..start + self.layout.width]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(n: usize) -> Vec<bf16> {
        (0..n).map(|i| bf16::from_f32(i as f32)).collect()
    }

    #[test]
    fn strides_find_the_rows() {
        let values = numbers(100);
        let layout = BlockLayout {
            requests: 2,
            slots: 3,
            width: 4,
            request_stride: 50,
            slot_stride: 5,
        };
        let view = BlockView::new(&values, layout).unwrap();
        assert_eq!(view.row(1, 2), &values[60..64]);
        assert_eq!(layout.extent(), Some(64));
        assert!(BlockView::new(&values[..63], layout).is_err());
    }

    #[test]
    fn a_contiguous_view_wants_the_exact_length() {
        let values = numbers(24);
        assert_eq!(
            BlockView::contiguous(&values, 2, 3, 4).unwrap().row(1, 0),
            &values[12..16]
        );
        assert!(BlockView::contiguous(&values, 2, 3, 5).is_err());
        assert!(BlockView::contiguous(&values[..23], 2, 3, 4).is_err());
        assert!(BlockView::contiguous(&values, usize::MAX, 2, 12).is_err());
    }

    #[test]
    fn an_extent_beyond_usize_is_refused() {
        let layout = BlockLayout {
            requests: 3,
            slots: 1,
            width: 1,
            request_stride: usize::MAX / 2 + 1,
            slot_stride: 1,
        };
        assert_eq!(layout.extent(), None);
        assert!(
            layout
                .check("hidden", usize::MAX)
                .unwrap_err()
                .to_string()
                .contains("hidden")
        );
    }
}
