//! ONNX models: see `imported`.
#![no_main]

mod imported;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| imported::check(bytes));
