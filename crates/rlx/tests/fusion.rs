//! What is computed together, on real graphs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;

use common::{Model, encoder, gpt, mamba, options, prologue, prologues, same_bits};
use rlx::nn::Encoder;
use rlx::ops::conv::Conv;
use rlx::{DType, Device, Func, Graph, Precision, Program, dim};
use rlx_compile::program::{Inst, Place, Work};
use rlx_conformance::device::{Limit, Subject};
use rlx_conformance::models;

fn program(f: &Func) -> Program {
    rlx::compile_with(f, Device::Cpu, &options(1)).unwrap().program().clone()
}

fn labels(p: &Program) -> Vec<&str> {
    p.calls.iter().map(|c| c.label.as_str()).collect()
}

/// q, k and v in one product; attention; its output with bias, residual and norm; up with gelu; down with bias, residual
/// and norm.
#[test]
fn a_layer_of_an_encoder_is_five_calls() {
    for (e, cheap) in [(encoder(), false), (Encoder::minilm(), true), (Encoder::bert_base(), true)] {
        let p = program(&e.graph().unwrap().finish().unwrap());
        let labels = labels(&p);
        println!("{labels:#?}");
        // Besides the layers: the words with their norm, and the mask.
        assert_eq!(labels.len() as i64, 2 + 5 * e.layers, "{labels:#?}");
        for l in labels[1..].iter().filter(|l| **l != "not_equal") {
            assert!(*l == "attention" || l.starts_with("dot_general+add"), "{l}");
        }
        // Equal layers share kernels; only the end of the last one differs, which writes an output.
        assert!(p.kernels.len() <= 8, "{} kernels", p.kernels.len());
        // The row of the product, what goes in and what comes out: nothing else of that size.
        let widest = if cheap { e.inner } else { 3 * e.hidden };
        for s in p.slots.iter().filter(|s| matches!(s.place, Place::Arena(_))) {
            let last = s.shape.last().and_then(|d| p.sizes.dim(*d).as_const()).unwrap_or(1);
            assert!(last <= widest, "a slot of {last}");
        }
    }
}

/// The norm behind a product is its epilogue: it reads the residual and writes the result, no more.
#[test]
fn no_temporary_lies_between_a_product_and_its_epilogue() {
    let p = program(&encoder().graph().unwrap().finish().unwrap());
    for c in &p.calls {
        let k = p.kernel(c).unwrap();
        let Work::Product(product) = &k.work else { continue };
        let code = &product.epilogue.as_ref().unwrap().code;
        assert!(matches!(code[0], Inst::Produced(_)), "{}", c.label);
        let stores = code.iter().filter(|i| matches!(i, Inst::Store { .. })).count();
        assert_eq!(stores, 1, "{}", c.label);
    }
}

#[test]
fn a_layer_of_a_decoder_is_five_calls() {
    let (one, three) = (program(&gpt(1).graph().unwrap()), program(&gpt(3).graph().unwrap()));
    assert_eq!(three.calls.len() - one.calls.len(), 10, "{:#?}", labels(&three));
}

/// What the scan reads it reads where it is: slices of a product are no copies.
#[test]
fn the_scan_of_mamba_reads_slices_where_they_are() {
    for f in [mamba(16).graph().unwrap(), mamba(16).training().unwrap()] {
        let p = program(&f);
        let scan = p.calls.iter().position(|c| c.label.starts_with("selective_scan")).unwrap();
        let labels = labels(&p);
        assert!(labels[scan - 1].starts_with("dot_general"), "{labels:#?}");
    }
}

/// The region behind a call, and the reason of its first item.
fn behind<'p>(p: &'p Program, name: &str) -> Vec<(&'p str, &'p rlx_compile::program::Region, &'p str)> {
    let of = |(c, note): (&'p rlx_compile::program::Call, &'p String)| match &p.kernel(c).unwrap().work {
        Work::Kernel { epilogue: Some(r), .. } if c.label.starts_with(name) => {
            Some((c.label.as_str(), r, note.lines().next().unwrap()))
        }
        _ => None,
    };
    p.calls.iter().zip(&p.notes).filter_map(of).collect()
}

/// A convolution with bias, norm, activation and residual is one call, with any stride and any groups.
#[test]
fn what_follows_a_convolution_is_its_epilogue() {
    let p = program(&models::residual(8).unwrap());
    let labels = labels(&p);
    println!("{labels:#?}");
    let conv = behind(&p, "conv");
    assert_eq!(conv.len(), 5, "{labels:#?}");
    for (label, region, why) in conv {
        assert!(matches!(region.code[0], Inst::Produced(_)), "{label}");
        assert_eq!(region.code.iter().filter(|i| matches!(i, Inst::Store { .. })).count(), 1, "{label}");
        assert!(why.starts_with("conv: in front of its epilogue: saves"), "{why}");
    }
    assert_eq!(labels.len(), 5, "{labels:#?}");
}

/// A gate in the order `[batch, seq, heads · width]` is multiplied where the heads are, and so is a norm of every head.
#[test]
fn what_follows_attention_is_its_epilogue() {
    let p = program(&models::gated(3, 8).unwrap());
    let labels = labels(&p);
    println!("{labels:#?}");
    let attention = behind(&p, "attention");
    assert_eq!(attention.len(), 2, "{labels:#?}");
    let folds = |r: &rlx_compile::program::Region| r.code.iter().any(|i| matches!(i, Inst::Fold { .. }));
    assert_eq!(attention.iter().filter(|a| folds(a.1)).count(), 1);
    assert!(attention.iter().all(|a| a.1.lanes == 1 && a.1.space.len() == 4));
}

/// A gate, a residual and a bias behind a selective scan are its epilogue; the last state is written as ever.
#[test]
fn what_follows_a_scan_is_its_epilogue() {
    use rlx::DType::F32;
    let g = rlx::Graph::new("scan");
    let s = rlx::dim("s", 64);
    let wide = [2.into(), s.clone(), 37.into()];
    let narrow = [2.into(), s, 5.into()];
    let x = g.input("x", F32, wide.clone());
    let delta = g.input("delta", F32, wide.clone());
    let (b, c) = (g.input("b", F32, narrow.clone()), g.input("c", F32, narrow));
    let gate = g.input("gate", F32, wide);
    let (a, bias) = (g.param("a", F32, [37, 5]), g.param("bias", F32, [37]));
    let [y, last] = x.selective_scan(delta, a, b, c, None, None, None, None, true);
    g.output("y", (y + bias) * gate.sigmoid() + x);
    g.output("last", last * 2.0);
    let f = g.finish().unwrap();
    let p = program(&f);
    let scan = behind(&p, "selective_scan");
    assert_eq!(scan.len(), 1, "{:#?}", labels(&p));
    assert_eq!(labels(&p).len(), 2, "{:#?}", labels(&p));

    let exe = rlx::compile(&f, rlx::Device::Cpu).unwrap();
    let data = |shape: &[usize], k: usize| {
        let n = shape.iter().product::<usize>();
        let xs: Vec<f32> = (0..n).map(|i| ((i * 37 + k * 11) % 101) as f32 / 101.0 - 0.5).collect();
        rlx::Tensor::new(shape, &xs).unwrap()
    };
    // Negative, so that states fade.
    let a: Vec<f32> = (0..185).map(|i| -0.2 - (i % 17) as f32 / 16.0).collect();
    let params = [("a", rlx::Tensor::new(&[37, 5], &a).unwrap()), ("bias", data(&[37], 2))];
    for (name, t) in &params {
        exe.params().set(name, t.clone()).unwrap();
    }
    for s in [0, 1, 7, 64] {
        let wide = [2, s, 37];
        let inputs = [
            ("x", data(&wide, 3)),
            ("delta", data(&wide, 4)),
            ("b", data(&[2, s, 5], 5)),
            ("c", data(&[2, s, 5], 6)),
            ("gate", data(&wide, 7)),
        ];
        let given: Vec<(&str, &rlx::Tensor)> = inputs.iter().map(|(n, t)| (*n, t)).collect();
        let got = exe.run(&given).unwrap();
        let all: Vec<(&str, &rlx::Tensor)> =
            given.iter().copied().chain(params.iter().map(|(n, t)| (*n, t))).collect();
        for (name, want) in rlx::eval(&f, &all, &rlx::Options::default()).unwrap() {
            let got = got[name.as_str()].to_f64s().unwrap();
            for (g, w) in got.iter().zip(want.f64s()) {
                assert!((g - w).abs() <= 2e-5 * w.abs().max(0.5), "{name} at s = {s}: {g}, not {w}");
            }
        }
    }
}

/// What an epilogue cannot do stands apart, and says why.
#[test]
fn what_no_epilogue_can_do_stands_apart() {
    let g = rlx::Graph::new("apart");
    let x = g.input("x", rlx::DType::F32, [2, 3, 8, 8]);
    let w = g.param("w", rlx::DType::F32, [4, 3, 3, 3]);
    let y = x.conv(w, None, Conv::default());
    g.output("rows", y.softmax(-1));
    let p = program(&g.finish().unwrap());
    let note = p.notes.iter().find(|n| n.starts_with("conv")).unwrap();
    assert_eq!(note.lines().next().unwrap(), "conv: apart: the region's rows are not those of conv");

    let g = rlx::Graph::new("apart");
    let x = g.input("x", rlx::DType::F32, [2, 3, 8, 8]);
    let w = g.param("w", rlx::DType::F32, [4, 3, 3, 3]);
    let y = x.conv(w, None, Conv::default()).reshape([2, 4, 36]);
    g.output("rows", (y - y.mean(vec![2], true)).tanh());
    let p = program(&g.finish().unwrap());
    let note = p.notes.iter().find(|n| n.starts_with("conv")).unwrap();
    assert!(note.starts_with("conv: apart: "), "{note}");
}

/// Without fusion every step is a call of its own.
#[test]
fn fusion_can_be_left_out() {
    let f = encoder().graph().unwrap().finish().unwrap();
    let apart = rlx::CompileOptions { fuse: false, ..options(1) };
    let apart = rlx::compile_with(&f, Device::Cpu, &apart).unwrap();
    assert!(apart.program().calls.len() > 5 * program(&f).calls.len());
}

/// What only a product reads, as its left operand, is computed when that is packed: one call, and no memory between.
#[test]
fn what_a_product_packs_is_computed_on_the_way() {
    for (k, n) in [(40, 24), (1, 5), (1536, 600)] {
        for f in prologues(k, n) {
            let p = program(&f);
            assert_eq!(p.calls.len(), 1, "{} {k} {n}: {}", f.name, rlx_compile::print::fusion(&p));
            let Work::Product(product) = &p.kernel(&p.calls[0]).unwrap().work else { panic!("{}", f.name) };
            assert!(product.prologue.is_some(), "{}", f.name);
            assert!(!p.slots.iter().any(|s| matches!(s.place, Place::Arena(_))), "{}", f.name);
        }
    }
}

/// They agree with the oracle at odd sizes, at every level, and have the same bits on any number of threads.
#[test]
fn prologues_compute_the_same() {
    for (k, n, sizes) in [
        (37, 29, &[(5, 3), (1, 1), (67, 2), (0, 2)][..]),
        (1, 1, &[(3, 2)]),
        (613, 131, &[(30, 1), (1, 1)]),
        (1601, 260, &[(15, 1)]),
    ] {
        for f in prologues(k, n) {
            for (m, b) in sizes {
                let data = models::data(&f, &[("m", *m), ("b", *b)], 7).unwrap();
                for precision in [Precision::F32, Precision::Bf16] {
                    let runs: Vec<_> = (1..=3)
                        .map(|t| {
                            let o = rlx::CompileOptions { precision, ..options(t) };
                            Model::with(&f, data.clone(), &o).run()
                        })
                        .collect();
                    for other in &runs[1..] {
                        same_bits(&runs[0], other).unwrap_or_else(|e| panic!("{} {m} {k} {n}: {e}", f.name));
                    }
                }
                for level in rlx_cpu::Level::available() {
                    let settings = rlx::Settings { threads: Some(2), level: Some(level) };
                    let engine = Some(rlx::Engine::new(settings).unwrap());
                    let options = rlx::CompileOptions { engine, ..Default::default() };
                    let subject = Subject { device: Device::Cpu, options };
                    let limit = Limit { tol: &|_| 1e-4, floor: 1.0, rounded: false };
                    let done = subject.check(&f, &data, &limit);
                    done.unwrap_or_else(|e| panic!("{} {m} {k} {n} {level}: {e}", f.name));
                }
            }
        }
    }
}

/// The reasons for which something stays apart from its product.
#[test]
fn a_prologue_must_pay() {
    let why = |f: &Func, calls: usize, reason: &str| {
        let p = program(f);
        let text = rlx_compile::print::fusion(&p);
        assert_eq!(p.calls.len(), calls, "{text}");
        assert!(text.contains(reason), "no {reason:?} in {text}");
    };
    // A function is not computed for every 256 columns, but arithmetic is.
    why(&prologue("many", DType::F32, [300, 2000, 1024], |_, x| x.tanh()), 2, "packs it 4 times");
    why(&prologue("many", DType::F32, [300, 2000, 1024], |_, x| x.relu()), 1, "(4 times)");
    why(&prologue("few", DType::F32, [300, 2000, 256], |_, x| x.tanh()), 1, "when its product packs it");
    // The sum of two others, for very many columns.
    let two = prologue("wide", DType::F32, [300, 2000, 8192], |g, x| {
        x + g.input("z", DType::F32, [dim("m", 300), 2000.into()])
    });
    why(&two, 2, "packs it 32 times");
    // Somebody else reads it, so it is in memory.
    for (output, calls, reason) in
        [(true, 2, "it is an output"), (false, 3, "not only a product's left operand")]
    {
        let g = Graph::new("shared");
        let r = g.input("x", DType::F32, [30, 40]).relu();
        g.output("y", r.matmul(g.input("a", DType::F32, [40, 50])));
        g.output("z", if output { r } else { r.matmul(g.input("b", DType::F32, [40, 20])) });
        why(&g.finish().unwrap(), calls, reason);
    }
    // The right operand is not computed on the way; x · xᵀ reads its left one twice.
    let g = Graph::new("gram");
    let r = g.input("x", DType::F32, [30, 40]).relu();
    g.output("y", r.matmul(r.t()));
    why(&g.finish().unwrap(), 2, "not only a product's left operand");
    // Behind a product it is an epilogue, and behind a reduction part of a norm.
    let g = Graph::new("layers");
    let x = g.input("x", DType::F32, [30, 40]);
    let y = x.matmul(g.param("a", DType::F32, [40, 50])).gelu().matmul(g.param("b", DType::F32, [50, 20]));
    g.output("y", y);
    why(&g.finish().unwrap(), 2, "better computed behind the dot_general");
    let norm = prologue("norm", DType::F32, [300, 40, 50], |_, x| x.layer_norm(None, None, 1e-5, 1));
    why(&norm, 2, "better computed behind the");
    for (name, dtype, reason) in
        [("turned", DType::F32, "in another order"), ("wide", DType::F64, "only products in f32")]
    {
        let g = Graph::new(name);
        let x = g.input("x", dtype, [40, 30]).relu();
        g.output("y", x.t().matmul(g.param("w", dtype, [40, 50])));
        why(&g.finish().unwrap(), 2, reason);
    }
}

/// The bias of a position that few heads share: what it is found by is computed side by side, not head by head. Of long
/// entries, as those of an embedding, it is computed once for each.
#[test]
fn what_finds_short_entries_stands_apart() {
    for (heads, calls) in [(6, 2), (64, 1)] {
        let g = Graph::new("positions");
        let at = |name, shape| g.input(name, DType::F32, shape);
        let apart = at("q", [dim("seq", 512), 1.into()]) - at("k", [1.into(), dim("seq", 512)]);
        let table = g.param("table", DType::F32, [32, heads]);
        g.output("bias", table.gather((apart * 0.1).abs().cast(DType::I32), 0));
        let f = g.finish().unwrap();
        let p = program(&f);
        assert_eq!(p.calls.len(), calls, "{}", rlx_compile::print::fusion(&p));
        let data = models::data(&f, &[("seq", 70)], 3).unwrap();
        let limit = Limit { tol: &|_| 0.0, floor: 0.0, rounded: false };
        let subject = Subject { device: Device::Cpu, options: options(2) };
        subject.check(&f, &data, &limit).unwrap();
    }
}
