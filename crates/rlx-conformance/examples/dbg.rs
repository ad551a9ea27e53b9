#![allow(missing_docs, clippy::unwrap_used)]
use rlx_conformance::random::{Kind, graph};
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let seed: u64 = a[1].parse().unwrap();
    let kind = if a[2] == "any" { Kind::Any } else { Kind::Smooth };
    let mut r = graph(seed, 12, kind).unwrap();
    if a.len() > 3 && a[3] == "grad" {
        let float = |t: &rlx_ir::Type| t.dtype.is_float();
        let ports = r.func.ports.iter().zip(r.func.port_types().unwrap());
        let wrt: Vec<&str> = ports.filter(|(_, t)| float(t)).map(|(p, _)| p.name.as_str()).collect();
        let outputs = r.func.outputs.iter().zip(r.func.output_types().unwrap());
        let outputs: Vec<&str> = outputs.filter(|(_, t)| float(t)).map(|(o, _)| o.name.as_str()).collect();
        r.func = rlx_ir::transform::vjp(&r.func, &outputs, &wrt).unwrap();
    }
    println!("sizes {:?}", r.sizes);
    println!("{}", rlx_ir::text::print(&rlx_ir::transform::dce(&r.func).unwrap()));
    let e = rlx::compile(&r.func, rlx::Device::Cpu).unwrap();
    let p = e.program();
    for (i, c) in p.calls.iter().enumerate() {
        println!("call {i} {} kernel {} args {:?}", c.label, c.kernel, c.args);
        let k = &p.kernels[c.kernel as usize];
        for (j, a) in k.args.iter().enumerate() {
            let d = |v: &[rlx_compile::program::SizeId]| {
                v.iter().map(|s| p.sizes.dim(*s).to_string()).collect::<Vec<_>>().join(",")
            };
            println!(
                "    arg {j} {} [{}] strides [{}] {} over {:?} slot {:?}",
                a.dtype,
                d(&a.shape),
                d(&a.strides),
                if a.write { "W" } else { "R" },
                a.over,
                p.slots[c.args[j].0.0 as usize].place
            );
        }
        if let rlx_compile::program::Work::Region(r) = &k.work {
            println!("    lanes {} of {}", r.lanes, r.space.len());
            for (j, i) in r.code.iter().enumerate() {
                println!("      r{j} = {i:?}");
            }
        } else {
            println!("    {:?}", format!("{:?}", k.work).chars().take(300).collect::<String>());
        }
        println!("    {}", p.notes[i].replace('\n', "\n    "));
    }
}
