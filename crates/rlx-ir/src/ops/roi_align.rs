//! Pooling of regions of images.

use crate::onnx::Call;
use crate::ops::grid_sample::{Pixels, blend};
use crate::prelude::*;

attr_enum! {
    /// How the samples of a bin become one number.
    RoiMode {
        /// Their mean.
        Mean = "mean",
        /// The largest of the weighted pixels around them.
        Max = "max",
    }
}

/// The samples along one axis of all regions.
struct Samples1<'g> {
    /// Where they stand: `[regions, bins, samples]`.
    at: Var<'g>,
    /// How many there are of each bin of a region: `[regions, 1, 1]`.
    count: Var<'g>,
    /// Whether a sample is one of those: `[regions, 1, samples]`.
    real: Var<'g>,
    /// Whether it is on the image: `[regions, bins, samples]`.
    inside: Var<'g>,
    /// The most of any bin.
    most: i64,
}

impl<'g> Samples1<'g> {
    /// Samples of regions from `start` to `end` over an axis of n pixels, in `bins` bins.
    fn new(a: &RoiAlign, start: Var<'g>, end: Var<'g>, bins: i64, n: &Dim) -> Samples1<'g> {
        let g = start.graph();
        let [start, end] =
            [start, end].map(|x| (x * a.scale - if a.aligned { 0.5 } else { 0.0 }).unsqueeze(-1).unsqueeze(-1));
        let span = if a.aligned { end - start } else { (end - start).maximum(1.0) };
        let bin = span / bins as f64;
        // A sample for every pixel of a bin; no region on the image needs more than this.
        let most = match a.samples {
            0 => n.ceil_div(bins).upper().unwrap_or(1).max(1),
            given => given,
        };
        let count = match a.samples {
            0 => bin.ceil().maximum(0.0).minimum(most as f64),
            given => bin.full_like(given as f64),
        };
        let k = g.iota([most], 0, start.dtype());
        let b = g.iota([bins, 1], 0, start.dtype());
        let at = start + b * bin + (k + 0.5) * bin / count.maximum(1.0);
        let inside = at.greater_equal(-1.0).and(at.less_equal(at.size_scalar(n)));
        let at = at.maximum(0.0).minimum(at.size_scalar(n) - 1.0);
        Samples1 { at, count, real: k.less(count), inside, most }
    }

    /// Something of samples under `[regions, bins, samples, bins, samples]`: this is the first axis or the second.
    fn spread(x: Var<'g>, first: bool) -> Var<'g> {
        if first { x.unsqueeze(-1).unsqueeze(-1) } else { x.unsqueeze(1).unsqueeze(1) }
    }
}

ops! {
    /// A fixed number of bins for each region of an image, whatever the region's size: regions of interest.
    ///
    /// x is `[n, c, h, w]`; rois is `[r, 4]` with x1, y1, x2, y2 of each region, which are multiplied by `scale`; images `[r]`
    /// says which image it is on. The result is `[r, c, height, width]`. A bin has `samples` × `samples` samples, or for 0 as
    /// many as it has pixels along each axis (at most as many as a bin of the whole image has), each interpolated linearly;
    /// samples further than a pixel outside of the image count as 0. With `aligned` a pixel's centre is half a pixel away from
    /// its edge; without, it is its edge, and no region is smaller than a pixel.
    roi_align: RoiAlign(x: Float, rois: Float, images: Index) {
        height: i64, width: i64, samples: i64 = 0, scale: f64 = 1.0, aligned: bool = true, mode: RoiMode = RoiMode::Mean
    } -> y;
    constraints = ["x is [n, c, h, w]", "rois is [r, 4] and images [r]", "height, width >= 1 and samples >= 0, at most 4096"];
    infer = |c, a| {
        c.rank(1, 0, 4)?;
        c.rank(2, 1, 2)?;
        let r = c.dim(1, 0)?.clone();
        c.expect_dim(2, 1, 1, &Dim::constant(4))?;
        c.expect_shape(2, 2, std::slice::from_ref(&r))?;
        if a.samples < 0 || a.height < 1 || a.width < 1 || a.height.max(a.width).max(a.samples) > 4096 {
            let text = format!("{} by {} bins of {} samples", a.height, a.width, a.samples);
            return Err(c.fail(Code::Attribute, 3, text));
        }
        let shape = vec![r, c.dim(0, 1)?.clone(), Dim::constant(a.height), Dim::constant(a.width)];
        Ok(vec![c.ty(0)?.with_shape(shape)])
    };
    body = |c, a| {
        let (x, rois) = (c.x(0).wide(), c.x(1).wide());
        let r = rois.dim(0);
        let edge = |k: i64| rois.narrow(1, k, 1).squeeze(1);
        let pixels = Pixels::of(x);
        let rows = Samples1::new(a, edge(1), edge(3), a.height, &x.dim(2));
        let columns = Samples1::new(a, edge(0), edge(2), a.width, &x.dim(3));
        let all = vec![r.clone(), a.height.into(), rows.most.into(), a.width.into(), columns.most.into()];
        let flat = vec![r, product(all.get(1..).unwrap_or_default())];
        let [y, x0] = [(rows.at, true), (columns.at, false)]
            .map(|(at, first)| Samples1::spread(at, first).broadcast(&all).reshape(&flat));
        let both = |first, second| Samples1::spread(first, true).and(Samples1::spread(second, false));
        let parts = pixels.corners(c.x(2).to(DType::I64).unsqueeze(-1), &[y, x0]);
        let shape: Shape = all.iter().cloned().chain([x.dim(1)]).collect();
        let inside = both(rows.inside, columns.inside).unsqueeze(-1);
        let real = both(rows.real, columns.real).unsqueeze(-1);
        let count = (rows.count * columns.count).unsqueeze(-1);
        let y = match a.mode {
            RoiMode::Mean => {
                let sample = blend(c.g, parts).reshape(shape);
                real.and(inside).select(sample, sample.scalar(0.0)).sum(vec![2, 4], false) / count.maximum(1.0)
            }
            RoiMode::Max => {
                let largest = parts.into_iter().map(|(w, p)| w * p).reduce(|a, b| a.maximum(b));
                let sample = largest.unwrap_or_else(|| c.g.poison()).reshape(shape);
                let sample = inside.select(sample, sample.scalar(0.0));
                let largest = real.select(sample, sample.scalar(f64::NEG_INFINITY)).max(vec![2, 4], false);
                count.greater(0.0).select(largest, largest.scalar(0.0))
            }
        };
        Ok(vec![y.move_axis(-1, 1).to(c.x(0).dtype())])
    };
    onnx = [
        rule("RoiAlign", 10, onnx_roi_align),
        rule("NonMaxSuppression", 10, crate::onnx::boxes::non_max_suppression),
    ];
    samples = |s| {
        let align = |samples, aligned, mode| RoiAlign { height: 2, width: 1, samples, scale: 0.5, aligned, mode };
        let rois = |n: usize| f([n, 4]).values(&[1.3, 0.4, 6.1, 7.7, -3.2, 1.1, 9.7, 4.6]);
        s.case("mean", align(2, true, RoiMode::Mean), [f([2, 3, 4, 4]), rois(2), int([2], 0, 2)]);
        s.case("old", align(1, false, RoiMode::Mean), [f([1, 2, 4, 3]), rois(2), int([2], 0, 1)]);
        s.case("adaptive", align(0, true, RoiMode::Mean), [f([1, 2, 4, 5]), rois(2), int([2], 0, 1)]);
        s.case("max", align(2, true, RoiMode::Max), [f([1, 2, 4, 4]).distinct(0.5, 1.5), rois(1), int([1], 0, 1)]);
        s.rough("negative", align(0, true, RoiMode::Max), [f([1, 1, 3, 3]), f([1, 4]).values(&[4.0, 4.0, 1.0, 2.0]), int([1], 0, 1)]);
        s.case("none", align(2, true, RoiMode::Mean), [f([1, 2, 3, 3]), f([0, 4]), int([0], 0, 1)]);
    };

    /// The largest pixel of each bin of a region, in whole pixels: regions of interest in their first form.
    ///
    /// x, rois and images are as in `roi_align`. A region goes from the pixel nearest to its start to that nearest to its end,
    /// both included; bin i of b covers the pixels from floor(i/b · size) up to, not including, ceil((i+1)/b · size) of it that
    /// are on the image, and is 0 if there are none.
    max_roi_pool: MaxRoiPool(x: Float, rois: Float, images: Index) { height: i64, width: i64, scale: f64 = 1.0 } -> y;
    constraints = ["x is [n, c, h, w]", "rois is [r, 4] and images [r]", "height, width >= 1, at most 4096"];
    infer = |c, a| {
        c.rank(1, 0, 4)?;
        c.rank(2, 1, 2)?;
        let r = c.dim(1, 0)?.clone();
        c.expect_dim(2, 1, 1, &Dim::constant(4))?;
        c.expect_shape(2, 2, std::slice::from_ref(&r))?;
        if a.height < 1 || a.width < 1 || a.height.max(a.width) > 4096 {
            return Err(c.fail(Code::Attribute, 3, format!("{} by {} bins", a.height, a.width)));
        }
        let shape = vec![r, c.dim(0, 1)?.clone(), Dim::constant(a.height), Dim::constant(a.width)];
        Ok(vec![c.ty(0)?.with_shape(shape)])
    };
    body = |c, a| {
        let rois = c.x(1).wide();
        let x = c.x(0).gather(c.x(2), 0);
        let none = x.scalar(f64::NEG_INFINITY);
        // Which pixels of an axis each bin of each region covers: [r, bins, n].
        let covers = |from: i64, bins: i64, n: Dim| {
            let pixel = |k: i64| ((rois.narrow(1, k, 1) * a.scale).abs() + 0.5).floor() * rois.narrow(1, k, 1).sign();
            let (first, last) = (pixel(from).unsqueeze(-1), pixel(from + 2).unsqueeze(-1));
            let bin = (last - first + 1.0).maximum(1.0) / bins as f64;
            let (b, p) = (c.g.iota([bins, 1], 0, rois.dtype()), c.g.iota([n], 0, rois.dtype()));
            let (start, end) = ((b * bin).floor() + first, ((b + 1.0) * bin).ceil() + first);
            p.greater_equal(start).and(p.less(end))
        };
        let columns = covers(0, a.width, x.dim(3)).unsqueeze(1).unsqueeze(1);
        let wide = columns.select(x.unsqueeze(-2), none).max(vec![-1], false);
        let rows = covers(1, a.height, x.dim(2)).unsqueeze(1).unsqueeze(3);
        let y = rows.select(wide.t().unsqueeze(2), none).max(vec![-1], false);
        Ok(vec![y.greater(none).select(y, y.scalar(0.0))])
    };
    onnx = [rule("MaxRoiPool", 1, |c| {
        let [x, rois] = c.xs()?;
        let Some([height, width]) = c.ints("pooled_shape")?.and_then(|s| <[i64; 2]>::try_from(s).ok()) else {
            return Err(Error::new(Code::Attribute, "attribute pooled_shape must be two integers"));
        };
        let images = rois.narrow(1, 0, 1).squeeze(1).to(DType::I64);
        Ok(vec![x.max_roi_pool(rois.narrow(1, 1, 4), images, height, width, c.float_or("spatial_scale", 1.0)?)])
    })];
    samples = |s| {
        let rois = f([2, 4]).values(&[0.6, 0.1, 5.7, 4.9, -3.2, 1.1, 3.7, 9.8]);
        s.case("two", MaxRoiPool { height: 2, width: 3, scale: 0.5 }, [f([2, 2, 4, 3]).distinct(-1.0, 1.0), rois, int([2], 0, 2)]);
        s.rough("outside", MaxRoiPool { height: 2, width: 1, scale: 1.0 }, [f([1, 1, 3, 3]), f([1, 4]).values(&[7.0, 8.0, 9.0, 9.0]), int([1], 0, 1)]);
        s.case("none", MaxRoiPool { height: 1, width: 1, scale: 1.0 }, [f([1, 1, 3, 3]), f([0, 4]), int([0], 0, 1)]);
    };
}

fn onnx_roi_align<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let [x, rois, images] = c.xs()?;
    let mode = match c.text("mode", "avg")? {
        "avg" => RoiMode::Mean,
        "max" => RoiMode::Max,
        other => return Err(Error::new(Code::Attribute, format!("mode is {other}"))),
    };
    // Before version 16 there was no choice.
    let default = if c.opset >= 16 { "half_pixel" } else { "output_half_pixel" };
    let aligned = match c.text("coordinate_transformation_mode", default)? {
        "half_pixel" => true,
        "output_half_pixel" => false,
        other => {
            return Err(Error::new(Code::Attribute, format!("coordinate_transformation_mode is {other}")));
        }
    };
    let (height, width) = (c.int_or("output_height", 1)?, c.int_or("output_width", 1)?);
    let (samples, scale) = (c.int_or("sampling_ratio", 0)?, c.float_or("spatial_scale", 1.0)?);
    Ok(vec![x.roi_align(rois, images, height, width, samples.max(0), scale, aligned, mode)])
}
