//! Set-up, tests, vectors and benches.
fn main() {}
