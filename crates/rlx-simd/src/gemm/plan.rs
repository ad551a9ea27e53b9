//! How a product is cut into blocks and tasks. None of this touches the result: see [`super::micro`].

use super::micro::{KC, Kind, LDA, Shape};

/// The most rows of a task.
pub(super) const ROWS: usize = 192;
/// Floats of packed A that a task keeps in the L2 cache.
const A_FLOATS: usize = ROWS * LDA;
/// The longest run of k for which A is packed at once; rounded to whole blocks of [`KC`].
const K_LONG: usize = 3 * KC;
/// Floats of finished C that a sink with whole rows gets at once.
const C_FLOATS: usize = 96 * 1024;
/// Columns that another sink gets at once.
const SINK_COLS: usize = 256;
/// Floats of B that are packed at once when several blocks of rows share them.
const B_FLOATS: usize = 4 << 20;
/// Multiply-adds that are worth a task of their own.
const TASK: usize = 1 << 19;
/// Multiply-adds after which a task should end.
const TASK_MAX: usize = 1 << 26;
/// Tasks for each thread, so that a thread that is held up costs little.
const TASKS_EACH: usize = 8;

/// What is known about a product before it is cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub batches: usize,
    /// B is packed during the run.
    pub loose_b: bool,
    /// If so, all of it before it is used.
    pub whole_b: bool,
    /// Making rows of A is work.
    pub costly_a: bool,
    pub sink: bool,
    pub whole_rows: bool,
}

/// Cut in `count` pieces of `each`, the last one perhaps smaller.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    pub len: usize,
    pub each: usize,
}

impl Cut {
    /// Into at least `count` pieces of about one size, a multiple of `unit`.
    fn new(len: usize, count: usize, unit: usize) -> Cut {
        Cut { len, each: len.div_ceil(count.max(1)).next_multiple_of(unit).max(unit) }
    }
    /// At least one, which may be empty.
    pub fn count(self) -> usize {
        self.len.div_ceil(self.each).max(1)
    }
    pub fn range(self, i: usize) -> std::ops::Range<usize> {
        (i * self.each).min(self.len)..((i + 1) * self.each).min(self.len)
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// Rows of a task.
    pub rows: Cut,
    /// Panels that share a packing of B: all, unless B is large and packed during the run.
    pub shared: Cut,
    /// Panels of a task.
    pub panels: usize,
    /// Long pieces of k.
    pub long: Cut,
    /// B is packed for all tasks before they start; else a task packs what it needs, if at all.
    pub pack_first: bool,
    /// Columns that a sink gets at once.
    pub sink_cols: usize,
}

/// How often a [`super::RowSource`] is asked for an element by one thread: once, unless k is long; then once for so many
/// columns, or for the part of B that is packed at once (`loose_b`: B is not packed before). With more threads than blocks
/// of rows every thread asks, and for fewer columns: then there is little to ask for.
pub fn fills(k: usize, n: usize, loose_b: bool) -> usize {
    let long = if k > K_LONG { n.div_ceil(SINK_COLS) } else { 1 };
    let parts = if loose_b { n.saturating_mul(k).div_ceil(B_FLOATS) } else { 1 };
    long.max(parts).max(1)
}

/// Rows for which A fits its share of the cache.
fn most_rows(shape: Shape, size: Size) -> usize {
    let long = Cut::new(size.k, size.k.div_ceil(K_LONG), 16).each;
    let rows = (A_FLOATS / (long.div_ceil(KC) * LDA)).max(shape.rows);
    if size.whole_rows { rows.min((C_FLOATS / size.n.max(1)).max(shape.rows)) } else { rows }
}

impl Plan {
    pub fn new(shape: Shape, size: Size, threads: usize) -> Plan {
        let long = Cut::new(size.k, size.k.div_ceil(K_LONG), 16);
        let mut most = most_rows(shape, size);
        let pack_first = size.loose_b && (size.whole_b || size.m > most);
        let wanted = if threads > 1 { threads * TASKS_EACH } else { 1 };
        if size.costly_a || size.whole_rows {
            // Such tasks take all columns, so rows are all there is to share.
            let share = size.m.div_ceil((2 * threads).div_ceil(size.batches.max(1)));
            most = most.min(share.next_multiple_of(shape.rows)).max(1);
        }
        let mut blocks = size.m.div_ceil(most);
        if !size.loose_b || pack_first {
            // Blocks of rows for every thread, so that each packs its own.
            let each = threads.div_ceil(size.batches.max(1)).min(size.m / (2 * shape.rows));
            blocks = blocks.next_multiple_of(each.max(1));
        }
        let rows = Cut::new(size.m, blocks, 1);
        let panels = size.n.div_ceil(shape.width);
        let shared = match pack_first && !size.whole_rows {
            true => Cut::new(panels, (panels * shape.width * size.k).div_ceil(B_FLOATS), 1),
            false => Cut { len: panels, each: panels.max(1) },
        };
        let by_rows = rows.count() * size.batches;
        // Reading B costs about as much as eight rows of work.
        let work = (rows.each + 8) * size.k.max(1) * shape.width;
        let mut each = shared.each.div_ceil(wanted.div_ceil(by_rows.max(1))).max(TASK.div_ceil(work.max(1)));
        // For fewer columns A is not packed anew.
        let least = if long.count() > 1 { SINK_COLS / shape.width } else { 1 };
        each = each.min((TASK_MAX / work.max(1)).max(least).max(1));
        if size.sink && long.count() > 1 {
            // The sums stay in scratch from one piece of k to the next.
            each = each.min((SINK_COLS / shape.width).max(1));
        }
        each = each.next_multiple_of(shape.panels(rows.each)).min(shared.each);
        if size.whole_rows {
            each = panels.max(1);
        }
        let each = shared.each.div_ceil(shared.each.div_ceil(each)).max(1);
        let sink_cols = if size.whole_rows { panels * shape.width } else { SINK_COLS };
        Plan { rows, shared, panels: each, long, pack_first, sink_cols }
    }

    /// A long piece of k in blocks of at most [`KC`].
    pub fn steps(ks: usize) -> Cut {
        Cut::new(ks, ks.div_ceil(KC), 16)
    }

    /// Floats of the pieces of a worker's scratch, and of the shared one: enough for this size and all smaller ones, with
    /// any number of threads.
    pub fn scratch(shape: Shape, kind: Kind, size: Size) -> (Pieces, usize) {
        let panels = size.n.div_ceil(shape.width);
        let a = A_FLOATS.max(shape.rows * K_LONG.div_ceil(KC) * LDA);
        let b = if size.loose_b { KC * shape.width * 4 } else { 0 };
        let rows = A_FLOATS / LDA;
        let whole = C_FLOATS.max(shape.rows * panels * shape.width) + rows * shape.width;
        let c = match (size.sink, size.whole_rows) {
            (_, true) => whole,
            (true, _) => rows * SINK_COLS,
            (false, _) => rows * shape.width,
        };
        let panel = kind.panel(shape, size.k);
        let all = panels * panel;
        let shared = match size.loose_b {
            true if size.whole_rows => all,
            // A cut rounds up to whole panels, and a head is at most as long as what follows it.
            true => all.min(B_FLOATS * if kind.has_head() { 2 } else { 1 } + 2 * panel),
            false => 0,
        };
        let notes = if kind.has_head() { 2 * rows } else { 0 };
        (Pieces { a, b, c, notes }, shared)
    }
}

/// Floats of each piece of a worker's scratch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pieces {
    pub a: usize,
    pub b: usize,
    pub c: usize,
    /// Notes about rows, two numbers each.
    pub notes: usize,
}

/// Bytes before the pieces, that say what the piece of A holds.
pub(super) const TAG: usize = 64;

impl Pieces {
    pub fn bytes(self) -> usize {
        TAG + 4 * (self.notes() + self.notes)
    }
    /// Where the notes begin.
    pub fn notes(self) -> usize {
        self.a + self.b + self.c
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_fit_the_scratch_of_larger_sizes() {
        let sizes = [1, 2, 14, 15, 127, 192, 193, 512, 1537, 4000, 4192];
        let shape = Shape { rows: 14, width: 32, quad: 3 };
        let kinds = [Kind::F32, Kind::Bytes];
        let flags = [(false, false, false), (true, false, true), (true, true, false)];
        for (m, n, k) in sizes.iter().flat_map(|m| sizes.iter().flat_map(move |n| sizes.map(|k| (*m, *n, k))))
        {
            for (((sink, whole_rows, costly_a), loose_b), kind) in
                flags.into_iter().flat_map(|f| [(f, false), (f, true)]).flat_map(|f| kinds.map(|k| (f, k)))
            {
                let whole_b = kind == Kind::Bytes;
                let size = Size { m, n, k, batches: 1, loose_b, whole_b, costly_a, sink, whole_rows };
                let larger = Size { m: m + 100, n: n + 100, k: k + 1000, ..size };
                for ((pieces, shared), threads) in [size, larger]
                    .map(|s| Plan::scratch(shape, kind, s))
                    .into_iter()
                    .flat_map(|s| [1, 2, 16].map(|t| (s, t)))
                {
                    let plan = Plan::new(shape, size, threads);
                    let steps = Plan::steps(plan.long.each);
                    assert!(
                        steps.each <= KC && plan.rows.each * steps.count() * LDA <= pieces.a,
                        "{size:?} {plan:?}"
                    );
                    let cols = match sink {
                        true => (plan.panels * shape.width).min(plan.sink_cols.next_multiple_of(shape.width)),
                        false => shape.width,
                    };
                    assert!(plan.rows.each * cols <= pieces.c, "{size:?} {plan:?}");
                    assert!(
                        !plan.pack_first || plan.shared.each * kind.panel(shape, k) <= shared,
                        "{size:?} {plan:?}"
                    );
                    assert!(plan.rows.each <= ROWS, "{size:?} {plan:?}");
                    assert!(
                        !(sink && plan.long.count() > 1)
                            || whole_rows
                            || plan.panels * shape.width <= SINK_COLS
                    );
                }
            }
        }
    }
}
