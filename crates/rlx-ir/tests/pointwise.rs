//! Element-wise ops, reductions and running totals against PyTorch, special values and ties included.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use rlx_ir::transform::vjp;
use rlx_ir::{DType, Graph, Options, Tensor, Var, dim, eval};

/// The result of a function of one tensor, and its gradient for a cotangent.
fn both(x: (&[usize], &[f64]), dy: &[f64], op: impl for<'g> Fn(Var<'g>) -> Var<'g>) -> (Vec<f64>, Vec<f64>) {
    let g = Graph::new("test");
    let shape: Vec<i64> = x.0.iter().map(|d| *d as i64).collect();
    let y = op(g.param("x", DType::F64, shape));
    let dy = Tensor::new(&[dy.len()], dy).unwrap();
    let weight = g.constant(dy).reshape(y.shape());
    // Zero weights leave out what is infinite.
    let used = weight.not_equal(weight.scalar(0.0)).select(y * weight, y.zeros_like());
    g.output("y", y);
    g.output("loss", used.sum_all());
    let f = vjp(&g.finish().unwrap(), &["loss"], &["x"]).unwrap();
    let x = Tensor::new(x.0, x.1).unwrap();
    let out = eval(&f, &[("x", &x)], &Options::default()).unwrap();
    let find = |n: &str| out.iter().find(|o| o.0 == n).unwrap().1.f64s();
    (find("y"), find("grad.x"))
}

fn same(a: f64, b: f64) -> bool {
    a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= 1e-12 + 1e-12 * b.abs()
}

fn assert_close(got: &[f64], want: &[f64], what: &str) {
    let ok = got.len() == want.len() && got.iter().zip(want).all(|(a, b)| same(*a, *b));
    assert!(ok, "{what}: {got:?}, want {want:?}");
}

#[test]
fn equal_elements_share_the_gradient_of_max() {
    let (y, dx) = both((&[4], &[1.0, 3.0, 3.0, 2.0]), &[1.0], |x| x.max(vec![0], false));
    assert_close(&[&y[..], &dx].concat(), &[3.0, 0.0, 0.5, 0.5, 0.0], "max");
    let (_, dx) = both((&[2], &[1.0, 2.0]), &[1.0, 1.0], |x| x.maximum(1.0));
    assert_close(&dx, &[0.5, 1.0], "maximum");
    let (y, dx) = both((&[5], &[-1.0, 1.0, 2.0, f64::NAN, 0.5]), &[1.0; 5], |x| x.clamp(-1.0, 1.0));
    assert_close(&y, &[-1.0, 1.0, 1.0, f64::NAN, 0.5], "clamp");
    assert_close(&dx, &[0.0, 0.0, 0.0, 0.0, 1.0], "gradient of clamp");
}

#[test]
fn products_have_gradients_at_zeros() {
    let (_, dx) = both((&[3], &[2.0, 0.0, 3.0]), &[1.0], |x| x.prod(vec![0], false));
    assert_close(&dx, &[0.0, 6.0, 0.0], "prod");
    let w = [1.0, 2.0, 3.0, 4.0, 5.0];
    let (_, dx) = both((&[5], &[2.0, 0.0, 3.0, 0.0, 0.5]), &w, |x| x.cumprod(0, false, false));
    assert_close(&dx, &[1.0, 22.0, 0.0, 0.0, 0.0], "cumprod");
    let (y, dx) = both((&[4], &[0.0, 0.0, -2.0, 2.0]), &[1.0; 4], |x| {
        let t = Tensor::new(&[4], &[0.0, 2.0, 2.0, 0.0]).unwrap();
        x.pow(x.graph().constant(t))
    });
    assert_close(&y, &[1.0, 0.0, 4.0, 1.0], "pow");
    assert_close(&dx, &[0.0, 0.0, -4.0, 0.0], "gradient of pow");
}

#[test]
fn running_totals_without_the_element_itself() {
    let (inf, x) = (f64::INFINITY, [3.0, 1.0, 1.0, 2.0]);
    let w = [0.0, 2.0, 3.0, 4.0];
    let (y, dx) = both((&[4], &x), &w, |x| x.cummin(0, true, false));
    assert_close(&y, &[inf, 3.0, 1.0, 1.0], "cummin");
    assert_close(&dx, &[2.0, 3.0, 4.0, 0.0], "gradient of cummin");
    let (y, dx) = both((&[4], &x), &[4.0, 3.0, 2.0, 0.0], |x| x.cummax(0, true, true));
    assert_close(&y, &[2.0, 2.0, 2.0, -inf], "cummax");
    assert_close(&dx, &[0.0, 0.0, 0.0, 9.0], "gradient of cummax");
    // The inclusive gradient of PyTorch, for the totals that are left.
    let (y, dx) = both((&[3], &[1.0, 2.0, 0.5]), &[0.0, 1.0, 2.0], |x| x.logcumsumexp(0, true, false));
    assert_close(&y, &[-inf, 1.0, 2.313261687518223], "logcumsumexp");
    assert_close(&dx, &[1.5378828427399902, 1.4621171572600098, 0.0], "gradient of logcumsumexp");
}

#[test]
fn infinite_elements_do_not_spoil_gradients() {
    let inf = f64::INFINITY;
    let (y, dx) = both((&[3], &[-inf, -inf, 1.0]), &[0.0, 1.0, 1.0], |x| x.logcumsumexp(0, false, false));
    assert_close(&y, &[-inf, -inf, 1.0], "logcumsumexp");
    assert_close(&dx, &[0.0, 0.0, 1.0], "gradient of logcumsumexp");
    let (_, dx) = both((&[2], &[-inf, -inf]), &[1.0], |x| x.logsumexp(vec![0], false));
    assert_close(&dx, &[0.0, 0.0], "gradient of logsumexp");
    let (_, dx) = both((&[2], &[2.0, 2.0]), &[1.0], |x| x.std(vec![0], false, 1));
    assert_close(&dx, &[0.0, 0.0], "gradient of std");
}

/// The elements of a graph's one output.
fn run(build: impl for<'g> Fn(&'g Graph) -> Var<'g>) -> Vec<f64> {
    let g = Graph::new("test");
    g.output("y", build(&g));
    eval(&g.finish().unwrap(), &[], &Options::default()).unwrap()[0].1.f64s()
}

#[test]
fn whole_quotients_are_rounded_down() {
    let ints = |v: &[i32]| Tensor::new(&[v.len()], v).unwrap();
    let y = run(|g| g.constant(ints(&[7, -7, 7, -7, 5])).floor_div(g.constant(ints(&[2, 2, -2, -2, 0]))));
    assert_eq!(y, [3.0, -4.0, -4.0, 3.0, 0.0]);
    let floats = |v: &[f64]| Tensor::new(&[v.len()], v).unwrap();
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    let y = run(|g| {
        let x = g.constant(floats(&[-7.0, 7.0, 1.0, -1.0, inf, -1.0, 0.0]));
        x.floor_div(g.constant(floats(&[2.0, -2.0, 0.0, 0.0, 2.0, inf, 0.0])))
    });
    assert_close(&y, &[-4.0, -4.0, inf, -inf, nan, -1.0, nan], "floor_div");
    let y = run(|g| g.constant(ints(&[-8, -8, 8, 1, 1])).shr(g.constant(ints(&[1, 32, 40, -1, 0]))));
    assert_eq!(y, [-4.0, -1.0, 0.0, 0.0, 1.0]);
}

#[test]
fn positions_of_extremes() {
    let x = [1.0, f64::NAN, 3.0, f64::NAN];
    assert_eq!(run(|g| g.constant(Tensor::new(&[4], &x).unwrap()).argmax(0, false, false)), [1.0]);
    assert_eq!(run(|g| g.constant(Tensor::new(&[4], &x).unwrap()).argmin(0, true, true)), [3.0]);
    let x = [2i32, 5, 5, 2];
    assert_eq!(run(|g| g.constant(Tensor::new(&[4], &x).unwrap()).argmax(-1, false, true)), [2.0]);
    assert_eq!(
        run(|g| g.constant(Tensor::new(&[2, 0], &[0f64; 0]).unwrap()).max(vec![1], false)),
        [f64::NEG_INFINITY, f64::NEG_INFINITY]
    );
}

#[test]
fn rearrangements() {
    use rlx_ir::ops::arrange::PadMode;
    let x = || Tensor::new(&[3], &[1f64, 2.0, 3.0]).unwrap();
    assert_eq!(run(|g| g.constant(x()).roll(1, 0)), [3.0, 1.0, 2.0]);
    assert_eq!(run(|g| g.constant(x()).roll(-4, 0)), [2.0, 3.0, 1.0]);
    assert_eq!(run(|g| g.constant(x()).tile([2])), [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]);
    assert_eq!(run(|g| g.constant(x()).pad_mode([2], [1], PadMode::Reflect)), [3.0, 2.0, 1.0, 2.0, 3.0, 2.0]);
    assert_eq!(run(|g| g.constant(x()).pad_mode([1], [2], PadMode::Wrap)), [3.0, 1.0, 2.0, 3.0, 1.0, 2.0]);
    assert_eq!(run(|g| g.constant(x()).pad_mode([1], [1], PadMode::Edge)), [1.0, 1.0, 2.0, 3.0, 3.0]);
    let m = Tensor::new(&[2, 2], &[1f64, 2.0, 3.0, 4.0]).unwrap();
    assert_eq!(run(|g| g.constant(m.clone()).tril(0)), [1.0, 0.0, 3.0, 4.0]);
    assert_eq!(run(|g| g.constant(m.clone()).triu(1)), [0.0, 2.0, 0.0, 0.0]);
    let i = Tensor::new(&[3], &[-1i64, 0, 7]).unwrap();
    let hot = run(|g| g.constant(i.clone()).one_hot(2, -1, DType::F32));
    assert_eq!(hot, [0.0, 1.0, 1.0, 0.0, 0.0, 0.0]);
}

#[test]
fn symbols_go_through_gradients() {
    let g = Graph::new("symbols");
    let (b, s) = (dim("b", 8), dim("s", 64));
    let x = g.param("x", DType::F64, [b.clone(), s.clone()]);
    let all = [
        x.prod(vec![1, 0], false),
        x.cumprod(1, true, true).sum_all(),
        x.cummax(0, false, false).sum_all(),
        x.logcumsumexp(1, false, true).sum_all(),
        x.roll(3, 1).tile([2, 1]).square().sum_all(),
        x.var(vec![0, 1], false, 1) + x.std(vec![0, 1], false, 0),
        x.logsumexp(vec![1], true).sum_all(),
        x.tril(1).triu(-1).mean_all(),
    ];
    let total = all.into_iter().reduce(|a, b| a + b).unwrap();
    g.output("loss", total);
    let f = vjp(&g.finish().unwrap(), &["loss"], &["x"]).unwrap();
    for shape in [[2, 3], [1, 1], [0, 4], [4, 0]] {
        let data: Vec<f64> = (0..shape[0] * shape[1]).map(|i| 0.3 + i as f64 / 7.0).collect();
        let x = Tensor::new(&shape, &data).unwrap();
        let out = eval(&f, &[("x", &x)], &Options::default()).unwrap();
        assert_eq!(out[1].1.shape(), shape);
    }
}

/// The code and broken constraint of the one error that a graph has.
fn refused(build: impl for<'g> Fn(Var<'g>) -> Var<'g>) -> (&'static str, Option<usize>) {
    let g = Graph::new("bad");
    build(g.input("x", DType::F32, [2, 3]));
    let e = g.finish().unwrap_err();
    (e.code().id(), e.bad_constraint())
}

#[test]
fn what_cannot_be_is_refused() {
    use rlx_ir::ops::arrange::PadMode;
    assert_eq!(refused(|x| x.split(1, [1, 1])[0]), ("E0101", Some(4)));
    assert_eq!(refused(|x| x.split(1, [4, -1])[0]), ("E0106", Some(3)));
    assert_eq!(refused(|x| x.glu(1)), ("E0101", Some(2)));
    assert_eq!(refused(|x| x.tile([1, -1])), ("E0106", Some(2)));
    assert_eq!(refused(|x| x.tile([i64::MAX, 2])).0, "E0105");
    assert_eq!(refused(|x| x.pad_mode([0, 3], [0, 0], PadMode::Reflect)), ("E0105", Some(3)));
    assert_eq!(refused(|x| x.pad_mode([i64::MAX, 0], [0, 0], PadMode::Edge)).0, "E0105");
    assert_eq!(refused(|x| x.roll(i64::MIN, 0)), ("E0106", Some(2)));
    assert_eq!(refused(|x| x.cast(DType::I32).clamp(0.5, 2.0)), ("E0106", Some(1)));
    assert_eq!(refused(|x| x.clamp(f64::NAN, None)), ("E0106", Some(1)));
    assert_eq!(refused(|x| x.cast(DType::Bool).shl(x.cast(DType::Bool))), ("E0102", Some(1)));
    assert_eq!(refused(|x| x.celu(0.0)), ("E0106", Some(1)));
    assert_eq!(refused(|x| x.hard_tanh(1.0, -1.0)), ("E0106", Some(1)));
    assert_eq!(refused(|x| x.soft_shrink(-0.1)), ("E0106", Some(1)));
    assert_eq!(refused(|x| x.sum(vec![0, -2], false)).0, "E0103");
    assert_eq!(refused(|x| x.cumsum(i64::MIN, false, false)).0, "E0103");
    assert_eq!(refused(|x| x.sum(vec![1], false).tril(0)), ("E0100", Some(1)));
    assert_eq!(refused(|x| x.cast(DType::I32).one_hot(-1, 0, DType::F32)), ("E0106", Some(2)));
}
