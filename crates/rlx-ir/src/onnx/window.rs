//! ONNX's convolutions and pools: windows that slide over the axes behind batch and channels.

use crate::attr::Dims;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::graph::{Operand, Var};
use crate::onnx::{Attr, Call};
use crate::ops::conv::{Conv, ConvTranspose};
use crate::ops::integer::ConvInteger;
use crate::ops::pool::{AvgPool, MaxPool, Pool};
use crate::ops::scatter::ScatterMode;
use crate::ops::window::WindowKind;
use crate::types::{Shape, product};

/// What `auto_pad` says.
#[derive(Clone, Copy, PartialEq)]
enum Auto {
    /// The padding is given.
    Given,
    /// None.
    Valid,
    /// As much as makes the result `ceil(size / stride)` long; what is left over by halving goes to the end.
    Upper,
    /// The same, but what is left over goes to the start.
    Lower,
}

impl Auto {
    fn of(c: &Call<'_, '_>) -> Result<Auto> {
        match c.text("auto_pad", "NOTSET")? {
            "NOTSET" | "" => Ok(Auto::Given),
            "VALID" => Ok(Auto::Valid),
            "SAME_UPPER" => Ok(Auto::Upper),
            "SAME_LOWER" => Ok(Auto::Lower),
            other => Err(Error::new(Code::Attribute, format!("auto_pad is {other:?}"))),
        }
    }

    fn is_same(self) -> bool {
        matches!(self, Auto::Upper | Auto::Lower)
    }
}

/// How windows slide, with an entry per spatial axis in every list.
struct Slide {
    kernel: Vec<Dim>,
    stride: Vec<i64>,
    dilation: Vec<i64>,
    lo: Vec<Dim>,
    hi: Vec<Dim>,
    auto: Auto,
}

/// An attribute with `n` integers, by default all the same.
fn list(c: &Call<'_, '_>, name: &str, n: usize, default: i64) -> Result<Vec<i64>> {
    let v = c.ints(name)?.filter(|v| !v.is_empty()).unwrap_or_else(|| vec![default; n]);
    if v.len() != n {
        return Err(Error::new(Code::Attribute, format!("{name} has {} entries, not {n}", v.len())));
    }
    Ok(v)
}

/// The numbers, if all are.
fn consts(v: &[Dim]) -> Option<Vec<i64>> {
    v.iter().map(Dim::as_const).collect()
}

/// The sizes of the axes behind batch and channels.
fn spatial(x: Var<'_>) -> Shape {
    x.shape().into_iter().skip(2).collect()
}

/// Zeros for batch and channels, then these.
fn behind(v: &[Dim]) -> Dims {
    Dims([Dim::constant(0), Dim::constant(0)].into_iter().chain(v.iter().cloned()).collect())
}

impl Slide {
    /// How far a window reaches along each axis.
    fn reach(&self) -> Vec<Dim> {
        self.kernel.iter().zip(&self.dilation).map(|(k, d)| (k - 1) * *d + 1).collect()
    }

    /// From the attributes of a node, for windows of this kernel over x.
    fn of(c: &Call<'_, '_>, x: Var<'_>, kernel: Vec<Dim>) -> Result<Slide> {
        let n = kernel.len();
        if x.rank() != n + 2 {
            let text =
                format!("x has {} axes, but the kernel {n}, and batch and channels are two more", x.rank());
            return Err(Error::new(Code::Rank, text));
        }
        let pads = list(c, "pads", 2 * n, 0)?;
        let (lo, hi) = pads.split_at(n);
        let dims = |v: &[i64]| v.iter().copied().map(Dim::constant).collect();
        let mut s = Slide {
            stride: list(c, "strides", n, 1)?,
            dilation: list(c, "dilations", n, 1)?,
            auto: Auto::of(c)?,
            lo: dims(lo),
            hi: dims(hi),
            kernel,
        };
        if s.auto == Auto::Given {
            return Ok(s);
        }
        (s.lo, s.hi) = (dims(&vec![0; n]), dims(&vec![0; n]));
        if s.auto.is_same() {
            let reach = s.reach();
            let axes = spatial(x).into_iter().zip(reach).zip(&s.stride).enumerate();
            for (i, ((size, reach), stride)) in axes {
                let total = (size.ceil_div(*stride) - 1) * *stride + reach - &size;
                let total = match (total.lower(), total.upper()) {
                    (Some(lo), _) if lo >= 0 => total,
                    (_, Some(hi)) if hi <= 0 => Dim::constant(0),
                    _ => return Err(c.cannot(format!("the padding of axis {} depends on its size", i + 2))),
                };
                let (less, more) = (total.floor_div(2), total.ceil_div(2));
                let (lo, hi) = if s.auto == Auto::Upper { (less, more) } else { (more, less) };
                s.lo.get_mut(i).into_iter().for_each(|d| *d = lo.clone());
                s.hi.get_mut(i).into_iter().for_each(|d| *d = hi.clone());
            }
        }
        Ok(s)
    }

    /// The padding as numbers, if all of it is, and `within` of it for an axis of such a reach.
    fn padding(&self, within: impl Fn(i64, &Dim) -> bool) -> Option<[Vec<i64>; 2]> {
        let (lo, hi) = (consts(&self.lo)?, consts(&self.hi)?);
        let reach = self.reach();
        let fits = |v: &[i64]| v.iter().zip(&reach).all(|(p, r)| within(*p, r));
        (fits(&lo) && fits(&hi)).then_some([lo, hi])
    }

    /// x with its padding, of that value.
    fn padded<'g>(&self, x: Var<'g>, value: impl Operand<'g>) -> Var<'g> {
        x.pad(value, behind(&self.lo), behind(&self.hi), vec![0; x.rank()])
    }

    /// x and the padding that a convolution is given: what depends on sizes is padded in front of it.
    fn for_conv<'g>(&self, x: Var<'g>, value: impl Operand<'g>) -> (Var<'g>, [Vec<i64>; 2]) {
        match self.padding(|_, _| true) {
            Some(padding) => (x, padding),
            None => (self.padded(x, value), [vec![], vec![]]),
        }
    }

    /// x and the padding that a pool is given: no more than it may have, the rest is padded in front of it.
    fn for_pool<'g>(&self, x: Var<'g>, value: f64) -> (Var<'g>, [Vec<i64>; 2]) {
        let narrow = |p: i64, reach: &Dim| p >= 0 && reach.as_const().is_some_and(|r| p < r);
        match self.padding(narrow) {
            Some(padding) => (x, padding),
            None => (self.padded(x, value), [vec![0; self.kernel.len()], vec![0; self.kernel.len()]]),
        }
    }
}

/// The sizes of a kernel, which is given twice: by the weights, and perhaps by an attribute.
fn kernel_of(c: &Call<'_, '_>, w: Var<'_>) -> Result<Vec<Dim>> {
    let kernel = spatial(w);
    if let Some(named) = c.ints("kernel_shape")?
        && consts(&kernel).is_some_and(|k| k != named)
    {
        return Err(Error::new(Code::Attribute, format!("kernel_shape is {named:?}, but w is {}", w.ty())));
    }
    Ok(kernel)
}

pub(crate) fn conv<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let [x, w] = c.xs()?;
    let slide = Slide::of(c, x, kernel_of(c, w)?)?;
    let (x, [padding_lo, padding_hi]) = slide.for_conv(x, 0.0);
    let (stride, dilation, groups) = (slide.stride, slide.dilation, c.int_or("group", 1)?);
    Ok(vec![x.conv(w, c.opt(2), Conv { stride, padding_lo, padding_hi, dilation, groups })])
}

/// The convolution of bytes, in i32, with the attributes of the node. Zero points have no axes, that of w perhaps one entry
/// per output channel.
pub(super) fn conv_integer<'g>(
    c: &Call<'g, '_>,
    [x, w]: [Var<'g>; 2],
    [x_zero, w_zero]: [Option<Var<'g>>; 2],
) -> Result<Var<'g>> {
    let slide = Slide::of(c, x, kernel_of(c, w)?)?;
    // What lies outside of x counts as its zero point.
    let (x, [padding_lo, padding_hi]) = slide.for_conv(x, x_zero.unwrap_or_else(|| x.scalar(0.0)));
    let (stride, dilation, groups) = (slide.stride, slide.dilation, c.int_or("group", 1)?);
    let attrs = ConvInteger { stride, padding_lo, padding_hi, dilation, groups };
    Ok(x.conv_integer(w, x_zero, w_zero, attrs))
}

pub(crate) fn conv_transpose<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let [x, w] = c.xs()?;
    let kernel = kernel_of(c, w)?;
    let n = kernel.len();
    let (stride, dilation) = (list(c, "strides", n, 1)?, list(c, "dilations", n, 1)?);
    let output_padding = list(c, "output_padding", n, 0)?;
    let (auto, groups) = (Auto::of(c)?, c.int_or("group", 1)?);
    let attrs = |padding_lo, padding_hi| ConvTranspose {
        stride: stride.clone(),
        dilation: dilation.clone(),
        output_padding: output_padding.clone(),
        padding_lo,
        padding_hi,
        groups,
    };
    // The sizes that are asked for; without any, the padding decides.
    let want: Option<Vec<Dim>> = match c.ints("output_shape")?.filter(|v| !v.is_empty()) {
        Some(shape) => {
            let skip = shape.len().saturating_sub(n);
            Some(shape.into_iter().skip(skip).map(Dim::constant).collect())
        }
        None if auto.is_same() => Some(spatial(x).iter().zip(&stride).map(|(d, s)| d * *s).collect()),
        None => None,
    };
    let Some(want) = want else {
        let pads = if auto == Auto::Valid { vec![0; 2 * n] } else { list(c, "pads", 2 * n, 0)? };
        let (lo, hi) = pads.split_at(n);
        return Ok(vec![x.conv_transpose(w, c.opt(2), attrs(lo.to_vec(), hi.to_vec()))]);
    };
    if want.len() != n {
        return Err(Error::new(Code::Attribute, format!("output_shape has {} entries, not {n}", want.len())));
    }
    let of = |v: &[i64], i: usize, default| v.get(i).copied().unwrap_or(default);
    let size = |(i, (d, k)): (usize, (&Dim, &Dim))| {
        (d - 1) * of(&stride, i, 1) + of(&output_padding, i, 0) + (k - 1) * of(&dilation, i, 1) + 1
    };
    let whole: Vec<Dim> = spatial(x).iter().zip(&kernel).enumerate().map(size).collect();
    let total: Vec<Dim> = whole.iter().zip(&want).map(|(d, w)| d - w).collect();
    if let Some(total) = consts(&total) {
        // An axis that must grow does so at the end.
        let half = |t: &i64| if auto == Auto::Upper || *t < 0 { t / 2 } else { t - t / 2 };
        let lo: Vec<i64> = total.iter().map(half).collect();
        let hi = total.iter().zip(&lo).map(|(t, l)| t - l).collect();
        return Ok(vec![x.conv_transpose(w, c.opt(2), attrs(lo, hi))]);
    }
    let mut y = x.conv_transpose(w, c.opt(2), attrs(vec![], vec![]));
    for (i, (t, d)) in total.iter().zip(&want).enumerate() {
        let start = if auto == Auto::Upper { t.floor_div(2) } else { t.ceil_div(2) };
        y = y.narrow(i as i64 + 2, start, d.clone());
    }
    Ok(vec![y])
}

/// The windows of a pool, and whether the last one may reach beyond the end.
fn pool_slide(c: &Call<'_, '_>, x: Var<'_>) -> Result<(Slide, Vec<i64>, bool)> {
    let kernel = c
        .ints("kernel_shape")?
        .ok_or_else(|| Error::new(Code::Attribute, "attribute kernel_shape is missing"))?;
    let slide = Slide::of(c, x, kernel.iter().copied().map(Dim::constant).collect())?;
    // With SAME padding the result is rounded up already.
    let ceil = c.flag("ceil_mode", false)? && !slide.auto.is_same();
    Ok((slide, kernel, ceil))
}

/// The least number of a dtype, which no padding may beat.
fn least(dtype: DType) -> f64 {
    dtype.int_range().map_or(f64::NEG_INFINITY, |(lo, _)| lo as f64)
}

pub(crate) fn max_pool<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let x = c.x(0)?;
    let (slide, kernel, ceil_mode) = pool_slide(c, x)?;
    let column_major = c.flag("storage_order", false)?;
    let (padded, [lo, hi]) = slide.for_pool(x, least(x.dtype()));
    let (stride, dilation) = (slide.stride.clone(), slide.dilation.clone());
    let attrs = MaxPool {
        kernel: kernel.clone(),
        stride: stride.clone(),
        padding_lo: lo.clone(),
        padding_hi: hi.clone(),
        dilation: dilation.clone(),
        ceil_mode,
    };
    let mut out = vec![padded.max_pool(attrs)];
    if c.wants(1) {
        if padded.id() != x.id() {
            return Err(
                c.cannot("the indices of a pool whose padding depends on sizes or exceeds the kernel")
            );
        }
        let pool = Pool::new(&kernel, &stride, [&lo, &hi], &dilation, ceil_mode);
        let at = x.window_argmax(WindowKind::Max, kernel, stride, dilation, lo, pool.hi_reached);
        out.push(whole_index(x, at, column_major));
    }
    Ok(out)
}

/// From places in the flattened spatial axes of x to places in all of x, flattened. With `column_major` the first spatial
/// axis is the fastest.
fn whole_index<'g>(x: Var<'g>, at: Var<'g>, column_major: bool) -> Var<'g> {
    let (g, sizes) = (x.graph(), spatial(x));
    let n = |d: &Dim| g.size_of(d.clone(), DType::I64);
    let mut place = at;
    if column_major {
        // From the last axis to the first: its coordinate counts as many as all axes before it have elements.
        let (mut rest, mut sum) = (at, at.zeros_like());
        for (i, d) in sizes.iter().enumerate().rev() {
            let before = product(sizes.get(..i).unwrap_or(&[]));
            sum = sum + rest.rem(n(d)) * n(&before);
            rest = rest / n(d);
        }
        place = sum;
    }
    let rows = product(x.shape().get(..2).unwrap_or(&[]));
    let ones = std::iter::repeat_n(Dim::constant(1), sizes.len());
    let shape: Shape = [x.dim(0), x.dim(1)].into_iter().chain(ones).collect();
    place + g.iota(vec![rows], 0, DType::I64).reshape(shape) * n(&product(&sizes))
}

pub(crate) fn average_pool<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let x = c.x(0)?;
    let (slide, kernel, ceil_mode) = pool_slide(c, x)?;
    let count_include_pad = c.flag("count_include_pad", false)?;
    let (padded, [padding_lo, padding_hi]) = slide.for_pool(x, 0.0);
    let attrs = AvgPool {
        kernel,
        stride: slide.stride.clone(),
        dilation: slide.dilation.clone(),
        padding_lo,
        padding_hi,
        ceil_mode,
        count_include_pad,
    };
    let mean = padded.avg_pool(attrs.clone());
    if padded.id() == x.id() || count_include_pad {
        return Ok(vec![mean]);
    }
    // The part of each window that is no padding.
    let part = slide.padded(x.ones_like(), 0.0).avg_pool(attrs);
    Ok(vec![mean / part])
}

/// The exponent of a p-norm: an integer, in the first version a float.
fn exponent(c: &Call<'_, '_>) -> Result<f64> {
    match c.attrs.get("p") {
        Some(Attr::Float(p)) => Ok(f64::from(*p)),
        _ => Ok(c.int_or("p", 2)? as f64),
    }
}

/// `(Σ |x|^p)^(1/p)`, for a sum that is given.
fn p_norm<'g>(x: Var<'g>, p: f64, sum: impl FnOnce(Var<'g>) -> Var<'g>) -> Var<'g> {
    let wide = x.wide();
    let y = match p {
        1.0 => sum(wide.abs()),
        2.0 => sum(wide.square()).sqrt(),
        _ => sum(wide.abs().pow(p)).pow(1.0 / p),
    };
    y.to(x.dtype())
}

pub(crate) fn lp_pool<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let x = c.x(0)?;
    let (slide, kernel, ceil_mode) = pool_slide(c, x)?;
    Ok(vec![p_norm(x, exponent(c)?, |powers| {
        let (powers, [lo, hi]) = slide.for_pool(powers, 0.0);
        let Pool { hi_reached, .. } =
            Pool::new(&kernel, &slide.stride, [&lo, &hi], &slide.dilation, ceil_mode);
        powers.reduce_window(WindowKind::Sum, kernel, slide.stride, slide.dilation, lo, hi_reached)
    })])
}

/// All axes behind batch and channels.
fn spatial_axes(x: Var<'_>) -> Vec<i64> {
    (2..x.rank() as i64).collect()
}

pub(crate) fn global_max_pool<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let x = c.x(0)?;
    Ok(vec![x.max(spatial_axes(x), true)])
}

pub(crate) fn global_average_pool<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let x = c.x(0)?;
    Ok(vec![x.mean(spatial_axes(x), true)])
}

pub(crate) fn global_lp_pool<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let x = c.x(0)?;
    Ok(vec![p_norm(x, exponent(c)?, |powers| powers.sum(spatial_axes(x), true))])
}

pub(crate) fn max_unpool<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let [x, at] = c.xs()?;
    let (slide, kernel, _) = pool_slide(c, x)?;
    let padding = slide.lo.iter().zip(&slide.hi).map(|(lo, hi)| lo + hi);
    let sizes = spatial(x).into_iter().zip(&slide.stride).zip(padding).zip(&kernel);
    let sizes = sizes.map(|(((d, s), p), k)| (d - 1) * *s - p + *k);
    let shape: Shape = [x.dim(0), x.dim(1)].into_iter().chain(sizes).collect();
    let flat = |v: Var<'g>| v.reshape(vec![v.ty().numel()]);
    let y = c.g.zeros(x.dtype(), &[product(&shape)]);
    let y = y.scatter_elements(flat(at), flat(x), 0, ScatterMode::Set).reshape(shape.clone());
    if c.opt(2).is_none() {
        return Ok(vec![y]);
    }
    // Places count in the smallest tensor that could have been pooled; a larger one has zeros behind it.
    let more: Vec<Dim> = c.dims(2)?.iter().zip(&shape).map(|(want, d)| want - d).collect();
    Ok(vec![y.pad(0.0, vec![Dim::constant(0); shape.len()], more, vec![0; shape.len()])])
}
