//! Resizing: axes of other sizes, whose elements are repeated, left out or interpolated.

use crate::onnx::Call;
use crate::prelude::*;

attr_enum! {
    /// How `resize` makes an element from its neighbours.
    ResizeMode {
        /// It is the nearest one.
        Nearest = "nearest",
        /// It lies on the line between two.
        Linear = "linear",
        /// It lies on a cubic curve near four.
        Cubic = "cubic",
    }
}

attr_enum! {
    /// Where in x an element of the result stands. y is its index, n and m the axis's old and new size, s the scale.
    Coordinates {
        /// (y + 1/2) / s − 1/2: elements are intervals.
        HalfPixel = "half_pixel",
        /// The same, with the middle of the old axis at the middle of the new one where s · n is not whole.
        HalfPixelSymmetric = "half_pixel_symmetric",
        /// The same as half_pixel, but 0 where the new axis has one element.
        PytorchHalfPixel = "pytorch_half_pixel",
        /// (y + 1/2) / s.
        HalfPixelUp = "half_pixel_up",
        /// y · (n − 1) / (s · n − 1): the ends stay.
        AlignCorners = "align_corners",
        /// y / s.
        Asymmetric = "asymmetric",
        /// Like align_corners, between the start and the end of a part of x.
        Crop = "crop",
    }
}

attr_enum! {
    /// Which of two neighbours is the nearest.
    NearestMode {
        /// The nearer one; of equally near ones the first.
        RoundPreferFloor = "round_prefer_floor",
        /// The nearer one; of equally near ones the second.
        RoundPreferCeil = "round_prefer_ceil",
        /// The first.
        Floor = "floor",
        /// The second.
        Ceil = "ceil",
    }
}

impl NearestMode {
    fn index(self, x: f64) -> f64 {
        match self {
            NearestMode::RoundPreferFloor => (x - 0.5).ceil(),
            NearestMode::RoundPreferCeil => (x + 0.5).floor(),
            NearestMode::Floor => x.floor(),
            NearestMode::Ceil => x.ceil(),
        }
    }
    fn index_of(self, x: Var<'_>) -> Var<'_> {
        match self {
            NearestMode::RoundPreferFloor => (x - 0.5).ceil(),
            NearestMode::RoundPreferCeil => (x + 0.5).floor(),
            NearestMode::Floor => x.floor(),
            NearestMode::Ceil => x.ceil(),
        }
    }
}

/// More repetitions than this are read by index.
const MAX_TIMES: i64 = 64;

/// The weight of a neighbour on a cubic curve at a distance of at most 1.
pub(crate) fn cubic_near(d: Var<'_>, a: f64) -> Var<'_> {
    ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0
}

/// The same at a distance from 1 to 2.
pub(crate) fn cubic_far(d: Var<'_>, a: f64) -> Var<'_> {
    ((d * a - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a
}

/// One axis that is resized: which, its sizes, and the k-th entries of the attributes.
struct Axis<'a> {
    a: &'a Resize,
    axis: usize,
    k: usize,
    n: Dim,
    m: Dim,
}

/// A number of sizes: see [`Graph::size_of`]. Positions are computed in `f64`, so that no rounding moves them to another
/// element.
fn size<'g>(g: &'g Graph, n: &Dim) -> Var<'g> {
    g.size_of(n.clone(), DType::F64)
}

impl Axis<'_> {
    /// The number of times that each element is repeated, if that is all that happens.
    fn repeats(&self) -> Option<i64> {
        let times = match self.n == self.m {
            true => 1,
            false => self.m.exact_div(&self.n)?.as_const().filter(|t| (1..=MAX_TIMES).contains(t))?,
        };
        let t = times as f64;
        if self.a.scales.get(self.k).is_some_and(|s| *s != t) {
            return None;
        }
        // Where an element of the first group of repetitions stands; those of all others stand alike.
        let at = |y: f64| match self.a.coordinates {
            Coordinates::HalfPixelUp => (y + 0.5) / t,
            Coordinates::Asymmetric => y / t,
            _ => (y + 0.5) / t - 0.5,
        };
        let nearest = self.a.mode == ResizeMode::Nearest;
        let first = || (0..times).all(|y| self.a.nearest.index(at(y as f64)) == 0.0);
        let all = match self.a.coordinates {
            Coordinates::Crop => false,
            Coordinates::AlignCorners => times == 1,
            Coordinates::HalfPixelUp => nearest && first(),
            _ => times == 1 || (nearest && first()),
        };
        all.then_some(times)
    }

    /// Where each of the m elements stands in x.
    fn source<'g>(&self, g: &'g Graph) -> Var<'g> {
        let y = g.iota([self.m.clone()], 0, DType::F64);
        let (n, m) = (size(g, &self.n), size(g, &self.m));
        let scale = self.a.scales.get(self.k).map_or_else(|| m / n, |s| g.scalar(DType::F64, *s));
        // The new size before it was cut to a whole number.
        let wide = self.a.scales.get(self.k).map_or(m, |_| scale * n);
        let half = || (y + 0.5) / scale - 0.5;
        let single = |size: Var<'g>, one: Var<'g>, many| size.equal(1.0).select(one, many);
        let number = |x: f64| g.scalar(DType::F64, x);
        match self.a.coordinates {
            Coordinates::HalfPixel => half(),
            Coordinates::HalfPixelSymmetric => n / 2.0 * (1.0 - m / wide) + half(),
            Coordinates::PytorchHalfPixel => single(m, number(0.0), half()),
            Coordinates::HalfPixelUp => (y + 0.5) / scale,
            Coordinates::AlignCorners => single(wide, number(0.0), y * (n - 1.0) / (wide - 1.0)),
            Coordinates::Asymmetric => y / scale,
            Coordinates::Crop => {
                let of = |i: usize| self.a.roi.get(i).copied().unwrap_or_default();
                let (start, end) = (of(self.k), of(self.k + self.a.axes.len()));
                let span = n - 1.0;
                let many = y * (end - start) * span / (m - 1.0);
                single(m, span * ((end - start) / 2.0), many) + span * start
            }
        }
    }

    /// Positions as indices within x.
    fn within<'g>(&self, x: Var<'g>) -> Var<'g> {
        x.maximum(0.0).minimum(size(x.graph(), &self.n) - 1.0).to(DType::I64)
    }

    /// A number for every element of the axis, under a tensor of `rank` axes.
    fn along<'g>(&self, x: Var<'g>, rank: usize) -> Var<'g> {
        let ones = std::iter::repeat_n(Dim::constant(1), rank - 1 - self.axis);
        x.reshape(std::iter::once(self.m.clone()).chain(ones).collect::<Shape>())
    }

    fn apply<'g>(&self, x: Var<'g>) -> Var<'g> {
        let (g, at) = (x.graph(), self.source(x.graph()));
        let y = match self.a.mode {
            ResizeMode::Nearest => {
                x.gather(self.within(self.a.nearest.index_of(at)), self.axis as i64)
            }
            _ if self.a.antialias && self.shrinks() => self.blend_all(x, at),
            _ => self.blend(x, at),
        };
        if self.a.coordinates != Coordinates::Crop {
            return y;
        }
        let outside = at.less(0.0).or(at.greater(size(g, &self.n) - 1.0));
        self.along(outside, x.rank()).select(y.scalar(self.a.extrapolation), y)
    }

    /// Whether the new axis may be shorter.
    fn shrinks(&self) -> bool {
        match self.a.scales.get(self.k) {
            Some(s) => *s < 1.0,
            None => (&self.m - &self.n).lower().is_none_or(|d| d < 0),
        }
    }

    /// The weighted sum of the two or four nearest elements.
    fn blend<'g>(&self, x: Var<'g>, at: Var<'g>) -> Var<'g> {
        let first = at.floor();
        let taps: &[f64] = if self.a.mode == ResizeMode::Linear { &[0.0, 1.0] } else { &[-1.0, 0.0, 1.0, 2.0] };
        let mut weights: Vec<Var<'g>> = taps.iter().map(|t| self.weight((at - first - *t).abs())).collect();
        if self.a.exclude_outside {
            let n = size(x.graph(), &self.n);
            for (w, t) in weights.iter_mut().zip(taps) {
                let place = first + *t;
                *w = place.greater_equal(0.0).and(place.less(n)).select(*w, w.scalar(0.0));
            }
            let sum = weights.iter().copied().reduce(|a, b| a + b);
            weights = weights.into_iter().map(|w| sum.map_or(w, |s| w / s)).collect();
        }
        let part = |(w, t): (Var<'g>, &f64)| {
            let y = x.gather(self.within(first + *t), self.axis as i64);
            y * self.along(w.to(x.dtype()), x.rank())
        };
        weights.into_iter().zip(taps).map(part).reduce(|a, b| a + b).unwrap_or(x)
    }

    /// The weight of an element at a distance.
    fn weight<'g>(&self, d: Var<'g>) -> Var<'g> {
        if self.a.mode == ResizeMode::Linear {
            return (1.0 - d).maximum(0.0);
        }
        let a = self.a.cubic_a;
        d.less_equal(1.0).select(cubic_near(d, a), d.less(2.0).select(cubic_far(d, a), d.scalar(0.0)))
    }

    /// The weighted sum of all elements that are near when seen from the new axis: a product with a matrix.
    fn blend_all<'g>(&self, x: Var<'g>, at: Var<'g>) -> Var<'g> {
        let (g, n) = (x.graph(), &self.n);
        let scale = self.a.scales.get(self.k);
        let scale = scale.map_or_else(|| size(g, &self.m) / size(g, n), |s| g.scalar(DType::F64, *s));
        // No weight reaches further beyond the ends of x than this; the elements there are those at the ends.
        let beyond = if self.a.mode == ResizeMode::Linear { n.clone() } else { n * 2 };
        let places = g.iota([n + &beyond * 2], 0, DType::F64) - size(g, &beyond);
        let all = self.weight(((places - at.unsqueeze(-1)) * scale.minimum(1.0)).abs());
        let inside = all.narrow(1, beyond.clone(), n.clone());
        let matrix = if self.a.exclude_outside {
            inside / inside.sum(vec![1], true)
        } else {
            let outside = |from: Dim, lo: Dim| {
                let sum = all.narrow(1, from, beyond.clone()).sum(vec![1], true);
                let hi = n - 1 - &lo;
                sum.pad(0.0, [Dim::constant(0), lo], [Dim::constant(0), hi], vec![0, 0])
            };
            let ends = outside(Dim::constant(0), Dim::constant(0)) + outside(&beyond + n, n - 1);
            (inside + ends) / all.sum(vec![1], true)
        };
        let last = x.rank() as i64 - 1;
        let axis = self.axis as i64;
        x.move_axis(axis, last).matmul(matrix.to(x.dtype()).t()).move_axis(last, axis)
    }
}

/// The axes that are named.
fn axes_of<'a>(a: &'a Resize, shape: &[Dim]) -> Result<Vec<Axis<'a>>> {
    let axes = resolve_axes(&a.axes, shape.len())?;
    let one = |(k, axis): (usize, usize)| {
        Some(Axis { a, axis, k, n: shape.get(axis)?.clone(), m: a.sizes.get(k)?.clone() })
    };
    Ok(axes.into_iter().enumerate().filter_map(one).collect())
}

/// Every element of the axes as often as told.
fn repeated<'g>(x: Var<'g>, times: &[(usize, i64)]) -> Var<'g> {
    let of = |i: usize| times.iter().find(|t| t.0 == i).map(|t| t.1);
    let (mut apart, mut wide, mut shape) = (Shape::new(), Shape::new(), Shape::new());
    for (i, n) in x.shape().into_iter().enumerate() {
        apart.push(n.clone());
        wide.push(n.clone());
        if let Some(t) = of(i) {
            apart.push(Dim::constant(1));
            wide.push(Dim::constant(t));
        }
        shape.push(n * of(i).unwrap_or(1));
    }
    x.reshape(apart).broadcast(wide).reshape(shape)
}

ops! {
    /// x with axes of other sizes: axis `axes[k]` gets `sizes[k]` elements.
    ///
    /// `coordinates` says where in x an element of the result stands, `mode` how it is made from the neighbours there;
    /// `nearest` which of two neighbours is the nearest one. The scale of an axis is `scales[k]`, or the new size divided by
    /// the old one. Beyond the ends of x stand the elements at its ends, or with `exclude_outside` none: the weights of the
    /// others then grow to a sum of 1. With `antialias` every element of x counts for the result where an axis gets
    /// shorter (linear and cubic). `cubic_a` is the cubic's coefficient. For `crop`, `roi` has the starts and then the ends
    /// of the part of x, from 0 to 1; what stands outside of x is `extrapolation`.
    resize: Resize(x: Any) with {
        axes: Vec<i64> = Vec::new(), sizes: Dims = Dims::default(), scales: Vec<f64> = Vec::new(),
        mode: ResizeMode = ResizeMode::Nearest, coordinates: Coordinates = Coordinates::HalfPixel,
        nearest: NearestMode = NearestMode::RoundPreferFloor, cubic_a: f64 = -0.75, exclude_outside: bool = false,
        antialias: bool = false, roi: Vec<f64> = Vec::new(), extrapolation: f64 = 0.0
    } -> y;
    constraints = [
        "each axis exists and is named once",
        "sizes has an entry for every axis, scales too or none, roi two for crop",
        "scales are positive",
        "linear and cubic take floats",
    ];
    infer = |c, a| {
        let x = c.ty(0)?;
        let axes = c.axes(1, 0, &a.axes)?;
        let roi = if a.coordinates == Coordinates::Crop { 2 * axes.len() } else { 0 };
        for (name, len, want) in [
            ("sizes", a.sizes.len(), axes.len()),
            ("scales", a.scales.len(), if a.scales.is_empty() { 0 } else { axes.len() }),
            ("roi", a.roi.len(), roi),
        ] {
            if len != want {
                return Err(c.fail(Code::Attribute, 2, format!("{name} has {len} entries, not {want}")));
            }
        }
        if let Some(s) = a.scales.iter().find(|s| !(s.is_finite() && **s > 0.0)) {
            return Err(c.fail(Code::Attribute, 3, format!("a scale of {s}")));
        }
        if a.mode != ResizeMode::Nearest && !x.dtype.is_float() {
            return Err(c.fail(Code::DType, 4, format!("x is {}", x.dtype)).operand("x"));
        }
        let mut shape = x.shape.clone();
        for (axis, m) in axes.iter().zip(a.sizes.iter()) {
            shape.get_mut(*axis).into_iter().for_each(|d| *d = m.clone());
        }
        Ok(vec![x.with_shape(shape)])
    };
    body = |c, a| {
        let x = c.x(0);
        let axes = axes_of(a, &x.shape())?;
        let wide = if a.mode == ResizeMode::Nearest { x } else { x.wide() };
        let (again, new): (Vec<_>, Vec<_>) = axes.into_iter().partition(|a| a.repeats().is_some());
        let times: Vec<(usize, i64)> =
            again.iter().filter_map(|a| Some((a.axis, a.repeats().filter(|t| *t > 1)?))).collect();
        let y = new.iter().fold(wide, |y, axis| axis.apply(y));
        let y = if times.is_empty() { y } else { repeated(y, &times) };
        Ok(vec![y.to(x.dtype())])
    };
    vmap = |c, a| Ok(vec![c.x(0).resize(Resize { axes: c.shift_all(0, &a.axes)?, ..a.clone() })]);
    onnx = [
        rule("Upsample", 1, onnx_upsample),
        rule("Resize", 10, onnx_resize_10),
        rule("Resize", 11, onnx_resize),
    ];
    samples = |s| {
        let two = |mode| Resize { axes: vec![2, 3], mode, ..Resize::default() };
        s.case("twice", Resize { sizes: [6, 4].into(), ..two(ResizeMode::Nearest) }, [f([1, 2, 3, 2])]);
        s.case("nearest", Resize { sizes: [5, 2].into(), ..two(ResizeMode::Nearest) }, [f([1, 2, 3, 4])]);
        s.case("linear", Resize { sizes: [5, 3].into(), ..two(ResizeMode::Linear) }, [f([1, 2, 3, 4])]);
        s.case("corners", Resize { sizes: [5, 1].into(), coordinates: Coordinates::AlignCorners, ..two(ResizeMode::Linear) }, [f([1, 1, 3, 2])]);
        s.case("cubic", Resize { sizes: [4].into(), axes: vec![-1], mode: ResizeMode::Cubic, exclude_outside: true, cubic_a: -0.5, ..Resize::default() }, [f([2, 3])]);
        s.case("scaled", Resize {
            sizes: [6].into(), scales: vec![2.5], axes: vec![0], mode: ResizeMode::Cubic, coordinates: Coordinates::HalfPixelSymmetric, ..Resize::default()
        }, [f([3, 2])]);
        s.case("smooth", Resize { sizes: [2].into(), axes: vec![1], mode: ResizeMode::Linear, antialias: true, ..Resize::default() }, [f([2, 7, 2])]);
        s.case("smooth_inside", Resize { sizes: [3].into(), axes: vec![1], mode: ResizeMode::Cubic, antialias: true, exclude_outside: true, ..Resize::default() }, [f([2, 8])]);
        s.case("crop", Resize {
            sizes: [4].into(), axes: vec![1], mode: ResizeMode::Linear, coordinates: Coordinates::Crop, roi: vec![0.3, 1.4], extrapolation: 2.0, ..Resize::default()
        }, [f([2, 5])]);
        s.case("integers", Resize { sizes: [5].into(), axes: vec![0], nearest: NearestMode::Ceil, ..Resize::default() }, [int([3, 2], -9, 9)]);
        s.case("nothing", Resize { sizes: [0, 3].into(), ..two(ResizeMode::Linear) }, [f([1, 1, 2, 2])]);
    };
}

/// `floor(n · scale)`, where ONNX multiplies in `f32`: 5 · 2.6 is 13, although 2.6 is a little less there.
fn scaled(n: &Dim, scale: f64) -> Dim {
    if let Some(n) = n.as_const() {
        return Dim::constant((n as f32 * scale as f32).floor() as i64);
    }
    // The simplest fraction that is this float.
    let near = |q: i64| ((scale * q as f64).round() / q as f64) as f32 == scale as f32;
    match (1..=4096).find(|q| near(*q)) {
        Some(q) if scale < 1e9 => (n * (scale * q as f64).round() as i64).floor_div(q),
        _ => Dim::invalid(),
    }
}

fn mode_of(c: &Call<'_, '_>) -> Result<ResizeMode> {
    Ok(match c.text("mode", "nearest")? {
        "nearest" => ResizeMode::Nearest,
        "linear" | "bilinear" => ResizeMode::Linear,
        "cubic" => ResizeMode::Cubic,
        other => return Err(Error::new(Code::Attribute, format!("mode is {other}"))),
    })
}

/// Resizes whatever dtype: integers are interpolated as floats and rounded.
fn onnx_apply<'g>(x: Var<'g>, a: Resize) -> Var<'g> {
    let dtype = x.dtype();
    if a.mode == ResizeMode::Nearest || dtype.is_float() {
        return x.resize(a);
    }
    let y = x.cast(DType::F64).resize(a).round();
    // What a cubic overshoots must not wrap around.
    let (lo, hi) = dtype.int_range().map_or((0.0, 1.0), |(lo, hi)| (lo as f64, hi as f64));
    y.clamp(lo, hi).cast(dtype)
}

/// Upsample, in all its versions: scales per axis, attributes at first.
fn onnx_upsample<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let x = c.x(0)?;
    let scales = match (c.float("height_scale")?, c.float("width_scale")?, c.floats("scales")?) {
        (Some(h), Some(w), _) => vec![1.0, 1.0, h, w],
        (_, _, Some(scales)) => scales,
        _ => c.const_floats(1)?,
    };
    Ok(vec![onnx_by_scale(c, x, scales, NearestMode::Floor)?])
}

/// The first form of Resize, which left open what is nearest: ONNX Runtime takes the next element where an axis shrinks.
fn onnx_resize_10<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let scales = c.const_floats(1)?;
    let shrinking: Vec<f64> = scales.iter().map(|s| s.min(1.0)).collect();
    let x = onnx_by_scale(c, c.x(0)?, shrinking, NearestMode::Ceil)?;
    let growing: Vec<f64> = scales.iter().map(|s| s.max(1.0)).collect();
    Ok(vec![onnx_by_scale(c, x, growing, NearestMode::Floor)?])
}

fn onnx_by_scale<'g>(
    c: &Call<'g, '_>,
    x: Var<'g>,
    scales: Vec<f64>,
    nearest: NearestMode,
) -> Result<Var<'g>> {
    if scales.len() != x.rank() {
        let text = format!("{} scales for {} axes", scales.len(), x.rank());
        return Err(Error::new(Code::Rank, text));
    }
    let sizes: Vec<Dim> = x.shape().iter().zip(&scales).map(|(n, s)| scaled(n, *s)).collect();
    let a = Resize {
        axes: (0..x.rank() as i64).collect(),
        sizes: sizes.into(),
        scales,
        mode: mode_of(c)?,
        coordinates: Coordinates::Asymmetric,
        nearest,
        ..Resize::default()
    };
    Ok(onnx_apply(x, a))
}

fn onnx_resize<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let x = c.x(0)?;
    let shape = x.shape();
    let axes = c.ints("axes")?.unwrap_or_else(|| (0..shape.len() as i64).collect());
    let old: Vec<Dim> = resolve_axes(&axes, shape.len())?.iter().filter_map(|i| shape.get(*i).cloned()).collect();
    // Older models leave an operand without elements where they mean none.
    let given = |i: usize| c.opt(i).is_some_and(|v| !v.ty().numel().is(0));
    let count = |n: usize| match n == old.len() {
        true => Ok(()),
        false => Err(Error::new(Code::Rank, format!("{n} sizes for {} axes", old.len()))),
    };
    let (sizes, scales) = if given(2) {
        let scales = c.const_floats(2)?;
        count(scales.len())?;
        (old.iter().zip(&scales).map(|(n, s)| scaled(n, *s)).collect(), scales)
    } else {
        let sizes = c.dims(3)?;
        count(sizes.len())?;
        match c.text("keep_aspect_ratio_policy", "stretch")? {
            "stretch" => (sizes, Vec::new()),
            policy => keep_aspect(c, &old, &sizes, policy)?,
        }
    };
    let coordinates = match c.text("coordinate_transformation_mode", "half_pixel")? {
        "half_pixel" => Coordinates::HalfPixel,
        "half_pixel_symmetric" => Coordinates::HalfPixelSymmetric,
        "pytorch_half_pixel" => Coordinates::PytorchHalfPixel,
        "tf_half_pixel_for_nn" => Coordinates::HalfPixelUp,
        "align_corners" => Coordinates::AlignCorners,
        "asymmetric" => Coordinates::Asymmetric,
        "tf_crop_and_resize" => Coordinates::Crop,
        other => {
            return Err(Error::new(Code::Attribute, format!("coordinate_transformation_mode is {other}")));
        }
    };
    let nearest = match c.text("nearest_mode", "round_prefer_floor")? {
        "round_prefer_floor" => NearestMode::RoundPreferFloor,
        "round_prefer_ceil" => NearestMode::RoundPreferCeil,
        "floor" => NearestMode::Floor,
        "ceil" => NearestMode::Ceil,
        other => return Err(Error::new(Code::Attribute, format!("nearest_mode is {other}"))),
    };
    let a = Resize {
        axes,
        sizes: sizes.into(),
        scales,
        mode: mode_of(c)?,
        coordinates,
        nearest,
        cubic_a: c.float_or("cubic_coeff_a", -0.75)?,
        exclude_outside: c.flag("exclude_outside", false)?,
        antialias: c.flag("antialias", false)?,
        roi: if coordinates == Coordinates::Crop { c.const_floats(1)? } else { Vec::new() },
        extrapolation: c.float_or("extrapolation_value", 0.0)?,
    };
    Ok(vec![onnx_apply(x, a)])
}

/// One scale for all axes: the least or the greatest that the sizes ask for.
fn keep_aspect(c: &Call<'_, '_>, old: &[Dim], sizes: &[Dim], policy: &str) -> Result<(Vec<Dim>, Vec<f64>)> {
    let ratio = |(n, m): (&Dim, &Dim)| Some(m.as_const()? as f64 / n.as_const()? as f64);
    let ratios: Option<Vec<f64>> = old.iter().zip(sizes).map(ratio).collect();
    let ratios = ratios.ok_or_else(|| c.cannot("an aspect ratio to keep of sizes that are not known"))?;
    let scale = match policy {
        "not_larger" => ratios.into_iter().reduce(f64::min),
        "not_smaller" => ratios.into_iter().reduce(f64::max),
        other => return Err(Error::new(Code::Attribute, format!("keep_aspect_ratio_policy is {other}"))),
    };
    let scale = scale.unwrap_or(1.0);
    let new = |n: &Dim| n.as_const().map_or(Dim::invalid(), |n| Dim::constant((scale * n as f64 + 0.5).floor() as i64));
    Ok((old.iter().map(new).collect(), vec![scale; old.len()]))
}
