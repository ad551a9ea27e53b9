//! Tensors for people: like NumPy prints them, cut short when they are large.

use rlx::Tensor;

/// Larger tensors are cut short.
const WHOLE: usize = 1000;
/// So many entries are shown at either end of a long axis.
const EDGE: usize = 3;
/// More than this is too much even with long axes cut.
const MOST: usize = 10_000;

/// So many of something.
pub(crate) fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// Name, type and elements.
pub(crate) fn tensor(name: &str, t: &Tensor) -> String {
    let head = format!("{name}: {}", t.ty());
    if t.dtype().is_packed() {
        let bytes: usize = t.planes().iter().map(|p| p.len()).sum();
        return format!("{head}, {bytes} bytes\n");
    }
    let cut = t.len() > WHOLE;
    let mut shown = t.shape().iter().map(|d| if cut { (*d).min(2 * EDGE) } else { *d });
    let shown = shown.try_fold(1usize, usize::checked_mul);
    if shown.is_none_or(|n| n > MOST) {
        return format!("{head}, {} elements\n", t.len());
    }
    let mut picked = Vec::new();
    pick(t.shape(), cut, 0, &mut picked);
    let texts = numbers(t, &picked);
    let width = texts.iter().map(|s| s.chars().count()).max().unwrap_or(0);
    let mut out = head;
    out.push(if t.shape().is_empty() { ' ' } else { '\n' });
    nest(t.shape(), cut, 1, width, &mut texts.iter(), &mut out);
    out.push('\n');
    out
}

/// The entries of an axis that are shown; `None` stands for those left out.
fn entries(n: usize, cut: bool) -> Vec<Option<usize>> {
    if !cut || n <= 2 * EDGE {
        return (0..n).map(Some).collect();
    }
    (0..EDGE).map(Some).chain([None]).chain((n - EDGE..n).map(Some)).collect()
}

/// The flat positions of the elements that are shown.
fn pick(shape: &[usize], cut: bool, base: usize, out: &mut Vec<usize>) {
    match shape.split_first() {
        None => out.push(base),
        Some((n, rest)) => {
            let stride: usize = rest.iter().product();
            for i in entries(*n, cut).into_iter().flatten() {
                pick(rest, cut, base + i * stride, out);
            }
        }
    }
}

fn nest(
    shape: &[usize],
    cut: bool,
    depth: usize,
    width: usize,
    texts: &mut std::slice::Iter<'_, String>,
    out: &mut String,
) {
    let Some((n, rest)) = shape.split_first() else {
        let text = texts.next().map_or("", String::as_str);
        out.push_str(&if depth == 1 { text.to_string() } else { format!("{text:>width$}") });
        return;
    };
    out.push('[');
    for (k, i) in entries(*n, cut).into_iter().enumerate() {
        if k > 0 {
            match rest.len() {
                0 => out.push(' '),
                lines => {
                    out.push_str(&"\n".repeat(lines));
                    out.push_str(&" ".repeat(depth));
                }
            }
        }
        match i {
            Some(_) => nest(rest, cut, depth + 1, width, texts, out),
            None => out.push_str("..."),
        }
    }
    out.push(']');
}

/// The elements at these positions, as text of one style.
fn numbers(t: &Tensor, at: &[usize]) -> Vec<String> {
    if let Some(ints) = t.to_i128s() {
        let text = |i: &usize| match (ints.get(*i), t.dtype()) {
            (Some(x), rlx::DType::Bool) => (*x != 0).to_string(),
            (Some(x), _) => x.to_string(),
            (None, _) => String::new(),
        };
        return at.iter().map(text).collect();
    }
    let all = t.to_f64s().unwrap_or_default();
    let values: Vec<f64> = at.iter().filter_map(|i| all.get(*i).copied()).collect();
    let sizes = values.iter().map(|x| x.abs()).filter(|x| x.is_finite());
    let high = sizes.fold(0.0, f64::max);
    if high >= 1e8 || high > 0.0 && high < 1e-3 {
        return values.iter().map(|x| if x.is_finite() { format!("{x:.4e}") } else { special(*x) }).collect();
    }
    let digits = |x: &f64| format!("{x:.6}").trim_end_matches('0').rsplit('.').next().map_or(0, str::len);
    let most = values.iter().filter(|x| x.is_finite()).map(digits).max().unwrap_or(0).max(1);
    values.iter().map(|x| if x.is_finite() { format!("{x:.most$}") } else { special(*x) }).collect()
}

fn special(x: f64) -> String {
    match x {
        _ if x.is_nan() => "nan".into(),
        _ if x > 0.0 => "inf".into(),
        _ => "-inf".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(shape: &[usize], xs: &[f32]) -> String {
        tensor("y", &Tensor::new(shape, xs).unwrap())
    }

    #[test]
    fn small_tensors_are_shown_whole() {
        assert_eq!(shown(&[], &[0.25]), "y: f32[] 0.25\n");
        assert_eq!(shown(&[3], &[1.0, -2.5, 10.0]), "y: f32[3]\n[ 1.0 -2.5 10.0]\n");
        assert_eq!(shown(&[2, 2], &[1.0, 2.0, 3.0, 4.0]), "y: f32[2, 2]\n[[1.0 2.0]\n [3.0 4.0]]\n");
        assert_eq!(shown(&[2, 1, 1], &[1.0, 2.0]), "y: f32[2, 1, 1]\n[[[1.0]]\n\n [[2.0]]]\n");
        assert_eq!(shown(&[2, 0], &[]), "y: f32[2, 0]\n[[]\n []]\n");
        assert_eq!(shown(&[3], &[f32::NAN, f32::INFINITY, 1.0]), "y: f32[3]\n[nan inf 1.0]\n");
        assert_eq!(shown(&[2], &[1e-9, 2e-9]), "y: f32[2]\n[1.0000e-9 2.0000e-9]\n");
    }

    #[test]
    fn large_ones_are_cut() {
        let t = Tensor::new(&[2000], &(0..2000i32).collect::<Vec<_>>()).unwrap();
        assert_eq!(tensor("n", &t), "n: i32[2000]\n[   0    1    2 ... 1997 1998 1999]\n");
        let t = Tensor::new(&[2; 15], &[true; 1 << 15]).unwrap();
        assert!(tensor("n", &t).ends_with("32768 elements\n"));
        let t = Tensor::new(&[10, 200], &[0u8; 2000]).unwrap();
        assert_eq!(tensor("n", &t).lines().count(), 8);
    }
}
