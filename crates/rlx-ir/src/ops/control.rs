//! Control flow. Regions are closed functions: what they use from outside are further operands ("captures"), which
//! the builder finds by itself.

use crate::prelude::*;
use crate::func::{Func, Node, Output, ValueId};
use crate::op::Meaning;
use crate::transform::{Marks, Pruned, keep_outputs, keep_ports, pullback, reads, vmap_func, vmap_loop};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The types of the operands from position `from` on are those of the region's ports.
fn ports_fit(c: &Infer<'_>, n: usize, region: &Func, want: &[Type]) -> Result<()> {
    let got = region.port_types()?;
    if got.len() != want.len() {
        let text = format!("region {} has {} ports for {} operands", region.name, got.len(), want.len());
        return Err(c.fail(Code::Region, n, text));
    }
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        if g != w {
            let text = format!("port {i} of region {} is {g}, but gets {w}", region.name);
            return Err(c.fail(Code::Region, n, text));
        }
    }
    Ok(())
}

fn operand_types(c: &Infer<'_>, from: usize) -> Result<Vec<Type>> {
    (from..c.operands.len()).map(|i| c.ty(i).cloned()).collect()
}

fn with_leading(ty: &Type, n: &Dim) -> Type {
    ty.with_shape(std::iter::once(n.clone()).chain(ty.shape.iter().cloned()).collect::<Shape>())
}

/// The number of leading operands that an attribute counts, if there are as many.
fn counted(c: &Infer<'_>, n: usize, count: i64, of: usize) -> Result<usize> {
    usize::try_from(count)
        .ok()
        .filter(|k| *k <= of)
        .ok_or_else(|| c.fail(Code::Attribute, n, format!("{count} of {of} operands")))
}

fn is_float(x: &Var<'_>) -> bool {
    x.dtype().is_float()
}

/// The gradients of the float results, zeros where none has arrived.
fn float_cts<'g>(c: &VjpCx<'g>, results: std::ops::Range<usize>) -> Vec<Var<'g>> {
    results.filter(|i| is_float(&c.y(*i))).map(|i| c.dy(i)).collect()
}

/// Puts the gradients of the marked operands where they belong.
fn spread<'g>(marks: &[bool], grads: Vec<Var<'g>>) -> Grads<'g> {
    let mut grads = grads.into_iter();
    marks.iter().map(|m| if *m { grads.next() } else { None }).collect::<Vec<_>>().into()
}

fn marks(c: &VjpCx<'_>) -> Vec<bool> {
    (0..c.operands.len()).map(|i| c.wants(i) && is_float(&c.x(i))).collect()
}

/// The body of a scan that also stacks its first `n` ports, and the outputs that are these.
fn stacking_state(f: &Func, n: usize) -> (Func, Vec<usize>) {
    let mut f = f.clone();
    let mut at = Vec::new();
    let mut stacked: HashMap<ValueId, usize> =
        f.outputs.iter().enumerate().skip(n).map(|(i, o)| (o.value, i)).collect();
    let mut taken: HashSet<String> = f.outputs.iter().map(|o| o.name.clone()).collect();
    let mut names = (0..).map(|k| format!("saved{k}"));
    for value in f.ports.iter().take(n).map(|p| p.value).collect::<Vec<_>>() {
        at.push(*stacked.entry(value).or_insert_with(|| {
            let name = names.find(|name| taken.insert(name.clone())).unwrap_or_default();
            f.outputs.push(Output { name, value });
            f.outputs.len() - 1
        }));
    }
    (f, at)
}

/// The region of that index.
fn region(regions: &[Arc<Func>], i: usize) -> Result<&Arc<Func>> {
    regions.get(i).ok_or_else(|| Error::new(Code::Region, "a region is missing"))
}

/// What each result needs of an op whose regions share ports with its operands from `from` on and outputs with its
/// results; the operands before them are always needed.
fn reads_shared(node: &Node, from: usize) -> Result<Vec<Marks>> {
    let mut out = vec![(0..from).collect::<Marks>(); node.results.len()];
    for r in &node.regions {
        for (all, m) in out.iter_mut().zip(reads(r)?) {
            m.iter().for_each(|i| all.insert(i + from));
        }
    }
    Ok(out)
}

/// What remains of an op whose regions share ports with its operands from `from` on and outputs with its results.
fn prune_shared(node: &Node, needed: &[bool], from: usize) -> Result<Pruned> {
    let mut regions = Vec::new();
    let mut used = vec![false; node.operands.len()];
    used.iter_mut().take(from).for_each(|u| *u = true);
    for r in &node.regions {
        let (r, flags) = keep_outputs(r, needed)?;
        used.iter_mut().skip(from).zip(&flags).for_each(|(u, f)| *u |= f);
        regions.push(r);
    }
    let kept = used.get(from..).unwrap_or_default();
    let regions = regions.iter().map(|r| keep_ports(r, kept).map(Arc::new)).collect::<Result<_>>()?;
    Ok(Pruned {
        attrs: node.attrs.clone(),
        operands: marked(&used),
        results: marked(needed),
        regions,
    })
}

ops! {
    /// Runs the region on the operands. With `checkpoint`, its gradient computes the region again instead of keeping
    /// what is inside.
    call: Call(args: many Free) { checkpoint: bool = false } -> {results};
    regions = ["body"];
    constraints = ["the ports of the body have the types of the operands"];
    infer = |c, _| {
        ports_fit(c, 1, c.region(0)?, &operand_types(c, 0)?)?;
        c.region(0)?.output_types()
    };
    step = |_, _| Ok(Step::Inline);
    meaning = Meaning::Region;
    vjp = |c, a| {
        let marks = marks(c);
        let region = region(&c.regions, 0)?;
        let back = Arc::new(pullback(region, &marks)?);
        let mut args = c.given();
        let mut cts = float_cts(c, 0..c.results.len());
        if a.checkpoint {
            // Without the barrier the second computation could be merged with the first.
            let all: Vec<Var<'_>> = args.iter().chain(&cts).copied().collect();
            let fenced = c.g.barrier(&all);
            cts = fenced.get(args.len()..).unwrap_or_default().to_vec();
            args = fenced.into_iter().take(args.len()).collect();
        }
        args.extend(cts);
        let call = Call { checkpoint: false }.to_values();
        let grads = c.g.emit(Call::DEF, call, args.into_iter().map(Some).collect(), vec![back]);
        Ok(spread(&marks, grads))
    };
    vmap = |c, _| {
        let region = region(&c.regions, 0)?;
        let batched = Arc::new(vmap_func(region, &c.batched, &c.size)?);
        Ok(c.g.emit(c.def, c.attrs.clone(), c.operands.clone(), vec![batched]))
    };
    reads = |node| reads_shared(node, 0);
    prune = |node, needed| prune_shared(node, needed, 0);
    samples = |s| {
        s.text("twice", "graph t { input x: DT[3] input y: DT[3] z, w = call(x, y) body (a: DT[3], b: DT[3]) { p = mul(a, b) q = add(p, a) yield r0 = q, r1 = p } output z = z output w = w }");
        s.text("checkpoint", "graph t { input x: DT[3] z = call(x) {checkpoint: true} body (a: DT[3]) { p = mul(a, a) q = mul(p, a) yield r0 = q } output z = z }");
    };

    /// Runs `body` on the operands; the gradient is what `backward` makes of the operands, the results and the
    /// gradients of the float results: one result for each float operand.
    custom_vjp: CustomVjp(args: many Free) -> {results};
    regions = ["body", "backward"];
    constraints = [
        "the ports of the body have the types of the operands",
        "the ports of backward are the operands, the results and a gradient for each float result",
        "backward gives a gradient for each float operand"
    ];
    infer = |c, _| {
        let (args, body) = (operand_types(c, 0)?, c.region(0)?);
        ports_fit(c, 1, body, &args)?;
        let results = body.output_types()?;
        let floats = |t: &[Type]| t.iter().filter(|t| t.dtype.is_float()).cloned().collect::<Vec<_>>();
        let ports: Vec<Type> = args.iter().cloned().chain(results.iter().cloned()).chain(floats(&results)).collect();
        ports_fit(c, 2, c.region(1)?, &ports)?;
        if c.region(1)?.output_types()? != floats(&args) {
            return Err(c.fail(Code::Region, 3, "backward's results do not fit"));
        }
        Ok(results)
    };
    step = |_, _| Ok(Step::Inline);
    meaning = Meaning::Region;
    vjp = |c, _| {
        let backward = region(&c.regions, 1)?;
        let args: Vec<Var<'_>> =
            c.given().into_iter().chain(c.results.iter().copied()).chain(float_cts(c, 0..c.results.len())).collect();
        let grads = c.g.inline(backward, &args)?;
        let floats: Vec<bool> = c.given().iter().map(is_float).collect();
        Ok(spread(&floats, grads))
    };
    vmap = |c, _| {
        let batched = |f: &Arc<Func>| vmap_func(f, &vec![true; f.ports.len()], &c.size).map(Arc::new);
        let regions = c.regions.iter().map(batched).collect::<Result<Vec<_>>>()?;
        Ok(c.g.emit(c.def, c.attrs.clone(), c.all_batched(), regions))
    };
    samples = |s| s.text("clipped", "graph t { input x: DT[3] z = custom_vjp(x) body (a: DT[3]) { p = mul(a, a) yield r0 = p } backward (a: DT[3], p: DT[3], d: DT[3]) { q = add(a, a) r = mul(q, d) yield r0 = r } output z = z }");

    /// The operands, unchanged; no rewrite may look through it.
    barrier: Barrier(xs: many Free) -> [ys];
    infer = |c, _| operand_types(c, 0);
    step = |_, _| Ok(Step::Same);
    eval = |e, _| Ok(e.given().into_iter().cloned().collect());
    vjp = |c, _| Ok((0..c.operands.len()).map(|i| is_float(&c.x(i)).then(|| c.dy(i))).collect::<Vec<_>>().into());
    vmap = |c, _| Ok(c.again(Vec::new(), c.all_batched()));
    reads = |node| Ok((0..node.results.len()).map(|i| Marks::from_iter([i])).collect());
    prune = |node, needed| Ok(Pruned {
        attrs: node.attrs.clone(), operands: marked(needed), results: marked(needed), regions: Vec::new(),
    });
    samples = |s| s.case("two", Barrier {}, [f([2]), f([3, 1])]);

    /// Runs `then` on the operands behind the predicate where it holds, else `else`. Only the one taken is run.
    r#if: If(predicate: Bool, args: many Free) -> {results};
    regions = ["then", "else"];
    constraints = ["the predicate has no axes", "the ports of both regions have the types of the operands", "both regions give the same types"];
    infer = |c, _| {
        c.rank(1, 0, 0)?;
        let args = operand_types(c, 1)?;
        ports_fit(c, 2, c.region(0)?, &args)?;
        ports_fit(c, 2, c.region(1)?, &args)?;
        let (a, b) = (c.region(0)?.output_types()?, c.region(1)?.output_types()?);
        if a != b {
            return Err(c.fail(Code::Region, 3, format!("then gives {a:?}, else gives {b:?}")));
        }
        Ok(a)
    };
    step = |_, _| Ok(Step::If);
    eval = |e, _| {
        let args = e.given().into_iter().skip(1).cloned().collect();
        e.region(if e.x(0)?.flat(0).truth() { 0 } else { 1 }, args)
    };
    vjp = |c, _| {
        let marks = marks(c);
        let inner = marks.get(1..).unwrap_or_default();
        let regions =
            c.regions.iter().map(|r| pullback(r, inner).map(Arc::new)).collect::<Result<Vec<_>>>()?;
        let operands = c.given().into_iter().chain(float_cts(c, 0..c.results.len())).map(Some).collect();
        Ok(spread(&marks, c.g.emit(c.def, Vec::new(), operands, regions)))
    };
    vmap = |c, _| {
        let inner = c.batched.get(1..).unwrap_or_default();
        if !c.is_batched(0) {
            let regions =
                c.regions.iter().map(|r| vmap_func(r, inner, &c.size).map(Arc::new)).collect::<Result<Vec<_>>>()?;
            return Ok(c.g.emit(c.def, Vec::new(), c.operands.clone(), regions));
        }
        let args = c.given().split_off(1);
        let mut branches = Vec::new();
        for r in &c.regions {
            branches.push(c.g.inline_batched(r, &args, inner, &c.size)?);
        }
        let mut branches = branches.into_iter();
        let (then, other) = (branches.next().unwrap_or_default(), branches.next().unwrap_or_default());
        Ok(then.iter().zip(other).map(|(a, b)| choose(c.x(0), *a, b)).collect())
    };
    reads = |node| reads_shared(node, 1);
    prune = |node, needed| prune_shared(node, needed, 1);
    onnx = [rule("If", 1, onnx::control::branch)];
    samples = |s| s.text("branch", "graph t { input p: bool[] input x: DT[3] z = if(p, x) then (a: DT[3]) { q = mul(a, a) yield r0 = q } else (a: DT[3]) { q = neg(a) yield r0 = q } output z = z }");

    /// Runs `body` on the first `carries` operands as long as `cond` gives true, at most `max` times; the body's
    /// results are the next operands. The operands behind them are the same for every turn. With `save`, further
    /// results are the number of turns (i64) and, for each carry, its values before each turn (zeros behind the last).
    r#while: While(args: many Free) { carries: i64, max: i64, save: bool = false } -> {results};
    regions = ["cond", "body"];
    constraints = [
        "carries counts operands", "max >= 0", "the ports of both regions have the types of the operands",
        "cond gives one bool without axes", "body gives the types of the carries"
    ];
    infer = |c, a| {
        let args = operand_types(c, 0)?;
        let n = counted(c, 1, a.carries, args.len())?;
        if a.max < 0 {
            return Err(c.fail(Code::Attribute, 2, format!("max is {}", a.max)));
        }
        ports_fit(c, 3, c.region(0)?, &args)?;
        ports_fit(c, 3, c.region(1)?, &args)?;
        if c.region(0)?.output_types()? != [Type::new(DType::Bool, vec![])] {
            return Err(c.fail(Code::Region, 4, "cond gives something else"));
        }
        let carries = args.get(..n).unwrap_or_default().to_vec();
        if c.region(1)?.output_types()? != carries {
            return Err(c.fail(Code::Region, 5, format!("the carries are {carries:?}")));
        }
        let mut out = carries.clone();
        if a.save {
            out.push(Type::new(DType::I64, vec![]));
            out.extend(carries.iter().map(|t| with_leading(t, &Dim::constant(a.max))));
        }
        Ok(out)
    };
    step = |_, a| Ok(Step::While { carries: a.carries as usize, max: a.max, save: a.save });
    eval = |e, a| {
        let mut args: Vec<Arr> = e.given().into_iter().cloned().collect();
        let n = a.carries as usize;
        let mut saved: Vec<Vec<Arr>> = vec![Vec::new(); n];
        let mut turns = 0i64;
        while turns < a.max && e.region(0, args.clone())?.first().is_some_and(|t| t.flat(0).truth()) {
            if a.save {
                saved.iter_mut().zip(&args).for_each(|(s, c)| s.push(c.clone()));
            }
            let next = e.region(1, args.clone())?;
            args.iter_mut().zip(next).take(n).for_each(|(a, b)| *a = b);
            turns += 1;
        }
        let mut out: Vec<Arr> = args.into_iter().take(n).collect();
        if a.save {
            out.push(e.make(n, |_| Num::I(turns as i128))?);
            for (k, rows) in saved.iter().enumerate() {
                out.push(e.make(n + 1 + k, |ix| match ix.split_first() {
                    Some((i, rest)) => rows.get(*i).map_or(Num::I(0), |r| r.at(rest)),
                    None => Num::I(0),
                })?);
            }
        }
        Ok(out)
    };
    vjp = while_vjp;
    vmap = |c, a| {
        let n = a.carries as usize;
        if a.save {
            return vmap_loop(c);
        }
        let flags: Vec<bool> = (0..c.operands.len()).map(|i| i < n || c.is_batched(i)).collect();
        let args: Vec<Var<'_>> = (0..c.operands.len()).map(|i| if i < n { c.bx(i) } else { c.x(i) }).collect();
        let (cond, body) = (region(&c.regions, 0)?, region(&c.regions, 1)?);
        let g = c.g;
        Ok(g.while_loop(args.get(..n).unwrap_or_default(), a.max, |carries| {
            let all: Vec<Var<'_>> = carries.iter().chain(args.get(n..).unwrap_or_default()).copied().collect();
            match g.inline_batched(cond, &all, &flags, &c.size) {
                Ok(p) => p.first().map_or_else(|| g.poison(), |p| p.cast(DType::I64).sum(vec![0i64], false).cast(DType::Bool)),
                Err(e) => g.fail(e),
            }
        }, |carries| {
            let all: Vec<Var<'_>> = carries.iter().chain(args.get(n..).unwrap_or_default()).copied().collect();
            let (p, next) = (g.inline_batched(cond, &all, &flags, &c.size), g.inline_batched(body, &all, &flags, &c.size));
            match (p, next) {
                (Ok(p), Ok(next)) => {
                    let p = p.first().copied().unwrap_or_else(|| g.poison());
                    next.into_iter().zip(carries).map(|(new, old)| choose(p, new, *old)).collect()
                }
                (Err(e), _) | (_, Err(e)) => vec![g.fail(e)],
            }
        }))
    };
    reads = while_reads;
    prune = while_prune;
    onnx = [rule("Loop", 1, onnx::control::repeat)];
    samples = |s| s.text("power", "graph t { input x: DT[2] input n: i32[] y, k = while(x, n, x) {carries: 2, max: 5} cond (a: DT[2], i: i32[], b: DT[2]) { z = constant() {value: i32[] [0]} p = greater(i, z) yield r0 = p } body (a: DT[2], i: i32[], b: DT[2]) { q = mul(a, b) one = constant() {value: i32[] [1]} j = sub(i, one) yield r0 = q, r1 = j } output y = y }");

    /// Runs the body `length` times. The first `carries` operands are the state, which each turn replaces; of the
    /// next `xs` operands each turn sees one entry along axis 0; the rest is the same for every turn. Results: the
    /// last state, then what the body gives beyond the state, stacked along a new axis 0. With `reverse` the turns go
    /// from the last entry to the first, and stack accordingly.
    scan: Scan(args: many Free) { carries: i64, xs: i64, length: Dim, reverse: bool = false } -> {results};
    regions = ["body"];
    constraints = [
        "carries and xs count operands", "axis 0 of each scanned operand is length",
        "the ports of the body have the types of the state, of an entry of each scanned operand, and of the rest",
        "the body gives the types of the state first"
    ];
    infer = |c, a| {
        let args = operand_types(c, 0)?;
        let n = counted(c, 1, a.carries, args.len())?;
        let m = counted(c, 1, a.xs, args.len() - n)?;
        Type::new(DType::Bool, vec![a.length.clone()]).check()?;
        let mut ports = args.clone();
        for (i, t) in ports.iter_mut().enumerate().skip(n).take(m) {
            c.rank_at_least(2, i, 1)?;
            c.expect_dim(2, i, 0, &a.length)?;
            t.shape.remove(0);
        }
        let body = c.region(0)?;
        ports_fit(c, 3, body, &ports)?;
        let outs = body.output_types()?;
        if outs.get(..n) != args.get(..n) {
            return Err(c.fail(Code::Region, 4, format!("the body gives {outs:?}")));
        }
        Ok(outs.iter().enumerate().map(|(i, t)| if i < n { t.clone() } else { with_leading(t, &a.length) }).collect())
    };
    step = |_, a| Ok(Step::Scan { carries: a.carries as usize, xs: a.xs as usize, length: a.length, reverse: a.reverse });
    eval = |e, a| {
        let args: Vec<&Arr> = e.given();
        let (n, m) = (a.carries as usize, a.xs as usize);
        let length = e.n(&a.length)?;
        let mut state: Vec<Arr> = args.iter().take(n).map(|a| (*a).clone()).collect();
        let mut stacks: Vec<Vec<Arr>> = vec![Vec::new(); e.outs() - n];
        for t in 0..length {
            let i = if a.reverse { length - 1 - t } else { t };
            let mut turn = state.clone();
            for x in args.iter().skip(n).take(m) {
                turn.push(x.row(i)?);
            }
            turn.extend(args.iter().skip(n + m).map(|a| (*a).clone()));
            let mut next = e.region(0, turn)?;
            let ys = next.split_off(n);
            state = next;
            stacks.iter_mut().zip(ys).for_each(|(s, y)| s.push(y));
        }
        for (k, mut rows) in stacks.into_iter().enumerate() {
            if a.reverse {
                rows.reverse();
            }
            let (dtype, shape) = e.out(n + k)?;
            state.push(Arr::stack(dtype, shape.get(1..).unwrap_or_default(), &rows)?);
        }
        Ok(state)
    };
    vjp = scan_vjp;
    vmap = |c, a| {
        let (n, m) = (a.carries as usize, a.xs as usize);
        let body = region(&c.regions, 0)?;
        let flags: Vec<bool> = (0..c.operands.len()).map(|i| i < n || c.is_batched(i)).collect();
        let operand = |i: usize| match c.opt(i) {
            Some(_) if i < n => Some(c.bx(i)),
            Some(x) if i < n + m && c.is_batched(i) => Some(x.move_axis(0, 1)),
            x => x,
        };
        let operands = (0..c.operands.len()).map(operand).collect();
        let region = Arc::new(vmap_func(body, &flags, &c.size)?);
        let out = c.g.emit(c.def, c.attrs.clone(), operands, vec![region]);
        Ok(out.into_iter().enumerate().map(|(i, y)| if i < n { y } else { y.move_axis(1, 0) }).collect())
    };
    reads = scan_reads;
    prune = scan_prune;
    onnx = [rule("Scan", 8, onnx::control::scan_batch), rule("Scan", 9, onnx::control::scan)];
    samples = |s| {
        s.text("running", "graph t { input c: DT[2] input x: DT[4, 2] input k: DT[2] y, ys = scan(c, x, k) {carries: 1, xs: 1, length: 4} body (a: DT[2], b: DT[2], w: DT[2]) { p = mul(a, w) q = add(p, b) r = mul(q, q) yield r0 = q, r1 = r } output y = y output ys = ys }");
        s.text("reverse", "graph t { input c: DT[] input x: DT[3] y, ys = scan(c, x) {carries: 1, xs: 1, length: 3, reverse: true} body (a: DT[], b: DT[]) { p = mul(a, b) q = add(p, b) yield r0 = q, r1 = p } output y = y output ys = ys }");
        s.text("nothing", "graph t { input c: DT[2] input x: DT[0, 2] y = scan(c, x) {carries: 1, xs: 1, length: 0} body (a: DT[2], b: DT[2]) { p = mul(a, b) yield r0 = p } output y = y }");
    };
}

/// `a` where the batched predicate holds, else `b`; the predicate has only the batch axis.
fn choose<'g>(p: Var<'g>, a: Var<'g>, b: Var<'g>) -> Var<'g> {
    let ones = std::iter::repeat_n(Dim::constant(1), a.rank().saturating_sub(1));
    let shape: Shape = p.shape().into_iter().chain(ones).collect();
    p.reshape(shape).select(a, b)
}

/// The loop keeps its state before each turn; a second loop walks the turns backwards.
fn scan_vjp<'g>(c: &VjpCx<'g>, a: &Scan) -> Result<Grads<'g>> {
    let (n, m) = (a.carries as usize, a.xs as usize);
    let body = region(&c.regions, 0)?;
    let (saving, at) = stacking_state(body, n);
    let results = c.g.extend_node(c.node, c.attrs.clone(), vec![Arc::new(saving)])?;
    let saved: Vec<Var<'g>> = at.iter().filter_map(|i| results.get(*i).copied()).collect();

    // Gradients flow to every float carry, to the wanted scanned operands and to the wanted rest.
    let marks: Vec<bool> =
        (0..c.operands.len()).map(|i| is_float(&c.x(i)) && (i < n || c.wants(i))).collect();
    let back = pullback(body, &marks)?;
    let count = |range: std::ops::Range<usize>| marks.get(range).unwrap_or_default().iter().filter(|m| **m).count();
    let (states, entries, rest) = (count(0..n), count(n..n + m), count(n + m..marks.len()));

    let mut init: Vec<Var<'g>> = (0..n).filter(|i| is_float(&c.x(*i))).map(|i| c.dy(i)).collect();
    init.extend((n + m..marks.len()).filter(|i| marks.get(*i) == Some(&true)).map(|i| c.x(i).zeros_like()));
    let xs: Vec<Var<'g>> = (n..n + m).map(|i| c.x(i)).collect();
    let dys = float_cts(c, n..c.results.len());
    let scanned: Vec<Var<'g>> = saved.iter().chain(&xs).chain(&dys).copied().collect();
    let fixed: Vec<Var<'g>> = (n + m..c.operands.len()).map(|i| c.x(i)).collect();

    let (last, stacked) = c.g.scan(&init, &scanned, a.length.clone(), !a.reverse, |carry, turn| {
        let (inputs, dy) = turn.split_at(n + m);
        let args: Vec<Var<'_>> =
            inputs.iter().chain(&fixed).chain(carry.iter().take(states)).chain(dy).copied().collect();
        match c.g.inline(&back, &args) {
            Ok(grads) => {
                let mut next: Vec<Var<'_>> = grads.iter().take(states).copied().collect();
                let sums = carry.iter().skip(states).zip(grads.iter().skip(states + entries));
                next.extend(sums.map(|(sum, g)| *sum + *g));
                (next, grads.iter().skip(states).take(entries).copied().collect())
            }
            Err(e) => (vec![c.g.fail(e)], Vec::new()),
        }
    });
    let grads: Vec<Var<'g>> = last.iter().take(states).chain(&stacked).chain(last.iter().skip(states).take(rest)).copied().collect();
    Ok(spread(&marks, grads))
}

/// The loop keeps its state before each turn and the number of turns; a second loop counts down.
fn while_vjp<'g>(c: &VjpCx<'g>, a: &While) -> Result<Grads<'g>> {
    let n = a.carries as usize;
    let body = region(&c.regions, 1)?;
    let saving = While { save: true, ..a.clone() };
    let results = c.g.extend_node(c.node, saving.to_values(), c.regions.clone())?;
    let turns = results.get(n).copied().unwrap_or_else(|| c.g.poison());
    let saved: Vec<Var<'g>> = results.iter().skip(n + 1).copied().collect();

    let marks: Vec<bool> =
        (0..c.operands.len()).map(|i| is_float(&c.x(i)) && (i < n || c.wants(i))).collect();
    let back = pullback(body, &marks)?;
    let states = marks.get(..n).unwrap_or_default().iter().filter(|m| **m).count();
    let fixed: Vec<Var<'g>> = (n..c.operands.len()).map(|i| c.x(i)).collect();

    // Of a loop that saved its state already, gradients may also have reached what it saved.
    let saved_cts: Vec<Option<Var<'g>>> =
        (0..n).filter(|k| is_float(&c.x(*k))).map(|k| c.cts.get(n + 1 + k).copied().flatten()).collect();
    let mut init = vec![turns];
    init.extend((0..n).filter(|i| is_float(&c.x(*i))).map(|i| c.dy(i)));
    init.extend((n..marks.len()).filter(|i| marks.get(*i) == Some(&true)).map(|i| c.x(i).zeros_like()));
    let out = c.g.while_loop(
        &init,
        a.max,
        |carry| carry.first().map_or_else(|| c.g.poison(), |i| i.greater(0.0)),
        |carry| {
            let Some((i, carry)) = carry.split_first() else { return Vec::new() };
            let i = *i - 1.0;
            let before = saved.iter().map(|s| s.gather(i, 0));
            let args: Vec<Var<'_>> = before.chain(fixed.iter().copied()).chain(carry.iter().take(states).copied()).collect();
            match c.g.inline(&back, &args) {
                Ok(grads) => {
                    let mut next = vec![i];
                    let state = grads.iter().take(states).zip(&saved_cts);
                    next.extend(state.map(|(g, ct)| ct.map_or(*g, |ct| *g + ct.gather(i, 0))));
                    next.extend(carry.iter().skip(states).zip(grads.iter().skip(states)).map(|(s, g)| *s + *g));
                    next
                }
                Err(e) => vec![c.g.fail(e)],
            }
        },
    );
    Ok(spread(&marks, out.into_iter().skip(1).collect()))
}

/// What a loop reads over all turns, given what each of `wanted` reads in a turn, and each state's `next`: a state that
/// is read must be kept up to date, from its start on.
fn over_all_turns(wanted: Vec<Marks>, next: &[Marks]) -> Vec<Marks> {
    let mut states = next.to_vec();
    states.iter_mut().enumerate().for_each(|(k, m)| m.insert(k));
    // Warshall: after round k, paths through the first k states are known.
    for k in 0..states.len() {
        let through = states.get(k).cloned().unwrap_or_default();
        states.iter_mut().filter(|m| m.has(k)).for_each(|m| m.join(&through));
    }
    let close = |turn: Marks| {
        let mut all = turn.clone();
        turn.iter().filter_map(|i| states.get(i)).for_each(|m| all.join(m));
        all
    };
    wanted.into_iter().map(close).collect()
}

/// The states themselves: what to pass to [`over_all_turns`] for a loop's last states.
fn own_states(n: usize) -> impl Iterator<Item = Marks> {
    (0..n).map(|k| Marks::from_iter([k]))
}

fn scan_reads(node: &Node) -> Result<Vec<Marks>> {
    let n = node.typed::<Scan>()?.carries as usize;
    let next = reads(region(&node.regions, 0)?)?;
    let wanted = own_states(n).chain(next.iter().skip(n).cloned()).collect();
    Ok(over_all_turns(wanted, next.get(..n).unwrap_or_default()))
}

/// The condition decides about all results; what is saved of a state reads what the state reads.
fn while_reads(node: &Node) -> Result<Vec<Marks>> {
    let a: While = node.typed()?;
    let n = a.carries as usize;
    let asked = reads(region(&node.regions, 0)?)?.into_iter().next().unwrap_or_default();
    let with_asked = |mut m: Marks| {
        m.join(&asked);
        m
    };
    let mut wanted: Vec<Marks> = own_states(n).map(with_asked).collect();
    if a.save {
        wanted.push(asked.clone());
        wanted.extend(own_states(n).map(with_asked));
    }
    Ok(over_all_turns(wanted, &reads(region(&node.regions, 1)?)?))
}

/// The states that the needed results read.
fn needed_states(needed: &[bool], reads: &[Marks], n: usize) -> Vec<bool> {
    let mut all = Marks::default();
    needed.iter().zip(reads).filter(|(n, _)| **n).for_each(|(_, m)| all.join(m));
    (0..n).map(|i| all.has(i)).collect()
}

/// Drops state that neither a result nor, turn by turn, the condition or what is needed reads.
fn while_prune(node: &Node, needed: &[bool]) -> Result<Pruned> {
    let a: While = node.typed()?;
    let n = a.carries as usize;
    let keep = needed_states(needed, &while_reads(node)?, n);
    let (cond, asked) = keep_outputs(region(&node.regions, 0)?, &[true])?;
    let (body, used) = keep_outputs(region(&node.regions, 1)?, &keep)?;
    let stays = |i: usize, u: (&bool, &bool)| keep.get(i).copied().unwrap_or(*u.0 || *u.1);
    let ports: Vec<bool> = used.iter().zip(&asked).enumerate().map(|(i, u)| stays(i, u)).collect();
    let mut results = keep.clone();
    if a.save {
        results.push(true);
        results.extend(&keep);
    }
    Ok(Pruned {
        attrs: While { carries: marked(&keep).len() as i64, ..a }.to_values(),
        operands: marked(&ports),
        results: marked(&results),
        regions: vec![Arc::new(keep_ports(&cond, &ports)?), Arc::new(keep_ports(&body, &ports)?)],
    })
}

/// The positions of the marks.
fn marked(marks: &[bool]) -> Vec<usize> {
    marks.iter().enumerate().filter(|(_, m)| **m).map(|(i, _)| i).collect()
}

/// Drops stacked results, then state, that nobody needs: neither a result nor, turn by turn, what is needed.
fn scan_prune(node: &Node, needed: &[bool]) -> Result<Pruned> {
    let a: Scan = node.typed()?;
    let (n, m) = (a.carries as usize, a.xs as usize);
    let mut keep = needed_states(needed, &scan_reads(node)?, n);
    let states = marked(&keep).len();
    keep.extend(needed.iter().skip(n));
    let (body, used) = keep_outputs(region(&node.regions, 0)?, &keep)?;
    // A kept state stays as a port even if the body only writes it.
    let ports: Vec<bool> = keep.iter().take(n).chain(used.iter().skip(n)).copied().collect();
    let xs = ports.iter().skip(n).take(m).filter(|p| **p).count();
    Ok(Pruned {
        attrs: Scan { carries: states as i64, xs: xs as i64, ..a }.to_values(),
        operands: marked(&ports),
        results: marked(&keep),
        regions: vec![Arc::new(keep_ports(&body, &ports)?)],
    })
}
