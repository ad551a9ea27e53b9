//! Applies rules for ONNX nodes without a file.

use rlx_ir::onnx::{self, Attr, Call, How};
use rlx_ir::{Graph, Result, Var};
use std::collections::BTreeMap;

/// Applies the rule of an ONNX op, of whose outputs the first `wanted` are used.
pub fn node<'g>(
    g: &'g Graph,
    name: &str,
    (domain, opset): (&str, i64),
    operands: &[Option<Var<'g>>],
    attrs: Vec<(&str, Attr<'_, 'g>)>,
    wanted: usize,
) -> Result<Vec<Var<'g>>> {
    let (rule, def) = onnx::find(domain, name, opset).expect("a rule");
    let attrs: BTreeMap<&str, Attr<'_, 'g>> = attrs.into_iter().collect();
    let call = Call { g, name, opset, operands, attrs: &attrs, wanted: &vec![true; wanted], narrow: &[] };
    match rule.how {
        How::Same => call.same(def),
        How::By(build) => build(&call),
    }
}
