//! What an engine hands in: views of its device arrays, and their checks.

use half::bf16;

use crate::driver::argument::{Extent, at_least, check_read, check_write, read};
use crate::driver::{DeviceSlice, DeviceSliceMut};
use crate::error::{Error, Result};
use crate::xpress::backend::{check_batch, check_topc};
use crate::xpress::plan::{View, check_rows};
use crate::xpress::{BlockLayout, XpressConfig, XpressLimits};

/// bf16 values `[requests, slots, width]` on the device, each row contiguous.
#[derive(Clone, Copy, Debug)]
pub struct DeviceBlocks<'a> {
    values: DeviceSlice<'a, bf16>,
    layout: BlockLayout,
}

/// A draft step on the device.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// The drafter's logits: `[N, B, V]`, whose slot 0 is never read, or `[N, B-1, V]`, the draft slots alone. Any alignment; rows at
    /// multiples of 16 bytes are read fastest.
    pub base: DeviceBlocks<'a>,
    /// The drafter's hidden states, `[N, B, D]`, each row at a multiple of 16 bytes.
    pub hidden: DeviceBlocks<'a>,
    /// At least `[N]`: the last verified token of each request.
    pub anchors: DeviceSlice<'a, i64>,
    /// At least `[N]`: the token before each anchor; `None` for the anchor itself, as vLLM has it.
    pub previous: Option<DeviceSlice<'a, i64>>,
    /// At least `[N, B-1]`: the tokens to start from; `None` for the argmax of the base logits.
    pub seeds: Option<DeviceSlice<'a, i64>>,
    /// K, Jacobi passes. 0 gives the start.
    pub passes: usize,
    /// C, candidates a slot; more than V is V, 0 is the full vocabulary.
    pub topc: usize,
}

impl<'a> DeviceBlocks<'a> {
    /// A view with strides.
    ///
    /// # Errors
    /// [`Error::Length`] if `values` is too short for the layout.
    pub fn new(values: DeviceSlice<'a, bf16>, layout: BlockLayout) -> Result<Self> {
        layout.check("values", values.len())?;
        Ok(Self { values, layout })
    }

    /// The whole array under the view.
    pub fn values(&self) -> DeviceSlice<'a, bf16> {
        self.values
    }

    /// The sizes and strides.
    pub fn layout(&self) -> BlockLayout {
        self.layout
    }

    pub(super) fn view(&self) -> View {
        View {
            address: self.values.ptr(),
            layout: self.layout,
        }
    }
}

impl Step<'_> {
    /// Checks everything that the host can see, and returns N.
    pub(super) fn check(
        &self,
        config: &XpressConfig,
        limits: &XpressLimits,
        drafts: &DeviceSliceMut<'_, i64>,
    ) -> Result<usize> {
        let checked = Checked::new(config, limits);
        let n = checked.hidden(&self.hidden)?;
        let slots = config.num_draft_tokens();
        let base = checked.base(&self.base)?;
        if base != n {
            let (expected, hint) = (
                format!("{n} requests, as `hidden`"),
                "all arrays are of one batch",
            );
            return Err(Error::length("base", expected, base, hint));
        }
        checked.input("anchors", &self.anchors, n)?;
        if let Some(previous) = &self.previous {
            checked.input("previous", previous, n)?;
        }
        if let Some(seeds) = &self.seeds {
            checked.input("seeds", seeds, n * slots)?;
        }
        self.candidates(config, limits)?;
        checked.output("drafts", drafts, n * slots)?;

        let out = Extent {
            name: "drafts",
            ptr: drafts.ptr(),
            bytes: 8 * (n * slots) as u64,
        };
        out.apart_from(&read("base", &self.base.values))?;
        out.apart_from(&read("hidden", &self.hidden.values))?;
        out.apart_from(&read("anchors", &self.anchors))?;
        for (name, array) in [("previous", &self.previous), ("seeds", &self.seeds)] {
            if let Some(array) = array {
                out.apart_from(&read(name, array))?;
            }
        }
        Ok(n)
    }

    /// The candidates of a slot, `None` for the full vocabulary.
    pub(super) fn candidates(
        &self,
        config: &XpressConfig,
        limits: &XpressLimits,
    ) -> Result<Option<usize>> {
        match self.topc {
            0 => Ok(None),
            c => check_topc(c.min(config.vocab_size), limits).map(Some),
        }
    }
}

/// Checks of arrays against a head and its limits.
pub(super) struct Checked<'a> {
    config: &'a XpressConfig,
    limits: &'a XpressLimits,
}

impl<'a> Checked<'a> {
    pub(super) fn new(config: &'a XpressConfig, limits: &'a XpressLimits) -> Self {
        Self { config, limits }
    }

    /// The batch's size.
    pub(super) fn batch(&self, name: &'static str, n: usize) -> Result<usize> {
        check_batch(name, n, self.limits)?;
        Ok(n)
    }

    pub(super) fn input<T>(
        &self,
        name: &'static str,
        array: &DeviceSlice<'_, T>,
        want: usize,
    ) -> Result<()> {
        at_least(name, array.len(), want, ONE_BATCH)?;
        check_read(name, array)?;
        self.vectors::<T>(name, array.ptr())
    }

    pub(super) fn output<T>(
        &self,
        name: &'static str,
        array: &DeviceSliceMut<'_, T>,
        want: usize,
    ) -> Result<()> {
        check_write(name, array, want, ONE_BATCH)?;
        self.vectors::<T>(name, array.ptr())
    }

    /// Hidden states of a batch, whose size it is.
    pub(super) fn hidden(&self, hidden: &DeviceBlocks<'_>) -> Result<usize> {
        let XpressConfig {
            block_size,
            hidden_size,
            ..
        } = *self.config;
        let n = self.batch("hidden", hidden.layout.requests)?;
        shape("hidden", hidden, [n, block_size, hidden_size])?;
        check_read("hidden", &hidden.values)?;
        if n > 0 && !hidden.view().is_aligned() {
            let got = format!("address {:#x}, {:?}", hidden.values.ptr(), hidden.layout);
            return Err(Error::out_of_range(
                "hidden",
                "rows at multiples of 16 bytes",
                got,
                "give strides that are multiples of 8 values, from an address that is a multiple of 16",
            ));
        }
        Ok(n)
    }

    /// Base logits of a batch, whose size it is; with slot 0 or without.
    pub(super) fn base(&self, base: &DeviceBlocks<'_>) -> Result<usize> {
        let n = self.batch("base", base.layout.requests)?;
        let slots = match base.layout.slots {
            slots if slots == self.config.num_draft_tokens() => slots,
            _ => self.config.block_size,
        };
        shape("base", base, [n, slots, self.config.vocab_size])?;
        check_read("base", &base.values)?;
        Ok(n)
    }

    /// Logits and what is added to them, and the blocks for the winners; how many rows there are.
    pub(super) fn pair(
        &self,
        base: &DeviceBlocks<'_>,
        bias: &DeviceBlocks<'_>,
        blocks: &DeviceSliceMut<'_, i64>,
    ) -> Result<usize> {
        let BlockLayout {
            requests,
            slots,
            width,
            ..
        } = base.layout;
        shape("bias", bias, [requests, slots, width])?;
        check_rows("base", &base.layout)?;
        check_read("base", &base.values)?;
        check_read("bias", &bias.values)?;
        self.output("blocks", blocks, requests * (slots + 1))?;
        Ok(requests * slots)
    }

    /// Rows that there are keys for.
    pub(super) fn rows(&self, rows: usize) -> Result<()> {
        let most = self.limits.max_num_reqs * self.config.num_draft_tokens();
        if rows <= most {
            return Ok(());
        }
        let hint = "split the batch, or raise XpressLimits.max_num_reqs";
        Err(Error::length(
            "base",
            format!("at most {most} rows"),
            rows,
            hint,
        ))
    }

    /// bf16 arrays are read and written by vectors.
    fn vectors<T>(&self, name: &'static str, address: u64) -> Result<()> {
        if size_of::<T>() != 2 || address.is_multiple_of(16) {
            return Ok(());
        }
        Err(Error::out_of_range(
            name,
            "an address that is a multiple of 16",
            format!("{address:#x}"),
            "allocate it by itself, or copy it",
        ))
    }
}

fn shape(name: &'static str, view: &DeviceBlocks<'_>, shape: [usize; 3]) -> Result<()> {
    let BlockLayout {
        requests,
        slots,
        width,
        ..
    } = view.layout;
    let got = [requests, slots, width];
    if got == shape {
        return Ok(());
    }
    Err(Error::Shape {
        argument: name.into(),
        expected: format!("{shape:?}"),
        got: format!("{got:?}"),
        hint: "give a view of [requests, slots, width]",
    })
}

const ONE_BATCH: &str = "all arrays of a call are for one batch";
