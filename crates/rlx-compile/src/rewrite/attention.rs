//! Raises attention: softmax(scale · q · kᵀ + bias, under a mask) · v.

use super::activation::product;
use super::build::{close, is_identity, pick};
use super::dot::{Roles, roles};
use super::mask::{Added, added, conjuncts, hides, is_causal};
use super::work::{N, V, Work};
use super::{Apply, Rule, Stage};
use rlx_ir::dim::Dim;
use rlx_ir::ops::attention::Attention;
use rlx_ir::ops::dot::DotGeneral;
use rlx_ir::ops::elementwise::{Add, And, Div, Mul, Not, Select};
use rlx_ir::ops::math::Tanh;
use rlx_ir::ops::softmax::Softmax;
use rlx_ir::ops::views::{Broadcast, Permute, Reshape};
use rlx_ir::types::{Shape, resolve_axis};

pub const RULES: &[Rule] = &[
    Rule {
        name: "raise_attention",
        algebra: "softmax(c · q · kᵀ + b) · v → attention(q, k, v), with what hides keys as a mask or as causal",
        stage: Stage::Raise,
        roots: &[DotGeneral::DEF],
        apply: Apply::One(raise_attention),
        samples: &[
            // BERT: heads by reshape and permute, scores divided, a bias from the mask.
            "graph t { input q: f32[2, 3, 8] input k: f32[2, 3, 8] input v: f32[2, 3, 8] input m: f32[2, 1, 1, 3] \
             c = constant() {value: f32[] 2} \
             a = reshape(q) {shape: [2, 3, 2, 4]} qh = permute(a) {axes: [0, 2, 1, 3]} \
             b = reshape(k) {shape: [2, 3, 2, 4]} kt = permute(b) {axes: [0, 2, 3, 1]} \
             d = reshape(v) {shape: [2, 3, 2, 4]} vh = permute(d) {axes: [0, 2, 1, 3]} \
             s = matmul(qh, kt) r = div(s, c) e = add(r, m) p = softmax(e) o = matmul(p, vh) \
             f = permute(o) {axes: [0, 2, 1, 3]} y = reshape(f) {shape: [2, 3, 8]} output y = y }",
            // One batch axis, scaled queries, a mask.
            "graph t { input q: f32[2, 3, 4] input k: f32[2, 5, 4] input v: f32[2, 5, 6] input m: bool[2, 3, 5] \
             c = constant() {value: f32[] 0.3} i = constant() {value: f32[] -inf} qs = mul(q, c) \
             s = dot_general(qs, k) {contract_x: [2], contract_y: [2], batch_x: [0], batch_y: [0]} \
             e = select(m, s, i) p = softmax(e) y = matmul(p, v) output y = y }",
            // Causal by position, with a soft cap.
            "graph t { dim s <= 9 input q: f32[1, 2, s, 4] input k: f32[1, 2, s, 4] input v: f32[1, 2, s, 4] \
             c = constant() {value: f32[] 0.01} h = constant() {value: f32[] 50} f = constant() {value: f32[] -3.4e38} \
             kt = permute(k) {axes: [0, 1, 3, 2]} s = matmul(q, kt) u = mul(s, c) t = tanh(u) b = mul(t, h) \
             i = iota() {shape: [s], axis: 0} j = reshape(i) {shape: [s, 1]} m = less_equal(i, j) \
             e = select(m, b, f) p = softmax(e) y = matmul(p, v) output y = y }",
            // Without a batch.
            "graph t { input q: f32[3, 4] input k: f32[5, 4] input v: f32[5, 6] kt = permute(k) {axes: [1, 0]} \
             s = matmul(q, kt) p = softmax(s) y = matmul(p, v) output y = y }",
        ],
        refuses: &[
            "graph t { input q: f32[3, 4] input k: f32[5, 4] input v: f32[5, 6] kt = permute(k) {axes: [1, 0]} \
             s = matmul(q, kt) p = softmax(s) y = matmul(p, v) output y = y output p = p }",
            "graph t { input q: f32[3, 4] input k: f32[5, 4] input v: f32[5, 6] kt = permute(k) {axes: [1, 0]} \
             s = matmul(q, kt) p = softmax(s) {axis: 0} y = matmul(p, v) output y = y }",
        ],
    },
    Rule {
        name: "causal_mask",
        algebra: "attention(q, k, v, causal and mask) → attention(q, k, v, mask), causal",
        stage: Stage::Raise,
        roots: &[Attention::DEF],
        apply: Apply::One(causal_mask),
        samples: &["graph t { dim s <= 9 input q: f32[1, 2, s, 4] input m: bool[1, 1, 1, s] \
             o = constant() {value: bool[] true} a = broadcast(o) {shape: [s, s]} c = tril(a) b = and(c, m) \
             y = attention(q, q, q, b) output y = y }"],
        refuses: &["graph t { dim s <= 9 input q: f32[1, 2, s, 4] o = constant() {value: bool[] true} \
             a = broadcast(o) {shape: [s, s]} c = tril(a) {k: 1} y = attention(q, q, q, c) output y = y }"],
    },
    Rule {
        name: "shared_heads",
        algebra: "attention(q, repeat(k), repeat(v)) → attention(q, k, v)",
        stage: Stage::Raise,
        roots: &[Attention::DEF],
        apply: Apply::One(shared_heads),
        samples: &["graph t { input q: f32[1, 4, 3, 2] input k: f32[1, 2, 3, 2] input v: f32[1, 2, 3, 2] \
             a = reshape(k) {shape: [1, 2, 1, 3, 2]} b = broadcast(a) {shape: [1, 2, 2, 3, 2]} \
             c = reshape(b) {shape: [1, 4, 3, 2]} d = reshape(v) {shape: [1, 2, 1, 3, 2]} \
             e = broadcast(d) {shape: [1, 2, 2, 3, 2]} f = reshape(e) {shape: [1, 4, 3, 2]} \
             y = attention(q, c, f) output y = y }"],
        refuses: &["graph t { input q: f32[1, 4, 3, 2] input k: f32[1, 2, 3, 2] \
             a = reshape(k) {shape: [1, 1, 2, 3, 2]} b = broadcast(a) {shape: [1, 2, 2, 3, 2]} \
             c = reshape(b) {shape: [1, 4, 3, 2]} y = attention(q, c, c) output y = y }"],
    },
];

/// What becomes of the product of queries and keys before the softmax.
struct Scores {
    /// The product.
    dot: N,
    scale: f64,
    softcap: Option<f64>,
    bias: Vec<V>,
    /// Masks; those marked are complements.
    masks: Vec<(V, bool)>,
    causal: bool,
}

/// The scores that a value is, from the last step to the first; the nodes are noted.
fn scores(w: &mut Work, v: V, scaled: bool, depth: usize, inside: &mut Vec<N>) -> Option<Scores> {
    let (n, _) = w.def(v).filter(|_| depth > 0 && w.once(v))?;
    if w.is(n, DotGeneral::DEF) {
        inside.push(n);
        return Some(Scores {
            dot: n,
            scale: 1.0,
            softcap: None,
            bias: vec![],
            masks: vec![],
            causal: false,
        });
    }
    inside.push(n);
    let dtype = w.dtype(v)?;
    let (x, y) = w.xy(n)?;
    if w.is(n, Mul::DEF) || w.is(n, Div::DEF) {
        let c = w.number(y)?;
        let c = if w.is(n, Div::DEF) { 1.0 / c } else { c };
        if let Some(t) = w.by(x, Tanh::DEF).filter(|_| w.once(x) && !scaled && c.is_finite() && c > 0.0) {
            inside.push(t);
            let p = product(w, w.x(t, 0)?, inside);
            let [f] = p.factors.as_slice() else { return None };
            let s = scores(w, *f, true, depth - 1, inside)?;
            return Some(Scores { scale: s.scale * p.number * c, softcap: Some(c), ..s });
        }
        let s = scores(w, x, true, depth - 1, inside)?;
        return (s.softcap.is_none()).then_some(Scores { scale: s.scale * c, ..s });
    }
    // What is added or hidden before the scores are scaled would have to be scaled too.
    if scaled {
        return None;
    }
    if w.is(n, Add::DEF) {
        let mark = inside.len();
        let (s, bias) = match scores(w, x, false, depth - 1, inside) {
            Some(s) => (s, y),
            None => {
                inside.truncate(mark);
                (scores(w, y, false, depth - 1, inside)?, x)
            }
        };
        return same_shape(w, v, &s).then(|| with_bias(w, s, bias))?;
    }
    if w.is(n, Select::DEF) {
        let (c, a, b) = (w.x(n, 0)?, w.x(n, 1)?, w.x(n, 2)?);
        let hidden = |v: V| w.number(v).filter(|f| hides(dtype, *f));
        let (inner, fill, complement) = match (hidden(b), hidden(a)) {
            (Some(f), _) => (a, f, false),
            (None, Some(f)) => (b, f, true),
            _ => return None,
        };
        let s = scores(w, inner, false, depth - 1, inside)?;
        return same_shape(w, v, &s).then(|| with_mask(w, s, c, complement, fill))?;
    }
    None
}

/// Whether a step on the way has the shape of the scores: nothing was repeated.
fn same_shape(w: &Work, v: V, s: &Scores) -> bool {
    w.y(s.dot).is_some_and(|d| w.ty(d) == w.ty(v))
}

/// The number of queries and of keys.
fn lengths(w: &Work, s: &Scores) -> Option<(Dim, Dim)> {
    let shape = w.shape(w.y(s.dot)?)?;
    let mut last = shape.iter().rev().cloned();
    let t = last.next()?;
    Some((last.next()?, t))
}

fn with_bias(w: &mut Work, mut s: Scores, bias: V) -> Option<Scores> {
    let (rows, columns) = lengths(w, &s)?;
    match added(w, bias, &rows, &columns) {
        Added::Mask(m, fill) => with_mask(w, s, m, false, fill),
        Added::Hidden(m, fill) => with_mask(w, s, m, true, fill),
        Added::Causal(fill) if fill == f64::NEG_INFINITY || all_see(&rows, &columns) => {
            s.causal = true;
            Some(s)
        }
        _ => {
            s.bias.push(bias);
            Some(s)
        }
    }
}

/// Whether every causal query sees a key at least.
fn all_see(s: &Dim, t: &Dim) -> bool {
    (t - s).lower().is_some_and(|l| l >= 0)
}

/// A mask. Where it hides with a finite number, a query that sees nothing takes the mean of all, so it stays a bias
/// unless every query provably sees something.
fn with_mask(w: &mut Work, mut s: Scores, mask: V, complement: bool, fill: f64) -> Option<Scores> {
    let (rows, columns) = lengths(w, &s)?;
    let sure = is_causal(w, mask, complement, &rows, &columns);
    if sure && (fill == f64::NEG_INFINITY || all_see(&rows, &columns)) {
        s.causal = true;
        return Some(s);
    }
    if fill != f64::NEG_INFINITY {
        let dtype = w.dtype(w.y(s.dot)?)?;
        let (zero, hidden) = (w.scalar(dtype, 0.0)?, w.scalar(dtype, fill)?);
        let (a, b) = if complement { (hidden, zero) } else { (zero, hidden) };
        s.bias.push(w.plain(Select::DEF, &[mask, a, b])?);
        return Some(s);
    }
    s.masks.push((mask, complement));
    Some(s)
}

/// What an operand of the product is a multiple of, if nothing else uses the multiple.
fn unscaled(w: &Work, v: V, scale: &mut f64, inside: &mut Vec<N>) -> V {
    match (w.by(v, Mul::DEF).or(w.by(v, Div::DEF)), w.once(v)) {
        (Some(n), true) => match w.xy(n).map(|(x, c)| (x, w.number(c))) {
            Some((x, Some(c))) if w.ty(x) == w.ty(v) => {
                *scale *= if w.is(n, Div::DEF) { 1.0 / c } else { c };
                inside.push(n);
                x
            }
            _ => v,
        },
        _ => v,
    }
}

/// Without a multiple and the permutes around it: the scale may stand on either side of them.
fn operand(w: &mut Work, v: V, depth: usize, scale: &mut f64, inside: &mut Vec<N>) -> Option<V> {
    let v = unscaled(w, v, scale, inside);
    let views = [Permute::DEF, Reshape::DEF];
    let Some(m) = views.iter().find_map(|d| w.by(v, d)).filter(|_| depth > 0 && w.once(v)) else {
        return Some(v);
    };
    let inner = w.x(m, 0)?;
    let (mut s, mut noted) = (1.0, Vec::new());
    let x = operand(w, inner, depth - 1, &mut s, &mut noted)?;
    if x == inner {
        return Some(v);
    }
    *scale *= s;
    inside.extend(noted.into_iter().chain([m]));
    w.again(m, vec![Some(x)])?.first().copied()
}

/// An operand as `[b, h, length, width]`, from the axes that are these; missing ones have size 1.
fn heads(w: &mut Work, v: V, batch: &[usize], length: usize, width: usize) -> Option<V> {
    let axes: Vec<usize> = batch.iter().copied().chain([length, width]).collect();
    let v = w.permute(v, &axes)?;
    let shape = with_heads(w.shape(v)?);
    w.reshape(v, &shape)
}

/// `[s, t]` and `[b, s, t]` with the axes that attention has besides.
fn with_heads(shape: &[Dim]) -> Shape {
    let (lead, last) = shape.split_at(shape.len().saturating_sub(2));
    let mut out = lead.to_vec();
    out.resize(2, Dim::constant(1));
    out.extend(last.iter().cloned());
    out
}

fn raise_attention(w: &mut Work, n: N) -> Option<V> {
    let outer = roles(w, n)?;
    let (x, y) = w.xy(n)?;
    let side = if w.by(x, Softmax::DEF).is_some() { 0 } else { 1 };
    let (p, v) = if side == 0 { (x, y) } else { (y, x) };
    let soft = w.by(p, Softmax::DEF).filter(|_| w.once(p))?;
    let rank = w.rank(p)?;
    let nb = rank.checked_sub(2).filter(|nb| *nb <= 2)?;
    if resolve_axis(w.attrs::<Softmax>(soft)?.axis, rank).ok()? != rank - 1 {
        return None;
    }
    let [of_p, of_v] = if side == 0 { [0, 1] } else { [1, 0] };
    let one = |axes: &[Vec<usize>; 2], i: usize| match axes.get(i)?.as_slice() {
        [a] => Some(*a),
        _ => None,
    };
    let batch_p = outer.batch.get(of_p)?;
    if one(&outer.contract, of_p)? != rank - 1 || !is_identity(batch_p) || batch_p.len() != nb {
        return None;
    }
    let mut inside = vec![soft];
    let s = scores(w, w.x(soft, 0)?, false, 8, &mut inside)?;
    let inner = roles(w, s.dot)?;
    let (q, k) = w.xy(s.dot)?;
    if inner.batch[0].len() != nb {
        return None;
    }
    let mut scale = s.scale;
    let (bare_q, bare_k) =
        (operand(w, q, 4, &mut scale, &mut inside)?, operand(w, k, 4, &mut scale, &mut inside)?);
    if !w.closed(n, &inside) || !scale.is_finite() {
        return None;
    }
    let Roles { contract, batch, free } = &inner;
    let q4 = heads(w, bare_q, &batch[0], one(free, 0)?, one(contract, 0)?)?;
    let k4 = heads(w, bare_k, &batch[1], one(free, 1)?, one(contract, 1)?)?;
    let v4 = heads(w, v, outer.batch.get(of_v)?, one(&outer.contract, of_v)?, one(&outer.free, of_v)?)?;

    // What broadcasts to the scores broadcasts to the scores of attention once it has their axes.
    let mut mask = None;
    for (m, complement) in &s.masks {
        let m = if *complement { w.plain(Not::DEF, &[*m])? } else { *m };
        let m = aligned(w, m, nb)?;
        mask = Some(match mask {
            None => m,
            Some(all) => w.plain(And::DEF, &[all, m])?,
        });
    }
    let mut bias = None;
    for b in &s.bias {
        let b = aligned(w, *b, nb)?;
        bias = Some(match bias {
            None => b,
            Some(all) => w.plain(Add::DEF, &[all, b])?,
        });
    }
    let width = w.shape(q4)?.last()?.as_const();
    let usual = width
        .is_some_and(|d| close(w.dtype(q4).unwrap_or(rlx_ir::DType::F32), scale, 1.0 / (d as f64).sqrt()));
    let attrs =
        Attention { scale: (!usual).then_some(scale), causal: s.causal, window: None, softcap: s.softcap };
    let y = w.emit_opt(Attention::DEF, &attrs, vec![Some(q4), Some(k4), Some(v4), mask, bias])?;
    // Back to [batch.., s, dv], and to the order in which the product has them.
    let full = w.shape(y)?.clone();
    let shape: Shape = full.iter().take(nb).chain(full.iter().skip(2)).cloned().collect();
    let y = w.reshape(y, &shape)?;
    let order: Vec<usize> =
        if side == 0 { (0..rank).collect() } else { (0..nb).chain([nb + 1, nb]).collect() };
    w.permute(y, &order)
}

/// A mask or bias of scores with `nb` batch axes, so that it broadcasts to four axes.
fn aligned(w: &mut Work, v: V, nb: usize) -> Option<V> {
    let shape = w.shape(v)?;
    if nb == 2 || shape.len() < 3 {
        return Some(v);
    }
    let shape = with_heads(shape);
    w.reshape(v, &shape)
}

fn causal_mask(w: &mut Work, n: N) -> Option<V> {
    let mask = w.x(n, 3)?;
    let (q, k) = w.xy(n)?;
    let (s, t) = (w.shape(q)?.get(2)?.clone(), w.shape(k)?.get(2)?.clone());
    let mut rest = conjuncts(w, mask);
    let count = rest.len();
    rest.retain(|m| !is_causal(w, *m, false, &s, &t));
    if rest.len() == count {
        return None;
    }
    let mut left = None;
    for m in rest {
        left = Some(match left {
            None => m,
            Some(all) => w.plain(And::DEF, &[all, m])?,
        });
    }
    let mut operands = w.node(n)?.operands.clone();
    *operands.get_mut(3)? = left;
    let attrs = Attention { causal: true, ..w.attrs::<Attention>(n)? };
    w.emit_opt(Attention::DEF, &attrs, operands)
}

fn shared_heads(w: &mut Work, n: N) -> Option<V> {
    let mut operands = w.node(n)?.operands.clone();
    let (k, v) = (w.x(n, 1)?, w.x(n, 2)?);
    *operands.get_mut(1)? = Some(unrepeated(w, k, 1)?);
    *operands.get_mut(2)? = Some(unrepeated(w, v, 1)?);
    w.again(n, operands)?.first().copied()
}

/// What was repeated along the axis, each entry several times in a row.
fn unrepeated(w: &mut Work, v: V, axis: usize) -> Option<V> {
    if let Some(m) = w.by(v, Permute::DEF) {
        let (p, inner) = (w.permutation(m)?, w.x(m, 0)?);
        w.arg(inner, Reshape::DEF)?;
        let x = unrepeated(w, inner, *p.get(axis)?)?;
        return w.permute(x, &p);
    }
    let b = w.arg(v, Reshape::DEF)?;
    let x = w.arg(b, Broadcast::DEF)?;
    let (merged, wide, own) = (w.shape(v)?, w.shape(b)?, w.shape(x)?);
    let mut narrow = wide.clone();
    let times = narrow.get(axis + 1)?.clone();
    *narrow.get_mut(axis + 1)? = Dim::constant(1);
    let keep: Vec<usize> = (0..wide.len()).filter(|i| *i != axis + 1).collect();
    let mut target = pick(wide, &keep)?;
    if *own != narrow || times.is(1) {
        return None;
    }
    let single = target.clone();
    let slot = target.get_mut(axis)?;
    *slot = &*slot * &times;
    (target == *merged).then(|| w.reshape(x, &single))?
}
