//! Losses element by element, and what they share: reductions.

use crate::prelude::*;

attr_enum! {
    /// What becomes of the losses of the elements.
    Reduction {
        /// Their mean.
        Mean = "mean",
        /// Their sum.
        Sum = "sum",
        /// Each stays.
        None = "none",
    }
}

attr_enum! {
    /// What becomes of the divergences of the elements.
    DivergenceReduction {
        /// The mean over all elements.
        Mean = "mean",
        /// Their sum, divided by the size of axis 0: the mean divergence of the rows.
        BatchMean = "batch_mean",
        /// Their sum.
        Sum = "sum",
        /// Each stays.
        None = "none",
    }
}

/// The type of losses of this shape after their reduction.
pub(crate) fn reduced_type(dtype: DType, shape: &[Dim], reduction: Reduction) -> Type {
    Type::new(dtype, if reduction == Reduction::None { shape } else { &[] })
}

/// Losses after their reduction, as `dtype`.
fn reduce(loss: Var<'_>, reduction: Reduction, dtype: DType) -> Vec<Var<'_>> {
    let y = match reduction {
        Reduction::Mean => loss.mean_all(),
        Reduction::Sum => loss.sum_all(),
        Reduction::None => loss,
    };
    vec![y.to(dtype)]
}

/// The shape rule of losses that compare two tensors of one shape (constraint 1).
fn same_shapes(c: &Infer<'_>, reduction: Reduction) -> Result<Vec<Type>> {
    let x = c.ty(0)?;
    c.expect_shape(1, 1, &x.shape)?;
    Ok(vec![reduced_type(x.dtype, &x.shape, reduction)])
}

/// Constraint 2: the width of the quadratic part.
fn check_width(c: &Infer<'_>, what: &str, width: f64, least: f64) -> Result<()> {
    if width.is_finite() && width >= least {
        return Ok(());
    }
    Err(c.fail(Code::Attribute, 2, format!("{what} is {width}")))
}

ops! {
    /// (x − target)².
    mse_loss: MseLoss(x: Float, target: Float) { reduction: Reduction = Reduction::Mean } -> loss;
    constraints = ["target has the shape of x"];
    infer = |c, a| same_shapes(c, a.reduction);
    body = |c, a| {
        let [x, target] = c.xs().map(Var::wide);
        Ok(reduce((x - target).square(), a.reduction, c.x(0).dtype()))
    };
    samples = |s| {
        s.case("mean", MseLoss { reduction: Reduction::Mean }, [f([3, 4]), f([3, 4])]);
        s.case("sum", MseLoss { reduction: Reduction::Sum }, [f([5]), f([5])]);
        s.case("none", MseLoss { reduction: Reduction::None }, [f([2, 3]), f([2, 3])]);
        s.case("scalar", MseLoss { reduction: Reduction::Mean }, [f([]), f([])]);
        s.rough("empty", MseLoss { reduction: Reduction::Mean }, [f([0]), f([0])]);
    };

    /// |x − target|; its gradient is 0 where the two are equal.
    l1_loss: L1Loss(x: Float, target: Float) { reduction: Reduction = Reduction::Mean } -> loss;
    constraints = ["target has the shape of x"];
    infer = |c, a| same_shapes(c, a.reduction);
    body = |c, a| {
        let [x, target] = c.xs().map(Var::wide);
        Ok(reduce((x - target).abs(), a.reduction, c.x(0).dtype()))
    };
    samples = |s| {
        let apart = [f([3, 4]).within(1.0, 2.0), f([3, 4]).within(2.1, 3.0)];
        s.case("mean", L1Loss { reduction: Reduction::Mean }, apart);
        s.case("sum", L1Loss { reduction: Reduction::Sum }, [f([5]).within(1.0, 2.0), f([5]).within(0.0, 0.9)]);
        s.case("none", L1Loss { reduction: Reduction::None }, [f([2]).within(1.0, 2.0), f([2]).within(2.1, 3.0)]);
        s.rough("equal", L1Loss { reduction: Reduction::None }, [f([2]).values(&[1.0]), f([2]).values(&[1.0])]);
    };

    /// With d = |x − target|: d² / 2 up to delta, then delta · (d − delta / 2).
    huber_loss: HuberLoss(x: Float, target: Float)
        { delta: f64 = 1.0, reduction: Reduction = Reduction::Mean } -> loss;
    constraints = ["target has the shape of x", "delta is finite and more than 0"];
    infer = |c, a| {
        check_width(c, "delta", a.delta, f64::MIN_POSITIVE)?;
        same_shapes(c, a.reduction)
    };
    body = |c, a| {
        let [x, target] = c.xs().map(Var::wide);
        let d = (x - target).abs();
        let loss = d.greater(a.delta).select((d - a.delta / 2.0) * a.delta, d.square() * 0.5);
        Ok(reduce(loss, a.reduction, c.x(0).dtype()))
    };
    samples = |s| {
        let inside = [f([3, 4]).within(0.0, 0.4), f([3, 4]).within(0.5, 0.9)];
        s.case("inside", HuberLoss { delta: 1.0, reduction: Reduction::Mean }, inside);
        let outside = [f([5]).within(1.0, 2.0), f([5]).within(3.0, 4.0)];
        s.case("outside", HuberLoss { delta: 0.5, reduction: Reduction::Sum }, outside);
        let both = [f([4]).values(&[0.0, 0.1, 5.0, -5.0]), f([4]).values(&[0.2])];
        s.case("none", HuberLoss { delta: 2.0, reduction: Reduction::None }, both);
    };

    /// With d = |x − target|: d² / (2 · beta) up to beta, then d − beta / 2. A beta of 0 gives d.
    smooth_l1_loss: SmoothL1Loss(x: Float, target: Float)
        { beta: f64 = 1.0, reduction: Reduction = Reduction::Mean } -> loss;
    constraints = ["target has the shape of x", "beta is finite and not negative"];
    infer = |c, a| {
        check_width(c, "beta", a.beta, 0.0)?;
        same_shapes(c, a.reduction)
    };
    body = |c, a| {
        let [x, target] = c.xs().map(Var::wide);
        let d = (x - target).abs();
        let loss = match a.beta > 0.0 {
            true => d.greater(a.beta).select(d - a.beta / 2.0, d.square() * (0.5 / a.beta)),
            false => d,
        };
        Ok(reduce(loss, a.reduction, c.x(0).dtype()))
    };
    samples = |s| {
        let inside = [f([3, 4]).within(0.0, 0.4), f([3, 4]).within(0.5, 0.9)];
        s.case("inside", SmoothL1Loss { beta: 1.0, reduction: Reduction::Mean }, inside);
        let outside = [f([5]).within(1.0, 2.0), f([5]).within(3.0, 4.0)];
        s.case("outside", SmoothL1Loss { beta: 0.5, reduction: Reduction::Sum }, outside.clone());
        s.case("no_beta", SmoothL1Loss { beta: 0.0, reduction: Reduction::None }, outside);
    };

    /// Binary cross-entropy of sigmoid(x): −pos_weight · target · log σ(x) − (1 − target) · log(1 − σ(x)),
    /// computed without leaving the logarithms. pos_weight (1 if left out) broadcasts to x.
    bce_with_logits: BceWithLogits(x: Float, target: Float, pos_weight: opt Float)
        { reduction: Reduction = Reduction::Mean } -> loss;
    constraints = ["target has the shape of x", "pos_weight broadcasts to the shape of x"];
    infer = |c, a| {
        let x = c.ty(0)?;
        if let Some(w) = c.opt(2) && !broadcast(&x.shape, &w.shape).is_ok_and(|s| s == x.shape) {
            return Err(c.fail(Code::Broadcast, 2, format!("{w} against {x}")).operand("pos_weight"));
        }
        same_shapes(c, a.reduction)
    };
    body = |c, a| {
        let [x, target] = c.xs().map(Var::wide);
        let yes = target * (-x).softplus();
        let yes = c.opt(2).map_or(yes, |w| yes * w.wide());
        Ok(reduce(yes + (1.0 - target) * x.softplus(), a.reduction, c.x(0).dtype()))
    };
    samples = |s| {
        let p = f([3, 4]).within(0.1, 0.9);
        s.case("mean", BceWithLogits { reduction: Reduction::Mean }, [f([3, 4]), p.clone()]);
        s.case("weighted", BceWithLogits { reduction: Reduction::Sum }, [f([3, 4]), p, f([4]).within(0.5, 2.0)]);
        let hard = [f([4]).values(&[100.0, -100.0, 30.0, -30.0]), f([4]).values(&[1.0, 0.0, 0.0, 1.0])];
        s.case("none", BceWithLogits { reduction: Reduction::None }, hard);
    };

    /// The divergence target · (log target − x) of the log-probabilities x from the distribution `target`, 0
    /// where target is 0. With `log_target`, target is given as logarithms.
    kl_div: KlDiv(x: Float, target: Float)
        { log_target: bool = false, reduction: DivergenceReduction = DivergenceReduction::BatchMean } -> loss;
    constraints = ["target has the shape of x", "for batch_mean, x has at least one axis"];
    infer = |c, a| {
        if a.reduction == DivergenceReduction::BatchMean {
            c.rank_at_least(2, 0, 1)?;
        }
        same_shapes(c, if a.reduction == DivergenceReduction::None { Reduction::None } else { Reduction::Sum })
    };
    body = |c, a| {
        let [x, target] = c.xs().map(Var::wide);
        let loss = if a.log_target {
            target.exp() * (target - x)
        } else {
            let zero = target.equal(0.0);
            let log = zero.select(target.ones_like(), target).log();
            zero.select(target.zeros_like(), target * (log - x))
        };
        let (loss, reduction) = match a.reduction {
            DivergenceReduction::Mean => (loss, Reduction::Mean),
            DivergenceReduction::Sum => (loss, Reduction::Sum),
            DivergenceReduction::None => (loss, Reduction::None),
            DivergenceReduction::BatchMean => (loss.sum_all() / x.size_scalar(&x.dim(0)), Reduction::None),
        };
        Ok(reduce(loss, reduction, c.x(0).dtype()))
    };
    samples = |s| {
        let (x, p) = (f([3, 4]).within(-3.0, -0.1), f([3, 4]).within(0.1, 0.9));
        let with = |log_target, reduction| KlDiv { log_target, reduction };
        s.case("batch_mean", with(false, DivergenceReduction::BatchMean), [x.clone(), p.clone()]);
        s.case("mean", with(false, DivergenceReduction::Mean), [x.clone(), p.clone()]);
        s.case("sum", with(true, DivergenceReduction::Sum), [x.clone(), x.clone()]);
        s.case("none", with(false, DivergenceReduction::None), [x, p]);
        let hard = [f([3]).within(-3.0, -0.1), f([3]).values(&[0.0, 1.0, 0.0])];
        s.rough("one_hot", with(false, DivergenceReduction::Sum), hard);
    };
}
