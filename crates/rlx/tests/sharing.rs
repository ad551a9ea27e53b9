//! One executable among threads, one engine among executables.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;

use common::{Buffers, Model, encoder, gpt, mamba, options, same_bits};
use rlx::{Engine, Executable, Outputs, Tensor};
use rlx_conformance::models;

#[test]
fn what_a_user_holds_can_cross_threads() {
    fn shared<T: Send + Sync + 'static>() {}
    shared::<Executable>();
    shared::<Engine>();
    shared::<Outputs>();
    shared::<Tensor>();
    shared::<rlx::Func>();
    shared::<rlx::Error>();
    shared::<rlx::Data>();
}

#[test]
fn several_threads_run_one_executable() {
    for threads in [1, 2, 3] {
        let options = options(threads);
        let f = encoder().graph().unwrap().finish().unwrap();
        let models: Vec<Model> = [(1, 3), (2, 40), (5, 17), (6, 1)]
            .map(|(b, s)| Model::new(&f, &[("batch", b), ("seq", s)], &options))
            .into();
        let exe = &models[0].exe;
        let want: Vec<Outputs> = models.iter().map(Model::run).collect();
        std::thread::scope(|scope| {
            for (m, want) in models.iter().zip(&want) {
                scope.spawn(move || {
                    for _ in 0..20 {
                        same_bits(&exe.run(&m.inputs()).unwrap(), want).unwrap();
                    }
                });
            }
        });
    }
}

#[test]
fn executables_on_one_engine_do_not_disturb_each_other() {
    let options = options(2);
    let small = [("batch", 3), ("seq", 9)];
    let cases = [
        Model::new(&encoder().graph().unwrap().finish().unwrap(), &small, &options),
        Model::new(&gpt(2).training().unwrap(), &small, &options),
        Model::new(&mamba(16).training().unwrap(), &small, &options),
        Model::new(&models::medley().unwrap(), &[("n", 9)], &options),
    ];
    let want: Vec<Outputs> = cases.iter().map(Model::run).collect();
    std::thread::scope(|scope| {
        for (m, want) in cases.iter().zip(&want) {
            scope.spawn(move || {
                let mut buffers = Buffers::like(want);
                for _ in 0..20 {
                    m.exe.run_into(&m.views(), &mut buffers.views()).unwrap();
                    for ((name, t), o) in want.iter().zip(buffers.views()) {
                        assert!(t.bytes() == o.bytes, "{name} of {}", m.func.name);
                    }
                    same_bits(&m.run(), want).unwrap();
                }
            });
        }
    });
}

/// Params may be set while others run: a run sees the old ones or the new ones, whole.
#[test]
fn params_change_under_running_threads() {
    let g = rlx::Graph::new("scaled");
    let x = g.input("x", rlx::DType::F32, [rlx::dim("n", 8), 16.into()]);
    let w = g.param("w", rlx::DType::F32, [16, 16]);
    g.output("y", x.matmul(w * 2.0));
    g.output("z", x * w.narrow(0, 0, 1));
    let exe = rlx::compile_with(&g, rlx::Device::Cpu, &options(2)).unwrap();
    let filled = |v: f32| Tensor::new(&[16, 16], &[v; 256]).unwrap();
    exe.params().set("w", filled(1.0)).unwrap();
    let x = Tensor::new(&[8, 16], &[1f32; 128]).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let out = exe.run(&[("x", &x)]).unwrap();
                    let [y, z] = ["y", "z"].map(|n| out[n].to_vec::<f32>().unwrap());
                    assert!(y.iter().all(|v| *v == y[0]) && [32.0, 64.0].contains(&y[0]), "{y:?}");
                    assert!(z.iter().all(|v| *v == y[0] / 32.0), "{z:?} beside {y:?}");
                }
            });
        }
        scope.spawn(|| {
            for k in 0..200 {
                exe.params().set("w", filled([2.0, 1.0][k % 2])).unwrap();
            }
        });
    });
}
