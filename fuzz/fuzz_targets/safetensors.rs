//! Safetensors files: see `shared`.
#![no_main]

mod shared;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| shared::check(bytes, |to, tensors, metadata| {
    rlx_formats::safetensors::write_to(to, tensors, metadata)
}));
