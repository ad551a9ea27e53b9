//! `rlx inspect --accuracy`: the worst error of each output against the oracle.

use super::Args;
use crate::compare::errors;
use crate::data::{Subject, bound, gather_or_make};
use crate::engine::ready;
use crate::failure::Result;
use rlx::{CompileOptions, Device, Options, Tensor, eval};
use std::io::Write;

pub(super) fn accuracy(
    args: &Args,
    subject: &Subject,
    device: Device,
    options: &CompileOptions,
    out: &mut impl Write,
) -> Result<()> {
    let f = &subject.func;
    let data = gather_or_make(subject, args.inputs.as_deref(), &args.sizes)?;
    let given: Vec<(&str, &Tensor)> = data.iter().map(|(n, t)| (n.as_str(), t)).collect();
    let ready = ready(f, device, options, &data)?;
    let got = ready.exe.run(&ready.inputs)?;
    let want = eval(f, &given, &Options::default())?;
    let sizes: Vec<String> = bound(f, &data).iter().map(|(n, v)| format!(", {n} = {v}")).collect();
    let from = if args.inputs.is_some() { "given" } else { "random" };
    writeln!(
        out,
        "{} on {device} in {} with {from} inputs{}; relative errors are to the larger of the element and a tenth of the largest",
        f.name.replace(char::is_control, " "),
        args.precision.name(),
        sizes.concat()
    )?;
    let width = want.iter().map(|(n, _)| n.chars().count()).max().unwrap_or(0).max(6);
    writeln!(
        out,
        "{:width$}  {:>9}  {:>9}  {:>10}  worst element",
        "output", "relative", "absolute", "cosine"
    )?;
    for ((name, want), (_, got)) in want.iter().zip(got.iter()) {
        let e = errors(want, got)?;
        let worst =
            e.worst.map_or("all are equal".into(), |(i, x, y)| format!("{i}: {y:?}, the oracle says {x:?}"));
        writeln!(
            out,
            "{name:width$}  {:>9.2e}  {:>9.2e}  {:>10.8}  {worst}",
            e.relative, e.absolute, e.cosine
        )?;
    }
    Ok(())
}
