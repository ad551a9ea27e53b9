//! Classification losses: cross-entropy of logits, negative log-likelihood.

use crate::ops::loss::{Reduction, reduced_type};
use crate::prelude::*;
use crate::tensor::Tensor;

/// Constraints 1 and 2: a target for every row of classes. Gives the reduced type.
fn check_rows(c: &Infer<'_>, reduction: Reduction) -> Result<Type> {
    c.rank_at_least(1, 0, 1)?;
    let x = c.ty(0)?;
    let rows = x.shape.get(..x.rank() - 1).unwrap_or(&[]);
    c.expect_shape(2, 1, rows)?;
    Ok(reduced_type(x.dtype, rows, reduction))
}

fn check_smoothing(c: &Infer<'_>, n: usize, label_smoothing: f64) -> Result<()> {
    if (0.0..=1.0).contains(&label_smoothing) {
        return Ok(());
    }
    Err(c.fail(Code::Attribute, n, format!("label_smoothing is {label_smoothing}")))
}

/// The integer dtype in which indices of this dtype are compared with positions.
pub(crate) fn index_dtype(d: DType) -> DType {
    if matches!(d, DType::I64 | DType::U64 | DType::U32) { DType::I64 } else { DType::I32 }
}

/// Where the class is the target (`[.., classes]`), and which rows count (`[..]`).
fn hits<'g>(x: Var<'g>, targets: Var<'g>, ignore_index: i64) -> (Var<'g>, Var<'g>) {
    let g = x.graph();
    let dtype = index_dtype(targets.dtype());
    let targets = targets.to(dtype);
    let hit = g.iota(x.shape(), -1, dtype).equal(targets.unsqueeze(-1));
    let inside = targets.less(g.size_of(x.dim(-1), dtype));
    let mut valid = inside.and(targets.greater_equal(0.0));
    // A number that the dtype does not hold cannot be a target.
    if let Some(ignored) = Tensor::from_i128s(dtype, &[], &[i128::from(ignore_index)])
        && dtype.int_range().is_some_and(|(lo, hi)| (lo..=hi).contains(&i128::from(ignore_index)))
    {
        valid = valid.and(targets.not_equal(g.constant(ignored)));
    }
    (hit, valid)
}

/// The losses of the rows that count, reduced; the mean is over those rows.
fn reduce_valid<'g>(loss: Var<'g>, valid: Var<'g>, reduction: Reduction) -> Var<'g> {
    let loss = valid.select(loss, loss.zeros_like());
    match reduction {
        Reduction::Mean => loss.sum_all() / valid.to(loss.dtype()).sum_all(),
        Reduction::Sum => loss.sum_all(),
        Reduction::None => loss,
    }
}

/// −x at the target class of every row.
fn picked<'g>(x: Var<'g>, hit: Var<'g>) -> Var<'g> {
    -hit.select(x, x.zeros_like()).sum(vec![-1], false)
}

/// ONNX's loss of log-probabilities p `[n, classes, …]` and targets `[n, …]` (operand 1), with a weight for each class
/// (operand 2) if there are weights.
fn onnx_nll<'g>(c: &onnx::Call<'g, '_>, p: Var<'g>) -> Result<Var<'g>> {
    let (targets, weights) = (c.x(1)?, c.opt(2));
    let reduction = match c.text("reduction", "mean")? {
        "mean" => Reduction::Mean,
        "sum" => Reduction::Sum,
        "none" => Reduction::None,
        other => return Err(Error::new(Code::Attribute, format!("reduction is {other:?}"))),
    };
    // Without the attribute no class is ignored, and this number is none.
    let ignored = c.int_or("ignore_index", i64::MIN)?;
    let rows = p.move_axis(1, -1);
    let Some(weights) = weights else {
        return Ok(rows.nll_loss(targets, ignored, reduction));
    };
    let (_, valid) = hits(rows, targets, ignored);
    let targets = valid.select(targets, targets.zeros_like());
    let weight = weights.gather(targets, 0).wide();
    let weight = valid.select(weight, weight.zeros_like());
    let loss = rows.wide().nll_loss(targets, i64::MIN, Reduction::None) * weight.to(p.dtype().wide());
    let loss = match reduction {
        Reduction::Mean => loss.sum_all() / weight.sum_all(),
        Reduction::Sum => loss.sum_all(),
        Reduction::None => loss,
    };
    Ok(loss.to(p.dtype()))
}

ops! {
    /// The cross-entropy of softmax(logits) with one target class per row; the classes are the last axis.
    /// With p = log softmax(logits) and e = label_smoothing, the loss of a row is
    /// `−(1 − e) · p[target] − e · mean(p)`.
    ///
    /// A row whose target is `ignore_index`, or no class at all, has loss 0 and gradient 0. `mean` divides by the
    /// number of the other rows (NaN if there are none).
    cross_entropy: CrossEntropy(logits: Float, targets: Index)
        { ignore_index: i64 = -100, label_smoothing: f64 = 0.0, reduction: Reduction = Reduction::Mean } -> loss;
    constraints = [
        "logits have at least one axis",
        "targets have the shape of logits without the last axis",
        "0 <= label_smoothing <= 1",
    ];
    infer = |c, a| {
        check_smoothing(c, 3, a.label_smoothing)?;
        Ok(vec![check_rows(c, a.reduction)?])
    };
    body = |c, a| {
        let x = c.x(0).wide();
        let (hit, valid) = hits(x, c.x(1), a.ignore_index);
        let p = x.log_softmax(-1);
        let mut loss = picked(p, hit);
        // Apart, so that an impossible class (p = −inf) does no harm without smoothing.
        if a.label_smoothing > 0.0 {
            loss = loss * (1.0 - a.label_smoothing) - p.mean(vec![-1], false) * a.label_smoothing;
        }
        Ok(vec![reduce_valid(loss, valid, a.reduction).to(c.x(0).dtype())])
    };
    vjp = |c, a| {
        let dx = c.x(0).cross_entropy_grad(c.x(1), c.dy(0), a.ignore_index, a.label_smoothing, a.reduction);
        Ok([Some(dx), None].into())
    };
    onnx = [rule("SoftmaxCrossEntropyLoss", 12, |c| {
        let p = c.x(0)?.log_softmax(1);
        Ok(vec![onnx_nll(c, p)?, p])
    })];
    samples = |s| {
        let a = CrossEntropy { ignore_index: -100, label_smoothing: 0.0, reduction: Reduction::Mean };
        s.case("mean", a.clone(), [f([3, 5]), int([3], 0, 5)]);
        s.case("sum", CrossEntropy { reduction: Reduction::Sum, ..a.clone() }, [f([2, 2, 3]), int([2, 2], 0, 3)]);
        s.case("none", CrossEntropy { reduction: Reduction::None, ..a.clone() }, [f([4, 3]), int([4], 0, 3)]);
        s.case("smooth", CrossEntropy { label_smoothing: 0.1, ..a.clone() }, [f([3, 4]), int([3], 0, 4)]);
        let ignore = CrossEntropy { ignore_index: 1, label_smoothing: 0.3, ..a.clone() };
        s.case("ignored", ignore, [f([5, 3]), int([5], 0, 3).values(&[0.0, 1.0, 2.0, 1.0, -7.0])]);
        s.case("one_row", a.clone(), [f([4]), int([], 0, 4)]);
        s.case("large", a.clone(), [f([2, 2]).values(&[1000.0, 0.0, -1000.0, 0.5]), int([2], 0, 2)]);
        let wide = int([3], 0, 4).dtype(DType::I64);
        s.case("i64", CrossEntropy { reduction: Reduction::Sum, ..a.clone() }, [f([3, 4]), wide]);
        s.case("empty_sum", CrossEntropy { reduction: Reduction::Sum, ..a.clone() }, [f([0, 3]), int([0], 0, 3)]);
        s.rough("nothing_counts", a.clone(), [f([2, 3]), int([2], -100, -99)]);
        let masked = [f([2, 3]).values(&[0.5, -f64::INFINITY, 1.0]), int([2], 0, 1)];
        s.rough("impossible_class", a, masked);
    };
    tolerance = tol(4e-6, 4e-3, 3e-2);

    /// The gradient of `cross_entropy` to the logits: w · (softmax − (1 − e) · one-hot target − e / classes),
    /// where w is dy of the row, or dy itself (`sum`), or dy over the number of rows that count (`mean`); 0
    /// in the other rows.
    cross_entropy_grad: CrossEntropyGrad(logits: Float, targets: Index, dy: Float)
        { ignore_index: i64 = -100, label_smoothing: f64 = 0.0, reduction: Reduction = Reduction::Mean } -> dlogits;
    constraints = [
        "logits have at least one axis",
        "targets have the shape of logits without the last axis",
        "0 <= label_smoothing <= 1",
        "dy has the shape of the loss",
    ];
    infer = |c, a| {
        check_smoothing(c, 3, a.label_smoothing)?;
        c.expect_shape(4, 2, &check_rows(c, a.reduction)?.shape)?;
        Ok(vec![c.ty(0)?.clone()])
    };
    body = |c, a| {
        let (x, dy) = (c.x(0).wide(), c.x(2).wide());
        let (hit, valid) = hits(x, c.x(1), a.ignore_index);
        let w = match a.reduction {
            Reduction::Mean => dy / valid.to(x.dtype()).sum_all(),
            Reduction::Sum => dy,
            Reduction::None => dy.unsqueeze(-1),
        };
        let one = hit.to(x.dtype()) * (1.0 - a.label_smoothing);
        let mut d = x.softmax(-1) - one;
        if a.label_smoothing > 0.0 {
            d = d - x.scalar(a.label_smoothing) / x.size_scalar(&x.dim(-1));
        }
        let dx = w * d;
        Ok(vec![valid.unsqueeze(-1).select(dx, dx.zeros_like()).to(c.x(0).dtype())])
    };
    samples = |s| {
        let a = CrossEntropyGrad { ignore_index: -100, label_smoothing: 0.0, reduction: Reduction::Mean };
        s.case("mean", a.clone(), [f([3, 5]), int([3], 0, 5), f([])]);
        let sum = CrossEntropyGrad { reduction: Reduction::Sum, label_smoothing: 0.2, ..a.clone() };
        s.case("sum", sum, [f([2, 2, 3]), int([2, 2], 0, 3), f([])]);
        let none = CrossEntropyGrad { reduction: Reduction::None, ..a.clone() };
        s.case("none", none, [f([4, 3]), int([4], 0, 3), f([4])]);
        let targets = int([5], 0, 3).values(&[0.0, 1.0, 2.0, 1.0, -7.0]);
        s.case("ignored", CrossEntropyGrad { ignore_index: 1, ..a }, [f([5, 3]), targets, f([])]);
    };
    tolerance = tol(4e-6, 4e-3, 3e-2);

    /// The cross-entropy of softmax(logits) with a distribution over the classes (the last axis) per row:
    /// −Σ t · log softmax(logits), with t = (1 − e) · target + e / classes and e = label_smoothing.
    /// `mean` is over the rows.
    soft_cross_entropy: SoftCrossEntropy(logits: Float, target: Float)
        { label_smoothing: f64 = 0.0, reduction: Reduction = Reduction::Mean } -> loss;
    constraints = [
        "logits have at least one axis",
        "target has the shape of logits",
        "0 <= label_smoothing <= 1",
    ];
    infer = |c, a| {
        c.rank_at_least(1, 0, 1)?;
        check_smoothing(c, 3, a.label_smoothing)?;
        let x = c.ty(0)?;
        c.expect_shape(2, 1, &x.shape)?;
        Ok(vec![reduced_type(x.dtype, x.shape.get(..x.rank() - 1).unwrap_or(&[]), a.reduction)])
    };
    body = |c, a| {
        let [x, target] = c.xs().map(Var::wide);
        let p = x.log_softmax(-1);
        let mut loss = -(target * p).sum(vec![-1], false);
        if a.label_smoothing > 0.0 {
            loss = loss * (1.0 - a.label_smoothing) - p.mean(vec![-1], false) * a.label_smoothing;
        }
        let loss = match a.reduction {
            Reduction::Mean => loss.mean_all(),
            Reduction::Sum => loss.sum_all(),
            Reduction::None => loss,
        };
        Ok(vec![loss.to(c.x(0).dtype())])
    };
    samples = |s| {
        let with = |label_smoothing, reduction| SoftCrossEntropy { label_smoothing, reduction };
        let p = f([3, 4]).within(0.0, 0.5);
        s.case("mean", with(0.0, Reduction::Mean), [f([3, 4]), p.clone()]);
        s.case("sum", with(0.2, Reduction::Sum), [f([3, 4]), p.clone()]);
        s.case("none", with(0.0, Reduction::None), [f([3, 4]), p]);
        s.case("one_row", with(0.1, Reduction::Mean), [f([5]), f([5]).within(0.0, 0.5)]);
    };
    tolerance = tol(4e-6, 4e-3, 3e-2);

    /// −x at the target class of each row, for x that are log-probabilities; the classes are the last axis. A
    /// row whose target is `ignore_index`, or no class at all, has loss 0 and gradient 0. `mean` divides by
    /// the number of the other rows (NaN if there are none).
    nll_loss: NllLoss(x: Float, targets: Index)
        { ignore_index: i64 = -100, reduction: Reduction = Reduction::Mean } -> loss;
    constraints = ["x has at least one axis", "targets have the shape of x without the last axis"];
    infer = |c, a| Ok(vec![check_rows(c, a.reduction)?]);
    body = |c, a| {
        let x = c.x(0).wide();
        let (hit, valid) = hits(x, c.x(1), a.ignore_index);
        Ok(vec![reduce_valid(picked(x, hit), valid, a.reduction).to(c.x(0).dtype())])
    };
    onnx = [rule("NegativeLogLikelihoodLoss", 12, |c| Ok(vec![onnx_nll(c, c.x(0)?)?]))];
    samples = |s| {
        let with = |ignore_index, reduction| NllLoss { ignore_index, reduction };
        s.case("mean", with(-100, Reduction::Mean), [f([3, 5]), int([3], 0, 5)]);
        s.case("sum", with(0, Reduction::Sum), [f([2, 2, 3]), int([2, 2], 0, 3)]);
        s.case("none", with(-100, Reduction::None), [f([4, 3]), int([4], 0, 3)]);
        s.case("byte_targets", with(1 << 40, Reduction::Mean), [f([2, 3]), int([2], 0, 3).dtype(DType::U8)]);
        s.rough("nothing_counts", with(-100, Reduction::Mean), [f([2, 3]), int([2], -100, -99)]);
    };
    tolerance = tol(2e-6, 2e-3, 2e-2);
}
