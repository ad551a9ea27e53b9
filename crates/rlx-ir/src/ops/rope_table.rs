//! Tables of angles and slopes that attention takes: made from attributes alone.

use crate::prelude::*;
use crate::tensor::Tensor;
use std::f64::consts::{LN_2, TAU};

/// The most pairs or heads a table is made for; keeps attributes from outside from asking for absurd
/// constants.
const MAX_COLUMNS: i64 = 1 << 15;

attr_enum! {
    /// How the frequencies of rope are changed, so that a model reads longer texts than it was trained on.
    RopeScaling {
        /// Not at all.
        None = "none",
        /// Every frequency over `factor`.
        Linear = "linear",
        /// The base times factor^(n_rot / (n_rot − 2)): high frequencies stay, the lowest is divided by
        /// `factor`.
        Ntk = "ntk",
        /// High frequencies stay, low ones are divided, in between a ramp over the columns; see `rope_table`.
        Yarn = "yarn",
        /// High frequencies stay, low ones are divided, in between a ramp over the wavelengths; see
        /// `rope_table`.
        Llama3 = "llama3",
    }
}

/// The angle per position of every pair, and the factor on cos and sin.
fn frequencies(a: &RopeTable) -> (Vec<f64>, f64) {
    let n = a.n_rot as f64;
    let base = match a.scaling {
        RopeScaling::Ntk if a.n_rot > 2 => a.base * a.factor.powf(n / (n - 2.0)),
        _ => a.base,
    };
    let original = a.original as f64;
    let plain = (0..a.n_rot / 2).map(|j| base.powf(-2.0 * j as f64 / n));
    let scaled: Vec<f64> = match a.scaling {
        RopeScaling::None | RopeScaling::Ntk => plain.collect(),
        RopeScaling::Linear => plain.map(|f| f / a.factor).collect(),
        RopeScaling::Yarn => {
            // The column whose wave turns `turns` times within the original length.
            let column = |turns: f64| n * (original / (turns * TAU)).ln() / (2.0 * base.ln());
            let (low, high) = (column(a.beta_fast), column(a.beta_slow));
            let (low, high) = if a.truncate { (low.floor(), high.ceil()) } else { (low, high) };
            let (low, high) = (low.max(0.0), high.min(n - 1.0));
            let width = if high == low { 0.001 } else { high - low };
            let divided = |j: usize| ((j as f64 - low) / width).clamp(0.0, 1.0);
            plain.enumerate().map(|(j, f)| f / a.factor * divided(j) + f * (1.0 - divided(j))).collect()
        }
        RopeScaling::Llama3 => plain
            .map(|f| {
                let turns = original * f / TAU;
                let kept = ((turns - a.low_turns) / (a.high_turns - a.low_turns)).clamp(0.0, 1.0);
                f / a.factor * (1.0 - kept) + f * kept
            })
            .collect(),
    };
    let scaled = match a.factors.is_empty() {
        true => scaled,
        false => scaled.iter().zip(&a.factors).map(|(f, by)| f / by).collect(),
    };
    let magnitude = a.magnitude.unwrap_or(match a.scaling {
        RopeScaling::Yarn if a.factor > 1.0 => 0.1 * a.factor.ln() + 1.0,
        _ => 1.0,
    });
    (scaled, magnitude)
}

/// Positions below this times a number of 8 bits is exact in f32, which has 24.
const PART: f64 = 65536.0;

/// The nearest number of 8 significant bits.
fn eight_bits(x: f64) -> f64 {
    let unit = 2f64.powi(x.abs().log2().floor().max(-100.0) as i32 - 7);
    (x / unit).round() * unit
}

/// The constraint on a count that becomes a table's width.
fn check_columns(c: &Infer<'_>, n: usize, columns: i64) -> Result<()> {
    if (0..=MAX_COLUMNS).contains(&columns) {
        return Ok(());
    }
    Err(c.fail(Code::Attribute, n, format!("{columns} columns; the limit is {MAX_COLUMNS}")))
}

fn check_float(c: &Infer<'_>, n: usize, dtype: DType) -> Result<()> {
    if dtype.is_float() {
        return Ok(());
    }
    Err(c.fail(Code::DType, n, format!("{dtype} is no float")))
}

/// A row of numbers in the graph.
fn row<'g>(g: &'g Graph, dtype: DType, v: &[f64]) -> Result<Var<'g>> {
    let t = Tensor::from_f64s(dtype, &[v.len()], v);
    Ok(g.constant(t.ok_or_else(|| Error::new(Code::DType, format!("{dtype} is no float")))?))
}

ops! {
    /// The tables of `rope`: `cos(p · f[j]) · m` and `sin(p · f[j]) · m` for every position p (rows) and pair j
    /// (columns), with `f[j] = base^(−2j / n_rot)`, changed by `scaling`:
    ///
    /// - `linear`: f / factor.
    /// - `ntk`: the base is base · factor^(n_rot / (n_rot − 2)).
    /// - `yarn`: with column(t) = n_rot · ln(original / (2π · t)) / (2 · ln base), f up to column(beta_fast),
    ///   f / factor from column(beta_slow) on, a linear ramp between them; `truncate` rounds the two outwards.
    /// - `llama3`: with t = original · f / 2π, f / factor where t <= low_turns, f where t >= high_turns, a
    ///   linear ramp in t between them.
    ///
    /// `factors`, if there are any, then divide the frequencies one by one. m is `magnitude`; left out it is 1,
    /// or 0.1 · ln(factor) + 1 for `yarn` with factor > 1.
    rope_table: RopeTable() with {
        positions: Dim = Dim::constant(2048),
        n_rot: i64 = 64,
        base: f64 = 10000.0,
        scaling: RopeScaling = RopeScaling::None,
        factor: f64 = 1.0,
        original: i64 = 8192,
        beta_fast: f64 = 32.0,
        beta_slow: f64 = 1.0,
        truncate: bool = true,
        low_turns: f64 = 1.0,
        high_turns: f64 = 4.0,
        factors: Vec<f64> = vec![],
        magnitude: Option<f64> = None,
        dtype: DType = DType::F32,
    } -> (cos, sin);
    constraints = [
        "n_rot is even and 0 <= n_rot / 2 <= 32768",
        "base, factor, original, beta_fast, beta_slow and all factors are finite and more than 0",
        "low_turns < high_turns, both finite",
        "there are no factors or n_rot / 2 of them",
        "dtype is a float",
        "magnitude is finite",
        "for yarn, base is not 1",
    ];
    infer = |c, a| {
        if a.n_rot % 2 != 0 {
            return Err(c.fail(Code::Attribute, 1, format!("n_rot is {}", a.n_rot)));
        }
        let pairs = a.n_rot / 2;
        check_columns(c, 1, pairs)?;
        let numbers = [a.base, a.factor, a.original as f64, a.beta_fast, a.beta_slow];
        if let Some(x) = numbers.iter().chain(&a.factors).find(|x| !x.is_finite() || **x <= 0.0) {
            return Err(c.fail(Code::Attribute, 2, format!("{x} is among them")));
        }
        if !a.low_turns.is_finite() || !a.high_turns.is_finite() || a.low_turns >= a.high_turns {
            return Err(c.fail(Code::Attribute, 3, format!("{} and {}", a.low_turns, a.high_turns)));
        }
        if !a.factors.is_empty() && a.factors.len() as i64 != pairs {
            return Err(c.fail(Code::Attribute, 4, format!("{} factors for {pairs} pairs", a.factors.len())));
        }
        check_float(c, 5, a.dtype)?;
        if a.magnitude.is_some_and(|m| !m.is_finite()) {
            return Err(c.fail(Code::Attribute, 6, "magnitude is not finite"));
        }
        if a.scaling == RopeScaling::Yarn && a.base == 1.0 {
            return Err(c.fail(Code::Attribute, 7, "base is 1"));
        }
        let table = Type::new(a.dtype, vec![a.positions.clone(), pairs.into()]);
        Ok(vec![table.clone(), table])
    };
    body = |c, a| {
        let dtype = a.dtype.wide();
        let (f, magnitude) = frequencies(a);
        // Far positions turn many times, and f32 would lose the angle. So positions are split into parts of 16 bits, and
        // the turns per position into two parts of 8 bits and a rest: products of parts are exact, and whole turns drop
        // out of them without loss.
        let turns: Vec<f64> = f.iter().map(|f| f / TAU).collect();
        let coarse: Vec<f64> = turns.iter().map(|t| eight_bits(*t)).collect();
        let fine: Vec<f64> = turns.iter().zip(&coarse).map(|(t, c)| eight_bits(t - c)).collect();
        let rest: Vec<f64> = turns.iter().zip(coarse.iter().zip(&fine)).map(|(t, (c, f))| t - c - f).collect();
        let p = c.g.iota(vec![a.positions.clone(), 1.into()], 0, dtype);
        let far = a.positions.upper().is_none_or(|n| n > PART as i64);
        let low = if far { p.rem(PART) } else { p };
        let mut turned = p * row(c.g, dtype, &rest)?;
        for part in [&fine, &coarse] {
            turned = turned + (low * row(c.g, dtype, part)?).rem(1.0);
            if far {
                let part: Vec<f64> = part.iter().map(|t| t * PART).collect();
                turned = turned + ((p - low) / PART * row(c.g, dtype, &part)?).rem(1.0);
            }
        }
        let angle = turned.rem(1.0) * TAU;
        Ok([angle.cos(), angle.sin()].map(|t| (t * magnitude).to(a.dtype)).into())
    };
    samples = |s| {
        let a = RopeTable { positions: 5.into(), n_rot: 6, ..RopeTable::default() };
        s.rough("plain", a.clone(), []);
        s.rough("base", RopeTable { base: 5e5, dtype: DType::F64, ..a.clone() }, []);
        s.rough("linear", RopeTable { scaling: RopeScaling::Linear, factor: 4.0, ..a.clone() }, []);
        s.rough("ntk", RopeTable { scaling: RopeScaling::Ntk, factor: 4.0, ..a.clone() }, []);
        let yarn = RopeTable { scaling: RopeScaling::Yarn, factor: 4.0, original: 64, n_rot: 16, ..a.clone() };
        s.rough("yarn", yarn.clone(), []);
        s.rough("yarn_exact", RopeTable { truncate: false, magnitude: Some(1.0), beta_fast: 8.0, ..yarn }, []);
        let llama = RopeTable { scaling: RopeScaling::Llama3, factor: 8.0, original: 64, n_rot: 16, ..a.clone() };
        s.rough("llama3", llama, []);
        s.rough("factors", RopeTable { factors: vec![1.0, 2.0, 4.0], magnitude: Some(0.5), ..a.clone() }, []);
        s.rough("half", RopeTable { dtype: DType::F16, ..a.clone() }, []);
        s.rough("no_rows", RopeTable { positions: 0.into(), ..a.clone() }, []);
        s.rough("no_columns", RopeTable { n_rot: 0, ..a }, []);
    };
    tolerance = tol(4e-6, 2e-3, 2e-2);

    /// The slopes of ALiBi, one per head: 2^(−8 · (i + 1) / n) for a number of heads n that is a power of
    /// two. Otherwise those of the next lower power of two m, followed by every second one of 2m, from the
    /// first on.
    alibi_slopes: AlibiSlopes() { heads: i64, dtype: DType = DType::F32 } -> slopes;
    constraints = ["0 <= heads <= 32768", "dtype is a float"];
    infer = |c, a| {
        check_columns(c, 1, a.heads)?;
        check_float(c, 2, a.dtype)?;
        Ok(vec![Type::new(a.dtype, vec![a.heads.into()])])
    };
    body = |c, a| {
        let whole = if a.heads > 0 { 1i64 << a.heads.ilog2() } else { 1 };
        let slope = |i: i64, n: i64| (-8.0 * LN_2 * (i + 1) as f64 / n as f64).exp();
        let extra = (whole..a.heads).map(|i| slope(2 * (i - whole), 2 * whole));
        let slopes: Vec<f64> = (0..whole.min(a.heads)).map(|i| slope(i, whole)).chain(extra).collect();
        Ok(vec![row(c.g, a.dtype, &slopes)?])
    };
    samples = |s| {
        s.rough("eight", AlibiSlopes { heads: 8, dtype: DType::F32 }, []);
        s.rough("six", AlibiSlopes { heads: 6, dtype: DType::F64 }, []);
        s.rough("one", AlibiSlopes { heads: 1, dtype: DType::F32 }, []);
        s.rough("none", AlibiSlopes { heads: 0, dtype: DType::F32 }, []);
    };
}
