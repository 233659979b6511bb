//! Device memory of the emulator.

use super::region::{Region, register, unregister};
use crate::Element;
use std::marker::PhantomData;
use std::sync::Arc;

/// Device memory: `len` elements that kernels reach by [`as_ptr`](Self::as_ptr).
#[derive(Debug)]
pub struct Buffer<T: Element> {
    region: Arc<Region>,
    len: usize,
    marker: PhantomData<T>,
}

impl<T: Element> Buffer<T> {
    /// `len` zeros.
    pub fn new(len: usize) -> Self {
        Self::with_state(len, true)
    }

    /// `len` elements that are an error to read before they are written.
    pub fn uninit(len: usize) -> Self {
        Self::with_state(len, false)
    }

    /// A copy of `values`.
    pub fn from_slice(values: &[T]) -> Self {
        let mut buffer = Self::new(values.len());
        buffer.write_at(0, values);
        buffer
    }

    fn with_state(len: usize, written: bool) -> Self {
        let bytes = len
            .checked_mul(size_of::<T>())
            .expect("a buffer smaller than the address space");
        let region = Arc::new(Region::new(bytes, written));
        register(&region);
        Self {
            region,
            len,
            marker: PhantomData,
        }
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first element's address, 256-byte aligned: what a kernel's pointer argument takes.
    pub fn as_ptr(&self) -> *mut T {
        self.region.base().cast()
    }

    /// [`as_ptr`](Self::as_ptr) as an argument of [`launch`](super::launch::launch).
    pub fn arg(&self) -> u64 {
        self.as_ptr().expose_provenance() as u64
    }

    /// A copy of the elements. Unwritten ones are bytes 0xa5.
    pub fn read(&self) -> Vec<T> {
        (0..self.len).map(|i| self.get(i)).collect()
    }

    /// Element `i`.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn get(&self, i: usize) -> T {
        assert!(i < self.len, "element {i} of a buffer of {}", self.len);
        // SAFETY: inside the region, which is aligned for every element type.
        unsafe { T::load(self.region.base().add(i * size_of::<T>())) }
    }

    /// Copies `values` to the elements from the first on.
    ///
    /// # Panics
    ///
    /// If they do not fit.
    pub fn write(&mut self, values: &[T]) {
        self.write_at(0, values);
    }

    /// Copies `values` to the elements from `start` on.
    ///
    /// # Panics
    ///
    /// If they do not fit.
    pub fn write_at(&mut self, start: usize, values: &[T]) {
        let fits = start
            .checked_add(values.len())
            .is_some_and(|end| end <= self.len);
        assert!(
            fits,
            "{} elements at {start} of a buffer of {}",
            values.len(),
            self.len
        );
        for (i, &value) in (start..).zip(values) {
            let at = i * size_of::<T>();
            // SAFETY: inside the region, which is aligned for every element type.
            unsafe { value.store(self.region.base().add(at)) };
            self.region.set_written(at, size_of::<T>());
        }
    }

    /// Makes all elements unwritten again, so that a launch that does not write them all shows.
    pub fn poison(&mut self) {
        self.region.poison(self.region.bytes());
    }

    /// Whether element `i` was written since the buffer was made or poisoned.
    pub fn is_written(&self, i: usize) -> bool {
        i < self.len && self.region.is_written(i * size_of::<T>(), size_of::<T>())
    }
}

impl<T: Element> Drop for Buffer<T> {
    fn drop(&mut self) {
        unregister(&self.region);
    }
}
