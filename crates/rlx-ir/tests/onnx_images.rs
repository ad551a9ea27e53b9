//! Rules for ONNX nodes of images and sequences in forms that ONNX's own suite does not have. Numbers are ONNX Runtime's.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod onnx_node;

use onnx_node::node;
use rlx_ir::dim::{Dim, dim};
use rlx_ir::onnx::Attr;
use rlx_ir::{Code, DType, Func, Graph, Options, Tensor, Var, eval};

fn text<'a, 'g>(t: &str) -> Attr<'a, 'g> {
    Attr::Text(t.into())
}

fn texts<'a, 'g>(t: &[&str]) -> Attr<'a, 'g> {
    Attr::Texts(t.iter().map(|t| (*t).into()).collect())
}

/// Numbers between −1 and 1 that do not repeat soon.
fn floats(shape: &[usize], seed: usize) -> Tensor {
    let n: usize = shape.iter().product();
    let xs: Vec<f32> = (0..n).map(|i| ((i * 37 + seed * 11) % 41) as f32 / 20.0 - 1.0).collect();
    Tensor::new(shape, &xs).unwrap()
}

fn run(g: &Graph, inputs: &[(&str, &Tensor)]) -> Vec<Vec<f64>> {
    let out = eval(&g.finish().unwrap(), inputs, &Options::default()).unwrap();
    out.iter().map(|(_, a)| a.f64s()).collect()
}

fn close(got: &[f64], want: &[f64]) {
    assert_eq!(got.len(), want.len());
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((g - w).abs() < 2e-5, "element {i} is {g}, not {w}");
    }
}

/// The names of all ops that a graph comes down to.
fn ops(f: &Func) -> Vec<&'static str> {
    let mut out = Vec::new();
    for n in &f.nodes {
        let types: Vec<_> = n.operands.iter().map(|o| o.map(|v| f.ty(v).unwrap().clone())).collect();
        match Graph::body_of(n.op, &n.attrs, &types, &n.regions) {
            Ok(body) => out.extend(ops(&body)),
            Err(_) => out.push(n.op.name),
        }
    }
    out
}

#[test]
fn whole_scales_of_symbols_repeat_and_read_nothing_by_index() {
    for (mode, coordinates) in [("floor", "asymmetric"), ("round_prefer_floor", "half_pixel")] {
        for times in [2usize, 4, 8] {
            let g = Graph::new("t");
            let x = g.input("x", DType::F32, [Dim::from(1), Dim::from(2), dim("h", 64), dim("w", 64)]);
            let scales = g.constant(Tensor::new(&[4], &[1.0, 1.0, times as f32, times as f32]).unwrap());
            let attrs = vec![
                ("coordinate_transformation_mode", text(coordinates)),
                ("mode", text("nearest")),
                ("nearest_mode", text(mode)),
            ];
            let y = node(&g, "Resize", ("", 13), &[Some(x), None, Some(scales)], attrs, 1).unwrap();
            g.output("y", y[0]);
            let f = g.finish().unwrap();
            assert!(
                ops(&f).iter().all(|op| ["constant", "reshape", "broadcast"].contains(op)),
                "{:?}",
                ops(&f)
            );
            let x = floats(&[1, 2, 3, 5], 1);
            let out = eval(&f, &[("x", &x)], &Options::default()).unwrap();
            assert_eq!(out[0].1.shape(), [1, 2, 3 * times, 5 * times]);
            let (y, x) = (out[0].1.f64s(), x.to_f64s().unwrap());
            for (i, v) in y.iter().enumerate() {
                let (c, row, col) =
                    (i / (15 * times * times), i / (5 * times) % (3 * times), i % (5 * times));
                assert_eq!(*v, x[c * 15 + row / times * 5 + col / times]);
            }
        }
    }
}

#[test]
fn resizing_to_symbols_is_resizing_to_their_sizes() {
    let open = [Dim::from(1), Dim::from(1), dim("h", 64), dim("w", 64)];
    for mode in ["nearest", "linear", "cubic"] {
        for coordinates in ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"] {
            for antialias in [0, 1] {
                let with = |shape: Vec<Dim>, half: Dim| {
                    let g = Graph::new("t");
                    let x = g.input("x", DType::F32, shape.clone());
                    let sizes: Vec<Var<'_>> = [1.into(), 1.into(), shape[2].clone() + 3, half]
                        .into_iter()
                        .map(|d: Dim| g.size_of(d, DType::I64).reshape([1]))
                        .collect();
                    let attrs = vec![
                        ("antialias", Attr::Int(antialias)),
                        ("coordinate_transformation_mode", text(coordinates)),
                        ("mode", text(mode)),
                    ];
                    let operands = [Some(x), None, None, Some(g.concat(&sizes, 0))];
                    g.output("y", node(&g, "Resize", ("", 19), &operands, attrs, 1).unwrap()[0]);
                    run(&g, &[("x", &floats(&[1, 1, 4, 7], 3))])
                };
                let symbols = with(open.to_vec(), open[3].floor_div(2));
                close(&symbols[0], &with([1, 1, 4, 7].map(Dim::from).to_vec(), 3.into())[0]);
            }
        }
    }
}

#[test]
fn old_forms_of_resizing() {
    // The scales of two axes as attributes, then of all axes, then as an operand.
    for opset in [1, 7, 9] {
        let g = Graph::new("t");
        let mut operands = vec![Some(g.input("x", DType::F32, [1, 1, 1, 2]))];
        let scales = [1f32, 1.0, 2.0, 1.5];
        let attrs = match opset {
            1 => vec![("height_scale", Attr::Float(2.0)), ("width_scale", Attr::Float(1.5))],
            7 => vec![("scales", Attr::Floats(scales.to_vec()))],
            _ => vec![],
        };
        if opset == 9 {
            operands.push(Some(g.constant(Tensor::new(&[4], &scales).unwrap())));
        }
        g.output("y", node(&g, "Upsample", ("", opset), &operands, attrs, 1).unwrap()[0]);
        let x = Tensor::new(&[1, 1, 1, 2], &[1f32, 2.0]).unwrap();
        close(&run(&g, &[("x", &x)])[0], &[1.0, 1.0, 2.0, 1.0, 1.0, 2.0]);
    }
    // Where an axis shrinks, the first Resize takes the element behind.
    let g = Graph::new("t");
    let a = g.input("x", DType::F32, [1, 5]);
    let scales = g.constant(Tensor::new(&[2], &[2f32, 0.7]).unwrap());
    g.output("y", node(&g, "Resize", ("", 10), &[Some(a), Some(scales)], vec![], 1).unwrap()[0]);
    let x = Tensor::new(&[1, 5], &[0f32, 1.0, 2.0, 3.0, 4.0]).unwrap();
    close(&run(&g, &[("x", &x)])[0], &[0.0, 2.0, 3.0, 0.0, 2.0, 3.0]);
    // 5 · 2.6 is 13 in f32.
    let g = Graph::new("t");
    let a = g.input("x", DType::F32, [5]);
    let scales = g.constant(Tensor::new(&[1], &[2.6f32]).unwrap());
    let y = node(&g, "Resize", ("", 13), &[Some(a), None, Some(scales)], vec![], 1).unwrap()[0];
    assert_eq!(y.shape(), [Dim::from(13)]);
    // Integers are rounded, and what overshoots stays within them.
    let g = Graph::new("t");
    let a = g.input("x", DType::U8, [1, 4]);
    let scales = g.constant(Tensor::new(&[2], &[1f32, 2.0]).unwrap());
    let attrs = vec![("mode", text("cubic"))];
    g.output("y", node(&g, "Resize", ("", 13), &[Some(a), None, Some(scales)], attrs, 1).unwrap()[0]);
    let x = Tensor::new(&[1, 4], &[0u8, 255, 255, 0]).unwrap();
    close(&run(&g, &[("x", &x)])[0], &[0.0, 58.0, 197.0, 255.0, 255.0, 197.0, 58.0, 0.0]);
}

/// X, W, R, B of an ONNX layer with two directions, as constants.
fn layer(g: &Graph, gates: usize, s: usize) -> Vec<Option<Var<'_>>> {
    let (b, i, h) = (2, 2, 2);
    let shapes: [&[usize]; 4] = [&[s, b, i], &[2, gates * h, i], &[2, gates * h, h], &[2, 2 * gates * h]];
    shapes.iter().enumerate().map(|(k, shape)| Some(g.constant(floats(shape, k)))).collect()
}

#[test]
fn functions_of_a_layer_take_their_numbers_in_order() {
    let g = Graph::new("t");
    let mut operands = layer(&g, 4, 3);
    operands.push(Some(g.constant(Tensor::new(&[2], &[3i32, 1]).unwrap())));
    let attrs = vec![
        ("activation_alpha", Attr::Floats(vec![0.3, 0.6, 0.9])),
        ("activation_beta", Attr::Floats(vec![0.4, 0.5])),
        ("activations", texts(&["HardSigmoid", "tanh", "LeakyRelu", "sigmoid", "ScaledTanh", "Softsign"])),
        ("clip", Attr::Float(0.7)),
        ("direction", text("bidirectional")),
        ("hidden_size", Attr::Int(2)),
        ("input_forget", Attr::Int(1)),
    ];
    let out = node(&g, "LSTM", ("", 14), &operands, attrs, 3).unwrap();
    out.iter().enumerate().for_each(|(k, y)| g.output(&format!("y{k}"), *y));
    let out = run(&g, &[]);
    close(&out[0], &LSTM_Y);
    close(&out[2], &LSTM_C);
}

const LSTM_Y: [f64; 24] = [
    -0.060555, -0.109715, -0.042028, -0.045138, 0.060754, 0.09221, 0.040855, 0.016338, -0.104493, -0.167341,
    0.0, 0.0, 0.05163, 0.071033, 0.0, 0.0, 0.081383, -0.130879, 0.0, 0.0, 0.030289, 0.060994, 0.0, 0.0,
];
const LSTM_C: [f64; 8] = [0.167758, -0.564277, -0.11483, -0.123327, 0.224134, 0.201089, 0.140414, 0.048832];

#[test]
fn a_sequence_of_one_entry_is_no_loop() {
    for (name, gates) in [("RNN", 1), ("GRU", 3), ("LSTM", 4)] {
        for s in [1, 2] {
            let g = Graph::new("t");
            let attrs = vec![("direction", text("bidirectional"))];
            let y = node(&g, name, ("", 14), &layer(&g, gates, s), attrs, 1).unwrap()[0];
            g.output("y", y);
            assert_eq!(ops(&g.finish().unwrap()).contains(&"scan"), s > 1, "{name}");
        }
    }
}

#[test]
fn the_batch_of_a_layer_may_come_first() {
    let with = |layout: i64| {
        let g = Graph::new("t");
        let mut operands = layer(&g, 3, 3);
        operands.extend([None, Some(g.constant(floats(&[2, 2, 2], 9)))]);
        if layout == 1 {
            for k in [0, 5] {
                operands[k] = operands[k].map(|x| x.move_axis(0, 1));
            }
        }
        let attrs = vec![("direction", text("bidirectional")), ("layout", Attr::Int(layout))];
        let y = node(&g, "GRU", ("", 14), &operands, attrs, 2).unwrap();
        let (y, last) = if layout == 1 { (y[0].move_axis(0, 2), y[1].move_axis(0, 1)) } else { (y[0], y[1]) };
        g.output("y", y);
        g.output("last", last);
        run(&g, &[])
    };
    assert_eq!(with(0), with(1));
}

#[test]
fn what_a_layer_cannot_be_is_said() {
    let g = Graph::new("t");
    for (name, attrs, why) in [
        ("LSTM", vec![("activations", texts(&["Sigmoid", "Sine", "Tanh"]))], "the activation Sine"),
        ("GRU", vec![("activations", texts(&["Sigmoid"]))], "1 activations for 2 functions"),
        ("RNN", vec![("hidden_size", Attr::Int(7))], "hidden_size is 7"),
        ("RNN", vec![("direction", text("sideways"))], "direction is sideways"),
    ] {
        let gates = if name == "LSTM" {
            4
        } else if name == "GRU" {
            3
        } else {
            1
        };
        let e = node(&g, name, ("", 14), &layer(&g, gates, 2), attrs, 1).err().unwrap();
        assert!(e.to_string().contains(why), "{e}");
    }
}

#[test]
fn weights_of_ngrams_are_in_the_order_of_the_pool() {
    let with = |mode: &str| {
        let g = Graph::new("t");
        let x = g.input("x", DType::I64, [6]);
        let attrs = vec![
            ("max_gram_length", Attr::Int(2)),
            ("max_skip_count", Attr::Int(1)),
            ("min_gram_length", Attr::Int(1)),
            ("mode", text(mode)),
            ("ngram_counts", Attr::Ints(vec![0, 2])),
            ("ngram_indexes", Attr::Ints(vec![2, 0, 1])),
            ("pool_int64s", Attr::Ints(vec![5, 7, 5, 7])),
            ("weights", Attr::Floats(vec![10.0, 20.0, 30.0])),
        ];
        g.output("y", node(&g, "TfIdfVectorizer", ("", 9), &[Some(x)], attrs, 1).unwrap()[0]);
        run(&g, &[("x", &Tensor::new(&[6], &[5i64, 7, 7, 5, 5, 7]).unwrap())])
    };
    // 5 and 7 three times each; 5 and then 7 side by side twice, with one between them twice.
    close(&with("TF")[0], &[3.0, 4.0, 3.0]);
    close(&with("IDF")[0], &[20.0, 30.0, 10.0]);
    close(&with("TFIDF")[0], &[60.0, 120.0, 30.0]);
}

#[test]
fn regions_of_whole_pixels() {
    let g = Graph::new("t");
    let x = g.input("x", DType::F32, [1, 1, 3, 4]);
    let rois =
        g.constant(Tensor::new(&[2, 5], &[0f32, 0.0, 0.0, 7.0, 5.0, 0.0, 2.0, 9.0, 9.0, 9.0]).unwrap());
    let attrs = vec![("pooled_shape", Attr::Ints(vec![1, 2])), ("spatial_scale", Attr::Float(0.5))];
    g.output("y", node(&g, "MaxRoiPool", ("", 1), &[Some(x), Some(rois)], attrs, 1).unwrap()[0]);
    let x: Vec<f32> = (0..12).map(|i| i as f32).collect();
    // The second region begins below the image.
    close(&run(&g, &[("x", &Tensor::new(&[1, 1, 3, 4], &x).unwrap())])[0], &[10.0, 11.0, 0.0, 0.0]);
}

#[test]
fn boxes_must_be_known() {
    let g = Graph::new("t");
    let boxes = g.input("boxes", DType::F32, [1, 3, 4]);
    let scores = g.input("scores", DType::F32, [1, 1, 3]);
    let e = node(&g, "NonMaxSuppression", ("", 11), &[Some(boxes), Some(scores)], vec![], 1).err().unwrap();
    assert_eq!((e.code(), e.inputs()), (Code::Undetermined, &["boxes".to_string()][..]));
}
