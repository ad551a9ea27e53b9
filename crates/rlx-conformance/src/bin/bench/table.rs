//! Results, as tables for people and as JSON lines.

use serde_json::{Value, json};

/// The middle of some numbers; NaN if there are none.
pub fn median(v: &[f64]) -> f64 {
    let mut v = v.to_vec();
    v.sort_by(f64::total_cmp);
    v.get(v.len() / 2).copied().unwrap_or(f64::NAN)
}

/// What a side took, over all turns.
#[derive(Default)]
pub struct Times {
    pub name: &'static str,
    /// The fastest call.
    pub min: f64,
    /// The median of the turns' medians.
    pub median: f64,
    /// The largest difference from RLX's numbers, relative to the largest number.
    pub error: f64,
}

impl Times {
    pub fn new(name: &'static str, turns: &[Vec<f64>]) -> Times {
        let min = turns.iter().flatten().copied().fold(f64::INFINITY, f64::min);
        let medians: Vec<f64> = turns.iter().map(|t| median(t)).collect();
        Times { name, min, median: median(&medians), error: 0.0 }
    }
}

/// The parts of the machine that others used and that the host withheld, if the system tells.
pub type Others = Option<(f64, f64)>;

/// A row: RLX first, then its peers.
pub struct Row {
    pub case: String,
    pub flops: Option<f64>,
    /// GFLOP/s that the machine gave at the time.
    pub peak: f64,
    /// What the machine did meanwhile.
    pub others: Others,
    pub sides: Vec<Times>,
}

impl Row {
    fn own(&self) -> f64 {
        self.sides.first().map_or(f64::NAN, |s| s.median)
    }

    fn rate(&self, ms: f64) -> Option<f64> {
        self.flops.map(|f| f / ms / 1e6)
    }

    fn peers(&self) -> impl Iterator<Item = &Times> {
        self.sides.iter().skip(1)
    }

    /// The fastest peer's time over RLX's.
    fn worst_ratio(&self) -> f64 {
        self.peers().map(|p| p.median / self.own()).fold(f64::INFINITY, f64::min)
    }

    /// Tells if the machine was not ours alone.
    pub fn warn(&self) {
        if let Some((busy, stolen)) = self.others.filter(|(busy, stolen)| busy + stolen > 0.03) {
            let (busy, stolen) = (busy * 100.0, stolen * 100.0);
            let case = &self.case;
            eprintln!(
                "warning: {case}: others used {busy:.0}% of the machine, the host withheld {stolen:.0}%"
            );
        }
    }

    pub fn json(&self) -> Value {
        let side = |s: &Times| {
            let mut v = json!({"name": s.name, "min_ms": s.min, "median_ms": s.median});
            if let (Some(o), Some(rate)) = (v.as_object_mut(), self.rate(s.median)) {
                o.insert("gflops".into(), json!(rate));
                o.insert("of_peak".into(), json!(rate / self.peak));
            }
            v
        };
        let peer = |s: &Times| {
            let mut v = side(s);
            if let Some(o) = v.as_object_mut() {
                o.insert("ratio".into(), json!(s.median / self.own()));
                o.insert("error".into(), json!(s.error));
            }
            v
        };
        let peers: Vec<Value> = self.peers().map(peer).collect();
        let others = self.others.map(|(busy, stolen)| json!({"others": busy, "stolen": stolen}));
        json!({"case": self.case, "peak_gflops": self.peak, "machine": others, "rlx": self.sides.first().map(side), "peers": peers})
    }

    pub fn print(&self) {
        let rates = |s: &Times| match self.rate(s.median) {
            Some(r) => format!("{r:>7.1} {:>4.0}%", r / self.peak * 100.0),
            None => format!("{:>7} {:>5}", "", ""),
        };
        let row = self.case.split('/').next_back().unwrap_or_default();
        print!("{row:<14}");
        for (i, s) in self.sides.iter().enumerate() {
            print!(" | {:>8.3} {:>8.3} {}", s.min, s.median, rates(s));
            if i > 0 {
                print!(" {:>5.2}x", s.median / self.own());
            }
        }
        println!(" | {:>5.2}x", self.worst_ratio());
    }
}

/// The line above the rows.
pub fn head(sides: &[&str]) {
    print!("{:<14}", "case");
    for (i, name) in sides.iter().enumerate() {
        print!(" | {name:>8} {:>8} {:>7} {:>5}", "median", "GFLOP/s", "peak");
        if i > 0 {
            print!(" {:>6}", "ratio");
        }
    }
    println!(" | {:>6}", "best");
}
