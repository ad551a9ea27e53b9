//! Conversions and operators.

use std::iter::{Product, Sum};
use std::ops::{Add, AddAssign, Mul, MulAssign, Sub, SubAssign};

use super::Dim;
use super::poly::{self, Acc};

impl From<i64> for Dim {
    fn from(n: i64) -> Dim {
        Dim::constant(n)
    }
}

impl From<i32> for Dim {
    fn from(n: i32) -> Dim {
        Dim::constant(n.into())
    }
}

impl From<u32> for Dim {
    fn from(n: u32) -> Dim {
        Dim::constant(n.into())
    }
}

/// Invalid if `n` is over `i64::MAX`.
impl From<usize> for Dim {
    fn from(n: usize) -> Dim {
        i64::try_from(n).map_or(Dim::invalid(), Dim::constant)
    }
}

impl From<&Dim> for Dim {
    fn from(d: &Dim) -> Dim {
        d.clone()
    }
}

fn add(a: &Dim, b: &Dim) -> Dim {
    match (a.as_const(), b.as_const()) {
        (Some(a), Some(b)) => a.checked_add(b).map_or(Dim::invalid(), Dim::constant),
        (Some(0), _) => b.clone(),
        (_, Some(0)) => a.clone(),
        _ => poly::sum(a, b, 1).map_or(Dim::invalid(), Acc::into_dim),
    }
}

fn sub(a: &Dim, b: &Dim) -> Dim {
    match (a.as_const(), b.as_const()) {
        (Some(a), Some(b)) => a.checked_sub(b).map_or(Dim::invalid(), Dim::constant),
        (_, Some(0)) => a.clone(),
        _ => poly::sum(a, b, -1).map_or(Dim::invalid(), Acc::into_dim),
    }
}

fn mul(a: &Dim, b: &Dim) -> Dim {
    match (a.as_const(), b.as_const()) {
        (Some(a), Some(b)) => a.checked_mul(b).map_or(Dim::invalid(), Dim::constant),
        (Some(1), _) => b.clone(),
        (_, Some(1)) => a.clone(),
        _ if !b.is_valid() => Dim::invalid(),
        _ => poly::product(a, b).map_or(Dim::invalid(), Acc::into_dim),
    }
}

macro_rules! operators {
    ($($trait:ident $method:ident, $assign_trait:ident $assign:ident;)*) => {$(
        operators!(@ $trait $method: Dim, Dim => |a, b| (&a, &b));
        operators!(@ $trait $method: Dim, &Dim => |a, b| (&a, b));
        operators!(@ $trait $method: &Dim, Dim => |a, b| (a, &b));
        operators!(@ $trait $method: &Dim, &Dim => |a, b| (a, b));
        operators!(@ $trait $method: Dim, i64 => |a, b| (&a, &Dim::constant(b)));
        operators!(@ $trait $method: &Dim, i64 => |a, b| (a, &Dim::constant(b)));
        operators!(@ $trait $method: i64, Dim => |a, b| (&Dim::constant(a), &b));
        operators!(@ $trait $method: i64, &Dim => |a, b| (&Dim::constant(a), b));

        impl<T: Into<Dim>> $assign_trait<T> for Dim {
            fn $assign(&mut self, other: T) {
                *self = $method(self, &other.into());
            }
        }
    )*};
    (@ $trait:ident $method:ident: $left:ty, $right:ty => |$a:ident, $b:ident| ($x:expr, $y:expr)) => {
        impl $trait<$right> for $left {
            type Output = Dim;

            fn $method(self, other: $right) -> Dim {
                let ($a, $b) = (self, other);
                $method($x, $y)
            }
        }
    };
}

operators! {
    Add add, AddAssign add_assign;
    Sub sub, SubAssign sub_assign;
    Mul mul, MulAssign mul_assign;
}

impl<T: Into<Dim>> Sum<T> for Dim {
    fn sum<I: Iterator<Item = T>>(dims: I) -> Dim {
        dims.fold(Dim::constant(0), |sum, d| sum + d.into())
    }
}

impl<T: Into<Dim>> Product<T> for Dim {
    fn product<I: Iterator<Item = T>>(dims: I) -> Dim {
        dims.fold(Dim::constant(1), |product, d| product * d.into())
    }
}
