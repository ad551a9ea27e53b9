//! Picking tokens.

use crate::ops::random::onnx_seed;
use crate::prelude::*;
use crate::tensor::Tensor;

ops! {
    /// An index of the last axis of the logits, drawn with the probabilities `softmax(logits / temperature)`.
    ///
    /// A temperature of 0 takes the first largest logit. Else the candidates are narrowed down in this order: `top_k` keeps
    /// the k largest (0: all); `top_p` keeps, from the largest on, as many as are needed to reach a share of p of what is
    /// left, at least one; `min_p` keeps those with at least p times the probability of the largest. Equal logits count as
    /// sorted by index. Among the candidates the largest of `logits / temperature + gumbel(seed){shape, stream}` wins, so
    /// the same seed gives the same index, and narrowing down changes it only if it is excluded. A logit of −∞ is never
    /// drawn unless all are. A seed `[.., 2]` with leading axes has one seed for each index of the leading axes of logits.
    sample: Sample(logits: Float, seed: Index)
        with { temperature: f64 = 1.0, top_k: i64 = 0, top_p: f64 = 1.0, min_p: f64 = 0.0, stream: i64 = 0 } -> ids;
    constraints = ["logits has an axis, which is not empty", "the seed is u32[.., 2]",
        "the leading axes of the seed are the first of logits", "temperature is 0, or finite and at least 1e-6", "top_k >= 0",
        "0 < top_p <= 1, 0 <= min_p <= 1"];
    infer = |c, a| {
        c.rank_at_least(1, 0, 1)?;
        let logits = c.ty(0)?;
        let v = c.dim(0, logits.rank() - 1)?;
        if !c.at_least(1, v, 1) {
            return Err(c.fail(Code::Dim, 1, "nothing to draw from").operand("logits").axis(logits.rank() - 1));
        }
        c.rank_at_least(2, 1, 1)?;
        let seed = c.ty(1)?;
        let lead = seed.rank() - 1;
        c.expect_dim(2, 1, lead, &Dim::constant(2))?;
        if seed.dtype != DType::U32 {
            return Err(c.fail(Code::DType, 2, format!("the seed is {}", seed.dtype)).operand("seed"));
        }
        c.rank_at_least(3, 0, lead + 1)?;
        (0..lead).try_for_each(|i| c.same_dim(3, (0, i), (1, i)).map(|_| ()))?;
        if !a.temperature.is_finite() || (a.temperature != 0.0 && a.temperature < 1e-6) {
            return Err(c.fail(Code::Attribute, 4, format!("temperature {}", a.temperature)));
        }
        if a.top_k < 0 {
            return Err(c.fail(Code::Attribute, 5, format!("top_k {}", a.top_k)));
        }
        if !(a.top_p > 0.0 && a.top_p <= 1.0 && (0.0..=1.0).contains(&a.min_p)) {
            return Err(c.fail(Code::Attribute, 6, format!("top_p {}, min_p {}", a.top_p, a.min_p)));
        }
        Ok(vec![Type::new(DType::I32, logits.leading(1))])
    };
    body = |c, a| {
        let (logits, seed) = (c.x(0), c.x(1));
        if a.temperature == 0.0 {
            return Ok(vec![logits.argmax(-1, false, false).cast(DType::I32)]);
        }
        let logits = logits.to(logits.dtype().wide());
        // Against the largest, so that a low temperature overflows nothing but the hopeless.
        let logits = (logits - logits.max(vec![-1], true)) / a.temperature;
        let tail: Shape = logits.shape().into_iter().skip(seed.rank() - 1).collect();
        let noise = seed.gumbel(tail, logits.dtype(), a.stream);
        if a.top_k == 0 && a.top_p == 1.0 && a.min_p == 0.0 {
            return Ok(vec![(logits + noise).argmax(-1, false, false).cast(DType::I32)]);
        }
        let [sorted, index] = logits.sort(-1, true);
        let never = sorted.full_like(f64::NEG_INFINITY);
        let mut kept = sorted;
        if a.top_k > 0 {
            let rank = c.g.iota(vec![sorted.dim(-1)], 0, DType::I64);
            kept = rank.less(c.g.constant(Tensor::scalar(a.top_k))).select(kept, never);
        }
        if a.top_p < 1.0 {
            let before = kept.softmax(-1).cumsum(-1, true, false);
            kept = before.less(a.top_p).select(kept, never);
        }
        if a.min_p > 0.0 {
            let floor = sorted.narrow(-1, 0, 1) + a.min_p.ln();
            kept = kept.less(floor).select(never, kept);
        }
        let place = (kept + noise.gather_elements(index, -1)).argmax(-1, true, false);
        Ok(vec![index.gather_elements(place, -1).squeeze(-1).cast(DType::I32)])
    };
    vjp = |_, _| Ok(vec![None, None].into());
    vmap = |c, a| Ok(vec![c.bx(0).sample(c.bx(1), a.clone())]);
    onnx = [rule("Multinomial", 7, |c| {
        let logits = c.x(0)?;
        let (rows, classes) = (logits.dim(0), logits.dim(1));
        let draws = Dim::constant(c.int_or("sample_size", 1)?);
        let dtype = c.dtype("dtype")?.unwrap_or(DType::I32);
        let (seed, stream) = onnx_seed(c, c.float("seed")?)?;
        let repeated = logits.unsqueeze(1).broadcast([rows, draws, classes]);
        Ok(vec![repeated.sample(seed, Sample { stream, ..Sample::default() }).to(dtype)])
    })];
    samples = |s| {
        let with = Sample::default;
        let seed = || int([2], 0, 1 << 31).dtype(DType::U32);
        let logits = || f([2, 3, 7]).distinct(-3.0, 3.0);
        s.rough("greedy", Sample { temperature: 0.0, ..with() }, [logits(), seed()]);
        s.rough("plain", Sample { temperature: 0.7, stream: 3, ..with() }, [logits(), seed()]);
        s.rough("top_k", Sample { top_k: 2, ..with() }, [logits(), seed()]);
        s.rough("top_p", Sample { top_p: 0.6, ..with() }, [logits(), seed()]);
        s.rough("min_p", Sample { min_p: 0.3, temperature: 1.5, ..with() }, [logits(), seed()]);
        s.rough("all", Sample { temperature: 0.9, top_k: 5, top_p: 0.9, min_p: 0.05, stream: 1 },
            [logits(), int([2, 2], 0, 99).dtype(DType::U32)]);
        s.rough("vector", with(), [f([5]), seed()]);
        s.rough("empty", with(), [f([0, 5]), seed()]);
    };
}
