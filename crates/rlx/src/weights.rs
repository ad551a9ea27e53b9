//! Params from files of tensors, mapped rather than read.

use crate::exec::Params;
use rlx_cpu::Data;
use rlx_formats::Array;
use rlx_ir::Result;
use std::collections::BTreeMap;
use std::path::Path;

/// The data of a param, where they lie if a device can read them there.
pub fn data(array: &Array) -> Result<Data> {
    match array.planes() {
        // Programs keep planes padded to 64 bytes.
        [one] if !array.dtype().is_packed() || one.len().is_multiple_of(64) => {
            let (owner, range) = one.shared();
            Ok(Data::Shared { dtype: array.dtype(), shape: array.shape().to_vec(), owner, range })
        }
        _ => array.to_tensor().map(Data::Tensor),
    }
}

/// The tensors of a file that [`rlx_formats::open`] can read.
pub fn open(path: impl AsRef<Path>) -> Result<BTreeMap<String, Data>> {
    let file = rlx_formats::open(path)?;
    let one = |name: &str| Ok((name.to_owned(), data(&file.tensor(name)?)?));
    file.entries().iter().map(|e| one(e.name())).collect()
}

impl Params<'_> {
    /// Sets every param that the file has a tensor for, by name. Tensors that no param is named after are an error.
    pub fn load(&self, path: impl AsRef<Path>) -> Result<()> {
        for (name, data) in open(path)? {
            self.set_data(&name, data)?;
        }
        Ok(())
    }
}
