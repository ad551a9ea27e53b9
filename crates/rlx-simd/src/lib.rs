//! CPU kernels over plain memory: pointers, sizes and strides in, numbers out. No graph, no shapes, no allocation in a run.
//!
//! The crate knows nothing of the rest of RLX, so kernels build and are tested without it, and others can use them.
//!
//! Read in this order:
//! 1. [`level`]: which instructions the machine has, and how a kernel is compiled for each; [`pool`]: the threads;
//!    [`mem`]: views of memory and scratch space;
//! 2. [`math`]: vector functions; [`tile`]: element-wise work and row reductions on tiles that stay in the L1 cache;
//! 3. [`sink`]: where finished blocks go; [`gemm`]: matrix products over packed operands;
//! 4. [`attention`], [`scan`], [`conv`], [`window`], [`cumulative`], [`index`], [`sort`],
//!    [`argreduce`], [`random`], [`fft`]: one kernel family each; [`copy`]: moving data about.
//!
//! Every kernel gives the same bits for any number of threads: how a sum is split depends on the sizes alone.

pub mod argreduce;
pub mod attention;
pub mod conv;
pub mod copy;
pub mod cumulative;
pub mod fft;
pub mod gemm;
pub mod index;
pub mod level;
pub mod math;
pub mod mem;
pub mod pool;
pub mod random;
pub mod scan;
pub mod sink;
pub mod sort;
pub mod tile;
pub mod window;
