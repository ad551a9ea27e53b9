//! What holds for any bytes that are taken for an ONNX model.

use rlx_formats::Archive;
use rlx_formats::onnx::{Model, Options};

/// Bytes are refused with an error, or become a graph that the verifier has nothing against, the same one every time.
pub fn check(bytes: &[u8]) {
    let _ = Archive::from_bytes(bytes.to_vec().into());
    let Ok(model) = Model::parse(bytes.to_vec()) else { return };
    let _ = model.summary();
    let Ok(imported) = model.import(&Options::default()) else { return };
    rlx_ir::verify::verify(&imported.func).expect("an imported graph is sound");
    let again = model.import(&Options::default()).expect("what was imported can be imported again");
    assert!(imported.func == again.func, "two imports of one model differ");
    for p in &imported.params {
        let port = imported.func.port(&p.0).expect("a param is a port");
        assert_eq!(imported.func.ty(port.value).expect("a type").dtype, p.1.dtype());
    }
}
