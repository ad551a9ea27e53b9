//! Least-squares search for the scales of a group, for the formats that leave them to the writer.

/// The numbers that codes stand for, before the scale.
pub(super) struct Levels {
    /// The lowest and the highest level.
    pub(super) ends: [f32; 2],
    /// A typical distance between levels.
    pub(super) step: f32,
    pub(super) value: fn(u8) -> f32,
    /// The code of the nearest level.
    pub(super) nearest: fn(f32) -> u8,
}

/// Tenths of a step by which the search moves the level that the peak of a group lands on.
const NUDGES: std::ops::RangeInclusive<i32> = -9..=9;

/// The member of largest magnitude, with its sign.
pub(super) fn signed_peak(values: &[f32]) -> f32 {
    values.iter().fold(0.0f32, |peak, &x| if x.abs() > peak.abs() { x } else { peak })
}

/// The scale, of either sign, that brings scaled levels nearest to the values.
///
/// For given codes with levels v the best scale is Σxv / Σv², and it explains (Σxv)² / Σv² of Σx². The candidates
/// place the peak around either end of the levels.
pub(super) fn best_scale(values: &[f32], levels: &Levels) -> f32 {
    let peak = signed_peak(values);
    if peak == 0.0 {
        return 0.0;
    }
    let mut best = (0.0, 0.0);
    for end in levels.ends {
        for nudge in NUDGES {
            let per_unit = (end + 0.1 * nudge as f32 * levels.step) / peak;
            let (mut xv, mut vv) = (0.0f64, 0.0f64);
            for &x in values {
                let v = f64::from((levels.value)((levels.nearest)(x * per_unit)));
                xv += f64::from(x) * v;
                vv += v * v;
            }
            if vv > 0.0 && xv * xv / vv > best.0 {
                best = (xv * xv / vv, xv / vv);
            }
        }
    }
    best.1 as f32
}

/// Scale and minimum, neither negative, such that `scale · q − minimum` with q in 0 …= `top` is nearest to the values.
pub(super) fn best_affine(values: &[f32], top: u8) -> (f32, f32) {
    let (low, high) = values.iter().fold((0.0f32, f32::MIN), |(low, high), &x| (low.min(x), high.max(x)));
    let (low, range) = (f64::from(low), f64::from(high) - f64::from(low));
    if range <= 0.0 {
        return (0.0, -low as f32);
    }
    let n = values.len() as f64;
    let mut best = (f64::INFINITY, 0.0, 0.0);
    for nudge in NUDGES {
        let per_unit = (f64::from(top) + 0.1 * f64::from(nudge)) / range;
        // Codes are not negative, so adding a half and cutting off is rounding.
        let code = |x: f64| f64::from(((x + 0.5) as u8).min(top));
        let (mut q1, mut q2, mut x1, mut xq) = (0.0, 0.0, 0.0, 0.0);
        for x in values.iter().map(|&x| f64::from(x)) {
            let q = code((x - low) * per_unit);
            q1 += q;
            q2 += q * q;
            x1 += x;
            xq += x * q;
        }
        let determinant = n * q2 - q1 * q1;
        if determinant <= 0.0 {
            continue; // all codes alike
        }
        let mut scale = (n * xq - q1 * x1) / determinant;
        let mut minimum = (q1 * xq - q2 * x1) / determinant;
        if minimum < 0.0 {
            (scale, minimum) = (xq / q2, 0.0);
        }
        let per_unit = 1.0 / scale;
        let error = |x: f64| (scale * code((x + minimum) * per_unit) - minimum - x).powi(2);
        let error: f64 = values.iter().map(|&x| error(f64::from(x))).sum();
        if scale > 0.0 && error < best.0 {
            best = (error, scale, minimum);
        }
    }
    if best.0.is_infinite() {
        // One value many times over: it is the top code when positive.
        return ((range / f64::from(top)) as f32, -low as f32);
    }
    (best.1 as f32, best.2 as f32)
}
