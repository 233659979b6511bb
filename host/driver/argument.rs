//! Checks of the device arrays that an engine hands in, by the argument's name.

use super::{DeviceSlice, DeviceSliceMut, check_view};
use crate::error::{Error, Result};

/// An array as the checks see it.
pub(crate) struct Extent {
    pub(crate) name: &'static str,
    pub(crate) ptr: u64,
    pub(crate) bytes: u64,
}

impl Extent {
    /// Refuses an output that overlaps another array.
    pub(crate) fn apart_from(&self, other: &Self) -> Result<()> {
        if self.ptr < other.ptr + other.bytes && other.ptr < self.ptr + self.bytes {
            return Err(Error::out_of_range(
                self.name,
                format_args!("memory apart from {}", other.name),
                format_args!(
                    "{:#x}..{:#x}, which overlaps {:#x}..{:#x}",
                    self.ptr,
                    self.ptr + self.bytes,
                    other.ptr,
                    other.ptr + other.bytes
                ),
                "outputs are written while inputs are still read: give them memory of their own",
            ));
        }
        Ok(())
    }
}

/// An input's extent.
pub(crate) fn read<T>(name: &'static str, array: &DeviceSlice<'_, T>) -> Extent {
    Extent {
        name,
        ptr: array.ptr(),
        bytes: (array.len() * size_of::<T>()) as u64,
    }
}

/// Checks an input's address.
pub(crate) fn check_read<T>(name: &'static str, array: &DeviceSlice<'_, T>) -> Result<()> {
    check::<T>(name, array.ptr(), array.len() as u64)
}

/// Checks an output's address, and that it holds `want` elements.
pub(crate) fn check_write<T>(
    name: &'static str,
    array: &DeviceSliceMut<'_, T>,
    want: usize,
    hint: &'static str,
) -> Result<()> {
    at_least(name, array.len(), want, hint)?;
    check::<T>(name, array.ptr(), array.len() as u64)
}

/// Checks an array's address.
pub(crate) fn check<T>(name: &'static str, ptr: u64, len: u64) -> Result<()> {
    check_view::<T>(ptr, len).map_err(|got| {
        Error::out_of_range(
            name,
            format_args!(
                "the device address of {len} elements, aligned to {} bytes",
                align_of::<T>()
            ),
            got,
            "pass the array's device pointer and its length in elements",
        )
    })
}

/// Checks an array's length.
pub(crate) fn at_least(
    name: &'static str,
    got: usize,
    want: usize,
    hint: &'static str,
) -> Result<()> {
    if got >= want {
        return Ok(());
    }
    Err(Error::length(
        name,
        format_args!("at least {want}"),
        got,
        hint,
    ))
}
