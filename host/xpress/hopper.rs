//! The readout's twin for Hopper: which calls it takes, and launching it.

use std::fmt;

use specdraft_kernels::xpress::readout::ReadoutArgs;
use specdraft_kernels::xpress::readout_sm90::{
    self, BOX_COLUMNS, GROUP_ROWS, HopperArgs, RANK, TILE, TensorMapsArgs, VARIANTS,
    XPRESS_TENSOR_MAPS,
};

use crate::driver::{
    Boxes, DeviceBuffer, DriverError, KernelResources, LaunchShape, Module, PreparedKernel, Stream,
};

/// A kernel that reads out the whole vocabulary. Both give the same tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Readout {
    /// For every GPU and shape.
    General,
    /// For GPUs of compute capability 9.0 and rank 256, logits at multiples of 16 bytes and at least 128 of them: warpgroup products and
    /// tensor copies.
    Hopper,
}

impl fmt::Display for Readout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::General => "general",
            Self::Hopper => "hopper",
        })
    }
}

/// [`Readout::Hopper`], loaded, with the memory that its launches share.
#[derive(Debug)]
pub struct HopperReadout {
    module: Module,
    write_maps: PreparedKernel<{ XPRESS_TENSOR_MAPS.params.len() }>,
    kernels: [PreparedKernel<{ VARIANTS[0].kernel.params.len() }>; VARIANTS.len()],
    /// Of w2, base logits and latents.
    maps: DeviceBuffer<u64>,
    keys: DeviceBuffer<u64>,
    counters: DeviceBuffer<u32>,
    vocabulary: u32,
    w2: u64,
    /// What the last two maps are of.
    mapped: Option<Mapped>,
}

/// Where a call's rows lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mapped {
    latents: u64,
    base: u64,
    strides: [u64; 2],
    rows: u32,
    slots: u32,
}

impl HopperReadout {
    /// Loads the kernels for a head whose w2 lies at `w2`, and allocates for calls of up to `max_rows` rows. `None` if the GPU, the module
    /// or the head is not one that the kernels are for.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(
        module: &Module,
        stream: Stream<'_>,
        w2: u64,
        [vocabulary, rank]: [u32; 2],
        max_rows: u32,
    ) -> Result<Option<Self>, DriverError> {
        let context = module.context();
        let is_hopper = context.device().capability() == (9, 0) && module.target() == "sm_90a";
        if !is_hopper || rank != RANK || vocabulary < TILE {
            return Ok(None);
        }
        let boxes = Boxes {
            address: w2,
            sizes: [RANK.into(), vocabulary.into(), 1],
            strides: [2 * u64::from(RANK), 0],
            of: [BOX_COLUMNS, TILE, 1],
            nan_outside: false,
            promote: false,
        };
        let Some(map) = boxes.encode(context, true)? else {
            return Ok(None);
        };
        let prepare = |variant: &readout_sm90::Variant| {
            let kernel = PreparedKernel::new(module, &variant.kernel)?;
            kernel.allow_shared_bytes(readout_sm90::BYTES)?;
            Ok(kernel)
        };
        let [a, b, c, d] = &VARIANTS;
        let mut maps = DeviceBuffer::zeroed(context, stream, 48, "tensor maps")?;
        maps.write(stream, 0, &map)?;
        let max_row_blocks = 5 * context.device().multiprocessors() as usize;
        Ok(Some(Self {
            write_maps: PreparedKernel::new(module, &XPRESS_TENSOR_MAPS)?,
            kernels: [prepare(a)?, prepare(b)?, prepare(c)?, prepare(d)?],
            maps,
            keys: DeviceBuffer::zeroed(context, stream, max_rows as usize, "readout keys")?,
            counters: DeviceBuffer::zeroed(
                context,
                stream,
                1 + max_row_blocks,
                "readout counters",
            )?,
            module: module.clone(),
            vocabulary,
            w2,
            mapped: None,
        }))
    }

    /// GPU memory that it holds, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.maps.bytes() + self.keys.bytes() + self.counters.bytes()
    }

    /// Each kernel's name, and what it takes of the GPU.
    ///
    /// # Errors
    /// The driver's.
    pub fn resources(&self) -> Result<Vec<(&'static str, KernelResources)>, DriverError> {
        let mut all = vec![(self.write_maps.name(), self.write_maps.resources()?)];
        for kernel in &self.kernels {
            all.push((kernel.name(), kernel.resources()?));
        }
        Ok(all)
    }

    /// Begins a call: its first [`enqueue`](Self::enqueue) launches one kernel more, which writes where the call's arrays lie and clears
    /// what a launch that failed may have left.
    pub fn begin(&mut self) {
        self.mapped = None;
    }

    /// Whether it takes these arguments of the general kernel.
    pub fn takes(&self, args: &ReadoutArgs) -> bool {
        args.w2.addr() as u64 == self.w2
            && args.vocabulary == self.vocabulary
            && args.rank == RANK
            && args.aligned != 0
            && args.latents.addr().is_multiple_of(16)
            && args.rows as usize <= self.keys.len()
            && self.plan(args).is_some()
    }

    /// Rows of a row block of the kernel that takes these arguments; `None` if none does.
    pub fn row_block(&self, args: &ReadoutArgs) -> Option<u32> {
        let (groups, variant) = self.plan(args).filter(|_| self.takes(args))?;
        Some(groups.rows * VARIANTS[variant].groups)
    }

    /// Enqueues the readout in the general kernel's stead; `false`, and nothing is enqueued, if it does not take the arguments.
    ///
    /// # Safety
    /// - The contract of the general kernel, but for grid, keys and counters.
    /// - The calls on this object are ordered on the GPU, and w2 was written before it was made.
    /// - As [`PreparedKernel::launch`].
    ///
    /// # Errors
    /// The driver's.
    pub unsafe fn enqueue(
        &mut self,
        stream: Stream<'_>,
        dependent: bool,
        args: &ReadoutArgs,
    ) -> Result<bool, DriverError> {
        if !self.takes(args) {
            return Ok(false);
        }
        let Some((groups, variant)) = self.plan(args) else {
            return Ok(false);
        };
        let mapped = Mapped {
            latents: args.latents.addr() as u64,
            base: args.base.addr() as u64,
            strides: [args.request_stride, args.slot_stride],
            rows: args.rows,
            slots: args.slots,
        };
        if self.mapped != Some(mapped) {
            let Some(maps) = self.encode(&groups, args)? else {
                // A pruned readout's tiles were written for this kernel's row blocks: the general one would leave rows out.
                return match args.needed.is_null() {
                    true => Ok(false),
                    false => Err(DriverError::Argument {
                        argument: "base",
                        expected: "an array that the driver can describe".into(),
                        got: format!("strides {} and {}", args.request_stride, args.slot_stride),
                        hint: "turn pruning off for it (set_pruning), and report the strides",
                    }),
                };
            };
            // SAFETY: the caller's contract; the launch writes this object's memory alone.
            unsafe { self.launch_maps(stream, dependent, maps)? };
            self.mapped = Some(mapped);
        }
        let shape = LaunchShape {
            grid: [self.multiprocessors(), 1, 1],
            threads: VARIANTS[variant].threads,
            shared_bytes: readout_sm90::BYTES,
            dependent,
        };
        let map = |i: u64| std::ptr::with_exposed_provenance((self.maps.ptr() + 128 * i) as usize);
        let [keep_sixteenths, keep_base] = kept(
            groups.count,
            args.rows,
            args.vocabulary,
            self.multiprocessors(),
        );
        let words = HopperArgs {
            w2: map(0),
            base: map(1),
            latents: map(2),
            blocks: args.blocks,
            drafts: args.drafts,
            keys: std::ptr::with_exposed_provenance_mut(self.keys.ptr() as usize),
            counters: std::ptr::with_exposed_provenance_mut(self.counters.ptr() as usize),
            flag: args.flag,
            changed: args.changed,
            needed: args.needed,
            open: args.open,
            flat: args.flat,
            rows: args.rows,
            slots: args.slots,
            vocabulary: args.vocabulary,
            groups: groups.count,
            group_slots: groups.step[0],
            group_requests: groups.step[1],
            group_rows: groups.rows,
            keep_sixteenths,
            keep_base,
        }
        .words();
        // SAFETY: the maps are of the arguments' arrays, written before on this stream; the rest is the caller's contract.
        unsafe { self.kernels[variant].launch(stream, shape, words)? };
        Ok(true)
    }

    fn multiprocessors(&self) -> u32 {
        self.module.context().device().multiprocessors()
    }

    /// The rows' groups, and which of [`VARIANTS`] takes so many.
    fn plan(&self, args: &ReadoutArgs) -> Option<(Groups, usize)> {
        let groups = Groups::of(args)?;
        let variant = readout_sm90::pick(groups.count, self.multiprocessors())?;
        Some((groups, variant))
    }

    /// The maps of base logits and latents; `None` if the driver does not take the arrays.
    fn encode(
        &self,
        groups: &Groups,
        args: &ReadoutArgs,
    ) -> Result<Option<[[u64; 16]; 2]>, DriverError> {
        let context = self.module.context();
        let [y, z] = groups.boxes;
        let boxes = |address, width: u32, strides: [u64; 2], is_latents: bool| Boxes {
            address,
            sizes: [width.into(), groups.sizes[0].into(), groups.sizes[1].into()],
            strides: strides.map(|elements| 2 * elements),
            of: [BOX_COLUMNS, y, z],
            nan_outside: !is_latents,
            promote: is_latents,
        };
        let rank = u64::from(RANK);
        let strides = [rank, rank * u64::from(groups.sizes[0])];
        let (base, latents) = (args.base.addr() as u64, args.latents.addr() as u64);
        let base = boxes(base, args.vocabulary, groups.strides, false).encode(context, false)?;
        let latents = boxes(latents, RANK, strides, true).encode(context, false)?;
        Ok(base.zip(latents).map(|(base, latents)| [base, latents]))
    }

    /// # Safety
    /// - As [`enqueue`](Self::enqueue).
    unsafe fn launch_maps(
        &self,
        stream: Stream<'_>,
        dependent: bool,
        maps: [[u64; 16]; 2],
    ) -> Result<(), DriverError> {
        let at = |address: u64| address as usize;
        let args = TensorMapsArgs::new(
            std::ptr::with_exposed_provenance_mut(at(self.maps.ptr() + 128)),
            (
                std::ptr::with_exposed_provenance_mut(at(self.keys.ptr())),
                self.keys.len() as u32,
            ),
            (
                std::ptr::with_exposed_provenance_mut(at(self.counters.ptr())),
                self.counters.len() as u32,
            ),
            maps,
        );
        let shape = LaunchShape {
            grid: [1, 1, 1],
            threads: readout_sm90::MAPS_THREADS,
            shared_bytes: 0,
            dependent,
        };
        // SAFETY: this object's memory, of the lengths given; the rest is the caller's contract.
        unsafe { self.write_maps.launch(stream, shape, args.words()) }
    }
}

/// How rows are put into groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Groups {
    count: u32,
    /// Rows of each.
    rows: u32,
    /// The arrays' second and third dimension, and the strides of the base logits in them, in elements.
    sizes: [u32; 2],
    strides: [u64; 2],
    /// A group's box in these dimensions, and the way to the next one.
    boxes: [u32; 2],
    step: [u32; 2],
}

impl Groups {
    /// 64 rows each where all rows have one distance, else as many whole requests as 64 rows hold. `None` if rows overlap or lie too far
    /// apart.
    fn of(args: &ReadoutArgs) -> Option<Self> {
        let (rows, slots) = (args.rows, args.slots);
        let requests = rows.checked_div(slots)?;
        let (between_requests, between_slots) = (args.request_stride, args.slot_stride);
        let even = between_slots.checked_mul(slots.into());
        let groups = if requests == 1 || slots == 1 || even == Some(between_requests) {
            let between = match (requests, slots) {
                (1, 1) => u64::from(args.vocabulary).next_multiple_of(8),
                (_, 1) => between_requests,
                _ => between_slots,
            };
            Self {
                count: rows.div_ceil(GROUP_ROWS),
                rows: GROUP_ROWS,
                sizes: [rows, 1],
                strides: [between, between.checked_mul(rows.into())?],
                boxes: [GROUP_ROWS, 1],
                step: [GROUP_ROWS, 0],
            }
        } else {
            let together = GROUP_ROWS.checked_div(slots)?;
            Self {
                count: requests.div_ceil(together.max(1)),
                rows: together * slots,
                sizes: [slots, requests],
                strides: [between_slots, between_requests],
                boxes: [slots, together],
                step: [0, together],
            }
        };
        let smallest = groups.strides[0].min(groups.strides[1]);
        let largest = groups.strides[0].max(groups.strides[1]);
        let fits = rows > 0
            && slots <= GROUP_ROWS
            && smallest >= args.vocabulary.into()
            && largest < 1 << 39
            && args.rows.is_multiple_of(slots);
        fits.then_some(groups)
    }
}

/// Of 16 tiles of w2, how many are kept in L2 from launch to launch, and whether the base logits are. For few rows up to 23 MB of w2. Three row
/// blocks get 33 MB: they read w2 at about the same time, and one finds what another has read. Measured on an H200, whose L2 holds
/// 60 MB; with more rows the base logits push out what is kept.
fn kept(groups: u32, rows: u32, vocabulary: u32, multiprocessors: u32) -> [u32; 2] {
    let (tiles, row_blocks) = match groups {
        ..=2 => (350, 1),
        7..=9 => (500, 3),
        _ => return [0, 0],
    };
    let others = vocabulary
        .div_ceil(TILE)
        .saturating_sub(2 * multiprocessors / row_blocks);
    let sixteenths = (16 * tiles / others.max(1)).min(16);
    let base_bytes = 2 * u64::from(rows) * u64::from(vocabulary);
    [sixteenths, u32::from(base_bytes <= 10_000_000)]
}

#[cfg(test)]
mod tests {
    use std::ptr::{null, null_mut};

    use super::*;

    fn args(requests: u32, slots: u32, [request_stride, slot_stride]: [u64; 2]) -> ReadoutArgs {
        ReadoutArgs {
            latents: null(),
            w2: null(),
            base: null(),
            request_stride,
            slot_stride,
            blocks: null_mut(),
            drafts: null_mut(),
            keys: null_mut(),
            arrived: null_mut(),
            flag: null(),
            changed: null_mut(),
            needed: null_mut(),
            open: null(),
            flat: null(),
            rows: requests * slots,
            slots,
            rank: RANK,
            vocabulary: 1000,
            aligned: 1,
        }
    }

    #[test]
    fn groups_cover_all_rows_once() {
        for slots in 1..=31 {
            for requests in [1, 2, 3, 4, 5, 63, 64, 65, 128] {
                for apart in [0, 8, 1000] {
                    let strides = [1000 * u64::from(slots) + apart, 1000];
                    let groups = Groups::of(&args(requests, slots, strides)).unwrap();
                    let [y, z] = groups.boxes;
                    assert_eq!(y * z, groups.rows);
                    assert!(groups.rows <= GROUP_ROWS);
                    assert_eq!(groups.sizes[0] * groups.sizes[1], requests * slots);
                    // One box after another along one dimension, each full in the other.
                    let [steps_y, steps_z] = groups.step;
                    let (along, step) = if steps_z == 0 {
                        (groups.sizes[0], steps_y)
                    } else {
                        assert_eq!((steps_y, y), (0, groups.sizes[0]));
                        (groups.sizes[1], steps_z)
                    };
                    assert_eq!(groups.count, along.div_ceil(step));
                    assert_eq!(groups.rows, step * if steps_z == 0 { 1 } else { y });
                }
            }
        }
    }

    #[test]
    fn rows_that_overlap_or_lie_too_far_apart_are_not_taken() {
        for strides in [
            [15_000, 999],
            [999, 1000],
            [1 << 39, 1000],
            [15_000, u64::MAX],
        ] {
            assert_eq!(Groups::of(&args(3, 15, strides)), None, "{strides:?}");
        }
        assert_eq!(Groups::of(&args(0, 15, [15_000, 1000])), None);
    }

    /// A GPU has a block for every row block, or the general kernel takes the call.
    #[test]
    fn the_variant_follows_the_rows() {
        let names = [1, 2, 3, 4, 5, 30].map(|groups| {
            let variant = readout_sm90::pick(groups, 132).unwrap();
            VARIANTS[variant].kernel.name.rsplit('_').next().unwrap()
        });
        assert_eq!(names, ["64", "128", "256", "256", "192", "192"]);
        assert_eq!(readout_sm90::pick(0, 132), None);
        assert_eq!(readout_sm90::pick(1000, 132), None);
    }

    #[test]
    fn what_is_kept_in_l2_fits_there() {
        let of = |requests: u32, vocabulary| {
            let rows = 15 * requests;
            kept(rows.div_ceil(GROUP_ROWS), rows, vocabulary, 132)
        };
        assert_eq!(of(1, 151_936), [6, 1]);
        assert_eq!(of(4, 151_936), [6, 0]);
        assert_eq!(of(8, 151_936), [6, 0]);
        assert_eq!(of(16, 151_936), [0, 0]);
        assert_eq!(of(32, 151_936), [7, 0]);
        assert_eq!(of(128, 151_936), [0, 0]);
        assert_eq!(of(1, 1 << 20), [0, 0]);
        assert_eq!(of(1, 32_000), [16, 1]);
    }
}
