//! A program bound to sizes: every kernel with its sizes, every address as a place and an offset.

use crate::kernels;
use rlx_compile::plan::Layout;
use rlx_compile::program::{Call, Inst, Kernel, Place, Program, Work, fault};
use rlx_ir::dim::Bindings;
use rlx_ir::{Code, DType, Error, Result};
use rlx_simd::conv::ConvWeights;
use rlx_simd::gemm::{PackKind, PackedB, int8};
use rlx_simd::level::Level;
use rlx_simd::mem::{Buffer, Ptr, Scratch, ScratchSize};
use rlx_simd::pool::Pool;
use std::sync::Arc;

/// What a kernel is run with.
pub(crate) struct Cx<'a> {
    pub pool: &'a Pool,
    pub scratch: Scratch,
    /// The weights, if they were packed when the params were set.
    pub packed: Option<&'a Packed>,
}

/// Weights in the order in which a kernel reads them.
pub(crate) enum Packed {
    /// The right operand of a product.
    Product(PackedB),
    /// The right operand of a product of bytes.
    Bytes(int8::PackedB),
    /// The weights of a convolution.
    Conv(ConvWeights<f32>),
}

impl Packed {
    /// Bytes that they take.
    pub fn bytes(&self) -> usize {
        match self {
            Packed::Product(p) => p.bytes(),
            Packed::Bytes(p) => p.bytes(),
            Packed::Conv(w) => w.bytes(),
        }
    }
}

/// A kernel bound to sizes.
pub(crate) struct Ready {
    pub scratch: ScratchSize,
    /// Runs the kernel on the addresses of its arguments.
    ///
    /// The addresses must be those of a call that [`Bound::new`] checked: within their slots, of the kernel's dtypes, and with
    /// the scratch space that was asked for.
    pub run: Box<RunFn>,
    /// Arithmetic operations of a run.
    pub flops: u64,
}

pub(crate) type RunFn = dyn Fn(&Cx<'_>, &[Ptr<u8>]) + Send + Sync;

/// What holds for every binding.
#[derive(Clone, Copy)]
pub(crate) struct Setting {
    pub level: Level,
    pub threads: usize,
    pub pack: PackKind,
}

/// Where an address is counted from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum From {
    Arena,
    Input(u32),
    Param(u32),
    Prepared(u32),
    Output(u32),
    Constant(u32),
}

/// A program with its constants where kernels can read them.
pub(crate) struct Loaded {
    pub program: Program,
    /// The constants, in the order of their slots.
    pub constants: Vec<Buffer>,
    /// Where each slot begins.
    pub slots: Vec<From>,
    /// The programs of control flow, by kernel.
    pub bodies: Vec<Vec<Arc<Loaded>>>,
}

/// The bytes of a tensor's planes, one behind the other and each aligned.
pub(crate) fn contiguous(t: &rlx_ir::Tensor) -> Option<Buffer> {
    let total = t.planes().iter().map(|p| p.len().div_ceil(64) * 64).sum();
    let mut buffer = Buffer::try_new(total)?;
    let mut rest = buffer.bytes_mut();
    for p in t.planes() {
        let (own, behind) = rest.split_at_mut_checked(p.len().div_ceil(64) * 64)?;
        own.iter_mut().zip(p.iter()).for_each(|(a, b)| *a = *b);
        rest = behind;
    }
    Some(buffer)
}

impl Loaded {
    pub fn new(mut program: Program) -> Result<Loaded> {
        let mut constants = Vec::new();
        let mut slots = Vec::new();
        for s in &program.slots {
            slots.push(match &s.place {
                Place::Arena(_) => From::Arena,
                Place::Input(k) => From::Input(*k),
                Place::Param(k) => From::Param(*k),
                Place::Prepared(k) => From::Prepared(*k),
                Place::Output(k) => From::Output(*k),
                Place::Constant(t) => {
                    constants.push(contiguous(t).ok_or_else(no_memory)?);
                    From::Constant(constants.len() as u32 - 1)
                }
            });
        }
        let mut bodies = Vec::new();
        for k in &mut program.kernels {
            let own = match &mut k.work {
                Work::Flow { bodies, .. } => std::mem::take(bodies),
                _ => Vec::new(),
            };
            bodies.push(own.into_iter().map(|p| Loaded::new(p).map(Arc::new)).collect::<Result<Vec<_>>>()?);
        }
        Ok(Loaded { program, constants, slots, bodies })
    }
}

pub(crate) fn no_memory() -> Error {
    Error::new(Code::Device, "there is not enough memory")
}

/// A call with its addresses.
pub(crate) struct BoundCall {
    pub kernel: usize,
    /// Where each argument begins, in bytes from the start of its place.
    pub args: Vec<(From, usize)>,
}

/// A program bound to sizes.
pub(crate) struct Bound {
    pub sizes: Vec<i64>,
    pub layout: Layout,
    pub kernels: Vec<Ready>,
    pub calls: Vec<BoundCall>,
    pub scratch: ScratchSize,
    /// The most arguments that a call has.
    pub widest: usize,
}

pub(crate) use rlx_ir::condition::unbound;

impl Bound {
    pub fn new(loaded: &Loaded, setting: Setting, bindings: &Bindings) -> Result<Bound> {
        let p = &loaded.program;
        let mut sizes = Vec::with_capacity(p.sizes.len());
        p.sizes.bind(bindings, &mut sizes).map_err(unbound)?;
        p.check(&sizes)?;
        let mut layout = Layout::default();
        for s in &p.slots {
            for d in &s.shape {
                if sizes.get(d.0 as usize).is_some_and(|n| *n < 0) {
                    return Err(Error::new(Code::Size, format!("the size {} is negative", p.sizes.dim(*d))));
                }
            }
        }
        p.plan.layout(&sizes, &mut layout);
        let mut kernels = Vec::with_capacity(p.kernels.len());
        let mut scratch = ScratchSize::default();
        for (k, bodies) in p.kernels.iter().zip(&loaded.bodies) {
            let ready = kernels::bind(setting, &sizes, k, bodies, bindings)?;
            scratch = scratch.max(ready.scratch);
            kernels.push(ready);
        }
        let mut calls = Vec::with_capacity(p.calls.len());
        for c in &p.calls {
            calls.push(bind_call(loaded, &sizes, &layout, c)?);
        }
        let widest = calls.iter().map(|c| c.args.len()).max().unwrap_or(0);
        Ok(Bound { sizes, layout, kernels, calls, scratch, widest })
    }

    /// A size of the program.
    pub fn size(&self, id: rlx_compile::program::SizeId) -> usize {
        self.sizes.get(id.0 as usize).map_or(0, |n| (*n).max(0) as usize)
    }
}

/// The addresses of a call; every argument lies within its slot.
fn bind_call(loaded: &Loaded, sizes: &[i64], layout: &Layout, c: &Call) -> Result<BoundCall> {
    let p = &loaded.program;
    let kernel = p.kernel(c)?;
    let size = |id: rlx_compile::program::SizeId| sizes.get(id.0 as usize).copied().unwrap_or(0);
    let mut args = Vec::with_capacity(c.args.len());
    for (k, ((slot, offset), arg)) in c.args.iter().zip(&kernel.args).enumerate() {
        let s = p.slot(*slot)?;
        let (offset, len) = (size(*offset), size(s.len));
        let (mut low, mut high) = (offset, offset);
        let empty = arg.shape.iter().any(|d| size(*d) == 0);
        for (d, stride) in arg.shape.iter().zip(&arg.strides) {
            let reach = (size(*d) - 1).saturating_mul(size(*stride));
            (low, high) = (low.saturating_add(reach.min(0)), high.saturating_add(reach.max(0)));
        }
        let index = indexed(kernel, k as u32, &size);
        let (below, beyond) = index.unwrap_or_default();
        (low, high) = (low.saturating_add(below), high.saturating_add(beyond));
        let empty = empty || index.is_none();
        if !empty && (low < 0 || high >= len) && !s.dtype.is_packed() {
            let text = format!("elements {low} to {high} of {len} are out of range at these sizes");
            return Err(Error::new(Code::Size, text).in_op(&c.label));
        }
        let bytes = match s.dtype {
            DType::Packed(_) => 0,
            d => offset.max(0) as usize * d.bytes().unwrap_or(1),
        };
        let from = *loaded.slots.get(slot.0 as usize).ok_or_else(|| fault("a slot is missing"))?;
        let base = match s.place {
            Place::Arena(b) => layout.offsets.get(b as usize).copied().unwrap_or(0) as usize,
            _ => 0,
        };
        args.push((from, if empty { base } else { base + bytes }));
    }
    Ok(BoundCall { kernel: c.kernel as usize, args })
}

/// How far an index reaches into an argument beyond its strides, down and up; `None` if there is nothing to find there.
fn indexed(
    kernel: &Kernel,
    arg: u32,
    size: &dyn Fn(rlx_compile::program::SizeId) -> i64,
) -> Option<(i64, i64)> {
    kernel.work.regions().flat_map(|r| &r.code).try_fold((0i64, 0i64), |(low, high), i| match i {
        Inst::Take { arg: a, len, .. } if *a == arg && size(*len) == 0 => None,
        Inst::Take { arg: a, stride, len, .. } if *a == arg => {
            let far = (size(*len) - 1).saturating_mul(size(*stride));
            Some((low.min(far), high.max(far)))
        }
        _ => Some((low, high)),
    })
}

/// The memory of a run.
pub(crate) struct Io<'a> {
    pub arena: Ptr<u8>,
    pub inputs: &'a [Ptr<u8>],
    pub params: &'a [Ptr<u8>],
    pub prepared: &'a [Ptr<u8>],
    pub outputs: &'a [Ptr<u8>],
    /// The packed weights of each call.
    pub packed: &'a [Option<Arc<Packed>>],
}

/// Sees every call of a run.
pub(crate) trait Watch {
    fn call(&mut self, index: usize, args: &[Ptr<u8>], run: &mut dyn FnMut());
}

/// Runs a bound program.
///
/// # Safety
/// Every address of `io` is that of a place of at least the size that the program says at these sizes, outputs overlap
/// nothing, and the arena and the scratch space are as large as `bound` asks for and used by nobody else. `table` has room for
/// the arguments of the widest call; what it holds does not matter.
pub(crate) unsafe fn run(
    loaded: &Loaded,
    bound: &Bound,
    io: &Io<'_>,
    pool: &Pool,
    scratch: Scratch,
    table: &mut [Ptr<u8>],
    mut watch: Option<&mut dyn Watch>,
) {
    for (index, c) in bound.calls.iter().enumerate() {
        let Some(kernel) = bound.kernels.get(c.kernel) else { continue };
        let Some(args) = table.get_mut(..c.args.len()) else { continue };
        for (to, (from, offset)) in args.iter_mut().zip(&c.args) {
            let pick =
                |v: &[Ptr<u8>], k: u32| v.get(k as usize).copied().unwrap_or(Ptr(std::ptr::null_mut()));
            let base = match from {
                From::Arena => io.arena,
                From::Input(k) => pick(io.inputs, *k),
                From::Param(k) => pick(io.params, *k),
                From::Prepared(k) => pick(io.prepared, *k),
                From::Output(k) => pick(io.outputs, *k),
                From::Constant(k) => {
                    Ptr(loaded.constants.get(*k as usize).map_or(std::ptr::null_mut(), Buffer::ptr))
                }
            };
            *to = Ptr(base.0.wrapping_add(*offset));
        }
        let packed = io.packed.get(index).and_then(Option::as_deref);
        let cx = Cx { pool, scratch, packed };
        match &mut watch {
            None => (kernel.run)(&cx, args),
            Some(w) => {
                let args: &[Ptr<u8>] = args;
                w.call(index, args, &mut || (kernel.run)(&cx, args));
            }
        }
    }
}

/// The bytes of a tensor of that dtype and shape, at those sizes.
pub(crate) fn byte_count(dtype: DType, shape: &[rlx_ir::Dim], b: &Bindings) -> Result<usize> {
    let shape: Vec<i64> = shape.iter().map(|d| d.eval(b).map_err(unbound)).collect::<Result<_>>()?;
    let ty = rlx_ir::Type::new(dtype, shape.iter().map(|n| (*n).into()).collect::<Vec<_>>());
    let bytes = rlx_compile::build::byte_size(&ty)?;
    bytes
        .as_const()
        .and_then(|n| usize::try_from(n).ok())
        .ok_or_else(|| Error::new(Code::Size, format!("{ty} is too large")))
}
