//! Ops across ranks: every rank runs the same graph and meets the others here.
//!
//! A gradient is that of the sum of all ranks' losses. `ranks` is the number of ranks that take part; with one rank
//! every op is the identity.

use crate::prelude::*;

attr_enum! {
    /// How `all_reduce` joins the ranks' values.
    Join {
        /// Their sum.
        Sum = "sum",
        /// Their mean.
        Mean = "mean",
        /// The largest; NaN wins.
        Max = "max",
        /// The smallest; NaN wins.
        Min = "min",
    }
}

/// Constraint 1 of all collectives.
fn check_ranks(c: &Infer<'_>, ranks: i64) -> Result<()> {
    if ranks < 1 { Err(c.fail(Code::Attribute, 1, format!("{ranks} ranks"))) } else { Ok(()) }
}

/// Constraint 2 of the collectives that name a rank.
fn check_root(c: &Infer<'_>, root: i64, ranks: i64) -> Result<()> {
    if (0..ranks).contains(&root) {
        Ok(())
    } else {
        Err(c.fail(Code::Attribute, 2, format!("rank {root} of {ranks}")))
    }
}

/// The axis of x and its length divided by the number of ranks; breaks constraint 2,
/// or 3 where there is no such axis.
fn parted(c: &Infer<'_>, axis: i64, ranks: i64) -> Result<(usize, Dim)> {
    let axis = c.axis(3, 0, axis)?;
    let d = c.dim(0, axis)?;
    let part = d.exact_div(&Dim::constant(ranks));
    part.map(|p| (axis, p)).ok_or_else(|| {
        c.fail(Code::Dim, 2, format!("axis {axis} of x is {d}, which {ranks} ranks do not divide"))
            .operand("x")
            .axis(axis)
    })
}

/// x's type with another length of one axis.
fn resized(x: &Type, axis: usize, d: Dim) -> Type {
    x.with_shape(
        x.shape
            .iter()
            .enumerate()
            .map(|(i, e)| if i == axis { d.clone() } else { e.clone() })
            .collect::<Shape>(),
    )
}

/// The arrays are those of `n` ranks and have one type.
fn meet(xs: &[Arr], n: i64) -> Result<&Arr> {
    match xs.first() {
        Some(x)
            if xs.len() as i64 == n
                && xs.iter().all(|y| y.shape() == x.shape() && y.dtype() == x.dtype()) =>
        {
            Ok(x)
        }
        _ => Err(Error::new(
            Code::BadInput,
            format!("{} ranks are running, the graph is for {n} with equal shapes", xs.len()),
        )),
    }
}

/// Element by element over all ranks.
fn joined(xs: &[Arr], how: Join) -> Result<Arr> {
    let (first, rest) = xs.split_first().ok_or_else(|| Error::new(Code::BadInput, "no rank is running"))?;
    let s = match how {
        Join::Sum | Join::Mean => Scalar::Add,
        Join::Max => Scalar::Max,
        Join::Min => Scalar::Min,
    };
    Arr::from_fn(first.dtype(), first.shape(), |ix| {
        let all = rest.iter().fold(first.at(ix), |a, x| s.eval(first.dtype(), &[a, x.at(ix)]));
        if how == Join::Mean { Num::F(all.f() / xs.len() as f64) } else { all }
    })
}

/// The arrays one after the other along an axis.
fn joined_along(xs: &[Arr], axis: usize) -> Result<Arr> {
    let first = xs.first().ok_or_else(|| Error::new(Code::BadInput, "no rank is running"))?;
    let part = first.shape().get(axis).copied().unwrap_or(1).max(1);
    let mut shape = first.shape().to_vec();
    shape.iter_mut().skip(axis).take(1).for_each(|d| *d *= xs.len());
    Arr::from_fn(first.dtype(), &shape, |ix| {
        let mut from = ix.to_vec();
        let k = from.get(axis).copied().unwrap_or(0);
        from.iter_mut().skip(axis).take(1).for_each(|i| *i %= part);
        xs.get(k / part).map_or(Num::I(0), |x| x.at(&from))
    })
}

/// Part `r` of `n` equal ones of an axis.
fn part_of(x: &Arr, axis: usize, r: usize, n: usize) -> Result<Arr> {
    let mut shape = x.shape().to_vec();
    shape.iter_mut().skip(axis).take(1).for_each(|d| *d /= n.max(1));
    let start = r * shape.get(axis).copied().unwrap_or(0);
    Arr::from_fn(x.dtype(), &shape, |ix| {
        let mut from = ix.to_vec();
        from.iter_mut().skip(axis).take(1).for_each(|i| *i += start);
        x.at(&from)
    })
}

ops! {
    /// Element by element the sum, mean, maximum or minimum over all ranks, on every rank.
    ///
    /// The gradient of a maximum or minimum goes to the ranks that hold it, in equal shares.
    all_reduce: AllReduce(x: Num) { kind: Join, ranks: i64 } -> y;
    constraints = ["ranks >= 1", "a mean is one of floats"];
    infer = |c, a| {
        check_ranks(c, a.ranks)?;
        let x = c.ty(0)?;
        if a.kind == Join::Mean && !x.dtype.is_float() {
            return Err(c.fail(Code::DType, 2, format!("the mean of {}", x.dtype)).operand("x"));
        }
        Ok(vec![x.clone()])
    };
    step = |_, a| Ok(Step::Collective(a.ranks));
    collective = |xs, a| {
        meet(xs, a.ranks)?;
        let y = joined(xs, a.kind)?;
        Ok(vec![y; xs.len()])
    };
    vjp = |c, a| {
        Ok([match a.kind {
            Join::Sum | Join::Mean => c.dy(0).all_reduce(a.kind, a.ranks),
            Join::Max | Join::Min => {
                let mine = c.x(0).equal(c.y(0)).cast(c.x(0).dtype());
                c.dy(0).all_reduce(Join::Sum, a.ranks) * mine / mine.all_reduce(Join::Sum, a.ranks)
            }
        }].into())
    };
    vmap = |c, a| Ok(vec![c.x(0).all_reduce(a.kind, a.ranks)]);
    samples = |s| {
        s.case("sum", AllReduce { kind: Join::Sum, ranks: 1 }, [f([2, 3])]);
        s.case("mean", AllReduce { kind: Join::Mean, ranks: 1 }, [f([])]);
        s.case("max", AllReduce { kind: Join::Max, ranks: 1 }, [f([3])]);
        s.case("min", AllReduce { kind: Join::Min, ranks: 1 }, [f([3])]);
        s.case("empty", AllReduce { kind: Join::Sum, ranks: 1 }, [f([0, 2])]);
    };

    /// The tensors of all ranks, one after the other along an axis in the order of the ranks, on every rank.
    all_gather: AllGather(x: Any) { axis: i64, ranks: i64 } -> y;
    constraints = ["ranks >= 1", "the axis exists"];
    infer = |c, a| {
        check_ranks(c, a.ranks)?;
        let axis = c.axis(2, 0, a.axis)?;
        Ok(vec![resized(c.ty(0)?, axis, c.dim(0, axis)? * a.ranks)])
    };
    step = |_, a| Ok(Step::Collective(a.ranks));
    collective = |xs, a| {
        let axis = resolve_axis(a.axis, meet(xs, a.ranks)?.rank())?;
        Ok(vec![joined_along(xs, axis)?; xs.len()])
    };
    vjp = |c, a| Ok([c.dy(0).reduce_scatter(a.axis, a.ranks)].into());
    vmap = |c, a| Ok(vec![c.x(0).all_gather(c.shift(0, a.axis)?, a.ranks)]);
    samples = |s| {
        s.case("rows", AllGather { axis: 0, ranks: 1 }, [f([2, 3])]);
        s.case("last", AllGather { axis: -1, ranks: 1 }, [f([2, 1, 3])]);
        s.case("empty", AllGather { axis: 0, ranks: 1 }, [f([0])]);
    };

    /// The sum over all ranks, of which rank r keeps part r of the axis.
    reduce_scatter: ReduceScatter(x: Num) { axis: i64, ranks: i64 } -> y;
    constraints = ["ranks >= 1", "ranks divides the axis", "the axis exists"];
    infer = |c, a| {
        check_ranks(c, a.ranks)?;
        let (axis, part) = parted(c, a.axis, a.ranks)?;
        Ok(vec![resized(c.ty(0)?, axis, part)])
    };
    step = |_, a| Ok(Step::Collective(a.ranks));
    collective = |xs, a| {
        let axis = resolve_axis(a.axis, meet(xs, a.ranks)?.rank())?;
        let sum = joined(xs, Join::Sum)?;
        (0..xs.len()).map(|r| part_of(&sum, axis, r, xs.len())).collect()
    };
    vjp = |c, a| Ok([c.dy(0).all_gather(a.axis, a.ranks)].into());
    vmap = |c, a| Ok(vec![c.x(0).reduce_scatter(c.shift(0, a.axis)?, a.ranks)]);
    samples = |s| {
        s.case("rows", ReduceScatter { axis: 0, ranks: 1 }, [f([2, 3])]);
        s.case("last", ReduceScatter { axis: -1, ranks: 1 }, [f([2, 1, 3])]);
        s.case("empty", ReduceScatter { axis: 0, ranks: 1 }, [f([0])]);
    };

    /// The tensor of rank `root`, on every rank.
    broadcast_rank: BroadcastRank(x: Any) { root: i64 = 0, ranks: i64 } -> y;
    constraints = ["ranks >= 1", "0 <= root < ranks"];
    infer = |c, a| {
        check_ranks(c, a.ranks)?;
        check_root(c, a.root, a.ranks)?;
        Ok(vec![c.ty(0)?.clone()])
    };
    step = |_, a| Ok(Step::Collective(a.ranks));
    collective = |xs, a| {
        let first = meet(xs, a.ranks)?;
        let x = usize::try_from(a.root).ok().and_then(|r| xs.get(r)).unwrap_or(first);
        Ok(vec![x.clone(); xs.len()])
    };
    vjp = |c, a| Ok([c.dy(0).reduce_rank(a.root, a.ranks)].into());
    vmap = |c, a| Ok(vec![c.x(0).broadcast_rank(a.root, a.ranks)]);
    samples = |s| {
        s.case("matrix", BroadcastRank { root: 0, ranks: 1 }, [f([2, 3])]);
        s.case("empty", BroadcastRank { root: 0, ranks: 1 }, [f([0])]);
    };

    /// The sum over all ranks on rank `root`, zeros on the others.
    reduce_rank: ReduceRank(x: Num) { root: i64 = 0, ranks: i64 } -> y;
    constraints = ["ranks >= 1", "0 <= root < ranks"];
    infer = |c, a| {
        check_ranks(c, a.ranks)?;
        check_root(c, a.root, a.ranks)?;
        Ok(vec![c.ty(0)?.clone()])
    };
    step = |_, a| Ok(Step::Collective(a.ranks));
    collective = |xs, a| {
        let first = meet(xs, a.ranks)?;
        let (sum, zero) = (joined(xs, Join::Sum)?, Arr::from_fn(first.dtype(), first.shape(), |_| Num::I(0))?);
        Ok((0..xs.len()).map(|r| if r as i64 == a.root { sum.clone() } else { zero.clone() }).collect())
    };
    vjp = |c, a| Ok([c.dy(0).broadcast_rank(a.root, a.ranks)].into());
    vmap = |c, a| Ok(vec![c.x(0).reduce_rank(a.root, a.ranks)]);
    samples = |s| {
        s.case("matrix", ReduceRank { root: 0, ranks: 1 }, [f([2, 3])]);
        s.case("empty", ReduceRank { root: 0, ranks: 1 }, [f([0])]);
    };

    /// Each rank cuts its tensor into equal parts along axis `split`, sends part r to rank r, and joins what it gets along
    /// axis `join`, in the order of the ranks.
    all_to_all: AllToAll(x: Any) { split: i64, join: i64, ranks: i64 } -> y;
    constraints = ["ranks >= 1", "ranks divides the axis that is split", "both axes exist"];
    infer = |c, a| {
        check_ranks(c, a.ranks)?;
        let (axis, part) = parted(c, a.split, a.ranks)?;
        let cut = resized(c.ty(0)?, axis, part);
        let join = c.axis(3, 0, a.join)?;
        let d = cut.shape.get(join).cloned().unwrap_or(Dim::constant(1)) * a.ranks;
        Ok(vec![resized(&cut, join, d)])
    };
    step = |_, a| Ok(Step::Collective(a.ranks));
    collective = |xs, a| {
        let rank = meet(xs, a.ranks)?.rank();
        let (split, join) = (resolve_axis(a.split, rank)?, resolve_axis(a.join, rank)?);
        let to = |r| {
            let parts = xs.iter().map(|x| part_of(x, split, r, xs.len())).collect::<Result<Vec<_>>>()?;
            joined_along(&parts, join)
        };
        (0..xs.len()).map(to).collect()
    };
    vjp = |c, a| Ok([c.dy(0).all_to_all(a.join, a.split, a.ranks)].into());
    vmap = |c, a| Ok(vec![c.x(0).all_to_all(c.shift(0, a.split)?, c.shift(0, a.join)?, a.ranks)]);
    samples = |s| {
        s.case("turn", AllToAll { split: 0, join: 1, ranks: 1 }, [f([2, 3])]);
        s.case("same", AllToAll { split: -1, join: 1, ranks: 1 }, [f([2, 3])]);
        s.case("empty", AllToAll { split: 0, join: 0, ranks: 1 }, [f([0])]);
    };

    /// The tensor of the rank `shift` places before, counted around: rank r gets that of rank `(r − shift) mod ranks`.
    rotate_ranks: RotateRanks(x: Any) { shift: i64 = 1, ranks: i64 } -> y;
    constraints = ["ranks >= 1", "|shift| < ranks"];
    infer = |c, a| {
        check_ranks(c, a.ranks)?;
        if a.shift.unsigned_abs() >= a.ranks.unsigned_abs() {
            return Err(c.fail(Code::Attribute, 2, format!("shift {} of {} ranks", a.shift, a.ranks)));
        }
        Ok(vec![c.ty(0)?.clone()])
    };
    step = |_, a| Ok(Step::Collective(a.ranks));
    collective = |xs, a| {
        let first = meet(xs, a.ranks)?;
        let from = |r: usize| usize::try_from((r as i64 - a.shift).rem_euclid(a.ranks.max(1))).ok();
        Ok((0..xs.len()).map(|r| from(r).and_then(|r| xs.get(r)).unwrap_or(first).clone()).collect())
    };
    vjp = |c, a| Ok([c.dy(0).rotate_ranks(-a.shift, a.ranks)].into());
    vmap = |c, a| Ok(vec![c.x(0).rotate_ranks(a.shift, a.ranks)]);
    samples = |s| {
        s.case("matrix", RotateRanks { shift: 0, ranks: 1 }, [f([2, 3])]);
        s.case("empty", RotateRanks { shift: 0, ranks: 1 }, [f([0])]);
    };
}
