//! Views of device memory, anyone's.

use std::marker::PhantomData;

/// `len` elements in device memory that work will read.
///
/// The view is plain data: where it is handed in, its pointer, alignment and length are checked; what lies behind it
/// is the promise of whoever made it.
#[derive(Clone, Copy, Debug)]
pub struct DeviceSlice<'a, T> {
    ptr: u64,
    len: usize,
    of: PhantomData<&'a [T]>,
}

impl<'a, T> DeviceSlice<'a, T> {
    /// A view of an engine's memory (`ptr` is a `CUdeviceptr`).
    ///
    /// # Safety
    /// - `ptr` is the device address of `len` elements of `T`, readable in the context it will be used with.
    /// - They stay allocated until the work enqueued with this view, and every replay of a graph that captured it,
    ///   has completed.
    pub const unsafe fn from_raw(ptr: u64, len: usize) -> Self {
        Self {
            ptr,
            len,
            of: PhantomData,
        }
    }

    /// The device address.
    pub fn ptr(&self) -> u64 {
        self.ptr
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// `len` elements in device memory that work will write.
#[derive(Debug)]
pub struct DeviceSliceMut<'a, T> {
    ptr: u64,
    len: usize,
    of: PhantomData<&'a mut [T]>,
}

impl<'a, T> DeviceSliceMut<'a, T> {
    /// A view of an engine's memory (`ptr` is a `CUdeviceptr`).
    ///
    /// # Safety
    /// - `ptr` is the device address of `len` elements of `T`, writable in the context it will be used with.
    /// - They stay allocated until the work enqueued with this view, and every replay of a graph that captured it,
    ///   has completed.
    /// - Until then nothing else reads or writes them, except work that the same stream orders.
    pub const unsafe fn from_raw(ptr: u64, len: usize) -> Self {
        Self {
            ptr,
            len,
            of: PhantomData,
        }
    }

    /// The device address.
    pub fn ptr(&self) -> u64 {
        self.ptr
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// `rows` rows in device memory, each starting `stride` elements after the one before.
#[derive(Clone, Copy, Debug)]
pub struct DeviceRows<'a, T> {
    ptr: u64,
    rows: usize,
    stride: usize,
    of: PhantomData<&'a [T]>,
}

impl<'a, T> DeviceRows<'a, T> {
    /// A view of an engine's memory (`ptr` is a `CUdeviceptr`, `stride` counts elements).
    ///
    /// # Safety
    /// - `ptr` is the device address of `rows * stride` elements of `T`, readable in the context it will be used
    ///   with.
    /// - They stay allocated until the work enqueued with this view, and every replay of a graph that captured it,
    ///   has completed.
    pub const unsafe fn from_raw(ptr: u64, rows: usize, stride: usize) -> Self {
        Self {
            ptr,
            rows,
            stride,
            of: PhantomData,
        }
    }

    /// The device address of the first row.
    pub fn ptr(&self) -> u64 {
        self.ptr
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements from one row's start to the next one's.
    pub fn stride(&self) -> usize {
        self.stride
    }
}

/// Whether `len` elements of `T` at an address can be; else what is wrong with it.
pub(crate) fn check_view<T>(ptr: u64, len: u64) -> Result<(), String> {
    let bytes = len.checked_mul(size_of::<T>() as u64).ok_or_else(|| {
        format!(
            "{len} elements of {} bytes, which overflows",
            size_of::<T>()
        )
    })?;
    if len > 0 && ptr == 0 {
        return Err("a null pointer".into());
    }
    if !ptr.is_multiple_of(align_of::<T>() as u64) {
        return Err(format!(
            "address {ptr:#x}, which is not aligned to {} bytes",
            align_of::<T>()
        ));
    }
    if ptr.checked_add(bytes).is_none() {
        return Err(format!(
            "{bytes} bytes at {ptr:#x}, past the end of the address space"
        ));
    }
    Ok(())
}
