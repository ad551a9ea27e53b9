//! Merges projections of one value by several weights into one product.

use super::build::pick;
use super::dot::{Roles, dot, roles};
use super::work::{N, V, Work};
use super::{Apply, Rule, Stage};
use rlx_ir::dim::Dim;
use rlx_ir::ops::concat::Concat;
use rlx_ir::ops::dot::DotGeneral;
use rlx_ir::ops::elementwise::Add;
use rlx_ir::ops::linear::Qkv;

pub const RULES: &[Rule] = &[Rule {
    name: "merge_projections",
    algebra: "x·a, x·b → parts of x·[a b]; x·a, x·b, x·c → qkv(x, [a b c]) where two are equally wide",
    stage: Stage::Merge,
    roots: &[DotGeneral::DEF],
    apply: Apply::One(merge_projections),
    samples: &[
        "graph t { input x: f32[2, 3, 4] param a: f32[4, 6] param b: f32[4, 5] y = matmul(x, a) z = matmul(x, b) \
         output y = y output z = z }",
        "graph t { input x: f32[2, 3, 4] param a: f32[6, 4] param b: f32[2, 4] param c: f32[2, 4] param d: f32[6] \
         param e: f32[2] param f: f32[2] q = linear(x, a, d) {transpose_w: true} k = linear(x, b, e) {transpose_w: true} \
         v = linear(x, c, f) {transpose_w: true} output q = q output k = k output v = v }",
    ],
    refuses: &[
        "graph t { input x: f32[2, 3, 4] input a: f32[4, 6] param b: f32[4, 5] y = matmul(x, a) z = matmul(x, b) \
         output y = y output z = z }",
        "graph t { input x: f32[2, 3, 4] param a: f32[4, 6] param b: f32[6, 5] y = matmul(x, a) z = matmul(y, b) \
         output z = z }",
    ],
}];

/// A product of x with a weight, and the bias that is added to it.
struct Projection {
    /// What it gives, the bias included.
    y: V,
    w: V,
    /// Which axis of the weight is contracted.
    axis: usize,
    width: Dim,
    bias: Option<V>,
}

/// The node as a projection of x; whether a bias is taken along is decided later.
fn projection(w: &Work, n: N, x: V) -> Option<Projection> {
    let r = roles(w, n)?;
    let (own, weight) = w.xy(n)?;
    let last = w.rank(x)?.checked_sub(1)?;
    if own != x
        || !r.batch[0].is_empty()
        || r.contract[0] != [last]
        || w.rank(weight)? != 2
        || !w.fixed(weight)
    {
        return None;
    }
    let axis = *r.contract[1].first()?;
    let width = w.shape(weight)?.get(1 - axis)?.clone();
    let y = w.y(n)?;
    let sum = match w.users(y) {
        [u] if w.is(*u, Add::DEF) && !w.is_output(y) => Some(*u),
        _ => None,
    };
    let bias = sum.and_then(|u| {
        let (a, b) = w.xy(u)?;
        let b = if a == y { b } else { a };
        (w.shape(b)?.as_slice() == [width.clone()] && w.fixed(b)).then_some((w.y(u)?, b))
    });
    Some(Projection { y: bias.map_or(y, |b| b.0), w: weight, axis, width, bias: bias.map(|b| b.1) })
}

fn merge_projections(w: &mut Work, n: N) -> Option<V> {
    let x = w.x(n, 0)?;
    // First, because whatever uses x often is looked at from each of its users.
    projection(w, n, x)?;
    let mut users: Vec<N> = w.users(x).iter().copied().filter(|u| w.is(*u, DotGeneral::DEF)).collect();
    users.sort_unstable();
    users.dedup();
    if users.len() < 2 || w.fixed(x) {
        return None;
    }
    let mut parts = Vec::new();
    for u in users {
        if let Some(p) = projection(w, u, x) {
            // All at once, from the first one.
            if parts.is_empty() && u != n {
                return None;
            }
            parts.push((w.y(u)?, p));
        }
    }
    if parts.len() < 2 {
        return None;
    }
    // Biases are merged if all have one; else they stay behind the product.
    let biased = parts.iter().all(|p| p.1.bias.is_some());
    let order = queries_first(&parts.iter().map(|p| p.1.width.clone()).collect::<Vec<_>>());
    let order: Vec<usize> = order.unwrap_or_else(|| (0..parts.len()).collect());
    // Weights that PyTorch keeps as [n, k] are joined as they are, and turned together.
    let turned = parts.iter().all(|p| p.1.axis == 1);
    let mut weights = Vec::new();
    let mut biases = Vec::new();
    for i in &order {
        let p = &parts.get(*i)?.1;
        weights.push(w.permute(p.w, if turned || p.axis == 0 { &[0, 1] } else { &[1, 0] })?);
        biases.extend(p.bias.filter(|_| biased));
    }
    let joined = w.emit(Concat::DEF, &Concat { axis: !turned as i64 }, &weights)?;
    let weight = w.permute(joined, if turned { &[1, 0] } else { &[0, 1] })?;
    let bias = if biased { Some(w.emit(Concat::DEF, &Concat { axis: 0 }, &biases)?) } else { None };
    let widths: Vec<Dim> = order.iter().filter_map(|i| parts.get(*i).map(|p| p.1.width.clone())).collect();
    let made = match widths.as_slice() {
        [q, k, v] if k == v && w.dtype(x)?.is_float() => {
            let a = rlx_ir::attr::Attributes::to_values(&Qkv { q: q.clone(), kv: k.clone() });
            w.apply(Qkv::DEF, a, vec![Some(x), Some(weight), bias], Vec::new())?
        }
        _ => slices(w, x, weight, bias, &widths)?,
    };
    let olds: Vec<V> = parts.iter().map(|(dot, p)| if biased { p.y } else { *dot }).collect();
    let olds = pick(&olds, &order)?;
    if olds.iter().zip(&made).any(|(old, new)| w.ty(*old) != w.ty(*new)) {
        return None;
    }
    let at = order.iter().position(|i| *i == 0)?;
    for (old, new) in olds.iter().zip(&made) {
        w.replace(*old, *new);
    }
    // With its bias replaced nothing uses the product itself any more; what is given for it has its type.
    made.get(at).copied()
}

/// The order in which the last two of three widths are equal.
fn queries_first(widths: &[Dim]) -> Option<Vec<usize>> {
    match widths {
        [_, b, c] if b == c => Some(vec![0, 1, 2]),
        [a, _, c] if a == c => Some(vec![1, 0, 2]),
        [a, b, _] if a == b => Some(vec![2, 0, 1]),
        _ => None,
    }
}

/// One product by the joined weights, and its parts.
fn slices(w: &mut Work, x: V, weight: V, bias: Option<V>, widths: &[Dim]) -> Option<Vec<V>> {
    let last = w.rank(x)?.checked_sub(1)?;
    let r = Roles { contract: [vec![last], vec![0]], batch: [vec![], vec![]], free: [vec![], vec![]] };
    let mut y = dot(w, x, weight, &r)?;
    if let Some(b) = bias {
        y = w.plain(Add::DEF, &[y, b])?;
    }
    let mut start = Dim::constant(0);
    let mut out = Vec::new();
    for n in widths {
        out.push(w.narrow(y, last, &start, n)?);
        start += n;
    }
    Some(out)
}
