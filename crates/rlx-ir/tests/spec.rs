//! The contracts of the hard ops, sentence by sentence, on examples small enough to work out by hand.
//!
//! PyTorch and finite differences judge the formulas (`rlx-conformance`); here every fact that a backend must honour has
//! an example with literal numbers, so that nobody can read it in two ways.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use rlx_ir::attr::Attributes;
use rlx_ir::ops::attention::Attention;
use rlx_ir::ops::fake_quantize::FakeQuantize;
use rlx_ir::ops::pool::AvgPool;
use rlx_ir::ops::rope_table::{RopeScaling, RopeTable};
use rlx_ir::quant::{Scheme, SchemeKind};
use rlx_ir::{Code, DType, Dim, Error, Func, Graph, Options, Rounding, Tensor, Var, dim, eval, transform};

const F: DType = DType::F64;

fn t(shape: &[usize], v: &[f64]) -> Tensor {
    Tensor::new(shape, v).unwrap()
}
fn ids(shape: &[usize], v: &[i32]) -> Tensor {
    Tensor::new(shape, v).unwrap()
}
/// 1, 2, 3, …
fn counted(shape: &[usize]) -> Tensor {
    let n = shape.iter().product::<usize>();
    t(shape, &(1..=n).map(|i| i as f64).collect::<Vec<_>>())
}

/// Applies a function of constants and gives the elements of all its results.
fn run<const N: usize>(
    args: [Tensor; N],
    op: impl for<'g> Fn([Var<'g>; N]) -> Vec<Var<'g>>,
) -> Vec<Vec<f64>> {
    run_with(Rounding::Exact, args, op)
}

fn run_with<const N: usize>(
    rounding: Rounding,
    args: [Tensor; N],
    op: impl for<'g> Fn([Var<'g>; N]) -> Vec<Var<'g>>,
) -> Vec<Vec<f64>> {
    let g = Graph::new("spec");
    for (i, y) in op(args.map(|t| g.constant(t))).into_iter().enumerate() {
        g.output(&format!("y{i}"), y);
    }
    let options = Options { rounding, ..Options::default() };
    eval(&g.finish().unwrap(), &[], &options).unwrap().into_iter().map(|(_, a)| a.f64s()).collect()
}

/// The gradients of `Σ dy · op(args)` to all arguments; dy is 1, 2, 3, …
fn grads<const N: usize>(args: [Tensor; N], op: impl for<'g> Fn([Var<'g>; N]) -> Var<'g>) -> Vec<Vec<f64>> {
    let g = Graph::new("spec");
    let names: [String; N] = std::array::from_fn(|i| format!("x{i}"));
    let ports: [_; N] =
        std::array::from_fn(|i| g.input(&names[i], args[i].dtype(), args[i].shape().iter().copied()));
    let y = op(ports);
    let sizes: Vec<usize> = y.shape().iter().map(|d| d.as_const().unwrap() as usize).collect();
    g.output("loss", (y * g.constant(counted(&sizes))).sum_all());
    let wrt: Vec<&str> =
        names.iter().zip(&args).filter(|(_, t)| t.dtype().is_float()).map(|(n, _)| n.as_str()).collect();
    let f = transform::vjp(&g.finish().unwrap(), &["loss"], &wrt).unwrap();
    let data: Vec<(&str, &Tensor)> = names.iter().map(String::as_str).zip(&args).collect();
    let out = eval(&f, &data, &Options::default()).unwrap();
    wrt.iter().map(|n| out.iter().find(|(name, _)| *name == format!("grad.{n}")).unwrap().1.f64s()).collect()
}

fn close(got: &[f64], want: &[f64]) {
    assert_eq!(got.len(), want.len(), "{got:?} is not {want:?}");
    for (g, w) in got.iter().zip(want) {
        assert!((g - w).abs() <= 1e-12 * w.abs().max(1.0), "{got:?} is not {want:?}");
    }
}

/// The error that a graph is refused for.
fn refused(build: impl for<'g> Fn(&'g Graph)) -> Error {
    let g = Graph::new("bad");
    build(&g);
    g.finish().expect_err("must be refused")
}

// ---- rope and its gradient ----

/// cos and sin tables of 3 rows whose entries tell row and column: 10·row + column, and 100 more for sin.
fn tables(w: usize) -> [Tensor; 2] {
    let entry = |i: usize| (10 * (i / w) + i % w) as f64;
    let cos: Vec<f64> = (0..3 * w).map(entry).collect();
    [t(&[3, w], &cos), t(&[3, w], &cos.iter().map(|c| c + 100.0).collect::<Vec<_>>())]
}

#[test]
fn the_row_stride_of_rope_is_the_width_of_the_table() {
    // head_dim 6, n_rot 4: r = 2. The table is 2, 3 (= head_dim / 2) or 5 wide, and the result is always the same.
    for w in [2, 3, 5] {
        let [cos, sin] = tables(w);
        let y =
            run([t(&[1, 2, 6], &[1., 2., 3., 4., 5., 6., 1., 2., 3., 4., 5., 6.]), cos, sin], |[x, c, s]| {
                vec![x.rope(c, s, None, 6, 4, false, false)]
            });
        let at = |c: f64, d: usize| {
            let (x1, x2, s) = ([1., 2.][d], [3., 4.][d], c + 100.0);
            (x1 * c - x2 * s, x1 * s + x2 * c)
        };
        let ((a, b), (c, d), (e, f), (g, h)) = (at(0., 0), at(1., 1), at(10., 0), at(11., 1));
        assert_eq!(y[0], [a, c, b, d, 5., 6., e, g, f, h, 5., 6.], "a table of width {w}");
    }
}

#[test]
fn interleaved_rope_turns_neighbours() {
    let [cos, sin] = tables(4);
    let y = run([t(&[1, 1, 6], &[1., 2., 3., 4., 5., 6.]), cos, sin], |[x, c, s]| {
        vec![x.rope(c, s, None, 6, 4, true, false)]
    });
    // Column 0: cos 0, sin 100; column 1: cos 1, sin 101.
    assert_eq!(y[0], [-200., 100., 3. - 404., 303. + 4., 5., 6.]);
}

#[test]
fn a_short_table_wraps_and_positions_pick_rows() {
    let turned = |positions: Option<Tensor>| {
        let [cos, sin] = tables(1);
        let x = t(&[1, 5, 2], &[1., 0., 1., 0., 1., 0., 1., 0., 1., 0.]);
        let positions = positions.unwrap_or_else(|| ids(&[1, 5], &[0, 1, 2, 3, 4]));
        run([x, cos, sin, positions], |[x, c, s, p]| {
            vec![x.rope(c, s, None, 2, 2, false, false), x.rope(c, s, p, 2, 2, false, false)]
        })
    };
    let rows = |r: [f64; 5]| r.iter().flat_map(|r| [10. * r, 10. * r + 100.]).collect::<Vec<_>>();
    let y = turned(None);
    assert_eq!(y[0], rows([0., 1., 2., 0., 1.]));
    assert_eq!(y[1], y[0]);
    assert_eq!(turned(Some(ids(&[1, 5], &[2, 5, -1, 300, -3])))[1], rows([2., 2., 2., 0., 0.]));
    let far = Tensor::new(&[1, 5], &[u64::MAX, u64::MAX - 1, 1 << 63, 4, 0]).unwrap();
    assert_eq!(turned(Some(far))[1], rows([0., 2., 2., 1., 0.]), "2^64 = 1 modulo 3");
}

#[test]
fn rope_goes_back_by_the_opposite_angle_and_copies_what_passed() {
    let x = || counted(&[1, 1, 6]);
    let [cos, sin] = [t(&[1, 3], &[0.5, 0.25, 9.]), t(&[1, 3], &[0.1, 0.2, 9.])];
    let d = grads([x(), cos, sin], |[x, c, s]| x.rope(c, s, None, 6, 4, false, false));
    // dy = 1 … 6; dx[d] = dy[d]·c + dy[d+r]·s, dx[d+r] = −dy[d]·s + dy[d+r]·c.
    close(&d[0], &[0.5 + 0.3, 0.5 + 0.8, -0.1 + 1.5, -0.4 + 1.0, 5., 6.]);
    // The tables: dc = dy₁·x₁ + dy₂·x₂, ds = dy₂·x₁ − dy₁·x₂ with x = dy; nothing for the column that is not used.
    close(&d[1], &[1. + 9., 4. + 16., 0.]);
    close(&d[2], &[0., 0., 0.]);
}

#[test]
fn a_table_that_turns_out_too_small_is_an_error() {
    let g = Graph::new("rope");
    let (rows, w) = (dim("rows", 8), dim("w", 8));
    let x = g.input("x", F, [1, 2, 4]);
    let (c, s) = (g.input("cos", F, [rows.clone(), w.clone()]), g.input("sin", F, [rows, w]));
    g.output("y", x.rope(c, s, None, 4, 4, false, false));
    let f = g.finish().unwrap();
    let go = |rows: usize, w: usize| {
        let table = t(&[rows, w], &vec![1.0; rows * w]);
        let data = [("x", &counted(&[1, 2, 4])), ("cos", &table), ("sin", &table)];
        eval(&f, &data, &Options::default()).map(|_| ())
    };
    assert!(go(1, 2).is_ok());
    let broken = |rows, w| go(rows, w).expect_err("must be refused").bad_constraint();
    assert_eq!(broken(1, 1), Some(5), "two pairs, one column");
    assert_eq!(broken(0, 2), Some(5), "no row to wrap around to");
}

/// The body of the table, every step of it rounded to f32 as a device has it.
#[test]
fn far_positions_keep_their_angle_in_f32() {
    for (positions, n_rot, scaling) in [
        (9_000, 8, RopeScaling::None),
        (65_536, 2, RopeScaling::None),
        (131_072, 2, RopeScaling::Llama3),
        (200_000, 2, RopeScaling::None),
    ] {
        let a = RopeTable {
            positions: positions.into(),
            n_rot,
            base: 500_000.0,
            scaling,
            factor: 8.0,
            ..RopeTable::default()
        };
        let body = |dtype| {
            let attrs = RopeTable { dtype, ..a.clone() }.to_values();
            let f = Graph::body_of(RopeTable::DEF, &attrs, &[], &[]).unwrap();
            let options = Options { rounding: Rounding::Declared, ..Options::default() };
            let out = eval(&f, &[], &options).unwrap();
            out.into_iter().map(|(_, a)| a.f64s()).collect::<Vec<_>>()
        };
        let (narrow, exact) = (body(DType::F32), body(F));
        for (got, want) in narrow.iter().zip(&exact) {
            let gap = got.iter().zip(want).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max);
            assert!(gap < 4e-6, "{positions} positions: off by {gap}");
        }
        // Against the angle itself, for the pair that turns fastest.
        let pairs = n_rot as usize / 2;
        for p in (0..positions as usize).rev().step_by(997) {
            assert!(
                (exact[0][p * pairs] - (p as f64).cos()).abs() < 1e-9
                    && (exact[1][p * pairs] - (p as f64).sin()).abs() < 1e-9
            );
        }
    }
}

// ---- selective_scan ----

#[test]
fn selective_scan_by_hand() {
    // One channel, two states; delta·A is a logarithm of 2, so that the decay is 1/2 and 1/4.
    let a = t(&[1, 2], &[-(2f64.ln()), -(4f64.ln())]);
    let ones = || t(&[1, 2, 1], &[1., 1.]);
    let (b, c) = (t(&[1, 2, 2], &[1., 2., 3., 4.]), t(&[1, 2, 2], &[1., 1., 1., 10.]));
    let y = run([t(&[1, 2, 1], &[1., 10.]), ones(), a, b, c], |[x, dt, a, b, c]| {
        x.selective_scan(dt, a, b, c, None, None, None, None, false).to_vec()
    });
    // state[0] = [1, 2]; state[1] = [1/2 + 30, 2/4 + 40].
    close(&y[0], &[3., 30.5 + 405.]);
    close(&y[1], &[30.5, 40.5]);
}

/// A scan of a length that is known only when it runs.
fn planned_scan(s: Dim) -> Func {
    let g = Graph::new("planned");
    let x = g.input("x", F, [2.into(), s.clone(), 1.into()]);
    let delta = g.input("delta", F, [2.into(), s.clone(), 1.into()]);
    let a = g.input("a", F, [1, 1]);
    let b = g.input("b", F, [2.into(), s, 1.into()]);
    let [y, last] = x.selective_scan(delta, a, b, b, None, None, None, None, false);
    g.output("y", y);
    g.output("last", last);
    g.finish().unwrap()
}

#[test]
fn a_scan_shorter_than_planned_keeps_the_batch_strides() {
    let f = planned_scan(dim("s", 1000));
    let x = t(&[2, 3, 1], &[1., 2., 3., 40., 50., 60.]);
    let ones = t(&[2, 3, 1], &[1.0; 6]);
    let data = [("x", &x), ("delta", &ones), ("a", &t(&[1, 1], &[0.0])), ("b", &ones)];
    let out = eval(&f, &data, &Options::default()).unwrap();
    // A = 0: no decay, so the states are running sums, each row of the batch its own.
    assert_eq!(out[0].1.f64s(), [1., 3., 6., 40., 90., 150.]);
    assert_eq!(out[1].1.f64s(), [6., 150.]);
}

#[test]
fn a_state_size_has_no_cap() {
    let n = 1000;
    let (x, dt) = (t(&[1, 1, 1], &[2.]), t(&[1, 1, 1], &[1.]));
    let ones = || t(&[1, 1, n], &vec![1.0; n]);
    let y = run([x, dt, t(&[1, n], &vec![-1.0; n]), ones(), ones()], |[x, dt, a, b, c]| {
        vec![x.selective_scan(dt, a, b, c, None, None, None, None, false)[0]]
    });
    close(&y[0], &[2000.0]);
}

#[test]
fn the_gradient_of_a_scan_keeps_about_two_roots_of_its_states() {
    // The longest stacked value of the state's own shape, in all regions, is what is kept.
    let g = Graph::new("memory");
    let x = g.input("x", F, [1, 400, 7]);
    let a = g.input("a", F, [7, 5]);
    let b = g.input("b", F, [1, 400, 5]);
    let [y, _] = x.selective_scan(x, a, b, b, None, None, None, None, true);
    g.output("loss", y.sum_all());
    let f = transform::vjp(&g.finish().unwrap(), &["loss"], &["x", "a", "b"]).unwrap();
    fn states(f: &Func, most: &mut i64) {
        for node in &f.nodes {
            for v in &node.results {
                let shape = &f.ty(*v).unwrap().shape;
                let n: i64 = shape.iter().map(|d| d.as_const().unwrap()).product();
                if shape.ends_with(&[7.into(), 5.into()]) {
                    *most = (*most).max(n / 35);
                }
            }
            node.regions.iter().for_each(|r| states(r, most));
        }
    }
    let node = f.nodes.iter().find(|n| n.op.name == "selective_scan_grad").expect("an op of its own");
    let types: Vec<_> = node.operands.iter().map(|v| v.map(|v| f.ty(v).unwrap().clone())).collect();
    let mut most = 0;
    states(&Graph::body_of(node.op, &node.attrs, &types, &[]).unwrap(), &mut most);
    assert!((20..=40).contains(&most), "{most} states of 400 are kept");
}

// ---- qkv ----

#[test]
fn qkv_splits_columns_of_any_width() {
    // m = 1, k = 3, q 2 columns, k and v 1 each; then 3·hw with hw = 1.
    let w = counted(&[3, 4]);
    let y = run([t(&[1, 3], &[1., 10., 100.]), w, t(&[4], &[0.5, 0., 0., -1.])], |[x, w, b]| {
        x.qkv(w, b, 2, 1).to_vec()
    });
    assert_eq!(y[0], [951.5, 1062.]);
    assert_eq!((&y[1][..], &y[2][..]), (&[1173.][..], &[1283.][..]));
    let y = run([t(&[2, 1], &[1., 2.]), t(&[1, 3], &[1., 2., 3.])], |[x, w]| x.qkv(w, None, 1, 1).to_vec());
    assert_eq!(y, [[1., 2.], [2., 4.], [3., 6.]]);
}

#[test]
fn qkv_is_refused_where_the_columns_do_not_add_up() {
    let bad = |q: i64, kv: i64| {
        refused(|g| {
            let _ = g.input("x", F, [2, 4]).qkv(g.input("w", F, [4, 6]), None, q, kv);
        })
    };
    assert_eq!(bad(2, 1).bad_constraint(), Some(4));
    assert_eq!(bad(-2, 4).code(), Code::Size);
    assert_eq!(bad(8, -1).code(), Code::Size);
}

// ---- dequant_matmul ----

fn bytes(v: &[f32]) -> Vec<u8> {
    v.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// What a packed matrix decodes to, and the product of a row of x with it.
fn unpacked(scheme: &str, shape: [usize; 2], planes: Vec<Vec<u8>>, x: &[f32]) -> [Vec<f64>; 2] {
    let scheme = Scheme::parse(scheme).unwrap();
    let w = Tensor::packed(scheme, &shape, planes.into_iter().map(Into::into).collect()).unwrap();
    let y = run([w, Tensor::new(&[1, x.len()], x).unwrap()], |[w, x]| {
        vec![w.dequantize(DType::F32, false), x.dequant_matmul(w, None, false)]
    });
    y.try_into().unwrap()
}

#[test]
fn int8_blocks_have_a_scale_for_each_block_and_column() {
    // k = 3 in blocks of 2 (the last is short), n = 2. Flat order is k·n + col.
    let codes = [1i8, -2, 3, -128, 127, 6].map(|c| c as u8).to_vec();
    let scale = bytes(&[0.5, 2.0, 4.0, 8.0]);
    let [w, y] = unpacked("int8:2", [3, 2], vec![codes.clone(), scale.clone()], &[1., 10., 100.]);
    assert_eq!(w, [0.5, -4., 1.5, -256., 508., 48.]);
    assert_eq!(y, [0.5 + 15. + 50800., -4. - 2560. + 4800.]);
    let zero = bytes(&[1.0, -1.0, 0.5, 6.0]);
    let [w, y] = unpacked("int8_asym:2", [3, 2], vec![codes, scale, zero], &[1., 10., 100.]);
    assert_eq!(w, [0., -2., 1., -254., 506., 0.]);
    assert_eq!(y, [10. + 50600., -2. - 2540.]);
}

#[test]
fn int4_has_the_low_nibble_first() {
    // 0x8f: low f = −1, high 8 = −8; an odd total leaves the last high nibble.
    let [w, y] = unpacked("int4:2", [3, 1], vec![vec![0x8f, 0x07], bytes(&[0.5, 3.0])], &[1., 1., 1.]);
    assert_eq!(w, [-0.5, -4., 21.]);
    assert_eq!(y, [16.5]);
    // Two columns: the nibbles of a byte are neighbours in a row.
    let [w, _] = unpacked("int4:2", [2, 2], vec![vec![0x21, 0x43], bytes(&[1., 10.])], &[0., 0.]);
    assert_eq!(w, [1., 20., 3., 40.]);
}

#[test]
fn fp8_codes_decode_as_they_are_and_count_as_zero_in_a_product() {
    // E4M3: 0x38 = 1, 0x7e = 448, 0x01 = 2⁻⁹, 0x7f and 0xff are NaN, 0x78 = 256 is no infinity.
    let codes = vec![0x38, 0x7e, 0x01, 0x7f, 0xff, 0x78];
    let [w, y] = unpacked("fp8_e4m3", [6, 1], vec![codes], &[1.; 6]);
    assert_eq!(w[..3], [1., 448., 2f64.powi(-9)]);
    assert!(w[3].is_nan() && w[4].is_nan());
    assert_eq!(w[5], 256.);
    assert_eq!(y, [1. + 448. + 2f64.powi(-9) + 256.]);
    // E5M2: 0x3c = 1, 0x7b = 57344, 0x01 = 2⁻¹⁶, 0x7c and 0xfc infinities, 0x7d … 0x7f NaN.
    let codes = vec![0x3c, 0x7b, 0x01, 0x7c, 0xfc, 0x7d, 0xff];
    let [w, y] = unpacked("fp8_e5m2", [7, 1], vec![codes], &[1.; 7]);
    assert_eq!(w[..5], [1., 57344., 2f64.powi(-16), f64::INFINITY, f64::NEG_INFINITY]);
    assert!(w[5].is_nan() && w[6].is_nan());
    assert_eq!(y, [57345. + 2f64.powi(-16)]);
}

#[test]
fn nvfp4_is_code_times_scale_times_global() {
    // All sixteen E2M1 codes, low nibble first, in one column; one block of 16.
    let codes: Vec<u8> = (0..8).map(|i| ((2 * i + 1) << 4) | (2 * i)).collect();
    let magnitudes = [0., 0.5, 1., 1.5, 2., 3., 4., 6.];
    // 0x40 is 2 in E4M3.
    let [w, y] = unpacked("nvfp4:16", [16, 1], vec![codes.clone(), vec![0x40], bytes(&[0.25])], &[1.; 16]);
    let want: Vec<f64> = magnitudes.iter().chain(&magnitudes.map(|m| -m)).map(|m| m * 2. * 0.25).collect();
    assert_eq!(w, want);
    assert_eq!(y, [0.]);
    // A scale that is NaN: as it is when decoded, 0 in a product. The second, short block is not touched by it.
    let planes = vec![vec![0x22, 0x02], vec![0x7f, 0x38], bytes(&[1.0])];
    let [w, y] = unpacked("nvfp4:2", [3, 1], planes, &[1., 1., 1.]);
    assert!(w[0].is_nan() && w[1].is_nan());
    assert_eq!((w[2], &y[..]), (1., &[1.][..]));
}

#[test]
fn ggml_rows_are_outputs() {
    // Two rows [n, k] of one Q8_0 block each: an f16 scale, then 32 bytes.
    let row = |scale: u16, first: i8| [scale.to_le_bytes().to_vec(), vec![first as u8], vec![1; 31]].concat();
    let planes = vec![[row(0x3c00, 5), row(0x4000, -3)].concat()];
    let [w, y] = unpacked("q8_0", [2, 32], planes, &[1.; 32]);
    assert_eq!((w[0], w[1], w[32], w[33]), (5., 1., -6., 2.));
    assert_eq!(y, [36., 56.]);
}

#[test]
fn every_scheme_of_the_contract_exists() {
    let names = "int8:32 int8_asym:32 int4:32 fp8_e4m3 fp8_e5m2 nvfp4:16 q4_0 q4_1 q5_0 q5_1 q8_0 q2_k q3_k q4_k q5_k q6_k \
        q8_k iq4_nl iq4_xs ggml_mxfp4 ggml_bf16 ggml_f16 mxfp4:32 mxfp8_e4m3:32 mxfp8_e5m2:32";
    for name in names.split_whitespace() {
        assert!(Scheme::parse(name).is_some(), "{name}");
    }
    assert_eq!(Scheme::all().len(), names.split_whitespace().count());
}

#[test]
fn misfits_of_packed_weights_are_errors() {
    let int8 = Scheme::parse("int8:2").unwrap();
    assert_eq!(DType::parse("packed<int8:0>"), None);
    let zero = DType::Packed(Scheme { kind: SchemeKind::Int8, block: 0 });
    let e = refused(|g| {
        let _ = g.input("x", F, [1, 4]).dequant_matmul(g.input("w", zero, [4, 2]), None, false);
    });
    assert_eq!((e.code(), e.bad_constraint()), (Code::Quant, Some(1)), "{e}");
    let e = refused(|g| {
        let w = g.input("w", DType::Packed(int8), [4, 2]);
        let _ = g.input("x", F, [1, 5]).dequant_matmul(w, None, false);
    });
    assert_eq!(
        (e.code(), e.bad_operand(), e.bad_axis(), e.bad_constraint()),
        (Code::Dim, Some("x"), Some(1), Some(4))
    );
    // Three rows in blocks of two have four scales.
    for (codes, scales) in [(5, 16), (7, 16), (6, 12), (6, 20), (6, 8)] {
        let planes = vec![vec![0u8; codes].into(), vec![0u8; scales].into()];
        assert!(Tensor::packed(int8, &[3, 2], planes).is_err(), "{codes} codes, {scales} bytes of scales");
    }
}

#[test]
fn products_with_packed_weights_have_a_gradient_to_x_bias_and_a_grouped_form() {
    let scheme = Scheme::parse("fp8_e4m3").unwrap();
    // Two experts: [[1, 2], [0.5, NaN]] and twice the first row.
    let codes = vec![0x38, 0x40, 0x30, 0x7f, 0x38, 0x40, 0x38, 0x40];
    let g = Graph::new("grouped");
    let w = g.constant(Tensor::packed(scheme, &[2, 2, 2], vec![codes.into()]).unwrap());
    let x = g.input("x", DType::F32, [3, 2]);
    let bias = g.input("bias", DType::F32, [2, 2]);
    let y = x.dequant_matmul_grouped(w, g.constant(ids(&[3], &[0, 1, 0])), bias, false);
    g.output("loss", y.sum_all());
    g.output("y", y);
    let f = transform::vjp(&g.finish().unwrap(), &["loss"], &["x", "bias"]).unwrap();
    let x = Tensor::new(&[3, 2], &[1f32, 10., 1., 10., 2., 0.]).unwrap();
    let bias = Tensor::new(&[2, 2], &[0.25f32, 0., 0., 100.]).unwrap();
    let out = eval(&f, &[("x", &x), ("bias", &bias)], &Options::default()).unwrap();
    let get = |name: &str| out.iter().find(|(n, _)| n == name).unwrap().1.f64s();
    assert_eq!(get("y"), [6.25, 2., 11., 122., 2.25, 4.]);
    assert_eq!(get("grad.x"), [3., 0.5, 3., 3., 3., 0.5]);
    assert_eq!(get("grad.bias"), [2., 2., 1., 1.]);
}

// ---- training backward ops ----

#[test]
fn norms_have_three_gradients_and_beta_is_optional() {
    let x = || t(&[2, 2], &[3., 4., -1., 7.]);
    let (gamma, beta) = (|| t(&[2], &[2., 0.5]), || t(&[2], &[1., -1.]));
    // rms: r = 1/√mean(x²); dy = [1 2; 3 4]; dgamma = Σ dy·x·r, dbeta = Σ dy.
    let d = grads([x(), gamma(), beta()], |[x, g, b]| x.rms_norm(g, b, 0.0));
    let (r0, r1) = (1. / 12.5f64.sqrt(), 0.2);
    close(&d[1], &[3. * r0 - 3. * r1, 8. * r0 + 28. * r1]);
    close(&d[2], &[4., 6.]);
    // dx = r·(g − x·r²·mean(g·x)), g = dy·gamma = [2 1; 6 2].
    let dx = |x: [f64; 2], g: [f64; 2], r: f64| {
        let m = (g[0] * x[0] + g[1] * x[1]) / 2.;
        [0, 1].map(|i| r * (g[i] - x[i] * r * r * m))
    };
    close(&d[0], &[dx([3., 4.], [2., 1.], r0), dx([-1., 7.], [6., 2.], r1)].concat());
    let without = grads([x(), gamma()], |[x, g]| x.rms_norm(g, None, 0.0));
    assert_eq!(without[..], d[..2], "beta changes no other gradient");

    // layer norm of two elements is ±1 · gamma + beta, whatever x: dx = 0.
    let d = grads([x(), gamma(), beta()], |[x, g, b]| x.layer_norm(g, b, 0.0, 1));
    close(&d[0], &[0.; 4]);
    close(&d[1], &[-1. - 3., 2. + 4.]);
    close(&d[2], &[4., 6.]);
    let without = grads([x(), gamma()], |[x, g]| x.layer_norm(g, None, 0.0, 1));
    assert_eq!(without[..], d[..2]);

    // group norm with one group over 2 channels of 1 element: the same, per channel.
    let d = grads([x(), gamma(), beta()], |[x, g, b]| x.group_norm(g, b, 1, 0.0));
    close(&d[0], &[0.; 4]);
    close(&d[1], &[-4., 6.]);
    close(&d[2], &[4., 6.]);
    let without = grads([x(), gamma()], |[x, g]| x.group_norm(g, None, 1, 0.0));
    assert_eq!(without[..], d[..2]);
}

#[test]
fn the_gradient_of_a_running_sum_is_the_running_sum_from_the_end() {
    let x = || t(&[4], &[5., 6., 7., 8.]);
    assert_eq!(run([x()], |[x]| vec![x.cumsum(0, false, false)])[0], [5., 11., 18., 26.]);
    assert_eq!(run([x()], |[x]| vec![x.cumsum(0, true, false)])[0], [0., 5., 11., 18.]);
    // dy = 1 2 3 4.
    assert_eq!(grads([x()], |[x]| x.cumsum(0, false, false))[0], [10., 9., 7., 4.]);
    assert_eq!(grads([x()], |[x]| x.cumsum(0, true, false))[0], [9., 7., 4., 0.]);
    assert_eq!(grads([x()], |[x]| x.cumsum(0, false, true))[0], [1., 3., 6., 10.]);
    assert_eq!(grads([x()], |[x]| x.cumsum(0, true, true))[0], [0., 1., 3., 6.]);
}

#[test]
fn repeated_indices_of_a_gather_add_up() {
    // [outer 1, axis 3, trailing 2], indices 2 0 2: dy = [1 2; 3 4; 5 6].
    let d = grads([counted(&[1, 3, 2]), ids(&[3], &[2, 0, 2])], |[x, i]| x.gather(i, 1));
    assert_eq!(d[0], [3., 4., 0., 0., 6., 8.]);
    let d = grads([counted(&[3, 2]), ids(&[3], &[2, 0, 2])], |[x, i]| x.embedding(i, None));
    assert_eq!(d[0], [3., 4., 0., 0., 6., 8.]);
}

#[test]
fn attention_rows_that_see_nothing_are_zero_with_zero_gradients() {
    // Three queries on one key: with a causal mask the first two stand before it.
    let a = Attention { causal: true, ..Attention::default() };
    let (q, k, v) = (|| counted(&[1, 1, 3, 2]), || counted(&[1, 1, 1, 2]), || t(&[1, 1, 1, 2], &[7., 9.]));
    let y = run([q(), k(), v()], |[q, k, v]| vec![q.attention(k, v, None, None, None, a.clone())]);
    assert_eq!(y[0], [0., 0., 0., 0., 7., 9.]);
    let d = grads([q(), k(), v()], |[q, k, v]| q.attention(k, v, None, None, None, a.clone()));
    assert_eq!((&d[0][..], &d[1][..]), (&[0.; 6][..], &[0.; 2][..]), "one visible key: its weight is fixed");
    assert_eq!(d[2], [5., 6.]);
    // No keys at all.
    let y = run([q(), t(&[1, 1, 0, 2], &[]), t(&[1, 1, 0, 2], &[])], |[q, k, v]| {
        vec![q.attention(k, v, None, None, None, Attention::default())]
    });
    assert_eq!(y[0], [0.; 6]);
}

#[test]
fn lora_by_hand() {
    let args = || [t(&[1, 2], &[1., 2.]), t(&[2, 1], &[3., 4.]), t(&[2, 1], &[5., 6.]), t(&[1, 1], &[7.])];
    let y = run(args(), |[x, w, a, b]| vec![x.lora_matmul(w, a, b, 0.5)]);
    assert_eq!(y[0], [11. + 0.5 * 17. * 7.]);
    let d = grads(args(), |[x, w, a, b]| x.lora_matmul(w, a, b, 0.5));
    assert_eq!(d, [vec![3. + 17.5, 4. + 21.], vec![1., 2.], vec![3.5, 7.], vec![8.5]]);
}

// ---- narrow floats ----

/// Counts and sums do not fit a narrow float, so nothing is divided by one that was rounded.
#[test]
fn means_of_narrow_floats_count_exactly() {
    let ones =
        |dtype, shape: &[usize]| Tensor::from_f64s(dtype, shape, &vec![1.0; shape.iter().product()]).unwrap();
    for rounding in [Rounding::Exact, Rounding::Declared] {
        // 70 000 is infinite in f16; 257 is 256 in bf16.
        for (dtype, n) in [(DType::F16, 70_000), (DType::BF16, 257)] {
            let y = run_with(rounding, [ones(dtype, &[n])], |[x]| {
                let kernel = AvgPool { kernel: vec![n as i64], ..AvgPool::default() };
                vec![x.mean(vec![0], false), x.avg_pool(kernel), x.var(vec![0], false, 0)]
            });
            assert_eq!((y[0][0], y[1][0], y[2][0]), (1.0, 1.0, 0.0), "{dtype}");
        }
        // 300² overflows f16, 300 does not.
        let y = run_with(rounding, [ones(DType::F16, &[4])], |[x]| {
            vec![(x * 300.0).l2_norm(vec![0], false), (x * 300.0).std(vec![0], false, 0)]
        });
        assert_eq!(y[0][0], 600.0);
        assert_eq!(y[1][0], 0.0);
    }
}

#[test]
fn gradients_of_narrow_means_count_exactly() {
    let n = 70_000;
    let g = Graph::new("mean");
    let x = g.input("x", DType::F16, [n]);
    g.output("loss", (x * 1.0).mean(vec![0], false).to(DType::F32) * 7_000.0);
    let f = transform::vjp(&g.finish().unwrap(), &["loss"], &["x"]).unwrap();
    let ones = Tensor::from_f64s(DType::F16, &[n as usize], &vec![1.0; n as usize]).unwrap();
    let out = eval(&f, &[("x", &ones)], &Options::default()).unwrap();
    let d = out.iter().find(|(n, _)| n == "grad.x").unwrap().1.f64s();
    assert!((d[0] - 0.1).abs() < 1e-3, "{}", d[0]);
}

/// What a model is trained with is what it is run with: the codes of `fake_quantize` are those of `quantize_linear`.
#[test]
fn fake_quantisation_has_the_codes_of_quantisation() {
    use rlx_ir::ops::quantize::{DequantizeLinear, QuantizeLinear};
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let x: Vec<f64> = (0..64).map(|i| (f64::from(i) * 0.37).sin() * 20.0).collect();
        let x = Tensor::from_f64s(dtype, &[64], &x).unwrap();
        let scale = Tensor::from_f64s(dtype, &[], &[0.0013]).unwrap();
        let y = run_with(Rounding::Declared, [x, scale], |[x, s]| {
            let fake = FakeQuantize { lo: -32768, hi: 32767, axis: None };
            let as_i16 = QuantizeLinear { axis: None, block: 0, dtype: DType::I16 };
            let codes = x.quantize_linear(s, None, as_i16);
            vec![
                x.fake_quantize(s, None, fake),
                codes.dequantize_linear(s, None, DequantizeLinear { axis: None, block: 0 }),
            ]
        });
        assert_eq!(y[0], y[1], "{dtype}");
    }
}

// ---- constraints ----

/// An error names the constraint that the op's page lists.
#[test]
fn a_missing_axis_is_a_numbered_constraint() {
    fn x(g: &Graph) -> Var<'_> {
        g.zeros(DType::F32, &[2.into(), 3.into()])
    }
    fn i(g: &Graph) -> Var<'_> {
        g.zeros(DType::I32, &[2.into(), 3.into()])
    }
    let far = 5;
    let numbered = |n: usize, build: &dyn for<'g> Fn(&'g Graph)| {
        let e = refused(build);
        assert_eq!((e.code(), e.bad_constraint()), (Code::Axis, Some(n)), "{e}");
    };
    numbered(1, &|g| {
        let _ = x(g).gather(i(g), far);
    });
    numbered(2, &|g| {
        let _ = x(g).gather_elements(i(g), far);
    });
    numbered(1, &|g| {
        let _ = x(g).scatter(i(g), x(g), far, rlx_ir::ops::scatter::ScatterMode::Add);
    });
    numbered(1, &|g| {
        let _ = x(g).cumsum(far, false, false);
    });
    numbered(2, &|g| {
        let _ = x(g).linear_scan(x(g), far, false);
    });
    numbered(1, &|g| {
        let _ = x(g).softmax(far);
    });
    numbered(1, &|g| {
        let _ = x(g).sum(vec![0, 0], false);
    });
    numbered(4, &|g| {
        let _ = g.concat(&[x(g)], far);
    });
    numbered(1, &|g| {
        let _ = x(g).flip(vec![far]);
    });
    numbered(2, &|g| {
        let _ = x(g).all_gather(far, 1);
    });
    numbered(3, &|g| {
        let _ = x(g).all_to_all(0, far, 1);
    });
    numbered(1, &|g| {
        let _ = i(g).one_hot(4, far, DType::F32);
    });
    numbered(2, &|g| {
        let _ = g.iota([2, 3], far, DType::I64);
    });
    numbered(4, &|g| {
        let _ = x(g).fake_quantize(x(g), None, FakeQuantize { axis: Some(far), ..FakeQuantize::default() });
    });
}

#[test]
fn gradient_ops_number_their_own_constraints() {
    let refuse = |a: [i64; 2], dy: [i64; 3]| {
        refused(|g| {
            let (dy, x) = (g.input("dy", F, dy), g.input("x", F, [1, 2, 3]));
            let (a, b) = (g.input("a", F, a), g.input("b", F, [1, 2, 4]));
            let def = rlx_ir::ops::find("selective_scan_grad").unwrap();
            let operands = [dy, x, x, a, b, b].map(Some).to_vec();
            g.emit(def, vec![rlx_ir::attr::AttrValue::Bool(false)], operands, vec![]);
        })
    };
    let e = refuse([2, 4], [1, 2, 3]);
    assert_eq!((e.op(), e.bad_constraint()), (Some("selective_scan_grad"), Some(1)), "{e}");
    assert_eq!((e.bad_operand(), e.bad_axis()), (Some("a"), Some(0)));
    let e = refuse([3, 4], [1, 2, 4]);
    assert_eq!((e.op(), e.bad_constraint()), (Some("selective_scan_grad"), Some(2)), "{e}");
}

#[test]
fn scales_that_are_no_numbers_are_refused() {
    let e = refused(|g| {
        let x = g.input("x", F, [2, 2]);
        let _ = x.lora_matmul(x, x, x, f64::NAN);
    });
    assert_eq!((e.code(), e.bad_constraint()), (Code::Attribute, Some(6)));
}
