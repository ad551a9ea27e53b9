//! Intervals that hold every value of an expression.

use std::collections::BTreeMap;

use super::poly::{Acc, Atom, Mono, gcd};
use super::{Dim, Repr};

/// The integers in `lo..=hi`. `i128::MIN` and `i128::MAX` stand for no bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Interval {
    pub(super) lo: i128,
    pub(super) hi: i128,
}

const NONE_LO: i128 = i128::MIN;
const NONE_HI: i128 = i128::MAX;

impl Interval {
    const ALL: Interval = Interval { lo: NONE_LO, hi: NONE_HI };

    fn point(n: i128) -> Interval {
        Interval { lo: n, hi: n }
    }

    pub(super) fn is_finite(self) -> bool {
        self.lo != NONE_LO && self.hi != NONE_HI
    }

    /// The bounds of a sum of monomials: term by term, and again with each floor replaced by what it
    /// rounds, which lets the terms around it cancel: `4*floor(x/4) - x` is in `-3..=0`.
    pub(super) fn of(terms: &BTreeMap<Mono, i128>) -> Interval {
        let plain = Interval::term_by_term(terms);
        match Interval::without_floors(terms) {
            Some(other) => Interval { lo: plain.lo.max(other.lo), hi: plain.hi.min(other.hi) },
            None => plain,
        }
    }

    fn term_by_term(terms: &BTreeMap<Mono, i128>) -> Interval {
        terms.iter().fold(Interval::point(0), |sum, (mono, k)| {
            let term = mono.0.iter().fold(Interval::point(*k), |product, atom| product.mul(atom.bounds()));
            sum.add(term)
        })
    }

    /// Bounds from `(n - (c-1))/c <= floor(n/c) <= n/c`, multiplied by symbols, which are not
    /// negative. `None` if no floor stands in such a term, or the common denominator is too large.
    fn without_floors(terms: &BTreeMap<Mono, i128>) -> Option<Interval> {
        let mut common = 1i128;
        let mut any = false;
        for floor in terms.keys().filter_map(|mono| sole_floor(mono).map(|(f, _)| f)) {
            let den = i128::from(floor.den);
            common = common.checked_mul(den / gcd(common, den))?;
            any = true;
        }
        if !any {
            return None;
        }
        let (mut low, mut high) = (Acc::default(), Acc::default());
        for (mono, k) in terms {
            let Some((floor, others)) = sole_floor(mono) else {
                low.add(mono.clone(), k.checked_mul(common)?)?;
                high.add(mono.clone(), k.checked_mul(common)?)?;
                continue;
            };
            let scale = k.checked_mul(common / i128::from(floor.den))?;
            low.add_poly(&floor.num, &others, scale)?;
            high.add_poly(&floor.num, &others, scale)?;
            let rounding = scale.checked_mul(1 - i128::from(floor.den))?;
            if scale > 0 { &mut low } else { &mut high }.add(others, rounding)?;
        }
        let low = Interval::term_by_term(&low.0).lo;
        let high = Interval::term_by_term(&high.0).hi;
        Some(Interval {
            lo: if low == NONE_LO { low } else { -(-low).div_euclid(common) },
            hi: if high == NONE_HI { high } else { high.div_euclid(common) },
        })
    }

    fn add(self, other: Interval) -> Interval {
        let no_lo = self.lo == NONE_LO || other.lo == NONE_LO;
        let no_hi = self.hi == NONE_HI || other.hi == NONE_HI;
        Interval {
            lo: if no_lo { NONE_LO } else { self.lo.saturating_add(other.lo) },
            hi: if no_hi { NONE_HI } else { self.hi.saturating_add(other.hi) },
        }
        .normal()
    }

    fn mul(self, other: Interval) -> Interval {
        let ends = [
            end_product(self.lo, other.lo),
            end_product(self.lo, other.hi),
            end_product(self.hi, other.lo),
            end_product(self.hi, other.hi),
        ];
        let [a, b, c, d] = ends;
        Interval { lo: a.min(b).min(c).min(d), hi: a.max(b).max(c).max(d) }.normal()
    }

    pub(super) fn div_floor(self, den: i128) -> Interval {
        Interval {
            lo: if self.lo == NONE_LO { NONE_LO } else { self.lo.div_euclid(den) },
            hi: if self.hi == NONE_HI { NONE_HI } else { self.hi.div_euclid(den) },
        }
    }

    /// An interval wholly beyond `i128` says nothing, so that no later step mistakes its ends.
    fn normal(self) -> Interval {
        if self.lo == NONE_HI || self.hi == NONE_LO { Interval::ALL } else { self }
    }
}

/// The product of two ends, where an infinite end times 0 is 0: the values themselves are finite.
fn end_product(a: i128, b: i128) -> i128 {
    let infinite = |n| n == NONE_LO || n == NONE_HI;
    match a.checked_mul(b) {
        _ if a == 0 || b == 0 => 0,
        Some(product) if !infinite(a) && !infinite(b) => product,
        _ if (a < 0) == (b < 0) => NONE_HI,
        _ => NONE_LO,
    }
}

/// The only floor of a monomial, with the symbols that multiply it.
fn sole_floor(mono: &Mono) -> Option<(&super::poly::Floor, Mono)> {
    // Symbols sort before floors.
    match mono.0.split_last()? {
        (Atom::Floor(floor), symbols) if symbols.iter().all(|a| matches!(a, Atom::Sym(_))) => {
            Some((floor, Mono(symbols.to_vec())))
        }
        _ => None,
    }
}

impl Atom {
    fn bounds(&self) -> Interval {
        match self {
            Atom::Sym(s) => Interval { lo: 0, hi: i128::from(s.max) },
            Atom::Floor(f) => f.bounds,
        }
    }
}

impl Dim {
    /// `None` if invalid.
    pub(super) fn bounds(&self) -> Option<Interval> {
        match &self.0 {
            Repr::Const(n) => Some(Interval::point(i128::from(*n))),
            Repr::Expr(_) => Some(Acc::of(self)?.bounds()),
            Repr::Invalid => None,
        }
    }
}
