//! The canonical form: a sorted sum of monomials, and the arithmetic that keeps it so.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::bounds::Interval;
use super::{Dim, Repr, Symbol};

/// Real shapes have a handful of terms; these limits stop hostile ones from costing more than a
/// moment, and are documented at [`Dim`].
const MAX_TERMS: usize = 64;
const MAX_DEGREE: usize = 16;
const MAX_DEPTH: u32 = 16;
const MAX_TEXT: usize = 16 << 10;
/// A sign and the digits of an `i64`.
const NUMBER_TEXT: usize = 20;

/// An integer that a monomial multiplies.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Atom {
    Sym(Symbol),
    Floor(Arc<Floor>),
}

/// `floor(num / den)` where, so that equal quotients are the same atom:
/// - `den >= 2`, and every coefficient of `num` is in `0..den`;
/// - the coefficients other than the constant have no common divisor with `den`;
/// - the bounds of `num` do not decide the quotient;
/// - no term of `num` is a floor by itself, unless joining the two divisions breaks a limit.
#[derive(PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Floor {
    pub(super) num: Arc<Poly>,
    pub(super) den: i64,
    pub(super) bounds: Interval,
}

impl Atom {
    pub(super) fn mentions(&self, name: &str) -> bool {
        match self {
            Atom::Sym(s) => &*s.name == name,
            Atom::Floor(f) => f.num.mentions(name),
        }
    }

    fn depth(&self) -> u32 {
        match self {
            Atom::Sym(_) => 0,
            Atom::Floor(f) => f.num.depth + 1,
        }
    }

    /// At least the length of its printed form.
    fn text(&self) -> usize {
        match self {
            Atom::Sym(s) => s.name.len(),
            Atom::Floor(f) => "floor(()/)".len() + NUMBER_TEXT + f.num.text,
        }
    }
}

/// A product of atoms, sorted, repeated for powers. The empty one is 1.
///
/// Higher degree first, then lexicographic: an order that multiplication preserves, which long
/// division needs, and the order in which people write terms.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Mono(pub(super) Vec<Atom>);

impl Ord for Mono {
    fn cmp(&self, other: &Mono) -> Ordering {
        other.0.len().cmp(&self.0.len()).then_with(|| self.0.cmp(&other.0))
    }
}

impl PartialOrd for Mono {
    fn partial_cmp(&self, other: &Mono) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Mono {
    pub(super) fn one() -> Mono {
        Mono(Vec::new())
    }

    pub(super) fn is_one(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn mul(&self, other: &Mono) -> Mono {
        let mut atoms = Vec::with_capacity(self.0.len() + other.0.len());
        atoms.extend_from_slice(&self.0);
        atoms.extend_from_slice(&other.0);
        atoms.sort();
        Mono(atoms)
    }

    fn div(&self, other: &Mono) -> Option<Mono> {
        let mut atoms = self.0.clone();
        for atom in &other.0 {
            atoms.remove(atoms.binary_search(atom).ok()?);
        }
        Some(Mono(atoms))
    }
}

/// A sum of monomials in their order, each once, with non-zero coefficients.
#[derive(PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Poly {
    pub(super) terms: Vec<(Mono, i64)>,
    depth: u32,
    text: usize,
}

impl Poly {
    pub(super) fn mentions(&self, name: &str) -> bool {
        self.atoms().any(|a| a.mentions(name))
    }

    pub(super) fn collect_symbols<'a>(&'a self, found: &mut BTreeSet<&'a Symbol>) {
        for atom in self.atoms() {
            match atom {
                Atom::Sym(s) => _ = found.insert(s),
                Atom::Floor(f) => f.num.collect_symbols(found),
            }
        }
    }

    fn atoms(&self) -> impl Iterator<Item = &Atom> {
        self.terms.iter().flat_map(|(mono, _)| &mono.0)
    }
}

/// A polynomial under construction: no limits yet, and room for sums that cancel.
#[derive(Clone, Default)]
pub(super) struct Acc(pub(super) BTreeMap<Mono, i128>);

impl Acc {
    pub(super) fn of(d: &Dim) -> Option<Acc> {
        let mut acc = Acc::default();
        acc.add_dim(d, &Mono::one(), 1)?;
        Some(acc)
    }

    pub(super) fn add(&mut self, mono: Mono, k: i128) -> Option<()> {
        use std::collections::btree_map::Entry;
        match self.0.entry(mono) {
            Entry::Vacant(_) if k == 0 => {}
            Entry::Vacant(slot) => _ = slot.insert(k),
            Entry::Occupied(mut slot) => match slot.get().checked_add(k)? {
                0 => _ = slot.remove(),
                sum => *slot.get_mut() = sum,
            },
        }
        Some(())
    }

    pub(super) fn add_poly(&mut self, p: &Poly, mono: &Mono, k: i128) -> Option<()> {
        p.terms.iter().try_for_each(|(m, c)| self.add(m.mul(mono), k.checked_mul(i128::from(*c))?))
    }

    pub(super) fn add_dim(&mut self, d: &Dim, mono: &Mono, k: i128) -> Option<()> {
        match &d.0 {
            Repr::Const(n) => self.add(mono.clone(), k.checked_mul(i128::from(*n))?),
            Repr::Expr(p) => self.add_poly(p, mono, k),
            Repr::Invalid => None,
        }
    }

    /// `c + d*(..)` is not 0 if `d` does not divide `c`.
    pub(super) fn never_zero_by_divisibility(&self) -> bool {
        let (mut divisor, mut constant) = (0, 0);
        for (mono, k) in &self.0 {
            match mono.is_one() {
                true => constant = *k,
                false => divisor = gcd(divisor, *k),
            }
        }
        divisor != 0 && constant % divisor != 0
    }

    pub(super) fn bounds(&self) -> Interval {
        Interval::of(&self.0)
    }

    /// The canonical form, or invalid beyond the limits.
    pub(super) fn into_dim(self) -> Dim {
        self.try_into_dim().unwrap_or(Dim::invalid())
    }

    fn try_into_dim(self) -> Option<Dim> {
        Some(match self.0.first_key_value() {
            None => Dim::constant(0),
            Some((mono, k)) if mono.is_one() => Dim::constant(i64::try_from(*k).ok()?),
            Some(_) => Dim(Repr::Expr(Arc::new(self.into_poly()?))),
        })
    }

    fn into_poly(self) -> Option<Poly> {
        if self.0.len() > MAX_TERMS {
            return None;
        }
        let (mut depth, mut text) = (0, 0usize);
        for mono in self.0.keys() {
            if mono.0.len() > MAX_DEGREE {
                return None;
            }
            text += NUMBER_TEXT;
            for atom in &mono.0 {
                depth = depth.max(atom.depth());
                text += "*".len() + atom.text();
            }
        }
        if depth > MAX_DEPTH || text > MAX_TEXT {
            return None;
        }
        let terms = self.0.into_iter().map(|(mono, k)| Some((mono, i64::try_from(k).ok()?)));
        Some(Poly { terms: terms.collect::<Option<_>>()?, depth, text })
    }

    /// Splits off the multiples of `den`, which go to `whole`, and divides both sides of the rest by
    /// their common divisor. The rounding hides only the constant's remainder.
    fn reduce(self, den: i128, whole: &mut Acc) -> Option<(Acc, i128)> {
        let mut rest = BTreeMap::new();
        let mut common = den;
        for (mono, k) in self.0 {
            let remainder = k.rem_euclid(den);
            if !mono.is_one() {
                common = gcd(common, remainder);
            }
            if remainder != 0 {
                rest.insert(mono.clone(), remainder);
            }
            whole.add(mono, k.div_euclid(den))?;
        }
        rest.retain(|_, k| {
            *k /= common;
            *k != 0
        });
        Some((Acc(rest), den / common))
    }

    /// The quotient by `den`, where the bounds leave only one.
    fn quotient_by_bounds(&self, den: i128) -> Option<i128> {
        let bounds = self.bounds().div_floor(den);
        (bounds.is_finite() && bounds.lo == bounds.hi).then_some(bounds.lo)
    }
}

impl Dim {
    pub(super) fn from_atom(atom: Atom) -> Dim {
        Acc(BTreeMap::from([(Mono(vec![atom]), 1)])).into_dim()
    }
}

/// `a + k*b`, where a small `k` cannot overflow.
pub(super) fn sum(a: &Dim, b: &Dim, k: i128) -> Option<Acc> {
    let mut acc = Acc::of(a)?;
    acc.add_dim(b, &Mono::one(), k)?;
    Some(acc)
}

pub(super) fn product(a: &Dim, b: &Dim) -> Option<Acc> {
    let mut acc = Acc::default();
    for (mono, k) in &Acc::of(a)?.0 {
        acc.add_dim(b, mono, *k)?;
    }
    Some(acc)
}

pub(super) fn floor_div(p: &Poly, c: i64) -> Option<Dim> {
    let mut whole = Acc::default();
    let (mut num, mut den) = (Acc::default(), i128::from(c));
    num.add_poly(p, &Mono::one(), 1)?;
    loop {
        (num, den) = num.reduce(den, &mut whole)?;
        if let Some(q) = num.quotient_by_bounds(den) {
            whole.add(Mono::one(), q)?;
            return whole.try_into_dim();
        }
        // The bounds of 15*x are poor for a division by 16; those of -x are not. Either stands for
        // all polynomials with these remainders, so the choice depends on nothing else.
        let (mut signed, mut pulled) = (num.clone(), whole.clone());
        for (mono, _) in num.0.iter().filter(|(mono, k)| !mono.is_one() && **k > den / 2) {
            signed.add(mono.clone(), -den)?;
            pulled.add(mono.clone(), 1)?;
        }
        if let Some(q) = signed.quotient_by_bounds(den) {
            pulled.add(Mono::one(), q)?;
            return pulled.try_into_dim();
        }
        match join_floor(&num, den) {
            Some(joined) => (num, den) = joined,
            None => break,
        }
    }
    let bounds = num.bounds().div_floor(den);
    let floor = Floor { num: Arc::new(num.into_poly()?), den: i64::try_from(den).ok()?, bounds };
    whole.add(Mono(vec![Atom::Floor(Arc::new(floor))]), 1)?;
    whole.try_into_dim()
}

/// `(floor(n/a) + r) / den = (n + a*r) / (a*den)`, when the right side is within the limits.
fn join_floor(num: &Acc, den: i128) -> Option<(Acc, i128)> {
    let (mono, inner) = num.0.iter().find_map(|(mono, k)| match (mono.0.as_slice(), k) {
        ([Atom::Floor(inner)], 1) => Some((mono, inner)),
        _ => None,
    })?;
    let a = i128::from(inner.den);
    let mut joined = Acc::default();
    joined.add_poly(&inner.num, &Mono::one(), 1)?;
    for (m, k) in num.0.iter().filter(|(m, _)| *m != mono) {
        joined.add(m.clone(), k.checked_mul(a)?)?;
    }
    let den = i64::try_from(a.checked_mul(den)?).ok()?;
    joined.clone().into_poly()?;
    Some((joined, i128::from(den)))
}

/// Long division; it finds the quotient whenever there is one with integer coefficients.
pub(super) fn exact_div(mut rest: Acc, by: &Acc) -> Option<Acc> {
    let (lead, lead_k) = by.0.first_key_value()?;
    let mut quotient = Acc::default();
    while let Some((mono, k)) = rest.0.first_key_value() {
        if k % lead_k != 0 || quotient.0.len() == MAX_TERMS {
            return None;
        }
        let (q, q_k) = (mono.div(lead)?, k / lead_k);
        for (m, c) in &by.0 {
            rest.add(m.mul(&q), c.checked_mul(q_k)?.checked_neg()?)?;
        }
        quotient.add(q, q_k)?;
    }
    Some(quotient)
}

pub(super) fn substitute(p: &Poly, name: &str, by: &Dim) -> Dim {
    let replace = |atom: &Atom| match atom {
        _ if !atom.mentions(name) => Dim::from_atom(atom.clone()),
        Atom::Sym(_) => by.clone(),
        Atom::Floor(f) => substitute(&f.num, name, by).floor_div(f.den),
    };
    let mut sum = Acc::default();
    for (mono, k) in &p.terms {
        let mut product = Dim::constant(*k);
        for atom in &mono.0 {
            product *= replace(atom);
        }
        if sum.add_dim(&product, &Mono::one(), 1).is_none() {
            return Dim::invalid();
        }
    }
    sum.into_dim()
}

pub(super) fn gcd(a: i128, b: i128) -> i128 {
    let (mut a, mut b) = (a, b);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a.abs()
}
