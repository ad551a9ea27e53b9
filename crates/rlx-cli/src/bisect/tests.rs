//! Bisection of graphs whose kernels are really wrong.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use super::bisect;
use crate::data::Given;
use rlx::op::step::Fold;
use rlx::scalar::Scalar;
use rlx::tools::Program;
use rlx::tools::program::{Inst, Product, Region, Work};
use rlx::{CompileOptions, DType, Device, Engine, Settings, Tensor};

/// Every region of a program, those of control flow and of what runs once too.
fn regions(p: &mut Program, change: &dyn Fn(&mut Region)) {
    for k in &mut p.kernels {
        match &mut k.work {
            Work::Region(r) | Work::Product(Product { epilogue: Some(r), .. }) => change(r),
            Work::Flow { bodies, .. } => bodies.iter_mut().for_each(|b| regions(b, change)),
            _ => {}
        }
    }
    if let Some(p) = &mut p.prepare {
        regions(p, change);
    }
}

/// One function computed in place of another.
fn mistaken(p: &mut Program, right: Scalar, wrong: Scalar, holds: &dyn Fn(&Region, DType) -> bool) {
    regions(p, &|r| {
        let whole = r.clone();
        for i in &mut r.code {
            match i {
                Inst::Scalar { op, dtype, .. } if *op == right && holds(&whole, *dtype) => *op = wrong,
                _ => {}
            }
        }
    });
}

fn atan_is_tanh(p: &mut Program) {
    mistaken(p, Scalar::Atan, Scalar::Tanh, &|_, _| true);
}

/// What bisection prints of a graph of inputs `x` and `w`, and whether it fails.
fn told(text: &str, fault: fn(&mut Program)) -> (bool, String) {
    let f = rlx::text::parse(text).unwrap();
    let engine = Engine::new(Settings { threads: Some(2), level: None }).unwrap().spoiled(fault);
    let options = CompileOptions { engine: Some(engine), ..CompileOptions::default() };
    let mut data: Given = Vec::new();
    for p in &f.ports {
        let ty = f.ty(p.value).unwrap();
        let shape: Vec<usize> = ty.shape.iter().map(|d| d.as_const().unwrap() as usize).collect();
        let n: usize = shape.iter().product();
        let values: Vec<f32> = (0..n).map(|i| 0.3 + 0.11 * (i * 7 % 13) as f32).collect();
        data.push((p.name.clone(), Tensor::new(&shape, &values).unwrap()));
    }
    let mut out = Vec::new();
    let failed = bisect(&f, Device::Cpu, &options, &data, &mut out).is_err();
    (failed, String::from_utf8(out).unwrap())
}

/// Bisection names that step, and blames it so.
#[track_caller]
fn names(text: &str, fault: fn(&mut Program), step: &str, blame: &str) {
    let (failed, out) = told(text, fault);
    assert!(failed && out.contains(step) && out.contains(blame), "{out}");
    let (failed, out) = told(text, |_| ());
    assert!(!failed && out.contains("agree with the oracle"), "{out}");
}

const ITSELF: &str = "the step itself is off";

const CHAIN: &str = "graph g {
    input x: f32[4, 6]
    a = mul(x, x)
    b = add(a, x)
    c = atan(b)
    d = exp(c)
    e = sub(d, x)
    output e = e
}";

/// All of it is one fused region, and the wrong function is in the middle.
#[test]
fn a_wrong_function_in_a_fused_chain_is_named() {
    names(CHAIN, atan_is_tanh, "c = atan(b)", ITSELF);
}

#[test]
fn what_is_wrong_only_when_fused_is_named() {
    fn fault(p: &mut Program) {
        mistaken(p, Scalar::Atan, Scalar::Tanh, &|r, _| {
            r.code.iter().filter(|i| matches!(i, Inst::Scalar { .. })).count() > 1
        });
    }
    names(CHAIN, fault, "c = atan(b)", "without fusion it agrees");
}

/// Two branches that meet again, a third that is an output of its own: one of them is wrong.
#[test]
fn the_wrong_branch_is_named() {
    let text = "graph g {
        input x: f32[4, 6]
        input w: f32[6, 5]
        p = matmul(x, w)
        left = sin(p)
        right = atan(p)
        far = cos(right)
        y = add(left, far)
        z = exp(left)
        output z = z
        output y = y
    }";
    names(text, atan_is_tanh, "right = atan(p)", ITSELF);
    fn fault(p: &mut Program) {
        mistaken(p, Scalar::Sin, Scalar::Tanh, &|_, _| true);
    }
    names(text, fault, "left = sin(p)", ITSELF);
}

/// The same function twice, and wrong in one dtype only.
#[test]
fn of_two_alike_the_wrong_one_is_named() {
    let text = "graph g {
        input x: f32[9]
        a = sin(x)
        b = cast(a) {dtype: f64}
        c = sin(b)
        d = mul(c, c)
        output d = d
    }";
    fn fault(p: &mut Program) {
        mistaken(p, Scalar::Sin, Scalar::Tanh, &|_, dtype| dtype == DType::F64);
    }
    names(text, fault, "c = sin(b)", ITSELF);
}

#[test]
fn wrong_sums_and_products_are_named() {
    let text = "graph g {
        input x: f32[5, 5]
        input w: f32[5, 5]
        a = exp(x)
        p = matmul(a, w)
        s = sum(p) {axes: [1]}
        y = log(s)
        output y = y
    }";
    fn top(p: &mut Program) {
        regions(p, &|r| {
            for i in &mut r.code {
                if let Inst::Fold { kind, .. } = i {
                    *kind = Fold::Max;
                }
            }
        });
    }
    names(text, top, "s = sum(p)", ITSELF);
    fn turned(p: &mut Program) {
        for k in &mut p.kernels {
            if let (Work::Product(_), Some(y)) = (&k.work, k.args.get_mut(1)) {
                y.strides.reverse();
            }
        }
    }
    names(text, turned, "p = dot_general(a, w)", ITSELF);
}

/// The loop is named, and the step in its body.
#[test]
fn a_wrong_step_in_a_body_is_named() {
    let text = "graph g {
        input x: f32[4]
        input w: f32[3, 4]
        a = exp(x)
        h = scan(a, w) {carries: 1, xs: 1, length: 3} body (h: f32[4], e: f32[4]) {
            t = mul(h, e)
            u = atan(t)
            v = add(u, e)
            yield r = v
        }
        y = mul(h, x)
        output y = y
    }";
    names(text, atan_is_tanh, "h = scan(a, w)", ITSELF);
    names(text, atan_is_tanh, "u = atan(t)", ITSELF);
    names(text, atan_is_tanh, "within it, in turn 0:", ITSELF);
}

/// In turn 0 the wrong function is right: of 0 it is 0.
#[test]
fn the_turn_of_a_loop_is_named() {
    let text = "graph g {
        input x: f32[4]
        none = constant() {value: f32[] 0}
        h, n = while(x, none) {carries: 2, max: 9} cond (h: f32[4], n: f32[]) {
            three = constant() {value: f32[] 3}
            few = less(n, three)
            yield go_on = few
        } body (h: f32[4], n: f32[]) {
            t = mul(h, n)
            u = atan(t)
            v = add(u, h)
            one = constant() {value: f32[] 1}
            m = add(n, one)
            yield h = v, n = m
        }
        y = mul(h, x)
        output y = y
    }";
    names(text, atan_is_tanh, "u = atan(t)", ITSELF);
    names(text, atan_is_tanh, "within it, in turn 1:", ITSELF);
}

#[test]
fn a_wrong_step_in_the_branch_that_is_taken_is_named() {
    let text = "graph g {
        input x: f32[4]
        s = sum(x) {axes: [0]}
        none = constant() {value: f32[] 0}
        p = greater(s, none)
        y = if(p, x) then (a: f32[4]) {
            b = mul(a, a)
            c = atan(b)
            yield r = c
        } else (a: f32[4]) {
            d = exp(a)
            yield r = d
        }
        output y = y
    }";
    names(text, atan_is_tanh, "c = atan(b)", ITSELF);
}
