//! Any text either fails to parse with an error, or means what its printed form means.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rlx_ir::text::{parse, print};

fuzz_target!(|text: &str| {
    let Ok(func) = parse(text) else { return };
    let printed = print(&func);
    let again = parse(&printed).unwrap_or_else(|e| panic!("the printed form does not parse: {e}\n{printed}"));
    assert!(func == again, "the printed form means something else\n{printed}");
    assert_eq!(printed, print(&again), "printing is not a fixed point");
});
