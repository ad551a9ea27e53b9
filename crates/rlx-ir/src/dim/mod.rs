//! Sizes of axes: constants, or expressions over bounded symbols.
//!
//! A [`Dim`] is a polynomial with integer coefficients over *atoms*. An atom is a [`Symbol`], which
//! stands for any integer in `0..=max`, or the floor of a polynomial divided by a constant. The form
//! is canonical, so `==` on two polynomials decides whether they are the same function, and a `Dim`
//! can be a hash key.
//!
//! ```
//! use rlx_ir::dim::{Bindings, Dim, dim};
//!
//! let (b, s) = (dim("b", 8), dim("s", 4096));
//! let tokens = &b * &s;
//! assert_eq!((&tokens * 64).exact_div(&s), Some(&b * 64));
//! assert_eq!(s.ceil_div(4).to_string(), "ceil(s/4)");
//! assert_eq!(tokens.upper(), Some(8 * 4096));
//!
//! let mut sizes = Bindings::new();
//! s.solve(100, &mut sizes)?;
//! assert_eq!(s.ceil_div(16).eval(&sizes), Ok(7));
//! # Ok::<(), rlx_ir::dim::DimError>(())
//! ```
//!
//! # Laws
//!
//! 1. Arithmetic never panics and never wraps. What does not fit `i64`, or one of the [limits](Dim#limits),
//!    is *invalid*, and arithmetic with an invalid operand is invalid.
//! 2. Valid results of `+`, `-`, `*` obey the ring laws under `==`.
//! 3. `(c*q + r).floor_div(c) == q + r.floor_div(c)` for every `q` and `r`.
//! 4. [`Dim::upper`], [`Dim::lower`], [`Dim::unify`] and [`Dim::never_eq`] answer only what holds for
//!    every binding in bounds; they may fail to prove something true, never the other way round.
//! 5. `Dim::parse(&d.to_string(), ..) == Ok(d)` for a valid `d` in which no two symbols share a name.
//!
//! # Reading order
//!
//! `poly` is the canonical form and its arithmetic, `bounds` the intervals behind every proof, `bind`
//! concrete sizes, `text` the printed form and its parser.

mod bind;
mod bounds;
mod ops;
mod poly;
mod text;

use std::collections::BTreeSet;
use std::sync::Arc;

pub use bind::{Bindings, DimError};
use poly::{Acc, Atom, Poly};
pub use text::DimParseError;

/// A named size that is unknown until run time, and lies in `0..=max`.
///
/// Symbols of the same name and different `max` are different symbols; a graph that holds both is
/// in error, which its verifier reports.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Symbol {
    /// The name, of the form `[A-Za-z_][A-Za-z0-9_.]*`.
    pub name: Arc<str>,
    /// The greatest value that the symbol can take.
    pub max: i64,
}

impl AsRef<str> for Symbol {
    fn as_ref(&self) -> &str {
        &self.name
    }
}

/// A size: a constant, or an expression over bounded symbols.
///
/// The order is total and arbitrary: it serves sorted containers, not comparison of sizes.
///
/// # Limits
///
/// A dimension is invalid when it has a coefficient outside `i64`, more than 64 terms, a term of
/// degree over 16, floors nested more than 16 deep, or a printed form that might exceed 16 KiB. The
/// last one bounds the cost of every operation, since subexpressions can be shared.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Dim(Repr);

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Repr {
    Const(i64),
    /// Never a constant: it holds at least one atom.
    Expr(Arc<Poly>),
    Invalid,
}

/// Short for [`Dim::sym`].
pub fn dim(name: &str, max: i64) -> Dim {
    Dim::sym(name, max)
}

impl Dim {
    /// The symbol `name`, which ranges over `0..=max`.
    ///
    /// Invalid if `name` is not of the form `[A-Za-z_][A-Za-z0-9_.]*` or `max` is negative.
    pub fn sym(name: &str, max: i64) -> Dim {
        if !text::is_name(name) || max < 0 {
            return Dim::invalid();
        }
        Dim::from_atom(Atom::Sym(Symbol { name: name.into(), max }))
    }

    /// The size `n`.
    pub const fn constant(n: i64) -> Dim {
        Dim(Repr::Const(n))
    }

    /// The result of arithmetic that has none. Equal only to itself.
    pub fn invalid() -> Dim {
        Dim(Repr::Invalid)
    }

    /// Whether this is an actual size, rather than the outcome of an overflow or a bad construction.
    pub fn is_valid(&self) -> bool {
        !matches!(self.0, Repr::Invalid)
    }

    /// The value, if it is the same for every binding by its canonical form.
    pub fn as_const(&self) -> Option<i64> {
        match self.0 {
            Repr::Const(n) => Some(n),
            _ => None,
        }
    }

    /// Whether [`Dim::as_const`] has a value.
    pub fn is_const(&self) -> bool {
        self.as_const().is_some()
    }

    /// Whether this is the constant `n`.
    pub fn is(&self, n: i64) -> bool {
        self.as_const() == Some(n)
    }

    /// A value that no binding exceeds; `None` if invalid or not in `i64`.
    ///
    /// ```
    /// # use rlx_ir::dim::dim;
    /// let s = dim("s", 100);
    /// let padding = s.ceil_div(16) * 16 - &s;
    /// assert_eq!((padding.lower(), padding.upper()), (Some(0), Some(15)));
    /// ```
    pub fn upper(&self) -> Option<i64> {
        i64::try_from(self.bounds()?.hi).ok()
    }

    /// A value that no binding goes below; `None` if invalid or not in `i64`.
    pub fn lower(&self) -> Option<i64> {
        i64::try_from(self.bounds()?.lo).ok()
    }

    /// The quotient by `c`, rounded down. Invalid if `c <= 0`.
    ///
    /// ```
    /// # use rlx_ir::dim::dim;
    /// let s = dim("s", 4096);
    /// assert_eq!((&s * 8 + 5).floor_div(4), &s * 2 + 1);
    /// assert_eq!(s.floor_div(2).floor_div(3), s.floor_div(6));
    /// assert_eq!(dim("r", 3).floor_div(4), 0.into());
    /// ```
    pub fn floor_div(&self, c: i64) -> Dim {
        if c <= 0 {
            return Dim::invalid();
        }
        match &self.0 {
            Repr::Const(n) => Dim::constant(n.div_euclid(c)),
            Repr::Expr(p) => poly::floor_div(p, c).unwrap_or(Dim::invalid()),
            Repr::Invalid => Dim::invalid(),
        }
    }

    /// The quotient by `c`, rounded up. Invalid if `c <= 0`.
    pub fn ceil_div(&self, c: i64) -> Dim {
        match &self.0 {
            _ if c <= 0 => Dim::invalid(),
            // Apart, because n + (c - 1) may overflow where the quotient does not.
            Repr::Const(n) => Dim::constant(n.div_euclid(c)) + i64::from(n.rem_euclid(c) != 0),
            _ => (self + (c - 1)).floor_div(c),
        }
    }

    /// The `q` with `q * other == self`, if it exists as a polynomial. Nothing divides by 0.
    ///
    /// ```
    /// # use rlx_ir::dim::dim;
    /// let (b, h) = (dim("b", 8), dim("h", 64));
    /// assert_eq!((&b * &h * 6).exact_div(&(&h * 2)), Some(&b * 3));
    /// assert_eq!((&b * &b - 1).exact_div(&(&b + 1)), Some(&b - 1));
    /// assert_eq!(b.exact_div(&h), None);
    /// ```
    pub fn exact_div(&self, other: &Dim) -> Option<Dim> {
        if let (Some(n), Some(d)) = (self.as_const(), other.as_const()) {
            return (n.checked_rem(d)? == 0).then(|| Dim::constant(n / d));
        }
        let quotient = poly::exact_div(Acc::of(self)?, &Acc::of(other)?)?.into_dim();
        quotient.is_valid().then_some(quotient)
    }

    /// This expression with `by` in place of every symbol called `name`.
    pub fn substitute(&self, name: &str, by: &Dim) -> Dim {
        match &self.0 {
            Repr::Expr(p) if p.mentions(name) => poly::substitute(p, name, by),
            _ => self.clone(),
        }
    }

    /// The symbols of this expression, each once, sorted by name.
    pub fn symbols(&self) -> Vec<Symbol> {
        let mut found = BTreeSet::new();
        if let Repr::Expr(p) = &self.0 {
            p.collect_symbols(&mut found);
        }
        found.into_iter().cloned().collect()
    }

    /// One of the two, the same whatever their order, if they are provably equal for every binding.
    ///
    /// ```
    /// # use rlx_ir::dim::{Dim, dim};
    /// let s = dim("s", 4096);
    /// assert_eq!((&s + &s).unify(&(&s * 2)), Some(&s * 2));
    /// assert!((s.floor_div(2) + s.ceil_div(2)).unify(&s).is_some());
    /// assert_eq!(s.unify(&Dim::from(16)), None);
    /// ```
    pub fn unify(&self, other: &Dim) -> Option<Dim> {
        let gap = poly::sum(self, other, -1)?.bounds();
        ((gap.lo, gap.hi) == (0, 0)).then(|| self.min(other).clone())
    }

    /// Whether the two are provably different for every binding.
    ///
    /// ```
    /// # use rlx_ir::dim::{Dim, dim};
    /// let s = dim("s", 10);
    /// assert!(s.never_eq(&Dim::from(11)));
    /// assert!((&s * 2).never_eq(&Dim::from(7)));
    /// assert!(!s.never_eq(&Dim::from(7)));
    /// ```
    pub fn never_eq(&self, other: &Dim) -> bool {
        poly::sum(self, other, -1).is_some_and(|gap| {
            let bounds = gap.bounds();
            bounds.lo > 0 || bounds.hi < 0 || gap.never_zero_by_divisibility()
        })
    }
}
