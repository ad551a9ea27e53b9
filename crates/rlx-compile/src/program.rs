//! A Program: what a device sees. A flat list of calls of kernels over slots of memory, with sizes that are known when the
//! symbols are.
//!
//! Kernels are apart from calls, so that equal layers share one: whatever a device prepares, it prepares per kernel.

use rlx_ir::condition::{Condition, Demand};
use rlx_ir::dim::{Bindings, DimError, Symbol};
use rlx_ir::op::Step;
use rlx_ir::op::step::{ConvPart, Fold};
use rlx_ir::scalar::Scalar;
use rlx_ir::{DType, Dim, Error, Result, Tensor};
use std::collections::HashMap;

/// A number of elements or a distance, by its place in [`Sizes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SizeId(pub u32);

/// Every size that occurs in a program, each once.
#[derive(Clone, Debug, Default)]
pub struct Sizes {
    dims: Vec<Dim>,
    known: HashMap<Dim, SizeId>,
}

impl Sizes {
    /// The place of a size.
    pub fn id(&mut self, d: &Dim) -> SizeId {
        if let Some(id) = self.known.get(d) {
            return *id;
        }
        let id = SizeId(self.dims.len() as u32);
        self.dims.push(d.clone());
        self.known.insert(d.clone(), id);
        id
    }

    /// The places of several sizes.
    pub fn ids(&mut self, ds: &[Dim]) -> Vec<SizeId> {
        ds.iter().map(|d| self.id(d)).collect()
    }

    /// The size at a place.
    pub fn dim(&self, id: SizeId) -> Dim {
        self.dims.get(id.0 as usize).cloned().unwrap_or_else(Dim::invalid)
    }

    /// All sizes, with the symbols bound.
    pub fn bind(&self, b: &Bindings, out: &mut Vec<i64>) -> Result<(), DimError> {
        out.clear();
        for d in &self.dims {
            out.push(d.signed(b)?);
        }
        Ok(())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.dims.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.dims.is_empty()
    }
}

/// A register of a region.
pub type Reg = u32;

/// An instruction of a region. The number of an instruction is the register that it sets.
#[derive(Clone, Debug, PartialEq)]
pub enum Inst {
    /// An element of an argument of the kernel.
    Load(u32),
    /// An element of an argument, found by an index: its access has stride 0 along the axis that is indexed.
    Take {
        /// The argument.
        arg: u32,
        /// The index; negative counts from the end, out of range reads 0.
        index: Reg,
        /// The dtype of the index.
        index_dtype: DType,
        /// The distance between entries.
        stride: SizeId,
        /// The number of entries.
        len: SizeId,
    },
    /// What the kernel in front of the region computed.
    Produced(DType),
    /// Hands a register to the kernel behind the region, as its operand.
    Give(Reg),
    /// The same number everywhere, as the bytes of a tensor of one element.
    Number(DType, Vec<u8>),
    /// A size as a number.
    Size(SizeId, DType),
    /// `offset + Σ index·stride` over the space.
    Iota {
        /// The stride along each axis of the space.
        strides: Vec<SizeId>,
        /// The number at the first index.
        offset: SizeId,
        /// The dtype.
        dtype: DType,
    },
    /// A function of the scalar language, of operands of `dtype` (the last operand's for `Select`).
    Scalar {
        /// The function.
        op: Scalar,
        /// The dtype of the operands.
        dtype: DType,
        /// The operands.
        args: Vec<Reg>,
    },
    /// A conversion.
    Cast {
        /// The operand.
        arg: Reg,
        /// From this dtype.
        from: DType,
        /// To this one.
        to: DType,
    },
    /// A reduction over the lanes.
    Fold {
        /// How.
        kind: Fold,
        /// The operand.
        arg: Reg,
        /// Its dtype.
        dtype: DType,
    },
    /// Writes to an argument of the kernel. Registers that do not vary over the lanes are written once per row.
    Store {
        /// The argument.
        arg: u32,
        /// What is written.
        value: Reg,
    },
}

/// Element-wise work and reductions, fused: for every index of the space, all instructions in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Region {
    /// The sizes of the space: rows first, then lanes.
    pub space: Vec<SizeId>,
    /// How many of the last axes are lanes: what folds reduce over.
    pub lanes: usize,
    /// The instructions.
    pub code: Vec<Inst>,
}

/// A matrix product in normal form: axes of every argument are batch, then rows or the summed axis, then columns.
#[derive(Clone, Debug, PartialEq)]
pub struct Product {
    /// The number of batch axes; the arguments are x `[batch.., m, k]`, y `[batch.., k, n]`, z `[batch.., m, n]`.
    pub batch: usize,
    /// For a product of bytes: whether x has zero points (none of its axes, or `[m]`) and whether y has (`[n]`). Those are
    /// arguments behind y.
    pub zeros: Option<[bool; 2]>,
    /// What computes x when it is packed, block by block: over the space `[batch.., m, k]`, of which k is the lanes. There is
    /// no argument x then.
    pub prologue: Option<Region>,
    /// What is computed with the product while it is in the cache: over the space `[rows.., columns..]`.
    pub epilogue: Option<Region>,
}

impl Product {
    /// The argument that is the right operand.
    pub fn right(&self) -> usize {
        if self.prologue.is_some() { 0 } else { 1 }
    }

    /// The arguments that are the zero points of x and of y.
    pub fn zero_points(&self) -> [Option<usize>; 2] {
        let [x, y] = self.zeros.unwrap_or_default();
        let first = self.right() + 1;
        [x.then_some(first), y.then_some(first + usize::from(x))]
    }
}

/// What a kernel does with its arguments.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// Fused element-wise work.
    Region(Region),
    /// A matrix product; the first arguments are the operands (x only without a prologue), then what the prologue reads.
    /// Without an epilogue the last is the result.
    Product(Product),
    /// A step kind that has a kernel of its own: operands first (absent ones left out, see `given`), then results. With an
    /// epilogue the first result is left out, and what the region reads and writes comes last.
    Kernel {
        /// The step kind.
        step: Step,
        /// Which operands of the op are given.
        given: Vec<bool>,
        /// What is computed with the first result while it is in the cache: over the space `[rows.., columns..]`.
        epilogue: Option<Region>,
    },
    /// Writes part of a result: the first argument into the second.
    Copy,
    /// Control flow: arguments are operands, then results.
    Flow {
        /// The step kind.
        step: Step,
        /// The regions.
        bodies: Vec<Program>,
    },
}

impl Work {
    /// The fused element-wise work, whether it stands alone or behind something.
    pub fn region(&self) -> Option<&Region> {
        match self {
            Work::Region(r) => Some(r),
            Work::Product(Product { epilogue, .. }) | Work::Kernel { epilogue, .. } => epilogue.as_ref(),
            Work::Copy | Work::Flow { .. } => None,
        }
    }

    /// Every region that the kernel runs, in order.
    pub fn regions(&self) -> impl Iterator<Item = &Region> {
        let before = if let Work::Product(p) = self { p.prologue.as_ref() } else { None };
        before.into_iter().chain(self.region())
    }

    /// The position among the arguments of an operand that may be a weight.
    pub fn weight(&self) -> Option<usize> {
        match self {
            Work::Product(p) => Some(p.right()),
            Work::Kernel { step: Step::Conv { part: ConvPart::Output, .. }, .. } => Some(1),
            _ => None,
        }
    }
}

/// An argument of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Arg {
    /// The dtype in memory.
    pub dtype: DType,
    /// Its sizes.
    pub shape: Vec<SizeId>,
    /// The distance between neighbours along each axis.
    pub strides: Vec<SizeId>,
    /// Whether it is written.
    pub write: bool,
    /// For one that is written: the argument whose memory it takes, each element after it was read.
    pub over: Option<u32>,
}

/// A kernel: work on arguments of known form.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    /// What it does.
    pub work: Work,
    /// Its arguments.
    pub args: Vec<Arg>,
}

/// A slot of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(pub u32);

/// Where a slot lives.
#[derive(Clone, Debug, PartialEq)]
pub enum Place {
    /// In the arena: the buffer of that number of the plan.
    Arena(u32),
    /// The input of that number.
    Input(u32),
    /// The param of that number.
    Param(u32),
    /// A result of the program that runs once when params are set.
    Prepared(u32),
    /// The output of that number.
    Output(u32),
    /// Data of the program.
    Constant(Tensor),
}

/// A dense tensor in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Slot {
    /// The dtype.
    pub dtype: DType,
    /// Its sizes.
    pub shape: Vec<SizeId>,
    /// The number of elements.
    pub len: SizeId,
    /// Where it lives.
    pub place: Place,
}

/// A call of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The kernel, by its place in the program.
    pub kernel: u32,
    /// The slot of each argument, and the element at which it starts.
    pub args: Vec<(SlotId, SizeId)>,
    /// The ops that it stands for, for people.
    pub label: String,
}

/// A named input, param or output.
#[derive(Clone, Debug, PartialEq)]
pub struct Named {
    /// Its name.
    pub name: String,
    /// Its dtype.
    pub dtype: DType,
    /// Its sizes.
    pub shape: Vec<Dim>,
    /// Its slot.
    pub slot: SlotId,
}

/// A condition on the sizes, to be checked when they are bound.
#[derive(Clone, Debug)]
pub struct Check {
    /// What the graph asks, and which op of it.
    pub condition: Condition,
    /// The size that it is about.
    pub size: SizeId,
    /// For one that asks for equal sizes: the other one.
    pub other: Option<SizeId>,
}

/// A graph, ready for a device.
#[derive(Clone, Debug)]
pub struct Program {
    /// The graph's name.
    pub name: String,
    /// The symbols of its sizes.
    pub symbols: Vec<Symbol>,
    /// Every size.
    pub sizes: Sizes,
    /// What must hold of the sizes; what holds for every binding is left out.
    pub checks: Vec<Check>,
    /// The memory.
    pub slots: Vec<Slot>,
    /// The kernels, each once.
    pub kernels: Vec<Kernel>,
    /// The calls, in order.
    pub calls: Vec<Call>,
    /// The inputs.
    pub inputs: Vec<Named>,
    /// The params.
    pub params: Vec<Named>,
    /// What `prepare` gives, in order: further params.
    pub prepared: Vec<Named>,
    /// The outputs.
    pub outputs: Vec<Named>,
    /// Runs once when the params are set: from params to what is prepared.
    pub prepare: Option<Box<Program>>,
    /// The arena's layout.
    pub plan: crate::plan::Plan,
    /// Why things were fused or kept apart, in the order of the calls.
    pub notes: Vec<String>,
}

impl PartialEq for Program {
    /// Whether two programs are the same for a device.
    fn eq(&self, other: &Program) -> bool {
        self.slots == other.slots
            && self.kernels == other.kernels
            && self.calls.len() == other.calls.len()
            && self.calls.iter().zip(&other.calls).all(|(a, b)| a.kernel == b.kernel && a.args == b.args)
            && self.sizes.dims == other.sizes.dims
    }
}

impl Program {
    /// The slot, or an error: a program is made by the compiler, so that one is missing is a fault of ours.
    pub fn slot(&self, id: SlotId) -> Result<&Slot> {
        self.slots.get(id.0 as usize).ok_or_else(|| fault("a slot is missing"))
    }

    /// Adds conditions on the sizes.
    pub fn demand(&mut self, conditions: Vec<Condition>) {
        for condition in conditions {
            let (size, other) = match &condition.demand {
                Demand::NotNegative(d) => (self.sizes.id(d), None),
                Demand::Equal(a, b) => (self.sizes.id(a), Some(self.sizes.id(b))),
            };
            self.checks.push(Check { condition, size, other });
        }
    }

    /// Whether these sizes are such as the graph asks for; an error that names the op if not.
    pub fn check(&self, sizes: &[i64]) -> Result<()> {
        let value = |id: SizeId| sizes.get(id.0 as usize).copied().unwrap_or(0);
        self.checks.iter().try_for_each(|c| {
            let refusal = c.condition.demand.refusal(value(c.size), c.other.map_or(0, value));
            refusal.map_or(Ok(()), |text| Err(c.condition.error(&text)))
        })
    }

    /// Makes the last `count` params what `prepare` gives.
    pub fn take_prepared(&mut self, count: usize) -> Result<()> {
        let from =
            self.params.len().checked_sub(count).ok_or_else(|| fault("fewer params than are prepared"))?;
        self.prepared = self.params.split_off(from);
        for (k, p) in self.prepared.iter().enumerate() {
            let slot = self.slots.get_mut(p.slot.0 as usize).ok_or_else(|| fault("a slot is missing"))?;
            slot.place = Place::Prepared(k as u32);
        }
        Ok(())
    }

    /// The kernel of a call.
    pub fn kernel(&self, call: &Call) -> Result<&Kernel> {
        self.kernels.get(call.kernel as usize).ok_or_else(|| fault("a kernel is missing"))
    }
}

/// An error that only a fault in the compiler can cause.
pub fn fault(what: &str) -> Error {
    Error::new(rlx_ir::Code::Verify, format!("the compiler made a mistake: {what}"))
}
