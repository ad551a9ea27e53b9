//! Models from files: a graph with its params, ready to compile.

use crate::exec::{AsFunc, CompileOptions, Device, Executable, compile_with};
use crate::weights;
use rlx_formats::Array;
use rlx_formats::onnx::{self, Imported};
use rlx_ir::{Func, Result, Tensor};
use std::borrow::Cow;
use std::path::Path;

pub use rlx_formats::onnx::{Named, Options as ImportOptions};

/// A model from an ONNX file: its graph, and its params where the file lies.
///
/// ```no_run
/// use rlx::prelude::*;
/// use rlx::Model;
///
/// let model = Model::open("model.onnx")?;
/// let f = model.compile(Device::auto())?; // with its params
/// let ids = Tensor::new(&[1, 4], &[101i64, 7592, 2088, 102])?;
/// let out = f.run(&[("input_ids", &ids)])?; // by the model's own names
/// # Ok::<(), rlx::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Model {
    imported: Imported,
}

impl Model {
    /// Maps a file and imports it. Axes that the model leaves open become symbols.
    pub fn open(path: impl AsRef<Path>) -> Result<Model> {
        Model::open_with(path, &ImportOptions::default())
    }

    /// The same, with what the caller knows of it: bounds of open axes, and values of inputs that decide shapes.
    pub fn open_with(path: impl AsRef<Path>, options: &ImportOptions) -> Result<Model> {
        Ok(Model { imported: onnx::Model::open(path)?.import(options)? })
    }

    /// The same for a call with these inputs: those whose values decide shapes become part of the graph, and open axes are
    /// bounded by what is given if that is larger than their bounds. A model that cannot be imported with open axes is imported
    /// for the very sizes of the inputs. Gives the rest of the inputs too.
    pub fn open_for<'t>(
        path: impl AsRef<Path>,
        options: &ImportOptions,
        inputs: &[(&'t str, &'t Tensor)],
    ) -> Result<(Model, Vec<(&'t str, &'t Tensor)>)> {
        let file = onnx::Model::open(path)?;
        let mut options = options.clone();
        options.shapes.extend(inputs.iter().map(|(n, t)| (n.to_string(), t.shape().to_vec())));
        let mut with_open_axes = None;
        loop {
            match file.import(&options) {
                Ok(imported) => {
                    let rest =
                        inputs.iter().filter(|(n, _)| !options.values.contains_key(*n)).copied().collect();
                    return Ok((Model { imported }, rest));
                }
                Err(e) => {
                    let before = options.values.len();
                    for name in e.inputs() {
                        if let Some((_, t)) = inputs.iter().find(|(n, _)| n == name) {
                            options.values.insert(name.clone(), (*t).clone());
                        }
                    }
                    if options.values.len() > before {
                        continue;
                    }
                    if let Some(first) = with_open_axes {
                        return Err(first);
                    }
                    with_open_axes = Some(e);
                    for (name, t) in inputs {
                        let sizes = t.shape().iter().map(|n| i64::try_from(*n).unwrap_or(i64::MAX));
                        options.axes.extend(sizes.enumerate().map(|(i, n)| ((name.to_string(), i), n)));
                    }
                }
            }
        }
    }

    /// The graph.
    pub fn graph(&self) -> &Func {
        &self.imported.func
    }

    /// The inputs, in the model's order.
    pub fn inputs(&self) -> &[Named] {
        &self.imported.inputs
    }

    /// The outputs, in the model's order.
    pub fn outputs(&self) -> &[Named] {
        &self.imported.outputs
    }

    /// What had to be assumed of open axes, in words.
    pub fn assumed(&self) -> &[String] {
        &self.imported.assumed
    }

    /// The data of the params that the graph does not hold itself, by their names in the graph.
    pub fn params(&self) -> &[(String, Array)] {
        &self.imported.params
    }

    /// Compiles the graph for a device and sets its params.
    pub fn compile(&self, device: Device) -> Result<Executable> {
        self.compile_with(device, &CompileOptions::default())
    }

    /// The same, with a choice.
    pub fn compile_with(&self, device: Device, options: &CompileOptions) -> Result<Executable> {
        let exe = compile_with(&self.imported.func, device, options)?;
        for (name, array) in &self.imported.params {
            exe.params().set_data(name, weights::data(array)?)?;
        }
        Ok(exe.with_names(&self.imported.inputs, &self.imported.outputs))
    }
}

impl AsFunc for Model {
    fn func(&self) -> Result<Cow<'_, Func>> {
        Ok(Cow::Borrowed(&self.imported.func))
    }
}
