//! To come.
/// To come.
pub struct AttentionGrad;
