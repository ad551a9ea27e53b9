//! Pooling over the last axes.

use crate::ops::window::{WindowKind, spread};
use crate::prelude::*;

/// What both pools share, with an entry per pooled axis in every list.
pub(crate) struct Pool {
    kernel: Vec<i64>,
    stride: Vec<i64>,
    lo: Vec<i64>,
    hi: Vec<i64>,
    dilation: Vec<i64>,
    /// The padding at the end that makes `ceil_mode` out of the usual rounding down.
    pub hi_reached: Vec<i64>,
}

macro_rules! pool {
    ($a:expr) => {
        Pool::new(&$a.kernel, &$a.stride, [&$a.padding_lo, &$a.padding_hi], &$a.dilation, $a.ceil_mode)
    };
}

impl Pool {
    pub(crate) fn new(kernel: &[i64], stride: &[i64], [lo, hi]: [&[i64]; 2], dilation: &[i64], ceil_mode: bool) -> Pool {
        let n = kernel.len();
        let (stride, dilation) = (if stride.is_empty() { kernel } else { stride }, spread(dilation, n, 1));
        let (lo, hi) = (spread(lo, n, 0), spread(hi, n, 0));
        // Another window begins wherever one begins before the end of x (its padding at the start included)
        // and less than a stride short of the padded end.
        let reach = |(i, h): (usize, &i64)| {
            let of = |v: &[i64]| v.get(i).copied().unwrap_or(1);
            let span = of(kernel).saturating_sub(1).saturating_mul(of(&dilation));
            h.saturating_add(of(stride).saturating_sub(1)).min(span)
        };
        let hi_reached = if ceil_mode { hi.iter().enumerate().map(reach).collect() } else { hi.clone() };
        Pool { kernel: kernel.to_vec(), stride: stride.to_vec(), lo, hi, dilation, hi_reached }
    }

    /// The constraints of both pools, and the shape of the result.
    fn infer(&self, c: &Infer<'_>) -> Result<Vec<Type>> {
        use crate::ops::window::Windows;
        let (x, n) = (c.ty(0)?, self.kernel.len());
        if n == 0 {
            return Err(c.fail(Code::Attribute, 1, "kernel is empty"));
        }
        c.rank_at_least(1, 0, n)?;
        Windows::check_attrs(
            c,
            2,
            n,
            &[
                ("kernel", &self.kernel, 1),
                ("stride", &self.stride, 1),
                ("dilation", &self.dilation, 1),
                ("padding_lo", &self.lo, i64::MIN),
                ("padding_hi", &self.hi, i64::MIN),
            ],
        )?;
        for (i, k) in self.kernel.iter().enumerate() {
            let of = |v: &[i64]| v.get(i).copied().unwrap_or(0);
            let span = (k - 1).saturating_mul(of(&self.dilation));
            if !(0..=span).contains(&of(&self.lo)) || !(0..=span).contains(&of(&self.hi)) {
                let text = format!("padding of {} and {} around a kernel of {k}", of(&self.lo), of(&self.hi));
                return Err(c.fail(Code::Attribute, 3, text).operand("x").axis(x.rank() - n + i));
            }
        }
        let windows = Windows {
            kernel: self.kernel.iter().map(|k| Dim::constant(*k)).collect(),
            stride: self.stride.clone(),
            dilation: self.dilation.clone(),
            padding_lo: self.lo.clone(),
            padding_hi: self.hi_reached.clone(),
        };
        let first = x.rank() - n;
        let spatial = windows.outputs(c, 4, "x", first, x.shape.get(first..).unwrap_or_default())?;
        Ok(vec![x.with_shape(x.shape.iter().take(first).cloned().chain(spatial).collect::<Shape>())])
    }

    fn reduce<'g>(&self, x: Var<'g>, kind: WindowKind, lo: Vec<i64>, hi: Vec<i64>) -> Var<'g> {
        x.reduce_window(kind, self.kernel.clone(), self.stride.clone(), self.dilation.clone(), lo, hi)
    }
}

ops! {
    /// The largest element of each window over the last axes of x (one per entry of `kernel`), as `MaxPool`
    /// of ONNX and PyTorch. Padding never wins. An empty list stands for padding 0, dilation 1, and a stride
    /// of the kernel's size. `ceil_mode` adds a last window that reaches beyond the padded end, if it begins
    /// before the end of x. The gradient goes to the first of equal winners; NaN wins.
    max_pool: MaxPool(x: Num) with {
        kernel: Vec<i64> = vec![], stride: Vec<i64> = vec![], padding_lo: Vec<i64> = vec![],
        padding_hi: Vec<i64> = vec![], dilation: Vec<i64> = vec![], ceil_mode: bool = false
    } -> y;
    constraints = [
        "kernel has an entry, and x at least as many axes as kernel has entries",
        "the other lists are empty or as long as kernel; kernel, stride, dilation >= 1",
        "padding is not negative, and narrower than the kernel with its dilation",
        "a window fits into the padded input",
    ];
    infer = |c, a| pool!(a).infer(c);
    body = |c, a| {
        let p = pool!(a);
        Ok(vec![p.reduce(c.x(0), WindowKind::Max, p.lo.clone(), p.hi_reached.clone())])
    };
    vmap = |c, _| Ok(c.again(c.attrs.clone(), c.operands.clone()));
    onnx = [rule("MaxPool", 1, onnx::window::max_pool), rule("MaxUnpool", 9, onnx::window::max_unpool),
        rule("GlobalMaxPool", 1, onnx::window::global_max_pool)];
    samples = |s| {
        let d = |kernel: &[i64]| MaxPool { kernel: kernel.to_vec(), ..MaxPool::default() };
        let x = |shape: [usize; 4]| f(shape).distinct(-1.5, 1.5);
        s.case("plain", d(&[2, 2]), [x([1, 2, 4, 5])]);
        let padded = MaxPool { stride: vec![2, 1], padding_lo: vec![1, 0], padding_hi: vec![1, 1], ..d(&[3, 2]) };
        s.case("padded", padded, [x([1, 1, 5, 4])]);
        let ceil = MaxPool { stride: vec![2, 2], ceil_mode: true, ..d(&[3, 3]) };
        s.case("ceil", ceil, [x([1, 1, 6, 5])]);
        let ceil = MaxPool { padding_lo: vec![1], padding_hi: vec![1], ceil_mode: true, ..d(&[2]) };
        s.case("ceil_padded", ceil, [f([2, 5]).distinct(-1.0, 1.0)]);
        let dilated = MaxPool { stride: vec![1], dilation: vec![2], ..d(&[3]) };
        s.case("dilated", dilated, [f([2, 7]).distinct(-1.0, 1.0)]);
        s.rough("ties", d(&[2]), [f([6]).values(&[1.0])]);
        s.case("empty", d(&[2]), [f([0, 4])]);
    };

    /// The mean of each window over the last axes of x, as `AveragePool` of ONNX and PyTorch. Lists and
    /// `ceil_mode` are as for `max_pool`. Padding counts as elements of value 0 if `count_include_pad`, else
    /// not at all; what `ceil_mode` reaches beyond the padding never counts.
    avg_pool: AvgPool(x: Float) with {
        kernel: Vec<i64> = vec![], stride: Vec<i64> = vec![], padding_lo: Vec<i64> = vec![],
        padding_hi: Vec<i64> = vec![], dilation: Vec<i64> = vec![], ceil_mode: bool = false,
        count_include_pad: bool = true
    } -> y;
    constraints = [
        "kernel has an entry, and x at least as many axes as kernel has entries",
        "the other lists are empty or as long as kernel; kernel, stride, dilation >= 1",
        "padding is not negative, and narrower than the kernel with its dilation",
        "a window fits into the padded input",
    ];
    infer = |c, a| pool!(a).infer(c);
    body = |c, a| {
        let (x, p, dtype) = (c.x(0).wide(), pool!(a), c.x(0).dtype());
        let sum = p.reduce(x, WindowKind::Sum, p.lo.clone(), p.hi_reached.clone());
        let padded = p.lo.iter().chain(&p.hi).any(|n| *n != 0);
        if p.hi == p.hi_reached && (a.count_include_pad || !padded) {
            let area: Dim = p.kernel.iter().copied().product();
            return Ok(vec![(sum / x.size_scalar(&area)).to(dtype)]);
        }
        // How many elements count in each window: the same sums over ones.
        let spatial: Shape = x.shape().into_iter().skip(x.rank() - p.kernel.len()).collect();
        let (sizes, lo, hi) = if a.count_include_pad {
            let whole = spatial.iter().zip(p.lo.iter().zip(&p.hi)).map(|(d, (lo, hi))| d + *lo + *hi);
            let beyond = p.hi_reached.iter().zip(&p.hi).map(|(r, h)| r - h);
            (whole.collect(), vec![0; p.lo.len()], beyond.collect())
        } else {
            (spatial, p.lo.clone(), p.hi_reached.clone())
        };
        let count = p.reduce(c.g.full(x.dtype(), &sizes, 1.0), WindowKind::Sum, lo, hi);
        Ok(vec![(sum / count).to(dtype)])
    };
    vmap = |c, _| Ok(c.again(c.attrs.clone(), c.operands.clone()));
    onnx = [rule("AveragePool", 1, onnx::window::average_pool), rule("GlobalAveragePool", 1, onnx::window::global_average_pool),
        rule("LpPool", 1, onnx::window::lp_pool), rule("GlobalLpPool", 1, onnx::window::global_lp_pool)];
    samples = |s| {
        let d = |kernel: &[i64]| AvgPool { kernel: kernel.to_vec(), ..AvgPool::default() };
        s.case("plain", d(&[2, 2]), [f([1, 2, 4, 5])]);
        let padded = |count_include_pad| AvgPool {
            stride: vec![2, 1], padding_lo: vec![1, 0], padding_hi: vec![1, 1], count_include_pad, ..d(&[3, 2])
        };
        s.case("padded", padded(true), [f([1, 1, 5, 4])]);
        s.case("without_padding", padded(false), [f([1, 1, 5, 4])]);
        let ceil = |count_include_pad| AvgPool {
            stride: vec![2], padding_lo: vec![1], padding_hi: vec![1], ceil_mode: true, count_include_pad, ..d(&[3])
        };
        s.case("ceil", ceil(true), [f([2, 6])]);
        s.case("ceil_without_padding", ceil(false), [f([2, 6])]);
        s.case("empty", d(&[2]), [f([0, 4])]);
    };
    tolerance = tol(1e-5, 5e-3, 4e-2);
}
