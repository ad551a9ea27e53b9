//! Windows that slide over the last axes of a tensor, and what is reduced over each.

use crate::ops::scatter::ScatterMode;
use crate::prelude::*;

attr_enum! {
    /// How `reduce_window` reduces.
    WindowKind {
        /// The sum; 0 of nothing.
        Sum = "sum",
        /// The largest; NaN wins.
        Max = "max",
        /// The smallest; NaN wins.
        Min = "min",
    }
}

/// A list with an entry per axis; an empty one stands for the default everywhere.
pub(crate) fn spread(v: &[i64], n: usize, default: i64) -> Vec<i64> {
    if v.is_empty() { vec![default; n] } else { v.to_vec() }
}

/// Windows over some axes; every list has an entry per axis.
pub(crate) struct Windows {
    pub kernel: Vec<Dim>,
    pub stride: Vec<i64>,
    pub dilation: Vec<i64>,
    pub padding_lo: Vec<i64>,
    pub padding_hi: Vec<i64>,
}

/// An attribute to check: its name, its value and the least that an entry may be.
pub(crate) type ListAttr<'a> = (&'a str, &'a [i64], i64);

impl Windows {
    /// Each list is empty or has `axes` entries, none below its least, or constraint `n` is broken.
    pub(crate) fn check_attrs(c: &Infer<'_>, n: usize, axes: usize, lists: &[ListAttr<'_>]) -> Result<()> {
        for (name, list, least) in lists {
            if !list.is_empty() && list.len() != axes {
                let text = format!("{name} has {} entries, there are {axes} spatial axes", list.len());
                return Err(c.fail(Code::Attribute, n, text));
            }
            if let Some((i, v)) = list.iter().enumerate().find(|(_, v)| *v < least) {
                return Err(c.fail(Code::Attribute, n, format!("entry {i} of {name} is {v}")));
            }
        }
        Ok(())
    }

    /// By how much each padded axis exceeds one window.
    fn room(&self, sizes: &[Dim]) -> Shape {
        let of = |v: &[i64], i: usize, d: i64| v.get(i).copied().unwrap_or(d);
        let room = |(i, (n, k)): (usize, (&Dim, &Dim))| {
            n + of(&self.padding_lo, i, 0) + of(&self.padding_hi, i, 0)
                - (k - 1) * of(&self.dilation, i, 1)
                - 1
        };
        sizes.iter().zip(&self.kernel).enumerate().map(room).collect()
    }

    /// How many windows there are along each axis of these sizes.
    pub(crate) fn sizes(&self, sizes: &[Dim]) -> Shape {
        self.room(sizes).iter().zip(&self.stride).map(|(room, s)| room.floor_div(*s) + 1).collect()
    }

    /// The same, where each window must fit (as far as can be proven), or constraint `n` is broken. The sizes
    /// are those of the axes of the operand from `first` on.
    pub(crate) fn outputs(
        &self,
        c: &Infer<'_>,
        n: usize,
        name: &str,
        first: usize,
        sizes: &[Dim],
    ) -> Result<Shape> {
        for (i, room) in self.room(sizes).iter().enumerate() {
            let (k, d) = (self.kernel.get(i), sizes.get(i));
            let (Some(k), Some(d)) = (k, d) else { continue };
            if !room.is_valid() {
                return Err(c.fail(Code::Size, n, "the padded size overflows").operand(name).axis(first + i));
            }
            if !c.at_least(n, k, 1) || !c.at_least(n, room, 0) {
                let text = format!("a kernel of {k} does not fit into {d} with its padding and dilation");
                return Err(c.fail(Code::Size, n, text).operand(name).axis(first + i));
            }
        }
        Ok(self.sizes(sizes))
    }

    /// Where the elements of a window stand in an input of these sizes.
    pub(crate) fn inputs(&self, sizes: &[usize]) -> Result<Taps> {
        let kernel = |d: &Dim| {
            let n = d.as_const().and_then(|n| usize::try_from(n).ok());
            n.ok_or_else(|| Error::new(Code::Unbound, format!("the kernel size {d} is not a number")))
        };
        Ok(Taps {
            kernel: self.kernel.iter().map(kernel).collect::<Result<_>>()?,
            stride: self.stride.clone(),
            dilation: self.dilation.clone(),
            lo: self.padding_lo.clone(),
            sizes: sizes.to_vec(),
        })
    }
}

/// The elements that windows of known sizes cover.
pub(crate) struct Taps {
    kernel: Vec<usize>,
    stride: Vec<i64>,
    dilation: Vec<i64>,
    lo: Vec<i64>,
    sizes: Vec<usize>,
}

impl Taps {
    /// Calls `f` with the place in the kernel and the place in the input, for every element of the window at
    /// `o` that is not padding, in row-major order.
    pub(crate) fn each(&self, o: &[usize], mut f: impl FnMut(&[usize], &[usize])) {
        // Along each axis, the part of the kernel that is not over padding, from `first` on.
        let (mut first, mut counts, mut start) = (Vec::new(), Vec::new(), Vec::new());
        for (i, n) in self.sizes.iter().enumerate() {
            let of = |v: &[i64]| v.get(i).copied().unwrap_or(0) as i128;
            let num = |v: &[usize]| v.get(i).copied().unwrap_or(0) as i128;
            let (begin, step) = (num(o) * of(&self.stride) - of(&self.lo), of(&self.dilation).max(1));
            let lo = (-begin + step - 1).div_euclid(step).max(0);
            let hi = (*n as i128 - 1 - begin).div_euclid(step).min(num(&self.kernel) - 1);
            counts.push(usize::try_from(hi - lo + 1).unwrap_or(0));
            first.push(usize::try_from(lo).unwrap_or(0));
            start.push(begin);
        }
        let (mut tap, mut place) = (first.clone(), vec![0; first.len()]);
        let mut it = crate::oracle::Indices::new(&counts);
        while let Some(k) = it.next() {
            for (i, k) in k.iter().enumerate() {
                let of = |v: &[usize]| v.get(i).copied().unwrap_or(0);
                let step = self.dilation.get(i).copied().unwrap_or(1) as i128;
                let (at, begin) = (of(&first) + k, start.get(i).copied().unwrap_or(0));
                if let (Some(t), Some(p)) = (tap.get_mut(i), place.get_mut(i)) {
                    (*t, *p) = (at, (begin + at as i128 * step) as usize);
                }
            }
            f(&tap, &place);
        }
    }
}

/// The windows of attributes whose kernel is constant.
fn windows(kernel: &[i64], stride: &[i64], dilation: &[i64], lo: &[i64], hi: &[i64]) -> Windows {
    let n = kernel.len();
    Windows {
        kernel: kernel.iter().map(|k| Dim::constant(*k)).collect(),
        stride: spread(stride, n, 1),
        dilation: spread(dilation, n, 1),
        padding_lo: spread(lo, n, 0),
        padding_hi: spread(hi, n, 0),
    }
}

macro_rules! windows {
    ($a:expr) => {
        windows(&$a.kernel, &$a.stride, &$a.dilation, &$a.padding_lo, &$a.padding_hi)
    };
}

/// The result of sliding windows over the last axes of x, checked against constraints 1 to 3.
fn slid(c: &Infer<'_>, kernel: &[i64], lists: &[ListAttr<'_>], w: &Windows) -> Result<Shape> {
    let x = c.ty(0)?;
    c.rank_at_least(1, 0, kernel.len())?;
    Windows::check_attrs(c, 2, kernel.len(), lists)?;
    if let Some(k) = kernel.iter().find(|k| **k < 1) {
        return Err(c.fail(Code::Attribute, 2, format!("a kernel of {k}")));
    }
    let first = x.rank() - kernel.len();
    let outputs = w.outputs(c, 3, "x", first, x.shape.get(first..).unwrap_or_default())?;
    Ok(x.shape.iter().take(first).cloned().chain(outputs).collect())
}

macro_rules! slide {
    ($c:expr, $a:expr) => {{
        let lists: [ListAttr<'_>; 4] = [
            ("stride", &$a.stride, 1),
            ("dilation", &$a.dilation, 1),
            ("padding_lo", &$a.padding_lo, i64::MIN),
            ("padding_hi", &$a.padding_hi, i64::MIN),
        ];
        slid($c, &$a.kernel, &lists, &windows!($a))
    }};
}

/// All of the last `n` axes as one.
fn flatten_last<'g>(x: Var<'g>, n: usize) -> Var<'g> {
    let shape = x.shape();
    let lead = shape.len().saturating_sub(n);
    let flat = product(shape.get(lead..).unwrap_or_default());
    x.reshape(shape.iter().take(lead).cloned().chain([flat]).collect::<Shape>())
}

/// The best element of a window so far: the first of equal ones, and NaN before all others.
fn better(kind: WindowKind, new: Num, old: Num) -> bool {
    match (new, old) {
        (Num::I(a), Num::I(b)) => {
            if kind == WindowKind::Min {
                a < b
            } else {
                a > b
            }
        }
        (a, b) => {
            let (a, b) = (a.f(), b.f());
            (a.is_nan() && !b.is_nan()) || if kind == WindowKind::Min { a < b } else { a > b }
        }
    }
}

ops! {
    /// Reduces windows that slide over the last axes of x, one per entry of `kernel`:
    /// element k of window o is `x[.., o·stride + k·dilation − padding_lo]`; padding has no elements.
    /// An empty list stands for stride 1, dilation 1, padding 0. Negative padding cuts elements off. A window
    /// without elements gives 0, and the least or greatest number for max and min. The gradient of max and
    /// min goes to the first of equal winners.
    reduce_window: ReduceWindow(x: Num) {
        kind: WindowKind, kernel: Vec<i64>, stride: Vec<i64> = vec![], dilation: Vec<i64> = vec![],
        padding_lo: Vec<i64> = vec![], padding_hi: Vec<i64> = vec![]
    } -> y;
    constraints = [
        "x has at least as many axes as kernel has entries",
        "the other lists are empty or as long as kernel; kernel, stride, dilation >= 1",
        "a window fits into the padded input",
    ];
    infer = |c, a| Ok(vec![c.ty(0)?.with_shape(slide!(c, a)?)]);
    step = |_, a| {
        let sliding = Sliding {
            stride: a.stride, dilation: a.dilation, padding_lo: a.padding_lo, padding_hi: a.padding_hi,
        };
        Ok(Step::Window { kind: a.kind, kernel: a.kernel, sliding, arg: false })
    };
    eval = |e, a| {
        let x = e.x(0)?;
        let lead = x.rank() - a.kernel.len();
        let taps = windows!(a).inputs(x.shape().get(lead..).unwrap_or_default())?;
        let dtype = x.dtype();
        let (op, none) = match (a.kind, dtype.int_range()) {
            (WindowKind::Sum, Some(_)) => (Scalar::Add, Num::I(0)),
            (WindowKind::Sum, None) => (Scalar::Add, Num::F(0.0)),
            (WindowKind::Max, Some((lo, _))) => (Scalar::Max, Num::I(lo)),
            (WindowKind::Max, None) => (Scalar::Max, Num::F(f64::NEG_INFINITY)),
            (WindowKind::Min, Some((_, hi))) => (Scalar::Min, Num::I(hi)),
            (WindowKind::Min, None) => (Scalar::Min, Num::F(f64::INFINITY)),
        };
        Ok(vec![e.make(0, |ix| {
            let (before, o) = ix.split_at(lead.min(ix.len()));
            let mut from = before.to_vec();
            let mut acc = none;
            taps.each(o, |_, p| {
                from.truncate(lead);
                from.extend_from_slice(p);
                acc = op.eval(dtype, &[acc, x.at(&from)]);
            });
            acc
        })?])
    };
    vjp = |c, a| {
        let (x, dy, n) = (c.x(0), c.dy(0), a.kernel.len());
        let spatial: Vec<Dim> = x.shape().into_iter().skip(x.rank() - n).collect();
        let b = a.clone();
        Ok([match a.kind {
            WindowKind::Sum => {
                dy.reduce_window_grad(spatial, b.kernel, b.stride, b.dilation, b.padding_lo, b.padding_hi)
            }
            _ if n == 0 => dy,
            kind => {
                let at = x.window_argmax(kind, b.kernel, b.stride, b.dilation, b.padding_lo, b.padding_hi);
                let (at, dy) = (flatten_last(at, n), flatten_last(dy, n));
                flatten_last(x, n).zeros_like().scatter_elements(at, dy, -1, ScatterMode::Add).reshape(x.shape())
            }
        }].into())
    };
    vmap = |c, _| Ok(c.again(c.attrs.clone(), c.operands.clone()));
    onnx = [rule("LRN", 1, onnx::norm::lrn)];
    samples = |s| {
        let plain = |kind, kernel: &[i64]| ReduceWindow {
            kind, kernel: kernel.to_vec(), stride: vec![], dilation: vec![], padding_lo: vec![], padding_hi: vec![],
        };
        s.case("sum", plain(WindowKind::Sum, &[2, 2]), [f([2, 3, 4])]);
        let uneven = |kind| ReduceWindow {
            stride: vec![2], dilation: vec![2], padding_lo: vec![1], padding_hi: vec![2], ..plain(kind, &[3])
        };
        s.case("uneven_sum", uneven(WindowKind::Sum), [f([2, 7])]);
        s.case("max", uneven(WindowKind::Max), [f([2, 7]).distinct(-1.0, 1.0)]);
        s.case("min", plain(WindowKind::Min, &[2, 1]), [f([3, 2]).distinct(-1.0, 1.0)]);
        s.rough("nan", plain(WindowKind::Max, &[2]), [f([5]).values(&[1.0, f64::NAN, 0.0, 3.0, 3.0])]);
        s.rough("integers", uneven(WindowKind::Max), [int([9], -9, 9)]);
        s.case("empty", plain(WindowKind::Sum, &[2]), [f([0, 3])]);
    };
    tolerance = tol(1e-5, 5e-3, 4e-2);

    /// The place of the largest element of each window of `reduce_window` (of the smallest for kind `min`):
    /// the position in the windowed axes of x, flattened. Of equal elements it is the first, NaN before all
    /// others; a window without elements gives −1.
    window_argmax: WindowArgmax(x: Num) {
        kind: WindowKind, kernel: Vec<i64>, stride: Vec<i64> = vec![], dilation: Vec<i64> = vec![],
        padding_lo: Vec<i64> = vec![], padding_hi: Vec<i64> = vec![]
    } -> indices;
    constraints = [
        "x has at least as many axes as kernel has entries",
        "the other lists are empty or as long as kernel; kernel, stride, dilation >= 1",
        "a window fits into the padded input",
        "kind is max or min",
    ];
    infer = |c, a| {
        if a.kind == WindowKind::Sum {
            return Err(c.fail(Code::Attribute, 4, "kind is sum"));
        }
        Ok(vec![Type::new(DType::I64, slide!(c, a)?)])
    };
    step = |_, a| {
        let sliding = Sliding {
            stride: a.stride, dilation: a.dilation, padding_lo: a.padding_lo, padding_hi: a.padding_hi,
        };
        Ok(Step::Window { kind: a.kind, kernel: a.kernel, sliding, arg: true })
    };
    eval = |e, a| {
        let x = e.x(0)?;
        let lead = x.rank() - a.kernel.len();
        let sizes = x.shape().get(lead..).unwrap_or_default();
        let taps = windows!(a).inputs(sizes)?;
        Ok(vec![e.make(0, |ix| {
            let (before, o) = ix.split_at(lead.min(ix.len()));
            let mut from = before.to_vec();
            let mut best: Option<(usize, Num)> = None;
            taps.each(o, |_, p| {
                from.truncate(lead);
                from.extend_from_slice(p);
                let v = x.at(&from);
                if best.is_none_or(|(_, old)| better(a.kind, v, old)) {
                    best = Some((p.iter().zip(sizes).fold(0, |o, (i, d)| o * d + i), v));
                }
            });
            Num::I(best.map_or(-1, |(i, _)| i as i128))
        })?])
    };
    vmap = |c, _| Ok(c.again(c.attrs.clone(), c.operands.clone()));
    samples = |s| {
        let with = |kind, padding: i64| WindowArgmax {
            kind, kernel: vec![2, 2], stride: vec![1, 2], dilation: vec![], padding_lo: vec![padding, 0],
            padding_hi: vec![],
        };
        s.rough("max", with(WindowKind::Max, 0), [f([2, 3, 4])]);
        s.rough("min", with(WindowKind::Min, 1), [f([3, 4])]);
        s.rough("first", with(WindowKind::Max, 0), [f([3, 4]).values(&[1.0])]);
    };

    /// The gradient of `reduce_window` of kind `sum`: each dy is added to every element of its window, in a
    /// result whose windowed axes have the sizes `spatial`.
    reduce_window_grad: ReduceWindowGrad(dy: Float) {
        spatial: Dims, kernel: Vec<i64>, stride: Vec<i64> = vec![], dilation: Vec<i64> = vec![],
        padding_lo: Vec<i64> = vec![], padding_hi: Vec<i64> = vec![]
    } -> dx;
    constraints = [
        "dy has at least as many axes as kernel has entries, and spatial is as long as kernel",
        "the other lists are empty or as long as kernel; kernel, stride, dilation >= 1",
        "dy has the sizes that reduce_window gives from `spatial`",
    ];
    infer = |c, a| {
        let (dy, n) = (c.ty(0)?, a.kernel.len());
        c.rank_at_least(1, 0, n)?;
        if a.spatial.len() != n {
            return Err(c.fail(Code::Attribute, 1, format!("{} and {n} entries", a.spatial.len())));
        }
        let lists: [ListAttr<'_>; 5] = [
            ("kernel", &a.kernel, 1),
            ("stride", &a.stride, 1),
            ("dilation", &a.dilation, 1),
            ("padding_lo", &a.padding_lo, i64::MIN),
            ("padding_hi", &a.padding_hi, i64::MIN),
        ];
        Windows::check_attrs(c, 2, n, &lists)?;
        let lead = dy.rank() - n;
        for (i, d) in windows!(a).sizes(&a.spatial).iter().enumerate() {
            c.expect_dim(3, 0, lead + i, d)?;
        }
        Ok(vec![dy.with_shape(dy.shape.iter().take(lead).chain(a.spatial.iter()).cloned().collect::<Shape>())])
    };
    body = |c, a| {
        let (dy, n) = (c.x(0), a.kernel.len());
        if n == 0 {
            return Ok(vec![dy]);
        }
        // A transposed convolution of one channel with a kernel of ones.
        let shape = dy.shape();
        let (lead, windows) = shape.split_at(shape.len() - n);
        let one = Dim::constant(1);
        let flat: Shape = [product(lead), one.clone()].into_iter().chain(windows.iter().cloned()).collect();
        let ones: Shape = [one.clone(), one].into_iter().chain(a.kernel.iter().map(|k| Dim::constant(*k))).collect();
        let w = c.g.full(dy.dtype(), &ones, 1.0);
        let b = a.clone();
        let dx = dy.reshape(flat).conv_grad_input(w, b.spatial, b.stride, b.padding_lo, b.padding_hi, b.dilation, 1);
        Ok(vec![dx.reshape(lead.iter().chain(a.spatial.iter()).cloned().collect::<Shape>())])
    };
    vjp = |c, a| {
        let b = a.clone();
        let dx = c.dy(0);
        Ok([dx.reduce_window(WindowKind::Sum, b.kernel, b.stride, b.dilation, b.padding_lo, b.padding_hi)].into())
    };
    vmap = |c, _| Ok(c.again(c.attrs.clone(), c.operands.clone()));
    samples = |s| {
        let plain = ReduceWindowGrad {
            spatial: [3, 4].into(), kernel: vec![2, 2], stride: vec![], dilation: vec![], padding_lo: vec![],
            padding_hi: vec![],
        };
        s.case("plain", plain.clone(), [f([2, 2, 3])]);
        let uneven = ReduceWindowGrad {
            spatial: [7].into(), kernel: vec![3], stride: vec![2], dilation: vec![2], padding_lo: vec![1],
            padding_hi: vec![2],
        };
        s.case("uneven", uneven, [f([2, 3])]);
    };
    tolerance = tol(1e-5, 5e-3, 4e-2);
}
