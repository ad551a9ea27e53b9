//! Rearrangements made of simpler ones: repeating, padding with the tensor's own elements, rotating.

use crate::onnx;
use crate::prelude::*;

attr_enum! {
    /// What stands beyond the ends of an axis.
    PadMode {
        /// The element at the end.
        Edge = "edge",
        /// The elements mirrored at the end, which itself is not repeated.
        Reflect = "reflect",
        /// The elements from the other end.
        Wrap = "wrap",
    }
}

/// Pads one axis.
fn padded<'g>(x: Var<'g>, axis: i64, lo: &Dim, hi: &Dim, mode: PadMode) -> Var<'g> {
    let n = x.dim(axis);
    let edge = |from: Dim, count: &Dim| {
        let mut shape = x.shape();
        if let Some(d) = shape.get_mut(axis as usize) {
            *d = count.clone();
        }
        x.narrow(axis, from, 1).broadcast(shape)
    };
    let part = |low: bool, count: &Dim| match (mode, low) {
        _ if count.is(0) => None,
        (PadMode::Edge, true) => Some(edge(0.into(), count)),
        (PadMode::Edge, false) => Some(edge(&n - 1, count)),
        (PadMode::Reflect, true) => Some(x.narrow(axis, 1, count.clone()).flip(vec![axis])),
        (PadMode::Reflect, false) => Some(x.narrow(axis, &n - 1 - count, count.clone()).flip(vec![axis])),
        (PadMode::Wrap, true) => Some(x.narrow(axis, &n - count, count.clone())),
        (PadMode::Wrap, false) => Some(x.narrow(axis, 0, count.clone())),
    };
    let parts: Vec<Var<'g>> = [part(true, lo), Some(x), part(false, hi)].into_iter().flatten().collect();
    if parts.len() == 1 { x } else { x.graph().concat(&parts, axis) }
}

ops! {
    /// x repeated `repeats[i]` times along axis i, one copy after the other.
    tile: Tile(x: Any) { repeats: Dims } -> y;
    constraints = ["repeats has an entry for every axis of x", "no entry is negative"];
    infer = |c, a| {
        let x = c.ty(0)?;
        if a.repeats.len() != x.rank() {
            let text = format!("{} entries for {} axes", a.repeats.len(), x.rank());
            return Err(c.fail(Code::Rank, 1, text).operand("x"));
        }
        if let Some((i, r)) = a.repeats.iter().enumerate().find(|(_, r)| !c.at_least(2, r, 0)) {
            return Err(c.fail(Code::Attribute, 2, format!("{r} times")).operand("x").axis(i));
        }
        Ok(vec![x.with_shape(x.shape.iter().zip(a.repeats.iter()).map(|(d, r)| d * r).collect::<Shape>())])
    };
    body = |c, a| {
        let mut y = c.x(0);
        for (axis, r) in a.repeats.iter().enumerate().filter(|(_, r)| !r.is(1)) {
            let mut shape = y.shape();
            let (outer, inner) = shape.split_at(axis);
            let (outer, inner) = (product(outer), product(inner));
            let one = y.reshape([outer.clone(), 1.into(), inner.clone()]);
            let copies = one.broadcast([outer, r.clone(), inner]);
            if let Some(d) = shape.get_mut(axis) {
                *d = &*d * r;
            }
            y = copies.reshape(shape);
        }
        Ok(vec![y])
    };
    vmap = |c, a| Ok(vec![c.x(0).tile([&[Dim::constant(1)], &a.repeats[..]].concat())]);
    onnx = [rule("Tile", 1, onnx::slices::tile)];
    samples = |s| {
        s.case("rows", Tile { repeats: [2, 1].into() }, [f([2, 3])]);
        s.case("both", Tile { repeats: [2, 3].into() }, [f([1, 2])]);
        s.case("once", Tile { repeats: [1].into() }, [f([3])]);
        s.case("never", Tile { repeats: [0, 2].into() }, [f([2, 2])]);
        s.case("scalar", Tile { repeats: Dims(vec![]) }, [f([])]);
    };

    /// x with `lo[i]` elements before axis i and `hi[i]` after it, taken from x: its edge, its mirror image,
    /// or its other end.
    pad_mode: PadWith(x: Any) { lo: Dims, hi: Dims, mode: PadMode } -> y;
    constraints = [
        "lo and hi have an entry for every axis of x",
        "no entry is negative",
        "an axis that grows has 1 element at least (edge), as many as are added (wrap), or 1 more (reflect)",
    ];
    infer = |c, a| {
        let x = c.ty(0)?;
        if a.lo.len() != x.rank() || a.hi.len() != x.rank() {
            return Err(c.fail(Code::Rank, 1, format!("x has {} axes", x.rank())).operand("x"));
        }
        let mut shape = Shape::new();
        for (i, ((d, lo), hi)) in x.shape.iter().zip(a.lo.iter()).zip(a.hi.iter()).enumerate() {
            for by in [lo, hi].into_iter().filter(|by| !by.is(0)) {
                if !c.at_least(2, by, 0) {
                    return Err(c.fail(Code::Attribute, 2, format!("{by} elements")).operand("x").axis(i));
                }
                let spare = match a.mode {
                    PadMode::Edge => d - 1,
                    PadMode::Reflect => d - 1 - by,
                    PadMode::Wrap => d - by,
                };
                if !c.at_least(3, &spare, 0) {
                    let text = format!("{d} elements cannot grow by {by}");
                    return Err(c.fail(Code::Size, 3, text).operand("x").axis(i));
                }
            }
            shape.push(d + lo + hi);
        }
        Ok(vec![x.with_shape(shape)])
    };
    body = |c, a| {
        let bounds = a.lo.iter().zip(a.hi.iter()).enumerate();
        Ok(vec![bounds.fold(c.x(0), |y, (i, (lo, hi))| padded(y, i as i64, lo, hi, a.mode))])
    };
    vmap = |c, a| {
        let lead = |rest: &Dims| [&[Dim::constant(0)], &rest[..]].concat();
        Ok(vec![c.x(0).pad_mode(lead(&a.lo), lead(&a.hi), a.mode)])
    };
    onnx = [rule("Pad", 1, onnx::slices::pad)];
    samples = |s| {
        s.case("edge", PadWith { lo: [1, 0].into(), hi: [2, 3].into(), mode: PadMode::Edge }, [f([2, 1])]);
        s.case("mirror", PadWith { lo: [2].into(), hi: [1].into(), mode: PadMode::Reflect }, [f([3])]);
        s.case("wrap", PadWith { lo: [3].into(), hi: [1].into(), mode: PadMode::Wrap }, [f([3])]);
        s.case("nothing", PadWith { lo: [0].into(), hi: [0].into(), mode: PadMode::Reflect }, [f([0])]);
    };

    /// The elements of an axis moved `shift` places toward its end; what falls off comes in at the start. A
    /// negative shift moves toward the start.
    roll: Roll(x: Any) { shift: i64, axis: i64 } -> y;
    constraints = ["the axis exists", "shift is within ±2^53"];
    infer = |c, a| {
        c.axis(1, 0, a.axis)?;
        if a.shift.unsigned_abs() > 1 << 53 {
            return Err(c.fail(Code::Attribute, 2, format!("shift is {}", a.shift)));
        }
        Ok(vec![c.ty(0)?.clone()])
    };
    body = |c, a| {
        let n = c.x(0).dim(a.axis);
        let to = c.g.iota([n.clone()], 0, DType::I64);
        // Within ±n: gather counts negative positions from the end.
        let from = (to - a.shift as f64) % to.size_scalar(&n);
        Ok(vec![c.x(0).gather(from, a.axis)])
    };
    vjp = |c, a| Ok([c.dy(0).roll(-a.shift, a.axis)].into());
    vmap = |c, a| Ok(vec![c.x(0).roll(a.shift, c.shift(0, a.axis)?)]);
    samples = |s| {
        s.case("right", Roll { shift: 1, axis: 0 }, [f([4, 2])]);
        s.case("left", Roll { shift: -2, axis: -1 }, [f([2, 5])]);
        s.case("around", Roll { shift: 7, axis: 0 }, [f([3])]);
        s.case("empty", Roll { shift: 1, axis: 0 }, [f([0, 2])]);
    };
}
