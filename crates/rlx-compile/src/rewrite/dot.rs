//! `dot_general`, which all products have become: views of operands and results move into its axes.

use super::build::{ints, pick};
use super::work::{N, V, Work};
use super::{Apply, Rule, Stage};
use rlx_ir::dim::Dim;
use rlx_ir::ops::dot::DotGeneral;
use rlx_ir::ops::views::{Permute, Reshape};
use rlx_ir::types::{product, resolve_axes};

pub const RULES: &[Rule] = &[
    Rule {
        name: "dot_axes",
        algebra: "contracted axes counted from the start, in the order of x",
        stage: Stage::Simplify,
        roots: &[DotGeneral::DEF],
        apply: Apply::One(dot_axes),
        samples: &["graph t { input x: f32[2, 3] input y: f32[3, 4] \
             z = dot_general(x, y) {contract_x: [-1], contract_y: [0]} output z = z }"],
        refuses: &["graph t { input x: f32[2, 3] input y: f32[3, 4] \
             z = dot_general(x, y) {contract_x: [1], contract_y: [0]} output z = z }"],
    },
    Rule {
        name: "dot_permuted",
        algebra: "dot(permute(x), y) → dot(x, y) with other axes, where the free axes of x stay in order",
        stage: Stage::Simplify,
        roots: &[DotGeneral::DEF],
        apply: Apply::One(dot_permuted),
        samples: &[
            "graph t { input x: f32[2, 3] input w: f32[4, 3] wt = permute(w) {axes: [1, 0]} \
             z = dot_general(x, wt) {contract_x: [1], contract_y: [0]} output z = z }",
            "graph t { input q: f32[2, 3, 4, 5] input k: f32[2, 6, 4, 5] a = permute(q) {axes: [0, 2, 1, 3]} \
             b = permute(k) {axes: [0, 2, 3, 1]} z = matmul(a, b) output z = z }",
        ],
        refuses: &["graph t { input x: f32[2, 3, 4] input w: f32[4, 5] a = permute(x) {axes: [1, 0, 2]} \
             z = matmul(a, w) output z = z }"],
    },
    Rule {
        name: "permuted_dot",
        algebra: "permute(dot(x, y)) → dot(y, x), where the permute exchanges their free axes",
        stage: Stage::Simplify,
        roots: &[Permute::DEF],
        apply: Apply::One(permuted_dot),
        samples: &[
            "graph t { input x: f32[2, 3] input w: f32[3, 4] z = matmul(x, w) y = permute(z) {axes: [1, 0]} \
             output y = y }",
        ],
        refuses: &["graph t { input x: f32[2, 5, 3] input w: f32[3, 4] z = matmul(x, w) \
             y = permute(z) {axes: [1, 0, 2]} output y = y }"],
    },
    Rule {
        name: "dot_flattened",
        algebra: "dot(reshape(x, [m, k]), w) → reshape(dot(x, w), [m, n]), where m are the leading axes of x",
        stage: Stage::Simplify,
        roots: &[DotGeneral::DEF],
        apply: Apply::One(dot_flattened),
        samples: &["graph t { input x: f32[2, 3, 4] input w: f32[4, 5] a = reshape(x) {shape: [6, 4]} \
             b = matmul(a, w) y = reshape(b) {shape: [2, 3, 5]} output y = y }"],
        refuses: &["graph t { input x: f32[2, 3, 4] input w: f32[2, 5] a = reshape(x) {shape: [12, 2]} \
             y = matmul(a, w) output y = y }"],
    },
    Rule {
        name: "dot_merged_batch",
        algebra: "dot(reshape(x, [b·h, ..]), reshape(y, [b·h, ..])) → reshape(dot(x, y)), batched over b and h",
        stage: Stage::Simplify,
        roots: &[DotGeneral::DEF],
        apply: Apply::One(dot_merged_batch),
        samples: &[
            "graph t { input x: f32[2, 3, 4, 5] input y: f32[2, 3, 5, 6] a = reshape(x) {shape: [6, 4, 5]} \
             b = reshape(y) {shape: [6, 5, 6]} z = matmul(a, b) output z = z }",
        ],
        refuses: &[
            "graph t { input x: f32[2, 3, 4, 5] input y: f32[3, 2, 5, 6] a = reshape(x) {shape: [6, 4, 5]} \
             b = reshape(y) {shape: [6, 5, 6]} z = matmul(a, b) output z = z }",
        ],
    },
];

/// What each axis of the two operands is for; free axes are in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Roles {
    pub contract: [Vec<usize>; 2],
    pub batch: [Vec<usize>; 2],
    pub free: [Vec<usize>; 2],
}

/// The axes of a `dot_general`.
pub fn roles(w: &Work, n: N) -> Option<Roles> {
    if !w.is(n, DotGeneral::DEF) {
        return None;
    }
    let (x, y) = w.xy(n)?;
    let a = w.attrs::<DotGeneral>(n)?;
    let side = |v: V, contract: &[i64], batch: &[i64]| -> Option<[Vec<usize>; 3]> {
        let rank = w.rank(v)?;
        let (c, b) = (resolve_axes(contract, rank).ok()?, resolve_axes(batch, rank).ok()?);
        let free = (0..rank).filter(|i| !c.contains(i) && !b.contains(i)).collect();
        Some([c, b, free])
    };
    let [cx, bx, fx] = side(x, &a.contract_x, &a.batch_x)?;
    let [cy, by, fy] = side(y, &a.contract_y, &a.batch_y)?;
    Some(Roles { contract: [cx, cy], batch: [bx, by], free: [fx, fy] })
}

/// Products of x and y along those axes.
pub fn dot(w: &mut Work, x: V, y: V, r: &Roles) -> Option<V> {
    let axes = |v: &[usize]| ints(v.iter().copied());
    let a = DotGeneral {
        contract_x: axes(&r.contract[0]),
        contract_y: axes(&r.contract[1]),
        batch_x: axes(&r.batch[0]),
        batch_y: axes(&r.batch[1]),
    };
    w.emit(DotGeneral::DEF, &a, &[x, y])
}

fn dot_axes(w: &mut Work, n: N) -> Option<V> {
    let (x, y) = w.xy(n)?;
    let mut r = roles(w, n)?;
    let mut pairs: Vec<(usize, usize)> =
        r.contract[0].iter().copied().zip(r.contract[1].iter().copied()).collect();
    pairs.sort_unstable();
    r.contract = [pairs.iter().map(|p| p.0).collect(), pairs.iter().map(|p| p.1).collect()];
    dot(w, x, y, &r).filter(|z| Some(*z) != w.y(n))
}

fn dot_permuted(w: &mut Work, n: N) -> Option<V> {
    let (x, y) = w.xy(n)?;
    let r = roles(w, n)?;
    for (i, v) in [x, y].into_iter().enumerate() {
        let Some(m) = w.by(v, Permute::DEF) else { continue };
        let (p, inner) = (w.permutation(m)?, w.x(m, 0)?);
        let mut new = r.clone();
        let axes = |of: &[Vec<usize>; 2]| pick(&p, of.get(i)?);
        if !axes(&r.free)?.is_sorted() {
            continue;
        }
        *new.contract.get_mut(i)? = axes(&r.contract)?;
        *new.batch.get_mut(i)? = axes(&r.batch)?;
        return if i == 0 { dot(w, inner, y, &new) } else { dot(w, x, inner, &new) };
    }
    None
}

fn permuted_dot(w: &mut Work, n: N) -> Option<V> {
    let z = w.x(n, 0)?;
    let m = w.by(z, DotGeneral::DEF).filter(|_| w.once(z))?;
    let (r, p) = (roles(w, m)?, w.permutation(n)?);
    let (x, y) = w.xy(m)?;
    let (nb, nx) = (r.batch[0].len(), r.free[0].len());
    let (lead, rest) = p.split_at_checked(nb)?;
    if lead.iter().any(|a| *a >= nb) {
        return None;
    }
    let swapped: Vec<usize> = (nb + nx..p.len()).chain(nb..nb + nx).collect();
    let batch = [pick(&r.batch[0], lead)?, pick(&r.batch[1], lead)?];
    if rest.is_sorted() {
        return dot(w, x, y, &Roles { batch, ..r });
    }
    if rest != swapped {
        return None;
    }
    let turn = |[a, b]: [Vec<usize>; 2]| [b, a];
    dot(w, y, x, &Roles { contract: turn(r.contract), batch: turn(batch), free: turn(r.free) })
}

fn dot_flattened(w: &mut Work, n: N) -> Option<V> {
    let (flat, y) = w.xy(n)?;
    let x = w.arg(flat, Reshape::DEF)?;
    let r = roles(w, n)?;
    if r.contract[0] != [1] || r.free[0] != [0] || !r.batch[0].is_empty() {
        return None;
    }
    let (from, to) = (w.shape(x)?, w.shape(flat)?);
    let (last, lead) = from.split_last()?;
    if lead.is_empty() || to.get(1)? != last || *to.first()? != product(lead) {
        return None;
    }
    let roles = Roles { contract: [vec![lead.len()], r.contract[1].clone()], ..r };
    let z = dot(w, x, y, &roles)?;
    let shape = w.shape(w.y(n)?)?.clone();
    w.reshape(z, &shape)
}

fn dot_merged_batch(w: &mut Work, n: N) -> Option<V> {
    let (x, y) = w.xy(n)?;
    let r = roles(w, n)?;
    if r.batch[0] != [0] || r.batch[1] != [0] {
        return None;
    }
    // The axes that were merged into the first.
    let merged = |v: V| -> Option<(V, Vec<Dim>)> {
        let inner = w.arg(v, Reshape::DEF)?;
        let (from, to) = (w.shape(inner)?, w.shape(v)?);
        let count = (from.len() + 1).checked_sub(to.len())?;
        let (lead, rest) = from.split_at_checked(count)?;
        (count > 1 && rest == to.get(1..)? && product(lead) == *to.first()?).then(|| (inner, lead.to_vec()))
    };
    let ((x, lead), (y, other)) = (merged(x)?, merged(y)?);
    if lead != other {
        return None;
    }
    let moved = |axes: &[Vec<usize>; 2]| {
        axes.clone().map(|side| side.into_iter().map(|a| a + lead.len() - 1).collect::<Vec<_>>())
    };
    let batch = [(0..lead.len()).collect(), (0..lead.len()).collect()];
    let roles = Roles { contract: moved(&r.contract), batch, free: moved(&r.free) };
    let z = dot(w, x, y, &roles)?;
    let shape = w.shape(w.y(n)?)?.clone();
    w.reshape(z, &shape)
}
