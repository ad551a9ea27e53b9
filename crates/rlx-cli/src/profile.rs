//! What each step of a run took: a table for people, a trace for Perfetto and chrome://tracing.

use crate::engine::{Ready, engine};
use crate::failure::Result;
use rlx::tools::Roofline;
use rlx::{CompileOptions, Precision, Profile, Timed};
use serde_json::{Value, json};
use std::fmt::Write;
use std::time::{Duration, Instant};

/// The profile of a run, against what the machine can do.
pub(crate) struct Report {
    name: String,
    run: Profile,
    runs: usize,
    threads: usize,
    level: String,
    precision: Precision,
    roofline: Roofline,
}

/// Runs are repeated for so long, and so often; the fastest is kept.
const PATIENCE: Duration = Duration::from_millis(500);
const RUNS: usize = 20;

impl Report {
    pub(crate) fn measure(ready: &Ready<'_>, options: &CompileOptions) -> Result<Report> {
        let engine = engine(options)?;
        let began = Instant::now();
        let mut best: Option<Profile> = None;
        let mut runs = 0;
        while runs < RUNS && (runs == 0 || began.elapsed() < PATIENCE) {
            let (_, p) = ready.exe.profile(&ready.inputs)?;
            runs += 1;
            if best.as_ref().is_none_or(|b| p.total < b.total) {
                best = Some(p);
            }
        }
        Ok(Report {
            name: ready.exe.program().name.replace(char::is_control, " "),
            run: best.unwrap_or_default(),
            runs,
            threads: engine.threads(),
            level: engine.level().to_string(),
            precision: options.precision,
            roofline: Roofline::measure(&engine, options.precision),
        })
    }

    /// What part of the machine's limit a step reached, in percent.
    fn percent(&self, t: &Timed) -> f64 {
        match t.time.as_secs_f64() {
            0.0 => 0.0,
            s => 100.0 * self.roofline.seconds(t.flops, t.bytes) / s,
        }
    }

    fn limits(&self) -> String {
        let set = |(bytes, rate): &(usize, f64)| {
            let size = rlx::tools::print::bytes(i64::try_from(*bytes).unwrap_or(i64::MAX));
            format!("{:.0} GB/s within {size}", rate / 1e9)
        };
        let reads: Vec<String> = self.roofline.bandwidth.iter().map(set).collect();
        let precision = match self.precision {
            Precision::F32 => "f32",
            Precision::Bf16 => "bf16",
        };
        format!("{:.0} GFLOP/s in {precision}; reads {}", self.roofline.flops / 1e9, reads.join(", "))
    }

    pub(crate) fn table(&self) -> String {
        let total = self.run.total.as_secs_f64();
        let mut out = format!(
            "{}: {:.3} ms, the best of {} runs, {} threads, {}\nlimits: {}\n\n",
            self.name,
            1e3 * total,
            self.runs,
            self.threads,
            self.level,
            self.limits()
        );
        let heads = ["step", "ms", "% run", "GFLOP/s", "GB/s", "% limit"];
        let _ = writeln!(
            out,
            "{:>5} {:>10} {:>6} {:>9} {:>8} {:>7}  what",
            heads[0], heads[1], heads[2], heads[3], heads[4], heads[5]
        );
        let mut line = |step: &str, t: &Timed| {
            let s = t.time.as_secs_f64();
            let per = |x: f64, by: f64| if by > 0.0 { x / by } else { 0.0 };
            let _ = writeln!(
                out,
                "{step:>5} {:>10.4} {:>6.1} {:>9.2} {:>8.2} {:>7.1}  {}",
                1e3 * s,
                per(100.0 * s, total),
                per(t.flops as f64 / 1e9, s),
                per(t.bytes as f64 / 1e9, s),
                self.percent(t),
                short(&t.label)
            );
        };
        for (i, t) in self.run.calls.iter().enumerate() {
            line(&i.to_string(), t);
        }
        let sum = |f: &dyn Fn(&Timed) -> u64| self.run.calls.iter().map(f).fold(0u64, u64::saturating_add);
        let least: f64 = self.run.calls.iter().map(|t| self.roofline.seconds(t.flops, t.bytes)).sum();
        let all = Timed {
            label: String::new(),
            start: Duration::ZERO,
            time: self.run.total,
            flops: sum(&|t| t.flops),
            bytes: sum(&|t| t.bytes),
        };
        let per = |x: f64| if total > 0.0 { x / total } else { 0.0 };
        let _ = writeln!(
            out,
            "  all {:>10.4} {:>6.1} {:>9.2} {:>8.2} {:>7.1}",
            1e3 * total,
            100.0,
            per(all.flops as f64 / 1e9),
            per(all.bytes as f64 / 1e9),
            per(100.0 * least)
        );
        out
    }

    /// The trace: an event for each step and one for the run, in microseconds.
    pub(crate) fn trace(&self) -> String {
        let micros = |d: Duration| d.as_secs_f64() * 1e6;
        let event = |name: &str, cat: &str, ts: Duration, dur: Duration, args: Value| json!({"name": name, "cat": cat, "ph": "X", "ts": micros(ts), "dur": micros(dur), "pid": 1, "tid": 1, "args": args});
        let named = |what: &str, name: &str| json!({"name": what, "ph": "M", "pid": 1, "tid": 1, "args": {"name": name}});
        let mut events = vec![
            named("process_name", "rlx"),
            named("thread_name", &format!("cpu, {} threads, {}", self.threads, self.level)),
            event(&self.name, "run", Duration::ZERO, self.run.total, json!({"limits": self.limits()})),
        ];
        events.extend(self.run.calls.iter().enumerate().map(|(i, t)| {
            let rate = |x: u64| if t.time.is_zero() { 0.0 } else { x as f64 / t.time.as_secs_f64() / 1e9 };
            let args = json!({
                "step": i,
                "flops": t.flops,
                "bytes": t.bytes,
                "gflops": rate(t.flops),
                "gbps": rate(t.bytes),
                "percent": self.percent(t),
            });
            event(&t.label, "step", t.start, t.time, args)
        }));
        format!("{}\n", json!({"displayTimeUnit": "ms", "traceEvents": events}))
    }
}

/// A label that does not break the table.
fn short(label: &str) -> String {
    const MOST: usize = 72;
    match label.char_indices().nth(MOST) {
        Some((at, _)) => format!("{}…", label.get(..at).unwrap_or(label)),
        None => label.into(),
    }
}
