//! What is in a file of tensors.

use super::{Args, Format, pretty};
use crate::failure::{Failure, Result, readable};
use crate::show::count;
use rlx::formats::{Archive, Entry, List, Value};
use rlx::tools::print;
use serde_json::{Map, json};
use std::collections::BTreeMap;
use std::io::Write;

pub(super) fn show(args: &Args, file: &Archive, out: &mut impl Write) -> Result<()> {
    let name = args.file.display();
    if args.accuracy || args.stage.is_some() {
        return Err(Failure::call(format!("{name}: a file of tensors has no stages and computes nothing")));
    }
    let shown = match args.format {
        Format::Text => text(&name.to_string(), file),
        Format::Json => pretty(&object(&name.to_string(), file))?,
        Format::Dot | Format::Svg => {
            return Err(Failure::call(format!("{name}: tensors are no graph: use --format text or json")));
        }
    };
    Ok(out.write_all(shown.as_bytes())?)
}

/// Tensors and their bytes.
#[derive(Clone, Copy, Default)]
struct Sum {
    tensors: usize,
    bytes: u64,
}

impl Sum {
    fn add(&mut self, e: &Entry) {
        self.tensors += 1;
        self.bytes = self.bytes.saturating_add(e.bytes());
    }
}

fn total<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> Sum {
    let mut sum = Sum::default();
    entries.into_iter().for_each(|e| sum.add(e));
    sum
}

fn dtype(e: &Entry) -> String {
    e.dtype().map_or_else(|| e.stored().to_owned(), |d| d.to_string())
}

/// By dtype, the one with most bytes first.
fn by_dtype(file: &Archive) -> Vec<(String, Sum)> {
    let mut sums: BTreeMap<String, Sum> = BTreeMap::new();
    file.entries().iter().for_each(|e| sums.entry(dtype(e)).or_default().add(e));
    let mut sums: Vec<(String, Sum)> = sums.into_iter().collect();
    sums.sort_by_key(|(_, s)| std::cmp::Reverse(s.bytes));
    sums
}

/// By size: tensors of fewer than 4^k bytes, from the smallest k that there is to the largest.
fn by_size(file: &Archive) -> Vec<(u64, u64, Sum)> {
    let class = |e: &Entry| e.bytes().checked_ilog2().map_or(0, |log| log / 2 + 1);
    let classes = || file.entries().iter().map(class);
    let (Some(first), Some(last)) = (classes().min(), classes().max()) else { return Vec::new() };
    let bound = |k: u32| 4u64.checked_pow(k).unwrap_or(u64::MAX);
    let one = |k: u32| {
        let from = if k == 0 { 0 } else { bound(k - 1) };
        (from, bound(k), total(file.entries().iter().filter(|e| class(e) == k)))
    };
    (first..=last).map(one).collect()
}

fn bytes(n: u64) -> String {
    print::bytes(i64::try_from(n).unwrap_or(i64::MAX))
}

/// A bar of at most 40 characters for a part of a whole.
fn bar(part: u64, whole: u64) -> String {
    let len = (part as f64 / whole.max(1) as f64 * 40.0).ceil() as usize;
    "█".repeat(len.min(40))
}

fn text(name: &str, file: &Archive) -> String {
    let all = total(file.entries());
    let files = match file.files().len() {
        0 | 1 => String::new(),
        n => format!(" in {n} files"),
    };
    let (tensors, size) = (count(all.tensors, "tensor"), bytes(all.bytes));
    let mut out = format!("{}: {}{files}, {tensors}, {size}\n", readable(name), file.format());
    if !file.metadata().is_empty() {
        out += "\nmetadata\n";
        let rows = file.metadata().iter().map(|(key, value)| vec![readable(key), short(value)]);
        out += &table(&rows.collect::<Vec<_>>(), 1);
    }
    if !file.entries().is_empty() {
        out += "\ntensors\n";
        let rows = file
            .entries()
            .iter()
            .map(|e| vec![readable(e.name()), dtype(e), format!("{:?}", e.shape()), bytes(e.bytes())]);
        out += &table(&rows.collect::<Vec<_>>(), 3);
        out += "\nbytes by dtype\n";
        let sums = by_dtype(file);
        let rows = sums.iter().map(|(d, s)| {
            vec![d.clone(), count(s.tensors, "tensor"), bytes(s.bytes), bar(s.bytes, all.bytes)]
        });
        out += &table(&rows.collect::<Vec<_>>(), 3);
        out += "\ntensors by size\n";
        let sizes = by_size(file);
        let most = sizes.iter().map(|(_, _, s)| s.tensors).max().unwrap_or(0);
        let rows = sizes.iter().map(|(from, to, s)| {
            let range = format!("{} to {}", bytes(*from), bytes(*to));
            vec![range, count(s.tensors, "tensor"), bar(s.tensors as u64, most as u64)]
        });
        out += &table(&rows.collect::<Vec<_>>(), 2);
    }
    out
}

/// Rows in columns, all but the last of which are padded; none is wider than a screen.
fn table(rows: &[Vec<String>], padded: usize) -> String {
    const WIDEST: usize = 72;
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|r| r.get(column));
        cells.map(|c| c.chars().count()).max().unwrap_or(0).min(WIDEST)
    };
    let widths: Vec<usize> = (0..padded).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (i, cell) in row.iter().enumerate() {
            let width = widths.get(i).copied().unwrap_or(0);
            line += &format!("  {cell:width$}");
        }
        out += line.trim_end();
        out.push('\n');
    }
    out
}

/// A value on one line, long ones cut short.
fn short(value: &Value) -> String {
    const FEW: usize = 6;
    const LONG: usize = 100;
    let cut = |text: String| match text.char_indices().nth(LONG) {
        Some((at, _)) => format!("{} … ({} bytes)", text.get(..at).unwrap_or_default(), text.len()),
        None => text,
    };
    match value {
        Value::List(list) if list.len() > FEW => {
            let few: Vec<String> = (0..FEW).filter_map(|i| list.get(i)).map(|v| quoted(&v)).collect();
            format!("[{}, … {} in all]", readable(&cut(few.join(", "))), list.len())
        }
        value => readable(&cut(value.to_string())),
    }
}

fn quoted(value: &Value) -> String {
    match value {
        Value::Text(s) => format!("{s:?}"),
        other => other.to_string(),
    }
}

fn object(name: &str, file: &Archive) -> serde_json::Value {
    let sum = |s: &Sum| json!({"tensors": s.tensors, "bytes": s.bytes});
    let tensors = file.entries().iter().map(|e| {
        json!({
            "name": e.name(),
            "dtype": e.dtype().map(|d| d.to_string()),
            "stored": e.stored(),
            "shape": e.shape(),
            "bytes": e.bytes(),
        })
    });
    let sizes = by_size(file);
    let sizes = sizes
        .iter()
        .map(|(from, to, s)| json!({"from": from, "to": to, "tensors": s.tensors, "bytes": s.bytes}));
    let metadata: Map<String, _> = file.metadata().iter().map(|(k, v)| (k.clone(), json_value(v))).collect();
    json!({
        "file": name,
        "format": file.format().to_string().to_lowercase(),
        "files": file.files().iter().map(|p| p.display().to_string()).collect::<Vec<_>>(),
        "metadata": metadata,
        "tensors": tensors.collect::<Vec<_>>(),
        "total": sum(&total(file.entries())),
        "dtypes": by_dtype(file).iter().map(|(d, s)| (d.clone(), sum(s))).collect::<Map<_, _>>(),
        "sizes": sizes.collect::<Vec<_>>(),
    })
}

/// Floats that JSON has no number for are texts.
fn json_value(value: &Value) -> serde_json::Value {
    let float = |x: f64| if x.is_finite() { x.into() } else { serde_json::Value::from(x.to_string()) };
    match value {
        Value::U8(x) => (*x).into(),
        Value::I8(x) => (*x).into(),
        Value::U16(x) => (*x).into(),
        Value::I16(x) => (*x).into(),
        Value::U32(x) => (*x).into(),
        Value::I32(x) => (*x).into(),
        Value::U64(x) => (*x).into(),
        Value::I64(x) => (*x).into(),
        Value::F32(x) => float((*x).into()),
        Value::F64(x) => float(*x),
        Value::Bool(x) => (*x).into(),
        Value::Text(x) => x.clone().into(),
        Value::List(list) => json_list(list),
    }
}

fn json_list(list: &List) -> serde_json::Value {
    (0..list.len()).filter_map(|i| list.get(i)).map(|v| json_value(&v)).collect()
}
