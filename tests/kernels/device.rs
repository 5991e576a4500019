//! A GPU's stand-in: the kernels' sources, compiled for the CPU by the system's C++ compiler, as a process that takes
//! launches from a pipe (`program.cpp`). A process and no library, so that a kernel that reads past its memory ends
//! with the sanitiser's report and not this test with it.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;

/// Memory of the device.
#[derive(Clone, Debug)]
pub(crate) struct Buffer {
    /// Bytes by which it begins behind a multiple of 64.
    pub(crate) shift: usize,
    pub(crate) bytes: Vec<u8>,
}

/// The kernel's parameter block, as it is laid out in `cuda/abi.h`.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    bytes: Vec<u8>,
    addresses: Vec<(usize, usize)>,
}

impl Block {
    pub(crate) fn new(len: usize) -> Block {
        Block { bytes: vec![0; len], addresses: Vec::new() }
    }

    pub(crate) fn put<const N: usize>(&mut self, at: usize, bytes: [u8; N]) {
        self.bytes[at..at + N].copy_from_slice(&bytes);
    }

    /// Puts the address of the buffer of this index.
    pub(crate) fn put_address(&mut self, at: usize, buffer: usize) {
        self.addresses.push((at, buffer));
    }
}

/// The root of the workspace: this file is part of the tests of several packages.
fn root() -> &'static Path {
    let mut folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    folders.find(|folder| folder.join("cuda/kernels.cu").exists()).expect("the workspace")
}

/// The sources of the kernels.
fn sources() -> PathBuf {
    root().join("cuda")
}

/// Ends the program at an access that is outside of a buffer, or that is misaligned.
const SANITISED: &[&str] = &["-O1", "-fsanitize=address,alignment,bounds", "-fno-sanitize-recover=all"];

/// A path that no other process has.
fn own(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("kernels-{name}-{}", std::process::id()))
}

/// Compiles the kernels in `sources` into the program `name`. Several processes may do so at once.
fn compile(sources: &Path, name: &str, flags: &[&str]) -> PathBuf {
    let (written, program) =
        (own(name), Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("kernels-{name}")));
    let host = root().join("tests/kernels");
    let mut compiler = Command::new("c++");
    // Contraction would make one rounding of two, and the kernels see one memory as elements of several types.
    compiler
        .args(["-std=c++17", "-ffp-contract=off", "-fno-strict-aliasing", "-rdynamic", "-pthread"])
        .args(flags);
    compiler.arg("-I").arg(&host).arg("-I").arg(sources);
    compiler.arg(host.join("program.cpp")).arg("-o").arg(&written).arg("-ldl");
    let status = compiler.status().expect("a C++ compiler `c++`");
    assert!(status.success(), "{compiler:?} fails");
    fs::rename(&written, &program).expect("a name");
    program
}

/// A running program.
#[derive(Debug)]
pub(crate) struct Device(Child);

impl Device {
    /// With the kernels as they are.
    pub(crate) fn new() -> Device {
        static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| compile(&sources(), "as-they-are", SANITISED));
        Device::start(&PROGRAM, Stdio::inherit())
    }

    /// With one text of the kernels replaced by another. What it says when it dies is not shown.
    ///
    /// # Panics
    ///
    /// If the text is not in the file.
    pub(crate) fn altered(name: &str, (file, from, to): (&str, &str, &str), sanitised: bool) -> Device {
        let folder = own(&format!("{name}-sources"));
        fs::create_dir_all(&folder).expect("a folder");
        for entry in fs::read_dir(sources()).expect("the sources") {
            let path = entry.expect("an entry").path();
            fs::copy(&path, folder.join(path.file_name().expect("a name"))).expect("a copy");
        }
        let path = folder.join(file);
        let text = fs::read_to_string(&path).expect("a source");
        assert!(text.contains(from), "{file} has no `{from}`");
        fs::write(&path, text.replace(from, to)).expect("a copy");
        let flags = if sanitised { SANITISED } else { &["-O0"] };
        let program = compile(&folder, name, flags);
        fs::remove_dir_all(&folder).expect("to remove it");
        Device::start(&program, Stdio::null())
    }

    fn start(program: &Path, errors: Stdio) -> Device {
        let mut start = Command::new(program);
        // A launch that is refused ends the process in the middle, and what it leaves is no leak.
        start.env("ASAN_OPTIONS", "detect_leaks=0").stdin(Stdio::piped()).stdout(Stdio::piped());
        Device(start.stderr(errors).spawn().expect("the kernels' program starts"))
    }

    /// Launches a kernel, waits for it and brings back the buffers. `None`: the program has died in it, and says why on
    /// standard error.
    pub(crate) fn launch(
        &mut self,
        kernel: &str,
        (grid, block): (u32, u32),
        buffers: &mut [Buffer],
        parameters: &Block,
    ) -> Option<()> {
        let mut launch = Vec::new();
        let word = |launch: &mut Vec<u8>, value: usize| {
            launch.extend(u32::try_from(value).expect("fewer than 4 GiB").to_le_bytes());
        };
        word(&mut launch, kernel.len());
        launch.extend(kernel.as_bytes());
        word(&mut launch, grid as usize);
        word(&mut launch, block as usize);
        word(&mut launch, buffers.len());
        for Buffer { shift, bytes } in &*buffers {
            word(&mut launch, *shift);
            word(&mut launch, bytes.len());
            launch.extend(bytes);
        }
        word(&mut launch, parameters.bytes.len());
        launch.extend(&parameters.bytes);
        word(&mut launch, parameters.addresses.len());
        for (at, buffer) in &parameters.addresses {
            word(&mut launch, *at);
            word(&mut launch, *buffer);
        }
        let stdin = self.0.stdin.as_mut().expect("a pipe");
        stdin.write_all(&launch).and_then(|()| stdin.flush()).ok()?;
        let stdout = self.0.stdout.as_mut().expect("a pipe");
        buffers.iter_mut().try_for_each(|buffer| stdout.read_exact(&mut buffer.bytes)).ok()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}
