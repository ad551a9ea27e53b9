//! Concrete sizes: evaluation of an expression, and its inverse.

use std::collections::BTreeMap;
use std::collections::btree_map;
use std::fmt;
use std::sync::Arc;

use super::poly::{Atom, Poly};
use super::{Dim, Repr, Symbol};

/// Values of symbols by name, in the order of names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bindings(BTreeMap<Arc<str>, i64>);

impl Bindings {
    /// No values.
    pub fn new() -> Bindings {
        Bindings::default()
    }

    /// The value of `name`.
    pub fn get(&self, name: &str) -> Option<i64> {
        self.0.get(name).copied()
    }

    /// Gives a value to a name, or to a [`Symbol`] by its name, and returns the one it had.
    ///
    /// Whether the value is within a symbol's bound is checked where the symbol is evaluated.
    pub fn insert(&mut self, name: impl AsRef<str>, value: i64) -> Option<i64> {
        self.0.insert(name.as_ref().into(), value)
    }

    /// Names and values, in the order of names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, i64)> {
        self.into_iter()
    }

    /// The number of names that have a value.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no name has a value.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'a> IntoIterator for &'a Bindings {
    type Item = (&'a str, i64);
    type IntoIter =
        std::iter::Map<btree_map::Iter<'a, Arc<str>, i64>, fn((&'a Arc<str>, &'a i64)) -> (&'a str, i64)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter().map(|(name, value)| (&**name, *value))
    }
}

impl<N: AsRef<str>> FromIterator<(N, i64)> for Bindings {
    fn from_iter<I: IntoIterator<Item = (N, i64)>>(pairs: I) -> Bindings {
        Bindings(pairs.into_iter().map(|(name, value)| (name.as_ref().into(), value)).collect())
    }
}

/// Why an expression has no value, or a size does not fit an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DimError {
    /// The symbol has no value.
    Unbound(Arc<str>),
    /// The expression does not have this value, whatever its unbound symbol is.
    Mismatch {
        /// The expression.
        dim: Dim,
        /// The size it was matched against.
        value: i64,
    },
    /// The value of the symbol is not in `0..=max`.
    OutOfBound {
        /// The name of the symbol.
        symbol: Arc<str>,
        /// Its greatest value.
        max: i64,
        /// The value it was given.
        value: i64,
    },
    /// The expression does not determine its unbound symbols: there are two or more of them, or the
    /// only one does not occur linearly.
    NotSolvable,
    /// The value does not fit `i64`.
    Overflow,
    /// A size is negative.
    Negative,
    /// The expression is [invalid](Dim::is_valid).
    Invalid,
}

impl fmt::Display for DimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DimError::Unbound(name) => write!(f, "symbol `{name}` has no value"),
            DimError::Mismatch { dim, value } => write!(f, "`{dim}` cannot be {value}"),
            DimError::OutOfBound { symbol, max, value } => {
                write!(f, "symbol `{symbol}` is {value}, outside 0..={max}")
            }
            DimError::NotSolvable => write!(f, "the expression cannot be solved for its unbound symbols"),
            DimError::Overflow => write!(f, "the size does not fit 64 bits"),
            DimError::Negative => write!(f, "the size is negative"),
            DimError::Invalid => write!(f, "the size is the result of an overflow or of a bad construction"),
        }
    }
}

impl std::error::Error for DimError {}

impl Dim {
    /// The value for these bindings.
    ///
    /// # Errors
    ///
    /// If a symbol is unbound or outside its bound, or the value is negative or does not fit `i64`.
    pub fn eval(&self, b: &Bindings) -> Result<i64, DimError> {
        match self.signed(b)? {
            n if n < 0 => Err(DimError::Negative),
            n => Ok(n),
        }
    }

    /// The value for these bindings, which may be negative: of a distance rather than of a size.
    ///
    /// # Errors
    ///
    /// If a symbol is unbound or outside its bound, or the value does not fit `i64`.
    pub fn signed(&self, b: &Bindings) -> Result<i64, DimError> {
        let value = match &self.0 {
            Repr::Const(n) => i128::from(*n),
            Repr::Expr(p) => p.eval(b)?,
            Repr::Invalid => return Err(DimError::Invalid),
        };
        i64::try_from(value).map_err(|_| DimError::Overflow)
    }

    /// Makes this expression have the value `value`, by binding its only unbound symbol.
    ///
    /// ```
    /// # use rlx_ir::dim::{Bindings, DimError, dim};
    /// let (b, s) = (dim("b", 8), dim("s", 100));
    /// let mut sizes = Bindings::new();
    /// b.solve(4, &mut sizes)?;
    /// (&b * &s + 1).solve(29, &mut sizes)?;
    /// assert_eq!(sizes.get("s"), Some(7));
    /// assert!(matches!(s.solve(8, &mut sizes), Err(DimError::Mismatch { .. })));
    /// # Ok::<(), DimError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the value cannot be had, or leaves the symbol undetermined; the bindings are then as before.
    pub fn solve(&self, value: i64, b: &mut Bindings) -> Result<(), DimError> {
        if value < 0 {
            return Err(DimError::Negative);
        }
        let mismatch = || DimError::Mismatch { dim: self.clone(), value };
        let mut unbound = self.symbols();
        unbound.retain(|s| b.get(&s.name).is_none());
        // Sorted by name, then bound: of two with the same name, the first has the tighter bound.
        let (Repr::Expr(p), Some(Symbol { name, max })) = (&self.0, unbound.first()) else {
            return if self.eval(b)? == value { Ok(()) } else { Err(mismatch()) };
        };
        if unbound.iter().any(|s| s.name != *name) {
            return Err(DimError::NotSolvable);
        }
        let (slope, rest) = p.as_linear(name, b)?;
        let rise = i128::from(value).checked_sub(rest).ok_or(DimError::Overflow)?;
        match (rise.checked_rem(slope), rise.checked_div(slope)) {
            (Some(0), Some(solution)) => {
                let value = i64::try_from(solution).map_err(|_| mismatch())?;
                check_bound(name, *max, value)?;
                b.insert(name, value);
                Ok(())
            }
            (None, None) if rise == 0 => Err(DimError::NotSolvable),
            _ => Err(mismatch()),
        }
    }
}

fn check_bound(name: &Arc<str>, max: i64, value: i64) -> Result<(), DimError> {
    match (0..=max).contains(&value) {
        true => Ok(()),
        false => Err(DimError::OutOfBound { symbol: name.clone(), max, value }),
    }
}

impl Poly {
    fn eval(&self, b: &Bindings) -> Result<i128, DimError> {
        self.terms.iter().try_fold(0i128, |sum, (mono, k)| {
            sum.checked_add(product(*k, mono.0.iter(), b)?).ok_or(DimError::Overflow)
        })
    }

    /// `(a, c)` such that this is `a*name + c`, with every other symbol bound.
    fn as_linear(&self, name: &str, b: &Bindings) -> Result<(i128, i128), DimError> {
        let (mut slope, mut rest) = (0i128, 0i128);
        for (mono, k) in &self.terms {
            let is_name = |atom: &&Atom| matches!(atom, Atom::Sym(s) if &*s.name == name);
            let others = mono.0.iter().filter(|atom| !is_name(atom));
            let side = match mono.0.iter().filter(is_name).count() {
                _ if others.clone().any(|atom| atom.mentions(name)) => return Err(DimError::NotSolvable),
                0 => &mut rest,
                1 => &mut slope,
                _ => return Err(DimError::NotSolvable),
            };
            *side = side.checked_add(product(*k, others, b)?).ok_or(DimError::Overflow)?;
        }
        Ok((slope, rest))
    }
}

fn product<'a>(k: i64, atoms: impl Iterator<Item = &'a Atom>, b: &Bindings) -> Result<i128, DimError> {
    let values = atoms.map(|atom| atom.eval(b)).collect::<Result<Vec<_>, _>>()?;
    if values.contains(&0) {
        return Ok(0); // whatever overflows beside it
    }
    values.iter().try_fold(i128::from(k), |p, v| p.checked_mul(*v).ok_or(DimError::Overflow))
}

impl Atom {
    fn eval(&self, b: &Bindings) -> Result<i128, DimError> {
        match self {
            Atom::Sym(s) => {
                let value = b.get(&s.name).ok_or_else(|| DimError::Unbound(s.name.clone()))?;
                check_bound(&s.name, s.max, value)?;
                Ok(value.into())
            }
            Atom::Floor(f) => Ok(f.num.eval(b)?.div_euclid(f.den.into())),
        }
    }
}
