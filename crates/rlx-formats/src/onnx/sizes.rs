//! Sizes that a model leaves open: symbols for the axes of its inputs, and what must be assumed of them.
//!
//! Exporters name open axes, or do not, and seldom say which are equal. A node that can only work if two sizes are equal tells:
//! then one symbol is taken to be the other, or an axis to be a multiple of a number (an image whose halves are doubled again
//! must have an even height), and the import begins anew. The inputs are declared with what came out, so that a size that does
//! not fit is refused when an input is given.

use rlx_ir::dim::Dim;
use std::collections::BTreeMap;

/// What an axis can be a multiple of: nets halve sizes a few times.
const MULTIPLES: [i64; 8] = [2, 4, 8, 16, 32, 64, 128, 256];

/// What is assumed of symbols, in the order in which it was found.
#[derive(Clone, Default)]
pub(super) struct Assumed {
    /// Symbol, and what stands for it.
    list: Vec<(String, Dim)>,
}

impl Assumed {
    /// A size with all assumptions put in.
    pub fn apply(&self, d: Dim) -> Dim {
        self.list.iter().fold(d, |d, (name, by)| d.substitute(name, by))
    }

    /// Assumes that two sizes are equal, if something can be assumed that makes them so.
    pub fn equal(&mut self, a: &Dim, b: &Dim) -> bool {
        match solution(a, b) {
            Some(found) => {
                self.list.push(found);
                true
            }
            None => false,
        }
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// The assumptions in words.
    pub fn words(&self) -> Vec<String> {
        self.list.iter().map(|(name, by)| format!("{name} = {by}")).collect()
    }
}

/// A symbol and an expression for it that make two sizes equal.
fn solution(a: &Dim, b: &Dim) -> Option<(String, Dim)> {
    if a.never_eq(b) || !a.is_valid() || !b.is_valid() {
        return None;
    }
    let fits = |name: &str, by: &Dim| {
        let (x, y) = (a.substitute(name, by), b.substitute(name, by));
        x.is_valid() && x.unify(&y).is_some()
    };
    let symbols: BTreeMap<_, _> =
        a.symbols().into_iter().chain(b.symbols()).map(|s| (s.name, s.max)).collect();
    let sym = |name: &str, max: i64| Dim::sym(name, max);
    // One symbol is the other.
    for s in symbols.keys() {
        for (t, max) in &symbols {
            if s != t && fits(s, &sym(t, *max)) {
                return Some((s.to_string(), sym(t, *max)));
            }
        }
    }
    // A symbol is what the rest of the equation says: a − b = ±s + rest.
    for (s, max) in &symbols {
        let own = sym(s, *max);
        for (x, y) in [(a, b), (b, a)] {
            let rest = y - (x - &own);
            let free = !rest.symbols().iter().any(|t| t.name == *s);
            if free && rest.upper().is_some_and(|u| u >= 0) && fits(s, &rest) {
                return Some((s.to_string(), rest));
            }
        }
    }
    // A symbol is the constant that the size has to be, or a multiple.
    for (s, max) in &symbols {
        for k in MULTIPLES {
            let by = sym(&format!("{s}_by_{k}"), max / k) * k;
            if fits(s, &by) {
                return Some((s.to_string(), by));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlx_ir::dim;

    fn solved(a: &Dim, b: &Dim) -> Option<String> {
        solution(a, b).map(|(name, by)| format!("{name} = {by}"))
    }

    #[test]
    fn equal_sizes_are_found() {
        let (b, s, t) = (dim("b", 64), dim("s", 512), dim("t", 512));
        assert_eq!(solved(&s, &t).as_deref(), Some("s = t"));
        assert_eq!(solved(&(&b * &s * 4), &(&b * &t * 4)).as_deref(), Some("s = t"));
        assert_eq!(solved(&(&s + 1), &t).as_deref(), Some("s = t-1"));
        assert_eq!(solved(&s, &Dim::constant(7)).as_deref(), Some("s = 7"));
        assert_eq!(solved(&s, &(&s + 1)), None);
        assert_eq!(solved(&Dim::constant(3), &Dim::constant(4)), None);
    }

    #[test]
    fn halves_that_are_doubled_are_even() {
        let h = dim("h", 1024);
        let twice = h.ceil_div(2) * 2;
        assert_eq!(solved(&h, &twice).as_deref(), Some("h = 2*h_by_2"));
        let deep = h.ceil_div(2).ceil_div(2).ceil_div(2) * 4;
        assert_eq!(solved(&h.ceil_div(2), &deep).as_deref(), Some("h = 8*h_by_8"));
    }
}
