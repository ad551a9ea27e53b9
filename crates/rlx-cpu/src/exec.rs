//! What a caller holds: an engine (the threads and the instruction set) and executables.

mod params;

use crate::bind::{Bound, From, Io, Loaded, Setting, Watch, no_memory, run};
use crate::data::{View, ViewMut, check_fits, check_planes, is_aligned, limits, to_tensor, whole_bytes};
use crate::profile::{Profile, Recorder};
use params::{Kept, Params};
use rlx_compile::expand::computes;
use rlx_compile::program::{Named, Program, SlotId};
use rlx_ir::dim::Bindings;
use rlx_ir::op::Step;
use rlx_ir::{Code, DType, Error, Result, Tensor, Type};
use rlx_simd::gemm::PackKind;
use rlx_simd::level::Level;
use rlx_simd::mem::{Buffer, Ptr, Scratch};
use rlx_simd::pool::Pool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;

/// In what precision products are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// Everything in f32.
    #[default]
    F32,
    /// Weights and operands of products in bf16, sums in f32.
    Bf16,
}

/// How an engine runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The number of threads; `None` for as many as the machine runs at once.
    pub threads: Option<usize>,
    /// The instruction set; `None` for the best there is. One that the machine lacks is an error.
    pub level: Option<Level>,
}

/// Threads and an instruction set. Executables share an engine.
#[derive(Clone, Debug)]
pub struct Engine {
    level: Level,
    pool: Arc<Pool>,
    #[cfg(feature = "fault")]
    fault: Option<fn(&mut Program)>,
}

impl Engine {
    /// An engine.
    pub fn new(settings: Settings) -> Result<Engine> {
        let level = settings.level.unwrap_or_else(Level::detect);
        if !level.is_available() {
            return Err(Error::new(Code::Device, format!("this machine has no {level}")));
        }
        let threads = settings.threads.unwrap_or_else(Pool::machine_threads);
        if !(1..=1024).contains(&threads) {
            return Err(Error::new(Code::Device, format!("{threads} threads; 1 to 1024 can be had")));
        }
        Ok(Engine {
            level,
            pool: Arc::new(Pool::new(threads)),
            #[cfg(feature = "fault")]
            fault: None,
        })
    }

    /// The engine with wrong kernels: what `fault` makes of a program is run in its place. What finds faults is tested so.
    #[cfg(feature = "fault")]
    #[doc(hidden)]
    pub fn spoiled(self, fault: fn(&mut Program)) -> Engine {
        Engine { fault: Some(fault), ..self }
    }

    /// The number of threads.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// The instruction set.
    pub fn level(&self) -> Level {
        self.level
    }
}

/// What the CPU has kernels for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Target;

impl rlx_compile::Target for Target {
    fn has_kernel(&self, step: &Step, operands: &[Option<Type>]) -> bool {
        match step {
            // Of vectors it is not worth one.
            Step::MatmulInteger => operands.iter().take(2).flatten().all(|t| t.rank() >= 2),
            // Every kernel takes whatever the compiler converts its operands to, which it does with all but packed ones.
            step => !computes(step) || operands.iter().flatten().all(|t| !t.dtype.is_packed()),
        }
    }
}

/// Memory of a run, kept for the next.
struct Context {
    arena: Buffer,
    scratch: Buffer,
    inputs: Vec<Ptr<u8>>,
    outputs: Vec<Ptr<u8>>,
    params: Vec<Ptr<u8>>,
    /// The addresses of a call's arguments.
    table: Vec<Ptr<u8>>,
    /// Inputs that did not stand where kernels can read them, each at its place in the program's order.
    copies: Vec<Buffer>,
}

/// Inputs by name, in any order.
struct Inputs<'s, 'a>(&'s [(&'s str, View<'a>)]);

impl<'a> Inputs<'_, 'a> {
    /// The input of that name, which most callers give at the place where the program has it.
    fn get(&self, place: usize, name: &str) -> Option<&View<'a>> {
        let there = self.0.get(place).filter(|(n, _)| *n == name);
        there.or_else(|| self.0.iter().find(|(n, _)| *n == name)).map(|(_, v)| v)
    }
}

/// The plans of the sizes that were used last.
const PLANS: usize = 16;

/// The shape and the bytes of each output.
type Shapes = Arc<Vec<(Vec<usize>, usize)>>;

struct Planned {
    /// The sizes of all inputs (of packed ones the bytes too) and of the params that have symbols, one behind the other.
    key: Vec<usize>,
    bound: Arc<Bound>,
    outputs: Shapes,
    used: u64,
}

/// A compiled graph on the CPU.
pub struct Executable {
    engine: Engine,
    setting: Setting,
    loaded: Loaded,
    prepare: Option<Loaded>,
    /// The calls whose weights, the second argument, are packed when params are set, and the slot of those.
    weights: Vec<(usize, SlotId)>,
    params: RwLock<Params>,
    /// The largest sizes of each input.
    limits: Vec<Vec<Option<usize>>>,
    /// The params whose sizes are not all constants.
    symbolic: Vec<usize>,
    plans: Mutex<(u64, Vec<Planned>)>,
    contexts: Mutex<Vec<Context>>,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Executable {
    /// Makes a program ready to run.
    pub fn new(engine: &Engine, mut program: Program, precision: Precision) -> Result<Executable> {
        #[cfg(feature = "fault")]
        if let Some(fault) = engine.fault {
            fault(&mut program);
        }
        let pack = match precision {
            Precision::F32 => PackKind::F32,
            Precision::Bf16 => PackKind::Bf16,
        };
        let setting = Setting { level: engine.level, threads: engine.threads(), pack };
        let prepare = program.prepare.take().map(|p| Loaded::new(*p)).transpose()?;
        let loaded = Loaded::new(program)?;
        let p = &loaded.program;
        let mut weights = Vec::new();
        for (i, c) in p.calls.iter().enumerate() {
            let Some(k) = p.kernel(c)?.work.weight() else { continue };
            let Some((slot, _)) = c.args.get(k) else { continue };
            let fixed = matches!(
                loaded.slots.get(slot.0 as usize),
                Some(From::Param(_) | From::Prepared(_) | From::Constant(_))
            );
            let dtype = p.kernel(c)?.args.get(k).map(|a| a.dtype);
            if fixed && matches!(dtype, Some(DType::F32 | DType::I8 | DType::U8)) {
                weights.push((i, *slot));
            }
        }
        let params = Params {
            given: p.params.iter().map(|_| None).collect(),
            packed: Vec::new(),
            prepared: Vec::new(),
            stale: true,
        };
        Ok(Executable {
            engine: engine.clone(),
            setting,
            prepare,
            weights,
            params: RwLock::new(params),
            limits: p.inputs.iter().map(limits).collect(),
            symbolic: (0..p.params.len())
                .filter(|k| p.params.get(*k).is_some_and(|n| n.shape.iter().any(|d| !d.is_const())))
                .collect(),
            plans: Mutex::new((0, Vec::new())),
            contexts: Mutex::new(Vec::new()),
            loaded,
        })
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.loaded.program
    }

    /// The program that runs when params are set.
    pub fn prepare_program(&self) -> Option<&Program> {
        self.prepare.as_ref().map(|l| &l.program)
    }

    /// The bytes that a run works in at these sizes: the arena and the kernels' scratch space, with those of control flow.
    pub fn working_bytes(&self, bindings: &Bindings) -> Result<u64> {
        let of = |l: &Loaded, b: &Bindings| -> Result<u64> {
            let bound = Bound::new(l, self.setting, b)?;
            let arena = u64::try_from(bound.layout.peak).unwrap_or(0);
            Ok(arena.saturating_add(bound.scratch.total(self.setting.threads) as u64))
        };
        let once = self.prepare.as_ref().map_or(Ok(0), |p| of(p, &Bindings::new()))?;
        Ok(of(&self.loaded, bindings)?.max(once))
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// For how many sizes of the inputs plans are kept.
    pub fn plans(&self) -> usize {
        lock(&self.plans).1.len()
    }

    /// Whether a plan is kept for inputs of these shapes.
    pub fn has_plan(&self, inputs: &[(&str, View<'_>)]) -> bool {
        let params = self.params.read().unwrap_or_else(PoisonError::into_inner);
        let inputs = Inputs(inputs);
        lock(&self.plans).1.iter().any(|p| p.key.iter().copied().eq(self.key(&inputs, &params)))
    }

    /// What plans are found by: one size for each axis, and the bytes of packed inputs; their numbers are the same in every
    /// run, so that only a param that is not set yet needs a mark.
    fn key<'s>(&'s self, inputs: &'s Inputs<'_, '_>, params: &'s Params) -> impl Iterator<Item = usize> + 's {
        let given = self.ordered(inputs).flat_map(|(_, v)| {
            let bytes = v.dtype.is_packed().then_some(v.bytes.len());
            v.shape.iter().copied().chain(bytes)
        });
        let kept = self.symbolic.iter().flat_map(|k| {
            let shape = params.given.get(*k).and_then(Option::as_ref).map(|p| p.shape.as_slice());
            shape.unwrap_or(&[usize::MAX]).iter().copied()
        });
        given.chain(kept)
    }

    /// The plan for inputs and params of these shapes.
    fn planned(&self, inputs: &Inputs<'_, '_>, params: &Params) -> Result<(Arc<Bound>, Shapes)> {
        let mut plans = lock(&self.plans);
        plans.0 += 1;
        let now = plans.0;
        if let Some(p) = plans.1.iter_mut().find(|p| p.key.iter().copied().eq(self.key(inputs, params))) {
            p.used = now;
            return Ok((p.bound.clone(), p.outputs.clone()));
        }
        let program = &self.loaded.program;
        let mut bindings = Bindings::new();
        let mut left: Vec<(&str, &Named, usize, i64)> = Vec::new();
        for (n, v) in self.ordered(inputs).filter(|(_, v)| v.dtype.is_packed()) {
            check_planes("input", &n.name, v.dtype, v.shape, v.bytes.len())?;
        }
        let given = self.ordered(inputs).map(|(n, v)| ("input", n, v.shape));
        let kept = self.symbolic.iter().filter_map(|k| {
            let shape = params.given.get(*k)?.as_ref()?.shape.as_slice();
            Some(("param", program.params.get(*k)?, shape))
        });
        for (what, n, shape) in given.chain(kept) {
            let sizes = shape.iter().map(|d| i64::try_from(*d).unwrap_or(i64::MAX));
            left.extend(sizes.enumerate().map(|(axis, d)| (what, n, axis, d)));
        }
        // A size may need another one's symbol first.
        loop {
            let before = left.len();
            let mut failed = None;
            left.retain(|(what, n, axis, size)| {
                let Some(d) = n.shape.get(*axis) else { return false };
                match d.solve(*size, &mut bindings) {
                    Ok(()) => false,
                    Err(e) => {
                        failed.get_or_insert((*what, n.name.clone(), *axis, e));
                        true
                    }
                }
            });
            match failed {
                None => break,
                Some((what, name, axis, e)) if left.len() == before => {
                    let text = format!("axis {axis} of {what} {name:?}: {e}");
                    return Err(Error::new(Code::BadInput, text).axis(axis));
                }
                _ => {}
            }
        }
        let bound = Arc::new(Bound::new(&self.loaded, self.setting, &bindings)?);
        let shape = |n: &Named| -> Result<(Vec<usize>, usize)> {
            let sizes =
                n.shape.iter().map(|d| d.eval(&bindings).map(|n| n as usize).map_err(crate::bind::unbound));
            let shape = sizes.collect::<Result<Vec<_>>>()?;
            let bytes = whole_bytes(n.dtype, &shape)?;
            Ok((shape, bytes))
        };
        let outputs = Arc::new(program.outputs.iter().map(shape).collect::<Result<Vec<_>>>()?);
        if plans.1.len() >= PLANS
            && let Some(oldest) = (0..plans.1.len()).min_by_key(|i| plans.1.get(*i).map(|p| p.used))
        {
            plans.1.swap_remove(oldest);
        }
        plans.1.push(Planned {
            key: self.key(inputs, params).collect(),
            bound: bound.clone(),
            outputs: outputs.clone(),
            used: now,
        });
        Ok((bound, outputs))
    }

    /// Checks inputs against those of the program.
    fn check(&self, inputs: &Inputs<'_, '_>) -> Result<()> {
        let list = &self.loaded.program.inputs;
        for (k, (name, _)) in inputs.0.iter().enumerate() {
            if list.get(k).is_none_or(|p| p.name != *name) && !list.iter().any(|p| p.name == *name) {
                let names: Vec<&str> = list.iter().map(|p| p.name.as_str()).collect();
                let text = format!("no input {name:?}; there are {}", names.join(", "));
                return Err(Error::new(Code::UnknownName, text));
            }
        }
        for (k, p) in list.iter().enumerate() {
            let v = inputs
                .get(k, &p.name)
                .ok_or_else(|| Error::new(Code::MissingInput, format!("input {:?} is not given", p.name)))?;
            let limits = self.limits.get(k).map(Vec::as_slice).unwrap_or_default();
            check_fits("input", p, limits, v.dtype, v.shape, v.bytes.len())?;
        }
        if inputs.0.len() > list.len() {
            // All are known and all are there, so some are there more than once.
            let twice = list.iter().find(|p| inputs.0.iter().filter(|(n, _)| *n == p.name).count() > 1);
            let name = twice.map_or("", |p| p.name.as_str());
            return Err(Error::new(Code::BadInput, format!("input {name:?} is given twice")));
        }
        Ok(())
    }

    /// The inputs in the program's order.
    fn ordered<'s, 'a>(
        &'s self,
        inputs: &'s Inputs<'_, 'a>,
    ) -> impl Iterator<Item = (&'s Named, &'s View<'a>)> {
        let list = self.loaded.program.inputs.iter().enumerate();
        list.filter_map(|(k, p)| inputs.get(k, &p.name).map(|v| (p, v)))
    }

    /// The shapes of the outputs for inputs of these shapes.
    pub fn output_shapes(&self, inputs: &[(&str, View<'_>)]) -> Result<Vec<Vec<usize>>> {
        let inputs = Inputs(inputs);
        self.check(&inputs)?;
        let params = self.params.read().unwrap_or_else(PoisonError::into_inner);
        Ok(self.planned(&inputs, &params)?.1.iter().map(|(shape, _)| shape.clone()).collect())
    }

    /// Runs the program; every output is a new tensor.
    pub fn run(&self, inputs: &[(&str, View<'_>)]) -> Result<Vec<(String, Tensor)>> {
        Ok(self.run_profiled(inputs, false)?.0)
    }

    /// Runs the program, and says what took how long if asked.
    pub fn run_profiled(
        &self,
        inputs: &[(&str, View<'_>)],
        profile: bool,
    ) -> Result<(Vec<(String, Tensor)>, Profile)> {
        let inputs = Inputs(inputs);
        self.check(&inputs)?;
        let params = self.ready_params()?;
        let (bound, shapes) = self.planned(&inputs, &params)?;
        let program = &self.loaded.program;
        let mut planes: Vec<Arc<[std::mem::MaybeUninit<u8>]>> = Vec::new();
        for (_, bytes) in shapes.iter() {
            planes.push(uninit(*bytes)?);
        }
        let mut recorder = Recorder {
            loaded: &self.loaded,
            bound: &bound,
            profile: Profile::default(),
            began: Instant::now(),
        };
        {
            let outputs = planes
                .iter_mut()
                .map(|p| Ptr(Arc::get_mut(p).map_or(std::ptr::null_mut(), |p| p.as_mut_ptr().cast())));
            let watch: Option<&mut dyn Watch> = if profile { Some(&mut recorder) } else { None };
            // SAFETY: the outputs were just made, of the sizes that the program says.
            unsafe { self.go(&bound, &params, &inputs, outputs, watch)? };
        }
        recorder.profile.total = recorder.began.elapsed();
        let mut out = Vec::new();
        for ((n, (shape, _)), p) in program.outputs.iter().zip(shapes.iter()).zip(planes) {
            // SAFETY: a run writes every element of every output, and what lies between the planes of packed ones.
            let bytes: Arc<[u8]> = unsafe { p.assume_init() };
            out.push((n.name.clone(), to_tensor(n.dtype, shape, bytes)?));
        }
        Ok((out, recorder.profile))
    }

    /// Runs the program into memory of the caller's: one view for each output, in the program's order. Asks for no memory
    /// when inputs of these shapes were seen before; one that is not aligned to its elements is copied, into memory that is
    /// kept too.
    pub fn run_into(&self, inputs: &[(&str, View<'_>)], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        let inputs = Inputs(inputs);
        self.check(&inputs)?;
        let params = self.ready_params()?;
        let (bound, shapes) = self.planned(&inputs, &params)?;
        let program = &self.loaded.program;
        if outputs.len() != program.outputs.len() {
            let text =
                format!("{} outputs are given, the graph has {}", outputs.len(), program.outputs.len());
            return Err(Error::new(Code::BadInput, text));
        }
        for ((o, n), (shape, need)) in outputs.iter().zip(&program.outputs).zip(shapes.iter()) {
            let aligned = is_aligned(o.bytes, n.dtype);
            if o.dtype != n.dtype || o.shape != shape.as_slice() || o.bytes.len() != *need || !aligned {
                let text = format!(
                    "output {:?} is {}{shape:?}, {need} aligned bytes, but the buffer is {}{:?}, {} bytes",
                    n.name,
                    n.dtype,
                    o.dtype,
                    o.shape,
                    o.bytes.len()
                );
                return Err(Error::new(Code::BadInput, text));
            }
        }
        let outputs = outputs.iter_mut().map(|o| Ptr(o.bytes.as_mut_ptr()));
        // SAFETY: the outputs are exclusive borrows of the sizes that were just checked.
        unsafe { self.go(&bound, &params, &inputs, outputs, None) }
    }

    /// # Safety
    /// The outputs are valid for the sizes of the program and overlap nothing; the plan is that of these inputs and params.
    unsafe fn go(
        &self,
        bound: &Arc<Bound>,
        params: &Params,
        inputs: &Inputs<'_, '_>,
        outputs: impl Iterator<Item = Ptr<u8>>,
        watch: Option<&mut dyn Watch>,
    ) -> Result<()> {
        let threads = self.setting.threads;
        let mut context = match lock(&self.contexts).pop() {
            Some(c) => c,
            None => Context::new(bound, threads)?,
        };
        context.fit(bound, threads)?;
        context.inputs.clear();
        context.copies.resize_with(self.loaded.program.inputs.len(), || Buffer::new(0));
        for ((p, v), copy) in self.ordered(inputs).zip(&mut context.copies) {
            let at = if is_aligned(v.bytes, p.dtype) {
                v.bytes.as_ptr().cast_mut()
            } else {
                if copy.len() < v.bytes.len() {
                    *copy = Buffer::try_new(v.bytes.len()).ok_or_else(no_memory)?;
                }
                if let Some(to) = copy.bytes_mut().get_mut(..v.bytes.len()) {
                    to.copy_from_slice(v.bytes);
                }
                copy.ptr()
            };
            context.inputs.push(Ptr(at));
        }
        context.outputs.clear();
        context.outputs.extend(outputs);
        context.params.clear();
        let addresses = params.given.iter().map(Kept::address);
        context.params.extend(addresses.chain(params.prepared.iter().map(|b| Ptr(b.ptr()))));
        let mut table = std::mem::take(&mut context.table);
        let (given, prepared) = context.params.split_at(params.given.len());
        let io = Io {
            arena: Ptr(context.arena.ptr()),
            inputs: &context.inputs,
            params: given,
            prepared,
            outputs: &context.outputs,
            packed: &params.packed,
        };
        // SAFETY: inputs and params were checked against the program, arena and scratch are as large as the plan says, and
        // outputs are as promised.
        unsafe {
            let scratch = context.scratch(bound, threads);
            run(&self.loaded, bound, &io, &self.engine.pool, scratch, &mut table, watch);
        }
        context.table = table;
        lock(&self.contexts).push(context);
        Ok(())
    }
}

/// Memory for an output. An `Arc` ends the process where there is none, so the system is asked for much of it beforehand.
fn uninit(bytes: usize) -> Result<Arc<[std::mem::MaybeUninit<u8>]>> {
    const MUCH: usize = 1 << 26;
    if bytes >= MUCH {
        Vec::<u8>::new().try_reserve_exact(bytes).map_err(|_| no_memory())?;
    }
    Ok(Arc::new_uninit_slice(bytes))
}

impl Context {
    fn new(bound: &Bound, threads: usize) -> Result<Context> {
        let mut c = Context {
            arena: Buffer::new(0),
            scratch: Buffer::new(0),
            inputs: Vec::new(),
            outputs: Vec::new(),
            params: Vec::new(),
            table: Vec::new(),
            copies: Vec::new(),
        };
        c.fit(bound, threads)?;
        Ok(c)
    }

    /// Makes arena, scratch space and table at least as large as a plan asks.
    fn fit(&mut self, bound: &Bound, threads: usize) -> Result<()> {
        let arena = usize::try_from(bound.layout.peak).unwrap_or(usize::MAX);
        if self.arena.len() < arena {
            self.arena = Buffer::new(0);
            self.arena = Buffer::try_new(arena).ok_or_else(no_memory)?;
        }
        let scratch = bound.scratch.total(threads);
        if self.scratch.len() < scratch {
            self.scratch = Buffer::try_new(scratch).ok_or_else(no_memory)?;
        }
        if self.table.len() < bound.widest {
            self.table.resize(bound.widest, Ptr(std::ptr::null_mut()));
        }
        Ok(())
    }

    /// # Safety
    /// Nobody else uses the scratch space while the value is in use.
    unsafe fn scratch(&self, bound: &Bound, threads: usize) -> Scratch {
        // SAFETY: the buffer is as large as `fit` made it.
        unsafe { Scratch::new(self.scratch.ptr(), bound.scratch, threads) }
    }
}
