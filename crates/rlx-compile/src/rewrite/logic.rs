//! Conditions: selections, comparisons, bits.

use super::work::{N, V, Work};
use super::{Apply, Rule, Stage};
use rlx_ir::DType;
use rlx_ir::ops::elementwise::{And, Maximum, Minimum, Not, Or, Select};

pub const RULES: &[Rule] = &[
    Rule {
        name: "known_select",
        algebra: "select(true, x, y) → x, select(c, x, x) → x",
        stage: Stage::Simplify,
        roots: &[Select::DEF],
        apply: Apply::One(known_select),
        samples: &[
            "graph t { input x: f32[3] input y: f32[2, 3] c = constant() {value: bool[] true} \
             z = select(c, x, y) output z = z }",
            "graph t { input x: f32[3] input c: bool[2, 3] z = select(c, x, x) output z = z }",
        ],
        refuses: &[
            "graph t { input x: f32[3] input y: f32[3] input c: bool[3] z = select(c, x, y) output z = z }",
        ],
    },
    Rule {
        name: "select_not",
        algebra: "select(not c, x, y) → select(c, y, x)",
        stage: Stage::Simplify,
        roots: &[Select::DEF],
        apply: Apply::One(select_not),
        samples: &[
            "graph t { input x: f32[3] input y: f32[3] input c: bool[3] d = not(c) z = select(d, x, y) \
             output z = z }",
        ],
        refuses: &[],
    },
    Rule {
        name: "not_not",
        algebra: "not(not x) → x",
        stage: Stage::Simplify,
        roots: &[Not::DEF],
        apply: Apply::One(|w, n| w.arg(w.x(n, 0)?, Not::DEF)),
        samples: &["graph t { input x: bool[3] a = not(x) b = not(a) y = and(b, x) output y = y }"],
        refuses: &[],
    },
    Rule {
        name: "known_bool",
        algebra: "x and true → x, x and false → false, x or false → x, x or true → true",
        stage: Stage::Simplify,
        roots: &[And::DEF, Or::DEF],
        apply: Apply::One(known_bool),
        samples: &[
            "graph t { input x: bool[3] c = constant() {value: bool[] true} y = and(x, c) z = not(y) output z = z }",
            "graph t { input x: bool[3] c = constant() {value: bool[] true} y = or(c, x) z = not(y) output z = z }",
        ],
        refuses: &["graph t { input x: i32[3] c = constant() {value: i32[] 1} y = and(x, c) output y = y }"],
    },
    Rule {
        name: "same_operands",
        algebra: "x and x → x, x or x → x, max(x, x) → x, min(x, x) → x",
        stage: Stage::Simplify,
        roots: &[And::DEF, Or::DEF, Maximum::DEF, Minimum::DEF],
        apply: Apply::One(|w, n| w.xy(n).filter(|(x, y)| x == y).map(|p| p.0)),
        samples: &["graph t { input x: f32[3] y = maximum(x, x) z = exp(y) output z = z }"],
        refuses: &[],
    },
];

fn known_select(w: &mut Work, n: N) -> Option<V> {
    let (c, x, y) = (w.x(n, 0)?, w.x(n, 1)?, w.x(n, 2)?);
    let taken = match w.number(c) {
        Some(0.0) => y,
        Some(_) => x,
        None if x == y => x,
        None => return None,
    };
    w.like_result(taken, n)
}

fn select_not(w: &mut Work, n: N) -> Option<V> {
    let (c, x, y) = (w.x(n, 0)?, w.x(n, 1)?, w.x(n, 2)?);
    let c = w.arg(c, Not::DEF)?;
    w.plain(Select::DEF, &[c, y, x])
}

fn known_bool(w: &mut Work, n: N) -> Option<V> {
    let (x, c) = w.with_number(n)?;
    if w.dtype(x)? != DType::Bool {
        return None;
    }
    // The neutral value gives x, the other one itself.
    if (c != 0.0) == w.is(n, And::DEF) {
        return w.like_result(x, n);
    }
    let c = w.scalar(DType::Bool, c)?;
    w.like_result(c, n)
}
