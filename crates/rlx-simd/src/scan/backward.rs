//! To come.
/// To come.
pub struct SelectiveScanGrad;
