//! Convolution whose kernel's taps are moved by data, and the inverse of taking windows apart.

use crate::onnx::Call;
use crate::ops::grid_sample::{Pixels, blend};
use crate::ops::scatter::ScatterMode;
use crate::ops::window::{ListAttr, Windows, spread};
use crate::prelude::*;

/// The windows that lists of attributes describe.
fn windows(kernel: &[Dim], stride: &[i64], dilation: &[i64], lo: &[i64], hi: &[i64]) -> Windows {
    let n = kernel.len();
    Windows {
        kernel: kernel.to_vec(),
        stride: spread(stride, n, 1),
        dilation: spread(dilation, n, 1),
        padding_lo: spread(lo, n, 0),
        padding_hi: spread(hi, n, 0),
    }
}

macro_rules! windows {
    ($kernel:expr, $a:expr) => {
        windows($kernel, &$a.stride, &$a.dilation, &$a.padding_lo, &$a.padding_hi)
    };
}

macro_rules! lists {
    ($a:expr) => {
        [
            ("stride", &$a.stride, 1),
            ("dilation", &$a.dilation, 1),
            ("padding_lo", &$a.padding_lo, i64::MIN),
            ("padding_hi", &$a.padding_hi, i64::MIN),
        ] as [ListAttr<'_>; 4]
    };
}

fn ones(n: usize) -> impl Iterator<Item = Dim> {
    std::iter::repeat_n(Dim::constant(1), n)
}

/// Where the taps of all windows stand along axis k of n, as `[k1, .., kn, o1, .., on]` with 1 for all other axes.
fn taps<'g>(g: &'g Graph, w: &Windows, k: usize, outputs: &[Dim], dtype: DType) -> Var<'g> {
    let n = outputs.len();
    let of = |list: &[i64], default: i64| list.get(k).copied().unwrap_or(default) as f64;
    let along = |d: Option<&Dim>, at: usize| {
        let d = d.cloned().unwrap_or(Dim::constant(1));
        let shape: Shape = ones(at).chain([d.clone()]).chain(ones(2 * n - 1 - at)).collect();
        g.iota(vec![d], 0, dtype).reshape(shape)
    };
    let (tap, window) = (along(w.kernel.get(k), k), along(outputs.get(k), n + k));
    tap * of(&w.dilation, 1) + window * of(&w.stride, 1) - of(&w.padding_lo, 0)
}

ops! {
    /// A convolution whose taps are moved: deformable convolution, with or without a mask.
    ///
    /// As `conv`, but tap k of the window at o reads x at `o·stride + k·dilation − padding_lo + offset[o, k]`, interpolated
    /// linearly between pixels (0 outside), times `mask[o, k]` where it is given. offset is
    /// `[batch, offset_groups · taps · axes, outputs..]` (the taps in row-major order, for each its move along every axis),
    /// mask `[batch, offset_groups · taps, outputs..]`; each offset group moves an equal part of the channels.
    deform_conv: DeformConv(x: Float, w: Float, offset: Float, bias: opt Float, mask: opt Float) with {
        stride: Vec<i64> = vec![], padding_lo: Vec<i64> = vec![], padding_hi: Vec<i64> = vec![],
        dilation: Vec<i64> = vec![], groups: i64 = 1, offset_groups: i64 = 1
    } -> y;
    constraints = [
        "x has a batch, a channel and at least one spatial axis, and w has as many axes",
        "the lists are empty or have an entry per spatial axis; stride, dilation >= 1",
        "groups >= 1 and offset_groups >= 1 divide the channels of x, groups those of the result",
        "axis 1 of w times groups is axis 1 of x",
        "the kernel has at least one element and fits into the padded input",
        "bias has one entry per output channel",
        "offset is [batch, offset_groups * taps * axes, outputs..], mask [batch, offset_groups * taps, outputs..]",
    ];
    infer = |c, a| {
        c.rank_at_least(1, 0, 3)?;
        let (x, w) = (c.ty(0)?, c.ty(1)?);
        c.rank(1, 1, x.rank())?;
        let axes = x.rank() - 2;
        Windows::check_attrs(c, 2, axes, &lists!(a))?;
        let (channels, out) = (c.dim(0, 1)?, c.dim(1, 0)?);
        let divides = |n: i64, d: &Dim| n >= 1 && d.exact_div(&Dim::constant(n)).is_some();
        if !divides(a.groups, channels) || !divides(a.offset_groups, channels) || !divides(a.groups, out) {
            let text = format!("{} groups and {} offset groups of {channels} channels", a.groups, a.offset_groups);
            return Err(c.fail(Code::Dim, 3, text));
        }
        c.expect_dim(4, 0, 1, &(c.dim(1, 1)? * a.groups))?;
        let kernel = w.shape.get(2..).unwrap_or_default();
        let outputs = windows!(kernel, a).outputs(c, 5, "x", 2, x.shape.get(2..).unwrap_or_default())?;
        if c.opt(3).is_some() {
            c.expect_shape(6, 3, std::slice::from_ref(out))?;
        }
        let taps = product(kernel) * a.offset_groups;
        let data = |n: Dim| [c.dim(0, 0).cloned().unwrap_or(Dim::invalid()), n].into_iter().chain(outputs.clone()).collect::<Shape>();
        c.expect_shape(7, 2, &data(&taps * axes as i64))?;
        if c.opt(4).is_some() {
            c.expect_shape(7, 4, &data(taps))?;
        }
        Ok(vec![x.with_shape(data(out.clone()))])
    };
    body = |c, a| {
        let dtype = c.x(0).dtype();
        let [x, w, offset] = c.xs().map(|x| x.wide());
        let (kernel, own): (Shape, Shape) = (w.shape().split_off(2), x.shape().split_off(2));
        let form = windows!(&kernel, a);
        let (outputs, axes) = (form.sizes(&own), own.len());
        let (n, parts, channels) = (x.dim(0), Dim::constant(a.offset_groups), x.dim(1));
        let each = channels.exact_div(&parts).unwrap_or(Dim::invalid());
        let (taps_count, places) = (product(&kernel), product(&outputs));
        let images = &n * &parts;
        // Each offset group of an image is an image of its own.
        let pixels = Pixels::of(x.reshape([images.clone(), each.clone()].into_iter().chain(own).collect::<Shape>()));
        let moves = offset.reshape(vec![images.clone(), taps_count.clone(), (axes as i64).into(), places.clone()]);
        let all = vec![taps_count.clone(), places.clone()];
        let at = |k: usize| {
            let full: Shape = kernel.iter().chain(&outputs).cloned().collect();
            let base = taps(c.g, &form, k, &outputs, x.dtype()).broadcast(full).reshape(&all);
            let moved = base + moves.narrow(2, k as i64, 1).squeeze(2);
            moved.reshape(vec![images.clone(), product(&all)])
        };
        let image = c.g.iota([images.clone(), 1.into()], 0, DType::I64);
        let at: Vec<_> = (0..axes).map(at).collect();
        let mut values = blend(c.g, pixels.corners(image, &at));
        if let Some(mask) = c.opt(4) {
            values = values * mask.wide().reshape(vec![images.clone(), product(&all), 1.into()]);
        }
        // [images, taps, places, channels] to [n, groups, channels of a group · taps, places].
        let columns = values.reshape(vec![images, taps_count.clone(), places.clone(), each]).permute(vec![0, 3, 1, 2]);
        let groups = Dim::constant(a.groups);
        let deep = w.dim(1) * &taps_count;
        let columns = columns.reshape(vec![n.clone(), groups.clone(), deep.clone(), places]);
        let out = w.dim(0).exact_div(&groups).unwrap_or(Dim::invalid());
        let y = w.reshape(vec![groups, out, deep]).matmul(columns);
        let y = y.reshape([n, w.dim(0)].into_iter().chain(outputs).collect::<Shape>());
        let bias = c.opt(3).map(|b| b.wide().reshape([w.dim(0)].into_iter().chain(ones(axes)).collect::<Shape>()));
        Ok(vec![bias.map_or(y, |b| y + b).to(dtype)])
    };
    onnx = [rule("DeformConv", 19, onnx_deform_conv)];
    tolerance = tol(1e-5, 4e-3, 3e-2);
    samples = |s| {
        let d = DeformConv::default;
        // Between pixels: at a pixel the slope changes.
        let off = |shape: [usize; 4]| f(shape).within(-0.9, -0.1);
        s.case("plain", d(), [f([1, 2, 4, 3]), f([2, 2, 2, 2]), off([1, 8, 3, 2])]);
        let all = DeformConv {
            stride: vec![2, 1], padding_lo: vec![1, 0], padding_hi: vec![0, 1], dilation: vec![1, 2], groups: 2, offset_groups: 2
        };
        s.case("all", all, [f([1, 4, 4, 4]), f([2, 2, 2, 2]), off([1, 16, 2, 3]), f([2]), f([1, 8, 2, 3])]);
        s.case("line", d(), [f([2, 1, 4]), f([1, 1, 2]), f([2, 2, 3]).within(1.1, 1.9)]);
        s.case("nothing", d(), [f([0, 1, 3, 3]), f([1, 1, 2, 2]), f([0, 8, 2, 2])]);
    };

    /// Windows put back to where they were taken from, and added where they overlap: PyTorch's `fold`, ONNX's Col2Im.
    ///
    /// x is `[n, c · taps, windows]`, with the taps of the kernel and the windows in row-major order; the result is
    /// `[n, c, sizes..]`. What lies on the padding goes. An empty list stands for stride 1, dilation 1, padding 0.
    col2im: Col2im(x: Float) with {
        sizes: Dims = Dims::default(), kernel: Vec<i64> = vec![], stride: Vec<i64> = vec![], dilation: Vec<i64> = vec![],
        padding_lo: Vec<i64> = vec![], padding_hi: Vec<i64> = vec![]
    } -> y;
    constraints = [
        "x is [n, c * taps, windows]",
        "sizes and kernel have an entry for each spatial axis, the other lists too or none; kernel, stride, dilation >= 1",
        "the kernel fits into the padded sizes",
    ];
    infer = |c, a| {
        c.rank(1, 0, 3)?;
        if a.kernel.len() != a.sizes.len() || a.kernel.iter().any(|k| *k < 1) {
            let text = format!("a kernel of {:?} for {} sizes", a.kernel, a.sizes.len());
            return Err(c.fail(Code::Attribute, 2, text));
        }
        Windows::check_attrs(c, 2, a.sizes.len(), &lists!(a))?;
        let kernel: Vec<Dim> = a.kernel.iter().map(|k| Dim::constant(*k)).collect();
        let outputs = windows!(&kernel, a).outputs(c, 3, "sizes", 0, &a.sizes)?;
        c.expect_dim(1, 0, 2, &product(&outputs))?;
        let (rows, taps) = (c.dim(0, 1)?, product(&kernel));
        let channels = rows.exact_div(&taps).ok_or_else(|| {
            c.fail(Code::Dim, 1, format!("{rows} rows for {taps} taps")).operand("x").axis(1)
        })?;
        let shape: Shape = [c.dim(0, 0)?.clone(), channels].into_iter().chain(a.sizes.iter().cloned()).collect();
        Ok(vec![c.ty(0)?.with_shape(shape)])
    };
    body = |c, a| {
        let x = c.x(0).wide();
        let kernel: Vec<Dim> = a.kernel.iter().map(|k| Dim::constant(*k)).collect();
        let form = windows!(&kernel, a);
        let outputs = form.sizes(&a.sizes);
        let (len, taps_count) = (product(&a.sizes), product(&kernel));
        let channels = x.dim(1).exact_div(&taps_count).unwrap_or(Dim::invalid());
        // What lies on the padding goes to a place behind all others, which is outside.
        let (mut flat, mut inside) = (c.g.scalar(DType::I64, 0.0), c.g.scalar(DType::Bool, 1.0));
        for (k, size) in a.sizes.iter().enumerate() {
            let at = taps(c.g, &form, k, &outputs, DType::I64);
            inside = inside.and(at.greater_equal(0.0).and(at.less(at.size_scalar(size))));
            flat = flat * flat.size_scalar(size) + at;
        }
        let places = taps_count * product(&outputs);
        let full: Shape = kernel.iter().chain(&outputs).cloned().collect();
        let index = inside.select(flat, flat.size_scalar(&len)).broadcast(full).reshape(vec![places.clone()]);
        let rows = x.dim(0) * &channels;
        let y = c.g.zeros(x.dtype(), &[rows.clone(), len]).scatter(index, x.reshape(vec![rows, places]), 1, ScatterMode::Add);
        let shape: Shape = [x.dim(0), channels].into_iter().chain(a.sizes.iter().cloned()).collect();
        Ok(vec![y.reshape(shape).to(c.x(0).dtype())])
    };
    onnx = [rule("Col2Im", 18, |c| {
        let (sizes, kernel) = (c.dims(1)?, c.const_ints(2)?);
        let (padding_lo, padding_hi) = pads(c)?;
        let list = |name: &str| Ok(c.ints(name)?.unwrap_or_default());
        let (stride, dilation) = (list("strides")?, list("dilations")?);
        let a = Col2im { sizes: sizes.into(), kernel, stride, dilation, padding_lo, padding_hi };
        let x = c.x(0)?;
        let dtype = x.dtype();
        Ok(vec![if dtype.is_float() { x.col2im(a) } else { x.to(DType::F64).col2im(a).to(dtype) }])
    })];
    samples = |s| {
        let d = Col2im::default;
        s.case("overlap", Col2im { sizes: [3, 4].into(), kernel: vec![2, 2], ..d() }, [f([1, 8, 6])]);
        let all = Col2im {
            sizes: [4, 3].into(), kernel: vec![2, 2], stride: vec![2, 1], dilation: vec![1, 2], padding_lo: vec![1, 1], padding_hi: vec![0, 1]
        };
        s.case("all", all, [f([2, 4, 6])]);
        s.case("volume", Col2im { sizes: [2, 2, 3].into(), kernel: vec![1, 2, 2], ..d() }, [f([1, 4, 4])]);
        s.case("nothing", Col2im { sizes: [3].into(), kernel: vec![2], ..d() }, [f([0, 2, 2])]);
    };
}

/// ONNX's pads: all starts, then all ends.
fn pads(c: &Call<'_, '_>) -> Result<(Vec<i64>, Vec<i64>)> {
    let all = c.ints("pads")?.unwrap_or_default();
    let (lo, hi) = all.split_at(all.len() / 2);
    Ok((lo.to_vec(), hi.to_vec()))
}

fn onnx_deform_conv<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let [x, w, offset] = c.xs()?;
    let kernel = c.ints("kernel_shape")?;
    let own = w.shape().into_iter().skip(2);
    if let Some(k) = kernel.filter(|k| !k.iter().map(|k| Dim::constant(*k)).eq(own)) {
        return Err(Error::new(Code::Dim, format!("kernel_shape is {k:?}, but W is {}", w.ty())));
    }
    let (padding_lo, padding_hi) = pads(c)?;
    let a = DeformConv {
        stride: c.ints("strides")?.unwrap_or_default(),
        padding_lo,
        padding_hi,
        dilation: c.ints("dilations")?.unwrap_or_default(),
        groups: c.int_or("group", 1)?,
        offset_groups: c.int_or("offset_group", 1)?,
    };
    Ok(vec![x.deform_conv(w, offset, c.opt(3), c.opt(4), a)])
}
