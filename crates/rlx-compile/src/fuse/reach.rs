//! Which groups come behind which, as sets of bits.

/// The groups behind each group.
#[derive(Default)]
pub(super) struct Reach(Vec<Vec<u64>>);

impl Reach {
    pub fn has(&self, from: usize, to: usize) -> bool {
        self.0.get(from).and_then(|r| r.get(to / 64)).is_some_and(|w| w >> (to % 64) & 1 == 1)
    }
    fn join(&mut self, into: usize, others: &[u64]) {
        if self.0.len() <= into {
            self.0.resize(into + 1, Vec::new());
        }
        if let Some(r) = self.0.get_mut(into) {
            if r.len() < others.len() {
                r.resize(others.len(), 0);
            }
            r.iter_mut().zip(others).for_each(|(a, b)| *a |= b);
        }
    }
    fn row(&self, g: usize) -> Vec<u64> {
        self.0.get(g).cloned().unwrap_or_default()
    }
    /// Notes that `to`, and all behind it, is behind `from` and all before that.
    pub fn edge(&mut self, from: usize, to: usize) {
        let mut behind = self.row(to);
        if behind.len() <= to / 64 {
            behind.resize(to / 64 + 1, 0);
        }
        if let Some(w) = behind.get_mut(to / 64) {
            *w |= 1 << (to % 64);
        }
        self.join(from, &behind);
        for g in 0..self.0.len() {
            if self.has(g, from) {
                self.join(g, &behind);
            }
        }
    }
}
