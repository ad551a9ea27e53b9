//! Programs as JSON.

use rlx::Bindings;
use rlx::dim::DimError;
use rlx::tools::Program;
use rlx::tools::print::{self, Arena};
use rlx::tools::program::Work;
use serde_json::{Map, Value, json};

/// The calls with what they read and write, and the notes of fusion.
pub(super) fn fusion(p: &Program) -> Value {
    let calls = p.calls.iter().enumerate().filter_map(|(i, c)| {
        let k = p.kernel(c).ok()?;
        let names = |write: bool| -> Vec<String> {
            let args = c.args.iter().zip(&k.args).filter(|(_, a)| a.write == write);
            args.map(|((slot, _), _)| print::slot_name(p, *slot)).collect()
        };
        let notes: Vec<&str> = p.notes.get(i).map(|n| n.lines().collect()).unwrap_or_default();
        Some(json!({
            "label": c.label,
            "kernel": c.kernel,
            "kind": print::kind(k),
            "space": print::space(p, k),
            "reads": names(false),
            "writes": names(true),
            "notes": notes,
        }))
    });
    with_parts(p, "calls", calls.collect(), &fusion)
}

/// The kernels with their arguments and instructions.
pub(super) fn kernels(p: &Program) -> Value {
    let own = p.kernels.iter().enumerate().map(|(i, k)| {
        json!({
            "kind": print::kind(k),
            "space": print::space(p, k),
            "calls": p.calls.iter().filter(|c| c.kernel as usize == i).count(),
            "args": k.args.iter().map(|a| print::argument(p, a)).collect::<Vec<_>>(),
            "code": print::code(p, k),
        })
    });
    with_parts(p, "kernels", own.collect(), &kernels)
}

/// The program's own list, the same of what runs when params are set and of the bodies of control flow.
fn with_parts(p: &Program, what: &str, own: Vec<Value>, part: &dyn Fn(&Program) -> Value) -> Value {
    let bodies: Vec<Value> = p
        .kernels
        .iter()
        .enumerate()
        .filter_map(|(i, k)| match &k.work {
            Work::Flow { bodies, .. } => {
                Some(json!({"kernel": i, "programs": bodies.iter().map(part).collect::<Vec<_>>()}))
            }
            _ => None,
        })
        .collect();
    json!({"name": p.name, what: own, "bodies": bodies, "prepare": p.prepare.as_deref().map(part)})
}

/// The buffers at some sizes, and how good the layout is.
pub(super) fn plan(p: &Program, sizes: &Bindings) -> Result<Value, DimError> {
    let a = Arena::new(p, sizes)?;
    let bound: Map<String, Value> = sizes.iter().map(|(n, v)| (n.to_string(), v.into())).collect();
    let buffers: Vec<Value> = a
        .buffers
        .iter()
        .map(|b| {
            json!({
                "slot": print::slot_name(p, b.slot),
                "label": b.label,
                "type": b.ty,
                "offset": b.offset,
                "bytes": b.bytes,
                "first": b.first,
                "last": b.last,
            })
        })
        .collect();
    let prepare = p.prepare.as_deref().map(|p| plan(p, sizes)).transpose()?;
    Ok(json!({
        "name": p.name,
        "sizes": bound,
        "steps": a.steps,
        "peak": a.report.peak,
        "lower_bound": a.report.bound,
        "graph_order": a.report.graph,
        "waste": a.report.waste(),
        "buffers": buffers,
        "prepare": prepare,
    }))
}
