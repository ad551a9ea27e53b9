//! The laws of symbolic dimensions, on chosen cases and on random ones.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::collections::HashSet;

use proptest::prelude::*;
use rlx_ir::dim::{Bindings, Dim, DimError, Symbol, dim};

/// The symbols of the random expressions.
const SYMBOLS: [(&str, i64); 4] = [("b", 8), ("s", 100), ("t.len", 5), ("_w", 1)];

fn resolve(name: &str) -> Option<Dim> {
    SYMBOLS.iter().find(|(n, _)| *n == name).map(|(n, max)| dim(n, *max))
}

fn parse(text: &str) -> Dim {
    Dim::parse(text, &resolve).unwrap_or(Dim::invalid())
}

fn bind(pairs: &[(&str, i64)]) -> Bindings {
    pairs.iter().copied().collect()
}

// ---- chosen cases ----

#[test]
fn constants_and_conversions() {
    const TWO: Dim = Dim::constant(2);
    assert_eq!(TWO, Dim::from(2));
    assert_eq!(TWO, Dim::from(2i64));
    assert_eq!(TWO, Dim::from(2u32));
    assert_eq!(TWO, Dim::from(2usize));
    assert_eq!(TWO, Dim::from(&TWO));
    assert!(!Dim::from(usize::MAX).is_valid());
    assert!(TWO.is(2) && !TWO.is(3) && TWO.is_const());
    assert_eq!((TWO + 3).as_const(), Some(5));
    assert_eq!((3 - TWO).as_const(), Some(1));
    assert_eq!([2, 3, 4].into_iter().sum::<Dim>(), 9.into());
    assert_eq!([TWO, dim("s", 3)].iter().product::<Dim>(), dim("s", 3) * 2);
    let mut d = TWO;
    d += 1;
    d *= &dim("s", 3);
    d -= dim("s", 3);
    assert_eq!(d, dim("s", 3) * 2);
}

#[test]
fn invalid_absorbs_and_equals_only_itself() {
    let (s, zero, one) = (dim("s", 100), Dim::from(0), Dim::from(1));
    let bad = [
        dim("", 1),
        dim("1a", 1),
        dim(".a", 1),
        dim("a b", 1),
        dim("é", 1),
        dim("s", -1),
        Dim::from(i64::MAX) + 1,
        Dim::from(i64::MIN) - 1,
        Dim::from(i64::MAX) * 2,
        &s * i64::MAX + &s,
        s.floor_div(0),
        s.ceil_div(-4),
        Dim::from(4).floor_div(0),
        dim(&"x".repeat(1 << 20), 1),
    ];
    for d in bad {
        assert!(!d.is_valid());
        let absorbed = [
            &d + 1,
            &d - &d,
            &d * &zero,
            &zero * &d,
            &one * &d,
            &s + &d,
            &s * &d,
            d.floor_div(2),
            d.ceil_div(1),
        ];
        assert!(absorbed.iter().all(|x| *x == Dim::invalid()));
        assert_ne!(d, Dim::from(0));
        assert_eq!(d.unify(&d), None);
        assert!(!d.never_eq(&s) && !s.never_eq(&d));
        assert_eq!((d.lower(), d.upper(), d.as_const()), (None, None, None));
        assert_eq!((d.exact_div(&s), s.exact_div(&d)), (None, None));
        assert_eq!(d.eval(&Bindings::new()), Err(DimError::Invalid));
        assert_eq!(d.solve(1, &mut Bindings::new()), Err(DimError::Invalid));
        assert_eq!(s.substitute("s", &d), Dim::invalid());
        assert!(Dim::parse(&d.to_string(), &resolve).is_err());
    }
}

#[test]
fn prints_what_it_parses() {
    for text in [
        "0",
        "-1",
        "9223372036854775807",
        "-9223372036854775808",
        "s",
        "-s",
        "s-1",
        "b-s",
        "s-b",
        "2*s+1",
        "2*b*s+3",
        "b*s*s-2*b+s-7",
        "-9223372036854775808*s",
        "b-9223372036854775808*s",
        "floor(s/4)",
        "ceil(s/4)",
        "ceil((b+s)/4)",
        "floor((s+2)/4)",
        "floor(3*b*s/4)",
        "floor((b*s+1)/3)",
        "2*b*ceil(s/4)-1",
        "floor(b*floor(s/2)/3)",
        "t.len-_w",
    ] {
        assert_eq!(parse(text).to_string(), text);
        assert_eq!(format!("{:?}", parse(text)), text);
    }
    for (text, canonical) in [
        (" s + 2*( s - 1 ) ", "3*s-2"),
        ("s*b", "b*s"),
        ("s-s", "0"),
        ("1-s", "1-s"),
        ("-(s)", "-s"),
        ("floor(s/1)", "s"),
        ("floor((s+7)/4)", "ceil(s/4)+1"),
        ("floor((s-1)/4)", "ceil(s/4)-1"),
        ("floor(-(s)/4)", "floor(3*s/4)-s"),
        ("ceil(ceil(s/2)/3)", "ceil(s/6)"),
        ("floor((4*s+2)/8)", "floor(s/2)"),
        ("ceil(9223372036854775807/2)", "4611686018427387904"),
    ] {
        assert_eq!(parse(text).to_string(), canonical, "{text}");
    }
    // A symbol may be called as the roundings are.
    let floor = dim("floor", 9);
    let d = floor.floor_div(2) * &floor;
    assert_eq!(d.to_string(), "floor*floor(floor/2)");
    assert_eq!(Dim::parse(&d.to_string(), &|_| Some(floor.clone())), Ok(d));
}

#[test]
fn parse_errors_point_at_the_fault() {
    for (text, at) in [
        ("", 0),
        ("  ", 2),
        ("s+", 2),
        ("2s", 1),
        ("s s", 2),
        ("s**b", 2),
        ("--s", 1),
        ("s*-1", 2),
        ("q+1", 0),
        ("s+qq*2", 2),
        ("(s", 2),
        ("s)", 1),
        ("s/2", 1),
        ("floor(s)", 7),
        ("floor(s+1/2)", 7),
        ("floor(s/b)", 8),
        ("floor(s/0)", 8),
        ("floor(s/-2)", 8),
        ("floor(s/2", 9),
        ("9223372036854775808", 0),
        ("s-9223372036854775809", 2),
        ("9223372036854775807+1", 19),
        ("3037000500*3037000500", 10),
        ("s*é", 2),
        ("é", 0),
        ("s\0", 1),
    ] {
        let error = Dim::parse(text, &resolve).expect_err(text);
        assert_eq!(error.at, at, "{text:?}: {error}");
    }
    let deep = |n: usize| format!("{}s{}", "(".repeat(n), ")".repeat(n));
    assert_eq!(parse(&deep(64)), dim("s", 100));
    assert_eq!(Dim::parse(&deep(65), &resolve).unwrap_err().at, 64);
    assert!(Dim::parse(&deep(20_000), &resolve).is_err());
    assert!(Dim::parse(&"floor(".repeat(10_000), &resolve).is_err());
    assert!(Dim::parse(&"-".repeat(50_000), &resolve).is_err());
    assert!(Dim::parse(&"1".repeat(50_000), &resolve).is_err());
    assert!(Dim::parse(&"s+".repeat(1 << 20), &resolve).is_err());
    assert!(Dim::parse("s", &|_| Some(Dim::invalid())).is_err());
}

#[test]
fn floors_simplify() {
    let (b, s) = (dim("b", 8), dim("s", 100));
    assert_eq!((&s * 8).floor_div(4), &s * 2);
    assert_eq!((&b * &s * 4 + &s).floor_div(4), &b * &s + s.floor_div(4));
    assert_eq!(s.floor_div(2).floor_div(3), s.floor_div(6));
    assert_eq!((s.floor_div(4) + &b).floor_div(2), (&s + &b * 4).floor_div(8));
    assert_eq!(b.floor_div(9), 0.into());
    assert_eq!((&b + 16).floor_div(25), 0.into());
    assert_eq!((8 - &b).floor_div(16), 0.into());
    assert_eq!((&b * -1 - 1).floor_div(16), (-1).into());
    assert_eq!(s.floor_div(101), 0.into());
    assert_ne!(s.floor_div(100), 0.into());
    assert_eq!(s.ceil_div(1), s);
    assert_eq!(Dim::from(-7).floor_div(2), (-4).into());
    assert_eq!(Dim::from(-7).ceil_div(2), (-3).into());
    assert_eq!(Dim::from(i64::MIN).ceil_div(i64::MAX), (-1).into());
    // Joining these divisions would overflow the divisor, so they stay apart and remain right.
    let wide = dim("wide", i64::MAX);
    let d = wide.floor_div(i64::MAX / 2).floor_div(2) + wide.floor_div(3).floor_div(i64::MAX / 2);
    assert_eq!(d.eval(&bind(&[("wide", i64::MAX)])), Ok(1));
}

#[test]
fn bounds_follow_cancellation() {
    let (b, s) = (dim("b", 8), dim("s", 100));
    let range = |d: &Dim| (d.lower(), d.upper());
    assert_eq!(range(&(&s * 2 - &b - 1)), (Some(-9), Some(199)));
    assert_eq!(range(&(&s * &b)), (Some(0), Some(800)));
    assert_eq!(range(&(5 - &s * &b)), (Some(-795), Some(5)));
    assert_eq!(range(&s.ceil_div(16)), (Some(0), Some(7)));
    assert_eq!(range(&(s.ceil_div(16) * 16 - &s)), (Some(0), Some(15)));
    assert_eq!(range(&(&b * &s.ceil_div(16) * 16 - &b * &s)), (Some(0), Some(120)));
    assert_eq!(range(&(&s * -1).floor_div(4)), (Some(-25), Some(0)));
    assert_eq!(range(&(&b - &s).floor_div(4)), (Some(-25), Some(2)));
    let wide = dim("wide", i64::MAX);
    assert_eq!(range(&(&wide + 1)), (Some(1), None));
    assert_eq!(range(&(&wide * &wide * &wide * &wide)), (Some(0), None));
    assert_eq!(range(&(&wide * &wide * &wide * -1)), (None, Some(0)));
    assert_eq!(range(&(&wide * &wide * -1)).0, None);
    assert_eq!(range(&(&wide * 3 - 3).floor_div(4)).0, Some(-1));
}

#[test]
fn exact_division() {
    let (b, s, h) = (dim("b", 8), dim("s", 100), dim("h", 64));
    let some = |d: &Dim| Some(d.clone());
    assert_eq!((&b * &s * &h).exact_div(&h), Some(&b * &s));
    assert_eq!((&b * &s * &h).exact_div(&(&b * &s)), some(&h));
    assert_eq!(((&b + &s) * &h).exact_div(&(&b + &s)), some(&h));
    assert_eq!((&b * 6 + &s * 4).exact_div(&Dim::from(2)), Some(&b * 3 + &s * 2));
    assert_eq!((&b * 6 + &s * 4).exact_div(&(&b * 3 + &s * 2)), Some(2.into()));
    assert_eq!((&b * 6 + 1).exact_div(&Dim::from(2)), None);
    assert_eq!((&b * 2).exact_div(&(&b * 4)), None);
    assert_eq!(Dim::from(12).exact_div(&Dim::from(-4)), Some((-3).into()));
    assert_eq!(Dim::from(13).exact_div(&Dim::from(4)), None);
    assert_eq!(Dim::from(i64::MIN).exact_div(&Dim::from(-1)), None);
    assert_eq!((&b * i64::MIN).exact_div(&Dim::from(-1)), None);
    assert_eq!(Dim::from(0).exact_div(&h), Some(0.into()));
    assert_eq!(Dim::from(0).exact_div(&Dim::from(0)), None);
    assert_eq!(h.exact_div(&Dim::from(0)), None);
    assert_eq!(Dim::from(4).exact_div(&h), None);
    let pages = s.ceil_div(16);
    assert_eq!((&pages * &h * 16).exact_div(&(&pages * 16)), some(&h));
}

#[test]
fn unification_and_difference() {
    let (b, s) = (dim("b", 8), dim("s", 100));
    assert_eq!((&b * &s).unify(&(&s * &b)), Some(&b * &s));
    assert_eq!(s.unify(&b), None);
    assert_eq!(s.unify(&dim("s", 99)), None, "another bound, another symbol");
    assert_ne!(s, dim("s", 99));
    let halves = s.floor_div(2) + s.ceil_div(2);
    assert_eq!(halves.unify(&s), s.unify(&halves));
    assert!(halves.unify(&s).is_some());
    assert!(b.never_eq(&Dim::from(9)) && b.never_eq(&Dim::from(-1)) && !b.never_eq(&Dim::from(8)));
    assert!(s.never_eq(&(&s + 1)));
    assert!((&s * 2 + 1).never_eq(&(&b * 4)));
    assert!(Dim::from(3).never_eq(&Dim::from(4)) && !Dim::from(3).never_eq(&Dim::from(3)));
    assert!(!s.never_eq(&b));
}

#[test]
fn evaluation_reports_what_is_wrong() {
    let (b, s, wide) = (dim("b", 8), dim("s", 100), dim("wide", i64::MAX));
    assert_eq!((&b * &s - 1).eval(&bind(&[("b", 2), ("s", 5)])), Ok(9));
    assert_eq!(b.eval(&Bindings::new()), Err(DimError::Unbound("b".into())));
    assert_eq!((&b - 3).eval(&bind(&[("b", 2)])), Err(DimError::Negative));
    let out = |value| Err(DimError::OutOfBound { symbol: "b".into(), max: 8, value });
    assert_eq!(b.eval(&bind(&[("b", 9)])), out(9));
    assert_eq!(b.eval(&bind(&[("b", -1)])), out(-1));
    let sizes = bind(&[("wide", i64::MAX), ("b", 0)]);
    assert_eq!((&wide + 1).eval(&sizes), Err(DimError::Overflow));
    assert_eq!((&wide * &wide * &wide).eval(&sizes), Err(DimError::Overflow));
    assert_eq!((&wide * &wide * &wide * &b).eval(&sizes), Ok(0));
    assert_eq!((&wide * &wide - &wide * &wide + &wide).eval(&sizes), Ok(i64::MAX));
    assert_eq!(DimError::Unbound("b".into()).to_string(), "symbol `b` has no value");
}

#[test]
fn solving_binds_one_linear_symbol() {
    let (b, s) = (dim("b", 8), dim("s", 100));
    let solve = |d: &Dim, value, pairs: &[(&str, i64)]| {
        let mut sizes = bind(pairs);
        let result = d.solve(value, &mut sizes);
        if result.is_err() {
            assert_eq!(sizes, bind(pairs), "a failure binds nothing");
        }
        result.map(|()| sizes)
    };
    let mismatch = |dim: &Dim, value| Err(DimError::Mismatch { dim: dim.clone(), value });
    assert_eq!(solve(&Dim::from(4), 4, &[]), Ok(Bindings::new()));
    assert_eq!(solve(&Dim::from(4), 5, &[]), mismatch(&Dim::from(4), 5));
    assert_eq!(solve(&s, 7, &[]), Ok(bind(&[("s", 7)])));
    assert_eq!(solve(&s, 7, &[("s", 7)]), Ok(bind(&[("s", 7)])));
    assert_eq!(solve(&s, 7, &[("s", 8)]), mismatch(&s, 7));
    assert_eq!(solve(&(9 - &s), 7, &[]), Ok(bind(&[("s", 2)])));
    let d = &s * 2 + 1;
    assert_eq!(solve(&d, 7, &[]), Ok(bind(&[("s", 3)])));
    assert_eq!(solve(&d, 8, &[]), mismatch(&d, 8));
    let out = |value| Err(DimError::OutOfBound { symbol: "s".into(), max: 100, value });
    assert_eq!(solve(&s, 101, &[]), out(101));
    assert_eq!(solve(&(&s + 5), 4, &[]), out(-1));
    assert_eq!(solve(&s, -1, &[]), Err(DimError::Negative));
    let d = &b * &s + b.floor_div(2);
    assert_eq!(solve(&d, 22, &[("b", 4)]), Ok(bind(&[("b", 4), ("s", 5)])));
    assert_eq!(solve(&d, 22, &[]), Err(DimError::NotSolvable));
    assert_eq!(solve(&d, 22, &[("s", 5)]), Err(DimError::NotSolvable));
    assert_eq!(solve(&d, 0, &[("b", 0)]), Err(DimError::NotSolvable), "any s will do");
    assert_eq!(solve(&d, 1, &[("b", 0)]), mismatch(&d, 1));
    assert_eq!(solve(&(&s * &s), 9, &[]), Err(DimError::NotSolvable));
    assert_eq!(solve(&s.floor_div(2), 9, &[]), Err(DimError::NotSolvable));
    let two = dim("s", 50) + &s;
    assert_eq!(solve(&two, 100, &[]), Ok(bind(&[("s", 50)])));
    assert!(matches!(solve(&two, 102, &[]), Err(DimError::OutOfBound { max: 50, .. })));
}

#[test]
fn symbols_and_substitution() {
    let (b, s) = (dim("b", 8), dim("s", 100));
    let d = &s * &s.ceil_div(4) * &b + &s;
    let symbol = |name: &str, max| Symbol { name: name.into(), max };
    assert_eq!(d.symbols(), [symbol("b", 8), symbol("s", 100)]);
    assert_eq!((&s + dim("s", 5)).symbols(), [symbol("s", 5), symbol("s", 100)]);
    assert_eq!(d.substitute("s", &10.into()), &b * 30 + 10);
    assert_eq!(d.substitute("s", &(&b * 4)), &b * &b * &b * 4 + &b * 4);
    assert_eq!(d.substitute("q", &Dim::invalid()), d);
    let mut sizes = Bindings::new();
    assert_eq!(sizes.insert(&d.symbols()[0], 3), None);
    assert_eq!(sizes.insert("b", 4), Some(3));
    assert_eq!(sizes.iter().collect::<Vec<_>>(), [("b", 4)]);
    assert_eq!((sizes.len(), sizes.is_empty()), (1, false));
}

#[test]
fn growth_ends_in_invalid() {
    let names: Vec<Dim> = (0..80).map(|i| dim(&format!("x{i}"), 9)).collect();
    let sum = |n: usize| names.iter().take(n).sum::<Dim>();
    assert!(sum(64).is_valid());
    assert!(!sum(65).is_valid());
    assert!(!(sum(10) * sum(20)).is_valid());
    let power = |n: usize| std::iter::repeat_n(&names[0], n).product::<Dim>();
    assert!(power(16).is_valid());
    assert!(!power(17).is_valid());
    // Each level doubles the uses of the one below.
    let mut d = names[0].clone();
    let mut levels = 0;
    while d.is_valid() {
        d = (&d * &d + &names[1]).floor_div(3);
        levels += 1;
        assert!(levels < 20);
    }
    // One use of the one below: only the depth grows.
    let mut d = names[0].clone();
    for _ in 0..16 {
        d = (&names[1] * &d).floor_div(3);
        assert!(d.is_valid());
        assert_eq!(Dim::parse(&d.to_string(), &|name| Some(dim(name, 9))), Ok(d.clone()));
    }
    assert!(!(&names[1] * &d).floor_div(3).is_valid());
}

// ---- random expressions ----

/// An expression as it was written, before any simplification.
#[derive(Clone, Debug)]
enum Tree {
    Const(i64),
    Sym(usize),
    Add(Box<Tree>, Box<Tree>),
    Sub(Box<Tree>, Box<Tree>),
    Mul(Box<Tree>, Box<Tree>),
    Floor(Box<Tree>, i64),
    Ceil(Box<Tree>, i64),
}

impl Tree {
    fn dim(&self) -> Dim {
        self.with(&SYMBOLS.map(|(name, max)| dim(name, max)))
    }

    /// With symbols whose bounds decide no quotient, so that only the form counts.
    fn wide_dim(&self) -> Dim {
        self.with(&SYMBOLS.map(|(name, _)| dim(name, 1 << 40)))
    }

    fn with(&self, symbols: &[Dim; 4]) -> Dim {
        match self {
            Tree::Const(n) => Dim::constant(*n),
            Tree::Sym(i) => symbols[*i].clone(),
            Tree::Add(a, b) => a.with(symbols) + b.with(symbols),
            Tree::Sub(a, b) => a.with(symbols) - b.with(symbols),
            Tree::Mul(a, b) => a.with(symbols) * b.with(symbols),
            Tree::Floor(a, c) => a.with(symbols).floor_div(*c),
            Tree::Ceil(a, c) => a.with(symbols).ceil_div(*c),
        }
    }

    /// `None` on overflow.
    fn value(&self, symbols: &[i64; 4]) -> Option<i128> {
        Some(match self {
            Tree::Const(n) => i128::from(*n),
            Tree::Sym(i) => i128::from(symbols[*i]),
            Tree::Add(a, b) => a.value(symbols)?.checked_add(b.value(symbols)?)?,
            Tree::Sub(a, b) => a.value(symbols)?.checked_sub(b.value(symbols)?)?,
            Tree::Mul(a, b) => a.value(symbols)?.checked_mul(b.value(symbols)?)?,
            Tree::Floor(a, c) => a.value(symbols)?.div_euclid(i128::from(*c)),
            Tree::Ceil(a, c) => -(-a.value(symbols)?).div_euclid(i128::from(*c)),
        })
    }
}

fn trees(floors: bool) -> impl Strategy<Value = Tree> {
    let leaf = prop_oneof![
        12 => (0..SYMBOLS.len()).prop_map(Tree::Sym),
        8 => (-9i64..20).prop_map(Tree::Const),
        1 => prop_oneof![Just(i64::MAX), Just(i64::MIN), any::<i64>()].prop_map(Tree::Const),
    ];
    leaf.prop_recursive(6, 24, 2, move |inner| {
        let pair = (inner.clone().prop_map(Box::new), inner.clone().prop_map(Box::new));
        let divisor = prop_oneof![9 => 1i64..20, 1 => 1..=i64::MAX];
        let rounded = (inner.prop_map(Box::new), divisor, any::<bool>()).prop_map(|(a, c, up)| match up {
            true => Tree::Ceil(a, c),
            false => Tree::Floor(a, c),
        });
        let ring = prop_oneof![
            3 => pair.clone().prop_map(|(a, b)| Tree::Add(a, b)),
            2 => pair.clone().prop_map(|(a, b)| Tree::Sub(a, b)),
            3 => pair.prop_map(|(a, b)| Tree::Mul(a, b)),
        ];
        if floors { prop_oneof![2 => ring, 1 => rounded].boxed() } else { ring.boxed() }
    })
}

fn values() -> impl Strategy<Value = [i64; 4]> {
    SYMBOLS.map(|(_, max)| 0..=max)
}

fn bindings(values: &[i64; 4]) -> Bindings {
    SYMBOLS.iter().zip(values).map(|((name, _), value)| (name, *value)).collect()
}

/// A law binds two sides that are both within the limits.
fn same(x: Dim, y: Dim) -> bool {
    x == y || !x.is_valid() || !y.is_valid()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, max_global_rejects: 1 << 20, failure_persistence: None, ..Default::default() })]

    #[test]
    fn simplification_keeps_values(tree in trees(true), values in values()) {
        let (d, b) = (tree.dim(), bindings(&values));
        prop_assume!(d.is_valid());
        if let Some(expected) = tree.value(&values) {
            match d.eval(&b) {
                Ok(value) => prop_assert_eq!(i128::from(value), expected, "{}", d),
                Err(DimError::Negative) => {
                    prop_assert!(expected < 0, "{}", d);
                    if let Ok(value) = (&d * -1).eval(&b) {
                        prop_assert_eq!(-i128::from(value), expected, "{}", d);
                    }
                }
                // A sum of products may overflow even 128 bits on the way.
                Err(e) => prop_assert_eq!(e, DimError::Overflow, "{}", d),
            }
        }
    }

    #[test]
    fn print_then_parse(tree in trees(true)) {
        let d = tree.dim();
        prop_assume!(d.is_valid());
        prop_assert_eq!(Dim::parse(&d.to_string(), &resolve), Ok(d));
    }

    #[test]
    fn bounds_hold(tree in trees(true), values in values()) {
        let d = tree.dim();
        prop_assume!(d.is_valid());
        if let Some(value) = tree.value(&values) {
            prop_assert!(d.lower().is_none_or(|lo| i128::from(lo) <= value), "{} >= {:?}", d, d.lower());
            prop_assert!(d.upper().is_none_or(|hi| value <= i128::from(hi)), "{} <= {:?}", d, d.upper());
        }
    }

    #[test]
    fn proofs_are_sound(a in trees(true), b in trees(true), values in values()) {
        let (x, y) = (a.dim(), b.dim());
        prop_assume!(x.is_valid() && y.is_valid());
        prop_assert_eq!(x.unify(&y), y.unify(&x));
        prop_assert_eq!(x.never_eq(&y), y.never_eq(&x));
        if let (Some(p), Some(q)) = (a.value(&values), b.value(&values)) {
            prop_assert!(x.unify(&y).is_none() || p == q);
            prop_assert!(!x.never_eq(&y) || p != q);
        }
    }

    /// x is the sum of floor((x + i)/c) over i in 0..c: equal, but not by form.
    #[test]
    fn proofs_see_through_rounding(tree in trees(false), rounded in trees(true), c in 2i64..6) {
        let split = |x: &Dim, c: i64| (0..c).map(|i| (x + i).floor_div(c)).sum::<Dim>();
        let x = rounded.dim();
        prop_assert!(!split(&x, c).never_eq(&x), "{} in {}", x, c);
        let x = tree.dim();
        let halves = split(&x, 2);
        prop_assert!(!halves.is_valid() || halves.unify(&x).is_some(), "{} = {}", x, halves);
    }

    #[test]
    fn ring_laws(a in trees(true), b in trees(true), c in trees(true)) {
        let (a, b, c) = (&a.dim(), &b.dim(), &c.dim());
        prop_assert_eq!(a + b, b + a);
        prop_assert_eq!(a * b, b * a);
        prop_assert!(same((a + b) + c, a + (b + c)));
        prop_assert!(same((a * b) * c, a * (b * c)));
        prop_assert!(same(a * (b + c), a * b + a * c));
        prop_assert!(same(a - b, a + b * -1));
        prop_assert!(same(a - a, Dim::from(0)));
        prop_assert!(same((a + b) - b, a.clone()));
        prop_assert!(same(a * 1, a.clone()));
        let both = HashSet::from([(a + b) + c, a + (b + c)]);
        prop_assert!(both.len() == 1 || both.contains(&Dim::invalid()));
    }

    #[test]
    fn division_laws(q in trees(true), r in trees(true), c in 1i64..30, e in 1i64..30) {
        let (q, r) = (&q.dim(), &r.dim());
        prop_assert!(same((q * c + r).floor_div(c), q + r.floor_div(c)), "({q}) * {c} + {r}");
        prop_assert!(same((q * c + r).ceil_div(c), q + r.ceil_div(c)), "({q}) * {c} + {r}");
        prop_assert!(same(r.ceil_div(c), (r + (c - 1)).floor_div(c)));
        prop_assert!(same((r * e).floor_div(c * e), r.floor_div(c)));
        prop_assert!(same(r.floor_div(1), r.clone()));
    }

    #[test]
    fn nested_divisions_join(tree in trees(false), c in 1i64..30, e in 1i64..30) {
        let r = tree.wide_dim();
        prop_assert!(same(r.floor_div(c).floor_div(e), r.floor_div(c * e)), "{} / {} / {}", r, c, e);
        prop_assert!(same(r.ceil_div(c).ceil_div(e), r.ceil_div(c * e)), "{} / {} / {}", r, c, e);
        let r = tree.dim();
        prop_assert!(!r.floor_div(c).floor_div(e).never_eq(&r.floor_div(c * e)));
        prop_assert!(!r.ceil_div(c).ceil_div(e).never_eq(&r.ceil_div(c * e)));
    }

    #[test]
    fn exact_division_inverts_multiplication(a in trees(true), b in trees(true)) {
        let (a, b) = (a.dim(), b.dim());
        let product = &a * &b;
        prop_assume!(product.is_valid() && !b.is(0));
        prop_assert_eq!(product.exact_div(&b), Some(a.clone()));
        if let Some(q) = a.exact_div(&b) {
            prop_assert_eq!(q * b, a);
        }
    }

    #[test]
    fn substitution_commutes_with_values(tree in trees(true), by in trees(true), values in values()) {
        let d = tree.dim();
        prop_assume!(d.is_valid());
        prop_assert_eq!(d.substitute("s", &dim("s", 100)), d.clone());
        let mut at = values;
        match by.value(&values).and_then(|s| i64::try_from(s).ok()) {
            Some(s) if (0..=100).contains(&s) => at[1] = s,
            _ => return Ok(()),
        }
        let replaced = d.substitute("s", &by.dim()).eval(&bindings(&values));
        if let (Some(x), Ok(y)) = (tree.value(&at), replaced) {
            prop_assert_eq!(x, i128::from(y));
        }
    }

    #[test]
    fn solving_inverts_evaluation(tree in trees(true), values in values(), unknown in 0..SYMBOLS.len()) {
        let (d, full) = (tree.dim(), bindings(&values));
        let Ok(value) = d.eval(&full) else { return Ok(()) };
        prop_assert_eq!(d.solve(value, &mut full.clone()), Ok(()));
        if let Some(wrong) = value.checked_add(1) {
            prop_assert!(d.solve(wrong, &mut full.clone()).is_err());
        }
        let hidden = SYMBOLS[unknown].0;
        let mut sizes: Bindings = full.iter().filter(|(name, _)| *name != hidden).collect();
        match d.solve(value, &mut sizes) {
            Ok(()) if d.symbols().iter().any(|s| &*s.name == hidden) => prop_assert_eq!(sizes, full),
            Ok(()) => prop_assert_eq!(sizes.get(hidden), None),
            Err(e) => prop_assert!(matches!(e, DimError::NotSolvable | DimError::Overflow), "{}: {}", d, e),
        }
    }

    #[test]
    fn hostile_text_is_refused_or_read(text in prop_oneof![
        "[-+*/() 0-9sbfq.]{0,60}",
        "(floor[(]|ceil[(]|[(]|[)]|/2|/|[0-9]{1,20}|s|b|[*]|-|[+]){0,40}",
        ".{0,30}",
    ]) {
        match Dim::parse(&text, &resolve) {
            Ok(d) => {
                prop_assert!(d.is_valid());
                prop_assert_eq!(Dim::parse(&d.to_string(), &resolve), Ok(d));
            }
            Err(e) => prop_assert!(e.at <= text.len() && text.is_char_boundary(e.at), "{}", e),
        }
    }
}
