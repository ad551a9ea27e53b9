//! Convolution over any number of spatial axes, and its two gradients, for `f32`, `f64` and (wrapping) `i64`.
//!
//! All tensors are dense and row-major: the input is `[batch, channels, spatial..]`, the weights `[out channels, channels /
//! groups, kernel..]`, the result `[batch, out channels, positions..]`. Read `form` first: how the input is copied such that
//! every kernel is a product of weights and vectors of positions; then `kernel`, the products themselves; `grad_input`
//! is the same kernel with strides and taps exchanged, `grad_weight` has dot products of its own.
//!
//! An output is summed over channels, then taps, in the order of the weights, whatever the blocks; so neither threads nor
//! batch neighbours change its bits. The sums of `grad_weight` are cut into parts by the sizes alone.

mod form;
mod grad_input;
mod grad_weight;
mod kernel;
mod lanes;

pub use self::lanes::Number;

use self::form::{AXES, Axis, FAR, Form};
use self::kernel::{Plan, Shape};
use crate::level::Level;
use crate::mem::{Buffer, Ptr, Scratch, ScratchSize};
use crate::pool::Pool;
pub use crate::sink::Sink;
use std::ops::Range;

/// The sizes of a convolution. Every list has an entry per spatial axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv<'a> {
    /// Images.
    pub batch: usize,
    /// Groups, which divide both kinds of channels; at least 1.
    pub groups: usize,
    /// Channels of the input.
    pub in_channels: usize,
    /// Channels of the result.
    pub out_channels: usize,
    /// The spatial sizes of the input.
    pub in_spatial: &'a [usize],
    /// The sizes of the kernel.
    pub kernel: &'a [usize],
    /// From position to position; at least 1.
    pub stride: &'a [usize],
    /// From tap to tap; at least 1.
    pub dilation: &'a [usize],
    /// Zeros before each axis; negative ones cut elements off.
    pub pad_lo: &'a [isize],
    /// Zeros behind each axis.
    pub pad_hi: &'a [isize],
}

/// One spatial axis of a convolution.
#[derive(Clone, Copy)]
struct Spatial {
    size: usize,
    out: usize,
    kernel: usize,
    stride: isize,
    dilation: isize,
    lo: isize,
    /// The distance of the taps in the kernel.
    pitch: usize,
}

/// Writes the results to memory, `[batch, channels, positions]`.
#[derive(Clone, Copy, Debug)]
pub struct Store<T> {
    /// The first result.
    pub y: *mut T,
    /// All output channels.
    pub channels: usize,
    /// All positions.
    pub positions: usize,
}

// SAFETY: the calls write to different places.
unsafe impl<T: Send> Sync for Store<T> {}

impl<T: Copy + Send> Sink<T> for Store<T> {
    unsafe fn block(
        &self,
        _: usize,
        batch: usize,
        channels: Range<usize>,
        positions: Range<usize>,
        acc: *mut T,
        stride: usize,
    ) {
        for (i, c) in channels.enumerate() {
            let to = (batch * self.channels + c) * self.positions + positions.start;
            // SAFETY: the block is readable, and its place in `y` is written by this call alone.
            unsafe { self.y.add(to).copy_from_nonoverlapping(acc.add(i * stride), positions.len()) };
        }
    }
}

/// Weights in the order in which the kernels of one level read them; from [`Conv::pack`].
#[derive(Debug)]
pub struct ConvWeights<T> {
    packed: Buffer,
    shape: Shape,
    of: std::marker::PhantomData<T>,
}

impl<T> ConvWeights<T> {
    /// Bytes that they take.
    pub fn bytes(&self) -> usize {
        self.packed.len()
    }
}

/// The weights of a convolution.
#[derive(Debug)]
pub enum Weights<'a, T> {
    /// As they are in the graph; packed in every run, in shared scratch.
    Plain(*const T),
    /// Packed before, for the same sizes (but for batch and input) and the same level.
    Packed(&'a ConvWeights<T>),
}

impl Conv<'_> {
    /// Whether the lists fit together and there are few enough axes (30). All other functions do nothing where this is not so.
    pub fn is_valid(&self) -> bool {
        let n = self.in_spatial.len();
        let lists =
            [self.kernel.len(), self.stride.len(), self.dilation.len(), self.pad_lo.len(), self.pad_hi.len()];
        n + 2 <= AXES
            && lists.iter().all(|l| *l == n)
            && self.stride.iter().chain(self.dilation).chain([&self.groups]).all(|s| *s > 0)
            && self.in_channels.is_multiple_of(self.groups)
            && self.out_channels.is_multiple_of(self.groups)
    }

    fn axes(&self) -> impl DoubleEndedIterator<Item = Spatial> + ExactSizeIterator + use<'_> {
        (0..self.in_spatial.len()).map(|i| {
            let of = |v: &[usize]| v.get(i).copied().unwrap_or(1);
            let pad = |v: &[isize]| v.get(i).copied().unwrap_or(0);
            let (size, kernel, stride, dilation) =
                (of(self.in_spatial), of(self.kernel), of(self.stride) as isize, of(self.dilation) as isize);
            let padded = size as isize + pad(self.pad_lo) + pad(self.pad_hi);
            let room = padded - (kernel as isize - 1) * dilation - 1;
            let out = (room.div_euclid(stride) + 1).max(0) as usize;
            let pitch = self.kernel.iter().skip(i + 1).product();
            Spatial { size, out, kernel, stride, dilation, lo: pad(self.pad_lo), pitch }
        })
    }

    /// The spatial sizes of the result.
    pub fn out_spatial(&self) -> impl Iterator<Item = usize> {
        self.axes().map(|a| a.out)
    }
    /// Positions of the result.
    pub fn positions(&self) -> usize {
        self.out_spatial().product()
    }
    fn taps(&self) -> usize {
        self.kernel.iter().product()
    }
    /// Numbers of the input.
    pub fn inputs(&self) -> usize {
        self.batch * self.in_channels * self.in_spatial.iter().product::<usize>()
    }
    /// Numbers of the weights.
    pub fn weights(&self) -> usize {
        self.out_channels * (self.in_channels / self.groups.max(1)) * self.taps()
    }
    /// Numbers of the result.
    pub fn outputs(&self) -> usize {
        self.batch * self.out_channels * self.positions()
    }

    fn form(&self) -> Option<Form> {
        let (groups, sizes) = (self.groups, self.is_valid());
        let dims =
            sizes.then(|| [self.batch, groups, self.in_channels / groups, self.out_channels / groups])?;
        let axes = self.axes().map(|a| Axis {
            size: a.size as isize,
            out: a.out,
            stride: a.stride,
            taps: a.kernel,
            shift: -a.lo,
            step: a.dilation,
            kernel_stride: a.pitch,
            dropped: 0,
        });
        Form::new(dims, axes)
    }

    /// Packs weights that stay the same over many runs, for inputs of all sizes and batches. Gives `None` if the memory cannot
    /// be had, or where a kernel with its dilation spans more than 1024 elements of an axis: what is packed then depends on
    /// the input.
    ///
    /// # Safety
    /// `w` points to the weights.
    pub unsafe fn pack<T: Number>(&self, level: Level, pool: &Pool, w: *const T) -> Option<ConvWeights<T>> {
        let (form, shape) = (self.form()?, Shape::of::<T>(level));
        if self.axes().any(|a| (a.kernel as isize - 1) * a.dilation >= FAR) {
            return None;
        }
        let packed = Buffer::try_new(self.out_channels * form.depth() * size_of::<T>())?;
        // SAFETY: the caller promises the weights, and the buffer has room for all that are read.
        unsafe { self.pack_to(pool, &form, shape, w, packed.ptr().cast()) };
        Some(ConvWeights { packed, shape, of: std::marker::PhantomData })
    }

    unsafe fn pack_to<T: Number>(&self, pool: &Pool, form: &Form, shape: Shape, w: *const T, to: *mut T) {
        let (taps, row) = (self.taps(), self.taps() * form.channels);
        // SAFETY: rows, channels and taps are within the weights.
        unsafe { kernel::pack(pool, form, shape, (w, taps), |i| i * row, to) };
    }

    /// The scratch of [`Conv::run`]; packed weights need none of the shared part.
    pub fn scratch<T: Number>(&self, level: Level, packed: bool) -> ScratchSize {
        let Some(form) = self.form() else { return ScratchSize::default() };
        let weights = if packed { 0 } else { self.out_channels * form.depth() * size_of::<T>() };
        ScratchSize { shared: weights, ..Plan::new::<T>(form, level, 1).scratch::<T>() }
    }

    /// The convolution; every result reaches the sink once, in rows of an output channel and columns of (flat)
    /// positions.
    ///
    /// # Safety
    /// `x` and `w` point to dense tensors of these sizes, and what the sink writes to overlaps neither.
    pub unsafe fn run<T: Number>(
        &self,
        level: Level,
        pool: &Pool,
        scratch: &Scratch,
        x: *const T,
        w: Weights<'_, T>,
        sink: &dyn Sink<T>,
    ) {
        let Some(form) = self.form() else { return };
        let (n, shape) = (self.out_channels * form.depth(), Shape::of::<T>(level));
        let weights = match w {
            Weights::Packed(w) => {
                assert!(
                    w.shape == shape && w.packed.len() == n * size_of::<T>(),
                    "weights packed for another convolution"
                );
                w.packed.ptr().cast::<T>().cast_const()
            }
            Weights::Plain(w) => {
                let to = scratch.shared::<T>(n);
                // SAFETY: the caller promises the weights, and the scratch has room for all of them.
                unsafe { self.pack_to(pool, &form, shape, w, to) };
                to
            }
        };
        // SAFETY: the caller promises the input and the scratch; the weights have just been packed or checked.
        unsafe { Plan::new::<T>(form, level, pool.threads()).run(level, pool, scratch, (x, weights), sink) };
    }

    /// The convolution, into memory.
    ///
    /// # Safety
    /// As [`Conv::run`], where `y` is a dense tensor of the result's sizes.
    pub unsafe fn run_to<T: Number>(
        &self,
        level: Level,
        pool: &Pool,
        scratch: &Scratch,
        x: *const T,
        w: Weights<'_, T>,
        y: *mut T,
    ) {
        let store = Store { y, channels: self.out_channels, positions: self.positions() };
        // SAFETY: the caller keeps the contract of `run`.
        unsafe { self.run(level, pool, scratch, x, w, &store) };
    }
}

/// Writes zeros.
///
/// # Safety
/// `to` has room for `n` numbers that nobody else touches.
unsafe fn clear<T: Number>(pool: &Pool, to: *mut T, n: usize) {
    const PIECE: usize = 1 << 16;
    let to = Ptr(to);
    pool.run(n.div_ceil(PIECE), |i, _| {
        let all = to;
        for j in i * PIECE..((i + 1) * PIECE).min(n) {
            // SAFETY: the caller promises the room.
            unsafe { all.0.add(j).write(T::ZERO) };
        }
    });
}
