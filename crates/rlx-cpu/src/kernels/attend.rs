//! Attention and selective scans, with their gradients.

use super::{Form, by_dtype, ready};
use crate::bind::{Ready, Setting};
use crate::epilogue::Epilogue;
use crate::region::BoundRegion;
use rlx_compile::program::fault;
use rlx_ir::ops::attention::Attention;
use rlx_ir::{Code, DType, Error, Result};
use rlx_simd::mem::{Ptr, View};
use rlx_simd::{attention, scan};

/// Where an operand of an op stands among those that are given.
fn position(given: &[bool], k: usize) -> Option<usize> {
    given.get(k).copied().unwrap_or(false).then(|| given.iter().take(k).filter(|g| **g).count())
}

/// The scores of attention; `extras`: the position of the mask among the operands.
fn scores<T>(
    forms: &[Form],
    given: &[bool],
    extras: usize,
    a: &Attention,
) -> Option<impl Fn(&[Ptr<u8>]) -> Option<attention::Scores<T>> + use<T>> {
    let place = |k: usize| position(given, k);
    let (q, k) = (forms.first()?.clone(), forms.get(1)?.clone());
    let &[b, hq, s, d] = q.shape.as_slice() else { return None };
    let t = k.shape.get(2).copied()?;
    let scale = a.scale.unwrap_or(1.0 / (d as f64).sqrt());
    let optional: Vec<Option<(usize, Form)>> =
        (extras..extras + 3).map(|i| place(i).and_then(|p| Some((p, forms.get(p)?.clone())))).collect();
    let (causal, window, softcap) = (a.causal, a.window.map(|w| w.max(0) as usize), a.softcap);
    Some(move |args: &[Ptr<u8>]| {
        let find =
            |i: usize| optional.get(i).and_then(Option::as_ref).and_then(|(p, f)| Some((f, *args.get(*p)?)));
        Some(attention::Scores {
            q: q.exact(*args.first()?),
            k: k.exact(*args.get(1)?),
            mask: find(0).map(|(f, p)| f.view(p, [b, hq, s, t])),
            bias: find(1).map(|(f, p)| f.view(p, [b, hq, s, t])),
            slopes: find(2).map(|(f, p)| f.view(p, [b, hq])),
            scale,
            causal,
            window,
            softcap,
        })
    })
}

/// Addresses for asking about sizes only.
fn nowhere(n: usize) -> Vec<Ptr<u8>> {
    vec![Ptr(std::ptr::null_mut()); n]
}

/// From the addresses of a call to attention without its result.
fn attending<T>(
    forms: &[Form],
    given: &[bool],
    a: &Attention,
) -> Option<impl Fn(&[Ptr<u8>]) -> Option<attention::Attention<T>> + use<T>> {
    let (scores, v) = (scores::<T>(forms, given, 3, a)?, forms.get(2)?.clone());
    Some(move |args: &[Ptr<u8>]| {
        Some(attention::Attention { scores: scores(args)?, v: v.exact(*args.get(2)?) })
    })
}

pub(super) fn attend(
    setting: Setting,
    forms: &[Form],
    given: &[bool],
    a: &Attention,
    behind: Option<BoundRegion>,
) -> Result<Ready> {
    let wrong = || fault("attention has other arguments");
    let (q, v) = (forms.first().ok_or_else(wrong)?, forms.get(2).ok_or_else(wrong)?);
    let at = |f: &Form, k: usize| f.shape.get(k).copied().unwrap_or(0);
    let flops = 4 * at(q, 0) * at(q, 1) * at(q, 2) * at(v, 2) * at(v, 3);
    let level = setting.level;
    let operands = given.iter().filter(|g| **g).count();
    let none = nowhere(operands);
    if let Some(region) = behind {
        if v.dtype != DType::F32 {
            return Err(fault("only attention in f32 has an epilogue"));
        }
        let make = attending::<f32>(forms, given, a).ok_or_else(wrong)?;
        let own = make(&none).ok_or_else(wrong)?.scratch();
        let epilogue = Epilogue::new(region, [at(q, 2), at(v, 3)], own);
        return Ok(ready(epilogue.scratch, flops + epilogue.flops() as usize, move |cx, args| {
            let Some(a) = make(args) else { return };
            // SAFETY: the binder checked the arguments, those of the region with the rest.
            unsafe {
                epilogue.run(cx, args, |sink| a.run(level, cx.pool, &cx.scratch, attention::Out::Sink(sink)));
            }
        }));
    }
    let y = forms.get(operands).cloned().ok_or_else(wrong)?;
    Ok(by_dtype!(v.dtype, T, F32 = f32, F64 = f64 => {
        let make = attending::<T>(forms, given, a).ok_or_else(wrong)?;
        let scratch = make(&none).ok_or_else(wrong)?.scratch();
        ready(scratch, flops, move |cx, args| {
            let (Some(a), Some(to)) = (make(args), args.get(operands)) else { return };
            // SAFETY: the binder checked the arguments.
            unsafe { a.run(level, cx.pool, &cx.scratch, attention::Out::Direct(y.exact(*to))) }
        })
    }))
}

pub(super) fn attend_back(setting: Setting, forms: &[Form], given: &[bool], a: &Attention) -> Result<Ready> {
    let wrong = || fault("attention's gradient has other arguments");
    let (bias, slopes) = (given.get(5) == Some(&true), given.get(6) == Some(&true));
    let operands = given.iter().filter(|g| **g).count();
    let get = |k: usize| forms.get(k).cloned().ok_or_else(wrong);
    let (v, dy) = (get(2)?, get(3)?);
    let (dq, dk, dv) = (get(operands)?, get(operands + 1)?, get(operands + 2)?);
    let dbias = bias.then(|| get(operands + 3)).transpose()?;
    let at_slopes = operands + 3 + bias as usize;
    let dslopes = slopes.then(|| get(at_slopes)).transpose()?;
    let level = setting.level;
    let flops = 10 * dq.len() * v.shape.get(2).copied().unwrap_or(0);
    let count = forms.len();
    Ok(by_dtype!(v.dtype, T, F32 = f32, F64 = f64 => {
        let scores = scores::<T>(forms, given, 4, a).ok_or_else(wrong)?;
        let make = move |args: &[Ptr<u8>]| {
            Some(attention::AttentionGrad {
                scores: scores(args)?,
                v: v.exact(*args.get(2)?),
                dy: dy.exact(*args.get(3)?),
                dq: dq.exact(*args.get(operands)?),
                dk: dk.exact(*args.get(operands + 1)?),
                dv: dv.exact(*args.get(operands + 2)?),
                dbias: match &dbias {
                    Some(f) => Some(f.padded(*args.get(operands + 3)?)),
                    None => None,
                },
                dslopes: match &dslopes {
                    Some(f) => Some(f.padded(*args.get(at_slopes)?)),
                    None => None,
                },
            })
        };
        let scratch = make(&nowhere(count)).ok_or_else(wrong)?.scratch();
        ready(scratch, flops, move |cx, args| {
            let Some(a) = make(args) else { return };
            // SAFETY: the binder checked the arguments.
            unsafe { a.run(level, cx.pool, &cx.scratch) }
        })
    }))
}

/// The operands of a selective scan, the first of which stands at `first` among the op's operands.
fn scan_inputs<T>(
    forms: &[Form],
    given: &[bool],
    first: usize,
    softplus: bool,
    args: &[Ptr<u8>],
) -> Option<scan::ScanInputs<T>> {
    let place = |k: usize| position(given, k);
    let at = |k: usize| {
        let p = place(first + k)?;
        Some((forms.get(p)?, *args.get(p)?))
    };
    fn three<T>(x: Option<(&Form, Ptr<u8>)>) -> Option<View<T, 3>> {
        x.map(|(f, p)| f.exact(p))
    }
    fn one<T>(x: Option<(&Form, Ptr<u8>)>) -> Option<View<T, 1>> {
        x.map(|(f, p)| f.exact(p))
    }
    Some(scan::ScanInputs {
        x: three(at(0))?,
        delta: three(at(1))?,
        a: at(2).map(|(f, p)| f.exact(p))?,
        b: three(at(3))?,
        c: three(at(4))?,
        d: one(at(5)),
        z: three(at(6)),
        delta_bias: one(at(7)),
        state: three(at(8)),
        softplus,
    })
}

fn scan_flops(forms: &[Form], x: usize, a: usize) -> usize {
    let n = forms.get(a).and_then(|a| a.shape.get(1)).copied().unwrap_or(0);
    forms.get(x).map_or(0, Form::len) * n * 7
}

pub(super) fn selective(
    setting: Setting,
    forms: Vec<Form>,
    given: Vec<bool>,
    softplus: bool,
    behind: Option<BoundRegion>,
) -> Result<Ready> {
    let wrong = || fault("a selective scan has other arguments");
    let level = setting.level;
    let operands = given.iter().filter(|g| **g).count();
    let x = forms.first().cloned().ok_or_else(wrong)?;
    let flops = scan_flops(&forms, 0, 2);
    if let Some(region) = behind {
        if x.dtype != DType::F32 {
            return Err(fault("only a selective scan in f32 has an epilogue"));
        }
        let parts = move |args: &[Ptr<u8>]| {
            let last = forms.get(operands)?.exact(*args.get(operands)?);
            Some((scan_inputs::<f32>(&forms, &given, 0, softplus, args)?, Some(last)))
        };
        let (inputs, last) = parts(&nowhere(operands + 1)).ok_or_else(wrong)?;
        let y = scan::Out::Direct(x.exact(Ptr(std::ptr::null_mut())));
        let own = scan::SelectiveScan { inputs, y, last }.scratch();
        let epilogue = Epilogue::new(region, [1, 2].map(|k| x.shape.get(k).copied().unwrap_or(0)), own);
        return Ok(ready(epilogue.scratch, flops + epilogue.flops() as usize, move |cx, args| {
            // SAFETY: the binder checked the arguments, those of the region with the rest.
            unsafe {
                epilogue.run(cx, args, |sink| {
                    let Some((inputs, last)) = parts(args) else { return };
                    let scan = scan::SelectiveScan { inputs, y: scan::Out::Sink(sink), last };
                    scan.run(level, cx.pool, &cx.scratch);
                });
            }
        }));
    }
    Ok(by_dtype!(x.dtype, T, F32 = f32, F64 = f64 => {
        let make = move |args: &[Ptr<u8>]| {
            let out = |k: usize| Some((forms.get(operands + k)?, *args.get(operands + k)?));
            Some(scan::SelectiveScan::<T> {
                inputs: scan_inputs(&forms, &given, 0, softplus, args)?,
                y: scan::Out::Direct(out(0).map(|(f, p)| f.exact(p))?),
                last: out(1).map(|(f, p)| f.exact(p)),
            })
        };
        let scratch = make(&nowhere(operands + 2)).ok_or_else(wrong)?.scratch();
        ready(scratch, flops, move |cx, args| {
            let Some(s) = make(args) else { return };
            // SAFETY: the binder checked the arguments.
            unsafe { s.run(level, cx.pool, &cx.scratch) }
        })
    }))
}

pub(super) fn selective_back(
    setting: Setting,
    forms: Vec<Form>,
    given: Vec<bool>,
    softplus: bool,
) -> Result<Ready> {
    let wrong = || fault("a selective scan's gradient has other arguments");
    let level = setting.level;
    let operands = given.iter().filter(|g| **g).count();
    let dtype = forms.first().ok_or_else(wrong)?.dtype;
    let (flops, count) = (3 * scan_flops(&forms, 1, 3), forms.len());
    Ok(by_dtype!(dtype, T, F32 = f32, F64 = f64 => {
        let make = move |args: &[Ptr<u8>]| {
            // The results are the gradients of the operands from x to state that are given.
            let place = |k: usize| position(given.get(1..10.min(given.len())).unwrap_or_default(), k);
            let out = |k: usize| {
                let p = operands + place(k)?;
                Some((forms.get(p)?, *args.get(p)?))
            };
            let dlast = position(&given, 10).and_then(|p| Some((forms.get(p)?, *args.get(p)?)));
            Some(scan::SelectiveScanGrad::<T> {
                inputs: scan_inputs(&forms, &given, 1, softplus, args)?,
                dy: forms.first()?.exact(*args.first()?),
                dlast: dlast.map(|(f, p)| f.exact(p)),
                dx: out(0).map(|(f, p)| f.exact(p))?,
                ddelta: out(1).map(|(f, p)| f.exact(p))?,
                da: out(2).map(|(f, p)| f.exact(p))?,
                db: out(3).map(|(f, p)| f.exact(p))?,
                dc: out(4).map(|(f, p)| f.exact(p))?,
                dd: out(5).map(|(f, p)| f.exact(p)),
                dz: out(6).map(|(f, p)| f.exact(p)),
                ddelta_bias: out(7).map(|(f, p)| f.exact(p)),
                dstate: out(8).map(|(f, p)| f.exact(p)),
            })
        };
        let scratch = make(&nowhere(count)).ok_or_else(wrong)?.scratch();
        ready(scratch, flops, move |cx, args| {
            let Some(s) = make(args) else { return };
            // SAFETY: the binder checked the arguments.
            unsafe { s.run(level, cx.pool, &cx.scratch) }
        })
    }))
}
