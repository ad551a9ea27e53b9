//! Linear layers, and sums of products written as an equation.

use crate::prelude::*;
use crate::transform::{vmap_loop, vmap_through};

/// A vector per output column under `[.., columns]`, if there is one.
fn plus<'g>(y: Var<'g>, bias: Option<Var<'g>>) -> Var<'g> {
    bias.map_or(y, |b| y + b)
}

/// The name of an axis in an equation: a letter, or an axis under `...` counted from the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Label {
    Dots(std::cmp::Reverse<usize>),
    Letter(char),
}

/// An equation's operands and result, with `...` not yet spelled out.
struct Equation {
    terms: Vec<String>,
    result: Option<String>,
}

impl Equation {
    fn parse(text: &str) -> std::result::Result<Equation, String> {
        let text: String = text.chars().filter(|c| *c != ' ').collect();
        let (operands, result) = match text.split_once("->") {
            Some((o, r)) => (o, Some(r.to_string())),
            None => (&text[..], None),
        };
        let terms: Vec<String> = operands.split(',').map(str::to_string).collect();
        for t in terms.iter().chain(&result) {
            let letters = t.replacen("...", "", 1);
            if let Some(c) = letters.chars().find(|c| !c.is_ascii_alphabetic()) {
                return Err(format!("{c:?} is no axis"));
            }
        }
        Ok(Equation { terms, result })
    }

    /// The result as written, or as NumPy has it: the axes under `...`, then all letters that occur once,
    /// sorted.
    fn result(&self) -> String {
        self.result.clone().unwrap_or_else(|| {
            let all: String = self.terms.concat().replace('.', "");
            let mut once: Vec<char> = all.chars().filter(|c| all.matches(*c).count() == 1).collect();
            once.sort_unstable();
            let dots = if self.terms.iter().any(|t| t.contains('.')) { "..." } else { "" };
            dots.chars().chain(once).collect()
        })
    }

    /// The labels of a term for a tensor of `rank` axes; `None` if there are too few or too many axes.
    fn labels(term: &str, rank: usize) -> Option<Vec<Label>> {
        let letters = |s: &str| s.chars().map(Label::Letter).collect::<Vec<_>>();
        let Some((before, after)) = term.split_once("...") else {
            return Some(letters(term)).filter(|l| l.len() == rank);
        };
        let dots = rank.checked_sub(before.len() + after.len())?;
        let between = (0..dots).rev().map(|i| Label::Dots(std::cmp::Reverse(i)));
        Some(letters(before).into_iter().chain(between).chain(letters(after)).collect())
    }
}

/// Everything an equation says about operands of known types.
struct Sum {
    terms: Vec<Vec<Label>>,
    result: Vec<Label>,
    sizes: Vec<(Label, Dim)>,
}

impl Sum {
    fn size(&self, l: Label) -> Dim {
        self.sizes.iter().find(|s| s.0 == l).map_or(Dim::constant(1), |s| s.1.clone())
    }
}

/// An error of the equation: code, constraint, message, and operand and axis at fault.
struct Fault(Code, usize, String, Option<(usize, usize)>);

fn understand(equation: &str, shapes: &[Shape]) -> std::result::Result<Sum, Fault> {
    let attribute = |text: String| Fault(Code::Attribute, 1, text, None);
    let eq = Equation::parse(equation).map_err(attribute)?;
    if eq.terms.len() != shapes.len() {
        let text = format!("{equation:?} names {} operands, {} are given", eq.terms.len(), shapes.len());
        return Err(Fault(Code::Operands, 2, text, None));
    }
    let mut sizes: Vec<(Label, Dim)> = Vec::new();
    let (mut terms, mut dots) = (Vec::new(), 0);
    for (k, (term, shape)) in eq.terms.iter().zip(shapes).enumerate() {
        let labels = Equation::labels(term, shape.len()).ok_or_else(|| {
            Fault(
                Code::Rank,
                2,
                format!("operand {k} has {} axes, but is written {term:?}", shape.len()),
                Some((k, 0)),
            )
        })?;
        dots = dots.max(labels.iter().filter(|l| matches!(l, Label::Dots(_))).count());
        for (axis, (l, d)) in labels.iter().zip(shape).enumerate() {
            match sizes.iter_mut().find(|s| s.0 == *l) {
                None => sizes.push((*l, d.clone())),
                Some((_, known)) if known.is(1) => *known = d.clone(),
                Some((_, known)) if d.is(1) || known.unify(d).is_some() => {}
                Some((_, known)) => {
                    let text =
                        format!("axis {axis} of operand {k} is {d}, but the same axis is {known} before");
                    return Err(Fault(Code::Dim, 3, text, Some((k, axis))));
                }
            }
        }
        terms.push(labels);
    }
    let written = eq.result();
    let letters = written.replace('.', "").len();
    let rank = letters + if written.contains('.') { dots } else { 0 };
    let result = Equation::labels(&written, rank).unwrap_or_default();
    for (i, l) in result.iter().enumerate() {
        if result.iter().skip(i + 1).any(|m| m == l) || !sizes.iter().any(|s| s.0 == *l) {
            return Err(Fault(Code::Attribute, 4, format!("the result is written {written:?}"), None));
        }
    }
    // One operand may have an axis twice: both must have its full size.
    for (k, (labels, shape)) in terms.iter().zip(shapes).enumerate() {
        for (axis, (l, d)) in labels.iter().zip(shape).enumerate() {
            let first = labels.iter().position(|m| m == l).and_then(|i| shape.get(i));
            if first.is_some_and(|f| f.unify(d).is_none()) {
                let text =
                    format!("axis {axis} of operand {k} is {d}, but the same axis has another size before");
                return Err(Fault(Code::Dim, 3, text, Some((k, axis))));
            }
        }
    }
    Ok(Sum { terms, result, sizes })
}

/// The elements of x at which axes `i` and `j > i` are equal, along axis `i`.
fn diagonal<'g>(x: Var<'g>, i: usize, j: usize) -> Var<'g> {
    let n = x.dim(i as i64);
    let x = x.move_axis(j as i64, 0).move_axis(i as i64 + 1, 0);
    let rest = x.shape().into_iter().skip(2);
    let flat: Shape = std::iter::once(&n * &n).chain(rest).collect();
    let steps = x.graph().iota(vec![n.clone()], 0, DType::I64);
    let step = x.graph().size_of(n + 1, DType::I64);
    x.reshape(flat).gather(steps * step, 0).move_axis(0, i as i64)
}

/// Without repeated axes, and without those of size 1 that stand for a longer one.
fn simplified<'g>(mut x: Var<'g>, mut labels: Vec<Label>, sum: &Sum) -> (Var<'g>, Vec<Label>) {
    let mut j = 0;
    while let Some(l) = labels.get(j).copied() {
        match labels.iter().take(j).position(|m| *m == l) {
            Some(i) => {
                x = diagonal(x, i, j);
                labels.remove(j);
            }
            None if x.dim(j as i64).is(1) && !sum.size(l).is(1) => {
                x = x.squeeze(j as i64);
                labels.remove(j);
            }
            None => j += 1,
        }
    }
    (x, labels)
}

/// Summed over the axes whose labels are not needed.
fn reduced<'g>(x: Var<'g>, labels: &[Label], needed: impl Fn(Label) -> bool) -> (Var<'g>, Vec<Label>) {
    let gone: Vec<i64> = (0i64..).zip(labels).filter(|(_, l)| !needed(**l)).map(|(i, _)| i).collect();
    let left = labels.iter().copied().filter(|l| needed(*l)).collect();
    (if gone.is_empty() { x } else { x.sum(gone, false) }, left)
}

/// The sum of products, two operands at a time, from left to right.
fn einsum_of<'g>(xs: &[Var<'g>], sum: &Sum) -> Result<Var<'g>> {
    let mut acc: Option<(Var<'g>, Vec<Label>)> = None;
    for (k, (x, labels)) in xs.iter().zip(&sum.terms).enumerate() {
        let later =
            |l: Label| sum.result.contains(&l) || sum.terms.iter().skip(k + 1).any(|t| t.contains(&l));
        let (x, labels) = simplified(*x, labels.clone(), sum);
        acc = Some(match acc {
            None => reduced(x, &labels, later),
            Some((a, of_a)) => {
                let (a, of_a) = reduced(a, &of_a, |l| later(l) || labels.contains(&l));
                let (x, of_x) = reduced(x, &labels, |l| later(l) || of_a.contains(&l));
                let (batch, contract): (Vec<Label>, Vec<Label>) =
                    of_a.iter().copied().filter(|l| of_x.contains(l)).partition(|l| later(*l));
                let axes = |of: &[Label], which: &[Label]| -> Vec<i64> {
                    which.iter().filter_map(|l| of.iter().position(|m| m == l)).map(|i| i as i64).collect()
                };
                let z = a.dot_general(
                    x,
                    axes(&of_a, &contract),
                    axes(&of_x, &contract),
                    axes(&of_a, &batch),
                    axes(&of_x, &batch),
                );
                let free = |of: &[Label], other: &[Label]| -> Vec<Label> {
                    of.iter().copied().filter(|l| !other.contains(l)).collect()
                };
                (z, [batch, free(&of_a, &of_x), free(&of_x, &of_a)].concat())
            }
        });
    }
    let (y, labels) = acc.ok_or_else(|| Error::new(Code::Operands, "nothing to multiply"))?;
    let order: Vec<i64> =
        sum.result.iter().filter_map(|l| labels.iter().position(|m| m == l)).map(|i| i as i64).collect();
    Ok(if order.is_sorted() { y } else { y.permute(order) })
}

/// `alpha · A · B + beta · C`, where A and B may be transposed and C may be missing.
fn onnx_gemm<'g>(c: &onnx::Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let [a, b] = c.xs()?;
    let scaled = |x: Var<'g>, name: &str| -> Result<Var<'g>> {
        let by = c.float_or(name, 1.0)?;
        if by.fract() != 0.0 && !x.dtype().is_float() {
            return Err(c.cannot(format!("{name} of {by} for integers")));
        }
        Ok(if by == 1.0 { x } else { x * by })
    };
    let a = if c.flag("transA", false)? { a.t() } else { a };
    let y = match c.flag("transB", false)? {
        true => a.linear(b, None, true),
        false => a.matmul(b),
    };
    let y = scaled(y, "alpha")?;
    // Before version 7 C is broadcast only if the attribute `broadcast` says so; what is right without it is so with it.
    let bias = c.opt(2).map(|b| scaled(b, "beta")).transpose()?;
    Ok(vec![plus(y, bias)])
}

ops! {
    /// A linear layer: `y[.., j] = Σ_k x[.., k] · w[k, j] + bias[j]`; with `transpose_w`, w is `[n, k]`.
    linear: Linear(x: Num, w: Num, bias: opt Num) { transpose_w: bool = false } -> y;
    constraints = [
        "x has at least one axis",
        "w has two axes",
        "the last axis of x agrees with that of w",
        "bias is [n]",
    ];
    infer = |c, a| {
        c.rank_at_least(1, 0, 1)?;
        c.rank(2, 1, 2)?;
        let x = c.ty(0)?;
        let (k, n) = if a.transpose_w { (1, 0) } else { (0, 1) };
        let (last, dk) = (x.rank() - 1, c.dim(1, k)?);
        if c.dim(0, last)?.unify(dk).is_none() {
            let text = format!("axis {k} of w is {dk}, but axis {last} of x is {}", c.dim(0, last)?);
            return Err(c.fail(Code::Dim, 3, text).operand("w").axis(k).sizes(c.dim(0, last)?, dk));
        }
        let columns = c.dim(1, n)?.clone();
        if c.opt(2).is_some() {
            c.expect_shape(4, 2, std::slice::from_ref(&columns))?;
        }
        Ok(vec![x.with_shape(x.shape.iter().take(last).cloned().chain([columns]).collect::<Shape>())])
    };
    body = |c, a| {
        let [x, w] = c.xs();
        let y = x.dot_general(w, vec![-1], vec![a.transpose_w as i64], vec![], vec![]);
        Ok(vec![plus(y, c.opt(2))])
    };
    vmap = |c, a| match c.only_first() {
        true => Ok(vec![c.x(0).linear(c.x(1), c.opt(2), a.transpose_w)]),
        false => vmap_through(c),
    };
    onnx = [rule("Gemm", 1, onnx_gemm)];
    samples = |s| {
        s.case("bias", Linear { transpose_w: false }, [f([2, 3, 4]), f([4, 5]), f([5])]);
        s.case_opt("plain", Linear { transpose_w: false }, [Some(f([3, 4])), Some(f([4, 2])), None]);
        s.case("transposed", Linear { transpose_w: true }, [f([2, 3]), f([4, 3]), f([4])]);
        s.case_opt("vector", Linear { transpose_w: true }, [Some(f([3])), Some(f([2, 3])), None]);
        s.case("empty", Linear { transpose_w: false }, [f([0, 4]), f([4, 5]), f([5])]);
    };
    tolerance = tol(1e-5, 5e-3, 4e-2);

    /// A sum of products in Einstein's notation, as NumPy's `einsum`: `"bik,bkj->bij"`. Letters name axes; a
    /// letter that the result does not have is summed over; one that an operand has twice takes its diagonal.
    /// `...` stands for any axes, which broadcast. Without `->` the result has the axes under `...`, then the
    /// letters that occur once, in alphabetical order. Axes of size 1 broadcast.
    einsum: Einsum(xs: many Num) { equation: std::sync::Arc<str> } -> y;
    constraints = [
        "the equation is letters and at most one `...` per operand, separated by `,`, with an optional `->`",
        "it names every operand, with as many axes as the operand has",
        "axes of the same letter agree",
        "the result names each axis once, and only axes of the operands",
    ];
    infer = |c, a| {
        let shapes: Vec<Shape> = c.given().map(|t| t.shape.clone()).collect();
        let sum = understand(&a.equation, &shapes).map_err(|Fault(code, n, text, at)| {
            let e = c.fail(code, n, text);
            match at {
                Some((i, axis)) => e.operand(c.def.operand_name(i)).axis(axis),
                None => e,
            }
        })?;
        Ok(vec![c.ty(0)?.with_shape(sum.result.iter().map(|l| sum.size(*l)).collect::<Shape>())])
    };
    body = |c, a| {
        let xs = c.given();
        let shapes: Vec<Shape> = xs.iter().map(|x| x.shape()).collect();
        let sum = understand(&a.equation, &shapes).map_err(|f| Error::new(f.0, f.2))?;
        Ok(vec![einsum_of(&xs, &sum)?])
    };
    vmap = |c, a| {
        // The batch gets a letter of its own.
        let eq = Equation::parse(&a.equation).map_err(|e| Error::new(Code::Attribute, e))?;
        let mut letters = ('a'..='z').chain('A'..='Z');
        let Some(batch) = letters.find(|l| !a.equation.contains(*l)) else { return vmap_loop(c) };
        let with = |(i, t): (usize, &String)| if c.is_batched(i) { format!("{batch}{t}") } else { t.clone() };
        let terms: Vec<String> = eq.terms.iter().enumerate().map(with).collect();
        let text = format!("{}->{batch}{}", terms.join(","), eq.result());
        Ok(vec![c.g.einsum(&c.given(), text)])
    };
    onnx = [rule("Einsum", 12, |c| Ok(vec![c.g.einsum(&c.given(), c.text("equation", "")?)]))];
    samples = |s| {
        let eq = |e: &str| Einsum { equation: e.into() };
        s.case("matmul", eq("ik,kj->ij"), [f([2, 3]), f([3, 4])]);
        s.case("implicit", eq("b k, a k"), [f([2, 3]), f([4, 3])]);
        s.case("attention", eq("bhqd,bhkd->bhqk"), [f([1, 2, 2, 3]), f([1, 2, 3, 3])]);
        s.case("dots", eq("...ij,...jk->...ik"), [f([2, 1, 2, 2]), f([3, 2, 2])]);
        s.case("diagonal", eq("ii->i"), [f([3, 3])]);
        s.case("trace", eq("aia->i"), [f([2, 3, 2])]);
        s.case("three", eq("i,ij,j->"), [f([2]), f([2, 3]), f([3])]);
        s.case("turn", eq("abc->ca"), [f([2, 3, 4])]);
        s.case("repeat", eq("ab,b->ba"), [f([2, 3]), f([1])]);
        s.case("empty", eq("ik,kj->ij"), [f([2, 0]), f([0, 2])]);
    };
    tolerance = tol(1e-5, 5e-3, 4e-2);

    /// A matrix product with a low-rank addition: `y = x·w + scale·(x·a)·b`.
    lora_matmul: LoraMatmul(x: Float, w: Float, a: Float, b: Float) { scale: f64 = 1.0 } -> y;
    constraints = [
        "x has at least one axis", "w, a and b have two axes", "w and a have as many rows as x has columns",
        "b has as many rows as a has columns", "b has as many columns as w", "scale is finite",
    ];
    infer = |c, a| {
        c.rank_at_least(1, 0, 1)?;
        (1..4).try_for_each(|i| c.rank(2, i, 2))?;
        let (x, last) = (c.ty(0)?, c.ty(0)?.rank() - 1);
        c.same_dim(3, (0, last), (1, 0))?;
        c.same_dim(3, (0, last), (2, 0))?;
        c.same_dim(4, (2, 1), (3, 0))?;
        let n = c.same_dim(5, (1, 1), (3, 1))?;
        if !a.scale.is_finite() {
            return Err(c.fail(Code::Attribute, 6, format!("scale is {}", a.scale)));
        }
        Ok(vec![x.with_shape(x.shape.iter().take(last).cloned().chain([n]).collect::<Shape>())])
    };
    body = |c, at| {
        let [x, w, a, b] = c.xs();
        Ok(vec![x.linear(w, None, false) + x.linear(a, None, false).linear(b, None, false) * at.scale])
    };
    samples = |s| {
        s.case("plain", LoraMatmul { scale: 0.5 }, [f([2, 3, 4]), f([4, 5]), f([4, 2]), f([2, 5])]);
        s.case("vector", LoraMatmul { scale: 1.0 }, [f([4]), f([4, 3]), f([4, 1]), f([1, 3])]);
        s.case("rank_zero", LoraMatmul { scale: 1.0 }, [f([2, 4]), f([4, 3]), f([4, 0]), f([0, 3])]);
    };
    tolerance = tol(1e-5, 5e-3, 4e-2);

    /// Queries, keys and values by one product: the columns of `x·w + bias` are q for `q` columns, then k and
    /// v for `kv` columns each. The wide product is never stored.
    qkv: Qkv(x: Float, w: Float, bias: opt Float) { q: Dim, kv: Dim } -> (queries, keys, values);
    constraints = [
        "x has at least one axis", "w has two axes", "w has as many rows as x has columns",
        "w has q + 2·kv columns", "bias is [q + 2·kv]",
    ];
    infer = |c, a| {
        c.rank_at_least(1, 0, 1)?;
        c.rank(2, 1, 2)?;
        let (x, last) = (c.ty(0)?, c.ty(0)?.rank() - 1);
        c.same_dim(3, (0, last), (1, 0))?;
        let columns = &a.q + &a.kv * 2;
        c.expect_dim(4, 1, 1, &columns)?;
        if c.opt(2).is_some() {
            c.expect_shape(5, 2, &[columns])?;
        }
        let part = |n: &Dim| x.with_shape(x.shape.iter().take(last).chain([n]).cloned().collect::<Shape>());
        Ok(vec![part(&a.q), part(&a.kv), part(&a.kv)])
    };
    body = |c, a| {
        let y = c.x(0).linear(c.x(1), c.opt(2), false);
        let (k, v) = (a.q.clone(), &a.q + &a.kv);
        Ok(vec![y.narrow(-1, 0, &a.q), y.narrow(-1, k, &a.kv), y.narrow(-1, v, &a.kv)])
    };
    vmap = |c, a| match c.only_first() {
        true => Ok(c.x(0).qkv(c.x(1), c.opt(2), &a.q, &a.kv).into()),
        false => vmap_through(c),
    };
    samples = |s| {
        let even = || Qkv { q: 2.into(), kv: 2.into() };
        s.case("bias", even(), [f([2, 3, 4]), f([4, 6]), f([6])]);
        let grouped = Qkv { q: 4.into(), kv: 1.into() };
        s.case_opt("grouped", grouped, [Some(f([3, 4])), Some(f([4, 6])), None]);
        s.case_opt("empty", even(), [Some(f([0, 4])), Some(f([4, 6])), None]);
    };
    tolerance = tol(1e-5, 5e-3, 4e-2);
}
