//! Tensor maps: what TMA needs to know of an array.

use std::ffi::{c_int, c_uint};

use super::{Context, DriverError};

/// A bf16 array of up to three dimensions, the first contiguous, and the boxes that are copied of it with 128-byte swizzle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Boxes {
    /// A multiple of 16.
    pub(crate) address: u64,
    /// Elements in each dimension.
    pub(crate) sizes: [u64; 3],
    /// Bytes from element to element in the second and third dimension, multiples of 16.
    pub(crate) strides: [u64; 2],
    /// Elements of a box in each dimension; the first 64, which are 128 bytes.
    pub(crate) of: [u32; 3],
    /// Whether elements outside the array arrive as NaN, not as zeros.
    pub(crate) nan_outside: bool,
    /// Whether L2 fetches 256 bytes where less is asked for.
    pub(crate) promote: bool,
}

impl Boxes {
    /// The map of an array of the first two dimensions alone, if `planar`, or of all three. `None` where the driver is older than
    /// CUDA 12.0 or the array is not one that TMA takes.
    ///
    /// # Errors
    /// The driver's if the context cannot be made current.
    pub(crate) fn encode(
        &self,
        context: &Context,
        planar: bool,
    ) -> Result<Option<[u64; 16]>, DriverError> {
        let Some(encode) = context.driver().api().cuTensorMapEncodeTiled else {
            return Ok(None);
        };
        let _current = context.enter()?;
        let mut map = TensorMapRaw([0; 16]);
        let steps = [1; 3];
        // SAFETY: the map has the size and alignment that the driver asks for, and the arrays one element for each of up to three
        // dimensions. The address is only put into the map.
        let code = unsafe {
            encode(
                &raw mut map,
                BFLOAT16,
                if planar { 2 } else { 3 },
                self.address,
                self.sizes.as_ptr(),
                self.strides.as_ptr(),
                self.of.as_ptr(),
                steps.as_ptr(),
                NO_INTERLEAVE,
                SWIZZLE_128_BYTES,
                if self.promote {
                    L2_256_BYTES
                } else {
                    L2_AS_ASKED
                },
                if self.nan_outside {
                    NAN_OUTSIDE
                } else {
                    ZEROS_OUTSIDE
                },
            )
        };
        Ok((code == 0).then_some(map.0))
    }
}

/// A `CUtensorMap`.
#[repr(C, align(64))]
pub(crate) struct TensorMapRaw([u64; 16]);

// CUtensorMapDataType, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill
const BFLOAT16: c_int = 9;
const NO_INTERLEAVE: c_int = 0;
const SWIZZLE_128_BYTES: c_int = 3;
const L2_AS_ASKED: c_int = 0;
const L2_256_BYTES: c_int = 3;
const ZEROS_OUTSIDE: c_int = 0;
const NAN_OUTSIDE: c_int = 1;

/// The type of `cuTensorMapEncodeTiled`'s sizes of boxes.
const _: () = assert!(size_of::<c_uint>() == size_of::<u32>());
