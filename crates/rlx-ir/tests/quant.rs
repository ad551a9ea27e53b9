//! Quantisation against ml_dtypes and gguf (`vectors/quant`, written by `scripts/vectors_quant.py`), and against
//! its own promises.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::path::Path;

use half::bf16;
use proptest::prelude::*;
use rlx_ir::quant::{Decode, QuantError, Scheme, SchemeKind, lowfloat};

fn bytes(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/quant").join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn f32s(name: &str) -> Vec<f32> {
    bytes(name).as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn f64s(name: &str) -> Vec<f64> {
    bytes(name).as_chunks().0.iter().map(|b| f64::from_le_bytes(*b)).collect()
}

/// Equal bit by bit, except that any NaN is as good as another.
fn assert_same(what: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{what}: length");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!(g.to_bits() == w.to_bits() || g.is_nan() && w.is_nan(), "{what}[{i}]: {g} is not {w}");
    }
}

fn scheme(name: &str) -> Scheme {
    Scheme::parse(name).unwrap_or_else(|| panic!("{name} is not a scheme"))
}

fn decode(scheme: Scheme, shape: &[usize], planes: &[Vec<u8>]) -> Result<Vec<f32>, QuantError> {
    let views: Vec<&[u8]> = planes.iter().map(Vec::as_slice).collect();
    scheme.decode(shape, &views, Decode::AsStored)
}

fn round_trip(scheme: Scheme, shape: &[usize], values: &[f32]) -> Vec<f32> {
    decode(scheme, shape, &scheme.encode(shape, values).unwrap()).unwrap()
}

type Scalar = (&'static str, fn(u8) -> f32, fn(f32) -> u8, fn(f64) -> u8);
const SCALARS: [Scalar; 4] = [
    ("f8e4m3", lowfloat::f8e4m3_to_f32, lowfloat::f8e4m3_from_f32, lowfloat::f8e4m3_from_f64),
    ("f8e5m2", lowfloat::f8e5m2_to_f32, lowfloat::f8e5m2_from_f32, lowfloat::f8e5m2_from_f64),
    ("e8m0", lowfloat::e8m0_to_f32, lowfloat::e8m0_from_f32, lowfloat::e8m0_from_f64),
    ("e2m1", lowfloat::e2m1_to_f32, lowfloat::e2m1_from_f32, lowfloat::e2m1_from_f64),
];

#[test]
fn every_low_float_code_decodes_as_in_ml_dtypes() {
    for (name, to_f32, ..) in SCALARS {
        let want = f32s(&format!("{name}.decoded.f32"));
        let got: Vec<f32> = (0..want.len()).map(|code| to_f32(code as u8)).collect();
        assert_same(name, &got, &want);
    }
}

#[test]
fn low_floats_round_once_to_nearest() {
    let narrow = f32s("probes.f32");
    let wide = f64s("probes.f64");
    for (name, _, from_f32, from_f64) in SCALARS {
        for (x, want) in narrow.iter().zip(bytes(&format!("{name}.from_f32.u8"))) {
            assert_eq!(from_f32(*x), want, "{name} of {x:e} ({:08x})", x.to_bits());
        }
        for (x, want) in wide.iter().zip(bytes(&format!("{name}.from_f64.u8"))) {
            assert_eq!(from_f64(*x), want, "{name} of {x:e} as f64");
        }
    }
    for (x, want) in narrow.iter().zip(bytes("ggml_bf16.from_f32.u8").as_chunks::<2>().0) {
        let (got, want) = (bf16::from_f32(*x), bf16::from_le_bytes(*want));
        assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(), "bf16 of {x:e}");
    }
}

/// The ggml kinds that gguf reads, and whether it writes them too.
const GGUF: [(&str, bool); 15] = [
    ("q4_0", true),
    ("q4_1", true),
    ("q5_0", true),
    ("q5_1", true),
    ("q8_0", true),
    ("q2_k", false),
    ("q3_k", false),
    ("q4_k", false),
    ("q5_k", false),
    ("q6_k", false),
    ("iq4_nl", false),
    ("iq4_xs", false),
    ("ggml_mxfp4", true),
    ("ggml_f16", true),
    ("ggml_bf16", true),
];

#[test]
fn ggml_blocks_decode_as_in_gguf() {
    for (name, _) in GGUF {
        let blocks = bytes(&format!("{name}.blocks.u8"));
        let want = f32s(&format!("{name}.values.f32"));
        for mode in [Decode::AsStored, Decode::Finite] {
            let got = scheme(name).decode(&[want.len()], &[&blocks], mode).unwrap();
            assert_same(name, &got, &want);
        }
    }
    // What gguf cannot read is listed, so that no ggml kind goes untested unnoticed.
    let unread = |s: &&Scheme| s.is_ggml() && GGUF.iter().all(|(name, _)| *name != s.to_string());
    assert_eq!(Scheme::all().iter().filter(unread).map(|s| s.kind).collect::<Vec<_>>(), [SchemeKind::Q8K]);
}

#[test]
fn ggml_bytes_are_those_of_gguf() {
    let weights = f32s("weights.f32");
    for (name, _) in GGUF.into_iter().filter(|(_, written)| *written) {
        let got = scheme(name).encode(&[weights.len() / 256, 256], &weights).unwrap();
        let want = bytes(&format!("{name}.quantized.u8"));
        assert_eq!(got[0].len(), want.len(), "{name}");
        let size = want.len() / (weights.len() / scheme(name).block as usize);
        for (i, (got, want)) in got[0].chunks(size).zip(want.chunks(size)).enumerate() {
            assert_eq!(got, want, "{name}: block {i}");
        }
    }
}

#[test]
fn column_planes_decode_by_the_definition() {
    let shape = [3, 19, 5];
    for customary in Scheme::all().iter().filter(|s| !s.is_ggml()) {
        let full = customary.to_string();
        let name = full.split(':').next().unwrap();
        let scheme = Scheme::new(customary.kind, 7).unwrap_or(*customary);
        let stored = bytes(&format!("{name}.planes.u8"));
        let mut rest = stored.as_slice();
        let specs = scheme.planes(&shape).unwrap();
        let planes: Vec<&[u8]> = specs.iter().map(|p| rest.split_off(..p.bytes).unwrap()).collect();
        assert!(rest.is_empty(), "{name}: the vectors have more planes");
        for (mode, part) in [(Decode::AsStored, "stored"), (Decode::Finite, "finite")] {
            let got = scheme.decode(&shape, &planes, mode).unwrap();
            assert_same(name, &got, &f32s(&format!("{name}.{part}.f32")));
        }
    }
}

#[test]
fn a_matmul_sees_no_nan_codes() {
    for name in ["fp8_e4m3", "fp8_e5m2"] {
        let codes: Vec<u8> = (0..=255).collect();
        let values = scheme(name).decode(&[256], &[&codes], Decode::Finite).unwrap();
        assert!(values.iter().all(|x| x.is_finite()), "{name}");
    }
    let values = scheme("nvfp4:2").decode(&[2], &[&[0x22], &[0x7F], &1f32.to_le_bytes()], Decode::Finite);
    assert_eq!(values.unwrap(), [0.0, 0.0]);
}

#[test]
fn names_are_read_as_written() {
    for &scheme in Scheme::all() {
        assert_eq!(Scheme::parse(&scheme.to_string()), Some(scheme));
        assert_eq!(scheme.is_ggml(), scheme.ggml_type_id().is_some());
        if let Some(id) = scheme.ggml_type_id() {
            assert_eq!(Scheme::from_ggml_type_id(id), Some(scheme));
        }
        assert_eq!(Scheme::new(scheme.kind, 0), None);
        assert!(!scheme.summary().is_empty());
    }
    for good in
        ["int8:32", "int8_asym:7", "int4:64", "fp8_e4m3", "nvfp4:16", "mxfp8_e5m2:32", "q4_k", "iq4_nl"]
    {
        assert_eq!(scheme(good).to_string(), good);
    }
    for bad in ["", "int8", "int8:", "int8:0", "int8:+32", "int8:032", "int8:4294967296", "q4_0:32", "Q4_0"] {
        assert_eq!(Scheme::parse(bad), None, "{bad}");
    }
    assert_eq!(Scheme::from_ggml_type_id(0), None);
}

#[test]
fn planes_say_what_is_stored() {
    let list = |name: &str, shape: &[usize]| -> Vec<(&str, usize, Vec<usize>)> {
        scheme(name).planes(shape).unwrap().into_iter().map(|p| (p.name, p.bytes, p.shape)).collect()
    };
    assert_eq!(list("int8:4", &[9, 3]), [("codes", 27, vec![9, 3]), ("scale", 36, vec![3, 3])]);
    assert_eq!(list("int4:4", &[9, 3]), [("codes", 14, vec![14]), ("scale", 36, vec![3, 3])]);
    assert_eq!(list("fp8_e5m2", &[2, 3]), [("codes", 6, vec![2, 3])]);
    assert_eq!(list("q4_k", &[3, 512]), [("blocks", 864, vec![3, 288])]);
    assert_eq!(
        list("nvfp4:16", &[17]),
        [("codes", 9, vec![9]), ("scale", 2, vec![2]), ("global", 4, vec![1])]
    );
    assert_eq!(
        list("int8_asym:8", &[2, 8, 1]),
        [("codes", 16, vec![2, 8, 1]), ("scale", 8, vec![2, 1, 1]), ("zero", 8, vec![2, 1, 1])]
    );
}

#[test]
fn wrong_requests_are_errors() {
    for &scheme in Scheme::all() {
        assert!(matches!(scheme.planes(&[]), Err(QuantError::Rank { .. })));
        let huge = [1 << 60, 256];
        assert!(matches!(scheme.planes(&huge), Err(QuantError::Overflow { .. })), "{scheme}");
        let zero = Scheme { block: 0, ..scheme };
        assert!(matches!(zero.encode(&[256], &[0.0; 256]), Err(QuantError::Block { .. })), "{scheme}");

        let shape = [2, 3, 256];
        let values = vec![0.5; 2 * 3 * 256];
        let good = scheme.encode(&shape, &values).unwrap();
        for plane in 0..good.len() {
            for length in [0, good[plane].len() - 1, good[plane].len() + 1] {
                let mut planes = good.clone();
                planes[plane].resize(length, 0);
                let got = decode(scheme, &shape, &planes);
                assert!(matches!(got, Err(QuantError::PlaneLength { .. })), "{scheme}");
            }
        }
        let mut planes = good.clone();
        planes.push(Vec::new());
        assert!(matches!(decode(scheme, &shape, &planes), Err(QuantError::PlaneCount { .. })));
        assert!(matches!(decode(scheme, &shape, &[]), Err(QuantError::PlaneCount { .. })));
        let short = scheme.encode(&shape, &values[1..]);
        assert_eq!(short, Err(QuantError::ValueCount { expected: 1536, got: 1535 }));
        assert!(decode(scheme, &[2, 3, 512], &good).is_err(), "{scheme}: a shape that disagrees");
        if scheme.is_ggml() && scheme.block > 1 {
            assert!(matches!(scheme.planes(&[4, 48]), Err(QuantError::Ragged { axis: 48, .. })), "{scheme}");
        }
    }
    let error = scheme("q4_0").planes(&[2, 33]).unwrap_err();
    assert_eq!(error.to_string(), "q4_0: last axis of 33 is not a multiple of the block of 32");
}

#[test]
fn empty_tensors_are_legal_however_long_the_other_axes() {
    for &scheme in Scheme::all() {
        for shape in [&[0][..], &[0, 256], &[256, 0], &[usize::MAX, 0, 256], &[1 << 62, 256, 0]] {
            assert_eq!(round_trip(scheme, shape, &[]), [0.0; 0], "{scheme} {shape:?}");
        }
    }
}

/// Numbers that look like weights, without a generator to depend on.
fn bell(count: usize) -> Vec<f32> {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut uniform = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    (0..count).map(|_| (0..12).map(|_| uniform()).sum()).collect()
}

#[test]
fn quantisers_are_as_good_as_their_bits() {
    // Relative root-mean-square error on a bell curve, about a tenth above what was measured.
    let limits = [
        ("int8:32", 0.006),
        ("int8_asym:32", 0.0053),
        ("int4:32", 0.11),
        ("fp8_e4m3", 0.028),
        ("fp8_e5m2", 0.055),
        ("nvfp4:16", 0.10),
        ("mxfp4:32", 0.12),
        ("mxfp8_e4m3:32", 0.028),
        ("mxfp8_e5m2:32", 0.055),
        ("q4_0", 0.094),
        ("q4_1", 0.085),
        ("q5_0", 0.047),
        ("q5_1", 0.041),
        ("q8_0", 0.006),
        ("q2_k", 0.29),
        ("q3_k", 0.16),
        ("q4_k", 0.077),
        ("q5_k", 0.039),
        ("q6_k", 0.0185),
        ("q8_k", 0.0075),
        ("iq4_nl", 0.08),
        ("iq4_xs", 0.081),
        ("ggml_mxfp4", 0.125),
        ("ggml_f16", 0.00024),
        ("ggml_bf16", 0.0018),
    ];
    let values = bell(256 * 64);
    let power: f64 = values.iter().map(|&x| f64::from(x).powi(2)).sum();
    for &scheme in Scheme::all() {
        let back = round_trip(scheme, &[64, 256], &values);
        let error: f64 = values.iter().zip(&back).map(|(x, y)| f64::from(x - y).powi(2)).sum();
        let relative = (error / power).sqrt();
        let name = scheme.to_string();
        let (_, limit) = limits.iter().find(|(n, _)| *n == name).unwrap();
        println!("{name:14} {relative:.5} of {limit}");
        assert!(relative < *limit, "{name}: {relative} is over {limit}");
    }
}

#[test]
fn q8_k_sums_its_codes() {
    let values = bell(256);
    let planes = scheme("q8_k").encode(&[256], &values).unwrap();
    let (codes, sums) = planes[0][4..].split_at(256);
    for (codes, sum) in codes.chunks(16).zip(sums.as_chunks().0) {
        let total: i32 = codes.iter().map(|&c| i32::from(c as i8)).sum();
        assert_eq!(total, i32::from(i16::from_le_bytes(*sum)));
    }
}

/// Largest error of an element as a fraction of the largest magnitude of the tensor: half a step, plus what rounding
/// and clipping of the scales may cost.
fn worst_error(kind: SchemeKind) -> f32 {
    use SchemeKind::*;
    match kind {
        Int8 => 0.51 / 127.0,
        Int8Asym => 2.02 / 255.0,
        Int4 => 0.51 / 7.0,
        Fp8E4M3 | MxFp8E4M3 => 0.126,
        Fp8E5M2 | MxFp8E5M2 => 0.126,
        NvFp4 => 0.20,
        MxFp4 | GgmlMxFp4 => 0.51,
        Q4_0 => 1.02 / 8.0,
        Q4_1 => 1.03 / 15.0,
        Q5_0 => 1.02 / 16.0,
        Q5_1 => 1.06 / 31.0,
        Q8_0 => 0.57 / 127.0,
        Q8K => 0.51 / 127.0,
        // These search for the least sum of squares and may give up a single value for it.
        Q2K => 0.80,
        Q3K => 0.50,
        Q4K => 0.25,
        Q5K => 0.15,
        Q6K => 0.08,
        Iq4Nl | Iq4Xs => 0.30,
        GgmlF16 => 0.0005,
        GgmlBf16 => 0.004,
    }
}

fn any_scheme() -> impl Strategy<Value = Scheme> {
    (prop::sample::select(Scheme::all()), 1u32..40)
        .prop_map(|(scheme, block)| Scheme::new(scheme.kind, block).unwrap_or(scheme))
}

/// A shape that the scheme takes, with odd and short ends where it may have them.
fn shape_for(scheme: Scheme, batch: usize, k: usize, n: usize) -> Vec<usize> {
    if scheme.is_ggml() { vec![batch, n, (k % 3) * scheme.block as usize] } else { vec![batch, k, n] }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn errors_stay_within_a_step(
        scheme in any_scheme(), batch in 1usize..3, k in 1usize..50, n in 1usize..6,
        pool in prop::collection::vec(-1.0f32..1.0, 64), scale in -6i32..6,
    ) {
        let shape = shape_for(scheme, batch, k, n);
        let total: usize = shape.iter().product();
        let unit = (scale as f32).exp2();
        let values: Vec<f32> = (0..total).map(|i| unit * pool[(i * 7 + i / 64) % 64]).collect();
        let back = round_trip(scheme, &shape, &values);
        let peak = values.iter().fold(0.0f32, |p, x| x.abs().max(p));
        // Floats without a scale have half of their smallest subnormal as a floor.
        let floor = if scheme.block == 1 { 0.001 } else { 1e-6 };
        let limit = worst_error(scheme.kind) * peak + floor;
        for (i, (x, y)) in values.iter().zip(&back).enumerate() {
            prop_assert!((x - y).abs() <= limit, "{scheme} {shape:?} [{i}]: {x} became {y}, limit {limit}");
        }
    }

    #[test]
    fn floats_without_scales_come_back_exactly(codes in prop::collection::vec(any::<[u8; 2]>(), 1..100)) {
        for (name, width) in [("fp8_e4m3", 1), ("fp8_e5m2", 1), ("ggml_bf16", 2), ("ggml_f16", 2)] {
            let codes = codes.as_flattened();
            let shape = [codes.len() / width];
            let values = scheme(name).decode(&shape, &[codes], Decode::AsStored).unwrap();
            assert_same(name, &round_trip(scheme(name), &shape, &values), &values);
        }
    }

    #[test]
    fn no_input_makes_it_panic(
        scheme in any_scheme(), batch in 0usize..3, k in 0usize..50, n in 0usize..6,
        bits in prop::collection::vec(any::<u32>(), 64), seed in any::<u8>(),
    ) {
        let shape = shape_for(scheme, batch, k, n);
        let total: usize = shape.iter().product();
        let values: Vec<f32> = (0..total).map(|i| f32::from_bits(bits[i % 64])).collect();
        prop_assert_eq!(round_trip(scheme, &shape, &values).len(), total);
        let noise = |length: usize| (0..length).map(|i| (i as u8).wrapping_mul(37) ^ seed).collect();
        let planes: Vec<Vec<u8>> = scheme.planes(&shape).unwrap().iter().map(|p| noise(p.bytes)).collect();
        prop_assert_eq!(decode(scheme, &shape, &planes).unwrap().len(), total);
    }

    #[test]
    fn a_wrong_length_is_an_error(
        scheme in any_scheme(), k in 1usize..50, n in 1usize..6,
        which in any::<prop::sample::Index>(), length in 0usize..4000,
    ) {
        let shape = shape_for(scheme, 1, k, n);
        let specs = scheme.planes(&shape).unwrap();
        let which = which.index(specs.len());
        let lengths = specs.iter().enumerate().map(|(i, p)| if i == which { length } else { p.bytes });
        let planes: Vec<Vec<u8>> = lengths.map(|l| vec![0; l]).collect();
        prop_assert_eq!(decode(scheme, &shape, &planes).is_ok(), length == specs[which].bytes);
    }
}

/// Tensors of several pieces, which begin within rows, blocks and matrices: each column, or row of a ggml kind, comes out as
/// it does alone.
#[test]
fn large_tensors_are_packed_as_their_parts() {
    let odd = ["int4:7", "mxfp4:3", "int8_asym:1000"].map(|s| Scheme::parse(s).unwrap());
    for scheme in Scheme::all().iter().copied().chain(odd).filter(|s| s.kind != SchemeKind::NvFp4) {
        let (shape, part) = if scheme.is_ggml() {
            (vec![1, 130, 512], vec![1, 512])
        } else {
            (vec![3, 101, 167], vec![101, 1])
        };
        let (k, n) = (shape[1], shape[2]);
        let values: Vec<f32> =
            (0..shape.iter().product()).map(|i: usize| ((i * 7919) % 1013) as f32 / 97.0 - 5.0).collect();
        let both = |shape: &[usize], values: &[f32]| {
            let planes = scheme.encode(shape, values).unwrap();
            let views: Vec<&[u8]> = planes.iter().map(Vec::as_slice).collect();
            scheme.decode(shape, &views, Decode::AsStored).unwrap()
        };
        let whole = both(&shape, &values);
        let parts: Vec<Vec<usize>> = if scheme.is_ggml() {
            (0..k).map(|r| (r * n..(r + 1) * n).collect()).collect()
        } else {
            let columns = (0..shape[0]).flat_map(|m| (0..n).map(move |c| m * k * n + c));
            columns.map(|at| (0..k).map(|r| at + r * n).collect()).collect()
        };
        for at in parts {
            let pick = |from: &[f32]| at.iter().map(|i| from[*i]).collect::<Vec<f32>>();
            assert!(both(&part, &pick(&values)) == pick(&whole), "{scheme} at {}", at[0]);
        }
    }
}

/// Where a scale is NaN or infinite, so are the numbers of its block; nowhere else.
#[test]
fn scales_that_are_not_finite_are_found() {
    for scheme in Scheme::all().iter().filter(|s| s.is_ggml() && s.block > 1) {
        let shape = [3, scheme.block as usize];
        let len = scheme.planes(&shape).unwrap()[0].bytes;
        // Every code of E8M0 is a number here.
        let has_scales = scheme.kind != SchemeKind::GgmlMxFp4;
        let mut found = 0;
        for at in len / 3..2 * len / 3 {
            for exponent in [[0, 0x7c], [0x80, 0x7f], [0xff, 0xff]] {
                let mut blocks = vec![0u8; len];
                // The last of a scale is at most as far as the block.
                for (to, byte) in blocks[..2 * len / 3].iter_mut().skip(at).zip(exponent) {
                    *to = byte;
                }
                let wild = decode(*scheme, &shape, &[blocks.clone()]).unwrap().iter().any(|x| !x.is_finite());
                let told = scheme.check_scales(&blocks);
                assert_eq!(told.is_err(), wild && has_scales, "{scheme}: {exponent:x?} at {at}: {told:?}");
                if let Err(e) = told {
                    assert!(e.to_string().contains("block 1"), "{scheme}: {e}");
                    found += 1;
                }
            }
        }
        assert_eq!(found > 0, has_scales, "{scheme}");
        assert_eq!(scheme.check_scales(&vec![0; len]), Ok(()));
    }
    // Scales in planes of their own may be anything.
    assert_eq!(scheme("nvfp4:16").check_scales(&[0xff; 64]), Ok(()));
}
