//! `cargo xtask ptx`: makes the kernels' PTX out of the CUDA sources, or checks that it is what comes out of them, that
//! every GPU's assembler takes it, and that its arithmetic is rounded operation by operation.
//!
//! The PTX is committed, so that to build the library takes no CUDA. NVRTC 12.0 makes it for `compute_70`: that is ISA
//! 8.0, which drivers from R525 on compile for whichever GPU there is.

use crate::Command;
use crate::cmd::Cmd;
use crate::failure::Failure;
use crate::needs::{self, Need};
use crate::site::Site;
use crate::steps::{Feature, Step};
use std::fs;

pub(crate) const COMMAND: Command = Command {
    name: "ptx",
    arguments: "[--check]",
    about: "compiles the kernels of cuda/ to PTX; --check: fails unless the committed PTX is what comes out",
    run,
};

const PTX: &str = "cuda/kernels.ptx";
const SOURCE: &str = "cuda/kernels.cu";
/// Uses each operation of `version.cuh` once: it is compiled for the check alone.
const VERSION: &str = "xtask/ptx/version.cu";
/// What they must become.
const VERSION_INSTRUCTIONS: [&str; 4] =
    ["ld.acquire.sys.b64", "st.release.sys.b64", "st.relaxed.sys.b64", "fence.acq_rel.sys"];
/// Calls NVRTC, which is a library: to load one takes `unsafe`, which the chores do without.
const NVRTC: &str = "xtask/ptx/nvrtc.py";
/// `--fmad=false` is for the kernels that use plain operators; those of the folds are never contracted.
const OPTIONS: &[&str] =
    &["--gpu-architecture=compute_70", "--std=c++17", "--fmad=false", "--include-path=cuda"];

/// The GPUs for which the PTX is assembled: one of each generation. A driver compiles it for the one that there is.
const ASSEMBLED_FOR: &[&str] = &["sm_70", "sm_80", "sm_90", "sm_100"];

/// The kernels whose results have the bits of `src/kernel`.
const EXACT: &[&str] = &["slackline_fold_", "slackline_moments", "slackline_encode_"];

/// NVRTC orders some instructions by the addresses of its own objects, which differ from run to run: a few kernels come
/// out in one of two texts, the rarer in a tenth to a fifth of all runs. The check compiles again until each kernel has
/// come out as it is committed, this many times at most.
const RUNS: usize = 60;

/// What rounds otherwise than operation by operation, and loads through a cache that sees no other writer.
const REFUSED: &[&str] = &["fma", "mad.rn", ".ftz", ".approx", "div.full", "ld.global.nc"];

/// The step of `cargo xtask test`.
pub(crate) fn step() -> Step {
    Step {
        name: "ptx",
        about: "the PTX is what comes out of the CUDA sources, and GPUs from sm_70 to sm_100 have code for it",
        needs: Vec::new(),
        feature: Some(Feature::Installed(Need::CudaCompilers)),
        commands: vec![Cmd::new("cargo", &["xtask", "ptx", "--check"])],
    }
}

fn run(site: &Site, arguments: &[String]) -> Result<(), Failure> {
    let check = match arguments {
        [] => false,
        [argument] if argument == "--check" => true,
        _ => {
            let given = arguments.join(" ");
            return Err(Failure::Usage(format!("`ptx` takes nothing or --check, but was given `{given}`")));
        }
    };
    needs::ensure(site, &[Need::CudaCompilers])?;
    let file = site.root.join(PTX);
    let ptx = if check {
        let committed = fs::read_to_string(&file).map_err(|error| unusable(PTX, &error))?;
        comes_out(&committed, || compile(site, SOURCE))?;
        committed
    } else {
        compile(site, SOURCE)?
    };
    held_to_rounding(&ptx)?;
    assemble(site, &ptx)?;
    let version = compile(site, VERSION)?;
    held_to_order(&version)?;
    assemble(site, &version)?;
    let kernels = entries(&ptx).count();
    if check {
        println!(
            "{PTX} is what comes out of {SOURCE}, and its {kernels} kernels assemble for {ASSEMBLED_FOR:?}"
        );
        return Ok(());
    }
    fs::write(&file, ptx).map_err(|error| unusable(PTX, &error))?;
    println!("{PTX} has {kernels} kernels now");
    Ok(())
}

fn compile(site: &Site, source: &str) -> Result<String, Failure> {
    let library = needs::cuda_compilers(site).join("nvidia/cuda_nvrtc/lib/libnvrtc.so.12");
    let compiler = Cmd::new("python3", &[NVRTC]).arg(&library.to_string_lossy()).arg(source);
    OPTIONS.iter().fold(compiler, |cmd, option| cmd.arg(option)).answer(site)
}

/// Fails unless the assembler takes the PTX for each GPU.
fn assemble(site: &Site, ptx: &str) -> Result<(), Failure> {
    let folder = site.target.join("ptx");
    let source = folder.join("kernels.ptx");
    fs::create_dir_all(&folder).map_err(|error| unusable("target/ptx", &error))?;
    fs::write(&source, ptx).map_err(|error| unusable("target/ptx/kernels.ptx", &error))?;
    let ptxas = needs::cuda_compilers(site).join("nvidia/cuda_nvcc/bin/ptxas");
    for gpu in ASSEMBLED_FOR {
        let out = folder.join(format!("{gpu}.cubin"));
        let ptxas = Cmd::new(&ptxas.to_string_lossy(), &["--warning-as-error", "--gpu-name", gpu]);
        ptxas.arg("--output-file").arg(&out.to_string_lossy()).arg(&source.to_string_lossy()).run(site)?;
    }
    Ok(())
}

/// The kernels: their names and what follows each, up to the next.
fn entries(ptx: &str) -> impl Iterator<Item = (&str, &str)> {
    ptx.split(".entry ").skip(1).filter_map(|entry| entry.split_once('('))
}

/// Fails if a kernel whose results must be exact has an instruction that makes them otherwise.
fn held_to_rounding(ptx: &str) -> Result<(), Failure> {
    let refuse = |what: String, status: &str| Err(Failure::Check { what, status: status.into() });
    if ptx.contains(".func ") {
        return refuse(format!("{PTX} has functions, in which nobody looks"), "not one piece");
    }
    for (kernel, body) in entries(ptx).filter(|(name, _)| EXACT.iter().any(|exact| name.starts_with(exact))) {
        for line in body.lines() {
            if let Some(refused) = REFUSED.iter().find(|refused| line.contains(**refused)) {
                return refuse(format!("{kernel} has `{refused}`: {}", line.trim()), "not exact");
            }
        }
    }
    Ok(())
}

/// Fails unless each operation on versions is one instruction, at system scope.
fn held_to_order(ptx: &str) -> Result<(), Failure> {
    match VERSION_INSTRUCTIONS.iter().find(|instruction| ptx.matches(**instruction).count() != 1) {
        None => Ok(()),
        Some(instruction) => Err(Failure::Check {
            what: format!("version.cuh does not become one `{instruction}`"),
            status: "not in order".into(),
        }),
    }
}

/// Fails unless each kernel of the committed PTX, and what stands before the first, comes out of one of [`RUNS`] runs.
fn comes_out(committed: &str, mut compile: impl FnMut() -> Result<String, Failure>) -> Result<(), Failure> {
    let differs = |status: String| Failure::Check {
        what: format!("{PTX} is not what comes out of {SOURCE}\n  to fix it: cargo xtask ptx"),
        status,
    };
    let mut missing: Vec<(usize, &str)> = pieces(committed).enumerate().collect();
    let count = missing.len();
    for run in 1..=RUNS {
        let ptx = compile()?;
        let compiled: Vec<&str> = pieces(&ptx).collect();
        if compiled.len() != count {
            return Err(differs(format!("{} kernels instead of {}", compiled.len() - 1, count - 1)));
        }
        missing.retain(|(index, piece)| compiled[*index] != *piece);
        if missing.is_empty() {
            return Ok(());
        }
        println!(
            "run {run} of the compiler (of {RUNS} at most): not yet as they are committed: {}",
            named(&missing)
        );
    }
    Err(differs(format!("{RUNS} runs of the compiler never gave the committed text of {}", named(&missing))))
}

fn named(missing: &[(usize, &str)]) -> String {
    let name = |(index, piece): &(usize, &str)| match index {
        0 => "the first lines".into(),
        _ => piece.split('(').next().unwrap_or_default().to_string(),
    };
    missing.iter().map(name).collect::<Vec<String>>().join(", ")
}

/// What stands before the first kernel, and each kernel.
fn pieces(ptx: &str) -> impl Iterator<Item = &str> {
    ptx.split(".entry ")
}

fn unusable(path: &str, error: &std::io::Error) -> Failure {
    Failure::Missing {
        what: format!("cannot use {path}: {error}"),
        remedy: "make it readable and writable, or make it: cargo xtask ptx".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMITTED: &str = include_str!("../../cuda/kernels.ptx");

    #[test]
    fn the_committed_ptx_has_every_kernel_for_old_drivers_and_is_exact() {
        let names: Vec<&str> = entries(COMMITTED).map(|(name, _)| name).collect();
        for rule in ["sgd", "momentum", "adam", "adamw"] {
            for suffix in ["f32", "bf16", "f16", "f32_measured", "bf16_measured", "f16_measured"] {
                let name = format!("slackline_fold_{rule}_{suffix}");
                assert!(names.contains(&name.as_str()), "{name} is not in {names:?}");
            }
        }
        let others = ["moments", "encode_bf16", "encode_f16", "publish_versions"];
        let training = ["train_linear", "train_softmax", "train_gradient", "train_deltas"];
        for name in others.into_iter().chain(training).map(|name| format!("slackline_{name}")) {
            assert!(names.contains(&name.as_str()), "{name} is not in {names:?}");
        }
        // As large as `slackline_fold` in abi.h.
        let folds = || entries(COMMITTED).filter(|(name, _)| name.starts_with("slackline_fold_"));
        assert!(folds().all(|(name, body)| body.contains(&format!("{name}_param_0[3200]\n)"))));
        assert!(COMMITTED.contains(".version 8.0\n.target sm_70\n"));
        assert!(held_to_rounding(COMMITTED).is_ok());
    }

    #[test]
    fn a_fold_that_rounds_otherwise_is_refused_and_another_kernel_is_not() {
        let with = |kernel: &str, line: &str| {
            format!(".visible .entry {kernel}(\n.param)\n{{\n{line}\n}}\n.visible .entry last(\n)\n{{}}\n")
        };
        let kernel = "slackline_fold_sgd_f32";
        for line in [
            "fma.rn.f32 a, b, c, d;",
            "mad.rn.f32 a, b, c, d;",
            "mul.ftz.f32 a, b, c;",
            "sqrt.approx.f32 a, b;",
            "ld.global.nc.f32 a;",
        ] {
            let text = held_to_rounding(&with(kernel, line)).unwrap_err().to_string();
            assert!(text.contains(kernel) && text.contains(line), "{text}");
            assert!(held_to_rounding(&with("slackline_train", line)).is_ok());
        }
        assert!(held_to_rounding(&with(kernel, "mul.rn.f32 a, b, c;")).is_ok());
        assert!(held_to_rounding(".func (.param) helper(").is_err());
    }

    #[test]
    fn each_operation_on_versions_is_one_instruction() {
        let all = VERSION_INSTRUCTIONS.join(" a, [b];\n");
        assert!(held_to_order(&all).is_ok());
        for instruction in VERSION_INSTRUCTIONS {
            let narrower = all.replace(instruction, &instruction.replace(".sys", ".gpu"));
            let text = held_to_order(&narrower).unwrap_err().to_string();
            assert!(text.contains(instruction), "{text}");
        }
    }

    /// What comes out one run after the other, and then the last again and again.
    fn runs(texts: &[&'static str]) -> impl FnMut() -> Result<String, Failure> {
        let (mut left, last) = (texts.iter().copied(), texts[texts.len() - 1]);
        move || Ok(left.next().unwrap_or(last).to_string())
    }

    #[test]
    fn each_kernel_may_come_out_of_another_run_of_the_compiler() {
        let committed = "head .entry one(1) .entry two(2)";
        assert!(comes_out(committed, runs(&[committed])).is_ok());
        let apart = ["head .entry one(1) .entry two(9)", "head .entry one(9) .entry two(2)"];
        assert!(comes_out(committed, runs(&apart)).is_ok());
    }

    #[test]
    fn a_kernel_that_never_comes_out_is_named_with_the_remedy() {
        let committed = "head .entry one(1) .entry two(2)";
        for (compiled, named) in [
            ("head .entry one(1) .entry two(9)", "text of two"),
            ("9 .entry one(1) .entry two(2)", "text of the first lines"),
            ("head .entry one(1)", "1 kernels instead of 2"),
        ] {
            let text = comes_out(committed, runs(&[compiled])).unwrap_err().to_string();
            assert!(text.contains(named) && text.contains("cargo xtask ptx"), "{text}");
        }
    }
}
