//! Every op of the table, by its samples: shapes, gradients against finite differences, batching.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use rlx_conformance::fd::Problem;
use rlx_conformance::sampled::{self, Case};
use rlx_ir::oracle::Arr;
use rlx_ir::quant::Scheme;
use rlx_ir::{DType, Dim, Func, Options, Tensor, eval};

/// Runs `check` on every sample and lists all that fail.
fn each(dtype: DType, check: impl Fn(&Case) -> Result<(), String>) {
    let mut failures = Vec::new();
    let mut count = 0;
    for (name, case) in sampled::all(dtype, |_| true) {
        count += 1;
        let result = case.map_err(|e| e.to_string()).and_then(|c| check(&c));
        if let Err(e) = result {
            failures.push(format!("{name}: {e}"));
        }
    }
    assert!(count > 0, "the table has no samples");
    assert!(failures.is_empty(), "{} of {count} samples fail:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn every_op_has_a_sample() {
    let none: Vec<&str> =
        rlx_ir::ops::all().iter().filter(|d| d.sample_list().is_empty()).map(|d| d.name).collect();
    assert_eq!(none, ["constant"], "ops without samples (a constant's sample is its attribute)");
}

#[test]
fn inferred_shapes_are_what_the_oracle_makes() {
    // The oracle compares each result with its inferred type; the outputs only have to come out.
    for dtype in [DType::F64, DType::F32, DType::BF16] {
        each(dtype, |c| c.eval().map(|_| ()).map_err(|e| e.to_string()));
    }
}

fn gradients(order: &str) {
    each(DType::F64, |c| {
        let (wrt, outputs) = (c.float_ports(), c.float_outputs().map_err(|e| e.to_string())?);
        if !c.smooth || wrt.is_empty() || outputs.is_empty() {
            return Ok(());
        }
        let p = Problem { func: &c.func, data: &c.data, wrt: &wrt, outputs: &outputs };
        for seed in [1, 2] {
            let (gap, limit) = match order {
                "vjp" => (p.vjp(seed), 1e-8),
                "jvp" => (p.jvp(seed), 1e-8),
                _ => (p.hvp(seed), 1e-7),
            };
            let gap = gap.map_err(|e| e.to_string())?;
            if gap.relative() > limit {
                return Err(format!("{order} {gap:?}"));
            }
        }
        Ok(())
    });
}

#[test]
fn vjp_agrees_with_finite_differences() {
    gradients("vjp");
}

#[test]
fn jvp_agrees_with_finite_differences() {
    gradients("jvp");
}

#[test]
fn hvp_agrees_with_finite_differences() {
    gradients("hvp");
}

/// Three different versions of a port's data: the sample's own, and two changed by rotating it.
fn versions(t: &Tensor) -> Vec<Tensor> {
    if let DType::Packed(scheme) = t.dtype() {
        let values = Arr::from_tensor(t).unwrap().f64s();
        let turned = |by: usize| {
            let mut v: Vec<f32> = values.iter().map(|x| *x as f32).collect();
            let by = by.min(v.len());
            v.rotate_left(by);
            let planes = scheme.encode(t.shape(), &v).unwrap();
            Tensor::packed(scheme, t.shape(), planes.into_iter().map(Into::into).collect()).unwrap()
        };
        return vec![turned(0), turned(1), turned(2)];
    }
    let rotate = |by: usize| -> Tensor {
        let size = t.dtype().bytes().unwrap_or(1);
        let mut bytes = t.bytes().to_vec();
        let n = bytes.len();
        if n > 0 {
            bytes.rotate_left(by * size % n);
        }
        Tensor::from_bytes(t.dtype(), t.shape(), bytes).unwrap()
    };
    vec![t.clone(), rotate(1), rotate(2)]
}

/// Stacks packed tensors along a new first axis, plane by plane.
fn stack_packed(ts: &[Tensor], scheme: Scheme) -> Tensor {
    let first = &ts[0];
    let shape: Vec<usize> = std::iter::once(ts.len()).chain(first.shape().iter().copied()).collect();
    let planes = scheme.planes(first.shape()).unwrap().into_iter().enumerate().map(|(i, plane)| {
        let all: Vec<&[u8]> = ts.iter().map(|t| &t.planes()[i][..]).collect();
        match plane.name {
            // One number for the whole tensor: the versions hold the same values, so it is the same for all.
            "global" => {
                assert!(all.iter().all(|p| *p == all[0]));
                all[0].into()
            }
            // Two codes a byte, through the whole tensor: an odd number of them shifts the next member by half a byte.
            "codes" if plane.bytes < first.len() => {
                let nibbles =
                    |p: &&[u8]| p.iter().flat_map(|b| [b & 15, b >> 4]).take(first.len()).collect::<Vec<_>>();
                let codes: Vec<u8> = all.iter().flat_map(nibbles).collect();
                codes.chunks(2).map(|c| c[0] | c.get(1).unwrap_or(&0) << 4).collect()
            }
            _ => all.concat().into(),
        }
    });
    Tensor::packed(scheme, &shape, planes.collect()).unwrap()
}

/// Stacks tensors along a new axis.
fn stack(ts: &[Tensor], axis: usize) -> Tensor {
    let first = &ts[0];
    if let DType::Packed(scheme) = first.dtype() {
        assert_eq!(axis, 0, "packed tensors are batched along axis 0");
        return stack_packed(ts, scheme);
    }
    let size = first.dtype().bytes().unwrap();
    let outer: usize = first.shape()[..axis].iter().product();
    let inner: usize = first.shape()[axis..].iter().product::<usize>() * size;
    let mut bytes = Vec::new();
    for o in 0..outer {
        for t in ts {
            bytes.extend_from_slice(&t.bytes()[o * inner..(o + 1) * inner]);
        }
    }
    let mut shape = first.shape().to_vec();
    shape.insert(axis, ts.len());
    Tensor::from_bytes(first.dtype(), &shape, bytes).unwrap()
}

fn close(a: &Arr, b: &[Arr], axis: usize) -> Result<(), String> {
    // Codes are not stacked byte by byte: packed results are compared by their values.
    let plain = |x: &Arr| match x.dtype().is_packed() {
        true => Tensor::from_f64s(DType::F32, x.shape(), &x.f64s()).unwrap(),
        false => x.to_tensor().unwrap(),
    };
    let tensors: Vec<Tensor> = b.iter().map(plain).collect();
    let want = stack(&tensors, axis);
    if a.shape() != want.shape() {
        return Err(format!("shape {:?}, want {:?}", a.shape(), want.shape()));
    }
    let (got, want) = (plain(a).to_f64s().unwrap(), want.to_f64s().unwrap());
    for (i, (x, y)) in got.iter().zip(&want).enumerate() {
        let same = x == y || (x.is_nan() && y.is_nan()) || (x - y).abs() <= 1e-9 * y.abs().max(1.0);
        if !same {
            return Err(format!("element {i}: {x}, want {y}"));
        }
    }
    Ok(())
}

fn batched(f: &Func, c: &Case, ports: &[(&str, i64)], out_axis: i64) -> Result<(), String> {
    let text = |e: rlx_ir::Error| e.to_string();
    let mapped = rlx_ir::transform::vmap(f, ports, &Dim::constant(3), out_axis).map_err(text)?;
    let mut data = Vec::new();
    let mut singles: Vec<Vec<(&str, Tensor)>> = vec![Vec::new(); 3];
    for (name, t) in &c.data {
        match ports.iter().find(|(n, _)| n == name) {
            Some((_, axis)) => {
                let vs = versions(t);
                let axis = rlx_ir::types::resolve_axis(*axis, t.shape().len() + 1).map_err(text)?;
                data.push((name.as_str(), stack(&vs, axis)));
                singles.iter_mut().zip(vs).for_each(|(s, v)| s.push((name, v)));
            }
            None => {
                data.push((name, t.clone()));
                singles.iter_mut().for_each(|s| s.push((name, t.clone())));
            }
        }
    }
    let run = |f: &Func, d: &[(&str, Tensor)]| {
        let refs: Vec<(&str, &Tensor)> = d.iter().map(|(n, t)| (*n, t)).collect();
        eval(f, &refs, &Options::default()).map_err(text)
    };
    let got = run(&mapped, &data)?;
    let want = singles.iter().map(|s| run(f, s)).collect::<Result<Vec<_>, _>>()?;
    for (i, (name, a)) in got.iter().enumerate() {
        let each: Vec<Arr> = want.iter().map(|w| w[i].1.clone()).collect();
        let axis = rlx_ir::types::resolve_axis(out_axis, each[0].rank() + 1).map_err(text)?;
        close(a, &each, axis).map_err(|e| format!("{name}: {e}"))?;
    }
    Ok(())
}

#[test]
fn vmap_is_stacking() {
    each(DType::F64, |c| {
        // A packed tensor is batched along axis 0 only.
        let last_axis = |t: &Tensor| if t.dtype().is_packed() { 0 } else { t.shape().len() };
        let ports: Vec<(&str, usize)> = c.data.iter().map(|(n, t)| (n.as_str(), last_axis(t))).collect();
        // Every axis of every port alone, then all ports together at the first and at the last axis.
        for (name, rank) in &ports {
            for axis in 0..=*rank {
                batched(&c.func, c, &[(name, axis as i64)], 0)
                    .map_err(|e| format!("{name} at {axis}: {e}"))?;
            }
        }
        let types = |t: rlx_ir::Result<Vec<rlx_ir::Type>>| t.map_err(|e| e.to_string());
        let (ins, outs) = (types(c.func.port_types())?, types(c.func.output_types())?);
        let packed = ins.iter().chain(&outs).any(|t| t.dtype.is_packed());
        for axis in [0, -1] {
            let all: Vec<(&str, i64)> = ports.iter().map(|(n, _)| (*n, axis)).collect();
            if !all.is_empty() && (axis == 0 || !packed) {
                batched(&c.func, c, &all, axis).map_err(|e| format!("all at {axis}: {e}"))?;
            }
        }
        Ok(())
    });
}
