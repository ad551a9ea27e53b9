//! Every op on tiles × type × form × level, on edges and random numbers, against plain scalar code.
#![allow(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rlx_simd::level::Level;
use rlx_simd::math::double;
use rlx_simd::mem::Buffer;
use rlx_simd::tile::*;

/// Sizes of tiles: none, one, less than a chunk, a chunk, ragged, large.
const SIZES: [usize; 7] = [0, 1, 17, 64, 65, 200, 256];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Num {
    F(f64),
    I(i128),
}
use Num::{F, I};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Bits and signedness of an integer type.
fn width(ty: Store) -> (u32, bool) {
    match ty {
        Store::I8 => (8, true),
        Store::I16 => (16, true),
        Store::I32 => (32, true),
        Store::I64 => (64, true),
        Store::U8 => (8, false),
        Store::U16 => (16, false),
        Store::U32 => (32, false),
        Store::U64 => (64, false),
        _ => (8, false),
    }
}

fn range(ty: Store) -> (i128, i128) {
    match (width(ty), ty) {
        (_, Store::Bool) => (0, 1),
        ((bits, true), _) => (-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
        ((bits, false), _) => (0, (1 << bits) - 1),
    }
}

fn wrap(ty: Store, x: i128) -> i128 {
    if ty == Store::Bool {
        return (x != 0) as i128;
    }
    let (lo, hi) = range(ty);
    x.wrapping_sub(lo).rem_euclid(hi - lo + 1) + lo
}

/// The nearest value of a minifloat by search, ties to the even code.
fn nearest(x: f64, codes: impl Iterator<Item = (u32, f64)>, beyond: f64, over: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    if x.abs() >= beyond {
        return over.copysign(x);
    }
    let mut best = (f64::INFINITY, 0, 0.0);
    for (code, v) in codes {
        let d = (v - x.abs()).abs();
        if d < best.0 || d == best.0 && code % 2 == 0 {
            best = (d, code, v);
        }
    }
    best.2.copysign(x)
}

/// Values of the finite magnitude codes.
fn codes(mantissa: u32, bias: i32, largest: u32) -> impl Iterator<Item = (u32, f64)> {
    (0..=largest).map(move |c| {
        let (e, m) = ((c >> mantissa) as i32, (c & ((1 << mantissa) - 1)) as f64 / (1 << mantissa) as f64);
        (c, if e == 0 { m * 2f64.powi(1 - bias) } else { (1.0 + m) * 2f64.powi(e - bias) })
    })
}

fn round(ty: Store, x: f64) -> f64 {
    match ty {
        Store::F64 => x,
        Store::F32 => x as f32 as f64,
        Store::F16 => {
            // By hand, for the crate `half` rounds an f64 twice where the machine has F16C.
            let step = 2f64.powi((x.abs().log2().floor() as i32).max(-14) - 10);
            match x.abs() {
                a if a.is_nan() || a.is_infinite() || a == 0.0 => x,
                a if a >= 65520.0 => f64::INFINITY.copysign(x),
                _ => (x / step).round_ties_even() * step,
            }
        }
        Store::BF16 => {
            let step = 2f64.powi((x.abs().log2().floor() as i32).clamp(-126, 127) - 7);
            match x.abs() {
                a if a.is_nan() || a.is_infinite() || a == 0.0 => x,
                a if a >= 2f64.powi(128) - 2f64.powi(119) => f64::INFINITY.copysign(x),
                _ => (x / step).round_ties_even() * step,
            }
        }
        Store::F8E4M3 => {
            // 464 is halfway to 480, which would have the odd code.
            let beyond = 464.0f64.next_up();
            nearest(x, codes(3, 7, 0x7e), beyond, f64::NAN)
        }
        Store::F8E5M2 => nearest(x, codes(2, 15, 0x7b), 61440.0, f64::INFINITY),
        _ => x,
    }
}

/// Edge values of a type and random ones, as many as asked for.
fn values(ty: Store, n: usize, r: &mut Random) -> Vec<Num> {
    if ty.is_float() {
        let inf = f64::INFINITY;
        let edges = [
            0.0,
            1.0,
            0.5,
            1.5,
            2.5,
            3.0,
            1e-8,
            1e-40,
            1e30,
            255.5,
            300.0,
            70000.0,
            3e9,
            1e19,
            inf,
            f64::NAN,
        ];
        return (0..n)
            .map(|i| {
                let k = r.next() as usize;
                let x = match (i + k) % 3 {
                    0 => edges[k / 3 % edges.len()],
                    1 => (r.next() % 20_000) as f64 / 1000.0 - 10.0,
                    _ => f32::from_bits(r.next() as u32) as f64,
                };
                F(round(ty, round(Store::F32, if k & 1024 == 0 { x } else { -x })))
            })
            .collect();
    }
    let (lo, hi) = range(ty);
    let edges = [0, 1, -1, 2, 3, 7, 8, 31, 32, 63, 64, lo, hi, lo + 1, hi - 1];
    (0..n)
        .map(|i| {
            let k = r.next() as usize;
            let x = if (i + k).is_multiple_of(2) {
                edges[k / 2 % edges.len()]
            } else {
                (r.next() as i128) << (k % 3 * 10)
            };
            I(wrap(ty, x))
        })
        .collect()
}

fn put(kind: Kind, buffer: &mut Buffer, i: usize, x: Num) {
    let bytes = match (kind, x) {
        (Kind::F32, F(x)) => (x as f32).to_ne_bytes().to_vec(),
        (Kind::F64, F(x)) => x.to_ne_bytes().to_vec(),
        (Kind::I32, I(x)) => (x as i32).to_ne_bytes().to_vec(),
        (Kind::I64, I(x)) => (x as i64).to_ne_bytes().to_vec(),
        _ => panic!("{kind:?} of {x:?}"),
    };
    buffer.bytes_mut()[i * bytes.len()..][..bytes.len()].copy_from_slice(&bytes);
}

fn register(ty: Store, xs: &[Num]) -> Buffer {
    let mut b = Buffer::new(512 * 8);
    for (i, x) in xs.iter().enumerate() {
        put(ty.kind(), &mut b, i, *x);
    }
    b
}

fn get(ty: Store, b: &Buffer, i: usize) -> Num {
    let at = |n: usize| &b.bytes()[i * n..][..n];
    let int = |x: i128| {
        let y = if width(ty).1 || ty == Store::Bool { x } else { x.rem_euclid(1 << (ty.kind().bytes() * 8)) };
        let (lo, hi) = range(ty);
        assert!((lo..=hi).contains(&y), "{x} is out of the range of {ty:?}");
        I(y)
    };
    match ty.kind() {
        Kind::F32 => F(f32::from_ne_bytes(at(4).try_into().unwrap()) as f64),
        Kind::F64 => F(f64::from_ne_bytes(at(8).try_into().unwrap())),
        Kind::I32 => int(i32::from_ne_bytes(at(4).try_into().unwrap()) as i128),
        Kind::I64 => int(i64::from_ne_bytes(at(8).try_into().unwrap()) as i128),
    }
}

/// The number as the register of a float type holds it.
fn held(ty: Store, x: f64) -> f64 {
    if ty.kind() == Kind::F32 { x as f32 as f64 } else { x }
}

fn same(a: Num, b: Num, relative: f64, absolute: f64) -> bool {
    match (a, b) {
        (F(a), F(b)) => {
            let exact = a == b && (a != 0.0 || a.is_sign_negative() == b.is_sign_negative());
            exact
                || a.is_nan() && b.is_nan()
                || (a - b).abs() <= (b.abs() * relative).max(absolute) && relative > 0.0
        }
        _ => a == b,
    }
}

#[track_caller]
fn expect(what: impl Fn() -> String, got: Num, want: Num, relative: f64, absolute: f64) {
    assert!(same(got, want, relative, absolute), "{}: {got:?}, not {want:?}", what());
}

fn unary_reference(op: Unary, ty: Store, x: Num) -> Option<Num> {
    use Unary::*;
    Some(match (op, x) {
        (IsNan, F(x)) => I(x.is_nan() as i128),
        (IsInf, F(x)) => I(x.is_infinite() as i128),
        (IsNan | IsInf, I(_)) => I(0),
        (Not, F(_)) => return None,
        (_, F(x)) => F(held(
            ty,
            match op {
                Neg => -x,
                Abs => x.abs(),
                Sign => (x > 0.0) as i8 as f64 - (x < 0.0) as i8 as f64,
                Exp => x.exp(),
                Expm1 => x.exp_m1(),
                Log => x.ln(),
                Log1p => x.ln_1p(),
                Sqrt => x.sqrt(),
                Rsqrt => 1.0 / x.sqrt(),
                Recip => 1.0 / x,
                Sin => x.sin(),
                Cos => x.cos(),
                Tan => x.tan(),
                Asin => x.asin(),
                Acos => x.acos(),
                Atan => x.atan(),
                Sinh => x.sinh(),
                Cosh => x.cosh(),
                Asinh => libm::asinh(x),
                Acosh => double::acosh(x),
                Atanh => libm::atanh(x),
                Tanh => x.tanh(),
                Erf => libm::erf(x),
                Erfc => libm::erfc(x),
                Sigmoid if x >= 0.0 => 1.0 / (1.0 + (-x).exp()),
                Sigmoid => x.exp() / (1.0 + x.exp()),
                Floor => x.floor(),
                Ceil => x.ceil(),
                Round => x.round_ties_even(),
                Trunc => x.trunc(),
                Gelu => double::gelu(x),
                GeluTanh => double::gelu_tanh(x),
                Silu => double::silu(x),
                Square => x * x,
                Not | IsNan | IsInf => return None,
            },
        )),
        (_, I(x)) => I(wrap(
            ty,
            match op {
                Neg => -x,
                Abs => x.abs(),
                Sign => x.signum(),
                Not if ty == Store::Bool => (x == 0) as i128,
                Not => !x,
                Square => x.wrapping_mul(x),
                Floor | Ceil | Round | Trunc => x,
                _ => return None,
            },
        )),
    })
}

#[test]
fn unary_ops() {
    let mut r = Random(1);
    for ty in Store::ALL {
        for op in Unary::ALL {
            for level in Level::available() {
                let f = unary(level, op, ty);
                assert_eq!(
                    f.is_some(),
                    unary_reference(op, ty, values(ty, 1, &mut r)[0]).is_some(),
                    "{op:?} {ty:?}"
                );
                let Some(f) = f else { continue };
                let out = if matches!(op, Unary::IsNan | Unary::IsInf) { Store::Bool } else { ty };
                for n in SIZES {
                    let xs = values(ty, n, &mut r);
                    let a = register(ty, &xs);
                    let dst = Buffer::new(512 * 8);
                    // SAFETY: registers have room for 512 elements.
                    unsafe { f(n, dst.ptr(), a.ptr()) };
                    // SAFETY: as above; in place is allowed.
                    unsafe { f(n, a.ptr(), a.ptr()) };
                    assert!((0..n).all(|i| same_bits(out, &dst, i, &a, i)), "{op:?} {ty:?} in place");
                    let f32s = ty.kind() == Kind::F32;
                    let (relative, absolute) = match op {
                        Unary::Gelu | Unary::GeluTanh if f32s => (1e-6, 2e-7),
                        Unary::Silu if f32s => (4e-7, 2e-43),
                        Unary::Exp | Unary::Log | Unary::Tanh | Unary::Erf | Unary::Sigmoid if f32s => {
                            (3e-7, 3e-45)
                        }
                        Unary::Neg
                        | Unary::Abs
                        | Unary::Sign
                        | Unary::Square
                        | Unary::Sqrt
                        | Unary::Recip => (0.0, 0.0),
                        Unary::Floor | Unary::Ceil | Unary::Round | Unary::Trunc => (0.0, 0.0),
                        _ if f32s => (2e-7, 2e-45),
                        _ => (1e-15, 0.0),
                    };
                    for (i, x) in xs.iter().enumerate() {
                        let want = unary_reference(op, ty, *x).unwrap();
                        expect(
                            || format!("{op:?} {ty:?} {level} of {x:?}"),
                            get(out, &dst, i),
                            want,
                            relative,
                            absolute,
                        );
                    }
                }
            }
        }
    }
}

fn int_pow(ty: Store, base: i128, exponent: i128) -> i128 {
    match (base, exponent < 0) {
        (1, true) => 1,
        (-1, true) => 1 - 2 * exponent.rem_euclid(2),
        (_, true) => 0,
        _ => {
            let (mut result, mut square, mut e) = (1i128, base, exponent);
            while e > 0 {
                if e & 1 == 1 {
                    result = wrap(ty, result.wrapping_mul(square));
                }
                square = wrap(ty, square.wrapping_mul(square));
                e >>= 1;
            }
            result
        }
    }
}

fn binary_reference(op: Binary, ty: Store, a: Num, b: Num) -> Option<Num> {
    use Binary::*;
    let order = match (a, b) {
        (F(a), F(b)) => a.partial_cmp(&b),
        (I(a), I(b)) => Some(a.cmp(&b)),
        _ => panic!(),
    };
    let truth = |t: bool| Some(I(t as i128));
    match op {
        Eq => return truth(order.is_some_and(|o| o.is_eq())),
        Ne => return truth(order.is_none_or(|o| o.is_ne())),
        Lt => return truth(order.is_some_and(|o| o.is_lt())),
        Le => return truth(order.is_some_and(|o| o.is_le())),
        Gt => return truth(order.is_some_and(|o| o.is_gt())),
        Ge => return truth(order.is_some_and(|o| o.is_ge())),
        _ => {}
    }
    Some(match (a, b) {
        (F(a), F(b)) => F(held(
            ty,
            match op {
                Add => a + b,
                Sub => a - b,
                Mul => a * b,
                Div => a / b,
                Rem => a % b,
                Pow => a.powf(b),
                Atan2 => a.atan2(b),
                Max if a.is_nan() || b.is_nan() => f64::NAN,
                Max => {
                    if a > b {
                        a
                    } else {
                        b
                    }
                }
                Min if a.is_nan() || b.is_nan() => f64::NAN,
                Min => {
                    if a < b {
                        a
                    } else {
                        b
                    }
                }
                _ => return None,
            },
        )),
        (I(a), I(b)) => I(wrap(ty, {
            let bits = width(ty).0 as i128;
            let count = if (0..bits).contains(&b) { b } else { bits };
            match op {
                Add => a + b,
                Sub => a - b,
                Mul => a.wrapping_mul(b),
                Div => a.checked_div(b).unwrap_or(0),
                Rem => a.checked_rem(b).unwrap_or(0),
                Pow => int_pow(ty, a, b),
                Max => a.max(b),
                Min => a.min(b),
                And => a & b,
                Or => a | b,
                Xor => a ^ b,
                Shl if ty != Store::Bool => a << count,
                Shr if ty != Store::Bool => a >> count,
                _ => return None,
            }
        })),
        _ => panic!(),
    })
}

#[test]
fn binary_ops() {
    let mut r = Random(2);
    for ty in Store::ALL {
        for op in Binary::ALL {
            for (level, form) in Level::available()
                .into_iter()
                .flat_map(|l| [Form::TileTile, Form::SplatTile, Form::TileSplat].map(|f| (l, f)))
            {
                let f = binary(level, op, ty, form);
                let one = values(ty, 1, &mut r)[0];
                assert_eq!(f.is_some(), binary_reference(op, ty, one, one).is_some(), "{op:?} {ty:?}");
                let Some(f) = f else { continue };
                let compares = matches!(binary_reference(op, ty, one, one), Some(I(_))) && ty.is_float();
                let truths = compares || (op as usize) >= (Binary::Eq as usize);
                let out = if truths { Store::Bool } else { ty };
                for n in SIZES {
                    let (xs, ys) = (values(ty, n.max(1), &mut r), values(ty, n.max(1), &mut r));
                    let (a, b, dst) = (register(ty, &xs), register(ty, &ys), Buffer::new(512 * 8));
                    // SAFETY: registers have room for 512 elements.
                    unsafe { f(n, dst.ptr(), a.ptr(), b.ptr()) };
                    for i in 0..n {
                        let x = xs[if form == Form::SplatTile { 0 } else { i }];
                        let y = ys[if form == Form::TileSplat { 0 } else { i }];
                        let want = binary_reference(op, ty, x, y).unwrap();
                        let close = matches!(op, Binary::Pow | Binary::Atan2);
                        let (relative, absolute) = match ty.kind() {
                            Kind::F32 if close => (2e-7, 2e-45),
                            _ => (0.0, 0.0),
                        };
                        let what = || format!("{op:?} {ty:?} {level} {form:?} of {x:?}, {y:?}");
                        expect(what, get(out, &dst, i), want, relative, absolute);
                    }
                    // SAFETY: as above; in place is allowed.
                    unsafe { f(n, a.ptr(), a.ptr(), b.ptr()) };
                    assert!(
                        (0..n).all(|i| same_bits(out, &dst, i, &a, i)),
                        "{op:?} {ty:?} {form:?} in place of a"
                    );
                    let a = register(ty, &xs);
                    // SAFETY: as above.
                    unsafe { f(n, b.ptr(), a.ptr(), b.ptr()) };
                    assert!(
                        (0..n).all(|i| same_bits(out, &dst, i, &b, i)),
                        "{op:?} {ty:?} {form:?} in place of b"
                    );
                }
            }
        }
    }
}

#[test]
fn selects_and_mul_adds() {
    let mut r = Random(3);
    let args = [Arg::Tile, Arg::Splat];
    let pick = |v: &[Num], arg: Arg, i: usize| v[if arg == Arg::Splat { 0 } else { i }];
    for (ty, level) in
        Store::ALL.into_iter().flat_map(|t| Level::available().into_iter().map(move |l| (t, l)))
    {
        for n in SIZES {
            for (p, q, s) in
                args.into_iter().flat_map(|p| args.map(|q| (p, q))).flat_map(|(p, q)| args.map(|s| (p, q, s)))
            {
                let [cs, xs, ys, zs] = [Store::Bool, ty, ty, ty].map(|t| values(t, n.max(1), &mut r));
                let [c, x, y, z] =
                    [(Store::Bool, &cs), (ty, &xs), (ty, &ys), (ty, &zs)].map(|(t, v)| register(t, v));
                let dst = Buffer::new(512 * 8);
                // SAFETY: registers have room for 512 elements.
                unsafe { select(level, ty, p, q)(n, dst.ptr(), c.ptr(), x.ptr(), y.ptr()) };
                for (i, c) in cs.iter().enumerate().take(n) {
                    let want = if *c == I(1) { pick(&xs, p, i) } else { pick(&ys, q, i) };
                    expect(|| format!("select {ty:?}"), get(ty, &dst, i), want, 0.0, 0.0);
                }
                // SAFETY: as above; in place is allowed, even where the elements are wider than the condition's.
                unsafe { select(level, ty, p, q)(n, c.ptr(), c.ptr(), x.ptr(), y.ptr()) };
                let bytes = n * ty.kind().bytes();
                assert_eq!(dst.bytes()[..bytes], c.bytes()[..bytes], "select {ty:?} in place");
                let f = mul_add(level, ty, p, q, s);
                assert_eq!(f.is_some(), ty.is_float());
                let Some(f) = f else { continue };
                // SAFETY: as above.
                unsafe { f(n, dst.ptr(), x.ptr(), y.ptr(), z.ptr()) };
                for i in 0..n {
                    let (F(a), F(b), F(c)) = (pick(&xs, p, i), pick(&ys, q, i), pick(&zs, s, i)) else {
                        panic!()
                    };
                    let F(got) = get(ty, &dst, i) else { panic!() };
                    let (once, twice) = if ty.kind() == Kind::F32 {
                        let (a, b, c) = (a as f32, b as f32, c as f32);
                        (a.mul_add(b, c) as f64, (a * b + c) as f64)
                    } else {
                        (a.mul_add(b, c), a * b + c)
                    };
                    let ok = |w: f64| got == w || got.is_nan() && w.is_nan();
                    assert!(ok(once) || ok(twice), "{a}·{b} + {c} = {got}");
                }
                // SAFETY: as above.
                unsafe { f(n, z.ptr(), x.ptr(), y.ptr(), z.ptr()) };
                assert!((0..n).all(|i| same_bits(ty, &dst, i, &z, i)), "mul_add {ty:?} in place");
            }
        }
    }
}

fn cast_reference(x: Num, to: Store) -> Num {
    match x {
        F(x) if to == Store::Bool => I((x != 0.0) as i128),
        I(x) if to == Store::Bool => I((x != 0) as i128),
        F(x) if to.is_float() => F(round(to, x)),
        F(x) => I((x as i128).clamp(range(to).0, range(to).1)),
        I(x) if to.is_float() => F(round(to, x as f64)),
        I(x) => I(wrap(to, x)),
    }
}

#[test]
fn casts() {
    let mut r = Random(4);
    for (from, to) in Store::ALL.into_iter().flat_map(|a| Store::ALL.map(|b| (a, b))) {
        for level in Level::available() {
            let f = cast(level, from, to);
            for n in SIZES {
                let mut xs = values(from, n, &mut r);
                if from == Store::F64 {
                    // Ties of narrow types, and a little more.
                    for x in xs.iter_mut().step_by(5) {
                        *x = F((1.0 + 2f64.powi(-11))
                            * if r.next().is_multiple_of(2) { 1.0 } else { 1.0 + 2f64.powi(-45) });
                    }
                }
                let (a, dst) = (register(from, &xs), Buffer::new(512 * 8));
                // SAFETY: registers have room for 512 elements.
                unsafe { f(n, dst.ptr(), a.ptr()) };
                for (i, x) in xs.iter().enumerate() {
                    let what = || format!("{x:?} of {from:?} as {to:?} at {level}");
                    expect(what, get(to, &dst, i), cast_reference(*x, to), 0.0, 0.0);
                }
                // SAFETY: as above; in place is allowed.
                unsafe { f(n, a.ptr(), a.ptr()) };
                assert!((0..n).all(|i| same_bits(to, &dst, i, &a, i)), "{from:?} to {to:?} in place");
            }
        }
    }
}

#[test]
fn memory_and_back() {
    let mut r = Random(5);
    for (ty, level) in
        Store::ALL.into_iter().flat_map(|t| Level::available().into_iter().map(move |l| (t, l)))
    {
        for n in SIZES {
            // What a store rounds is what a cast to the type gives.
            let wide = if ty.kind() == Kind::F32 { Store::F32 } else { ty };
            let xs = values(wide, n, &mut r);
            let reg = register(wide, &xs);
            for stride in [1isize, 2, 3, -1] {
                let mem = Buffer::new(2048 * 8);
                let start = mem.ptr().wrapping_add(1024 * ty.bytes());
                let back = Buffer::new(512 * 8);
                // SAFETY: there is room on both sides of the start.
                unsafe {
                    store(level, ty)(n, start, stride, reg.ptr());
                    load(level, ty, LoadStride::Any)(n, back.ptr(), start, stride);
                }
                for (i, x) in xs.iter().enumerate() {
                    let want = if ty == wide { *x } else { cast_reference(*x, ty) };
                    let what = || format!("{x:?} by {ty:?} in memory at {level}, stride {stride}");
                    expect(what, get(ty, &back, i), want, 0.0, 0.0);
                }
                let (near, same) = (Buffer::new(512 * 8), Buffer::new(512 * 8));
                // SAFETY: as above.
                unsafe {
                    load(level, ty, LoadStride::One)(n, near.ptr(), start, 1);
                    load(level, ty, LoadStride::Zero)(n, same.ptr(), start, 0);
                }
                for (i, _) in xs.iter().enumerate() {
                    if stride == 1 {
                        assert!(same_bits(ty, &near, i, &back, i));
                    }
                    assert!(same_bits(ty, &same, i, &back, 0));
                }
            }
        }
    }
}

/// Whether the elements are the same; any NaN is as good as another.
fn same_bits(ty: Store, a: &Buffer, i: usize, b: &Buffer, j: usize) -> bool {
    same(get(ty, a, i), get(ty, b, j), 0.0, 0.0)
}

/// Every code of the small floats, both ways.
#[test]
fn small_floats() {
    for level in Level::available() {
        for (ty, count) in
            [(Store::F16, 1 << 16), (Store::BF16, 1 << 16), (Store::F8E4M3, 256), (Store::F8E5M2, 256)]
        {
            let (mem, reg, back) = (Buffer::new(1 << 17), Buffer::new(1 << 18), Buffer::new(1 << 17));
            for code in 0..count {
                // SAFETY: the buffer has room for every code.
                unsafe {
                    match ty.bytes() {
                        2 => mem.ptr().cast::<u16>().add(code).write(code as u16),
                        _ => mem.ptr().add(code).write(code as u8),
                    }
                }
            }
            // SAFETY: as above.
            unsafe {
                load(level, ty, LoadStride::One)(count, reg.ptr(), mem.ptr(), 1);
                store(level, ty)(count, back.ptr(), 1, reg.ptr());
            }
            for code in 0..count {
                let F(x) = get(ty, &reg, code) else { panic!() };
                let magnitude = code as u32 & (count as u32 / 2 - 1);
                let want = match ty {
                    Store::F16 => half::f16::from_bits(code as u16).to_f64(),
                    Store::BF16 => half::bf16::from_bits(code as u16).to_f64(),
                    Store::F8E4M3 if magnitude == 0x7f => f64::NAN,
                    Store::F8E4M3 => codes(3, 7, 0x7e).nth(magnitude as usize).unwrap().1,
                    _ if magnitude > 0x7c => f64::NAN,
                    _ if magnitude == 0x7c => f64::INFINITY,
                    _ => codes(2, 15, 0x7b).nth(magnitude as usize).unwrap().1,
                };
                let want = if code < count / 2 { want.abs() } else { -want.abs() };
                expect(|| format!("{ty:?} {code:#x}"), F(x), F(want), 0.0, 0.0);
                if !x.is_nan() {
                    let at = code * ty.bytes()..(code + 1) * ty.bytes();
                    assert_eq!(mem.bytes()[at.clone()], back.bytes()[at], "{ty:?} {code:#x}");
                }
            }
        }
    }
}

#[test]
fn folds() {
    let mut r = Random(6);
    for (ty, op) in Store::ALL.into_iter().flat_map(|t| Fold::ALL.map(|o| (t, o))) {
        let mut across: Option<Vec<[u8; 8]>> = None;
        for level in Level::available() {
            let f = fold(level, op, ty);
            assert_eq!(f.is_none(), matches!(op, Fold::Any | Fold::All) && ty != Store::Bool);
            let Some(f) = f else { continue };
            let mut results = Vec::new();
            r = Random(6);
            for n in SIZES {
                let tame = |x: Num| {
                    if let F(x) = x
                        && (x.abs() > 4.0 || op != Fold::Max && x.is_nan())
                    {
                        F(0.75)
                    } else {
                        x
                    }
                };
                let tiles: Vec<Vec<Num>> =
                    (0..3).map(|_| values(ty, n, &mut r).into_iter().map(tame).collect()).collect();
                let mut acc = Buffer::new(8);
                acc.bytes_mut().copy_from_slice(&fold_init(op, ty));
                for t in &tiles {
                    // SAFETY: registers have room for 512 elements.
                    unsafe { f(n, acc.ptr(), register(ty, t).ptr()) };
                }
                let done = fold_finish(ty, acc.bytes().try_into().unwrap());
                results.push(done);
                let mut out = Buffer::new(8);
                out.bytes_mut().copy_from_slice(&done);
                let got = get(ty, &out, 0);
                let all = tiles.iter().flatten().copied();
                if ty.is_float() {
                    let xs: Vec<f64> = all.map(|x| if let F(x) = x { x } else { panic!() }).collect();
                    let size: f64 = xs.iter().map(|x| x.abs()).sum();
                    let nan = xs.iter().any(|x| x.is_nan());
                    let (want, slack) = match op {
                        Fold::Sum => (xs.iter().sum::<f64>(), size * 1e-6),
                        Fold::Prod => (xs.iter().product(), 0.0),
                        Fold::Max if nan => (f64::NAN, 0.0),
                        Fold::Max => (xs.iter().copied().fold(f64::NEG_INFINITY, f64::max), 0.0),
                        _ => (xs.iter().copied().fold(f64::INFINITY, f64::min), 0.0),
                    };
                    let F(g) = got else { panic!() };
                    let w = round(ty, want);
                    // A narrow result is a rounding of something within the slack of the sum.
                    let near = match op {
                        Fold::Sum => {
                            [-slack, slack].iter().any(|s| round(ty, want + s) == g)
                                || (g - want).abs() <= slack
                        }
                        _ => (g - w).abs() <= w.abs() * 1e-6,
                    };
                    assert!(g == w || g.is_nan() && w.is_nan() || near, "{op:?} {ty:?} {n}: {g}, not {want}");
                } else {
                    let xs: Vec<i128> = all.map(|x| if let I(x) = x { x } else { panic!() }).collect();
                    let want = match op {
                        Fold::Sum => wrap(ty, xs.iter().sum()),
                        Fold::Prod => xs.iter().fold(1, |a: i128, b| wrap(ty, a.wrapping_mul(*b))),
                        Fold::Max => xs.iter().copied().max().unwrap_or(range(ty).0),
                        Fold::Min => xs.iter().copied().min().unwrap_or(range(ty).1),
                        Fold::Any => xs.contains(&1) as i128,
                        Fold::All => !xs.contains(&0) as i128,
                    };
                    assert_eq!(got, I(want), "{op:?} {ty:?} {n}");
                }
            }
            // Lanes are the same at every level, so the bits are.
            assert!(across.as_ref().is_none_or(|a| *a == results), "{op:?} {ty:?} differs at {level}");
            across = Some(results);
        }
    }
    assert_ne!(r.next(), 0);
}

#[test]
fn iotas() {
    for ty in Store::ALL {
        for (start, step) in [(0, 1), (-5, 3), (1 << 40, -7), (i64::MAX, 1), (250, 1)] {
            let dst = Buffer::new(512 * 8);
            // SAFETY: registers have room for 512 elements.
            unsafe { iota(Level::Baseline, ty)(300, dst.ptr(), start, step) };
            for i in 0..300 {
                let x = start.wrapping_add(step * i as i64) as i128;
                expect(|| format!("iota {ty:?}"), get(ty, &dst, i), cast_reference(I(x), ty), 0.0, 0.0);
            }
        }
    }
}
