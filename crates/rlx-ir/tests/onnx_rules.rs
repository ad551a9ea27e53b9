//! Rules for ONNX nodes in forms that ONNX's own suite does not have: sizes that are symbols, bodies whose course depends on
//! data, older versions, and the ops that ONNX Runtime's tools write.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod onnx_node;

use onnx_node::node;
use rlx_ir::dim::{Dim, dim};
use rlx_ir::onnx::{Attr, Subgraph};
use rlx_ir::{Code, DType, Error, Graph, Options, Result, Tensor, Var, eval};

/// A body that is a function of the test.
struct Body<F> {
    inputs: usize,
    outputs: usize,
    build: F,
}

impl<'g, F: Fn(&[Var<'g>]) -> Result<Vec<Var<'g>>>> Subgraph<'g> for Body<F> {
    fn inputs(&self) -> usize {
        self.inputs
    }
    fn outputs(&self) -> usize {
        self.outputs
    }
    fn build(&self, args: &[Var<'g>]) -> Result<Vec<Var<'g>>> {
        (self.build)(args)
    }
    fn attempt(&self, args: &[Var<'g>]) -> Result<Vec<Var<'g>>> {
        (self.build)(args)
    }
}

fn text<'a, 'g>(t: &str) -> Attr<'a, 'g> {
    Attr::Text(t.into())
}

fn floats(shape: &[usize]) -> Tensor {
    let n: usize = shape.iter().product();
    let xs: Vec<f32> = (0..n).map(|i| ((i * 37 % 23) as f32 - 11.0) / 4.0).collect();
    Tensor::new(shape, &xs).expect("a tensor")
}

/// The numbers of all outputs, to four places.
fn run(g: &Graph, inputs: &[(&str, &Tensor)]) -> Vec<Vec<f64>> {
    let f = g.finish().expect("a graph");
    let out = eval(&f, inputs, &Options::default()).expect("numbers");
    let places = |x: &f64| (x * 1e4).round() / 1e4;
    out.iter().map(|(_, a)| a.f64s().iter().map(places).collect()).collect()
}

fn give(g: &Graph, values: &[Var<'_>]) {
    for (i, y) in values.iter().enumerate() {
        g.output(&format!("y{i}"), *y);
    }
}

fn sizes(shape: &[usize]) -> Vec<Dim> {
    shape.iter().map(|n| Dim::from(*n)).collect()
}

#[test]
fn padding_that_depends_on_symbols_is_that_of_their_sizes() {
    let open = [Dim::from(1), Dim::from(2), dim("h", 16), dim("w", 16)];
    let w = floats(&[3, 2, 3, 2]);
    let ops: [(&str, Option<&Tensor>, &[i64]); 4] = [
        ("Conv", Some(&w), &[3, 2]),
        ("MaxPool", None, &[3, 2]),
        ("AveragePool", None, &[3, 2]),
        ("LpPool", None, &[2, 3]),
    ];
    for auto in ["SAME_UPPER", "SAME_LOWER", "VALID"] {
        for shape in [[1, 2, 5, 8], [1, 2, 6, 7], [1, 2, 4, 3]] {
            for (name, w, kernel) in ops {
                let x = floats(&shape);
                let with = |shape: &[Dim]| {
                    let g = Graph::new("t");
                    let mut operands = vec![Some(g.input("x", DType::F32, shape.to_vec()))];
                    operands.extend(w.map(|w| Some(g.constant(w.clone()))));
                    let attrs = vec![
                        ("auto_pad", text(auto)),
                        ("kernel_shape", Attr::Ints(kernel.to_vec())),
                        ("strides", Attr::Ints(vec![2, 2])),
                    ];
                    give(&g, &node(&g, name, ("", 22), &operands, attrs, 1).expect("values"));
                    run(&g, &[("x", &x)])
                };
                assert_eq!(with(&open), with(&sizes(&shape)), "{name} {auto} {shape:?}");
            }
        }
    }
}

#[test]
fn a_transposed_convolution_has_the_sizes_that_are_asked_for() {
    let (x, w) = (floats(&[1, 1, 4]), floats(&[1, 2, 3]));
    let with = |size: Dim| {
        let g = Graph::new("t");
        let operands =
            [Some(g.input("x", DType::F32, [1.into(), 1.into(), size])), Some(g.constant(w.clone()))];
        let attrs = vec![("output_shape", Attr::Ints(vec![7])), ("strides", Attr::Ints(vec![2]))];
        give(&g, &node(&g, "ConvTranspose", ("", 11), &operands, attrs, 1).expect("values"));
        run(&g, &[("x", &x)])
    };
    assert_eq!(with(4.into())[0].len(), 14);
    assert_eq!(with(4.into()), with(dim("n", 9)));
}

#[test]
fn the_places_of_a_pool_count_columns_first_if_asked() {
    let x = Tensor::new(
        &[1, 2, 2, 2, 2],
        &[0f32, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 9.0, 8.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    )
    .expect("a tensor");
    let g = Graph::new("t");
    let operands = [Some(g.constant(x))];
    let attrs = vec![("kernel_shape", Attr::Ints(vec![2, 2, 1])), ("storage_order", Attr::Int(1))];
    let out = node(&g, "MaxPool", ("", 12), &operands, attrs, 2).expect("values");
    give(&g, &out[1..]);
    // Place (1, 1, w) of the first channel, and (0, 0, w) of the second, whose elements begin at 8.
    assert_eq!(run(&g, &[]), [[3.0, 7.0, 8.0, 12.0]]);
}

#[test]
fn older_batch_norms() {
    let (x, ones, zeros) = (floats(&[2, 2, 3]), vec![1f32; 2], vec![0f32; 2]);
    let with = |opset: i64, attrs: Vec<(&'static str, i64)>, wanted: usize| {
        let g = Graph::new("t");
        let vector = |v: &[f32]| Some(g.constant(Tensor::new(&[2], v).expect("a tensor")));
        let operands =
            [Some(g.constant(x.clone())), vector(&ones), vector(&zeros), vector(&zeros), vector(&ones)];
        let attrs = attrs.into_iter().map(|(n, i)| (n, Attr::Int(i))).collect();
        give(&g, &node(&g, "BatchNormalization", ("", opset), &operands, attrs, wanted).expect("values"));
        run(&g, &[])
    };
    let inference = with(15, vec![], 1);
    let training = with(15, vec![("training_mode", 1)], 3);
    assert_ne!(inference[0], training[0]);
    assert_eq!(with(6, vec![("is_test", 1)], 1), inference);
    assert_eq!(with(6, vec![], 1)[..3], training[..3]);
    assert_eq!(with(9, vec![], 1), inference);
    assert_eq!(with(9, vec![], 5)[..3], training[..3]);

    // Statistics for each element instead of each channel.
    let g = Graph::new("t");
    let each = |v: f32| Some(g.constant(Tensor::new(&[2, 3], &[v; 6]).expect("a tensor")));
    let operands = [Some(g.constant(x.clone())), each(2.0), each(1.0), each(0.5), each(4.0)];
    let attrs = vec![("spatial", Attr::Int(0)), ("epsilon", Attr::Float(0.0))];
    give(&g, &node(&g, "BatchNormalization", ("", 8), &operands, attrs, 1).expect("values"));
    let want: Vec<f64> = x.to_f64s().expect("floats").iter().map(|x| x + 0.5).collect();
    assert_eq!(run(&g, &[]), [want]);
}

#[test]
fn what_the_tools_of_onnx_runtime_fuse() {
    let g = Graph::new("t");
    let (x, y) = (g.constant(floats(&[2, 4, 3])), g.constant(floats(&[2, 5, 3])));
    let attrs = vec![("transB", Attr::Int(1)), ("alpha", Attr::Float(0.5))];
    let fused = node(&g, "FusedMatMul", ("com.microsoft", 1), &[Some(x), Some(y)], attrs, 1).expect("values");
    give(&g, &[fused[0] - x.matmul(y.t()) * 0.5]);
    assert!(run(&g, &[])[0].iter().all(|d| *d == 0.0));

    let g = Graph::new("t");
    let (x, bias) = (g.constant(floats(&[2, 3])), g.constant(floats(&[3])));
    let of =
        |name: &str| node(&g, name, ("com.microsoft", 1), &[Some(x), Some(bias)], vec![], 1).expect("values");
    give(&g, &[of("BiasGelu")[0] - (x + bias).gelu(), of("FastGelu")[0] - (x + bias).gelu_tanh()]);
    assert!(run(&g, &[]).iter().flatten().all(|d| *d == 0.0));

    let g = Graph::new("t");
    let [x, skip] = [1, 2].map(|n| g.constant(floats(&[2, 3])) * n as f64);
    let [gamma, beta, bias] = [1.0, 0.5, 0.25].map(|n| g.constant(floats(&[3])) * n);
    let operands = [x, skip, gamma, beta, bias].map(Some);
    let attrs = vec![("epsilon", Attr::Float(1e-5))];
    let name = "SkipLayerNormalization";
    let out = node(&g, name, ("com.microsoft", 1), &operands, attrs.clone(), 4).expect("values");
    let sum = x + skip + bias;
    give(&g, &[out[0] - sum.layer_norm(gamma, beta, 1e-5, 1), out[3] - sum]);
    assert!(run(&g, &[]).iter().flatten().all(|d| *d == 0.0));

    let g = Graph::new("t");
    let [x, skip] = [1, 2].map(|n| g.constant(floats(&[2, 3])) * n as f64);
    let gamma = g.constant(floats(&[3]));
    let name = "SkipSimplifiedLayerNormalization";
    let out = node(&g, name, ("com.microsoft", 1), &[x, skip, gamma].map(Some), vec![], 1).expect("values");
    give(&g, &[out[0] - (x + skip).rms_norm(gamma, None, 1e-12)]);
    assert!(run(&g, &[])[0].iter().all(|d| *d == 0.0));
}

#[test]
fn weights_of_few_bits_in_blocks() {
    // Two rows of five weights in blocks of four, so two blocks each of which the second holds one weight.
    let codes: [[i64; 8]; 2] = [[1, 15, 8, 0, 9, 0, 0, 0], [7, 3, 8, 12, 2, 0, 0, 0]];
    let bytes: Vec<u8> =
        codes.iter().flat_map(|row| row.chunks(2)).map(|p| (p[0] | p[1] << 4) as u8).collect();
    let (scales, zeros) = ([0.5f32, 2.0, 1.0, 0.25], [[8, 3], [1, 2]]);
    let packed: Vec<u8> = zeros.iter().map(|z: &[i64; 2]| (z[0] | z[1] << 4) as u8).collect();
    let with = |given: bool| {
        let g = Graph::new("t");
        let x = g.constant(floats(&[3, 5]));
        let b = g.constant(Tensor::new(&[2, 2, 2], &bytes).expect("a tensor"));
        let s = g.constant(Tensor::new(&[2, 2], &scales).expect("a tensor"));
        let z = given.then(|| g.constant(Tensor::new(&[2, 1], &packed).expect("a tensor")));
        let attrs = vec![
            ("K", Attr::Int(5)),
            ("N", Attr::Int(2)),
            ("block_size", Attr::Int(4)),
            ("bits", Attr::Int(4)),
        ];
        let y = node(&g, "MatMulNBits", ("com.microsoft", 1), &[Some(x), Some(b), Some(s), z], attrs, 1);
        let weight = |(i, row): (usize, &[i64; 8])| -> Vec<f32> {
            let zero = |k: usize| if given { zeros[i][k / 4] } else { 8 };
            (0..5).map(|k| (row[k] - zero(k)) as f32 * scales[2 * i + k / 4]).collect()
        };
        let w: Vec<f32> = codes.iter().enumerate().flat_map(weight).collect();
        let w = g.constant(Tensor::new(&[2, 5], &w).expect("a tensor"));
        give(&g, &[y.expect("values")[0] - x.matmul(w.t())]);
        run(&g, &[])
    };
    assert!(with(true)[0].iter().chain(&with(false)[0]).all(|d| *d == 0.0));
}

#[test]
fn a_frame_is_filled_up_behind_a_short_window() {
    let x = floats(&[1, 9, 1]);
    let g = Graph::new("t");
    let int = |n: i64| Some(g.constant(Tensor::scalar(n)));
    let x = g.constant(x);
    let window = g.constant(Tensor::new(&[2], &[1f32, 0.5]).expect("a tensor"));
    let y = node(&g, "STFT", ("", 17), &[Some(x), int(3), Some(window), int(4)], vec![], 1).expect("values");
    // Frame 1 begins at 3: two elements under the window, then zeros.
    let frame = x.reshape([9]).narrow(0, 3, 2) * window;
    let frame = frame.pad(0.0, [0], [2], vec![0]);
    give(&g, &[y[0].narrow(1, 1, 1).reshape([3, 2]) - frame.rfft(-1)]);
    assert_eq!(y[0].shape(), sizes(&[1, 2, 3, 2]));
    assert!(run(&g, &[])[0].iter().all(|d| d.abs() < 1e-6));
}

/// `If` with these branches, each of which gives one value.
fn branch<'g>(
    g: &'g Graph,
    condition: Var<'g>,
    then: impl Fn() -> Result<Var<'g>>,
    otherwise: impl Fn() -> Result<Var<'g>>,
) -> Result<Vec<Var<'g>>> {
    let then = Body { inputs: 0, outputs: 1, build: |_: &[Var<'g>]| Ok(vec![then()?]) };
    let otherwise = Body { inputs: 0, outputs: 1, build: |_: &[Var<'g>]| Ok(vec![otherwise()?]) };
    let attrs = vec![("then_branch", Attr::Graph(&then)), ("else_branch", Attr::Graph(&otherwise))];
    node(g, "If", ("", 16), &[Some(condition)], attrs, 1)
}

#[test]
fn a_branch_is_taken_when_data_is_there() {
    let g = Graph::new("t");
    let (x, p) = (g.input("x", DType::F32, [2]), g.input("p", DType::Bool, [1]));
    give(&g, &branch(&g, p, || Ok(x + 1.0), || Ok(-x)).expect("values"));
    let x = Tensor::new(&[2], &[1f32, 2.0]).expect("a tensor");
    let on = |p: bool| run(&g, &[("x", &x), ("p", &Tensor::new(&[1], &[p]).expect("a tensor"))]);
    assert_eq!(on(true), [[2.0, 3.0]]);
    assert_eq!(on(false), [[-1.0, -2.0]]);
}

#[test]
fn a_branch_that_is_never_taken_is_not_looked_at() {
    let g = Graph::new("t");
    let x = g.input("x", DType::F32, [dim("n", 9)]);
    let known = g.size_of(x.dim(0) + 1, DType::I64).greater(0.0);
    let broken = || Err(Error::new(Code::Unsupported, "nobody can import this"));
    give(&g, &branch(&g, known, || Ok(x + 1.0), broken).expect("values"));
    assert_eq!(run(&g, &[("x", &Tensor::new(&[1], &[1f32]).expect("a tensor"))]), [[2.0]]);
}

#[test]
fn branches_that_do_not_fit_name_the_inputs_that_decide() {
    let g = Graph::new("t");
    let (x, rate) = (g.input("x", DType::F32, [2]), g.input("rate", DType::I64, [] as [i64; 0]));
    let wide = rate.equal(16000.0);
    let e = branch(&g, wide, || Ok(x), || Ok(x.sum_all())).err().expect("types differ");
    assert_eq!((e.code(), e.inputs()), (Code::Undetermined, &["rate".to_string()][..]));
    let broken = || Err(Error::new(Code::Unsupported, "nobody can import this"));
    let e = branch(&g, wide, || Ok(x), broken).err().expect("one is broken");
    assert_eq!((e.code(), e.inputs()), (Code::Undetermined, &["rate".to_string()][..]));
    assert!(e.message().contains("nobody can import this"));
    assert!(g.errors().is_empty());
}

/// A loop over one value; the body gets the turn, the condition and the value.
fn repeat<'g>(
    g: &'g Graph,
    trips: Option<Var<'g>>,
    condition: Option<Var<'g>>,
    x: Var<'g>,
    gathered: usize,
    build: impl Fn(&[Var<'g>]) -> Result<Vec<Var<'g>>>,
) -> Result<Vec<Var<'g>>> {
    let body = Body { inputs: 3, outputs: 2 + gathered, build };
    let attrs = vec![("body", Attr::Graph(&body))];
    node(g, "Loop", ("", 16), &[trips, condition, Some(x)], attrs, 1 + gathered)
}

/// Twice the value, as long as that is small.
fn doubled<'g>(v: &[Var<'g>]) -> Result<Vec<Var<'g>>> {
    let next = v[2] + v[2];
    Ok(vec![next.sum_all().less(100.0), next])
}

#[test]
fn loops_by_what_is_known_of_their_turns() {
    let three = Tensor::new(&[2], &[3f32, 5.0]).expect("a tensor");

    // As often as an axis is long, gathering.
    let g = Graph::new("t");
    let x = g.input("x", DType::F32, [dim("n", 9)]);
    let n = g.size_of(x.dim(0), DType::I64);
    let zero = g.scalar(DType::F32, 0.0);
    let out = repeat(&g, Some(n), None, zero, 1, |v| {
        let next = v[2] + v[0].to(DType::F32) + 1.0;
        Ok(vec![v[1], next, next * 10.0])
    });
    give(&g, &out.expect("values"));
    assert_eq!(run(&g, &[("x", &three)]), [vec![3.0], vec![10.0, 30.0]]);

    // Until a condition fails.
    let g = Graph::new("t");
    let x = g.input("x", DType::F32, [2]);
    let no_bound = [None, Some(g.constant(Tensor::scalar(i64::MAX)))];
    give(&g, &no_bound.map(|trips| repeat(&g, trips, None, x, 0, doubled).expect("values")[0]));
    assert_eq!(run(&g, &[("x", &three)]), [[48.0, 80.0], [48.0, 80.0]]);

    // As often as an input says.
    let g = Graph::new("t");
    let (x, n) = (g.input("x", DType::F32, [2]), g.input("n", DType::I64, [1]));
    let out = repeat(&g, Some(n), None, x, 0, |v| Ok(vec![v[1], v[2] + 1.0]));
    give(&g, &out.expect("values"));
    let turns = |n: i64| run(&g, &[("x", &three), ("n", &Tensor::new(&[1], &[n]).expect("a tensor"))]);
    assert_eq!((turns(4), turns(0)), (vec![vec![7.0, 9.0]], vec![vec![3.0, 5.0]]));

    // Growing from turn to turn.
    let g = Graph::new("t");
    let x = g.input("x", DType::F32, [2]);
    let trips = g.constant(Tensor::scalar(2i64));
    let out = repeat(&g, Some(trips), None, x, 0, |v| Ok(vec![v[1], g.concat(&[v[2], v[2]], 0)]));
    give(&g, &out.expect("values"));
    assert_eq!(run(&g, &[("x", &three)]), [[3.0, 5.0, 3.0, 5.0, 3.0, 5.0, 3.0, 5.0]]);

    // Never.
    let g = Graph::new("t");
    let x = g.input("x", DType::F32, [2]);
    let no = g.constant(Tensor::scalar(false));
    let out = repeat(&g, None, Some(no), x, 1, |v| Ok(vec![v[1], v[2] + 1.0, v[2]]));
    give(&g, &out.expect("values"));
    assert_eq!(run(&g, &[("x", &three)]), [vec![3.0, 5.0], vec![]]);
}

#[test]
fn a_loop_that_gathers_must_know_how_often_it_turns() {
    let g = Graph::new("t");
    let (x, n) = (g.input("x", DType::F32, [2]), g.input("n", DType::I64, [1]));
    let e = repeat(&g, Some(n), None, x, 1, |v| Ok(vec![v[1], v[2], v[2]])).err().expect("unknown turns");
    assert_eq!((e.code(), e.inputs()), (Code::Undetermined, &["n".to_string()][..]));
    let trips = g.constant(Tensor::scalar(9i64));
    let e = repeat(&g, Some(trips), None, x, 1, |v| Ok(vec![v[2].sum_all().less(9.0), v[2] + 1.0, v[2]]));
    assert_eq!(e.err().expect("unknown end").code(), Code::Unsupported);
    assert!(g.errors().is_empty());
}

#[test]
fn scans_along_other_axes_and_backwards() {
    let g = Graph::new("t");
    let x = g.input("x", DType::F32, [2, 3]);
    let zero = g.zeros(DType::F32, &sizes(&[2]));
    fn sums<'g>(v: &[Var<'g>]) -> Result<Vec<Var<'g>>> {
        Ok(vec![v[0] + v[1]; 3])
    }
    let body = Body { inputs: 2, outputs: 3, build: sums };
    let attrs = vec![
        ("body", Attr::Graph(&body)),
        ("num_scan_inputs", Attr::Int(1)),
        ("scan_input_axes", Attr::Ints(vec![1])),
        ("scan_input_directions", Attr::Ints(vec![1])),
        ("scan_output_axes", Attr::Ints(vec![-1, 0])),
        ("scan_output_directions", Attr::Ints(vec![1, 0])),
    ];
    let out = node(&g, "Scan", ("", 16), &[Some(zero), Some(x)], attrs, 3);
    give(&g, &out.expect("values"));
    let x = Tensor::new(&[2, 3], &[1f32, 2.0, 3.0, 10.0, 20.0, 30.0]).expect("a tensor");
    // Sums from the last column on: 3, 5, 6 and 30, 50, 60.
    let want =
        [vec![6.0, 60.0], vec![6.0, 5.0, 3.0, 60.0, 50.0, 30.0], vec![3.0, 30.0, 5.0, 50.0, 6.0, 60.0]];
    assert_eq!(run(&g, &[("x", &x)]), want);
}

#[test]
fn causal_attention_to_more_keys_than_queries() {
    let (q, k) = (floats(&[1, 2, 2, 3]), floats(&[1, 1, 4, 3]));
    let g = Graph::new("t");
    let [q, k] = [q, k].map(|t| g.constant(t));
    let plain = node(&g, "Attention", ("", 24), &[q, k, k].map(Some), vec![("is_causal", Attr::Int(1))], 1);
    // Without a past, query i sees the keys up to i.
    let seen = g.constant(
        Tensor::new(&[2, 4], &[true, false, false, false, true, true, false, false]).expect("a tensor"),
    );
    let masked = node(&g, "Attention", ("", 24), &[q, k, k, seen].map(Some), vec![], 1);
    give(&g, &[plain.expect("values")[0] - masked.expect("values")[0]]);
    assert!(run(&g, &[])[0].iter().all(|d| *d == 0.0));
}
