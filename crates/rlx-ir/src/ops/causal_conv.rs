//! The short causal convolution of state-space models.

use crate::prelude::*;

/// Up to so many taps the sum is written out; beyond, the windows are gathered.
const UNROLLED: i64 = 16;

ops! {
    /// A convolution along the sequence that looks only back, each channel with weights of its own.
    ///
    /// `y[t] = Σ_j w[j] · x[t − (k−1) + j] (+ bias)`, then silu if `silu` is set: the last weight meets the current element.
    /// x is `[b, s, c]`, w `[c, k]`, bias `[c]`. What stands before the sequence is `state` `[b, k−1, c]`, or zeros; the
    /// second result is the last k−1 elements of state and x, so convolving a sequence in pieces, each with the state that
    /// the one before left, gives the same as convolving it at once. Sums are taken in f32 (f64 for f64).
    causal_conv1d: CausalConv1d(x: Float, w: Float, bias: opt Float, state: opt Float) { silu: bool = false } -> (y, last_state);
    constraints = ["x is [b, s, c]", "w is [c, k] with k >= 1", "bias is [c]", "state is [b, k-1, c]"];
    infer = |c, _| {
        c.rank(1, 0, 3)?;
        c.rank(2, 1, 2)?;
        let x = c.ty(0)?;
        let (b, channels, k) = (c.dim(0, 0)?, c.dim(0, 2)?, c.dim(1, 1)?);
        c.expect_dim(2, 1, 0, channels)?;
        if k.lower().is_none_or(|k| k < 1) {
            return Err(c.fail(Code::Dim, 2, format!("w has {k} taps")).operand("w").axis(1));
        }
        if c.opt(2).is_some() {
            c.expect_shape(3, 2, std::slice::from_ref(channels))?;
        }
        let state = vec![b.clone(), k - 1, channels.clone()];
        if c.opt(3).is_some() {
            c.expect_shape(4, 3, &state)?;
        }
        Ok(vec![x.clone(), x.with_shape(state)])
    };
    body = |c, a| {
        let (x, w) = (c.x(0), c.x(1));
        let (s, k, dtype) = (x.dim(1), w.dim(1), x.dtype().wide());
        let past = c.opt(3).unwrap_or_else(|| c.g.zeros(x.dtype(), &[x.dim(0), &k - 1, x.dim(2)]));
        let all = c.g.concat(&[past, x], 1);
        let last = all.narrow(1, s.clone(), &k - 1);
        let (all, w) = (all.to(dtype), w.to(dtype));
        let y = match k.as_const() {
            Some(taps) if taps <= UNROLLED => {
                let tap = |j: i64| all.narrow(1, j, s.clone()) * w.narrow(1, j, 1).squeeze(1);
                (1..taps).fold(tap(0), |y, j| y + tap(j))
            }
            _ => {
                let (time, ahead) = (c.g.iota(vec![s, Dim::constant(1)], 0, DType::I64), c.g.iota(vec![k], 0, DType::I64));
                (all.gather(time + ahead, 1) * w.t()).sum(vec![2], false)
            }
        };
        let y = c.opt(2).map_or(y, |b| y + b.to(dtype));
        Ok(vec![if a.silu { y.silu() } else { y }.to(x.dtype()), last])
    };
    onnx = [rule("CausalConvWithState", 27, onnx::attention::causal_conv)];
    tolerance = tol(4e-6, 4e-3, 3e-2);
    samples = |s| {
        let plain = || CausalConv1d { silu: false };
        s.case("plain", plain(), [f([2, 4, 2]), f([2, 3])]);
        s.case("all", CausalConv1d { silu: true }, [f([1, 5, 2]), f([2, 4]), f([2]), f([1, 3, 2])]);
        s.case_opt("token", plain(), [Some(f([2, 1, 1])), Some(f([1, 4])), None, Some(f([2, 3, 1]))]);
        s.case("one_tap", plain(), [f([1, 3, 2]), f([2, 1]), f([2])]);
        s.case("wide", plain(), [f([1, 3, 1]), f([1, 17])]);
        s.case("nothing", plain(), [f([1, 0, 2]), f([2, 3])]);
    };
}
