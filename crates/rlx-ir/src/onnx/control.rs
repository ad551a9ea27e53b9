//! ONNX's branches and loops.

use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::graph::Var;
use crate::onnx::{Call, Subgraph};
use crate::tensor::Tensor;
use crate::types::Shape;
use std::cell::{Cell, RefCell};

/// Loops that cannot be loops of RLX, because shapes change or depend on the turn, are written out if they turn no more
/// often than this.
const MAX_WRITTEN_OUT: i64 = 64;

/// Loops that data alone ends are ended after so many turns, which take longer than anybody waits. Exporters write the largest
/// number where there is no bound; devices want less.
const MAX_TURNS: i64 = 1 << 32;

/// Builds bodies inside of the builder's closures, which give values and no errors: the first error is kept here.
struct Bodies<'g, 'c, 'a> {
    c: &'c Call<'g, 'a>,
    /// How many errors the graph had before.
    errors: usize,
    error: RefCell<Option<Error>>,
}

impl<'g, 'c, 'a> Bodies<'g, 'c, 'a> {
    fn new(c: &'c Call<'g, 'a>) -> Self {
        Bodies { c, errors: c.g.errors().len(), error: RefCell::new(None) }
    }

    fn build(&self, body: &dyn Subgraph<'g>, args: &[Var<'g>]) -> Vec<Var<'g>> {
        let built = match body.inputs() == args.len() {
            true => body.attempt(args),
            false => {
                let text = format!("the body has {} inputs, but gets {} values", body.inputs(), args.len());
                Err(Error::new(Code::Operands, text))
            }
        };
        built.unwrap_or_else(|e| {
            self.error.borrow_mut().get_or_insert(e);
            vec![self.c.g.poison(); body.outputs()]
        })
    }

    /// What went wrong since, in the bodies or around them, which the graph forgets.
    fn done(&self) -> Result<()> {
        let more = self.c.g.take_errors(self.errors).into_iter().next();
        self.error.borrow_mut().take().or(more).map_or(Ok(()), Err)
    }
}

/// A value of one element without axes.
fn alone(x: Var<'_>) -> Var<'_> {
    if x.rank() == 0 { x } else { x.reshape(Shape::new()) }
}

/// Whether a condition is known to hold, or not to.
fn decided(c: &Call<'_, '_>, x: Var<'_>) -> Option<bool> {
    match c.g.known(x)?.dims()?.as_slice() {
        [d] => d.as_const().map(|n| n != 0),
        _ => None,
    }
}

pub(crate) fn branch<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let (then, otherwise) = (c.subgraph("then_branch")?, c.subgraph("else_branch")?);
    let condition = c.x(0)?;
    if let Some(holds) = decided(c, condition) {
        return if holds { then } else { otherwise }.build(&[]);
    }
    let bodies = Bodies::new(c);
    let out = c.g.cond(alone(condition), || bodies.build(then, &[]), || bodies.build(otherwise, &[]));
    let Err(e) = bodies.done() else { return Ok(out) };
    // Sizes that disagree may be assumed to be equal. All else may be because the model never takes that branch with such
    // inputs as it gets: tell which of them decide.
    let inputs = c.g.inputs_behind(condition);
    if e.bad_sizes().is_some() {
        return Err(e.with_inputs(inputs));
    }
    let text = format!("data decides between two branches, of which one does not fit: {e}");
    Err(Error::new(Code::Undetermined, text).with_inputs(inputs))
}

fn truth<'g>(c: &Call<'g, '_>) -> Var<'g> {
    c.g.constant(Tensor::scalar(true))
}

fn number<'g>(c: &Call<'g, '_>, n: i64) -> Var<'g> {
    c.g.constant(Tensor::scalar(n))
}

/// How often a loop turns at most, before its condition is asked.
enum Trips<'g> {
    /// A size.
    Known(Dim),
    /// What this value says.
    Data(Var<'g>),
    /// Without end.
    Any,
}

pub(crate) fn repeat<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let body = c.subgraph("body")?;
    let carried: Vec<Var<'g>> = (2..c.operands.len()).map(|i| c.x(i)).collect::<Result<_>>()?;
    let n = carried.len();
    let gathered = body.outputs().checked_sub(n + 1);
    let gathered = gathered.ok_or_else(|| Error::new(Code::Operands, "the body gives too few values"))?;
    let trips = match c.opt(0) {
        None => Trips::Any,
        Some(m) => match c.dims(0) {
            Ok(d) => Trips::Known(d.first().cloned().unwrap_or(Dim::constant(0))),
            // The number of turns decides the shape of what is gathered.
            Err(e) if gathered > 0 => return Err(e),
            Err(_) => Trips::Data(alone(m).to(DType::I64)),
        },
    };
    let starts = c.opt(1).map_or(Some(true), |x| decided(c, x));
    let length = match (starts, &trips) {
        (Some(false), _) => Some(Dim::constant(0)),
        (Some(true), Trips::Known(m)) if m.upper().is_some_and(|m| m < 0) => Some(Dim::constant(0)),
        (Some(true), Trips::Known(m)) if m.upper().is_some_and(|m| m <= MAX_TURNS) => Some(m.clone()),
        _ => None,
    };
    if let Some(length) = length {
        match by_scan(c, body, &carried, length.clone()) {
            Ok(Some(out)) => return Ok(out),
            Ok(None) => {}
            // What cannot be said of any turn may be said of each: the shapes may change, or depend on the turn.
            Err(e) => match length.as_const() {
                Some(n) if n <= MAX_WRITTEN_OUT => return written_out(c, body, carried, n, gathered),
                _ => return Err(e),
            },
        }
    }
    if gathered > 0 {
        // If it is an input that says whether the loop begins, it may be fixed.
        c.opt(1).map_or(Ok(()), |_| c.known(1).map(|_| ()))?;
        return Err(c.cannot("gathering values in a loop whose number of turns depends on data"));
    }
    by_while(c, body, &carried, trips)
}

/// A loop that turns so many times; `None` if it may end before.
fn by_scan<'g>(
    c: &Call<'g, '_>,
    body: &dyn Subgraph<'g>,
    carried: &[Var<'g>],
    length: Dim,
) -> Result<Option<Vec<Var<'g>>>> {
    let (bodies, n) = (Bodies::new(c), carried.len());
    // It goes on whatever the data if it does so in a turn that was reached.
    let goes_on = Cell::new(length.is(0));
    let turns = c.g.iota(vec![length.clone()], 0, DType::I64);
    let (mut out, gathered) = c.g.scan(carried, &[turns], length, false, |state, turn| {
        let args: Vec<Var<'g>> =
            turn.iter().copied().chain([truth(c)]).chain(state.iter().copied()).collect();
        let mut out = bodies.build(body, &args);
        let gathered = out.split_off(out.len().min(n + 1));
        if let Some(condition) = out.first() {
            goes_on.set(goes_on.get() || decided(c, *condition) == Some(true));
        }
        (out.into_iter().skip(1).collect(), gathered)
    });
    bodies.done()?;
    out.extend(gathered);
    Ok(goes_on.get().then_some(out))
}

/// A loop whose turns stand one behind the other.
fn written_out<'g>(
    c: &Call<'g, '_>,
    body: &dyn Subgraph<'g>,
    mut carried: Vec<Var<'g>>,
    trips: i64,
    gathered: usize,
) -> Result<Vec<Var<'g>>> {
    let mut stacks: Vec<Vec<Var<'g>>> = vec![Vec::new(); gathered];
    for turn in 0..trips {
        let args: Vec<Var<'g>> =
            [number(c, turn), truth(c)].into_iter().chain(carried.iter().copied()).collect();
        let mut out = body.build(&args)?.into_iter();
        let goes_on = out.next().and_then(|x| decided(c, x));
        carried = out.by_ref().take(carried.len()).collect();
        stacks.iter_mut().zip(out).for_each(|(s, y)| s.push(y));
        match goes_on {
            Some(true) => {}
            Some(false) => break,
            None => return Err(c.cannot("a loop that changes shapes and whose end depends on data")),
        }
    }
    if stacks.iter().any(Vec::is_empty) {
        return Err(c.cannot("gathering values in a loop that never turns"));
    }
    carried.extend(stacks.iter().map(|s| c.g.stack(s, 0)));
    Ok(carried)
}

/// A loop whose condition depends on data.
fn by_while<'g>(
    c: &Call<'g, '_>,
    body: &dyn Subgraph<'g>,
    carried: &[Var<'g>],
    trips: Trips<'g>,
) -> Result<Vec<Var<'g>>> {
    // Nothing ends a loop that counts beyond what a device does and whose condition stays as it is.
    let boundless = match &trips {
        Trips::Any => true,
        Trips::Data(_) => false,
        Trips::Known(m) => m.as_const().is_some_and(|m| m > MAX_TURNS),
    };
    let constant = Cell::new(false);
    let (max, limit) = match trips {
        Trips::Any => (MAX_TURNS, None),
        Trips::Data(m) => (MAX_TURNS, Some(m)),
        Trips::Known(m) => match m.as_const() {
            Some(m) => (m.clamp(0, MAX_TURNS), None),
            None => (MAX_TURNS, Some(c.g.size_of(m, DType::I64))),
        },
    };
    let bodies = Bodies::new(c);
    let first = c.opt(1).map_or_else(|| truth(c), alone);
    let init: Vec<Var<'g>> = [number(c, 0), first].into_iter().chain(carried.iter().copied()).collect();
    let get = |v: &[Var<'g>], i: usize| v.get(i).copied().unwrap_or_else(|| c.g.poison());
    let out = c.g.while_loop(
        &init,
        max,
        |state| limit.map_or(get(state, 1), |m| get(state, 1).and(get(state, 0).less(m))),
        |state| {
            let out = bodies.build(body, state);
            constant.set(get(&out, 0).id() == get(state, 1).id() || decided(c, get(&out, 0)) == Some(true));
            let turn = get(state, 0) + 1.0;
            let rest = out.iter().skip(1).copied();
            [turn, alone(get(&out, 0))].into_iter().chain(rest).collect()
        },
    );
    bodies.done()?;
    if boundless && constant.get() {
        return Err(Error::new(Code::Size, format!("the loop goes on beyond {MAX_TURNS} turns")));
    }
    Ok(out.into_iter().skip(2).collect())
}

/// An attribute with an integer for each of `n` values, 0 if it is not given.
fn each(c: &Call<'_, '_>, name: &str, n: usize) -> Result<Vec<i64>> {
    let v = c.ints(name)?.unwrap_or_else(|| vec![0; n]);
    match v.len() == n {
        true => Ok(v),
        false => Err(Error::new(Code::Attribute, format!("{name} has {} entries, not {n}", v.len()))),
    }
}

fn turned(x: Var<'_>, backward: i64) -> Var<'_> {
    if backward == 0 { x } else { x.flip(vec![0]) }
}

/// The operands of a scan from `first` on: the state, and what is scanned.
fn scanned<'g>(c: &Call<'g, '_>, first: usize) -> Result<(Vec<Var<'g>>, Vec<Var<'g>>)> {
    let mut state: Vec<Var<'g>> = (first..c.operands.len()).map(|i| c.x(i)).collect::<Result<_>>()?;
    let m = c.int_or("num_scan_inputs", 0)?;
    let at = usize::try_from(m).ok().filter(|m| *m > 0).and_then(|m| state.len().checked_sub(m));
    let at = at.ok_or_else(|| Error::new(Code::Attribute, format!("num_scan_inputs is {m}")))?;
    let xs = state.split_off(at);
    Ok((state, xs))
}

/// A scan along axis 0 of `xs`: the last state and the stacks, in one list.
fn scan_of<'g>(
    bodies: &Bodies<'g, '_, '_>,
    body: &dyn Subgraph<'g>,
    state: &[Var<'g>],
    xs: &[Var<'g>],
) -> Vec<Var<'g>> {
    let length = xs.first().map_or(Dim::constant(0), |x| x.dim(0));
    let (mut out, stacks) = bodies.c.g.scan(state, xs, length, false, |carry, entries| {
        let args: Vec<Var<'g>> = carry.iter().chain(entries).copied().collect();
        let mut out = bodies.build(body, &args);
        let ys = out.split_off(out.len().min(state.len()));
        (out, ys)
    });
    out.extend(stacks);
    out
}

pub(crate) fn scan<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let body = c.subgraph("body")?;
    let (state, xs) = scanned(c, 0)?;
    let (axes, directions) =
        (each(c, "scan_input_axes", xs.len())?, each(c, "scan_input_directions", xs.len())?);
    let lined = xs.iter().zip(axes).zip(directions);
    let xs: Vec<Var<'g>> = lined.map(|((x, axis), back)| turned(x.move_axis(axis, 0), back)).collect();
    let bodies = Bodies::new(c);
    let mut out = scan_of(&bodies, body, &state, &xs);
    bodies.done()?;
    let stacks = out.split_off(out.len().min(state.len()));
    let k = stacks.len();
    let (axes, directions) = (each(c, "scan_output_axes", k)?, each(c, "scan_output_directions", k)?);
    let lined = stacks.iter().zip(axes).zip(directions);
    out.extend(lined.map(|((y, axis), back)| turned(*y, back).move_axis(0, axis)));
    Ok(out)
}

/// Version 8: everything has a batch as its first axis, and its entries are scanned one after the other.
pub(crate) fn scan_batch<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let body = c.subgraph("body")?;
    if c.opt(0).is_some() {
        return Err(c.cannot("a scan over sequences of different lengths"));
    }
    let (state, xs) = scanned(c, 1)?;
    let directions = each(c, "directions", xs.len())?;
    let batch = xs.first().map_or(Dim::constant(0), |x| x.dim(0));
    let (bodies, n) = (Bodies::new(c), state.len());
    let all: Vec<Var<'g>> = state.into_iter().chain(xs).collect();
    let (_, out) = c.g.scan(&[], &all, batch, false, |_, entries| {
        let (state, xs) = entries.split_at(n.min(entries.len()));
        let xs: Vec<Var<'g>> = xs.iter().zip(&directions).map(|(x, back)| turned(*x, *back)).collect();
        (Vec::new(), scan_of(&bodies, body, state, &xs))
    });
    bodies.done()?;
    Ok(out)
}
