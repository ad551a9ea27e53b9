#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;

use common::{encoder, gpt, mamba, options};

#[test]
fn look() {
    for f in [
        encoder().graph().unwrap().finish().unwrap(),
        gpt(1).graph().unwrap(),
        mamba(16).graph().unwrap(),
        gpt(1).training().unwrap(),
        mamba(16).training().unwrap(),
    ] {
        let e = rlx::compile_with(&f, rlx::Device::Cpu, &options(1)).unwrap();
        println!("== {}", f.name);
        for (c, n) in e.program().calls.iter().zip(&e.program().notes) {
            println!(
                "{} {:?}",
                c.label,
                c.args
                    .iter()
                    .filter(|(s, _)| matches!(
                        e.program().slots[s.0 as usize].place,
                        rlx_compile::program::Place::Arena(_)
                    ))
                    .map(|(s, _)| s.0)
                    .collect::<Vec<_>>()
            );
            if std::env::var("NOTES").is_ok() {
                println!("   {}", n.replace('\n', "\n    "));
            }
        }
    }
}
