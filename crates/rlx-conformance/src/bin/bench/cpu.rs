//! Graphs on the CPU beside peers, all with the same number of threads.
//!
//! In a turn a side makes short calls for some milliseconds after as many untimed ones, or one long call; then the next side
//! has its turn, once all threads are at rest. What is compared is the median of the turns' medians, and what is compared must
//! agree: other numbers than a peer's are an error.

use crate::cases::{Case, WORKLOADS, Workload};
use crate::side::{Process, Rlx, Side, Turn};
use crate::table::{Row, Times, head};
use crate::{Asked, Result, compile, machine};
use rlx::{Engine, Settings};

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
                let process = Process::start(python, name, THREADS)?;
                ids.push(process.peer.id());
                processes.push((name, process));
            }
        }
        Ok(Peers { engine, processes, ids })
    }

    /// RLX and those that can do the workload, ready for the case.
    fn sides(&mut self, workload: &Workload, case: &Case) -> Result<Vec<(&'static str, Box<dyn Side + '_>)>> {
        let mut out: Vec<(&'static str, Box<dyn Side + '_>)> =
            vec![("rlx", Box::new(Rlx::new(&self.engine, case)?))];
        for (name, process) in &mut self.processes {
            if workload.peers.contains(name) {
                process.prepare(case)?;
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
        let mut sides = self.sides(workload, case)?;
        // The first calls choose kernels, pack weights and grow arenas; the third tells how long a call takes.
        let mut turns = Vec::new();
        for (_, side) in &mut sides {
            let once = Turn { warm: 0.0, ms: 0.0 };
            side.turn(once)?;
            side.turn(once)?;
            let long = side.turn(once)?.iter().any(|ms| *ms > 25.0);
            // Threads that wake on the processor of another one, low clocks and cold caches are nothing to a long call.
            turns.push(if long { once } else { Turn { warm: asked.warm, ms: 10.0 } });
        }
        let watch = machine::Watch::new(&ids);
        let mut times = vec![Vec::new(); sides.len()];
        for _ in 0..asked.turns {
            for (((name, side), turn), times) in sides.iter_mut().zip(&turns).zip(&mut times) {
                if !machine::rest(&ids) {
                    eprintln!("warning: threads were still busy before a turn of {name} in {}", case.name);
                }
                times.push(side.turn(*turn)?);
            }
        }
        let others = watch.others();
        let mut own = Vec::new();
        let mut row = Row { case: case.name.clone(), flops: case.flops(), peak, others, sides: Vec::new() };
        for (i, ((name, side), times)) in sides.iter_mut().zip(&times).enumerate() {
            let mut t = Times::new(name, times);
            match i {
                0 => own = side.result(case)?,
                _ => t.error = difference(&own, &side.result(case)?),
            }
            row.sides.push(t);
        }
        drop(sides);
        row.peak = row.peak.max(machine::peak(THREADS));
        Ok(row)
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
            if let Some((busy, stolen)) = row.others.filter(|(busy, stolen)| busy + stolen > 0.03) {
                let (busy, stolen) = (busy * 100.0, stolen * 100.0);
                eprintln!(
                    "warning: {}: others used {busy:.0}% of the machine, the host withheld {stolen:.0}%",
                    case.name
                );
            }
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
