//! How far a result is from what the oracle says.

use rlx::oracle::Arr;
use rlx::{DType, Tensor};

/// The errors of a result. An element's error is measured against itself or, where terms cancel, against a tenth of the
/// largest element.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Errors {
    /// The largest relative error; infinite where exactness is due and not there.
    pub(crate) relative: f64,
    /// The largest absolute error.
    pub(crate) absolute: f64,
    /// The element of the largest relative error: its place, what it should be, what it is.
    pub(crate) worst: Option<(usize, f64, f64)>,
    /// The cosine of the angle between both, as vectors.
    pub(crate) cosine: f64,
}

/// Compares a result with what the oracle says.
pub(crate) fn errors(want: &Arr, got: &Tensor) -> rlx::Result<Errors> {
    errors_beside(want, got, 0.0)
}

/// The same where terms of that size were added up, against which the sum may be small.
pub(crate) fn errors_beside(want: &Arr, got: &Tensor, terms: f64) -> rlx::Result<Errors> {
    let got = Arr::from_tensor(got)?;
    let dtype = got.dtype();
    let (a, b) = (want.f64s(), got.f64s());
    let mut out = Errors { relative: 0.0, absolute: 0.0, worst: None, cosine: 1.0 };
    if want.shape() != got.shape() || want.dtype() != dtype {
        return Ok(Errors { relative: f64::INFINITY, absolute: f64::INFINITY, ..out });
    }
    let scale = a.iter().filter(|x| x.is_finite()).fold(0f64, |m, x| m.max(x.abs()));
    let (mut dot, mut aa, mut bb) = (0.0, 0.0, 0.0);
    for (i, (x, y)) in a.iter().zip(&b).enumerate() {
        // What the dtype cannot hold, it rounds.
        let x = if held(dtype, *x).is_finite() { *x } else { held(dtype, *x) };
        let same = x == *y || (x.is_nan() && y.is_nan());
        let (relative, absolute) = match (same, dtype.is_float() && x.is_finite() && y.is_finite()) {
            (true, _) => (0.0, 0.0),
            (false, true) => {
                let off = (x - y).abs();
                (
                    (off - tiny(dtype)).max(0.0) / x.abs().max(0.1 * scale).max(terms).max(f64::MIN_POSITIVE),
                    off,
                )
            }
            (false, false) => (f64::INFINITY, f64::INFINITY),
        };
        if relative > out.relative {
            (out.relative, out.worst) = (relative, Some((i, x, *y)));
        }
        out.absolute = out.absolute.max(absolute);
        if x.is_finite() && y.is_finite() {
            (dot, aa, bb) = (dot + x * y, aa + x * x, bb + y * y);
        }
    }
    if aa > 0.0 && bb > 0.0 {
        out.cosine = dot / (aa.sqrt() * bb.sqrt());
    }
    Ok(out)
}

fn held(dtype: DType, x: f64) -> f64 {
    if dtype.is_float() { dtype.round_f64(x) } else { x }
}

/// What is smaller than this is as good as 0.
fn tiny(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-300,
        DType::F16 => 6e-8,
        _ => 1e-37,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(want: &[f32], got: &[f32]) -> Errors {
        let t = |v: &[f32]| Tensor::new(&[v.len()], v).unwrap();
        errors(&Arr::from_tensor(&t(want)).unwrap(), &t(got)).unwrap()
    }

    #[test]
    fn errors_are_measured() {
        let e = of(&[1.0, 2.0, 0.0], &[1.0, 2.5, 0.0]);
        assert_eq!((e.relative, e.absolute, e.worst), (0.25, 0.5, Some((1, 2.0, 2.5))));
        assert_eq!(of(&[f32::NAN, f32::INFINITY], &[f32::NAN, f32::INFINITY]).relative, 0.0);
        assert_eq!(of(&[f32::NAN], &[1.0]).relative, f64::INFINITY);
        assert_eq!(of(&[0.0, 10.0], &[0.5, 10.0]).relative, 0.5);
        assert_eq!(of(&[1.0], &[1.0, 1.0]).relative, f64::INFINITY);
        assert_eq!(of(&[], &[]).relative, 0.0);
    }
}
