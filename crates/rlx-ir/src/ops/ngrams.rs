//! Counting short sequences within long ones.

use crate::onnx::Call;
use crate::prelude::*;
use crate::tensor::Tensor;
use std::collections::BTreeMap;

ops! {
    /// How often each n-gram occurs in a sequence. x is `[.., s]`, grams `[g, n]`; the result is `[.., g]`. The elements of an
    /// occurrence stand side by side, or with `skips` up to that many places apart, all at the same distance.
    count_ngrams: CountNgrams(x: Index, grams: Index) { skips: i64 = 0 } -> counts;
    constraints = ["x has an axis", "grams is [g, n] with a constant n >= 1", "skips is from 0 to 64"];
    infer = |c, a| {
        c.rank_at_least(1, 0, 1)?;
        c.rank(2, 1, 2)?;
        if c.dim(1, 1)?.as_const().is_none_or(|n| n < 1) {
            return Err(c.fail(Code::Dim, 2, format!("n is {}", c.dim(1, 1)?)).operand("grams").axis(1));
        }
        if !(0..=64).contains(&a.skips) {
            return Err(c.fail(Code::Attribute, 3, format!("{} skips", a.skips)));
        }
        let mut shape = c.ty(0)?.shape.clone();
        shape.pop();
        shape.push(c.dim(1, 0)?.clone());
        Ok(vec![Type::new(DType::I64, shape)])
    };
    body = |c, a| {
        let [x, grams] = c.xs().map(|x| x.to(DType::I64));
        let (s, n) = (x.dim(-1), grams.dim(1).as_const().unwrap_or(0));
        let place = c.g.iota([s.clone(), 1.into()], 0, DType::I64);
        let zeros = |last: Dim| (1..x.rank()).map(|_| Dim::constant(0)).chain([last]).collect::<Vec<_>>();
        let mut counts: Option<Var<'_>> = None;
        // Of one element there is no distance to another.
        for distance in 1..=if n == 1 { 1 } else { a.skips + 1 } {
            // [.., s, g]: whether the n-gram begins here.
            let mut here = place.less(place.size_scalar(&s) - (distance * (n - 1)) as f64);
            for k in 0..n {
                let ahead = x.pad(0.0, zeros(0.into()), zeros((distance * k).into()), vec![0; x.rank()]);
                let ahead = ahead.narrow(-1, distance * k, s.clone()).unsqueeze(-1);
                here = here.and(ahead.equal(grams.narrow(1, k, 1).squeeze(1)));
            }
            let found = here.to(DType::I64).sum(vec![-2], false);
            counts = Some(counts.map_or(found, |c| c + found));
        }
        Ok(counts.into_iter().collect())
    };
    onnx = [rule("TfIdfVectorizer", 9, onnx_tf_idf)];
    samples = |s| {
        s.case("pairs", CountNgrams { skips: 0 }, [int([2, 9], 0, 3), int([4, 2], 0, 3)]);
        s.case("apart", CountNgrams { skips: 2 }, [int([12], 0, 3), int([3, 3], 0, 3)]);
        s.case("single", CountNgrams { skips: 3 }, [int([3, 5], 0, 3), int([3, 1], 0, 3)]);
        s.case("too_short", CountNgrams { skips: 0 }, [int([2, 1], 0, 2), int([2, 2], 0, 2)]);
        s.case("nothing", CountNgrams { skips: 0 }, [int([0], 0, 2), int([2, 2], 0, 2)]);
    };
}

fn onnx_tf_idf<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    if !c.texts("pool_strings")?.is_empty() {
        return Err(c.cannot("n-grams of strings"));
    }
    let list = |name: &str| {
        c.ints(name)?.ok_or_else(|| Error::new(Code::Attribute, format!("attribute {name} is missing")))
    };
    let (pool, starts, columns) = (list("pool_int64s")?, list("ngram_counts")?, list("ngram_indexes")?);
    let (least, most) = (c.int_or("min_gram_length", 1)?, c.int_or("max_gram_length", 1)?);
    let skips = c.int_or("max_skip_count", 0)?;
    let size = columns.iter().max().map_or(0, |m| m.saturating_add(1));
    let x = c.x(0)?;
    let place = |k: usize| starts.get(k).map_or(Some(pool.len()), |s| usize::try_from(*s).ok());
    let mut columns = columns.into_iter();
    let mut counts: Option<Var<'g>> = None;
    for (k, n) in (0..starts.len()).zip(1usize..) {
        let own = place(k).zip(place(k + 1)).and_then(|(from, to)| pool.get(from..to));
        let own = own.ok_or_else(|| Error::new(Code::Attribute, "ngram_counts does not fit pool_int64s"))?;
        // Of two that are the same, the last counts.
        let grams: BTreeMap<&[i64], i64> = own.chunks_exact(n).zip(columns.by_ref()).collect();
        if grams.is_empty() || !(least..=most).contains(&(n as i64)) {
            continue;
        }
        let flat: Vec<i64> = grams.keys().flat_map(|g| g.iter().copied()).collect();
        let columns: Vec<i64> = grams.into_values().collect();
        let grams = c.g.constant(Tensor::new(&[columns.len(), n], &flat)?);
        let found = x.count_ngrams(grams, skips).to(DType::F32);
        let columns = c.g.constant(Tensor::new(&[columns.len()], &columns)?);
        let sum = counts.unwrap_or_else(|| {
            let shape: Shape = x.shape().into_iter().rev().skip(1).rev().chain([Dim::constant(size)]).collect();
            c.g.zeros(DType::F32, &shape)
        });
        counts = Some(sum.scatter(columns, found, -1, crate::ops::scatter::ScatterMode::Add));
    }
    let counts = counts.ok_or_else(|| c.cannot("n-grams of none of the lengths"))?;
    let weights = match c.floats("weights")?.filter(|w| !w.is_empty()) {
        None => c.g.scalar(DType::F32, 1.0),
        Some(w) => c.g.constant(Tensor::new(&[w.len()], &w.iter().map(|w| *w as f32).collect::<Vec<_>>())?),
    };
    Ok(vec![match c.text("mode", "")? {
        "TF" => counts,
        "IDF" => counts.greater(0.0).select(weights, counts.scalar(0.0)),
        "TFIDF" => counts * weights,
        other => return Err(Error::new(Code::Attribute, format!("mode is {other:?}"))),
    }])
}
