//! Runs programs in the other guest of the rig (`cargo xtask softroce`) as if they were started here.
//!
//! ```text
//! elsewhere serve ADDRESS
//! elsewhere run ADDRESS PROGRAM ARGUMENT...
//! ```
//!
//! Standard streams, environment, exit code and the folder, if it is there, pass through, but for the variables
//! `SLACKLINE_RIG_*`, which are those of the guest where the program runs; one that died of signal `n` counts as
//! `128 + n`. The end of the client, by kill -9 too, ends the program and all that it started. There is no secret: this
//! is for networks that no other host is on.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Longest string or piece of a stream that is taken.
const BYTES_MAX: usize = 1 << 20;

/// Kinds of frames. A stream's empty frame is its end.
const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const EXIT: u8 = 3;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let call: Vec<&OsStr> = arguments.iter().map(OsString::as_os_str).collect();
    let done = match call.as_slice() {
        [mode, address] if *mode == "serve" => listen(address).map(|listener| serve(&listener)),
        [mode, address, program @ ..] if *mode == "run" && !program.is_empty() => {
            client(address, program).map(|code| std::process::exit(code))
        }
        _ => {
            eprintln!("usage: elsewhere serve ADDRESS | run ADDRESS PROGRAM ARGUMENT...");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("elsewhere: {error}");
            ExitCode::from(255)
        }
    }
}

fn listen(address: &OsStr) -> io::Result<TcpListener> {
    TcpListener::bind(address.to_string_lossy().as_ref())
}

fn client(address: &OsStr, program: &[&OsStr]) -> io::Result<i32> {
    let stream = ask(TcpStream::connect(address.to_string_lossy().as_ref())?, program, std::env::vars_os())?;
    let mut input = stream.try_clone()?;
    thread::spawn(move || pump(&mut io::stdin(), |piece| frame(&mut input, STDIN, piece)));
    follow(stream, &mut io::stdout(), &mut io::stderr())
}

// ---------------------------------------------------------------------- the client

/// Asks for a program to be run.
fn ask(
    mut stream: TcpStream,
    program: &[&OsStr],
    environment: impl Iterator<Item = (OsString, OsString)>,
) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    let mut bytes = Vec::new();
    put(&mut bytes, std::env::current_dir()?.as_os_str())?;
    let variables: Vec<OsString> = environment.flat_map(|(name, value)| [name, value]).collect();
    for list in [program, &variables.iter().map(OsString::as_os_str).collect::<Vec<_>>()] {
        bytes.extend((list.len() as u32).to_le_bytes());
        list.iter().try_for_each(|text| put(&mut bytes, text))?;
    }
    stream.write_all(&bytes)?;
    Ok(stream)
}

/// Writes what comes until the exit code does.
fn follow(mut stream: TcpStream, out: &mut impl Write, err: &mut impl Write) -> io::Result<i32> {
    loop {
        let (kind, piece) = take(&mut stream)?;
        match (kind, <[u8; 4]>::try_from(piece.as_slice())) {
            (STDOUT, _) => out.write_all(&piece).and_then(|()| out.flush())?,
            (STDERR, _) => err.write_all(&piece)?,
            (EXIT, Ok(code)) => return Ok(i32::from_le_bytes(code)),
            _ => return Err(io::Error::other(format!("a frame of kind {kind}"))),
        }
    }
}

// ---------------------------------------------------------------------- the server

fn serve(listener: &TcpListener) {
    for stream in listener.incoming().flatten() {
        thread::spawn(move || {
            if let Err(error) = answer(&stream) {
                let text = format!("elsewhere: {error}\n");
                let told = frame(&mut &stream, STDERR, text.as_bytes());
                let _has_gone = told.and_then(|()| frame(&mut &stream, EXIT, &255_i32.to_le_bytes()));
            }
        });
    }
}

/// Runs what one client asks for.
fn answer(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = stream.try_clone()?;
    let folder = text(&mut reader)?;
    let (program, environment) = (list(&mut reader)?, list(&mut reader)?);
    // In a session of its own: its number then names all that it starts.
    let mut child = Command::new("setsid")
        .args(&program)
        .current_dir(if Path::new(&folder).is_dir() { folder } else { "/".into() })
        .env_clear()
        .envs(
            environment.chunks_exact(2).map(|pair| (&pair[0], &pair[1])).filter(|pair| !is_of_guest(pair.0)),
        )
        .envs(std::env::vars_os().filter(|pair| is_of_guest(&pair.0)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let (group, over) = (child.id(), AtomicBool::new(false));
    let writer = Mutex::new(stream);
    let send = |kind, piece: &[u8]| frame(&mut *writer.lock().expect("no writer panics"), kind, piece);
    let Child { stdin, stdout, stderr, .. } = &mut child;
    let (mut stdin, mut stdout, mut stderr) = (stdin.take(), stdout.take(), stderr.take());
    thread::scope(|scope| {
        scope.spawn(|| {
            while let Ok((STDIN, piece)) = take(&mut reader) {
                // One that reads no more is not told.
                if piece.is_empty() || stdin.as_mut().is_some_and(|pipe| pipe.write_all(&piece).is_err()) {
                    stdin = None;
                }
            }
            if !over.load(Ordering::Acquire) {
                end(group);
            }
        });
        let out = scope.spawn(|| stdout.as_mut().map(|pipe| pump(pipe, |piece| data(&send, STDOUT, piece))));
        let err = scope.spawn(|| stderr.as_mut().map(|pipe| pump(pipe, |piece| data(&send, STDERR, piece))));
        let status = child.wait();
        over.store(true, Ordering::Release);
        // What it left behind would hold the pipes.
        end(group);
        let (_sent, _sent_too) = (out.join(), err.join());
        let told = status.and_then(|status| send(EXIT, &code(status).to_le_bytes()));
        stream.shutdown(Shutdown::Both)?;
        told
    })
}

/// Whether a variable tells a program where it is.
fn is_of_guest(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b"SLACKLINE_RIG_")
}

/// The ends of the program's output are known by its exit code.
fn data(send: &impl Fn(u8, &[u8]) -> io::Result<()>, kind: u8, piece: &[u8]) -> io::Result<()> {
    if piece.is_empty() { Ok(()) } else { send(kind, piece) }
}

fn end(group: u32) {
    let group = format!("-{group}");
    let _ended_already = Command::new("kill").args(["-9", "--", &group]).stderr(Stdio::null()).status();
}

fn code(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(255)
}

// ---------------------------------------------------------------------- the wire

/// Hands over a stream piece by piece, and an empty piece at its end.
fn pump(from: &mut impl Read, mut to: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    let mut piece = vec![0; 1 << 16];
    loop {
        let count = from.read(&mut piece)?;
        to(&piece[..count])?;
        if count == 0 {
            return Ok(());
        }
    }
}

fn frame(to: &mut impl Write, kind: u8, piece: &[u8]) -> io::Result<()> {
    let mut bytes = vec![kind];
    put(&mut bytes, OsStr::from_bytes(piece))?;
    to.write_all(&bytes)
}

fn take(from: &mut impl Read) -> io::Result<(u8, Vec<u8>)> {
    let mut kind = [0];
    from.read_exact(&mut kind)?;
    Ok((kind[0], text(from)?.into_vec()))
}

fn put(bytes: &mut Vec<u8>, text: &OsStr) -> io::Result<()> {
    if text.len() > BYTES_MAX {
        return Err(io::Error::other(format!("a text of {} bytes is too long", text.len())));
    }
    bytes.extend((text.len() as u32).to_le_bytes());
    bytes.extend(text.as_bytes());
    Ok(())
}

fn text(from: &mut impl Read) -> io::Result<OsString> {
    let mut bytes = vec![0; number(from)?];
    from.read_exact(&mut bytes)?;
    Ok(OsString::from_vec(bytes))
}

fn list(from: &mut impl Read) -> io::Result<Vec<OsString>> {
    (0..number(from)?).map(|_| text(from)).collect()
}

fn number(from: &mut impl Read) -> io::Result<usize> {
    let mut bytes = [0; 4];
    from.read_exact(&mut bytes)?;
    let number = u32::from_le_bytes(bytes) as usize;
    if number > BYTES_MAX {
        return Err(io::Error::other(format!("{number} is too many")));
    }
    Ok(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    /// A server's answer to one client.
    fn start(script: &str, variable: &str) -> TcpStream {
        let listener = listen(OsStr::new("127.0.0.1:0")).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        thread::spawn(move || serve(&listener));
        let environment = std::env::vars_os().chain([("A_VARIABLE".into(), variable.into())]);
        ask(stream, &["sh", "-c", script].map(OsStr::new), environment).unwrap()
    }

    #[test]
    fn streams_environment_and_exit_code_pass_through() {
        let mut stream = start("cat; echo $A_VARIABLE >&2; exit 7", "its value");
        for piece in ["a word", ""] {
            frame(&mut stream, STDIN, piece.as_bytes()).unwrap();
        }
        let (mut out, mut err) = (Vec::new(), Vec::new());
        assert_eq!(follow(stream, &mut out, &mut err).unwrap(), 7);
        assert_eq!((out.as_slice(), err.as_slice()), (&b"a word"[..], &b"its value\n"[..]));
    }

    #[test]
    fn one_that_dies_of_a_signal_says_which() {
        let stream = start("kill -9 $$", "");
        assert_eq!(follow(stream, &mut Vec::new(), &mut Vec::new()).unwrap(), 128 + 9);
    }

    #[test]
    fn what_a_program_started_is_gone_with_its_client() {
        let mut stream = start("sleep 1000 & echo $!; wait", "");
        let (kind, said) = take(&mut stream).unwrap();
        assert_eq!(kind, STDOUT);
        let process = format!("/proc/{}/exe", String::from_utf8(said).unwrap().trim());
        assert!(Path::new(&process).exists());
        drop(stream);
        let deadline = Instant::now() + Duration::from_secs(30);
        while std::fs::read_link(&process).is_ok() {
            assert!(Instant::now() < deadline, "it still runs");
            thread::sleep(Duration::from_millis(10));
        }
    }
}
