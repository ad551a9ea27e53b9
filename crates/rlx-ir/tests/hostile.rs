//! No attribute and no shape makes the builder panic: every op, with the values of its samples replaced by bad ones.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use rlx_ir::attr::AttrValue;
use rlx_ir::op::Meaning;
use rlx_ir::sample::{Arg, ArgType, SampleKind};
use rlx_ir::{Code, DType, Dim, Graph, Options, Type, dim, eval};

const BAD: [i64; 9] = [i64::MIN, -1 << 40, -3, -1, 0, 1, 4, 1 << 40, i64::MAX];

/// The attribute with one of its numbers replaced, in every way.
fn variants(a: &AttrValue) -> Vec<AttrValue> {
    let mut out = Vec::new();
    for bad in BAD {
        match a {
            AttrValue::Int(_) => out.push(AttrValue::Int(bad)),
            AttrValue::Dim(_) => out.push(AttrValue::Dim(Dim::constant(bad))),
            AttrValue::Ints(v) => {
                out.push(AttrValue::Ints(vec![bad; v.len()]));
                out.push(AttrValue::Ints([&v[..], &[bad]].concat()));
                for i in 0..v.len() {
                    let mut w = v.clone();
                    w[i] = bad;
                    out.push(AttrValue::Ints(w));
                }
            }
            AttrValue::Dims(v) => {
                out.push(AttrValue::Dims(vec![Dim::constant(bad); v.len()]));
                out.push(AttrValue::Dims([&v[..], &[Dim::constant(bad)]].concat()));
            }
            _ => {}
        }
    }
    if let AttrValue::Ints(_) = a {
        out.push(AttrValue::Ints(vec![]));
        out.push(AttrValue::Ints(vec![1; 40]));
    }
    if let AttrValue::Text(_) = a {
        out.extend(
            ["", "->", "a,", "...", "....", "aé", "a...b...", "ab->abc"].map(|t| AttrValue::Text(t.into())),
        );
    }
    out
}

fn dtype(a: &Arg) -> DType {
    match a.dtype {
        ArgType::Tested => DType::F32,
        ArgType::Fixed(d) => d,
    }
}

fn samples() -> impl Iterator<Item = (&'static rlx_ir::op::OpDef, Vec<Option<Arg>>, Vec<AttrValue>)> {
    rlx_ir::ops::all().iter().filter(|d| d.regions.is_empty()).flat_map(|d| {
        d.sample_list().into_iter().filter_map(|s| match s.what {
            SampleKind::Op { args, attrs } => Some((*d, args, attrs)),
            SampleKind::Text(_) => None,
        })
    })
}

#[test]
fn bad_attributes_are_refused_or_mean_something() {
    let mut failures = Vec::new();
    for (def, args, attrs) in samples() {
        for i in 0..attrs.len() {
            for bad in variants(&attrs[i]) {
                let mut attrs = attrs.clone();
                attrs[i] = bad;
                let what = format!("{} {attrs:?}", def.name);
                match std::panic::catch_unwind(|| apply(def, &args, attrs)) {
                    Ok(Ok(())) => {}
                    // A body may need more than its result does.
                    Ok(Err(e)) if e.code() == Code::Limit => {}
                    Ok(Err(e)) => failures.push(format!("{what}: {e}")),
                    Err(_) => failures.push(format!("{what}: panics")),
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} fail:\n{}", failures.len(), failures.join("\n"));
}

/// What is not refused evaluates, if it is small.
fn apply(def: &'static rlx_ir::op::OpDef, args: &[Option<Arg>], attrs: Vec<AttrValue>) -> rlx_ir::Result<()> {
    let g = Graph::new("hostile");
    let make = |(k, a): (usize, &Option<Arg>)| {
        a.as_ref().map(|a| a.tensor(DType::F32, k as u64).map(|t| g.constant(t))).transpose()
    };
    let vars = args.iter().enumerate().map(make).collect::<rlx_ir::Result<Vec<_>>>()?;
    let results = g.emit(def, attrs, vars, vec![]);
    let total: i64 = results.iter().filter_map(|r| r.ty().numel().upper()).sum();
    // A collective needs its ranks.
    let alone = !matches!(def.meaning, Meaning::Collective(_));
    if !g.errors().is_empty() || total > 10_000 || !alone {
        return Ok(());
    }
    g.output("y", results[0]);
    eval(&g.finish()?, &[], &Options::default()).map(|_| ())
}

#[test]
fn bad_shapes_are_refused() {
    let sizes = [Dim::constant(0), Dim::constant(1), Dim::constant(7), Dim::constant(1 << 50), dim("s", 9)];
    for (def, args, attrs) in samples() {
        let types: Vec<Option<Type>> = args
            .iter()
            .map(|a| {
                let ty =
                    |a: &Arg| Type::new(dtype(a), a.shape.iter().map(|n| Dim::from(*n)).collect::<Vec<_>>());
                a.as_ref().map(ty)
            })
            .collect();
        let attempt = |types: &[Option<Type>]| drop(def.infer_types(&attrs, types, &[]));
        for (i, t) in types.iter().enumerate() {
            let Some(t) = t else { continue };
            let with = |shape: Vec<Dim>| {
                let mut all = types.clone();
                all[i] = Some(t.with_shape(shape));
                attempt(&all);
            };
            with(vec![]);
            with(vec![Dim::constant(1); 32]);
            for axis in 0..t.rank() {
                let mut fewer = t.shape.clone();
                fewer.remove(axis);
                with(fewer);
                for d in &sizes {
                    let mut other = t.shape.clone();
                    other[axis] = d.clone();
                    with(other);
                }
            }
        }
        for n in 0..types.len() {
            attempt(&types[..n]);
        }
    }
}
