//! Sequences of ONNX: lists of values that exist while a model is imported, and leave nothing behind in the graph. So how many
//! they hold, and which entry a node takes, must be known.

use rlx_ir::dim::Dim;
use rlx_ir::onnx::Call;
use rlx_ir::types::resolve_axis;
use rlx_ir::{Code, Error, Result, Tensor, Var};

/// What a name of the model stands for.
#[derive(Clone)]
pub(super) enum Value<'g> {
    /// An operand of a function that its call leaves out.
    Absent,
    One(Var<'g>),
    List(Vec<Var<'g>>),
}

impl<'g> Value<'g> {
    /// The value, if it is one.
    pub(super) fn one(&self) -> Option<Var<'g>> {
        if let Value::One(v) = self { Some(*v) } else { None }
    }
}

/// The longest list that a tensor is split into.
const MAX_ENTRIES: i64 = 1 << 12;

/// Whether a node takes or gives a list.
pub(super) fn is_sequence_op(domain: &str, op: &str) -> bool {
    let own = op.starts_with("Sequence") || op == "SplitToSequence" || op == "ConcatFromSequence";
    own && matches!(domain, "" | "ai.onnx")
}

fn missing(what: &str) -> Error {
    Error::new(Code::Operands, format!("{what} is missing"))
}

/// Where an operand that is given, or else the end of a list, points; a negative one counts from the end.
fn place(c: &Call<'_, '_>, i: usize, count: usize, end: usize) -> Result<usize> {
    let Some(at) = c.opt(i).map(|_| c.const_ints(i)).transpose()? else { return Ok(end) };
    let at = at.first().copied().ok_or_else(|| missing("the position"))?;
    let from_start = if at < 0 { at.checked_add(count as i64) } else { Some(at) };
    from_start
        .and_then(|at| usize::try_from(at).ok())
        .filter(|at| *at <= end)
        .ok_or_else(|| Error::new(Code::Size, format!("position {at} of a sequence of {count}")))
}

/// The result of a node: of its operands, `list` is the first, if that is a list.
pub(super) fn apply<'g>(c: &Call<'g, '_>, list: Option<&[Var<'g>]>) -> Result<Value<'g>> {
    let list_or = || list.ok_or_else(|| missing("a sequence"));
    Ok(match c.name {
        "SequenceEmpty" => Value::List(Vec::new()),
        "SequenceConstruct" => Value::List(c.given()),
        "SequenceInsert" => {
            let mut list = list_or()?.to_vec();
            let at = place(c, 2, list.len(), list.len())?;
            list.insert(at, c.x(1)?);
            Value::List(list)
        }
        "SequenceErase" => {
            let mut list = list_or()?.to_vec();
            let last = list.len().checked_sub(1).ok_or_else(|| missing("an entry"))?;
            list.remove(place(c, 1, list.len(), last)?);
            Value::List(list)
        }
        "SequenceAt" => {
            let list = list_or()?;
            c.x(1)?;
            let last = list.len().checked_sub(1).ok_or_else(|| missing("an entry"))?;
            let entry = list.get(place(c, 1, list.len(), last)?);
            Value::One(*entry.ok_or_else(|| missing("an entry"))?)
        }
        "SequenceLength" => Value::One(c.g.constant(Tensor::scalar(list_or()?.len() as i64))),
        "SplitToSequence" => Value::List(split(c)?),
        "ConcatFromSequence" => {
            let axis = c.int("axis")?.ok_or_else(|| missing("the axis"))?;
            Value::One(match c.flag("new_axis", false)? {
                true => c.g.stack(list_or()?, axis),
                false => c.g.concat(list_or()?, axis),
            })
        }
        _ => return Err(c.cannot("RLX has no such op")),
    })
}

/// Parts along an axis: of one size, the last of which may be smaller; of given sizes; or the entries of the axis.
fn split<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let x = c.x(0)?;
    let axis = resolve_axis(c.int_or("axis", 0)?, x.rank())? as i64;
    let n = x.dim(axis);
    let sizes = match c.opt(1) {
        Some(by) if by.rank() > 0 => c.dims(1)?,
        by => {
            let part = by.map(|_| c.const_ints(1)).transpose()?.map_or(Some(1), |v| v.first().copied());
            let part = part.filter(|p| *p > 0).ok_or_else(|| missing("a size"))?;
            let n = n.as_const().filter(|n| *n / part < MAX_ENTRIES);
            let n =
                n.ok_or_else(|| c.cannot("a sequence whose length depends on sizes, or is beyond 4096"))?;
            (0..n).step_by(part as usize).map(|at| Dim::constant(part.min(n - at))).collect()
        }
    };
    let parts = if sizes.is_empty() { Vec::new() } else { x.split(axis, sizes) };
    let whole = c.opt(1).is_some() || c.flag("keepdims", true)?;
    Ok(if whole { parts } else { parts.into_iter().map(|p| p.squeeze(axis)).collect() })
}
