//! Functions of the scalar language for whose combination there is a loop that is faster than its parts.

use super::bind::reads;
use rlx_compile::program::{Inst, Reg, Region};
use rlx_ir::DType;
use rlx_ir::scalar::Scalar;
use rlx_simd::tile::Unary;

/// The operands of the instruction that sets a register, if it is that function in f32.
fn scalar(region: &Region, r: Reg, want: Scalar) -> Option<&[Reg]> {
    match region.code.get(r as usize)? {
        Inst::Scalar { op, dtype, args } if *op == want && *dtype != DType::F64 => Some(args),
        _ => None,
    }
}

/// The other operand of a product with that number.
fn times(region: &Region, r: Reg, factor: f32) -> Option<Reg> {
    let [a, b] = scalar(region, r, Scalar::Mul)? else { return None };
    let is = |r: Reg| match region.code.get(r as usize) {
        Some(Inst::Number(DType::F32, bytes)) => bytes.as_slice() == factor.to_le_bytes(),
        _ => false,
    };
    if is(*b) { Some(*a) } else { is(*a).then_some(*b) }
}

/// Finds gelu and silu: for each register the loop and its operand, and whether the register is only part of such a loop.
pub(super) fn recognise(region: &Region) -> (Vec<Option<(Unary, Reg)>>, Vec<bool>) {
    let code = &region.code;
    let mut uses = vec![0usize; code.len()];
    code.iter().flat_map(reads).for_each(|r| {
        if let Some(n) = uses.get_mut(*r as usize) {
            *n += 1;
        }
    });
    let single = |r: Reg| uses.get(r as usize) == Some(&1);
    let mut dead = vec![false; code.len()];
    let mut known = Vec::with_capacity(code.len());
    for i in code {
        let mut found = None;
        if let Inst::Scalar { op: Scalar::Mul, dtype, args } = i
            && let [a, b] = args.as_slice()
            && *dtype != DType::F64
        {
            for (p, q) in [(*a, *b), (*b, *a)] {
                // x/2 · erfc(−x/√2)
                if let Some(half) = times(region, p, 0.5).filter(|_| single(p))
                    && let Some([inner]) = scalar(region, q, Scalar::Erfc).filter(|_| single(q))
                    && let Some(x) = times(region, *inner, -std::f32::consts::FRAC_1_SQRT_2)
                    && x == half
                    && single(*inner)
                {
                    found = Some((Unary::Gelu, x, vec![p, q, *inner]));
                }
                if let Some([x]) = scalar(region, q, Scalar::Sigmoid).filter(|_| single(q))
                    && *x == p
                {
                    found = Some((Unary::Silu, p, vec![q]));
                }
            }
        }
        for part in found.iter().flat_map(|f| &f.2) {
            if let Some(d) = dead.get_mut(*part as usize) {
                *d = true;
            }
        }
        known.push(found.map(|(unary, x, _)| (unary, x)));
    }
    (known, dead)
}
