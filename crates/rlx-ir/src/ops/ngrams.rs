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
    let mode = c.text("mode", "")?;
    let weights = c.floats("weights")?.unwrap_or_default();
    let mut columns = columns.into_iter().enumerate();
    let mut sum: Option<Var<'g>> = None;
    for (k, n) in (0..starts.len()).zip(1usize..) {
        let own = place(k).zip(place(k + 1)).and_then(|(from, to)| pool.get(from..to));
        let own = own.ok_or_else(|| Error::new(Code::Attribute, "ngram_counts does not fit pool_int64s"))?;
        // Of two that are the same, the last counts. Each has its number in the pool, and its column.
        let grams: BTreeMap<&[i64], (usize, i64)> = own.chunks_exact(n).zip(columns.by_ref()).collect();
        if grams.is_empty() || !(least..=most).contains(&(n as i64)) {
            continue;
        }
        let flat: Vec<i64> = grams.keys().flat_map(|g| g.iter().copied()).collect();
        let columns: Vec<i64> = grams.values().map(|g| g.1).collect();
        let weight: Vec<f32> =
            grams.values().map(|g| weights.get(g.0).map_or(1.0, |w| *w as f32)).collect();
        let grams = c.g.constant(Tensor::new(&[columns.len(), n], &flat)?);
        let found = x.count_ngrams(grams, skips).to(DType::F32);
        let weight = c.g.constant(Tensor::new(&[weight.len()], &weight)?);
        let found = match mode {
            "TF" => found,
            "IDF" => found.minimum(1.0) * weight,
            "TFIDF" => found * weight,
            other => return Err(Error::new(Code::Attribute, format!("mode is {other:?}"))),
        };
        let to = sum.unwrap_or_else(|| {
            let shape = x.shape().into_iter().rev().skip(1).rev().chain([Dim::constant(size)]);
            c.g.zeros(DType::F32, &shape.collect::<Shape>())
        });
        let columns = c.g.constant(Tensor::new(&[columns.len()], &columns)?);
        sum = Some(to.scatter(columns, found, -1, crate::ops::scatter::ScatterMode::Add));
    }
    Ok(vec![sum.ok_or_else(|| c.cannot("n-grams of none of the lengths"))?])
}
