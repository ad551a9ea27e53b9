//! The text format: both directions, the errors, and texts that mean harm.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use rlx_ir::attr::AttrValue;
use rlx_ir::func::{PortKind, Source};
use rlx_ir::quant::Scheme;
use rlx_ir::text::{parse, print};
use rlx_ir::{Code, DType, Dim, Func, Graph, Tensor, Type, dim};
use std::time::{Duration, Instant};

fn round_trip(f: &Func) -> String {
    let text = print(f);
    let back = parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    assert_eq!(&back, f, "\n{text}");
    assert_eq!(print(&back), text);
    text
}

fn fails(text: &str) -> rlx_ir::Error {
    match parse(text) {
        Err(e) => e,
        Ok(f) => panic!("it parses:\n{}", print(&f)),
    }
}

/// The graph around some statements.
fn body(s: &str) -> String {
    format!("graph g {{\n  dim n <= 8\n  input x: f32[n, 2]\n  input y: f32[3]\n{s}\n}}\n")
}

#[test]
fn a_printed_graph_reads_back() {
    let g = Graph::new("demo");
    let x = g.input("x", DType::F32, [dim("batch", 256), 4.into()]);
    let w = g.param("w", DType::F32, [4]);
    let b = g.port(
        "b",
        Type::new(DType::F32, vec![Dim::from(2)]),
        PortKind::Param,
        Some(Source::Inline(Tensor::new(&[2], &[0.5f32, -0.0]).unwrap())),
    );
    let file = Source::File { file: "model.safetensors".into(), tensor: "layer \"w\"\n".into() };
    g.port("q", Type::new(DType::I8, vec![Dim::from(2), 3.into()]), PortKind::Param, Some(file));
    b.set_diff(false);
    let h = (x * w).named("h");
    let c = h.greater(0.0);
    let y = c.select(h, -h).named("y");
    let s = (y.sum(vec![1i64], true) + b).mean(vec![0i64], false);
    g.output("y", y);
    g.output("s", s);
    let text = round_trip(&g.finish().unwrap());
    let want = r#"graph demo {
  dim batch <= 256
  input x: f32[batch, 4]
  param w: f32[4] diff
  param b: f32[2] = [0.5, -0.0]
  param q: i8[2, 3] @ "model.safetensors" "layer \"w\"\n"
  h: f32[batch, 4] = mul(x, w)
  %0: f32[] = constant() {value: f32[] 0.0}
  %1: bool[batch, 4] = greater(h, %0)
  %2: f32[batch, 4] = neg(h)
  y: f32[batch, 4] = select(%1, h, %2)
  %3: f32[batch, 1] = sum(y) {axes: [1], keep: true}
  %4: f32[batch, 2] = add(%3, b)
  %5: f32[2] = mean(%4) {axes: [0]}
  output y = y
  output s = %5
}
"#;
    assert_eq!(text, want);
}

#[test]
fn any_names_read_back() {
    let g = Graph::new("odd");
    let x = g.input("x", DType::F32, [2]);
    let names = ["_", "diff", "input", "output", "param", "dim", "graph", "yield", "nan", "f32", "x"];
    let mut v = x;
    for n in names {
        v = (-v).named(n);
        g.output(n, v);
    }
    let mut f = g.finish().unwrap();
    round_trip(&f);
    f.name = "a name with \"quotes\" and ünïcode \u{202e}\u{7}".into();
    round_trip(&f);
}

#[test]
fn data_read_back_to_the_bit() {
    let mut tensors = vec![
        Tensor::new(
            &[6],
            &[0.1f32, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MIN_POSITIVE / 4.0],
        ),
        Tensor::new(&[3], &[f64::MAX, 5e-324, f64::NAN]),
        Tensor::new(&[1], &[-f32::NAN]),
        Tensor::new(&[1], &[f64::from_bits(0x7ff8_0000_0000_0001)]),
        Tensor::new(&[2, 0], &[0f32; 0]),
        Tensor::new(&[65], &[1.5f32; 65]),
        Tensor::new(&[64], &[1.5f32; 64]),
        Tensor::new(&[2], &[u64::MAX, 0]),
        Tensor::new(&[2], &[i64::MIN, i64::MAX]),
        Tensor::new(&[2], &[true, false]),
        Ok(Tensor::scalar(3i8)),
        Ok(Tensor::scalar(true)),
        Ok(Tensor::scalar(f32::NAN)),
    ];
    for dtype in [DType::F8E4M3, DType::F8E5M2] {
        for b in 0..=255u8 {
            tensors.push(Tensor::from_bytes(dtype, &[], vec![b]));
        }
    }
    for dtype in [DType::F16, DType::BF16] {
        for b in (0..=u16::MAX).step_by(37) {
            tensors.push(Tensor::from_bytes(dtype, &[1], b.to_le_bytes().to_vec()));
        }
    }
    for scheme in Scheme::all() {
        let shape = [2, 256];
        let values: Vec<f32> = (0..512).map(|i| (i as f32 * 0.37).sin()).collect();
        let planes = scheme.encode(&shape, &values).unwrap();
        tensors.push(Tensor::packed(*scheme, &shape, planes.into_iter().map(Into::into).collect()));
        tensors.push(Tensor::packed(
            *scheme,
            &[0, 256],
            scheme.planes(&[0, 256]).unwrap().iter().map(|p| vec![0; p.bytes].into()).collect(),
        ));
    }
    for t in tensors {
        let t = t.unwrap();
        let g = Graph::new("data");
        g.port("p", t.ty(), PortKind::Param, Some(Source::Inline(t.clone())));
        if !t.dtype().is_packed() {
            g.output("c", g.constant(t.clone()));
        }
        round_trip(&g.finish().unwrap());
    }
}

#[test]
fn short_forms_of_floats() {
    let text = |t: Tensor| {
        let g = Graph::new("data");
        g.output("c", g.constant(t));
        let text = print(&g.finish().unwrap());
        text.lines().nth(1).unwrap().rsplit("] ").next().unwrap().trim_end_matches('}').to_string()
    };
    let half = |x: f64| Tensor::from_f64s(DType::F16, &[], &[x]).unwrap();
    assert_eq!(text(half(0.1)), "0.1");
    assert_eq!(text(half(65504.0)), "65500.0");
    assert_eq!(text(Tensor::scalar(0.1f32)), "0.1");
    assert_eq!(text(Tensor::scalar(1e30f32)), "1e30");
    assert_eq!(text(Tensor::scalar(f64::NEG_INFINITY)), "-inf");
}

#[test]
fn attributes_of_every_kind_read_back() {
    let leaky = rlx_ir::ops::find("leaky_relu").unwrap();
    for slope in [f64::NAN, f64::from_bits(0xfff8_0000_0000_0007), -0.0, f64::INFINITY, 1e-300, 0.1] {
        let g = Graph::new("slope");
        let x = g.input("x", DType::F32, [2]);
        g.emit(leaky, vec![AttrValue::Float(slope)], vec![Some(x)], vec![]);
        round_trip(&g.finish().unwrap());
    }
    for op in rlx_ir::ops::all() {
        for sample in op.sample_list() {
            if let rlx_ir::sample::SampleKind::Op { args, attrs } = sample.what {
                let g = Graph::new("sample");
                let mut operands = Vec::new();
                for (i, a) in args.iter().enumerate() {
                    operands.push(a.as_ref().map(|a| {
                        let t = a.tensor(DType::F32, i as u64).unwrap();
                        g.port(&format!("p{i}"), t.ty(), PortKind::Input, None)
                    }));
                }
                for (i, v) in g.emit(op, attrs, operands, vec![]).into_iter().enumerate() {
                    g.output(&format!("r{i}"), v);
                }
                match g.finish() {
                    Ok(f) => drop(round_trip(&f)),
                    Err(e) => panic!("{} {}: {e}", op.name, sample.name),
                }
            }
        }
    }
}

#[test]
fn types_may_be_left_out_and_are_compared_when_written() {
    let f = parse(&body("  z = add(y, y)\n  %7 = neg(z)\n  output z = %7")).unwrap();
    assert_eq!(f.ty(f.outputs[0].value).unwrap().to_string(), "f32[3]");
    let f = parse(&body("  z: f32[n + n - n, 2] = neg(x)\n  output z = z")).unwrap();
    assert!(print(&f).contains("z: f32[n, 2] = neg(x)"));
    let e = fails(&body("  z: f32[4] = neg(y)"));
    assert_eq!(e.code(), Code::Annotation);
    assert!(e.to_string().contains("z is written as f32[4], but is f32[3]"), "{e}");
}

#[test]
fn errors_say_where() {
    // The statements, the code, and what the carets stand under.
    let cases: &[(&str, Code, &str)] = &[
        ("z = add(y, x)", Code::Broadcast, "x"),
        ("z = ad(y, y)", Code::UnknownOp, "ad"),
        ("z = add(y, w)", Code::Undefined, "w"),
        ("z = add(y)", Code::Operands, "add"),
        ("z = add(y, y, y)", Code::Operands, "add"),
        ("z = add(_, y)", Code::Operands, "_"),
        ("z = sum(y)", Code::Attribute, "sum"),
        ("z = sum(y) {axes: 1}", Code::Attribute, "1"),
        ("z = sum(y) {axes: [a]}", Code::Attribute, "a"),
        ("z = sum(y) {axes: [0], keep: 1}", Code::Attribute, "1"),
        ("z = sum(y) {axis: [0]}", Code::Attribute, "axis"),
        ("z = sum(y) {axes: [0], axes: [0]}", Code::Attribute, "axes"),
        ("z = sum(y) {axes: [3]}", Code::Axis, "y"),
        ("z = reshape(y) {shape: [2.5]}", Code::Attribute, "."),
        ("z = cast(y) {dtype: f33}", Code::Attribute, "f33"),
        ("y = neg(y)", Code::Name, "y"),
        ("z = neg(y)\n  z = neg(y)", Code::Name, "z"),
        ("z, w = neg(y)", Code::Annotation, "neg"),
        ("z: f32[4] = neg(y)", Code::Annotation, "f32[4]"),
        ("input a: f32[m]", Code::Undefined, "m"),
        ("input a: f32[2", Code::Syntax, "}"),
        ("input a: f33[2]", Code::Syntax, "f33"),
        ("input a: packed<q9>[2]", Code::Syntax, "q9"),
        ("input a: f32[-1]", Code::Size, "f32[-1]"),
        ("dim n <= 9", Code::Symbol, "n"),
        ("dim n <= 8", Code::Symbol, "n"),
        ("dim m = 9", Code::Syntax, "="),
        ("dim m <= -1", Code::Symbol, "-1"),
        ("dim \"a b\" <= 1", Code::Symbol, "1"),
        ("output z = x output z = x", Code::Name, "z"),
        ("param p: f32[2] = [1, 2, 3]", Code::BadInput, "["),
        ("param p: f32[2] = [1, true]", Code::BadInput, "true"),
        ("param p: i8[1] = [128]", Code::BadInput, "128"),
        ("param p: f32[1] = [1e39]", Code::BadInput, "1e39"),
        ("param p: f8e4m3[] = inf", Code::BadInput, "inf"),
        ("param p: f32[n] = [1]", Code::BadInput, "f32[n]"),
        ("param p: f32[1] = x\"000\"", Code::Syntax, "x\"000\""),
        ("param p: f32[1] = x\"0000zz00\"", Code::Syntax, "z"),
        ("param p: f32[1] = x\"00\"", Code::BadInput, "x\"00\""),
        ("param p: bool[1] = x\"02\"", Code::BadInput, "x\"02\""),
        ("param p: packed<q4_0>[1, 32] = [1]", Code::Syntax, "["),
        ("param p: packed<q4_0>[1, 32] = x\"00\"", Code::Quant, "x\"00\""),
        ("param p: f32[1] @ \"file", Code::Syntax, "\""),
        ("param p: f32[1] @ \"\\q\" \"t\"", Code::Syntax, "\\"),
        ("z = neg(y) input a: f32[1]", Code::Syntax, "a"),
        ("input \"a/b\": f32[]", Code::Name, "\"a/b\""),
        ("output \"\" = x", Code::Name, "\"\""),
        ("input a: i32[] diff", Code::DType, "diff"),
        ("input a: f32[] = 1", Code::Syntax, "="),
        ("z = call(x) body", Code::Syntax, "}"),
        ("z = call(x) body (a: f32[n, 2]) { yield r = x }", Code::Undefined, "x"),
        ("z = call(x) body (a: f32[3]) { yield r = a }", Code::Region, "call"),
        ("z = call(x) body (a: f32[n, 2]) { yield r = a b = neg(a) }", Code::Syntax, "b"),
        ("?", Code::Syntax, "?"),
        ("%", Code::Syntax, "%"),
        ("z = constant() {value: f32[2] [1]}", Code::BadInput, "["),
    ];
    for (statements, code, under) in cases {
        let e = fails(&body(statements));
        let shown = e.to_string();
        assert_eq!(e.code(), *code, "{shown}");
        let mut last = shown.lines().rev().map(|l| l.split_once("| ").unwrap().1);
        let (carets, line) = (last.next().unwrap(), last.next().unwrap());
        let marked: String =
            line.chars().zip(carets.chars()).filter(|(_, caret)| *caret == '^').map(|(c, _)| c).collect();
        assert_eq!(marked, *under, "{shown}");
        assert!(shown.contains("; at <text>:"), "{shown}");
    }
}

#[test]
fn an_error_reads_well() {
    let e = rlx_ir::text::parse_named("net.rlx", &body("  z = subb(y, y)\n  output z = z")).unwrap_err();
    let want =
        "E0202: there is no op `subb`; did you mean `sub`?; at net.rlx:5:7\n5 | z = subb(y, y)\n  |     ^^^^";
    assert_eq!(e.to_string(), want);
    let e = fails(&body("  z = add(y, x)"));
    assert_eq!((e.op(), e.bad_operand(), e.bad_axis()), (Some("add"), Some("y"), Some(1)));
}

#[test]
fn regions_read_back() {
    let g = Graph::new("loops");
    let n = dim("n", 9);
    let x = g.input("x", DType::F32, [n.clone(), 2.into()]);
    let k = g.input("k", DType::F32, [2]);
    let text = "graph t { dim n <= 9 input x: f32[n, 2] input k: f32[2]
        y, ys = scan(k, x, k) {carries: 1, xs: 1, length: n} body (c: f32[2], e: f32[2], w: f32[2]) {
          p: bool[] = constant() {value: bool[] true}
          %5 = if(p, c, e) then (a: f32[2], b: f32[2]) { s = add(a, b) yield r0 = s }
            \"other wise\" (a: f32[2], b: f32[2]) { yield r0 = a }
          z = mul(%5, w)
          yield r0 = z, all = %5 }
        output y = y output ys = ys }";
    let f = parse(text).unwrap();
    round_trip(&f);
    assert_eq!(f.ty(f.outputs[1].value).unwrap().to_string(), "f32[n, 2]");
    g.output("z", x * k);
    round_trip(&g.finish().unwrap());
}

#[test]
fn regions_nest_only_so_deep() {
    let nest = |depth: usize| {
        let mut s = String::from("graph t { input x: f32[] ");
        for _ in 0..depth {
            s += "y = call(x) body (x: f32[]) { ";
        }
        s += "y = neg(x) ";
        for _ in 0..depth {
            s += "yield r0 = y } ";
        }
        s + "output y = y }"
    };
    round_trip(&parse(&nest(64)).unwrap());
    assert_eq!(fails(&nest(65)).code(), Code::Nesting);
    assert_eq!(fails(&nest(100_000)).code(), Code::Nesting);
}

#[test]
fn what_is_no_graph() {
    for text in [
        "",
        ";",
        "graph",
        "graph g",
        "graph g {",
        "graph g { } }",
        "graph { }",
        "graf g { }",
        "\u{feff}graph g { }",
    ] {
        assert_eq!(fails(text).code(), Code::Syntax, "{text:?}");
    }
    assert_eq!(parse("graph g {}").unwrap(), Func::empty("g"));
    assert_eq!(parse("graph \"\" {} ; a comment, and no line end").unwrap(), Func::empty(""));
    assert!(parse("graph g {\r\n  input x: f32[ 2 ,3, ]\r\n  output x = x\r\n}\r\n").is_ok());
}

/// Each must be refused, and soon.
#[test]
fn hostile_texts_are_refused() {
    let mb10 = 10 << 20;
    let many = |s: &str, n: usize| s.repeat(n);
    let texts = [
        many("a", mb10),
        many("\u{0}", mb10),
        many("é", mb10 / 2),
        many("\"", mb10),
        many("\\", mb10),
        many("graph g {", mb10 / 9),
        many("[", mb10),
        format!("graph g {{ input x: f32[{}", many("[", mb10)),
        format!("graph g {{ input x: f32[{}", many("(", mb10)),
        format!("graph g {{ input x: f32[{}", many("(", 60_000)),
        format!("graph g {{ input x: f32[{}", many("1,", mb10 / 2)),
        format!("graph g {{ input x: f32[{}]", many("1+", 30_000)),
        format!("graph g {{ input x: f32[{}]", many("9", mb10)),
        format!("graph g {{ input x: f32[{}]", many("9", 100)),
        "graph g { input x: f32[9223372036854775807] }".into(),
        "graph g { input x: f32[9223372036854775808] }".into(),
        "graph g { input x: f32[0, 9223372036854775807] }".into(),
        "graph g { input x: f32[4294967296, 4294967296] }".into(),
        "graph g { dim n <= 9223372036854775807 input x: f32[n*n*n*n] }".into(),
        "graph g { dim n <= 99999999999999999999 }".into(),
        format!("graph g {{ input x: f32[{}] }}", ["1"; 33].join(", ")),
        "graph g { param x: f32[70000000000000000] = [1] }".into(),
        "graph g { param x: f32[1000000000] = x\"00\" }".into(),
        "graph g { param x: packed<int8:1>[9000000, 9000000] = x\"00\" x\"\" }".into(),
        "graph g { param x: packed<int8:4294967296>[9, 9] = x\"00\" x\"\" }".into(),
        format!("graph g {{ param x: f32[1] = [{}", many("1,", mb10 / 2)),
        format!("graph g {{ param x: f32[1] = {}", many("1", mb10)),
        format!("graph g {{ param x: f32[1] = x\"{}", many("0", mb10)),
        format!("graph g {{ param x: f32[1] @ \"{}", many("0", mb10)),
        format!("graph g {{ x = neg({}", many("_,", mb10 / 2)),
        format!("graph g {{ input x: f32[1] y = concat({}) {{axis: 9}} }}", many("x,", mb10 / 2)),
        format!("graph g {{ y = iota() {{axis: 0, shape: [{}]}} }}", many("1,", mb10 / 2)),
        format!("graph g {{ y = sum() {{axes: [{}", many("1,", mb10 / 2)),
        format!("graph g {{ {}", many("a: f32[1],", mb10 / 10)),
        format!("graph g {{ {}", many("%1,", mb10 / 3)),
        format!("graph g {{ {}", many("; comment\n", mb10 / 10)),
        format!("graph g {{ {} y = neg(z)", many("\n", mb10)),
    ];
    for text in &texts {
        let start = Instant::now();
        let e = fails(text);
        let shown = e.to_string();
        let head: String = text.chars().take(60).collect();
        assert!(start.elapsed() < Duration::from_secs(5), "{head}: {:?}", start.elapsed());
        assert!(shown.len() < 2000, "{head}: {} bytes of message", shown.len());
    }
}

#[test]
fn large_graphs_take_linear_time() {
    // One line, so that columns are counted over all of it.
    let mut text = String::from("graph g { input v0: f32[2] ");
    for i in 0..50_000 {
        text += &format!("v{} = neg(v{i}) ", i + 1);
    }
    text += "output y = v50000 }";
    let start = Instant::now();
    let f = parse(&text).unwrap();
    assert_eq!(f.nodes.len(), 50_000);
    let printed = print(&f);
    assert_eq!(parse(&printed).unwrap(), f);
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

#[test]
fn mutations_never_panic() {
    let seed = body(
        "  param p: f32[2] diff = [0.5, -1e3]\n  param q: u8[2] @ \"f\" \"t\"\n  param r: u8[3] = x\"00ff7f\"\n  \
         h: f32[n, 2] = add(x, p)\n  %0 = sum(h) {axes: [-1], keep: true}\n  \
         %1 = reshape(h) {shape: [2*n]}\n  c = constant() {value: f32[2] [nan, -inf]}\n  \
         %2 = cast(c) {dtype: bf16}\n  output z = %1",
    );
    parse(&seed).unwrap();
    let mut rng = rlx_ir::sample::Rng::new(7);
    let alphabet: Vec<char> = "{}()[],:=@<>%\"\\x;-+*/. \n0197aenf_é".chars().collect();
    for _ in 0..4000 {
        let mut chars: Vec<char> = seed.chars().collect();
        for _ in 0..1 + rng.below(4) {
            let i = rng.below(chars.len() as u64) as usize;
            let c = alphabet[rng.below(alphabet.len() as u64) as usize];
            match rng.below(4) {
                0 => drop(chars.remove(i)),
                1 => chars.insert(i, c),
                2 => chars[i] = c,
                _ => {
                    let j = rng.below(chars.len() as u64) as usize;
                    chars.truncate(i.max(j));
                    if chars.is_empty() {
                        chars.push(c);
                    }
                }
            }
        }
        let text: String = chars.into_iter().collect();
        if let Ok(f) = parse(&text) {
            round_trip(&f);
        }
    }
}
