//! Rules for ONNX nodes that cut, join, index and count, in forms that ONNX's own suite does not have: sizes that are symbols,
//! ends beyond an axis, older versions, operands that must be known and are not.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod onnx_node;

use onnx_node::node;
use rlx_ir::dim::{Dim, dim};
use rlx_ir::onnx::{self, Attr};
use rlx_ir::{Code, DType, Error, Graph, Options, Tensor, Var, eval};
use std::collections::BTreeMap;

/// Else the order of files would decide.
#[test]
fn one_rule_per_name_and_version() {
    let mut seen: BTreeMap<_, Vec<&str>> = BTreeMap::new();
    for (r, def) in onnx::rules() {
        seen.entry((r.domain, r.name, r.since)).or_default().push(def.name);
    }
    seen.retain(|_, ops| ops.len() > 1);
    assert!(seen.is_empty(), "several rules for {seen:?}");
}

fn text<'a, 'g>(t: &str) -> Attr<'a, 'g> {
    Attr::Text(t.into())
}

fn ints(v: &[i64]) -> Tensor {
    Tensor::new(&[v.len()], v).expect("a tensor")
}

fn floats(v: &[f32]) -> Tensor {
    Tensor::new(&[v.len()], v).expect("a tensor")
}

/// 0, 1, 2 …
fn count(shape: &[usize]) -> Tensor {
    let n: usize = shape.iter().product();
    Tensor::new(shape, &(0..n).map(|i| i as f32).collect::<Vec<_>>()).expect("a tensor")
}

/// The shapes and numbers of results, with `x` for the input of that name.
fn run(g: &Graph, results: &[Var<'_>], x: &Tensor) -> Vec<(Vec<usize>, Vec<f64>)> {
    for (i, y) in results.iter().enumerate() {
        g.output(&format!("y{i}"), *y);
    }
    let f = g.finish().expect("a graph");
    let out = eval(&f, &[("x", x)], &Options::default()).expect("numbers");
    out.iter().map(|(_, a)| (a.shape().to_vec(), a.f64s())).collect()
}

/// The only result of a node on x of that shape and on data.
fn one(
    name: &str,
    opset: i64,
    shape: &[Dim],
    x: &Tensor,
    more: &[Tensor],
    attrs: Vec<(&str, Attr<'_, '_>)>,
) -> Result<(Vec<usize>, Vec<f64>), Error> {
    let g = Graph::new("t");
    let mut operands = vec![Some(g.input("x", x.dtype(), shape.to_vec()))];
    operands.extend(more.iter().map(|t| Some(g.constant(t.clone()))));
    let attrs = attrs.iter().map(|(n, a)| (*n, copied(a))).collect();
    let y = node(&g, name, ("", opset), &operands, attrs, 1)?;
    match g.errors().into_iter().next() {
        Some(e) => Err(e),
        None => Ok(run(&g, &y[..1], x).remove(0)),
    }
}

/// An attribute that holds no graph, for any graph.
fn copied<'a, 'g>(a: &Attr<'_, '_>) -> Attr<'a, 'g> {
    match a {
        Attr::Int(i) => Attr::Int(*i),
        Attr::Float(f) => Attr::Float(*f),
        Attr::Text(t) => Attr::Text(t.clone()),
        Attr::Tensor(t) => Attr::Tensor(t.clone()),
        Attr::Ints(v) => Attr::Ints(v.clone()),
        Attr::Floats(v) => Attr::Floats(v.clone()),
        _ => panic!("no such attribute here"),
    }
}

fn constants(shape: &[usize]) -> Vec<Dim> {
    shape.iter().map(|n| Dim::from(*n)).collect()
}

/// Which elements a slice of NumPy's takes.
fn taken(n: i64, start: i64, end: i64, step: i64) -> Vec<f64> {
    let wrap = |at: i64| if at < 0 { at.saturating_add(n) } else { at };
    let (lo, hi) = if step > 0 { (0, n) } else { (-1, n - 1) };
    let (mut at, end) = (wrap(start).clamp(lo, hi), wrap(end).clamp(lo, hi));
    let mut out = Vec::new();
    while (step > 0 && at < end) || (step < 0 && at > end) {
        out.push(at as f64);
        at = at.saturating_add(step);
    }
    out
}

#[test]
fn slices_are_numpys() {
    let ends = [i64::MIN, -9, -5, -3, -1, 0, 1, 2, 4, 5, 9, i64::from(i32::MAX), i64::MAX];
    for n in [0, 1, 5] {
        let x = count(&[n]);
        for (start, end) in ends.iter().flat_map(|s| ends.iter().map(move |e| (*s, *e))) {
            for step in [1, 2, 7, i64::MAX, -1, -2, -9] {
                let more = [ints(&[start]), ints(&[end]), ints(&[0]), ints(&[step])];
                let got = one("Slice", 13, &constants(&[n]), &x, &more, vec![]).expect("a slice").1;
                assert_eq!(got, taken(n as i64, start, end, step), "{start}:{end}:{step} of {n}");
            }
        }
    }
}

#[test]
fn slices_of_open_axes() {
    let x = count(&[6]);
    for (start, end, step) in [
        (0, i64::MAX, 1),
        (1, i64::MAX, 1),
        (-2, i64::MAX, 1),
        (0, -1, 1),
        (2, -1, 2),
        (-1, i64::MIN, -1),
        (-2, i64::MIN, -2),
        (i64::MIN, 3, 1),
        (4, 1, -1),
        (3, 3, 1),
    ] {
        let more = [ints(&[start]), ints(&[end]), ints(&[-1]), ints(&[step])];
        let got = one("Slice", 10, &[dim("n", 100)], &x, &more, vec![]).expect("a slice").1;
        assert_eq!(got, taken(6, start, end, step), "{start}:{end}:{step}");
    }
    let attrs =
        vec![("starts", Attr::Ints(vec![1])), ("ends", Attr::Ints(vec![-1])), ("axes", Attr::Ints(vec![0]))];
    assert_eq!(one("Slice", 1, &[dim("n", 100)], &x, &[], attrs).expect("a slice").1, [1.0, 2.0, 3.0, 4.0]);
}

#[test]
fn shapes_with_what_is_left_and_what_is_copied() {
    let (b, s) = (dim("b", 8), dim("s", 32));
    let x = count(&[2, 3, 4]);
    let cases: [(&[i64], i64, &[usize]); 7] = [
        (&[0, -1], 5, &[2, 12]),
        (&[-1, 4], 5, &[6, 4]),
        (&[0, 0, 2, -1], 14, &[2, 3, 2, 2]),
        (&[0, 0, 0], 14, &[2, 3, 4]),
        (&[-1], 14, &[24]),
        (&[1, 0, -1], 14, &[1, 3, 8]),
        (&[-1, 2, 2], 23, &[6, 2, 2]),
    ];
    for (shape, opset, want) in cases {
        let more = [ints(shape)];
        let got =
            one("Reshape", opset, &[b.clone(), s.clone(), 4.into()], &x, &more, vec![]).expect("a shape");
        assert_eq!(got.0, want, "{shape:?}");
    }
    let refused = |shape: &[i64], attrs| {
        let more = [ints(shape)];
        one("Reshape", 14, &constants(&[2, 3, 4]), &x, &more, attrs).expect_err("an error").code()
    };
    assert_eq!(refused(&[-1, -1], vec![]), Code::Reshape);
    assert_eq!(refused(&[-1, 7], vec![]), Code::Reshape);
    assert_eq!(refused(&[0, 3, 4], vec![("allowzero", Attr::Int(1))]), Code::Reshape);
    assert_eq!(refused(&[2, 3, 4, 0], vec![]), Code::Reshape);
}

#[test]
fn an_open_axis_that_goes_must_be_one() {
    let go = |n: usize| {
        let g = Graph::new("t");
        let x = g.input("x", DType::F32, [dim("n", 9), 2.into()]);
        let axes = Some(g.constant(ints(&[0])));
        let y = node(&g, "Squeeze", ("", 13), &[Some(x), axes], vec![], 1).expect("a value");
        g.output("y", y[0]);
        let f = g.finish().expect("a graph");
        eval(&f, &[("x", &count(&[n, 2]))], &Options::default()).map(|out| out[0].1.shape().to_vec())
    };
    assert_eq!(go(1).expect("a shape"), [2]);
    assert!(go(2).is_err() && go(0).is_err());
}

#[test]
fn ends_that_grow_and_shrink() {
    let x = floats(&[0.0, 1.0, 2.0, 3.0]);
    let pad = |lo: i64, hi: i64, mode: &str| {
        let more = [ints(&[lo, hi])];
        one("Pad", 19, &constants(&[4]), &x, &more, vec![("mode", text(mode))]).expect("more elements").1
    };
    assert_eq!(pad(1, 2, "edge"), [0.0, 0.0, 1.0, 2.0, 3.0, 3.0, 3.0]);
    assert_eq!(pad(2, 1, "reflect"), [2.0, 1.0, 0.0, 1.0, 2.0, 3.0, 2.0]);
    assert_eq!(pad(2, 1, "wrap"), [2.0, 3.0, 0.0, 1.0, 2.0, 3.0, 0.0]);
    // Back and forth, and round and round.
    assert_eq!(pad(5, 4, "reflect"), [1.0, 2.0, 3.0, 2.0, 1.0, 0.0, 1.0, 2.0, 3.0, 2.0, 1.0, 0.0, 1.0]);
    assert_eq!(pad(5, 1, "wrap"), [3.0, 0.0, 1.0, 2.0, 3.0, 0.0, 1.0, 2.0, 3.0, 0.0]);
    assert_eq!(pad(-1, 1, "constant"), [1.0, 2.0, 3.0, 0.0]);
    assert_eq!(pad(-1, -2, "constant"), [1.0]);
    assert_eq!(pad(1, -2, "reflect"), [1.0, 0.0, 1.0]);
    let open = |attrs| one("Pad", 2, &[dim("n", 9)], &x, &[], attrs).expect("more elements").1;
    let value = vec![("pads", Attr::Ints(vec![1, -1])), ("value", Attr::Float(7.0))];
    assert_eq!(open(value), [7.0, 0.0, 1.0, 2.0]);
    let mirror = vec![("pads", Attr::Ints(vec![2, 0])), ("mode", text("reflect"))];
    assert_eq!(open(mirror), [2.0, 1.0, 0.0, 1.0, 2.0, 3.0]);
}

#[test]
fn parts_of_an_axis() {
    for (n, symbol) in [(7, false), (7, true), (6, true)] {
        let g = Graph::new("t");
        let size = if symbol { dim("n", 50) } else { Dim::from(n) };
        let x = g.input("x", DType::F32, [size]);
        let attrs = vec![("num_outputs", Attr::Int(3))];
        let parts = node(&g, "Split", ("", 18), &[Some(x)], attrs, 3).expect("parts");
        let sizes: Vec<usize> = run(&g, &parts, &count(&[n])).iter().map(|(s, _)| s[0]).collect();
        assert_eq!(sizes, if n == 7 { [3, 3, 1] } else { [2, 2, 2] });
    }
}

#[test]
fn counting_from_sizes() {
    let n = dim("n", 100);
    let g = Graph::new("t");
    let x = g.input("x", DType::F32, [n.clone(), 3.into()]);
    let shape = node(&g, "Shape", ("", 15), &[Some(x)], vec![("end", Attr::Int(-1))], 1).expect("a shape")[0];
    let last = node(&g, "Squeeze", ("", 13), &[Some(shape)], vec![], 1).expect("a number")[0];
    let number = |v: i64| Some(g.constant(Tensor::scalar(v)));
    let range =
        node(&g, "Range", ("", 11), &[number(1), Some(last), number(2)], vec![], 1).expect("numbers")[0];
    assert_eq!(range.shape(), [(&n - 1).ceil_div(2)]);
    let back =
        node(&g, "Range", ("", 11), &[Some(last), number(0), number(-3)], vec![], 1).expect("numbers")[0];
    // As floats, and by halves.
    let float = |v: f32| Some(g.constant(Tensor::scalar(v)));
    let limit = node(&g, "Cast", ("", 13), &[Some(last)], vec![("to", Attr::Int(1))], 1).expect("a float")[0];
    let halves =
        node(&g, "Range", ("", 11), &[float(0.5), Some(limit), float(1.5)], vec![], 1).expect("numbers")[0];
    let ones = vec![("value", Attr::Tensor(Tensor::new(&[1], &[7i32]).expect("a tensor")))];
    let filled = node(&g, "ConstantOfShape", ("", 9), &[Some(shape)], ones, 1).expect("sevens")[0];
    let wide = node(&g, "Expand", ("", 8), &[float(2.0), Some(shape)], vec![], 1).expect("twos")[0];
    let size = node(&g, "Size", ("", 13), &[Some(x)], vec![], 1).expect("a number")[0];
    let out = run(&g, &[range, back, halves, filled, wide, size], &count(&[5, 3]));
    let numbers: Vec<&[f64]> = out.iter().map(|(_, v)| &v[..]).collect();
    assert_eq!(numbers, [&[1.0, 3.0][..], &[5.0, 2.0], &[0.5, 2.0, 3.5], &[7.0; 5], &[2.0; 5], &[15.0]]);
}

#[test]
fn remainders_have_the_sign_that_is_asked_for() {
    let by = |x: &[f32], y: &[f32], fmod: i64| {
        let more = [floats(y)];
        one("Mod", 28, &constants(&[x.len()]), &floats(x), &more, vec![("fmod", Attr::Int(fmod))])
            .expect("numbers")
            .1
    };
    let (x, y) = ([7.0, -7.0, 7.0, -7.0, 0.5], [3.0, 3.0, -3.0, -3.0, -2.0]);
    assert_eq!(by(&x, &y, 1), [1.0, -1.0, 1.0, -1.0, 0.5]);
    assert_eq!(by(&x, &y, 0), [1.0, 2.0, -2.0, -1.0, -1.5]);
    let inf = f32::INFINITY;
    let odd = by(&[1.0, 1.0, -1.0, inf, 1.0, -3.0], &[inf, -inf, inf, 2.0, 0.0, 3.0], 0);
    assert_eq!(odd[..3], [1.0, f64::NEG_INFINITY, f64::INFINITY]);
    assert!(odd[3].is_nan() && odd[4].is_nan() && odd[5].is_sign_positive());
    assert!(by(&[3.0], &[-3.0], 0)[0].is_sign_negative());

    let g = Graph::new("t");
    let x = g.input("x", DType::I8, [4]);
    let y = Some(g.constant(Tensor::new(&[4], &[100i8, 100, -100, -7]).expect("a tensor")));
    let r = node(&g, "Mod", ("", 13), &[Some(x), y], vec![], 1).expect("numbers");
    let x = Tensor::new(&[4], &[-1i8, 99, 99, -128]).expect("a tensor");
    assert_eq!(run(&g, &r, &x)[0].1, [99.0, 99.0, -1.0, -2.0]);
}

#[test]
fn powers_keep_the_dtype_of_the_base() {
    let power = |x: Tensor, y: Tensor| {
        let more = [y.clone()];
        one("Pow", 13, &constants(&[3]), &x, &more, vec![]).expect("numbers").1
    };
    let ints = |v: [i32; 3]| Tensor::new(&[3], &v).expect("a tensor");
    let longs = |v: [i64; 3]| Tensor::new(&[3], &v).expect("a tensor");
    assert_eq!(power(ints([2, 3, -4]), floats(&[3.0, 0.5, 2.0])), [8.0, 1.0, 16.0]);
    assert_eq!(power(ints([2, 3, -4]), longs([3, 0, 1])), [8.0, 1.0, -4.0]);
    assert_eq!(power(floats(&[2.0, 4.0, 0.0]), ints([-1, 2, 0])), [0.5, 16.0, 1.0]);
}

#[test]
fn bounds_that_are_data() {
    let g = Graph::new("t");
    let x = g.input("x", DType::I64, [4]);
    let bound = |v: i64| Some(g.constant(Tensor::new(&[1], &[v]).expect("a tensor")));
    let y = node(&g, "Clip", ("", 13), &[Some(x), bound(-(1 << 60)), bound(i64::MAX - 1)], vec![], 1)
        .expect("numbers");
    // The upper bound wins, and a bound need not be known.
    let least = g.constant(Tensor::new(&[1], &[5i64]).expect("a tensor"));
    let z = node(&g, "Clip", ("", 13), &[Some(x), Some(least), Some(x.narrow(0, 2, 1))], vec![], 1)
        .expect("numbers");
    let x = Tensor::new(&[4], &[i64::MIN, i64::MAX, 3, 4]).expect("a tensor");
    let out = run(&g, &[y[0], z[0]], &x);
    assert_eq!(out[0].1, [-(1i64 << 60) as f64, (i64::MAX - 1) as f64, 3.0, 4.0]);
    assert_eq!((out[1].0.as_slice(), out[1].1.as_slice()), (&[4][..], &[3.0; 4][..]));
}

#[test]
fn what_decides_a_size_must_be_known() {
    for (name, opset) in [("NonZero", 13), ("Unique", 11), ("ConstantOfShape", 9)] {
        let g = Graph::new("t");
        let x = g.input("x", DType::I64, [3]);
        let e = node(&g, name, ("", opset), &[Some(x)], vec![], 1).err().expect("data decide");
        assert_eq!((e.code(), e.inputs()), (Code::Undetermined, &["x".to_string()][..]), "{name}");
    }
    for (name, opset) in
        [("Reshape", 14), ("Expand", 13), ("Tile", 13), ("Compress", 11), ("TopK", 11), ("Pad", 13)]
    {
        let g = Graph::new("t");
        let (x, by) = (g.input("x", DType::F32, [3]), g.input("by", DType::I64, [1]));
        let e = node(&g, name, ("", opset), &[Some(x), Some(by)], vec![], 1).err().expect("data decide");
        assert_eq!((e.code(), e.inputs()), (Code::Undetermined, &["by".to_string()][..]), "{name}");
    }
}

#[test]
fn each_once() {
    let g = Graph::new("t");
    let x = g.constant(Tensor::new(&[2, 4], &[3f32, 1.0, 3.0, 2.0, 0.0, 5.0, 0.0, 5.0]).expect("a tensor"));
    let all = |axis: Option<i64>, sorted: i64| {
        let attrs =
            axis.map(|a| ("axis", Attr::Int(a))).into_iter().chain([("sorted", Attr::Int(sorted))]).collect();
        node(&g, "Unique", ("", 11), &[Some(x)], attrs, 4).expect("values")
    };
    let results = [all(None, 1), all(None, 0), all(Some(1), 1)].concat();
    g.input("x", DType::F32, [0]);
    let out: Vec<Vec<f64>> = run(&g, &results, &count(&[0])).into_iter().map(|(_, v)| v).collect();
    assert_eq!(
        out[..4],
        [
            vec![0.0, 1.0, 2.0, 3.0, 5.0],
            vec![4.0, 1.0, 3.0, 0.0, 5.0],
            vec![3.0, 1.0, 3.0, 2.0, 0.0, 4.0, 0.0, 4.0],
            vec![2.0, 1.0, 1.0, 2.0, 2.0]
        ]
    );
    assert_eq!(
        out[4..8],
        [
            vec![3.0, 1.0, 2.0, 0.0, 5.0],
            vec![0.0, 1.0, 3.0, 4.0, 5.0],
            vec![0.0, 1.0, 0.0, 2.0, 3.0, 4.0, 3.0, 4.0],
            vec![2.0, 1.0, 1.0, 2.0, 2.0]
        ]
    );
    assert_eq!(
        out[8..],
        [
            vec![1.0, 2.0, 3.0, 5.0, 5.0, 0.0],
            vec![1.0, 3.0, 0.0],
            vec![2.0, 0.0, 2.0, 1.0],
            vec![1.0, 1.0, 2.0]
        ]
    );
}

#[test]
fn each_once_of_odd_numbers() {
    let g = Graph::new("t");
    g.input("x", DType::F32, [0]);
    let nan = f32::NAN;
    let odd = g.constant(floats(&[nan, 0.0, -1.5, -0.0, f32::NEG_INFINITY, nan, 1.5]));
    let large = g.constant(ints(&[(1 << 60) + 1, 1 << 60, -(1 << 60), (1 << 60) + 1]));
    let results: Vec<Var<'_>> = [odd, large]
        .iter()
        .map(|x| node(&g, "Unique", ("", 11), &[Some(*x)], vec![], 4).expect("values")[3])
        .collect();
    let out: Vec<Vec<f64>> = run(&g, &results, &count(&[0])).into_iter().map(|(_, v)| v).collect();
    assert_eq!(out, [vec![1.0, 1.0, 2.0, 1.0, 2.0], vec![1.0, 1.0, 2.0]]);
}

#[test]
fn lengths_and_places_that_are_data() {
    let g = Graph::new("t");
    let x = g.input("x", DType::F32, [dim("t", 9), 2.into()]);
    let lengths = g.constant(Tensor::new(&[2], &[3i64, 2]).expect("a tensor"));
    let turned = node(&g, "ReverseSequence", ("", 10), &[Some(x), Some(lengths)], vec![], 1).expect("values");
    // A cache of four places, of which the last and the first are written.
    let cache = g.zeros(DType::F32, &[2.into(), 4.into(), 1.into()]);
    let update = g.full(DType::F32, &[2.into(), 2.into(), 1.into()], 1.0);
    let at = g.constant(Tensor::new(&[2], &[3i64, 1]).expect("a tensor"));
    let attrs = vec![("mode", text("circular"))];
    let kept = node(&g, "TensorScatter", ("", 24), &[Some(cache), Some(update), Some(at)], attrs, 1)
        .expect("values");
    let out = run(&g, &[turned[0], kept[0]], &count(&[4, 2]));
    assert_eq!(out[0].1, [4.0, 3.0, 2.0, 1.0, 0.0, 5.0, 6.0, 7.0]);
    assert_eq!(out[1].1, [1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0]);
}

#[test]
fn what_training_drops() {
    let g = Graph::new("t");
    let x = g.input("x", DType::F32, [1000]);
    let (ratio, trains) = (g.scalar(DType::F32, 0.25), g.constant(Tensor::scalar(true)));
    let drop = |seed: i64| {
        let operands = [Some(x), Some(ratio), Some(trains)];
        node(&g, "Dropout", ("", 22), &operands, vec![("seed", Attr::Int(seed))], 2).expect("values")
    };
    let idle = node(&g, "Dropout", ("", 22), &[Some(x)], vec![], 2).expect("values");
    let results = [drop(1), drop(1), drop(2), idle].concat();
    let out: Vec<Vec<f64>> = run(&g, &results, &floats(&[3.0; 1000])).into_iter().map(|(_, v)| v).collect();
    let kept = out[1].iter().filter(|t| **t == 1.0).count();
    assert!((680..820).contains(&kept), "{kept} of 1000 are kept");
    assert!(out[0].iter().zip(&out[1]).all(|(y, keep)| (y - keep * 4.0).abs() < 1e-5));
    assert_eq!((&out[0], &out[6], &out[7]), (&out[2], &vec![3.0; 1000], &vec![1.0; 1000]));
    assert_ne!(out[1], out[5]);
}

#[test]
fn old_broadcasts_begin_at_an_axis() {
    let x = count(&[2, 3, 2]);
    let more = [floats(&[0.0, 10.0, 20.0])];
    let attrs = vec![("broadcast", Attr::Int(1)), ("axis", Attr::Int(1))];
    let got = one("Add", 6, &constants(&[2, 3, 2]), &x, &more, attrs).expect("numbers").1;
    assert_eq!(got, [0.0, 1.0, 12.0, 13.0, 24.0, 25.0, 6.0, 7.0, 18.0, 19.0, 30.0, 31.0]);
}
