//! The machine: its processor and its memory, as far as the system tells.

use rlx_cpu::Level;
use std::collections::BTreeSet;
use std::fs;

/// What graphs run on when they run on the CPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// The processor's own name.
    pub name: String,
    /// The cores, if the system tells.
    pub cores: Option<usize>,
    /// The threads that run at once.
    pub threads: usize,
    /// The instruction sets that kernels are written for and that this machine has, the best last.
    pub levels: Vec<Level>,
    /// The memory in bytes, if the system tells.
    pub memory: Option<u64>,
    /// The part of it that can be had without taking it from others.
    pub available: Option<u64>,
}

impl Machine {
    /// This one.
    pub fn this() -> Machine {
        // Only Linux has these files; elsewhere they are empty.
        let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        Machine::new(&cpu, &memory)
    }

    fn new(cpu: &str, memory: &str) -> Machine {
        let name = ["model name", "Model", "Hardware"].iter().find_map(|key| fields(cpu, key).next());
        let places: Vec<&str> = fields(cpu, "physical id").collect();
        let cores: BTreeSet<(&str, &str)> = fields(cpu, "core id")
            .enumerate()
            .map(|(i, c)| (places.get(i).copied().unwrap_or(""), c))
            .collect();
        Machine {
            name: name.map_or_else(|| format!("{} processor", std::env::consts::ARCH), str::to_string),
            cores: (!cores.is_empty()).then_some(cores.len()),
            threads: std::thread::available_parallelism().map_or(1, |n| n.get()),
            levels: Level::available(),
            memory: kibibytes(memory, "MemTotal"),
            available: kibibytes(memory, "MemAvailable"),
        }
    }

    /// The instruction set that is used unless another one is asked for.
    pub fn level(&self) -> Level {
        Level::detect()
    }
}

/// The values of the lines `key : value`.
fn fields<'a>(text: &'a str, key: &'a str) -> impl Iterator<Item = &'a str> {
    text.lines()
        .filter_map(|l| l.split_once(':'))
        .filter(move |(k, _)| k.trim() == key)
        .map(|(_, v)| v.trim())
}

fn kibibytes(text: &str, key: &str) -> Option<u64> {
    fields(text, key).next()?.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_linux_tells() {
        let core = |id: u32| {
            format!(
                "processor\t: {id}\nmodel name\t: Some CPU @ 3: x\nphysical id\t: 0\ncore id\t\t: {}\n\n",
                id / 2
            )
        };
        let cpu: String = (0..4).map(core).collect();
        let m = Machine::new(&cpu, "MemTotal:       1024 kB\nMemAvailable:    512 kB\n");
        assert_eq!((m.name.as_str(), m.cores), ("Some CPU @ 3: x", Some(2)));
        assert_eq!((m.memory, m.available), (Some(1 << 20), Some(1 << 19)));
        assert!(m.threads > 0 && m.levels.contains(&m.level()));
    }

    #[test]
    fn what_nobody_tells() {
        let m = Machine::new("", "MemTotal: lots\nMemAvailable: 99999999999999999999 kB");
        assert!(
            m.name.ends_with("processor") && m.cores.is_none() && m.memory.is_none() && m.available.is_none()
        );
    }
}
