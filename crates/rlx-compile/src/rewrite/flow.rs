//! Calls and branches that are known, and ops that are only another way to write simpler ones.

use super::dot::{Roles, dot};
use super::work::{N, V, Work};
use super::{Apply, Rule, Stage};
use rlx_ir::op::OpDef;
use rlx_ir::ops::concat::{Concat, Split};
use rlx_ir::ops::control::{Call, CustomVjp, If};
use rlx_ir::ops::dot::Matmul;
use rlx_ir::ops::elementwise::StopGradient;
use rlx_ir::ops::linear::{Einsum, Linear};
use rlx_ir::ops::math::Square;

/// Whether the op is replaced by its region, which is then rewritten with what surrounds it.
pub fn inlines(op: &OpDef) -> bool {
    [Call::DEF, CustomVjp::DEF].iter().any(|d| std::ptr::eq(*d, op))
}

pub const RULES: &[Rule] = &[
    Rule {
        name: "inline_call",
        algebra: "call(x) { body } → body(x)",
        stage: Stage::Simplify,
        roots: &[Call::DEF, CustomVjp::DEF],
        apply: Apply::All(inline_call),
        samples: &[
            "graph t { input x: f32[3] z = call(x) body (a: f32[3]) { p = mul(a, a) yield r0 = p } output z = z }",
            "graph t { input x: f32[3] z = custom_vjp(x) body (a: f32[3]) { p = exp(a) yield r0 = p } \
             backward (a: f32[3], p: f32[3], d: f32[3]) { r = mul(p, d) yield r0 = r } output z = z }",
        ],
        refuses: &["graph t { input x: f32[3] z = barrier(x) y = exp(z) output y = y }"],
    },
    Rule {
        name: "known_branch",
        algebra: "if(true, x) { then } { else } → then(x)",
        stage: Stage::Simplify,
        roots: &[If::DEF],
        apply: Apply::All(known_branch),
        samples: &["graph t { input x: f32[3] p = constant() {value: bool[] false} z = if(p, x) \
             then (a: f32[3]) { q = exp(a) yield r0 = q } else (a: f32[3]) { q = neg(a) yield r0 = q } \
             output z = z }"],
        refuses: &["graph t { input p: bool[] input x: f32[3] z = if(p, x) \
             then (a: f32[3]) { q = exp(a) yield r0 = q } else (a: f32[3]) { q = neg(a) yield r0 = q } \
             output z = z }"],
    },
    Rule {
        name: "stop_gradient",
        algebra: "stop_gradient(x) → x",
        stage: Stage::Simplify,
        roots: &[StopGradient::DEF],
        apply: Apply::One(|w, n| w.x(n, 0)),
        samples: &["graph t { input x: f32[3] y = stop_gradient(x) z = exp(y) output z = z }"],
        refuses: &[],
    },
    Rule {
        name: "expand_square",
        algebra: "square(x) → x · x",
        stage: Stage::Simplify,
        roots: &[Square::DEF],
        apply: Apply::All(Work::expand),
        samples: &["graph t { input x: f32[3] y = square(x) output y = y }"],
        refuses: &[],
    },
    Rule {
        name: "expand_split",
        algebra: "split(x, [a, b]) → x[0..a], x[a..a+b]",
        stage: Stage::Simplify,
        roots: &[Split::DEF],
        apply: Apply::All(Work::expand),
        samples: &["graph t { input x: f32[2, 5] a, b = split(x) {axis: 1, sizes: [2, 3]} output a = a \
             output b = b }"],
        refuses: &[],
    },
    Rule {
        name: "matmul_dot",
        algebra: "matmul(x, y) → dot_general(x, y), where y is a matrix or has the leading axes of x",
        stage: Stage::Simplify,
        roots: &[Matmul::DEF],
        apply: Apply::One(matmul_dot),
        samples: &[
            "graph t { input x: f32[1, 2, 3] input w: f32[3, 4] y = matmul(x, w) output y = y }",
            "graph t { input x: f32[1, 2, 3] input w: f32[1, 3, 4] y = matmul(x, w) output y = y }",
        ],
        refuses: &["graph t { input x: f32[2, 3] input w: f32[2, 3, 4] y = matmul(x, w) output y = y }"],
    },
    Rule {
        name: "expand_product",
        algebra: "matmul, linear, einsum → dot_general",
        stage: Stage::Simplify,
        roots: &[Matmul::DEF, Linear::DEF, Einsum::DEF],
        apply: Apply::All(Work::expand),
        samples: &[
            "graph t { input x: f32[2, 3] input w: f32[2, 3, 4] y = matmul(x, w) output y = y }",
            "graph t { input x: f32[2, 3] input w: f32[4, 3] input b: f32[4] \
             y = linear(x, w, b) {transpose_w: true} output y = y }",
            "graph t { input x: f32[2, 3, 4] input w: f32[2, 5, 4] \
             y = einsum(x, w) {equation: \"bqd,bkd->bqk\"} output y = y }",
        ],
        refuses: &[],
    },
    Rule {
        name: "single_concat",
        algebra: "concat(x) → x",
        stage: Stage::Simplify,
        roots: &[Concat::DEF],
        apply: Apply::One(|w, n| (w.node(n)?.operands.len() == 1).then(|| w.x(n, 0))?),
        samples: &["graph t { input x: f32[2, 3] y = concat(x) {axis: 1} z = exp(y) output z = z }"],
        refuses: &["graph t { input x: f32[2, 3] y = concat(x, x) {axis: 1} output y = y }"],
    },
];

/// Unlike the body this keeps axes of size 1, so that views before and behind the product still meet.
fn matmul_dot(w: &mut Work, n: N) -> Option<V> {
    let (x, y) = w.xy(n)?;
    let (rx, ry) = (w.rank(x)?, w.rank(y)?);
    let batch = match ry {
        1 | 2 => 0,
        _ if rx == ry && w.ty(x)?.leading(2) == w.ty(y)?.leading(2) => rx - 2,
        _ => return None,
    };
    let contract = [vec![rx.checked_sub(1)?], vec![ry.saturating_sub(2)]];
    dot(
        w,
        x,
        y,
        &Roles { contract, batch: [(0..batch).collect(), (0..batch).collect()], free: [vec![], vec![]] },
    )
}

fn inline_call(w: &mut Work, n: N) -> Option<Vec<V>> {
    inline_region(w, n, 0, 0)
}

fn known_branch(w: &mut Work, n: N) -> Option<Vec<V>> {
    let taken = w.number(w.x(n, 0)?)?;
    inline_region(w, n, if taken != 0.0 { 0 } else { 1 }, 1)
}

/// A region of the node, on the node's operands from `from` on.
fn inline_region(w: &mut Work, n: N, region: usize, from: usize) -> Option<Vec<V>> {
    let node = w.node(n)?;
    let body = node.regions.get(region)?.clone();
    let args: Vec<V> = node.operands.iter().skip(from).flatten().copied().collect();
    w.inline(&body, &args)
}
