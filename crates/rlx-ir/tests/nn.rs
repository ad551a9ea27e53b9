//! Norms, losses, rope and attention: values from PyTorch, laws, symbolic sizes, and what is refused.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use rlx_ir::ops::attention::{Attention, AttentionGrad};
use rlx_ir::ops::loss::{DivergenceReduction, Reduction};
use rlx_ir::ops::rope_table::{RopeScaling, RopeTable};
use rlx_ir::{Code, DType, Dim, Graph, Options, Tensor, Var, dim, eval};

const F: DType = DType::F64;

/// sin(0), sin(k), sin(2k), …
fn wave(shape: &[usize], k: f64) -> Tensor {
    let n: usize = shape.iter().product();
    Tensor::new(shape, &(0..n).map(|i| (i as f64 * k).sin()).collect::<Vec<_>>()).unwrap()
}

/// Applies a function of constants and gives the elements of all its results.
fn run<const N: usize>(
    args: [Tensor; N],
    op: impl for<'g> Fn([Var<'g>; N]) -> Vec<Var<'g>>,
) -> Vec<Vec<f64>> {
    let g = Graph::new("test");
    let vars = args.map(|t| g.constant(t));
    for (i, y) in op(vars).into_iter().enumerate() {
        g.output(&format!("y{i}"), y);
    }
    let out = eval(&g.finish().unwrap(), &[], &Options::default()).unwrap();
    out.into_iter().map(|(_, a)| a.f64s()).collect()
}

fn close(got: &[f64], want: &[f64]) {
    assert_eq!(got.len(), want.len());
    for (g, w) in got.iter().zip(want) {
        assert!((g - w).abs() < 1e-12, "{got:?} is not {want:?}");
    }
}

#[test]
fn attention_is_that_of_pytorch() {
    let args = || [wave(&[1, 2, 3, 2], 1.0), wave(&[1, 1, 3, 2], 0.7), wave(&[1, 1, 3, 2], 1.3)];
    let causal = Attention { causal: true, ..Attention::default() };
    let y = run(args(), |[q, k, v]| vec![q.attention(k, v, None, None, None, causal.clone())]);
    let want = [
        0.0,
        0.963558185417193,
        0.3393243904496375,
        -0.12341200961169892,
        -0.3770432472576541,
        0.30690585054054137,
        0.0,
        0.963558185417193,
        0.3504789814506626,
        -0.15914391777127843,
        -0.3768508882282298,
        0.28026650516622775,
    ];
    close(&y[0], &want);

    let [q, k, v] = args();
    let d = run([q, k, v, wave(&[1, 2, 3, 2], 0.9)], |[q, k, v, dy]| {
        q.attention_grad(
            k,
            v,
            dy,
            None,
            None,
            None,
            AttentionGrad { causal: true, ..AttentionGrad::default() },
        )
    });
    let dq = [
        0.0,
        0.0,
        -0.03193479662409807,
        -0.007096713847034787,
        0.10370599187757848,
        -0.10060028284338877,
        0.0,
        0.0,
        -0.18084670664762859,
        -0.04018868015237011,
        0.07608694713694152,
        0.0884089242042634,
    ];
    close(&d[0], &dq);
    let dk = [
        0.36642641396490905,
        0.2873784557494822,
        -0.31529880888643413,
        -0.2433670676427127,
        -0.0511276050784747,
        -0.044011388106769384,
    ];
    close(&d[1], &dk);
    let dv = [
        -0.20381341952053847,
        0.810291008885391,
        1.1810055677229274,
        0.7030826940073869,
        -0.012843099084123816,
        -0.7510292131424471,
    ];
    close(&d[2], &dv);

    let [q, k, v] = args();
    let scaled = Attention { scale: Some(0.3), ..Attention::default() };
    let y = run([q, k, v, wave(&[3, 3], 0.4)], |[q, k, v, bias]| {
        vec![q.attention(k, v, None, bias, None, scaled.clone())]
    });
    let want = [
        -0.14538924499360317,
        0.05621306507076759,
        -0.051996459800105914,
        0.06184518528670427,
        -0.11662622395134968,
        0.3403182624619996,
        -0.1762926703222624,
        0.08377917776448238,
        -0.0245888241128848,
        0.04553395218314879,
        -0.11414456025253088,
        0.32352273372629153,
    ];
    close(&y[0], &want);
}

#[test]
fn one_query_at_a_time_gives_the_same_as_all_at_once() {
    for window in [None, Some(2)] {
        let a = Attention { causal: true, window, ..Attention::default() };
        let args =
            [wave(&[1, 2, 4, 2], 1.0), wave(&[1, 1, 4, 2], 0.7), wave(&[1, 1, 4, 3], 1.3), wave(&[2], 0.5)];
        let y = run(args, |[q, k, v, slopes]| {
            let whole = q.attention(k, v, None, None, slopes, a.clone());
            let step = |i: i64| {
                let (k, v) = (k.narrow(2, 0, i + 1), v.narrow(2, 0, i + 1));
                q.narrow(2, i, 1).attention(k, v, None, None, slopes, a.clone())
            };
            vec![whole, whole.graph().concat(&(0..4).map(step).collect::<Vec<_>>(), 2)]
        });
        close(&y[0], &y[1]);
    }
}

#[test]
fn a_query_that_sees_nothing_gives_zeros_and_takes_zeros() {
    let inf = f64::INFINITY;
    let bias = Tensor::new(&[2, 2], &[-inf, -inf, 0.0, -inf]).unwrap();
    let none = Tensor::from_f64s(DType::Bool, &[2, 2], &[0.0, 0.0, 1.0, 0.0]).unwrap();
    let args = || {
        [
            wave(&[1, 1, 2, 2], 1.0),
            wave(&[1, 1, 2, 2], 0.7),
            wave(&[1, 1, 2, 1], 1.3),
            wave(&[1, 1, 2, 1], 0.9),
        ]
    };
    let both = |d: Vec<Vec<f64>>| {
        assert_eq!(d[0][0], 0.0, "{d:?}");
        assert!(d.iter().flatten().all(|x| x.is_finite()), "{d:?}");
        assert_eq!(&d[1][..2], [0.0, 0.0], "dq: {d:?}");
        assert_eq!(&d[2][2..], [0.0, 0.0], "dk of a key that nobody sees: {d:?}");
        assert_eq!(d[3][1], 0.0, "dv of a key that nobody sees: {d:?}");
    };
    let [q, k, v, dy] = args();
    both(run([q, k, v, dy, bias], |[q, k, v, dy, bias]| {
        let y = q.attention(k, v, None, bias, None, Attention::default());
        [vec![y], q.attention_grad(k, v, dy, None, bias, None, AttentionGrad::default())].concat()
    }));
    let [q, k, v, dy] = args();
    both(run([q, k, v, dy, none], |[q, k, v, dy, mask]| {
        let y = q.attention(k, v, mask, None, None, Attention::default());
        [vec![y], q.attention_grad(k, v, dy, mask, None, None, AttentionGrad::default())].concat()
    }));
}

#[test]
fn rope_turns_and_turns_back() {
    for (interleaved, n_rot) in [(false, 4), (true, 4), (false, 2), (true, 0)] {
        let y = run([wave(&[2, 3, 8], 1.0)], |[x]| {
            let table = RopeTable { positions: 2.into(), n_rot: 6, dtype: F, ..RopeTable::default() };
            let [cos, sin] = x.graph().rope_table(table);
            let turned = x.rope(cos, sin, None, 4, n_rot, interleaved, false);
            vec![x, turned, turned.rope(cos, sin, None, 4, n_rot, interleaved, true)]
        });
        close(&y[0], &y[2]);
        assert_eq!(y[0] == y[1], n_rot == 0);
        // Positions 0 and 2 share the row 0, the angle 0.
        assert_eq!(y[1][..8], y[0][..8]);
        assert_eq!(y[1][16..24], y[0][16..24]);
    }
}

#[test]
fn rope_tables_are_those_of_llama_3_and_exact_far_out() {
    let g = Graph::new("table");
    let llama = RopeTable {
        positions: 9001.into(),
        n_rot: 128,
        base: 500000.0,
        scaling: RopeScaling::Llama3,
        factor: 8.0,
        original: 8192,
        ..RopeTable::default()
    };
    for dtype in [DType::F64, DType::F32] {
        let [cos, sin] = g.rope_table(RopeTable { dtype, ..llama.clone() });
        let name = dtype.to_string();
        g.output(&format!("cos.{name}"), cos.narrow(0, 9000, 1));
        g.output(&format!("sin.{name}"), sin.narrow(0, 9000, 1));
    }
    let out = eval(&g.finish().unwrap(), &[], &Options::default()).unwrap();
    let want = [
        (0, -0.7881785419506256, 0.615446655696971),
        (30, 0.9760437695084149, -0.21757426319260373),
        (33, -0.9468980884043119, 0.3215338398617786),
        (63, 0.9999961855882011, 0.0027620298781779163),
    ];
    for (j, cos, sin) in want {
        for (at, limit) in [(0, 1e-9), (2, 2e-6)] {
            assert!(
                (out[at].1.f64s()[j] - cos).abs() < limit && (out[at + 1].1.f64s()[j] - sin).abs() < limit
            );
        }
    }
}

#[test]
fn norms_and_losses_are_those_of_pytorch() {
    let y = run([wave(&[2, 4, 3], 1.0), wave(&[4], 1.0), wave(&[4], 0.5)], |[x, gamma, beta]| {
        vec![x.group_norm(gamma, beta, 2, 1e-5)]
    });
    close(&y[0][..6], &[0.0, 0.0, 0.0, 0.6115008624999411, -0.44964524235829384, -0.6885085496764134]);
    let y = run([wave(&[2, 3], 1.0), wave(&[3], 0.3)], |[x, gamma]| vec![x.rms_norm(gamma, None, 1e-6)]);
    let want = [0.0, 0.347653945197377, 0.717794853939717, 0.0, -0.31501064157735253, -0.7626290497330379];
    close(&y[0], &want);
    let targets = Tensor::new(&[4], &[0i64, 2, -100, 1]).unwrap();
    let y = run([wave(&[4, 3], 1.0), targets], |[x, t]| vec![x.cross_entropy(t, -100, 0.1, Reduction::Mean)]);
    close(&y[0], &[1.5791353397118375]);
}

#[test]
fn rows_that_do_not_count_have_no_gradient() {
    let x = Tensor::new(&[3, 2], &[f64::NAN, 1.0, 0.5, 0.5, 1e300, -1e300]).unwrap();
    let targets = Tensor::new(&[3], &[7i32, 1, 2]).unwrap();
    let d = run([x, targets, Tensor::scalar(1.0)], |[x, t, dy]| {
        vec![
            x.cross_entropy(t, 7, 0.0, Reduction::Mean),
            x.cross_entropy_grad(t, dy, 7, 0.0, Reduction::Mean),
        ]
    });
    close(&d[0], &[2f64.ln()]);
    close(&d[1], &[0.0, 0.0, 0.5, -0.5, 0.0, 0.0]);
}

#[test]
fn everything_keeps_symbols() {
    let g = Graph::new("symbols");
    let (b, s, t, c) = (dim("b", 8), dim("s", 64), dim("t", 64), dim("c", 16));
    let x = g.input("x", F, [b.clone(), s.clone(), 8.into()]);
    let y = x.rms_norm(None, None, 1e-6).layer_norm(None, None, 1e-5, 2).softmax(1).l2_normalize(-1, 1e-6);
    let [cos, sin] =
        g.rope_table(RopeTable { positions: t.clone(), n_rot: 4, dtype: F, ..RopeTable::default() });
    let y = y.rope(cos, sin, None, 4, 4, false, false);
    let heads = |x: Var<'_>, n: &Dim| -> Vec<Dim> { vec![x.dim(0), n.clone(), 2.into(), 4.into()] };
    let q = y.reshape(heads(y, &s)).permute(vec![0, 2, 1, 3]);
    let kv = g.input("kv", F, [b.clone(), 1.into(), t.clone(), 4.into()]);
    let mask = g.input("mask", DType::Bool, [b.clone(), 1.into(), 1.into(), t.clone()]);
    let slopes = g.alibi_slopes(2, F);
    let a = Attention { causal: true, softcap: Some(5.0), window: Some(9), ..Attention::default() };
    let z = q.attention(kv, kv, mask, None, slopes, a);
    assert_eq!(z.shape(), [b.clone(), 2.into(), s.clone(), 4.into()]);
    let image = g.input("image", F, [b.clone(), &c * 4, s.clone(), s.clone()]);
    let gamma = g.input("gamma", F, [&c * 4]);
    let w = image.group_norm(gamma, None, 2, 1e-5).instance_norm(gamma, gamma, 1e-5);
    let [w, ..] = w.batch_norm_train(gamma, None, 1e-5);
    assert_eq!(w.shape(), image.shape());
    let targets = g.input("targets", DType::I32, [b.clone(), s.clone()]);
    let loss = z.sum(vec![1], false).cross_entropy(targets, 0, 0.1, Reduction::Mean)
        + w.mse_loss(image, Reduction::Mean)
        + x.kl_div(y, true, DivergenceReduction::BatchMean);
    g.output("loss", loss);
    let step = g.vjp(loss, &[x, kv, image, gamma]).unwrap();
    let data: [(&str, Tensor); 6] = [
        ("x", wave(&[2, 3, 8], 1.0)),
        ("kv", wave(&[2, 1, 5, 4], 0.7)),
        (
            "mask",
            Tensor::from_f64s(DType::Bool, &[2, 1, 1, 5], &[1., 1., 0., 1., 1., 1., 1., 1., 1., 0.]).unwrap(),
        ),
        ("image", wave(&[2, 4, 3, 3], 0.3)),
        ("gamma", wave(&[4], 0.9)),
        ("targets", Tensor::new(&[2, 3], &[1i32, 2, 3, 0, 1, 2]).unwrap()),
    ];
    let inputs: Vec<(&str, &Tensor)> = data.iter().map(|(n, t)| (*n, t)).collect();
    let out = eval(&step, &inputs, &Options::default()).unwrap();
    assert!(out.iter().all(|(_, a)| a.f64s().iter().all(|x| x.is_finite())));
    assert_eq!(out[2].1.shape(), [2, 1, 5, 4]);
}

/// What a graph is refused for: the code and the number of the constraint.
fn refused(build: impl for<'g> Fn(&'g Graph)) -> (Code, Option<usize>) {
    let g = Graph::new("bad");
    build(&g);
    let e = g.finish().expect_err("must be refused");
    (e.code(), e.bad_constraint())
}

#[test]
fn what_does_not_fit_is_refused() {
    fn x<'g>(g: &'g Graph, shape: &[i64]) -> Var<'g> {
        g.zeros(F, &shape.iter().map(|n| Dim::constant(*n)).collect::<Vec<_>>())
    }
    fn ids<'g>(g: &'g Graph, shape: &[i64]) -> Var<'g> {
        g.zeros(DType::I32, &shape.iter().map(|n| Dim::constant(*n)).collect::<Vec<_>>())
    }
    let default = Attention::default;
    let table = || RopeTable { positions: 4.into(), n_rot: 4, ..RopeTable::default() };
    macro_rules! refuse {
        ($($code:ident $n:literal: |$g:ident| $e:expr;)*) => {$(
            assert_eq!(refused(|$g| { let _ = $e; }), (Code::$code, Some($n)), "{}", stringify!($e));
        )*};
    }
    refuse! {
        Dim 2: |g| x(g, &[2, 3]).softmax_grad(x(g, &[2, 4]), 0);
        Axis 1: |g| x(g, &[2]).layer_norm(None, None, 1e-5, 2);
        Axis 1: |g| x(g, &[2]).layer_norm(None, None, 1e-5, i64::MIN);
        Axis 1: |g| x(g, &[]).rms_norm(None, None, 1e-5);
        Dim 2: |g| x(g, &[2, 3]).rms_norm(x(g, &[4]), None, 1e-5);
        Rank 2: |g| x(g, &[2, 3]).layer_norm(None, x(g, &[1, 3]), 1e-5, 1);
        Attribute 3: |g| x(g, &[2, 3]).layer_norm(None, None, -1.0, 1);
        Attribute 3: |g| x(g, &[2, 3]).rms_norm(None, None, f64::NAN);
        Dim 4: |g| x(g, &[2, 3]).rms_norm_grad(x(g, &[3, 3]), None, 1e-5);
        Rank 1: |g| x(g, &[2]).group_norm(None, None, 1, 1e-5);
        Attribute 3: |g| x(g, &[2, 4]).group_norm(None, None, 3, 1e-5);
        Attribute 3: |g| x(g, &[2, 4]).group_norm(None, None, 0, 1e-5);
        Dim 2: |g| x(g, &[2, 4]).batch_norm(None, None, x(g, &[4]), x(g, &[2]), 1e-5);
        Dim 2: |g| x(g, &[2, 4]).cross_entropy(ids(g, &[3]), 0, 0.0, Reduction::Mean);
        Attribute 3: |g| x(g, &[2, 4]).cross_entropy(ids(g, &[2]), 0, f64::NAN, Reduction::Mean);
        Rank 4: |g| x(g, &[2, 4]).cross_entropy_grad(ids(g, &[2]), x(g, &[2]), 0, 0.0, Reduction::Mean);
        Dim 1: |g| x(g, &[2]).mse_loss(x(g, &[1]), Reduction::Mean);
        Attribute 2: |g| x(g, &[2]).huber_loss(x(g, &[2]), 0.0, Reduction::Mean);
        Broadcast 2: |g| x(g, &[2]).bce_with_logits(x(g, &[2]), x(g, &[3, 2]), Reduction::Mean);
        Rank 2: |g| x(g, &[]).kl_div(x(g, &[]), false, DivergenceReduction::BatchMean);
        Rank 1: |g| x(g, &[2, 4]).rope(x(g, &[3, 2]), x(g, &[3, 2]), None, 4, 4, false, false);
        Attribute 2: |g| x(g, &[1, 2, 4]).rope(x(g, &[3, 2]), x(g, &[3, 2]), None, 3, 2, false, false);
        Attribute 2: |g| x(g, &[1, 2, 0]).rope(x(g, &[3, 2]), x(g, &[3, 2]), None, i64::MAX, 2, false, false);
        Attribute 3: |g| x(g, &[1, 2, 4]).rope(x(g, &[3, 2]), x(g, &[3, 2]), None, 4, 3, false, false);
        Attribute 3: |g| x(g, &[1, 2, 4]).rope(x(g, &[3, 2]), x(g, &[3, 2]), None, 4, 6, false, false);
        DType 4: |g| x(g, &[1, 2, 4]).rope(x(g, &[3, 2]), ids(g, &[3, 2]), None, 4, 4, false, false);
        Dim 4: |g| x(g, &[1, 2, 4]).rope(x(g, &[3, 2]), x(g, &[2, 2]), None, 4, 4, false, false);
        Dim 5: |g| x(g, &[1, 2, 4]).rope(x(g, &[3, 1]), x(g, &[3, 1]), None, 4, 4, false, false);
        Dim 5: |g| x(g, &[1, 2, 4]).rope(x(g, &[0, 2]), x(g, &[0, 2]), None, 4, 4, false, false);
        Dim 6: |g| x(g, &[1, 2, 4]).rope(x(g, &[3, 2]), x(g, &[3, 2]), ids(g, &[1, 3]), 4, 4, false, false);
        Attribute 1: |g| g.rope_table(RopeTable { n_rot: 3, ..table() });
        Attribute 1: |g| g.rope_table(RopeTable { n_rot: i64::MAX - 1, ..table() });
        Attribute 2: |g| g.rope_table(RopeTable { factor: 0.0, ..table() });
        Attribute 3: |g| g.rope_table(RopeTable { low_turns: 4.0, ..table() });
        Attribute 4: |g| g.rope_table(RopeTable { factors: vec![1.0], ..table() });
        DType 5: |g| g.rope_table(RopeTable { dtype: DType::I32, ..table() });
        Attribute 6: |g| g.rope_table(RopeTable { magnitude: Some(f64::NAN), ..table() });
        Attribute 7: |g| g.rope_table(RopeTable { base: 1.0, scaling: RopeScaling::Yarn, ..table() });
        Attribute 1: |g| g.alibi_slopes(-1, F);
    }
    macro_rules! refuse_attention {
        ($($code:ident $n:literal: $q:expr, $k:expr, $v:expr, $mask:expr, $bias:expr, $slopes:expr, $a:expr;)*) => {$(
            let build = |g: &Graph| {
                let opt = |s: Option<&[i64]>| s.map(|s| x(g, s));
                let mask = $mask.map(|s: &[i64]| ids(g, s).cast(DType::Bool));
                x(g, &$q).attention(x(g, &$k), x(g, &$v), mask, opt($bias), opt($slopes), $a);
            };
            assert_eq!(refused(build), (Code::$code, Some($n)), "{}", stringify!($q, $k, $v, $a));
        )*};
    }
    let none = || None::<&[i64]>;
    refuse_attention! {
        Rank 1: [2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4], none(), None, None, default();
        Dim 2: [1, 2, 3, 4], [2, 2, 3, 4], [2, 2, 3, 4], none(), None, None, default();
        Dim 2: [1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 3, 4], none(), None, None, default();
        Dim 2: [1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 4, 4], none(), None, None, default();
        Dim 3: [1, 3, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4], none(), None, None, default();
        Dim 3: [1, 3, 3, 4], [1, 0, 3, 4], [1, 0, 3, 4], none(), None, None, default();
        Broadcast 4: [1, 2, 3, 4], [1, 2, 5, 4], [1, 2, 5, 4], Some(&[3, 4][..]), None, None, default();
        Broadcast 4: [1, 2, 3, 4], [1, 2, 5, 4], [1, 2, 5, 4], none(), Some(&[2, 2, 3, 5][..]), None, default();
        Dim 5: [1, 2, 3, 4], [1, 1, 5, 4], [1, 1, 5, 4], none(), None, Some(&[1][..]), default();
        Attribute 6: [1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4], none(), None, None,
            Attention { softcap: Some(0.0), ..default() };
        Attribute 6: [1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4], none(), None, None,
            Attention { scale: Some(f64::INFINITY), ..default() };
        Attribute 7: [1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4], none(), None, None,
            Attention { window: Some(0), ..default() };
    }
}
