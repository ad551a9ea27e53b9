//! Drawing tokens: which are candidates, how often each is drawn, and that the same seed gives the same.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use rlx_ir::ops::sample::Sample;
use rlx_ir::{DType, Graph, Options, Tensor, eval};

/// Draws `n` times from the same logits, with a seed each.
fn draw(logits: &[f32], n: usize, how: Sample) -> Vec<usize> {
    let v = logits.len();
    let g = Graph::new("sample");
    let x = g.input("x", DType::F32, [v]).repeat_leading(&n.into());
    let seed = g.input("seed", DType::U32, [n, 2]);
    g.output("ids", x.sample(seed, how));
    let seeds: Vec<u32> = (0..n as u32).flat_map(|i| [i, 77]).collect();
    let (x, seed) = (Tensor::new(&[v], logits).unwrap(), Tensor::new(&[n, 2], &seeds).unwrap());
    let out = eval(&g.finish().unwrap(), &[("x", &x), ("seed", &seed)], &Options::default()).unwrap();
    out[0].1.ints().into_iter().map(|i| i as usize).collect()
}

fn counts(ids: &[usize], v: usize) -> Vec<usize> {
    (0..v).map(|i| ids.iter().filter(|k| **k == i).count()).collect()
}

/// ln of probabilities 0.1, 0.4, 0.05, 0.3, 0.15.
fn logits() -> Vec<f32> {
    [0.1f32, 0.4, 0.05, 0.3, 0.15].iter().map(|p| p.ln() + 1.0).collect()
}

#[test]
fn tokens_come_as_often_as_their_probability_says() {
    let n = 4000;
    let plain = counts(&draw(&logits(), n, Sample::default()), 5);
    for (c, p) in plain.iter().zip([0.1, 0.4, 0.05, 0.3, 0.15]) {
        assert!((*c as f64 / n as f64 - p).abs() < 0.03, "{plain:?}");
    }
    // Half the temperature squares the probabilities.
    let cold = counts(&draw(&logits(), n, Sample { temperature: 0.5, ..Sample::default() }), 5);
    let share = 0.16 / (0.01 + 0.16 + 0.0025 + 0.09 + 0.0225);
    assert!((cold[1] as f64 / n as f64 - share).abs() < 0.03, "{cold:?}");
}

#[test]
fn only_candidates_are_drawn() {
    let among = |how: Sample, allowed: &[usize]| {
        let seen = counts(&draw(&logits(), 600, how), 5);
        for (i, c) in seen.iter().enumerate() {
            assert_eq!(*c > 0, allowed.contains(&i), "{seen:?}, want {allowed:?}");
        }
    };
    let with = Sample::default;
    among(Sample { temperature: 0.0, ..with() }, &[1]);
    among(Sample { top_k: 1, ..with() }, &[1]);
    among(Sample { top_k: 2, ..with() }, &[1, 3]);
    among(Sample { top_k: 99, ..with() }, &[0, 1, 2, 3, 4]);
    among(Sample { top_p: 0.39, ..with() }, &[1]);
    among(Sample { top_p: 0.41, ..with() }, &[1, 3]);
    among(Sample { top_p: 0.75, ..with() }, &[1, 3, 4]);
    // Of the two that top_k leaves, 0.4/0.7 is more than half.
    among(Sample { top_k: 2, top_p: 0.5, ..with() }, &[1]);
    among(Sample { min_p: 0.3, ..with() }, &[1, 3, 4]);
    among(Sample { min_p: 1.0, ..with() }, &[1]);
}

#[test]
fn narrowing_down_changes_a_draw_only_if_it_is_excluded() {
    let free = draw(&logits(), 200, Sample::default());
    assert_eq!(free, draw(&logits(), 200, Sample { top_k: 5, ..Sample::default() }));
    let narrow = draw(&logits(), 200, Sample { top_k: 3, ..Sample::default() });
    for (a, b) in free.iter().zip(&narrow).filter(|(a, _)| [1, 3, 4].contains(*a)) {
        assert_eq!(a, b);
    }
    let other = draw(&logits(), 200, Sample { stream: 1, ..Sample::default() });
    assert_ne!(free, other);
}

#[test]
fn infinities_and_ties_are_no_trouble() {
    let never = f32::NEG_INFINITY;
    let ids = draw(&[never, 0.0, never, 0.0], 200, Sample { top_p: 0.9, min_p: 0.1, ..Sample::default() });
    assert!(ids.iter().all(|i| [1, 3].contains(i)));
    // Equal logits count as sorted by index.
    assert!(draw(&[1.0; 4], 50, Sample { top_k: 1, ..Sample::default() }).iter().all(|i| *i == 0));
}
