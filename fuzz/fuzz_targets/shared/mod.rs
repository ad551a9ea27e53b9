//! What holds for the bytes of every file of tensors.

use rlx_formats::{Archive, Array, Bytes, Value, View};

type Write = fn(&mut Vec<u8>, &[(&str, View<'_>)], &[(String, Value)]) -> rlx_ir::Result<()>;

/// Any bytes either fail to be read with an error, or the tensors that they hold are written and read again as they are.
pub fn check(bytes: &[u8], write: Write) {
    let Ok(archive) = Archive::from_bytes(bytes.to_vec().into()) else { return };
    let named = |e: &rlx_formats::Entry| Some((e.name().to_owned(), archive.tensor(e.name()).ok()?));
    let tensors: Vec<(String, Array)> = archive.entries().iter().filter_map(named).collect();
    for (name, t) in &tensors {
        let len: usize = t.planes().iter().map(|p| p.len()).sum();
        assert_eq!(archive.entry(name).map(|e| e.bytes()), Some(len as u64), "{name:?}");
        assert_eq!(t.to_tensor().expect("what was checked").shape(), t.shape(), "{name:?}");
    }
    let views: Vec<(&str, View<'_>)> = tensors.iter().map(|(n, t)| (n.as_str(), t.into())).collect();
    let mut out = Vec::new();
    // What can be read but not written is told by the tests.
    if write(&mut out, &views, archive.metadata()).is_err() {
        return;
    }
    let again = Archive::from_bytes(Bytes::from(out)).expect("what was written is read");
    assert_eq!(again.entries().len(), tensors.len());
    for (name, t) in &tensors {
        assert_eq!(&again.tensor(name).expect("a tensor"), t, "{name:?}");
    }
}
