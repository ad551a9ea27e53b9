//! Fused regions: bound to sizes once, then run tile by tile.
//!
//! A register holds one number for the whole task (*splat*), one per row, or a tile of lanes. Which is which follows from the
//! strides of what is read. The three ways to run a region:
//!
//! - *flat*: no rows; the whole space is one line of lanes, cut into tiles;
//! - *streaming*: row by row; the lanes of a row in tiles, what is folded is summed up over the tiles, and what depends on a
//!   fold is computed once per row behind them;
//! - *resident*: row by row, a whole row at once, since lanes depend on folds (a softmax, a norm).

mod bind;
mod columns;
mod known;
mod run;

pub use bind::bind;

use rlx_ir::op::step::Fold;
use rlx_simd::tile::{BinaryFn, FoldFn, IotaFn, LoadFn, Store, StoreFn, TernaryFn, UnaryFn};

/// The axes of an argument along the lanes, outermost first: size and stride in elements. At least one.
#[derive(Clone, Debug)]
pub(crate) struct Lanes(pub Vec<(usize, isize)>);

/// An argument with its strides.
#[derive(Clone, Debug)]
pub(crate) struct BoundArg {
    /// Bytes of an element in memory.
    pub bytes: usize,
    /// Bytes of an element in a register.
    pub width: usize,
    /// The stride of each row axis, in bytes.
    pub rows: Vec<isize>,
    /// How the lanes lie.
    pub lanes: Lanes,
}

/// Where a register's number or tile lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// One number, in the small slot of that number.
    Slot(u32),
    /// A tile, in the buffer of that number.
    Tile(u32),
    /// A tile that is the argument's own memory.
    Memory(u32),
    /// A tile that the kernel in front of the region left, or that the kernel behind it takes.
    Front,
}

/// A resolved instruction. Registers are places; `n` is 1 for those in slots.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// Memory into a tile.
    Load { f: LoadFn, arg: u32, dst: Place },
    /// One element into a slot.
    LoadOne { f: LoadFn, arg: u32, dst: Place },
    /// The same number into a whole tile.
    Fill { f: LoadFn, src: Place, dst: Place },
    /// A number.
    Number { bytes: [u8; 8], dst: Place },
    /// Consecutive numbers: `base + row part + lane · step`.
    Iota { f: IotaFn, offset: i64, rows: Vec<i64>, lanes: Lanes, dst: Place, width: usize },
    /// An indexed load.
    Take {
        f: LoadFn,
        one: LoadFn,
        arg: u32,
        index: Place,
        index_ty: Store,
        stride: isize,
        len: i64,
        dst: Place,
        width: usize,
    },
    /// One operand.
    Unary { f: UnaryFn, a: Place, dst: Place },
    /// Two operands.
    Binary { f: BinaryFn, a: Place, b: Place, dst: Place },
    /// Three operands.
    Ternary { f: TernaryFn, a: Place, b: Place, c: Place, dst: Place },
    /// Adds the lanes of a tile to an accumulator.
    Fold { f: FoldFn, fold: u32, a: Place },
    /// The number that an accumulator holds at the end.
    Finish { fold: u32, dst: Place },
    /// A tile into memory.
    Store { f: StoreFn, arg: u32, src: Place },
    /// One element into memory.
    StoreOne { f: StoreFn, arg: u32, src: Place },
}

/// A fold: what it starts from, and its dtype.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Folding {
    pub kind: Fold,
    pub ty: Store,
    pub init: [u8; 8],
}

/// How a region runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Tiles over the whole space.
    Flat,
    /// Row by row, tiles over the lanes.
    Streaming,
    /// Row by row, all lanes at once.
    Resident,
}

/// A region bound to sizes.
#[derive(Clone, Debug)]
pub struct BoundRegion {
    pub(crate) mode: Mode,
    /// The sizes of the row axes.
    pub(crate) rows: Vec<usize>,
    /// The number of rows.
    pub(crate) count: usize,
    /// The number of lanes.
    pub(crate) lanes: usize,
    /// The arguments of the kernel; those in front of the region have no strides.
    pub(crate) args: Vec<BoundArg>,
    /// Once per task.
    pub(crate) once: Vec<Op>,
    /// Once in all: what is stored only once.
    pub(crate) only: Vec<Op>,
    /// Once per row, before the lanes.
    pub(crate) head: Vec<Op>,
    /// Per tile of lanes.
    pub(crate) body: Vec<Op>,
    /// Once per row, behind the lanes; all that is stored once per row.
    pub(crate) tail: Vec<Op>,
    pub(crate) folds: Vec<Folding>,
    /// The number of small slots.
    pub(crate) slots: usize,
    /// The number of tile buffers.
    pub(crate) tiles: usize,
    /// Elements of a tile.
    pub(crate) tile: usize,
    /// Bytes of an element of a tile: those of the widest register.
    pub(crate) width: usize,
    /// Elements per task.
    pub(crate) grain: usize,
    /// The parts that the lanes of a long row are cut into: each of `grain` lanes.
    pub(crate) parts: usize,
    /// Only copies one argument to another: which, and the bytes of an element.
    pub(crate) copy: Option<(u32, u32, usize)>,
    /// The columns' own form.
    pub(crate) columns: Option<columns::Columns>,
    /// Flops of a run, counting every instruction as one.
    pub flops: u64,
}
