//! The data of an ONNX model as a file of tensors, for who looks at them or wants them alone.

use super::proto::{self, Held};
use super::tensor::{Data, shape};
use super::{MAX_DEPTH, Model};
use crate::archive::{Contents, Entry, Place};
use crate::error::bad;
use crate::map::Bytes;
use crate::metadata::Value;
use rlx_ir::{Result, onnx};
use std::path::Path;

/// The initializers and constants of a model, and as metadata what else is in it.
pub(crate) fn read(bytes: &Bytes, path: Option<&Path>) -> Result<Contents> {
    let model = Model::new(Data::new(bytes.clone(), path.map(Into::into)), String::new())?;
    let about = model.summary()?;
    let list = |v: Vec<(String, String)>| -> Value {
        v.into_iter().map(|(name, ty)| format!("{name}: {ty}")).collect::<Vec<_>>().into()
    };
    let mut metadata: Vec<(String, Value)> = vec![
        ("ir_version".into(), about.ir_version.into()),
        ("producer".into(), format!("{} {}", about.producer.0, about.producer.1).trim().into()),
        ("graph".into(), about.graph.as_str().into()),
        ("inputs".into(), list(about.inputs)),
        ("outputs".into(), list(about.outputs)),
    ];
    for (domain, version) in about.opsets {
        let domain = if domain.is_empty() { "ai.onnx" } else { &domain };
        metadata.push((format!("opset {domain}"), version.into()));
    }
    for (op, count) in about.ops {
        metadata.push((format!("nodes {op}"), (count as u64).into()));
    }
    if !about.functions.is_empty() {
        metadata.push(("functions".into(), about.functions.into()));
    }
    metadata.extend(about.metadata.into_iter().map(|(k, v)| (k, v.into())));
    let mut entries = Vec::new();
    let graph = model.proto().graph()?.ok_or_else(|| bad("the model has no graph"))?;
    collect(&model.data, graph, "", 0, &mut entries)?;
    Ok(Contents { entries, metadata, ..Contents::default() })
}

/// The data of a graph and its subgraphs; those of subgraphs are called after the nodes that they stand in.
fn collect(
    data: &Data,
    graph: proto::Graph<'_>,
    prefix: &str,
    depth: usize,
    out: &mut Vec<Entry>,
) -> Result<()> {
    if depth > MAX_DEPTH {
        return Err(bad(format!("subgraphs nest deeper than {MAX_DEPTH}")));
    }
    for t in graph.initializers()? {
        out.push(entry(data, &format!("{prefix}{}", t.name()?), t)?);
    }
    for (i, n) in graph.nodes()?.into_iter().enumerate() {
        let constant = n.op()? == "Constant" && matches!(n.domain()?, "" | "ai.onnx");
        for a in n.attributes()? {
            match a.held()? {
                Held::Tensor(t) if constant => {
                    let name = n.outputs()?.first().copied().unwrap_or_default();
                    out.push(entry(data, &format!("{prefix}{name}"), t)?);
                }
                Held::Graph(g) => {
                    let inner = format!("{prefix}node {}/{}/", i + 1, a.name()?);
                    collect(data, g, &inner, depth + 1, out)?;
                }
                _ => {}
            }
        }
    }
    Ok(())
}

fn entry(data: &Data, name: &str, t: proto::Tensor<'_>) -> Result<Entry> {
    let stored = onnx::type_name(t.data_type()?);
    match onnx::dtype(t.data_type()?) {
        Ok(dtype) => {
            let array = data.read(t)?;
            let place = Place::Here(array.planes().to_vec());
            Entry::new(name, Some(dtype), stored, array.shape().to_vec(), place)
        }
        // Texts and the like: they are there, and cannot be loaded.
        Err(_) => Entry::new(name, None, stored, shape(t)?, Place::Here(Vec::new())),
    }
}
