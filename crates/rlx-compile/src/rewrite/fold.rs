//! Constants: what is known now is computed now, by the oracle.

use super::build::elementwise;
use super::work::{N, V, Work};
use super::{Apply, Rule, Stage};
use rlx_ir::func::{Def, Node, Output, ValueInfo};
use rlx_ir::op::{Meaning, OpDef};
use rlx_ir::ops::control::Barrier;
use rlx_ir::ops::create::{Iota, SizeOf};
use rlx_ir::ops::elementwise::Constant;
use rlx_ir::ops::views::{Broadcast, Permute, Reshape, Slice};
use rlx_ir::{Func, Options, Rounding, Tensor, ValueId, eval};

/// The largest result that is folded, in elements.
pub const MAX_RESULT: i64 = 1 << 16;
/// The same for ops that may take many steps for an element, and for what is counted from nothing by `iota`, which
/// costs less to count than to load.
const MAX_WORK: i64 = 1 << 12;

pub const RULES: &[Rule] = &[
    Rule {
        name: "splat",
        algebra: "a constant [c, c, …] → broadcast(c)",
        stage: Stage::Simplify,
        roots: &[Constant::DEF],
        apply: Apply::One(splat),
        samples: &[
            "graph t { input x: f32[2, 2] c = constant() {value: f32[2, 2] [3, 3, 3, 3]} y = div(x, c) \
             output y = y }",
        ],
        refuses: &[
            "graph t { input x: f32[2] c = constant() {value: f32[2] [3, 2]} y = div(x, c) output y = y }",
        ],
    },
    Rule {
        name: "fold",
        algebra: "f(constants) → a constant",
        stage: Stage::Simplify,
        roots: &[],
        apply: Apply::One(fold),
        samples: &[
            "graph t { input x: f32[2] c = constant() {value: f32[2] [1, 2]} d = exp(c) y = mul(x, d) output y = y }",
            "graph t { input x: f32[2] n = size_of() {value: 64, dtype: f32} d = rsqrt(n) y = mul(x, d) output y = y }",
            "graph t { input x: bool[3, 3] i = iota() {shape: [3, 1], axis: 0} j = iota() {shape: [3], axis: 0} \
             m = greater_equal(i, j) y = and(x, m) output y = y }",
        ],
        refuses: &[
            "graph t { dim n <= 9 input x: f32[n] c = size_of() {value: n, dtype: f32} y = mul(x, c) output y = y }",
            "graph t { i = iota() {shape: [3], axis: 0} output i = i }",
        ],
    },
];

/// The elements of a constant shape.
fn elements(w: &Work, v: V) -> Option<i64> {
    w.ty(v)?.numel().as_const()
}

fn splat(w: &mut Work, n: N) -> Option<V> {
    let y = w.y(n)?;
    let t = w.data(y)?;
    let size = t.dtype().bytes()?;
    if t.len() < 2 {
        return None;
    }
    let first = t.bytes().get(..size)?;
    if t.bytes().chunks_exact(size).any(|c| c != first) {
        return None;
    }
    let one = Tensor::from_bytes(t.dtype(), &[], first).ok()?;
    let one = w.constant(one)?;
    w.like_result(one, n)
}

/// Whether the value is as good as a constant: data, a repeated number, or an index along an axis.
fn known(w: &Work, v: V, iota: &mut bool) -> bool {
    let Some(n) = w.def(v).map(|d| d.0) else { return false };
    if w.is(n, Iota::DEF) {
        *iota = true;
        return elements(w, v).is_some_and(|n| n <= MAX_WORK);
    }
    w.is(n, Constant::DEF) || (w.is(n, Broadcast::DEF) && w.number(v).is_some() && elements(w, v).is_some())
}

/// Ops whose results are never data: those that say how to make them shorter, and those with effects or regions.
fn stays(op: &'static OpDef) -> bool {
    [Constant::DEF, Iota::DEF, Broadcast::DEF, Barrier::DEF].iter().any(|d| std::ptr::eq(*d, op))
        || !op.regions.is_empty()
        || matches!(op.meaning, Meaning::Collective(_) | Meaning::Region)
}

fn fold(w: &mut Work, n: N) -> Option<V> {
    let node = w.node(n)?;
    let (op, y) = (node.op, w.y(n)?);
    if stays(op) || node.results.len() != 1 {
        return None;
    }
    let mut iota = false;
    if !node.operands.iter().flatten().all(|v| known(w, *v, &mut iota)) {
        return None;
    }
    if node.operands.is_empty() && !std::ptr::eq(op, SizeOf::DEF) {
        return None;
    }
    let simple =
        elementwise(op) || [Reshape::DEF, Permute::DEF, Slice::DEF].iter().any(|d| std::ptr::eq(*d, op));
    let limit = if simple && !iota { MAX_RESULT } else { MAX_WORK };
    let small = |v: &V| elements(w, *v).is_some_and(|n| n <= limit);
    if !small(&y) || !node.operands.iter().flatten().all(small) {
        return None;
    }
    // A view of an index is as short as data would be long.
    if iota && !elementwise(op) {
        return None;
    }
    if !w.may_fold(elements(w, y)?) {
        return None;
    }
    let f = alone(w, n)?;
    let options = Options { rounding: Rounding::Declared, max_steps: 10_000 };
    let (_, value) = eval(&f, &[], &options).ok()?.pop()?;
    let t = value.to_tensor().ok()?;
    w.constant(t)
}

/// A graph of the node and what defines its operands.
fn alone(w: &Work, n: N) -> Option<Func> {
    let mut f = Func::empty("fold");
    let value = copy(w, n, &mut f)?;
    f.outputs.push(Output { name: "y".into(), value });
    Some(f)
}

fn copy(w: &Work, n: N, f: &mut Func) -> Option<V> {
    let mut operands = Vec::new();
    for o in &w.node(n)?.operands {
        operands.push(match o {
            None => None,
            Some(v) => Some(copy(w, w.def(*v)?.0, f)?),
        });
    }
    define(w, n, operands, f)
}

fn define(w: &Work, n: N, operands: Vec<Option<V>>, f: &mut Func) -> Option<V> {
    let node = w.node(n)?;
    let y = ValueId(f.values.len() as u32);
    let ty = w.ty(w.y(n)?)?.clone();
    f.values.push(ValueInfo { ty, name: None, def: Def::Node(f.nodes.len() as u32, 0) });
    f.nodes.push(Node { operands, results: vec![y], ..node.clone() });
    Some(y)
}
