//! The refiner's own GPU memory: the head's weights, and scratch.

use half::bf16;
use half::slice::HalfFloatSliceExt;
use specdraft_kernels::xpress::needed::TILE;

use crate::driver::{Context, DeviceBuffer, DriverError, Stream};
use crate::xpress::norms::tile_norms;
use crate::xpress::plan::{Scratch, Weights};
use crate::xpress::{XpressConfig, XpressHead, XpressLimits, XpressMemory};

#[derive(Debug)]
pub(super) struct Memory {
    /// In the order of [`Weights`]' fields, as far as they are bf16.
    weights: [DeviceBuffer<u16>; 8],
    /// Bounds on the norms of w2's rows.
    norms: DeviceBuffer<f32>,
    /// In the order of [`Scratch`]'s fields.
    scratch: Vec<DeviceBuffer<u64>>,
}

impl Memory {
    /// Uploads and allocates; the uploads are complete when it returns.
    pub(super) fn new(
        context: &Context,
        head: &XpressHead,
        limits: &XpressLimits,
    ) -> Result<Self, DriverError> {
        let stream = Stream::PER_THREAD;
        let upload = |values: &[bf16], name| {
            DeviceBuffer::from_slice(context, stream, values.reinterpret_cast(), name)
        };
        let weights = head.weights();
        let gate_up = [&weights.gate[..], &weights.up].concat();
        let scratch = Scratch::bytes(head.config(), limits, context.device().multiprocessors());
        let allocate = |i: usize| {
            let len = scratch[i].div_ceil(8) as usize;
            DeviceBuffer::zeroed(context, stream, len, "scratch of the XPress refiner")
        };
        Ok(Self {
            weights: [
                upload(&weights.w1, "w1.weight")?,
                upload(&weights.down_h, "down_h.weight")?,
                upload(&weights.down_g, "down_g.weight")?,
                upload(&weights.in_proj, "in_proj.weight")?,
                upload(weights.mixer.values(), "mix.L")?,
                upload(&gate_up, "mlp.gate_proj.weight and mlp.up_proj.weight")?,
                upload(&weights.down, "mlp.down_proj.weight")?,
                upload(&weights.w2, "w2.weight")?,
            ],
            norms: DeviceBuffer::from_slice(
                context,
                stream,
                &tile_norms(&weights.w2, head.config().rank),
                "norms of w2.weight",
            )?,
            scratch: (0..Scratch::ARRAYS)
                .map(allocate)
                .collect::<Result<_, _>>()?,
        })
    }

    pub(super) fn weights(&self) -> Weights {
        let [w1, down_h, down_g, in_proj, mixer, gate_up, down, w2] =
            self.weights.each_ref().map(DeviceBuffer::ptr);
        Weights {
            w1,
            down_h,
            down_g,
            in_proj,
            mixer,
            gate_up,
            down,
            w2,
            norms: self.norms.ptr(),
        }
    }

    pub(super) fn scratch(&self) -> Scratch {
        Scratch::at(std::array::from_fn(|i| self.scratch[i].ptr()))
    }

    /// Keys and counters, one a row and zero between calls.
    pub(super) fn counters(&self) -> (u64, u64) {
        let Scratch { keys, arrived, .. } = self.scratch();
        (keys, arrived)
    }

    /// What has been counted: open rows, and tiles that they needed.
    pub(super) fn counts(&self, stream: Stream<'_>) -> Result<[u64; 2], DriverError> {
        let counts = self.scratch[Scratch::COUNTS].read(stream, 0, 2)?;
        Ok([counts[0], counts[1]])
    }

    /// Lets the next step try to prune. Complete when it returns; no step may be running.
    pub(super) fn end_pause(&mut self) -> Result<(), DriverError> {
        self.scratch[Scratch::PAUSE].write(Stream::PER_THREAD, 0, &[0])
    }

    /// What it holds.
    pub(super) fn sizes(&self) -> XpressMemory {
        XpressMemory {
            weights: self.weights.iter().map(DeviceBuffer::bytes).sum::<u64>() + self.norms.bytes(),
            scratch: self.scratch.iter().map(DeviceBuffer::bytes).sum(),
        }
    }

    /// What [`new`](Self::new) would allocate.
    pub(super) fn required(
        config: &XpressConfig,
        limits: &XpressLimits,
        multiprocessors: u32,
    ) -> XpressMemory {
        let scratch = Scratch::bytes(config, limits, multiprocessors);
        XpressMemory {
            weights: config.weight_bytes() + 4 * config.vocab_size.div_ceil(TILE as usize) as u64,
            scratch: scratch.iter().map(|bytes| bytes.next_multiple_of(8)).sum(),
        }
    }
}
