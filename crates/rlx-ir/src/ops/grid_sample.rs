//! Reading images between their pixels, at places that are data.

use crate::onnx::Call;
use crate::ops::resize::{ResizeMode, cubic_far, cubic_near};
use crate::prelude::*;

/// The coefficient of the cubic curve, as PyTorch and ONNX have it.
const CUBIC_A: f64 = -0.75;

/// Images `[n, c, sizes..]` as rows of channels, one for each pixel, to read them by place.
pub(crate) struct Pixels<'g> {
    /// `[n · sizes, c]`.
    rows: Var<'g>,
    sizes: Vec<Dim>,
}

impl<'g> Pixels<'g> {
    /// The pixels of x.
    pub(crate) fn of(x: Var<'g>) -> Pixels<'g> {
        let shape = x.shape();
        let sizes: Vec<Dim> = shape.iter().skip(2).cloned().collect();
        let rows = x.move_axis(1, -1).reshape(vec![x.dim(0) * product(&sizes), x.dim(1)]);
        Pixels { rows, sizes }
    }

    /// The number of pixels along each axis.
    pub(crate) fn sizes(&self) -> &[Dim] {
        &self.sizes
    }

    /// The pixels at whole numbers, one for each axis, of images that are given by index. Places and images broadcast to
    /// `[b, p]`; the result is `[b, p, c]`, with zeros for places outside.
    fn at(&self, image: Var<'g>, places: &[Var<'g>]) -> Var<'g> {
        let (mut flat, mut inside): (Var<'g>, Option<Var<'g>>) = (image, None);
        for (place, n) in places.iter().zip(&self.sizes) {
            let end = place.size_scalar(n);
            let here = place.greater_equal(0.0).and(place.less(end));
            inside = Some(inside.map_or(here, |i| i.and(here)));
            // Numbers beyond an i64 must not get into one.
            flat = flat * flat.size_scalar(n) + place.maximum(0.0).minimum(end).to(DType::I64);
        }
        let beyond = flat.size_scalar(&self.rows.dim(0));
        self.rows.gather(inside.map_or(flat, |i| i.select(flat, beyond)), 0)
    }

    /// The pixels around places between them, with a weight `[b, p, 1]` each: all combinations of the neighbours along
    /// each axis.
    fn around(&self, image: Var<'g>, axes: &[Vec<(Var<'g>, Var<'g>)>]) -> Vec<(Var<'g>, Var<'g>)> {
        let mut all: Vec<(Vec<Var<'g>>, Option<Var<'g>>)> = vec![(Vec::new(), None)];
        for neighbours in axes {
            let with = |(places, weight): &(Vec<Var<'g>>, Option<Var<'g>>)| {
                let more = |(place, w): &(Var<'g>, Var<'g>)| {
                    let places = places.iter().copied().chain([*place]).collect();
                    (places, Some(weight.map_or(*w, |weight| weight * *w)))
                };
                neighbours.iter().map(more).collect::<Vec<_>>()
            };
            all = all.iter().flat_map(with).collect();
        }
        let read = |(places, weight): (Vec<Var<'g>>, Option<Var<'g>>)| {
            Some((weight?.unsqueeze(-1), self.at(image, &places)))
        };
        all.into_iter().filter_map(read).collect()
    }

    /// The pixels at the corners around places, with the weights of linear interpolation.
    pub(crate) fn corners(&self, image: Var<'g>, places: &[Var<'g>]) -> Vec<(Var<'g>, Var<'g>)> {
        let axes: Vec<_> = places.iter().map(|p| linear(*p)).collect();
        self.around(image, &axes)
    }
}

/// The two neighbours of a place, with their weights.
fn linear(at: Var<'_>) -> Vec<(Var<'_>, Var<'_>)> {
    let low = at.floor();
    let part = at - low;
    vec![(low, 1.0 - part), (low + 1.0, part)]
}

/// The four neighbours of a place, with their weights.
fn cubic(at: Var<'_>) -> Vec<(Var<'_>, Var<'_>)> {
    let low = at.floor();
    let part = at - low;
    vec![
        (low - 1.0, cubic_far(part + 1.0, CUBIC_A)),
        (low, cubic_near(part, CUBIC_A)),
        (low + 1.0, cubic_near(1.0 - part, CUBIC_A)),
        (low + 2.0, cubic_far(2.0 - part, CUBIC_A)),
    ]
}

/// The weighted sum.
pub(crate) fn blend<'g>(g: &'g Graph, parts: Vec<(Var<'g>, Var<'g>)>) -> Var<'g> {
    parts.into_iter().map(|(w, x)| w * x).reduce(|a, b| a + b).unwrap_or_else(|| g.poison())
}

attr_enum! {
    /// What stands outside of an image.
    GridPadding {
        /// Zeros.
        Zeros = "zeros",
        /// The pixel at the border.
        Border = "border",
        /// The image, reflected at the border as often as needed.
        Reflection = "reflection",
    }
}

impl GridPadding {
    /// The place within an axis of n pixels that stands for a place anywhere.
    fn place<'g>(self, at: Var<'g>, n: &Dim, align_corners: bool) -> Var<'g> {
        let last = at.size_scalar(n) - 1.0;
        let inner = match self {
            GridPadding::Zeros => return at,
            GridPadding::Border => at,
            GridPadding::Reflection => {
                // The image lies between `low` and `low + span`; a single pixel is all there is.
                let (low, span) =
                    if align_corners { (0.0, last.maximum(1.0)) } else { (-0.5, at.size_scalar(n)) };
                let from = (at - low).abs();
                let turns = (from / span).floor();
                let rest = from - turns * span;
                let forward = (turns / 2.0).floor().mul(2.0).equal(turns);
                forward.select(rest, span - rest) + low
            }
        };
        inner.maximum(0.0).minimum(last)
    }
}

ops! {
    /// Images read at the places of a grid, which may lie between pixels.
    ///
    /// x is `[n, c, d1, .., dk]`, grid `[n, o1, .., ok, k]`, the result `[n, c, o1, .., ok]`. The last axis of the grid has
    /// a place in the image, the innermost axis first: −1 and 1 are the ends of an axis, which are the outer edges of the
    /// pixels there, or with `align_corners` their centres. `mode` says how neighbours are blended (nearest: ties to the
    /// even one), `padding` what stands outside. As PyTorch's `grid_sample`.
    grid_sample: GridSample(x: Float, grid: Float) {
        mode: ResizeMode = ResizeMode::Linear, padding: GridPadding = GridPadding::Zeros, align_corners: bool = false
    } -> y;
    constraints = [
        "x has a batch, a channel and at least one spatial axis, and grid has as many axes",
        "x and grid have the same batch",
        "the last axis of grid is the number of spatial axes",
    ];
    infer = |c, _| {
        c.rank_at_least(1, 0, 3)?;
        let x = c.ty(0)?;
        c.rank(1, 1, x.rank())?;
        let n = c.same_dim(2, (0, 0), (1, 0))?;
        let last = x.rank() - 1;
        c.expect_dim(3, 1, last, &Dim::constant(last as i64 - 1))?;
        let outer = c.ty(1)?.shape.iter().skip(1).take(last - 1);
        Ok(vec![x.with_shape([n, c.dim(0, 1)?.clone()].iter().chain(outer).cloned().collect::<Shape>())])
    };
    body = |c, a| {
        let dtype = c.x(0).dtype();
        let [x, grid] = c.xs().map(|x| x.wide());
        let (pixels, places) = (Pixels::of(x), grid.shape());
        let outer: Shape = places.iter().skip(1).rev().skip(1).rev().cloned().collect();
        let (n, axes) = (x.dim(0), pixels.sizes().len() as i64);
        let grid = grid.reshape(vec![n.clone(), product(&outer), Dim::constant(axes)]);
        let at = |(k, d): (usize, &Dim)| {
            let g = grid.narrow(2, axes - 1 - k as i64, 1).squeeze(2);
            let size = g.size_scalar(d);
            if a.align_corners { (g + 1.0) / 2.0 * (size - 1.0) } else { ((g + 1.0) * size - 1.0) / 2.0 }
        };
        let at: Vec<_> = pixels.sizes().iter().enumerate().map(at).collect();
        let inside = |(p, d): (&_, &Dim)| a.padding.place(*p, d, a.align_corners);
        let image = c.g.iota([n.clone(), 1.into()], 0, DType::I64);
        let y = match a.mode {
            // Every neighbour is looked up in its own place.
            ResizeMode::Cubic => {
                let axis = |(p, d): (&_, &Dim)| {
                    cubic(*p).iter().map(|(q, w)| (inside((q, d)), *w)).collect::<Vec<_>>()
                };
                blend(c.g, pixels.around(image, &at.iter().zip(pixels.sizes()).map(axis).collect::<Vec<_>>()))
            }
            ResizeMode::Linear => {
                let at: Vec<_> = at.iter().zip(pixels.sizes()).map(inside).collect();
                blend(c.g, pixels.corners(image, &at))
            }
            ResizeMode::Nearest => {
                let at: Vec<_> = at.iter().zip(pixels.sizes()).map(|p| inside(p).round()).collect();
                pixels.at(image, &at)
            }
        };
        let y = y.to(dtype).move_axis(2, 1);
        Ok(vec![y.reshape([n, x.dim(1)].into_iter().chain(outer).collect::<Shape>())])
    };
    onnx = [rule("GridSample", 16, onnx_grid_sample)];
    // Places are rounded to the dtype before they become weights.
    tolerance = tol(2e-5, 4e-3, 3e-2);
    samples = |s| {
        let sample = |mode, padding, align_corners| GridSample { mode, padding, align_corners };
        let grid = |shape: [usize; 4]| f(shape).within(-1.6, 1.6);
        use GridPadding::*;
        s.case("linear", sample(ResizeMode::Linear, Zeros, false), [f([2, 3, 4, 3]), grid([2, 2, 3, 2])]);
        s.case("border", sample(ResizeMode::Linear, Border, true), [f([1, 2, 3, 3]), grid([1, 2, 2, 2])]);
        s.case("reflected", sample(ResizeMode::Linear, Reflection, false), [f([1, 1, 3, 4]), grid([1, 3, 1, 2]).within(-3.0, 3.0)]);
        s.case("nearest", sample(ResizeMode::Nearest, Reflection, true), [f([1, 2, 3, 3]), grid([1, 2, 2, 2])]);
        s.case("cubic", sample(ResizeMode::Cubic, Border, false), [f([1, 2, 4, 3]), grid([1, 2, 2, 2])]);
        s.case("volume", sample(ResizeMode::Linear, Zeros, true), [f([1, 2, 2, 3, 2]), f([1, 1, 2, 2, 3]).within(-1.2, 1.2)]);
        s.case("line", sample(ResizeMode::Cubic, Zeros, false), [f([2, 1, 4]), f([2, 3, 1]).within(-1.2, 1.2)]);
        s.rough("far", sample(ResizeMode::Linear, Zeros, false), [f([1, 1, 2, 2]), f([1, 1, 2, 2]).values(&[1e30, -1e30, 1.0, -1.0])]);
        s.case("nowhere", sample(ResizeMode::Linear, Zeros, false), [f([1, 1, 2, 2]), f([1, 0, 2, 2])]);
    };

    /// The grid of an affine transformation, for `grid_sample`: place `(x, y, .., 1)` of the result, from −1 to 1 along each
    /// axis of the sizes, multiplied by the matrix.
    ///
    /// theta is `[n, k, k + 1]` for k sizes; the result is `[n, sizes.., k]`. The innermost axis comes first in a place. −1
    /// and 1 are the outer edges of the first and last pixel, or with `align_corners` their centres.
    affine_grid: AffineGrid(theta: Float) { sizes: Dims, align_corners: bool = false } -> grid;
    constraints = ["theta is [n, k, k + 1] for k sizes"];
    infer = |c, a| {
        let k = a.sizes.len() as i64;
        c.rank(1, 0, 3)?;
        c.expect_dim(1, 0, 1, &Dim::constant(k))?;
        c.expect_dim(1, 0, 2, &Dim::constant(k + 1))?;
        let n = c.dim(0, 0)?.clone();
        let shape: Shape = std::iter::once(n).chain(a.sizes.iter().cloned()).chain([Dim::constant(k)]).collect();
        Ok(vec![c.ty(0)?.with_shape(shape)])
    };
    body = |c, a| {
        let (theta, axes) = (c.x(0).wide(), a.sizes.len());
        let n = theta.dim(0);
        // A column of the matrix, for every place.
        let column = |k: usize| {
            let ones = std::iter::repeat_n(Dim::constant(1), axes);
            let shape = std::iter::once(n.clone()).chain(ones).chain([Dim::constant(axes as i64)]);
            theta.narrow(2, k as i64, 1).reshape(shape.collect::<Shape>())
        };
        let mut grid = column(axes);
        for (k, d) in a.sizes.iter().rev().enumerate() {
            let i = c.g.iota([d.clone()], 0, theta.dtype());
            let size = i.size_scalar(d);
            let place = match a.align_corners {
                true => size.equal(1.0).select(i.scalar(0.0), i * 2.0 / (size - 1.0).maximum(1.0) - 1.0),
                false => (i * 2.0 + 1.0) / size - 1.0,
            };
            let behind = std::iter::repeat_n(Dim::constant(1), k + 1);
            let place = place.reshape(std::iter::once(d.clone()).chain(behind).collect::<Shape>());
            grid = grid + column(k) * place;
        }
        let shape: Shape = std::iter::once(n).chain(a.sizes.iter().cloned()).chain([Dim::constant(axes as i64)]).collect();
        Ok(vec![if grid.shape() == shape { grid } else { grid.broadcast(shape) }.to(c.x(0).dtype())])
    };
    onnx = [rule("AffineGrid", 20, |c| {
        let sizes = c.dims(1)?.into_iter().skip(2).collect::<Vec<_>>();
        Ok(vec![c.x(0)?.affine_grid(sizes, c.flag("align_corners", false)?)])
    })];
    samples = |s| {
        s.case("plane", AffineGrid { sizes: [3, 2].into(), align_corners: false }, [f([2, 2, 3])]);
        s.case("corners", AffineGrid { sizes: [1, 3].into(), align_corners: true }, [f([1, 2, 3])]);
        s.case("volume", AffineGrid { sizes: [2, 2, 3].into(), align_corners: false }, [f([1, 3, 4])]);
        s.case("nothing", AffineGrid { sizes: [0, 2].into(), align_corners: false }, [f([1, 2, 3])]);
    };
}

fn onnx_grid_sample<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let [x, grid] = c.xs()?;
    let mode = match c.text("mode", "linear")? {
        "linear" | "bilinear" => ResizeMode::Linear,
        "nearest" => ResizeMode::Nearest,
        "cubic" | "bicubic" => ResizeMode::Cubic,
        other => return Err(Error::new(Code::Attribute, format!("mode is {other}"))),
    };
    let padding = match c.text("padding_mode", "zeros")? {
        "zeros" => GridPadding::Zeros,
        "border" => GridPadding::Border,
        "reflection" => GridPadding::Reflection,
        other => return Err(Error::new(Code::Attribute, format!("padding_mode is {other}"))),
    };
    let align_corners = c.flag("align_corners", false)?;
    // Integers as floats that hold them; blends of them are cut toward zero as casts do.
    let float = if x.dtype().is_float() { x.dtype() } else { DType::F64 };
    Ok(vec![x.to(float).grid_sample(grid.to(float), mode, padding, align_corners).to(x.dtype())])
}
