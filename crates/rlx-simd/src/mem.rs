//! Memory: views with strides, aligned buffers, and the scratch space of the workers.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// The alignment of every buffer: a cache line, and the widest vector.
pub const ALIGN: usize = 64;

/// A strided view of memory that somebody else keeps alive. Strides count elements and may be 0 or negative.
///
/// Copying it copies the pointer; a kernel that writes through views is `unsafe` and says which views may overlap.
#[derive(Debug)]
pub struct View<T, const R: usize> {
    /// The element at index 0.
    pub ptr: *mut T,
    /// The sizes of the axes.
    pub shape: [usize; R],
    /// The distance between neighbours along each axis, in elements.
    pub strides: [isize; R],
}

impl<T, const R: usize> Clone for View<T, R> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T, const R: usize> Copy for View<T, R> {}

// SAFETY: a view is only an address; whoever reads or writes through it does so in an unsafe block with its own reason.
unsafe impl<T, const R: usize> Send for View<T, R> {}
// SAFETY: as above.
unsafe impl<T, const R: usize> Sync for View<T, R> {}

impl<T, const R: usize> View<T, R> {
    /// A row-major view.
    pub fn dense(ptr: *mut T, shape: [usize; R]) -> View<T, R> {
        let mut strides = [0; R];
        let mut n = 1isize;
        for (s, d) in strides.iter_mut().zip(shape).rev() {
            *s = n;
            n *= d as isize;
        }
        View { ptr, shape, strides }
    }

    /// The address of an element.
    ///
    /// # Safety
    /// The index is within the shape, and the view within its memory.
    #[inline(always)]
    pub unsafe fn at(&self, index: [usize; R]) -> *mut T {
        let mut offset = 0isize;
        for (i, s) in index.into_iter().zip(self.strides) {
            offset += i as isize * s;
        }
        // SAFETY: the caller promises that the element is within the memory.
        unsafe { self.ptr.offset(offset) }
    }
}

/// An address that may cross threads.
#[derive(Debug)]
pub struct Ptr<T>(pub *mut T);

impl<T> Clone for Ptr<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Ptr<T> {}

impl<T> Ptr<T> {
    /// The address of the element `n` places on.
    ///
    /// # Safety
    /// It is within the same memory.
    pub unsafe fn add(self, n: usize) -> Ptr<T> {
        // SAFETY: as promised by the caller.
        Ptr(unsafe { self.0.add(n) })
    }
}
// SAFETY: an address alone does nothing; every use through it gives its own reason.
unsafe impl<T> Send for Ptr<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Ptr<T> {}

/// Zeroed bytes at a multiple of [`ALIGN`].
pub struct Buffer {
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: the buffer owns its memory, like a `Vec<u8>`.
unsafe impl Send for Buffer {}
// SAFETY: as above; shared access only reads.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// That many zeroed bytes, or `None` if they cannot be had.
    pub fn try_new(len: usize) -> Option<Buffer> {
        if len == 0 {
            return Some(Buffer { ptr: NonNull::<Align>::dangling().cast(), len });
        }
        let layout = Layout::from_size_align(len, ALIGN).ok()?;
        // SAFETY: the layout is not empty.
        NonNull::new(unsafe { alloc_zeroed(layout) }).map(|ptr| Buffer { ptr, len })
    }

    /// That many zeroed bytes.
    pub fn new(len: usize) -> Buffer {
        Buffer::try_new(len).unwrap_or_else(|| {
            handle_alloc_error(Layout::from_size_align(len, ALIGN).unwrap_or(Layout::new::<u8>()))
        })
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// The address.
    pub fn ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the buffer owns that many initialised bytes.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
    /// The bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

#[repr(align(64))]
struct Align;

impl Drop for Buffer {
    fn drop(&mut self) {
        if let (true, Ok(layout)) = (self.len > 0, Layout::from_size_align(self.len, ALIGN)) {
            // SAFETY: allocated with the same layout.
            unsafe { dealloc(self.ptr.as_ptr(), layout) }
        }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}

/// Scratch space: a piece for each worker, and one that all share. The caller allocates it once, as large as the largest
/// kernel asks (`scratch_bytes` of each kernel), so that a run allocates nothing.
#[derive(Clone, Copy, Debug)]
pub struct Scratch {
    base: Ptr<u8>,
    workers: usize,
    each: usize,
    shared: usize,
}

/// How much scratch a kernel needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScratchSize {
    /// Bytes for each worker.
    pub each: usize,
    /// Bytes that the workers share, for partial results.
    pub shared: usize,
}

impl ScratchSize {
    /// Enough for either.
    pub fn max(self, other: ScratchSize) -> ScratchSize {
        ScratchSize { each: self.each.max(other.each), shared: self.shared.max(other.shared) }
    }
    /// The bytes of a buffer for that many workers.
    pub fn total(self, workers: usize) -> usize {
        round_up(self.each) * workers + round_up(self.shared)
    }
}

/// The next multiple of [`ALIGN`].
pub fn round_up(n: usize) -> usize {
    n.div_ceil(ALIGN) * ALIGN
}

impl Scratch {
    /// Scratch space within memory of at least `size.total(workers)` bytes, aligned to [`ALIGN`].
    ///
    /// # Safety
    /// The memory stays valid, and nothing else touches it, as long as the value is used.
    pub unsafe fn new(base: *mut u8, size: ScratchSize, workers: usize) -> Scratch {
        Scratch { base: Ptr(base), workers, each: round_up(size.each), shared: round_up(size.shared) }
    }

    /// The piece of a worker, as elements: `len` of them must fit.
    #[inline]
    pub fn each<T>(&self, worker: usize, len: usize) -> *mut T {
        assert!(
            worker < self.workers && len * size_of::<T>() <= self.each,
            "scratch of a worker is too small"
        );
        self.base.0.wrapping_add(worker * self.each).cast()
    }

    /// The shared piece, as elements: `len` of them must fit.
    #[inline]
    pub fn shared<T>(&self, len: usize) -> *mut T {
        assert!(len * size_of::<T>() <= self.shared, "shared scratch is too small");
        self.base.0.wrapping_add(self.workers * self.each).cast()
    }

    /// Bytes of the piece of a worker.
    pub fn each_bytes(&self) -> usize {
        self.each
    }
}
