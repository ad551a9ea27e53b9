//! Graphs on the CPU beside peers, all with the same number of threads.
//!
//! In a turn a side makes short calls for some milliseconds after as many untimed ones, or one long call; then the next side
//! has its turn, once all threads are at rest. What is compared is the median of the turns' medians, and what is compared must
//! agree: other numbers than a peer's are an error.

use crate::cases::{Case, WORKLOADS, Workload};
use crate::side::{Process, Rlx, Sides, compiled, load, take_turns};
use crate::table::{Row, head};
use crate::{Asked, Result, compile, machine};
use rlx::{Engine, Executable, Settings};
use serde_json::json;

const THREADS: usize = 2;
/// The largest difference between sides, relative to the largest number.
const TOLERANCE: f64 = 1e-4;

/// The sides that outlive a case.
struct Peers {
    engine: Engine,
    processes: Vec<(&'static str, Process)>,
    /// Those whose threads must sleep before a turn, this one included.
    ids: Vec<u32>,
}

impl Peers {
    fn start(asked: &Asked) -> Result<Peers> {
        let engine = Engine::new(Settings { threads: Some(THREADS), ..Settings::default() })?;
        let mut ids = vec![std::process::id()];
        let mut processes = Vec::new();
        let wanted = |name: &&str| {
            let has = |w: &Workload| asked.wants_workload(w.name) && w.peers.contains(name);
            WORKLOADS.iter().any(has)
        };
        for name in ["ort", "openvino", "c"].into_iter().filter(wanted) {
            if let Some(python) = &asked.python {
                let process = Process::start(python, "bench_cpu.py", name, &[name, &THREADS.to_string()])?;
                ids.push(process.peer.id());
                processes.push((name, process));
            }
        }
        Ok(Peers { engine, processes, ids })
    }

    /// RLX and those that can do the workload, ready for the case.
    fn sides<'a>(&'a mut self, workload: &Workload, case: &Case, own: &'a Executable) -> Result<Sides<'a>> {
        let mut out: Sides<'a> = vec![("rlx", Box::new(Rlx::new(own, &load(&case.inputs())?)?))];
        for (name, process) in &mut self.processes {
            if workload.peers.contains(name) {
                let command = json!({"do": "prepare", "model": case.model.name(), "weights": case.weights(), "inputs": case.inputs()});
                process.ask(&command)?;
                out.push((name, Box::new(process)));
            }
        }
        #[cfg(feature = "bench")]
        if workload.peers.contains(&"faer") {
            out.push(("faer", Box::new(crate::faer::Faer::new(case, THREADS)?)));
        }
        Ok(out)
    }

    fn row(&mut self, asked: &Asked, workload: &Workload, case: &Case) -> Result<Row> {
        case.write()?;
        let ids = self.ids.clone();
        machine::rest(&ids);
        let peak = machine::peak(THREADS);
        let own = compiled(&self.engine, case)?;
        let mut sides = self.sides(workload, case, &own)?;
        let (mut times, others) = take_turns(asked, &case.name, &mut sides, &ids)?;
        let mut results = Vec::new();
        for (name, side) in &mut sides {
            let outputs = side.result(&Case::file(&format!("result-{name}")))?;
            results.push(outputs.first().and_then(|(_, t)| t.to_vec::<f32>()).unwrap_or_default());
        }
        let first = results.first().cloned().unwrap_or_default();
        for (t, result) in times.iter_mut().zip(&results).skip(1) {
            t.error = difference(&first, result);
        }
        drop(sides);
        let peak = peak.max(machine::peak(THREADS));
        Ok(Row { case: case.name.clone(), flops: case.flops(), peak, others, sides: times })
    }
}

/// The largest difference, relative to the largest number; infinite if it means nothing.
fn difference(a: &[f32], b: &[f32]) -> f64 {
    let largest = b.iter().map(|x| f64::from(x.abs())).fold(0.0, f64::max);
    if a.len() != b.len() || a.iter().chain(b).any(|x| !x.is_finite()) || largest == 0.0 {
        return f64::INFINITY;
    }
    a.iter().zip(b).map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max) / largest
}

impl Asked {
    /// Whether anything of a workload is wanted.
    pub fn wants_workload(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|o| o.starts_with(name) || name.starts_with(o.as_str()))
    }
}

pub fn run(asked: &Asked) -> Result<()> {
    let mut peers = Peers::start(asked)?;
    let mut wrong = Vec::new();
    for w in WORKLOADS.iter().filter(|w| asked.wants_workload(w.name)) {
        let cases: Vec<Case> = w.models.iter().map(|m| Case::new(w, *m)).collect();
        for (i, case) in cases.iter().filter(|c| asked.wants(&c.name)).enumerate() {
            let row = match peers.row(asked, w, case) {
                Ok(row) => row,
                Err(e) => {
                    eprintln!("error: {}: {e}", case.name);
                    wrong.push(case.name.clone());
                    continue;
                }
            };
            if asked.json {
                println!("{}", row.json());
            } else {
                if i == 0 {
                    println!(
                        "\n{}: {}; ms, {THREADS} threads, after {} ms of untimed calls; ratio: the peer's time over RLX's",
                        w.name, w.title, asked.warm
                    );
                    head(&row.sides.iter().map(|s| s.name).collect::<Vec<_>>());
                }
                row.print();
            }
            row.warn();
            for s in row.sides.iter().filter(|s| s.error > TOLERANCE) {
                eprintln!("error: {}: RLX and {} differ by {:.1e}", case.name, s.name, s.error);
                wrong.push(case.name.clone());
            }
        }
    }
    if asked.wants_workload("compile") {
        compile::run(asked, &peers.engine)?;
    }
    if wrong.is_empty() { Ok(()) } else { Err(format!("these failed: {}", wrong.join(", ")).into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_relative_to_the_largest_number() {
        assert_eq!(difference(&[1.0, 4.0], &[1.5, 4.0]), 0.125);
        assert_eq!(difference(&[1.0], &[1.0]), 0.0);
    }

    #[test]
    fn what_cannot_be_compared_differs() {
        for (a, b) in [(vec![1.0], vec![1.0, 2.0]), (vec![f32::NAN], vec![1.0]), (vec![0.0], vec![0.0])] {
            assert_eq!(difference(&a, &b), f64::INFINITY);
        }
    }
}
