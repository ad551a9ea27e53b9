//! The params of an executable: kept as they were given, then prepared and packed once.

use super::{Context, Executable};
use crate::bind::{Bound, From, Io, Packed, byte_count, contiguous, no_memory, run};
use crate::data::{Data, check_fits, check_planes, is_aligned, limits};
use crate::kernels::pack_weights;
use crate::product;
use rlx_compile::program::{Named, SlotId, Work, fault};
use rlx_ir::dim::Bindings;
use rlx_ir::op::Step;
use rlx_ir::{Code, DType, Error, Result};
use rlx_simd::mem::{Buffer, Ptr};
use std::sync::{Arc, PoisonError, RwLockReadGuard};

/// A param where kernels can read it.
pub(super) struct Kept {
    pub shape: Vec<usize>,
    /// The address of its bytes. It is asked for once: who shares bytes may give others, or fewer, the next time.
    ptr: Ptr<u8>,
    _owner: Owner,
}

/// What keeps the bytes of a param.
enum Owner {
    /// As it was given.
    Given { _data: Data },
    /// Copied, because it was packed or not aligned.
    Copied { _buffer: Buffer },
}

impl Kept {
    fn new(port: &Named, limits: &[Option<usize>], data: Data) -> Result<Kept> {
        let shape = data.shape().to_vec();
        let copied = match &data {
            Data::Tensor(t) if t.dtype().is_packed() => Some(contiguous(t).ok_or_else(no_memory)?),
            _ => None,
        };
        let bytes = copied.as_ref().map_or_else(|| data.bytes(), Buffer::bytes);
        check_fits("param", port, limits, data.dtype(), &shape, bytes.len())?;
        if port.dtype.is_packed() {
            check_planes("param", &port.name, port.dtype, &shape, bytes.len())?;
        }
        let ptr = Ptr(bytes.as_ptr().cast_mut());
        if let Some(b) = copied {
            return Ok(Kept { shape, ptr, _owner: Owner::Copied { _buffer: b } });
        }
        if is_aligned(bytes, port.dtype) {
            // The data moves, but what it keeps stays where it is as long as somebody shares it.
            return Ok(Kept { shape, ptr, _owner: Owner::Given { _data: data } });
        }
        let mut b = Buffer::try_new(bytes.len()).ok_or_else(no_memory)?;
        b.bytes_mut().copy_from_slice(bytes);
        Ok(Kept { shape, ptr: Ptr(b.ptr()), _owner: Owner::Copied { _buffer: b } })
    }

    /// The address of a param; none for one that is not set.
    pub fn address(this: &Option<Kept>) -> Ptr<u8> {
        this.as_ref().map_or(Ptr(std::ptr::null_mut()), |k| k.ptr)
    }
}

/// The params of an executable.
#[derive(Default)]
pub(super) struct Params {
    pub given: Vec<Option<Kept>>,
    pub prepared: Vec<Buffer>,
    pub packed: Vec<Option<Arc<Packed>>>,
    /// Whether something was set since the params were prepared.
    pub stale: bool,
}

impl Executable {
    /// Sets a param.
    pub fn set_param(&self, name: &str, data: Data) -> Result<()> {
        let list = &self.loaded.program.params;
        let k = list.iter().position(|p| p.name == name).ok_or_else(|| {
            let names: Vec<&str> = list.iter().map(|p| p.name.as_str()).collect();
            let text = format!("no param {name:?}; there are {}", names.join(", "));
            Error::new(Code::UnknownName, text)
        })?;
        let param = list.get(k).ok_or_else(|| Error::new(Code::Verify, "a param is missing"))?;
        let kept = Kept::new(param, &limits(param), data)?;
        let mut params = self.params.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = params.given.get_mut(k) {
            *slot = Some(kept);
        }
        params.stale = true;
        Ok(())
    }

    /// The params that are not set yet.
    pub fn missing(&self) -> Vec<&str> {
        let params = self.params.read().unwrap_or_else(PoisonError::into_inner);
        let list = self.loaded.program.params.iter().zip(&params.given);
        list.filter(|(_, g)| g.is_none()).map(|(p, _)| p.name.as_str()).collect()
    }

    /// The bytes of packed weights: what a run reads instead of the params that products and convolutions take.
    pub fn packed_bytes(&self) -> usize {
        let params = self.params.read().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<&Arc<Packed>> = params.packed.iter().flatten().collect();
        all.sort_by_key(|p| Arc::as_ptr(p));
        all.dedup_by(|a, b| Arc::ptr_eq(a, b));
        all.iter().map(|p| p.bytes()).sum()
    }

    /// Packs the params, if any was set since the last time. A run does it by itself.
    pub fn prepare(&self) -> Result<()> {
        if !self.params.read().unwrap_or_else(PoisonError::into_inner).stale {
            return Ok(());
        }
        let missing = self.missing();
        if !missing.is_empty() {
            let text = format!("{} params are not set: {}", missing.len(), missing.join(", "));
            return Err(Error::new(Code::MissingInput, text));
        }
        let mut guard = self.params.write().unwrap_or_else(PoisonError::into_inner);
        let params = &mut *guard;
        if !params.stale {
            return Ok(());
        }
        let bindings = Bindings::new();
        let given: Vec<Ptr<u8>> = params.given.iter().map(Kept::address).collect();
        if let Some(p) = &self.prepare {
            let list = &self.loaded.program.params;
            let place = |n: &Named| list.iter().position(|p| p.name == n.name);
            let address = |n: &Named| place(n).and_then(|k| given.get(k).copied());
            let inputs: Option<Vec<Ptr<u8>>> = p.program.inputs.iter().map(address).collect();
            let inputs = inputs.ok_or_else(|| fault("a param is missing"))?;
            let bound = Bound::new(p, self.setting, &bindings)?;
            let mut outs = Vec::new();
            for n in &p.program.outputs {
                outs.push(Buffer::try_new(byte_count(n.dtype, &n.shape, &bindings)?).ok_or_else(no_memory)?);
            }
            let mut context = Context::new(&bound, self.setting.threads)?;
            let mut table = std::mem::take(&mut context.table);
            let outputs: Vec<Ptr<u8>> = outs.iter().map(|b| Ptr(b.ptr())).collect();
            let io = Io {
                arena: Ptr(context.arena.ptr()),
                inputs: &inputs,
                params: &[],
                prepared: &[],
                outputs: &outputs,
                packed: &[],
            };
            // SAFETY: params were checked when they were set; outputs, arena and scratch are as large as the program says.
            unsafe {
                let scratch = context.scratch(&bound, self.setting.threads);
                run(p, &bound, &io, &self.engine.pool, scratch, &mut table, None);
            }
            params.prepared = outs;
        }
        self.pack(params, &given)?;
        params.stale = false;
        Ok(())
    }

    /// The params, prepared; whoever sets one meanwhile waits.
    pub(super) fn ready_params(&self) -> Result<RwLockReadGuard<'_, Params>> {
        loop {
            self.prepare()?;
            let params = self.params.read().unwrap_or_else(PoisonError::into_inner);
            if !params.stale {
                return Ok(params);
            }
        }
    }

    /// Packs the right operands of products and the weights of convolutions.
    fn pack(&self, params: &mut Params, given: &[Ptr<u8>]) -> Result<()> {
        let p = &self.loaded.program;
        params.packed = vec![None; p.calls.len()];
        let mut known: Vec<(SlotId, rlx_compile::program::SizeId, u32, Arc<Packed>)> = Vec::new();
        for (call, slot) in &self.weights {
            let Some(c) = p.calls.get(*call) else { continue };
            let kernel = p.kernel(c)?;
            let Some(at) = kernel.work.weight() else { continue };
            let Some((_, offset)) = c.args.get(at) else { continue };
            let batch = if let Work::Product(p) = &kernel.work { p.batch } else { 0 };
            // The sizes of a weight are constants; those of the rows do not matter.
            let mut sizes = Vec::new();
            let symbols: Bindings = p.symbols.iter().map(|s| (s, 0)).collect();
            let Some(y) = kernel.args.get(at) else { continue };
            let constant = |id: &rlx_compile::program::SizeId| p.sizes.dim(*id).is_const();
            // Of a param that is larger than what is set now, part could be missing.
            if !p.slot(*slot)?.shape.iter().all(constant)
                || !y.shape.iter().skip(batch).all(constant)
                || !y.strides.iter().all(constant)
                || !constant(offset)
            {
                continue;
            }
            p.sizes.bind(&symbols, &mut sizes).map_err(crate::bind::unbound)?;
            let size = |id: &rlx_compile::program::SizeId| sizes.get(id.0 as usize).copied().unwrap_or(0);
            if y.strides.iter().take(batch).any(|s| size(s) != 0) {
                continue;
            }
            if let Some((.., done)) =
                known.iter().find(|(s, o, k, _)| s == slot && o == offset && *k == c.kernel)
            {
                if let Some(to) = params.packed.get_mut(*call) {
                    *to = Some(done.clone());
                }
                continue;
            }
            let at = |v: &[Ptr<u8>], k: u32| v.get(k as usize).copied();
            let base = match self.loaded.slots.get(slot.0 as usize) {
                Some(From::Param(k)) => at(given, *k),
                Some(From::Prepared(k)) => params.prepared.get(*k as usize).map(|b| Ptr(b.ptr())),
                Some(From::Constant(k)) => self.loaded.constants.get(*k as usize).map(|b| Ptr(b.ptr())),
                _ => None,
            };
            let Some(base) = base else { continue };
            let from = base.0.wrapping_add(size(offset).max(0) as usize * y.dtype.bytes().unwrap_or(1));
            let pool = &self.engine.pool;
            let packed = match &kernel.work {
                Work::Product(product) if product.zeros.is_some() => {
                    let form = product::Form::new(&sizes, kernel, product)?;
                    let signed = y.dtype == DType::I8;
                    // SAFETY: as below.
                    Some(Packed::Bytes(unsafe {
                        product::pack_bytes(self.setting, &form, from, signed, pool)
                    }))
                }
                Work::Product(product) => {
                    let form = product::Form::new(&sizes, kernel, product)?;
                    // SAFETY: the param was checked when it was set, and the compiler's views of it lie within it.
                    Some(Packed::Product(unsafe { product::pack(self.setting, &form, from.cast(), pool) }))
                }
                Work::Kernel { step: Step::Conv { sliding, groups, .. }, .. } => {
                    let shape: Vec<usize> = y.shape.iter().map(|d| size(d).max(0) as usize).collect();
                    // SAFETY: as above.
                    unsafe { pack_weights(self.setting, &shape, sliding, *groups, from.cast(), pool) }
                        .map(Packed::Conv)
                }
                _ => None,
            };
            let Some(packed) = packed.map(Arc::new) else { continue };
            known.push((*slot, *offset, c.kernel, packed.clone()));
            if let Some(to) = params.packed.get_mut(*call) {
                *to = Some(packed);
            }
        }
        Ok(())
    }
}
