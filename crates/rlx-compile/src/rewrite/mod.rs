//! Rewrite: a graph becomes an equivalent, better graph.
//!
//! - **simplify**: calls are inlined, constants folded, equal nodes merged, dead ones dropped; algebra, views and
//!   contractions take one canonical form each (all of linear algebra is `dot_general`).
//! - **raise**: decomposed patterns become the composite ops of the table, which have tuned kernels.
//!
//! Rules are data: [`RULES`] lists them by file, each with its algebra, the ops it starts from and samples on which
//! it fires. A driver applies them until none fires. What a rule may change:
//!
//! 1. Values stay the same up to rounding; integers stay what they are, and so do NaN and infinities unless a finite
//!    result in between overflows on one side only, since sums and factors are put in another order. So `x · 0` stays,
//!    and `x + 0` goes only where x cannot be −0 (−0 + 0 is 0), while `x + (−0)` always goes.
//! 2. Raising may make finite what was not for want of range: `exp(x) / Σ exp(x)` of a large x is NaN, softmax is
//!    not; a query that sees no key gives NaN after a mask of −inf, 0 from `attention`.
//! 3. Types, ports, outputs, their names and order, symbols and `diff` flags stay.
//! 4. A raise needs the whole pattern, no use of the values inside from outside, and constants that agree to the
//!    precision of the dtype. Nothing looks through a `barrier`.
//!
//! Read in this order: `work` (the graph under work), `build` (what rules read and write it with), then the files of
//! rules in the order of [`RULES`].

mod activation;
mod algebra;
mod attention;
mod build;
mod dot;
mod flow;
mod fold;
mod logic;
mod mask;
mod norm;
mod projection;
mod reduce;
mod rope;
mod sink;
mod softmax;
mod views;
mod work;

pub use work::{N, V, Work};

use rlx_ir::op::OpDef;
use rlx_ir::transform::dce;
use rlx_ir::{Func, Result};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

/// What to do beyond simplifying.
#[derive(Clone, Debug)]
pub struct Options {
    /// Recognise composite ops.
    pub raise: bool,
    /// Merge projections of one value by several weights into one product. It pays where weights are set once, since
    /// the joined weights are made from the single ones.
    pub merge_projections: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { raise: true, merge_projections: true }
    }
}

/// A rewritten graph, and what happened.
#[derive(Clone, Debug)]
pub struct Rewritten {
    /// The graph.
    pub func: Func,
    /// How often each rule that fired did so, in the order of [`RULES`]; rules that fired in regions count too.
    pub fired: Vec<(&'static str, usize)>,
}

/// When a rule takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Always.
    Simplify,
    /// With [`Options::raise`].
    Raise,
    /// With [`Options::merge_projections`].
    Merge,
}

/// How a rule is applied: from a node to the values that stand for its results, if the rule fires.
#[derive(Clone, Copy)]
pub enum Apply {
    /// For a node of one result.
    One(fn(&mut Work, N) -> Option<V>),
    /// For all results of a node.
    All(fn(&mut Work, N) -> Option<Vec<V>>),
}

/// A rewrite rule.
pub struct Rule {
    /// Its name.
    pub name: &'static str,
    /// What it does, as algebra.
    pub algebra: &'static str,
    /// When it takes part.
    pub stage: Stage,
    /// The ops that it starts from; none means every op.
    pub roots: &'static [&'static OpDef],
    /// The rule itself.
    pub apply: Apply,
    /// Graphs on which it fires.
    pub samples: &'static [&'static str],
    /// Graphs that look alike, on which it does not fire.
    pub refuses: &'static [&'static str],
}

/// Every rule, by file. Where several fit, the first one fires.
pub const RULES: &[&[Rule]] = &[
    flow::RULES,
    fold::RULES,
    algebra::RULES,
    logic::RULES,
    views::RULES,
    reduce::RULES,
    dot::RULES,
    sink::RULES,
    activation::RULES,
    softmax::RULES,
    norm::RULES,
    rope::RULES,
    attention::RULES,
    projection::RULES,
];

/// The name under which merged equal nodes are counted: the driver does this by itself.
pub const CSE: &str = "cse";

/// The name under which it is counted that rules were still firing when the driver stopped: a mistake in a rule.
pub const UNFINISHED: &str = "unfinished";

/// The graph simplified, and raised as far as the options say.
pub fn rewrite(f: &Func, options: &Options) -> Result<Rewritten> {
    let mut run = Run { raise: options.raise, merge: options.merge_projections, ..Run::default() };
    let func = run.func(f)?;
    let names = RULES.iter().flat_map(|t| t.iter()).map(|r| r.name).chain([CSE]);
    let mut fired: Vec<_> =
        names.enumerate().filter_map(|(i, name)| Some((name, *run.fired.get(&i)?))).collect();
    if run.unfinished > 0 {
        fired.push((UNFINISHED, run.unfinished));
    }
    Ok(Rewritten { func, fired })
}

/// The graph simplified, with nothing raised: to be run again after composite ops were expanded.
pub fn simplify(f: &Func) -> Result<Func> {
    Run::default().func(f)
}

/// One rewrite of a graph and of all its regions.
#[derive(Default)]
struct Run {
    raise: bool,
    merge: bool,
    fired: HashMap<usize, usize>,
    /// How often the budget was met.
    unfinished: usize,
    /// Regions that nothing more can be done for; held, so that an address stays theirs.
    done: HashMap<*const Func, Arc<Func>>,
}

/// The rules of each op, by the op's name; those for every op stand under no name.
fn by_root() -> &'static HashMap<&'static str, Vec<(usize, &'static Rule)>> {
    static MAP: LazyLock<HashMap<&'static str, Vec<(usize, &'static Rule)>>> = LazyLock::new(|| {
        let all: Vec<(usize, &'static Rule)> = RULES.iter().flat_map(|t| t.iter()).enumerate().collect();
        let fits = |op: &'static OpDef, r: &Rule| {
            r.roots.is_empty() || r.roots.iter().any(|root| std::ptr::eq(*root, op))
        };
        let of = |op: &'static OpDef| all.iter().copied().filter(|(_, r)| fits(op, r)).collect();
        rlx_ir::ops::all().iter().map(|op| (op.name, of(op))).collect()
    });
    &MAP
}

fn rule_count() -> usize {
    RULES.iter().map(|t| t.len()).sum()
}

impl Run {
    fn func(&mut self, f: &Func) -> Result<Func> {
        let mut f = self.once(f)?;
        // Only ops with a pruning rule keep dead parts that the work graph cannot see.
        while f.nodes.iter().any(|n| n.op.prune.is_some()) {
            let lean = dce(&f)?;
            if lean == f {
                break;
            }
            f = self.once(&lean)?;
        }
        Ok(f)
    }

    fn once(&mut self, f: &Func) -> Result<Func> {
        let mut w = Work::new(f)?;
        for n in 0..w.count() {
            w.sweep(N(n as u32));
        }
        // Patterns are written for simple graphs: nothing is raised before all is simplified.
        let stages: &[&[Stage]] = match (self.raise, self.merge) {
            (false, false) => &[&[Stage::Simplify]],
            (true, false) => &[&[Stage::Simplify], &[Stage::Simplify, Stage::Raise]],
            (false, true) => &[&[Stage::Simplify], &[Stage::Simplify, Stage::Merge]],
            (true, true) => &[
                &[Stage::Simplify],
                &[Stage::Simplify, Stage::Raise],
                &[Stage::Simplify, Stage::Raise, Stage::Merge],
            ],
        };
        for stages in stages {
            self.fixpoint(&mut w, stages)?;
        }
        w.finish()
    }

    /// Applies the rules until none fires.
    fn fixpoint(&mut self, w: &mut Work, stages: &[Stage]) -> Result<()> {
        // Every rule makes a graph smaller or more canonical, so this bound is never met; it turns a mistake in a
        // rule into a graph that is less good instead of a compiler that hangs.
        let mut budget = 64 * w.count() + 4096;
        loop {
            w.enqueue_all();
            let before = budget;
            while let Some(n) = w.dequeue() {
                if budget == 0 {
                    debug_assert!(false, "rules undo each other");
                    self.unfinished += 1;
                    return Ok(());
                }
                budget -= self.visit(w, n, stages)? as usize;
            }
            // A value that lost a user may fit a pattern now that starts anywhere behind it.
            if budget == before {
                return Ok(());
            }
        }
    }

    /// Tries the rules on a node; whether something changed.
    fn visit(&mut self, w: &mut Work, n: N, stages: &[Stage]) -> Result<bool> {
        if let Some(twin) = w.twin(n) {
            let pairs = |w: &Work| Some((w.node(n)?.results.clone(), w.node(twin)?.results.clone()));
            if let Some((old, new)) = pairs(w) {
                old.iter().zip(&new).for_each(|(o, n)| {
                    w.replace(*o, *n);
                });
                self.count(rule_count());
                return Ok(true);
            }
        }
        if self.regions(w, n)? {
            return Ok(true);
        }
        let Some(op) = w.node(n).map(|n| n.op) else { return Ok(false) };
        let rules = by_root().get(op.name).map_or(&[][..], Vec::as_slice);
        for (i, rule) in rules.iter().filter(|(_, r)| stages.contains(&r.stage)) {
            let Some(old) = w.node(n).map(|n| n.results.clone()) else { return Ok(false) };
            let mark = w.count();
            w.set_loc(n);
            let new = match rule.apply {
                Apply::One(f) => f(w, n).map(|v| vec![v]),
                Apply::All(f) => f(w, n),
            };
            let same_types =
                |new: &[V]| new.len() == old.len() && old.iter().zip(new).all(|(o, n)| w.ty(*o) == w.ty(*n));
            match new {
                Some(new) if new != old && same_types(&new) => {
                    old.iter().zip(&new).for_each(|(o, n)| {
                        w.replace(*o, *n);
                    });
                    // What the rule built on the way and did not use goes; the rest is looked at.
                    for made in (mark..w.count()).rev() {
                        w.sweep(N(made as u32));
                    }
                    (mark..w.count()).for_each(|made| w.enqueue(N(made as u32)));
                    self.count(*i);
                    return Ok(true);
                }
                _ => w.rollback(mark),
            }
        }
        Ok(false)
    }

    fn count(&mut self, rule: usize) {
        *self.fired.entry(rule).or_default() += 1;
    }

    /// Rewrites the regions of a node; whether one changed.
    fn regions(&mut self, w: &mut Work, n: N) -> Result<bool> {
        let Some(node) = w.node(n).filter(|n| !n.regions.is_empty() && !flow::inlines(n.op)) else {
            return Ok(false);
        };
        let (mut changed, mut regions) = (false, Vec::new());
        for r in node.regions.clone() {
            if self.done.contains_key(&Arc::as_ptr(&r)) {
                regions.push(r);
                continue;
            }
            let new = self.func(&r)?;
            let new = if new == *r { r.clone() } else { Arc::new(new) };
            changed |= !Arc::ptr_eq(&new, &r);
            self.done.insert(Arc::as_ptr(&new), new.clone());
            regions.push(new);
        }
        if changed {
            w.set_regions(n, regions);
        }
        Ok(changed)
    }
}
