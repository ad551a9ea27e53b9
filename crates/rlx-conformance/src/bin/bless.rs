//! Writes what is generated: the expectations of the file tests, `docs/ops.md`, the messages in `docs/errors/`, and, where the
//! material is, the list of passing ONNX cases and `docs/onnx.md`. Look at the difference before you commit it.

use rlx_conformance::onnx::real::{self, Real};
use rlx_conformance::onnx::suite::{self, Case};
use rlx_conformance::onnx::{Outcome, page};
use rlx_conformance::{errordoc, filetest, opsdoc};
use rlx_ir::Code;
use std::path::Path;
use std::{fs, io};

fn main() -> io::Result<()> {
    let mut changed = 0;
    for path in filetest::files()? {
        let text = fs::read_to_string(&path)?;
        changed += update(&path, &text, &filetest::blessed(&filetest::file_name(&path), &text))?;
    }
    let root = filetest::root();
    for code in Code::ALL {
        let path = root.join(format!("docs/errors/{}.md", code.id()));
        let text = fs::read_to_string(&path)?;
        changed += update(&path, &text, &errordoc::blessed(*code, &text))?;
    }
    let path = root.join("docs/ops.md");
    let old = fs::read_to_string(&path).unwrap_or_default();
    changed += update(&path, &old, &opsdoc::render())?;
    match suite::cases().and_then(|cases| Ok((cases, real::models()?))) {
        Ok((cases, models)) => changed += bless_onnx(&cases, &models)?,
        Err(e) => println!("docs/onnx.md stays as it is: {e}"),
    }
    println!("{changed} files changed");
    Ok(())
}

fn bless_onnx(cases: &[Case], models: &[Real]) -> io::Result<usize> {
    let results: Vec<_> = cases.iter().zip(suite::run(cases)).collect();
    let passed = results.iter().filter(|(_, o)| *o == Outcome::Pass).map(|(c, _)| c.name.clone());
    let models = models.iter().filter(|m| m.run().0 == Outcome::Pass).map(Real::list_name);
    let old = fs::read_to_string(page::list_path()).unwrap_or_default();
    let list = page::grown(&old, passed.chain(models));
    let changed = update(&page::list_path(), &old, &list)?;
    let old = fs::read_to_string(page::page_path()).unwrap_or_default();
    Ok(changed + update(&page::page_path(), &old, &page::render(&results, &page::listed(&list)))?)
}

fn update(path: &Path, old: &str, new: &str) -> io::Result<usize> {
    if old == new {
        return Ok(0);
    }
    fs::write(path, new)?;
    println!("{}", path.display());
    Ok(1)
}
