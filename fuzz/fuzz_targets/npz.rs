//! Archives of NumPy's arrays, and arrays alone: see `shared`.
#![no_main]

mod shared;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| shared::check(bytes, |to, tensors, _| rlx_formats::npz::write_to(to, tensors)));
