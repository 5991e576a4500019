//! Programs that see only what is installed: built by hand with `pkg-config`, and by CMake.

use super::{Version, cannot_write, scratch};
use crate::cmd::Cmd;
use crate::failure::Failure;
use crate::needs::Need;
use crate::site::Site;
use std::path::Path;

pub(super) const NEEDS: &[Need] = &[Need::Cxx, Need::Cmake];

/// Compiler, language and source of each program.
const PROGRAMS: [(&str, &str, &str); 2] =
    [("cc", "-std=c99", "program.c"), ("c++", "-std=c++11", "program.cpp")];

pub(super) fn run(site: &Site, prefix: &Path) -> Result<(), Failure> {
    // Away from the repository, so that no include path leads back into it by chance.
    let sources = scratch(site, "check")?;
    for name in ["program.c", "program.cpp", "CMakeLists.txt"] {
        let to = sources.join(name);
        std::fs::copy(site.root.join("ffi/install/check").join(name), &to)
            .map_err(|error| cannot_write(&to, &error))?;
    }
    by_pkg_config(site, prefix, &sources)?;
    by_cmake(site, prefix, &sources)
}

fn by_pkg_config(site: &Site, prefix: &Path, sources: &Path) -> Result<(), Failure> {
    let folder = prefix.join("lib/pkgconfig");
    let ask = |options: &[&str]| -> Result<Vec<String>, Failure> {
        let query = Cmd::new("pkg-config", options)
            .arg("slackline")
            .env("PKG_CONFIG_PATH", &folder.to_string_lossy());
        Ok(query.answer(site)?.split_whitespace().map(String::from).collect())
    };
    let version = Version::read(site)?.whole;
    if ask(&["--modversion"])? != [version.clone()] {
        return Err(Failure::Check {
            what: format!("pkg-config knows another version than {version}"),
            status: "ffi/install/slackline.pc.in".into(),
        });
    }
    let cflags = ask(&["--cflags"])?;
    let shared = ask(&["--libs"])?;
    // pkg-config names the shared library even where static linking is asked for: the archive replaces it.
    let archive = prefix.join("lib/libslackline.a").to_string_lossy().into_owned();
    let replaced = |flag: String| if flag == "-lslackline" { archive.clone() } else { flag };
    let whole: Vec<String> = ask(&["--static", "--libs"])?.into_iter().map(replaced).collect();
    for (compiler, language, source) in PROGRAMS {
        for (kind, libs) in [("shared", &shared), ("static", &whole)] {
            let program = sources.join(format!("{source}-{kind}")).to_string_lossy().into_owned();
            let mut compile = Cmd::new(compiler, &[language, "-Wall", "-Wextra", "-Werror", "-pthread"]);
            for flag in
                cflags.iter().chain([&sources.join(source).to_string_lossy().into_owned()]).chain(libs)
            {
                compile = compile.arg(flag);
            }
            compile.arg("-o").arg(&program).run(site)?;
            let lib = prefix.join("lib");
            say_ok(site, &Cmd::new(&program, &[]).env("LD_LIBRARY_PATH", &lib.to_string_lossy()))?;
        }
    }
    Ok(())
}

fn by_cmake(site: &Site, prefix: &Path, sources: &Path) -> Result<(), Failure> {
    let (from, build) = (sources.to_string_lossy(), sources.join("build").to_string_lossy().into_owned());
    let path = format!("-DCMAKE_PREFIX_PATH={}", prefix.display());
    Cmd::new("cmake", &["-S", &from, "-B", &build, &path]).run(site)?;
    Cmd::new("cmake", &["--build", &build]).run(site)?;
    for program in ["c_slackline", "c_static", "cxx_slackline", "cxx_static"] {
        say_ok(site, &Cmd::new(&format!("{build}/{program}"), &[]))?;
    }
    Ok(())
}

/// Runs a program that prints "ok" if all went well.
fn say_ok(site: &Site, program: &Cmd) -> Result<(), Failure> {
    match program.answer(site)?.as_str() {
        "ok\n" => {
            println!("   {program}: ok");
            Ok(())
        }
        said => {
            Err(Failure::Check { what: program.to_string(), status: format!("it said {said:?}, not ok") })
        }
    }
}
