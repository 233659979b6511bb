//! Memory of our own: on the device, and page-locked on the host.

use std::ffi::c_void;
use std::marker::PhantomData;

use bytemuck::Pod;
use cust::sys::CUdeviceptr;

use super::{Context, DeviceRows, DeviceSlice, DeviceSliceMut, DriverError, Stream};

/// Device memory of our own, freed on drop.
///
/// Dropping waits for the context's work, so that nothing enqueued still uses the memory; do not drop one while a
/// stream is being captured, nor before the last replay of a graph that captured its address.
#[derive(Debug)]
pub struct DeviceBuffer<T> {
    context: Context,
    ptr: CUdeviceptr,
    len: usize,
    of: PhantomData<T>,
}

impl<T: Pod> DeviceBuffer<T> {
    /// `len` elements, each 32-bit word of them `word`. `name` goes into the error.
    pub fn filled(
        context: &Context,
        stream: Stream<'_>,
        len: usize,
        word: u32,
        name: &'static str,
    ) -> Result<Self, DriverError> {
        const { assert!(size_of::<T>().is_multiple_of(4)) };
        let mut buffer = Self::allocate(context, len, name)?;
        buffer.fill(stream, 0, len, word)?;
        Ok(buffer)
    }

    /// `len` elements, all zero. `name` goes into the error.
    pub fn zeroed(
        context: &Context,
        stream: Stream<'_>,
        len: usize,
        name: &'static str,
    ) -> Result<Self, DriverError> {
        Self::filled(context, stream, len, 0, name)
    }

    /// A copy of `data`.
    pub fn from_slice(
        context: &Context,
        stream: Stream<'_>,
        data: &[T],
        name: &'static str,
    ) -> Result<Self, DriverError> {
        let mut buffer = Self::allocate(context, data.len(), name)?;
        buffer.write(stream, 0, data)?;
        Ok(buffer)
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of device memory.
    pub fn bytes(&self) -> u64 {
        (self.len * size_of::<T>()) as u64
    }

    /// The device address.
    pub fn ptr(&self) -> u64 {
        self.ptr
    }

    /// The whole buffer, for work that reads it.
    pub fn slice(&self) -> DeviceSlice<'_, T> {
        // SAFETY: our own allocation of this length; dropping it, which the view's lifetime puts later, waits for the
        // work.
        unsafe { DeviceSlice::from_raw(self.ptr, self.len) }
    }

    /// The whole buffer, for work that writes it.
    pub fn slice_mut(&mut self) -> DeviceSliceMut<'_, T> {
        // SAFETY: as in `slice`; the view borrows the buffer alone.
        unsafe { DeviceSliceMut::from_raw(self.ptr, self.len) }
    }

    /// The first `len` elements, for work that reads them; fewer if there are fewer.
    pub fn first(&self, len: usize) -> DeviceSlice<'_, T> {
        // SAFETY: as in `slice`, and no longer than the buffer.
        unsafe { DeviceSlice::from_raw(self.ptr, len.min(self.len)) }
    }

    /// The buffer as rows of `stride` elements, for work that reads it.
    pub fn rows(&self, stride: usize) -> DeviceRows<'_, T> {
        let rows = self.len.checked_div(stride).unwrap_or(0);
        // SAFETY: as in `slice`; `rows * stride` elements fit.
        unsafe { DeviceRows::from_raw(self.ptr, rows, stride) }
    }

    /// Enqueues setting every 32-bit word of `len` elements from `offset` on to `word`.
    pub fn fill(
        &mut self,
        stream: Stream<'_>,
        offset: usize,
        len: usize,
        word: u32,
    ) -> Result<(), DriverError> {
        const { assert!(size_of::<T>().is_multiple_of(4)) };
        self.inside("offset + len", offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let _current = self.context.enter()?;
        let driver = self.context.driver();
        let words = len * (size_of::<T>() / 4);
        // SAFETY: our own allocation, and that many words of it from `offset` on (checked above).
        let code = unsafe {
            (driver.api().cuMemsetD32Async)(
                self.ptr + (offset * size_of::<T>()) as u64,
                word,
                words,
                stream.raw(),
            )
        };
        driver.check("cuMemsetD32Async", code, || {
            format!("filling {words} words of GPU memory")
        })
    }

    /// Copies `data` to `offset..`; waits for the stream.
    pub fn write(
        &mut self,
        stream: Stream<'_>,
        offset: usize,
        data: &[T],
    ) -> Result<(), DriverError> {
        // SAFETY: the data is borrowed until the wait below.
        let copied = unsafe { self.write_async(stream, offset, data) };
        // Wait even after an error: nothing may read `data` once it is given back.
        let waited = stream.synchronize(&self.context);
        copied.and(waited)
    }

    /// Enqueues copying `data` to `offset..`.
    ///
    /// # Safety
    /// - `data` stays allocated and unchanged until the copy has completed.
    pub unsafe fn write_async(
        &mut self,
        stream: Stream<'_>,
        offset: usize,
        data: &[T],
    ) -> Result<(), DriverError> {
        self.inside("offset + data.len()", offset, data.len())?;
        if data.is_empty() {
            return Ok(());
        }
        let _current = self.context.enter()?;
        let driver = self.context.driver();
        // SAFETY: source and target hold that many bytes (checked above), and the caller keeps the source.
        let code = unsafe {
            (driver.api().cuMemcpyHtoDAsync_v2)(
                self.ptr + (offset * size_of::<T>()) as u64,
                data.as_ptr().cast(),
                size_of_val(data),
                stream.raw(),
            )
        };
        driver.check("cuMemcpyHtoDAsync_v2", code, || {
            format!("copying {} bytes to the GPU", size_of_val(data))
        })
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// Copies `len` elements from `offset` on to the host; waits for the stream.
    pub fn read(
        &self,
        stream: Stream<'_>,
        offset: usize,
        len: usize,
    ) -> Result<Vec<T>, DriverError> {
        self.inside("offset + len", offset, len)?;
        let mut data = vec![T::zeroed(); len];
        self.read_into(stream, offset, &mut data)?;
        Ok(data)
    }

    /// Copies elements from `offset` on to `data`; waits for the stream.
    pub fn read_into(
        &self,
        stream: Stream<'_>,
        offset: usize,
        data: &mut [T],
    ) -> Result<(), DriverError> {
        // SAFETY: the target is borrowed until the wait below.
        let copied = unsafe { self.read_async(stream, offset, data) };
        // Wait even after an error: nothing may write to `data` once it is given back.
        let waited = stream.synchronize(&self.context);
        copied.and(waited)
    }

    /// Enqueues copying elements from `offset` on to `data`.
    ///
    /// # Safety
    /// - `data` stays allocated, and is neither read nor written, until the copy has completed.
    pub unsafe fn read_async(
        &self,
        stream: Stream<'_>,
        offset: usize,
        data: &mut [T],
    ) -> Result<(), DriverError> {
        self.inside("offset + data.len()", offset, data.len())?;
        if data.is_empty() {
            return Ok(());
        }
        let _current = self.context.enter()?;
        let driver = self.context.driver();
        // SAFETY: source and target hold that many bytes (checked above), and the caller keeps the target.
        let code = unsafe {
            (driver.api().cuMemcpyDtoHAsync_v2)(
                data.as_mut_ptr().cast(),
                self.ptr + (offset * size_of::<T>()) as u64,
                size_of_val(data),
                stream.raw(),
            )
        };
        driver.check("cuMemcpyDtoHAsync_v2", code, || {
            format!("copying {} bytes from the GPU", size_of_val(data))
        })
    }

    /// The whole buffer's contents; waits for the stream.
    pub fn to_vec(&self, stream: Stream<'_>) -> Result<Vec<T>, DriverError> {
        self.read(stream, 0, self.len)
    }

    fn allocate(context: &Context, len: usize, name: &'static str) -> Result<Self, DriverError> {
        let bytes = len
            .checked_mul(size_of::<T>())
            .ok_or_else(|| DriverError::Argument {
                argument: name,
                expected: "a size in bytes that fits 64 bits".into(),
                got: format!("{len} elements of {} bytes", size_of::<T>()),
                hint: "ask for less",
            })?;
        let mut ptr = 0;
        if bytes > 0 {
            let _current = context.enter()?;
            let driver = context.driver();
            // SAFETY: the call writes one address; a context is current.
            let code = unsafe { (driver.api().cuMemAlloc_v2)(&raw mut ptr, bytes) };
            driver.check("cuMemAlloc_v2", code, || {
                format!("allocating {bytes} bytes of GPU memory for {name}")
            })?;
        }
        Ok(Self {
            context: context.clone(),
            ptr,
            len,
            of: PhantomData,
        })
    }

    fn inside(&self, argument: &'static str, offset: usize, len: usize) -> Result<(), DriverError> {
        if offset <= self.len && len <= self.len - offset {
            return Ok(());
        }
        Err(DriverError::Argument {
            argument,
            expected: format!("at most {}, the buffer's length", self.len),
            got: format!("{offset} + {len}"),
            hint: "stay inside the buffer",
        })
    }
}

impl<T> Drop for DeviceBuffer<T> {
    fn drop(&mut self) {
        if self.ptr == 0 {
            return;
        }
        let Ok(_current) = self.context.enter() else {
            return;
        };
        let api = self.context.driver().api();
        // SAFETY: our own allocation, freed once, after the work that may use it. Errors leave nothing to do.
        unsafe {
            let _ = (api.cuCtxSynchronize)();
            let _ = (api.cuMemFree_v2)(self.ptr);
        }
    }
}

/// Page-locked host memory: copies to and from it are asynchronous, and may be captured in a graph.
#[derive(Debug)]
pub struct PinnedBuffer<T> {
    context: Context,
    ptr: *mut T,
    len: usize,
}

// SAFETY: owns plain memory that any thread may use.
unsafe impl<T: Send> Send for PinnedBuffer<T> {}

impl<T: Pod> PinnedBuffer<T> {
    /// `len` zeros.
    pub fn zeroed(context: &Context, len: usize) -> Result<Self, DriverError> {
        let mut ptr: *mut c_void = std::ptr::null_mut();
        let bytes = len.saturating_mul(size_of::<T>());
        if bytes > 0 {
            let _current = context.enter()?;
            let driver = context.driver();
            // SAFETY: the call writes one address; a context is current.
            let code = unsafe { (driver.api().cuMemHostAlloc)(&raw mut ptr, bytes, 0) };
            driver.check("cuMemHostAlloc", code, || {
                format!("allocating {bytes} bytes of page-locked memory")
            })?;
            // SAFETY: a fresh allocation of that many bytes.
            unsafe { ptr.cast::<u8>().write_bytes(0, bytes) };
        }
        Ok(Self {
            context: context.clone(),
            ptr: ptr.cast(),
            len,
        })
    }

    /// The contents.
    pub fn as_slice(&self) -> &[T] {
        if self.ptr.is_null() {
            return &[];
        }
        // SAFETY: our own allocation of `len` initialised elements (any bytes are a `Pod`).
        unsafe { std::slice::from_raw_parts(self.ptr, self.len) }
    }

    /// The contents, to write.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        if self.ptr.is_null() {
            return &mut [];
        }
        // SAFETY: as in `as_slice`, and borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.ptr, self.len) }
    }
}

impl<T> Drop for PinnedBuffer<T> {
    fn drop(&mut self) {
        if self.ptr.is_null() {
            return;
        }
        let Ok(_current) = self.context.enter() else {
            return;
        };
        let api = self.context.driver().api();
        // SAFETY: our own allocation, freed once, after the copies that may use it.
        unsafe {
            let _ = (api.cuCtxSynchronize)();
            let _ = (api.cuMemFreeHost)(self.ptr.cast());
        }
    }
}
