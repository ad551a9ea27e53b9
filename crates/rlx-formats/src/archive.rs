//! One view of all files that hold tensors.

use crate::array::{Array, planes_of};
use crate::error::{Context, bad};
use crate::map::Bytes;
use crate::metadata::Value;
use crate::{gguf, npy, npz, onnx, safetensors};
use rlx_ir::quant::Scheme;
use rlx_ir::{DType, Result, tensor, text};
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// The formats that tensors are read from and written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// One file, or an index (`*.index.json`) and the parts that it names.
    Safetensors,
    /// One file, or several (`*-00001-of-00003.gguf`).
    Gguf,
    /// One array.
    Npy,
    /// Arrays by name, in a zip archive.
    Npz,
    /// A model; its data are read, and not written.
    Onnx,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Safetensors => "safetensors",
            Format::Gguf => "GGUF",
            Format::Npy => "npy",
            Format::Npz => "npz",
            Format::Onnx => "ONNX",
        })
    }
}

impl Format {
    /// The format that the name of a file ends in.
    pub fn of_name(path: &Path) -> Option<Format> {
        let name = path.file_name()?.to_str()?.to_ascii_lowercase();
        let ends = [
            (".safetensors", Format::Safetensors),
            (".safetensors.index.json", Format::Safetensors),
            (".gguf", Format::Gguf),
            (".npy", Format::Npy),
            (".npz", Format::Npz),
            (".onnx", Format::Onnx),
        ];
        ends.iter().find(|(end, _)| name.ends_with(end)).map(|(_, format)| *format)
    }
}

/// A file of tensors, open.
#[derive(Debug)]
pub struct Archive {
    name: String,
    format: Format,
    files: Vec<PathBuf>,
    entries: Vec<Entry>,
    places: HashMap<String, usize>,
    metadata: Vec<(String, Value)>,
}

/// A tensor in a file, before it is asked for.
#[derive(Clone, Debug)]
pub struct Entry {
    name: String,
    dtype: Option<DType>,
    stored: Cow<'static, str>,
    shape: Vec<usize>,
    bytes: u64,
    place: Place,
}

/// Where the bytes of a tensor are.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// As they are needed, plane by plane.
    Here(Vec<Bytes>),
    /// In an array of NumPy's, to be checked, unpacked or put in order first.
    Npy(npy::Stored),
}

impl Entry {
    /// A tensor whose bytes lie in the file as they are needed. Sizes that no tensor has are refused.
    pub(crate) fn new(
        name: &str,
        dtype: Option<DType>,
        stored: impl Into<Cow<'static, str>>,
        shape: Vec<usize>,
        place: Place,
    ) -> Result<Entry> {
        tensor::count(&shape).map_err(|e| bad(format!("tensor {name:?}: {}", e.message())))?;
        let bytes = match &place {
            Place::Here(planes) => planes.iter().map(|p| p.len() as u64).sum(),
            Place::Npy(stored) => stored.len(),
        };
        Ok(Entry { name: name.into(), dtype, stored: stored.into(), shape, bytes, place })
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }
    /// The element type; `None` if RLX has none for it.
    pub fn dtype(&self) -> Option<DType> {
        self.dtype
    }
    /// What the format calls the element type.
    pub fn stored(&self) -> &str {
        &self.stored
    }
    /// The sizes of the axes.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }
    /// The bytes of the data, unpacked if the file has them compressed.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    fn load(&self) -> Result<Array> {
        let stored = &self.stored;
        let dtype = self.dtype.ok_or_else(|| bad(format!("is {stored}, a type that RLX has not")))?;
        let array = match (&self.place, dtype) {
            (Place::Here(planes), DType::Packed(scheme)) => {
                Array::packed(scheme, &self.shape, planes.clone())?
            }
            (Place::Here(planes), _) => {
                let bytes = planes.first().cloned().unwrap_or_else(|| Vec::new().into());
                Array::new(dtype, &self.shape, bytes)?
            }
            (Place::Npy(stored), _) => Array::new(dtype, &self.shape, stored.bytes()?)?,
        };
        array.check()?;
        Ok(array)
    }
}

/// What a reader of a format finds.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    pub(crate) entries: Vec<Entry>,
    pub(crate) metadata: Vec<(String, Value)>,
    /// Other files than the one that was opened.
    pub(crate) more_files: Vec<PathBuf>,
}

/// Opens a file of tensors. Which format it has is told by what is in it, not by its name.
pub fn open(path: impl AsRef<Path>) -> Result<Archive> {
    let path = path.as_ref();
    let bytes = Bytes::open(path)?;
    Archive::read(bytes, Some(path)).about(path.display())
}

impl Archive {
    /// Whether bytes begin like a file of tensors, or like one that is refused with a way to convert it.
    pub fn recognises(bytes: &Bytes) -> bool {
        !matches!(kind(bytes), Kind::Unknown)
    }

    /// The format that bytes begin like.
    pub fn format_of(bytes: &Bytes) -> Option<Format> {
        match kind(bytes) {
            Kind::Tensors(format) => Some(format),
            Kind::Pickle | Kind::Unknown => None,
        }
    }

    /// The tensors in the bytes of a file. Parts that lie in other files cannot be found.
    pub fn from_bytes(bytes: Bytes) -> Result<Archive> {
        Archive::read(bytes, None)
    }

    fn read(bytes: Bytes, path: Option<&Path>) -> Result<Archive> {
        let format = match kind(&bytes) {
            Kind::Tensors(format) => format,
            Kind::Pickle => return Err(pickle(path)),
            // If the name promises a format, its reader says best what is wrong.
            Kind::Unknown => path.and_then(Format::of_name).ok_or_else(|| {
                bad("neither safetensors (or an index of such files) nor GGUF, npy, npz or ONNX")
            })?,
        };
        let contents = match format {
            Format::Safetensors => safetensors::read(&bytes, path),
            Format::Gguf => gguf::read(&bytes, path),
            Format::Npy => npy::read(&bytes, path),
            Format::Npz => npz::read(&bytes),
            Format::Onnx => onnx::read(&bytes, path),
        }?;
        let mut places = HashMap::with_capacity(contents.entries.len());
        for (i, e) in contents.entries.iter().enumerate() {
            if places.insert(e.name.clone(), i).is_some() {
                return Err(bad(format!("there are two tensors {:?}", e.name)));
            }
        }
        let name = path.map_or_else(|| "a file in memory".into(), |p| p.display().to_string());
        let mut files: Vec<PathBuf> = path.iter().map(|p| p.to_path_buf()).collect();
        files.extend(contents.more_files);
        Ok(Archive { name, format, files, entries: contents.entries, places, metadata: contents.metadata })
    }

    /// The format.
    pub fn format(&self) -> Format {
        self.format
    }
    /// The file that was opened, and those that it is continued in.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }
    /// The tensors, in the order of the file.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }
    /// The tensor of that name.
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.places.get(name).and_then(|i| self.entries.get(*i))
    }
    /// What the file says about itself, in its order.
    pub fn metadata(&self) -> &[(String, Value)] {
        &self.metadata
    }
    /// A value of the metadata.
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.metadata.iter().find(|(k, _)| k == key).map(|(_, v)| v)
    }

    /// A tensor, where it lies if it lies as it is needed. What its bytes must fulfil is checked now: bools are 0 or 1, the scales
    /// of quantised blocks are finite, checksums are right.
    pub fn tensor(&self, name: &str) -> Result<Array> {
        let entry = self.entry(name).ok_or_else(|| {
            let hint = text::nearest(name, self.entries.iter().map(Entry::name));
            let hint = hint.map_or(String::new(), |h| format!("; did you mean {h:?}?"));
            bad(format!("{}: there is no tensor {name:?}{hint}", self.name))
        })?;
        entry.load().about(format!("{}: tensor {name:?}", self.name))
    }

    /// A packed tensor that is stored as such, or as its planes: see [`plane_names`].
    pub fn packed(&self, name: &str, scheme: Scheme, shape: &[usize]) -> Result<Array> {
        if self.entry(name).is_some() {
            return self.tensor(name);
        }
        let mut planes = Vec::new();
        for part in plane_names(name, scheme, shape)? {
            planes.extend(self.tensor(&part)?.planes().iter().cloned());
        }
        Array::packed(scheme, shape, planes).about(format!("{}: tensor {name:?}", self.name))
    }
}

/// The names of the tensors that a packed tensor is stored as in formats that have no quantised types: `w.codes`, `w.scale`, …
pub fn plane_names(name: &str, scheme: Scheme, shape: &[usize]) -> Result<Vec<String>> {
    Ok(planes_of(scheme, shape)?.iter().map(|p| format!("{name}.{}", p.name)).collect())
}

/// What the first bytes of a file tell.
enum Kind {
    Tensors(Format),
    /// Of Python, which PyTorch saves.
    Pickle,
    Unknown,
}

fn kind(bytes: &Bytes) -> Kind {
    let starts = |magic: &[u8]| bytes.starts_with(magic);
    if starts(b"GGUF") || starts(b"FUGG") {
        return Kind::Tensors(Format::Gguf);
    }
    if starts(b"\x93NUMPY") {
        return Kind::Tensors(Format::Npy);
    }
    if starts(b"PK\x03\x04") || starts(b"PK\x05\x06") {
        return if npz::is_pickle(bytes) { Kind::Pickle } else { Kind::Tensors(Format::Npz) };
    }
    if safetensors::looks_like(bytes) {
        return Kind::Tensors(Format::Safetensors);
    }
    // The opcode that opens a pickle, and the versions since 2003.
    match **bytes {
        [0x80, 2..=5, ..] => Kind::Pickle,
        _ if onnx::Model::looks_like(bytes) => Kind::Tensors(Format::Onnx),
        _ => Kind::Unknown,
    }
}

/// An error if a file that another refers to is a pickle.
pub(crate) fn check_no_pickle(bytes: &Bytes, path: &Path) -> Result<()> {
    if matches!(kind(bytes), Kind::Pickle) { Err(pickle(Some(path))) } else { Ok(()) }
}

fn pickle(path: Option<&Path>) -> rlx_ir::Error {
    let name = path.and_then(Path::file_name).map_or("model.pt".into(), |n| n.to_string_lossy());
    bad(format!(
        "a Python pickle, as PyTorch saves it: reading one means running what it says. Convert it with Python: \
         import torch; from safetensors.torch import save_file; \
         save_file(torch.load({name:?}, weights_only=True), \"model.safetensors\")"
    ))
}
