//! Recurrences over time, and their gradients without keeping every state: what the state-space ops share.
//!
//! Going backwards needs the states that went before. Only those at the start of each chunk of about √s turns are kept;
//! within a chunk they are computed again. So s turns keep some 2·√s states.

use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::{Graph, Var};
use crate::types::Shape;

/// One turn: from the state, the entries at this time and what is fixed, to the next state and the result.
pub(crate) type Step = for<'a> fn(Var<'a>, &[Var<'a>], &[Var<'a>]) -> (Var<'a>, Var<'a>);

/// One turn back: from the state before the turn, the entries, what is fixed, and the gradients of the result and of
/// the state after the turn.
pub(crate) type Back = for<'a> fn(Var<'a>, &[Var<'a>], &[Var<'a>], Var<'a>, Var<'a>) -> TurnGrads<'a>;

/// The gradients of one turn.
pub(crate) struct TurnGrads<'a> {
    /// Of the state before it.
    pub state: Var<'a>,
    /// Of each entry.
    pub xs: Vec<Var<'a>>,
    /// Of each fixed value.
    pub fixed: Vec<Var<'a>>,
}

/// A recurrence by its turn and its turn back.
///
/// A turn whose entries are all 0 must leave the state as it is, and so must its turn back the gradient of the state,
/// and give nothing to the fixed values: such turns fill up the last chunk.
pub(crate) struct Recurrence {
    /// The turn.
    pub step: Step,
    /// The turn back.
    pub back: Back,
}

/// The gradients of a whole recurrence, and its results computed again.
pub(crate) struct Gradients<'g> {
    /// The results.
    pub y: Var<'g>,
    /// Of the first state.
    pub state: Var<'g>,
    /// Of each scanned value.
    pub xs: Vec<Var<'g>>,
    /// Of each fixed value.
    pub fixed: Vec<Var<'g>>,
}

/// The longest chunk: a short sequence in a graph planned for a very long one must not be filled up to a chunk of that.
const LONGEST: i64 = 256;

/// The first `N` of some values; poison where there are fewer.
pub(crate) fn first<'a, const N: usize>(like: Var<'a>, xs: &[Var<'a>]) -> [Var<'a>; N] {
    std::array::from_fn(|i| xs.get(i).copied().unwrap_or_else(|| like.graph().poison()))
}

/// The dtype that states are kept in for operands of `dtype`.
pub(crate) fn wide(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

impl Recurrence {
    /// Runs over axis 0 (`s`) of `xs`. Gives the stacked results and the last state.
    pub fn run<'g>(
        &self,
        g: &'g Graph,
        s: &Dim,
        state: Var<'g>,
        xs: &[Var<'g>],
        fixed: &[Var<'g>],
    ) -> (Var<'g>, Var<'g>) {
        let step = self.step;
        let (last, ys) = g.scan(&[state], xs, s.clone(), false, |carry, x| {
            let [state] = first(g.poison(), carry);
            let (state, y) = step(state, x, fixed);
            (vec![state], vec![y])
        });
        let ([last], [y]) = (first(state, &last), first(state, &ys));
        (y, last)
    }

    /// The gradients, from those of the results (`dy`) and of the last state (`dlast`).
    #[allow(clippy::too_many_arguments, reason = "the parts of a recurrence")]
    pub fn gradient<'g>(
        &self,
        g: &'g Graph,
        s: &Dim,
        state: Var<'g>,
        xs: &[Var<'g>],
        fixed: &[Var<'g>],
        dy: Var<'g>,
        dlast: Var<'g>,
    ) -> Gradients<'g> {
        let (step, back) = (self.step, self.back);
        let length = s.upper().unwrap_or(0).max(0).isqrt().clamp(1, LONGEST);
        let chunks = s.ceil_div(length);
        let n = xs.len();

        let all: Vec<Var<'g>> = xs.iter().chain([&dy]).map(|x| cut(*x, length, &chunks)).collect();
        let entries: Vec<Var<'g>> = all.iter().take(n).copied().collect();

        let (_, kept) = g.scan(&[state], &entries, chunks.clone(), false, |carry, x| {
            let [start] = first(g.poison(), carry);
            let (last, ys) = g.scan(&[start], x, length, false, |carry, x| {
                let [state] = first(g.poison(), carry);
                let (state, y) = step(state, x, fixed);
                (vec![state], vec![y])
            });
            (last, ys.into_iter().chain([start]).collect())
        });
        let [y, starts] = first(state, &kept);

        let zeros = fixed.iter().map(|x| x.zeros_like());
        let init: Vec<Var<'g>> = std::iter::once(dlast).chain(zeros).collect();
        let scanned: Vec<Var<'g>> = std::iter::once(starts).chain(all).collect();
        let (last, grads) = g.scan(&init, &scanned, chunks, true, |carry, x| {
            let (start, x) = x.split_first().map_or((g.poison(), x), |(s, x)| (*s, x));
            let (entries, _) = x.split_at(n.min(x.len()));
            let (_, before) = g.scan(&[start], entries, length, false, |carry, x| {
                let [state] = first(g.poison(), carry);
                (vec![step(state, x, fixed).0], vec![state])
            });
            let scanned: Vec<Var<'_>> = before.iter().chain(x).copied().collect();
            g.scan(carry, &scanned, length, true, |carry, x| {
                let poison = g.poison();
                let (before, x) = x.split_first().map_or((poison, x), |(s, x)| (*s, x));
                let (entries, rest) = x.split_at(n.min(x.len()));
                let ([dy], [ds]) = (first(poison, rest), first(poison, carry));
                let turn = back(before, entries, fixed, dy, ds);
                let sums = carry.iter().skip(1).zip(&turn.fixed).map(|(sum, d)| *sum + *d);
                (std::iter::once(turn.state).chain(sums).collect(), turn.xs)
            })
        });
        let [dstate] = first(state, &last);
        Gradients {
            y: join(y, s),
            state: dstate,
            xs: grads.into_iter().map(|x| join(x, s)).collect(),
            fixed: last.into_iter().skip(1).collect(),
        }
    }
}

/// Axis 0 as chunks of `length`, the last filled up with zeros.
fn cut<'g>(x: Var<'g>, length: i64, chunks: &Dim) -> Var<'g> {
    let shape = x.shape();
    let Some((s, rest)) = shape.split_first() else { return x };
    let fill = chunks * length - s;
    let padded = if fill.is(0) {
        x
    } else {
        let at = |first: Dim| {
            std::iter::once(first).chain(rest.iter().map(|_| Dim::constant(0))).collect::<Vec<_>>()
        };
        x.pad(0.0, at(Dim::constant(0)), at(fill), vec![0i64; shape.len()])
    };
    padded.reshape([chunks.clone(), Dim::constant(length)].iter().chain(rest).cloned().collect::<Shape>())
}

/// The chunks one after the other again, without what filled up the last.
fn join<'g>(x: Var<'g>, s: &Dim) -> Var<'g> {
    let shape = x.shape();
    let [chunks, length, rest @ ..] = &shape[..] else { return x };
    let flat = x.reshape(std::iter::once(chunks * length).chain(rest.iter().cloned()).collect::<Shape>());
    if flat.dim(0) == *s { flat } else { flat.narrow(0, 0, s.clone()) }
}

/// The gradients of the operands that are given, in order, each in its operand's dtype.
pub(crate) fn in_dtypes<'g>(grads: Vec<(Option<Var<'g>>, Option<Var<'g>>)>) -> Result<Vec<Var<'g>>> {
    Ok(grads.into_iter().filter_map(|(x, d)| Some(d?.to(x?.dtype()))).collect())
}
