//! ONNX models: what is in the file, and the graph that it becomes.
//!
//! ```no_run
//! use rlx_formats::onnx::{Model, Options};
//!
//! let model = Model::open("model.onnx")?;
//! let imported = model.import(&Options::default())?;
//! println!("{} nodes, {} params", imported.func.nodes.len(), imported.params.len());
//! # Ok::<(), rlx_ir::Error>(())
//! ```
//!
//! Read in this order: `proto` (the messages of the file), `tensor` (data, also in files beside the model), `sizes` (axes that
//! the model leaves open), `sequence` (lists of values), `import` (nodes by the rules of the op table, see [`rlx_ir::onnx`]),
//! `archive` (the data alone).

mod archive;
mod import;
mod proto;
mod sequence;
mod sizes;
mod tensor;

pub(crate) use archive::read;
pub use import::{Imported, Named, Options};

use crate::array::Array;
use crate::error::{Context, bad};
use crate::map::Bytes;
use proto::Message;
use rlx_ir::Result;
use std::collections::BTreeMap;
use std::path::Path;
use tensor::Data;

/// An ONNX file.
pub struct Model {
    data: Data,
    name: String,
}

/// What a file says of itself.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The version of the format.
    pub ir_version: i64,
    /// Who wrote it, and in which version.
    pub producer: (String, String),
    /// The operator sets: domain and version.
    pub opsets: Vec<(String, i64)>,
    /// The name of the graph.
    pub graph: String,
    /// Inputs and outputs: name, and type as text.
    pub inputs: Vec<(String, String)>,
    /// See `inputs`.
    pub outputs: Vec<(String, String)>,
    /// How often each op occurs, subgraphs and functions included.
    pub ops: BTreeMap<String, usize>,
    /// The functions that the model defines.
    pub functions: Vec<String>,
    /// What else is noted in it.
    pub metadata: Vec<(String, String)>,
}

impl Model {
    /// Maps a file.
    pub fn open(path: impl AsRef<Path>) -> Result<Model> {
        let path = path.as_ref();
        let bytes = Bytes::open(path)?;
        let name = path.file_name().map_or_else(|| "model".into(), |n| n.to_string_lossy().into_owned());
        Model::new(Data::new(bytes, Some(path.into())), name).about(path.display())
    }

    /// A model in memory, which can have no data in other files.
    pub fn parse(bytes: impl Into<Bytes>) -> Result<Model> {
        Model::new(Data::new(bytes.into(), None), "model".into())
    }

    fn new(data: Data, name: String) -> Result<Model> {
        let model = Model { data, name };
        model.proto().fields().try_for_each(|f| f.map(drop))?;
        if model.proto().graph()?.is_none() {
            return Err(bad("not an ONNX model: it has no graph"));
        }
        Ok(model)
    }

    fn proto(&self) -> proto::Model<'_> {
        proto::Model(self.data.bytes())
    }

    /// Whether bytes may be an ONNX model: a whole message, whose first field is its version, with a graph. The format has no
    /// magic bytes, and the first few of others may look alike.
    pub fn looks_like(bytes: &[u8]) -> bool {
        let model = proto::Model(bytes);
        let version = matches!(model.fields().next(), Some(Ok((1, proto::Value::Int(v)))) if v < 1000);
        version && model.fields().all(|f| f.is_ok()) && matches!(model.graph(), Ok(Some(_)))
    }

    /// The graph, with params beside it.
    pub fn import(&self, options: &Options) -> Result<Imported> {
        import::import(self.proto(), &self.data, &self.name, options)
    }

    /// The data that the model holds, by name.
    pub fn initializers(&self) -> Result<Vec<(String, Array)>> {
        let graph = self.proto().graph()?.ok_or_else(|| bad("the model has no graph"))?;
        graph.initializers()?.into_iter().map(|t| Ok((t.name()?.to_string(), self.data.read(t)?))).collect()
    }

    /// What the file says of itself.
    pub fn summary(&self) -> Result<Summary> {
        let m = self.proto();
        let graph = m.graph()?.ok_or_else(|| bad("the model has no graph"))?;
        let text =
            |v: Vec<(&str, &str)>| v.into_iter().map(|(a, b)| (a.to_string(), b.to_string())).collect();
        let (producer, version) = m.producer()?;
        let mut ops = BTreeMap::new();
        count(&graph.nodes()?, &mut ops, 0)?;
        let functions = m.functions()?;
        for f in &functions {
            count(&f.nodes()?, &mut ops, 0)?;
        }
        let initial: std::collections::HashSet<&str> =
            graph.initializers()?.iter().map(|t| t.name()).collect::<Result<_>>()?;
        let ports = |list: Vec<proto::ValueInfo<'_>>| -> Result<Vec<(String, String)>> {
            let named = |v: proto::ValueInfo<'_>| Ok((v.name()?.to_string(), type_text(v)?));
            list.into_iter()
                .map(named)
                .filter(|v| !matches!(v, Ok((n, _)) if initial.contains(n.as_str())))
                .collect()
        };
        Ok(Summary {
            ir_version: m.ir_version()?,
            producer: (producer.to_string(), version.to_string()),
            opsets: m.opsets()?.into_iter().map(|(d, v)| (d.to_string(), v)).collect(),
            graph: graph.name()?.to_string(),
            inputs: ports(graph.inputs()?)?,
            outputs: ports(graph.outputs()?)?,
            ops,
            functions: functions.iter().map(|f| Ok(f.name()?.to_string())).collect::<Result<_>>()?,
            metadata: text(m.metadata()?),
        })
    }
}

/// Data of a message `TensorProto` alone, as test suites keep them: the name and the tensor.
pub fn read_tensor(bytes: impl Into<Bytes>) -> Result<(String, Array)> {
    let data = Data::new(bytes.into(), None);
    let t = proto::Tensor(data.bytes());
    Ok((t.name()?.to_string(), data.read(t)?))
}

/// How deeply subgraphs may nest.
const MAX_DEPTH: usize = 32;

fn count(nodes: &[proto::Node<'_>], ops: &mut BTreeMap<String, usize>, depth: usize) -> Result<()> {
    if depth > MAX_DEPTH {
        return Err(bad(format!("subgraphs nest deeper than {MAX_DEPTH}")));
    }
    for n in nodes {
        let name = match n.domain()? {
            "" | "ai.onnx" => n.op()?.to_string(),
            domain => format!("{domain}.{}", n.op()?),
        };
        *ops.entry(name).or_default() += 1;
        for a in n.attributes()? {
            if let proto::Held::Graph(g) = a.held()? {
                count(&g.nodes()?, ops, depth + 1)?;
            }
        }
    }
    Ok(())
}

/// The type of an input or output, as text.
fn type_text(v: proto::ValueInfo<'_>) -> Result<String> {
    let Some(t) = v.ty()?.map(|t| t.tensor()).transpose()?.flatten() else {
        return Ok("not a tensor".into());
    };
    let dtype =
        rlx_ir::onnx::dtype(t.elem_type()?).map_or_else(|e| e.message().to_string(), |d| d.to_string());
    let Some(shape) = t.shape()? else { return Ok(format!("{dtype}[..]")) };
    let dim = |d: proto::Dimension<'_>| match (d.value()?, d.param()?) {
        (Some(n), _) => Ok(n.to_string()),
        (None, "") => Ok("?".to_string()),
        (None, name) => Ok(name.to_string()),
    };
    let shape: Vec<String> = shape.into_iter().map(dim).collect::<Result<_>>()?;
    Ok(format!("{dtype}[{}]", shape.join(", ")))
}
