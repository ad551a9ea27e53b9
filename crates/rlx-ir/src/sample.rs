//! Samples: the one list per op that drives its forward, gradient, batching, empty and cross-device tests.

use crate::attr::{AttrValue, Attributes};
use crate::dtype::DType;
use crate::error::Result;
use crate::quant::Scheme;
use crate::tensor::{Tensor, count};

/// How an argument's elements are made.
#[derive(Clone, Debug, PartialEq)]
pub enum Fill {
    /// Evenly spread over `lo..hi`, pseudo-random.
    Uniform(f64, f64),
    /// Integers in `lo..hi`.
    Ints(i64, i64),
    /// A shuffle of evenly spaced values in `lo..hi`: no two equal, for maxima and sorting.
    Distinct(f64, f64),
    /// These, repeated as often as needed.
    Values(Vec<f64>),
}

/// The dtype of an argument.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ArgType {
    /// The dtype under test.
    Tested,
    /// Always this one.
    Fixed(DType),
}

/// An argument of a sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Arg {
    /// Its sizes.
    pub shape: Vec<usize>,
    /// Its dtype.
    pub dtype: ArgType,
    /// Its elements.
    pub fill: Fill,
}

/// A float argument of the dtype under test, within ±1.5.
pub fn f<const N: usize>(shape: [usize; N]) -> Arg {
    Arg { shape: shape.to_vec(), dtype: ArgType::Tested, fill: Fill::Uniform(-1.5, 1.5) }
}
/// An `i32` argument within `lo..hi`.
pub fn int<const N: usize>(shape: [usize; N], lo: i64, hi: i64) -> Arg {
    Arg { shape: shape.to_vec(), dtype: ArgType::Fixed(DType::I32), fill: Fill::Ints(lo, hi) }
}
/// A bool argument.
pub fn boolean<const N: usize>(shape: [usize; N]) -> Arg {
    Arg { shape: shape.to_vec(), dtype: ArgType::Fixed(DType::Bool), fill: Fill::Ints(0, 2) }
}
/// A packed argument.
pub fn packed<const N: usize>(scheme: Option<Scheme>, shape: [usize; N]) -> Arg {
    let dtype = scheme.map_or(ArgType::Tested, |s| ArgType::Fixed(DType::Packed(s)));
    Arg { shape: shape.to_vec(), dtype, fill: Fill::Uniform(-1.5, 1.5) }
}

impl Arg {
    /// With values within `lo..hi`.
    pub fn within(mut self, lo: f64, hi: f64) -> Arg {
        self.fill = Fill::Uniform(lo, hi);
        self
    }
    /// With distinct values within `lo..hi`.
    pub fn distinct(mut self, lo: f64, hi: f64) -> Arg {
        self.fill = Fill::Distinct(lo, hi);
        self
    }
    /// With these values, repeated as often as needed.
    pub fn values(mut self, v: &[f64]) -> Arg {
        self.fill = Fill::Values(v.to_vec());
        self
    }
    /// With this dtype.
    pub fn dtype(mut self, d: DType) -> Arg {
        self.dtype = ArgType::Fixed(d);
        self
    }

    /// The data, the same for the same seed.
    pub fn tensor(&self, tested: DType, seed: u64) -> Result<Tensor> {
        let n = count(&self.shape)?;
        let mut rng = Rng::new(seed);
        let values: Vec<f64> = match &self.fill {
            Fill::Uniform(lo, hi) => (0..n).map(|_| lo + (hi - lo) * rng.unit()).collect(),
            Fill::Ints(lo, hi) => {
                (0..n).map(|_| (*lo + rng.below((hi - lo).max(1) as u64) as i64) as f64).collect()
            }
            Fill::Distinct(lo, hi) => {
                let mut v: Vec<f64> = (0..n).map(|i| lo + (hi - lo) * (i as f64 + 0.5) / n as f64).collect();
                (1..n).rev().for_each(|i| v.swap(i, rng.below(i as u64 + 1) as usize));
                v
            }
            Fill::Values(v) => v.iter().copied().cycle().take(n).collect(),
        };
        let dtype = match self.dtype {
            ArgType::Tested => tested,
            ArgType::Fixed(d) => d,
        };
        if let DType::Packed(scheme) = dtype {
            let f: Vec<f32> = values.iter().map(|x| *x as f32).collect();
            let quant = |e: crate::quant::QuantError| crate::Error::new(crate::Code::Quant, e.to_string());
            let planes = scheme.encode(&self.shape, &f).map_err(quant)?;
            return Tensor::packed(scheme, &self.shape, planes.into_iter().map(Into::into).collect());
        }
        Tensor::from_f64s(dtype, &self.shape, &values).ok_or_else(|| {
            crate::Error::new(crate::Code::BadInput, format!("a sample of {dtype} cannot be made"))
        })
    }
}

/// A small pseudo-random generator (SplitMix64), for samples and tests.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// From a seed.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }
    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// In `0..1`.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }
    /// In `0..n`; 0 for `n = 0`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.bits() % n.max(1)
    }
}

/// One application of an op to try.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Its name, unique within the op.
    pub name: &'static str,
    /// What is applied.
    pub what: SampleKind,
    /// Whether the op is smooth around these arguments, so that finite differences make sense.
    pub smooth: bool,
}

/// What a sample applies.
#[derive(Clone, Debug)]
pub enum SampleKind {
    /// The op itself, to these arguments.
    Op {
        /// The arguments; an optional one left out is `None`.
        args: Vec<Option<Arg>>,
        /// The attributes.
        attrs: Vec<AttrValue>,
    },
    /// A whole graph in the text format, for ops with regions; `DT` in it stands for the dtype under test.
    Text(&'static str),
}

/// The list that an op's `samples` rule fills.
#[derive(Default)]
pub struct Samples {
    /// The samples so far.
    pub list: Vec<Sample>,
}

impl Samples {
    /// A sample around which the op is smooth.
    pub fn case<A: Attributes, const N: usize>(&mut self, name: &'static str, attrs: A, args: [Arg; N]) {
        self.case_opt(name, attrs, args.map(Some));
    }
    /// The same with optional arguments left out.
    pub fn case_opt<A: Attributes, const N: usize>(
        &mut self,
        name: &'static str,
        attrs: A,
        args: [Option<Arg>; N],
    ) {
        self.push(name, true, attrs.to_values(), args.into());
    }
    /// A sample whose gradient is not to be compared with finite differences (kinks, infinities, integers).
    pub fn rough<A: Attributes, const N: usize>(&mut self, name: &'static str, attrs: A, args: [Arg; N]) {
        self.push(name, false, attrs.to_values(), args.map(Some).into());
    }
    /// The same with optional arguments left out.
    pub fn rough_opt<A: Attributes, const N: usize>(
        &mut self,
        name: &'static str,
        attrs: A,
        args: [Option<Arg>; N],
    ) {
        self.push(name, false, attrs.to_values(), args.into());
    }
    /// A whole graph in the text format.
    pub fn text(&mut self, name: &'static str, text: &'static str) {
        self.list.push(Sample { name, what: SampleKind::Text(text), smooth: true });
    }
    /// Samples for an element-wise op of one operand without attributes: a vector, a scalar, an empty tensor.
    pub fn unary(&mut self, lo: f64, hi: f64) {
        self.push("matrix", true, vec![], vec![Some(f([3, 5]).within(lo, hi))]);
        self.push("scalar", true, vec![], vec![Some(f([]).within(lo, hi))]);
        self.push("empty", true, vec![], vec![Some(f([0, 3]).within(lo, hi))]);
    }
    /// The values at which element-wise ops of one operand are most easily wrong.
    pub fn special<A: Attributes>(&mut self, attrs: A) {
        let x =
            f([9]).values(&[f64::NEG_INFINITY, -100.0, -1.0, -0.0, 0.0, 1.0, 100.0, f64::INFINITY, f64::NAN]);
        self.rough("special", attrs, [x]);
    }
    /// Samples for an element-wise op of two operands without attributes, with broadcasting; the ranges are of each.
    pub fn binary(&mut self, a: (f64, f64), b: (f64, f64)) {
        let mut add = |name, x: Arg, y: Arg| {
            self.push(name, true, vec![], vec![Some(x.within(a.0, a.1)), Some(y.within(b.0, b.1))])
        };
        add("same", f([3, 5]), f([3, 5]));
        add("row", f([3, 5]), f([5]));
        add("outer", f([4, 1]), f([1, 3]));
        add("scalar", f([]), f([2, 3]));
        add("empty", f([0, 3]), f([1, 3]));
    }
    fn push(&mut self, name: &'static str, smooth: bool, attrs: Vec<AttrValue>, args: Vec<Option<Arg>>) {
        self.list.push(Sample { name, what: SampleKind::Op { args, attrs }, smooth });
    }
}
