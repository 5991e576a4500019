//! The other process of the programs that run on a GPU: it publishes, reads or serves as the lines of its standard
//! input say, and answers each with a line. It ends with its standard input.

#[path = "member.rs"]
pub(crate) mod member;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use slackline::gpu::{Gpu, GpuMemory};
use slackline::internals::cuda::{BareGpu, GpuFold, GpuKernels};
use slackline::optim::Optimizer;
use slackline::scheme::SchemeConfig;
use slackline::weights::{BackgroundPublisher, Publisher, PublisherOptions, Reader, ReaderOptions, Wanted};
use slackline::{
    Address, ElementType, Encoding, Server, ServerOptions, Shm, Table, Tcp, Transport, Version, VersionTag,
};

/// The environment variable that says of a process that it is the other one, and its role.
pub(crate) const ROLE: &str = "SLACKLINE_GPU_PEER";

/// Longest time that a program waits for the other process, or for the GPU.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// What answers begin with; what a test harness prints in the same line comes before them.
const ANSWER: &str = "answer: ";

pub(crate) type Outcome<R> = Result<R, Box<dyn std::error::Error>>;

/// The byte that fills a version throughout.
pub(crate) fn fill_of(version: Version) -> u8 {
    (version.get() % 251) as u8
}

/// A byte of a version whose bytes differ from block to block, by its index.
pub(crate) fn number_of(at: usize) -> u8 {
    (at >> 10) as u8 ^ (at >> 18) as u8
}

/// A process that was started, and the address at which it publishes or serves.
pub(crate) struct Peer {
    pub(crate) child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    pub(crate) address: Option<Address>,
}

impl Peer {
    /// Starts `program` as the other process. The roles are `publish`, `publish-lent` (with frames in memory that it
    /// has allocated itself) and `publish-host` over shared memory, `publish-tcp`, `serve`, `serve-tcp` and, with the
    /// address of a publisher behind it, `read`, or, with those of the other members, `group` and `group-tcp`; `bytes`
    /// are those of a version.
    pub(crate) fn start(mut program: Command, role: &str, bytes: usize) -> Outcome<Peer> {
        program.env(ROLE, format!("{bytes} {role}")).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = program.spawn()?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().ok_or("no output")?);
        let mut peer = Peer { child, input, output, address: None };
        let address = peer.answer()?;
        peer.address = (!address.is_empty()).then(|| address.parse()).transpose()?;
        Ok(peer)
    }

    pub(crate) fn address(&self) -> Outcome<&Address> {
        Ok(self.address.as_ref().ok_or("the other process has no address")?)
    }

    /// Says a line, and returns the answer.
    pub(crate) fn ask(&mut self, line: &str) -> Outcome<String> {
        writeln!(self.input.as_mut().ok_or("its input is closed")?, "{line}")?;
        self.answer()
    }

    /// Has it publish a version; its number.
    pub(crate) fn publish(&mut self) -> Outcome<Version> {
        Ok(Version::new(self.ask("publish")?.parse()?))
    }

    fn answer(&mut self) -> Outcome<String> {
        let mut line = String::new();
        while self.output.read_line(&mut line)? > 0 {
            if let Some((_, answer)) = line.split_once(ANSWER) {
                return Ok(answer.trim().into());
            }
            line.clear();
        }
        Err(format!("the other process has ended: {:?}", self.child.wait()?).into())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        drop(self.input.take());
        // It has ended, or does so now.
        let _ended = self.child.wait();
    }
}

/// Is the other process, on this GPU, if this one is meant to be.
pub(crate) fn serve(gpu: &Gpu) -> Outcome<bool> {
    let Ok(role) = std::env::var(ROLE) else { return Ok(false) };
    let (bytes, role) = role.split_once(' ').ok_or("a role has a number of bytes")?;
    let bytes = bytes.parse()?;
    let tcp = "127.0.0.1:0".parse()?;
    match role.split_once(' ').unwrap_or((role, "")) {
        ("publish", _) => publish(gpu, bytes, Shm::new().with_gpu(gpu), Address::random())?,
        ("publish-lent", _) => publish_lent(gpu, bytes)?,
        ("publish-host", _) => publish(gpu, bytes, Shm::new(), Address::random())?,
        ("publish-tcp", _) => publish(gpu, bytes, Tcp::new().with_gpu(gpu), tcp)?,
        ("serve", _) => serve_gradients(bytes, Shm::new().with_gpu(gpu), &Address::random())?,
        ("serve-tcp", _) => serve_gradients(bytes, Tcp::new(), &tcp)?,
        ("group", others) => {
            group(gpu, Shm::new().with_gpu(gpu), Address::random(), others)?;
        }
        ("group-tcp", others) => group(gpu, Tcp::new().with_gpu(gpu), tcp, others)?,
        ("read", address) => read(gpu, bytes, &address.parse()?)?,
        _ => return Err(format!("there is no role {role}").into()),
    }
    Ok(true)
}

fn answer(text: impl std::fmt::Display) -> Outcome<()> {
    let mut output = std::io::stdout().lock();
    writeln!(output, "\n{ANSWER}{text}")?;
    Ok(output.flush()?)
}

/// The next line of standard input; `None` at its end.
fn next_line() -> Option<String> {
    let mut line = String::new();
    let is_there = std::io::stdin().read_line(&mut line).is_ok_and(|bytes| bytes > 0);
    is_there.then(|| line.trim().into())
}

fn publish<T: Transport + 'static>(gpu: &Gpu, bytes: usize, transport: T, address: Address) -> Outcome<()> {
    publish_with(gpu, bytes, (transport, address), PublisherOptions::default())
}

/// With frames in memory of `cuMemAlloc`.
fn publish_lent(gpu: &Gpu, bytes: usize) -> Outcome<()> {
    let mut options = PublisherOptions::default();
    let frames = usize::from(options.memory.frames) * bytes.next_multiple_of(4096);
    options.gpu_memory = Some(BareGpu::new(gpu, 8)?.classic(frames)?);
    publish_with(gpu, bytes, (Shm::new().with_gpu(gpu), Address::random()), options)
}

fn publish_with<T: Transport + 'static>(
    gpu: &Gpu,
    bytes: usize,
    (transport, address): (T, Address),
    options: PublisherOptions,
) -> Outcome<()> {
    let table = Table::flat(bytes as u64, ElementType::U8)?;
    let lent = options.gpu_memory.clone();
    let publisher = Publisher::new(transport, &address, table, options)?.into_background()?;
    let (mut bare, weights) = (BareGpu::new(gpu, bytes)?, GpuMemory::allocate(gpu, bytes)?);
    answer(publisher.address())?;
    while let Some(line) = next_line() {
        match line.as_str() {
            "publish" => drop(publish_filled(&publisher, &mut bare, &weights)?),
            "numbered" => {
                let numbers: Vec<u8> = (0..bytes).map(number_of).collect();
                publish_bytes(&publisher, &mut bare, &weights, &numbers)?;
            }
            // Whether a frame in its own memory has the newest version.
            "lent" => {
                let lent = lent.as_ref().ok_or("its frames are the library's own")?;
                answer(has_frame_of(publisher.version(), &mut bare, lent, bytes)?)?;
                continue;
            }
            "fault" => {
                answer(fault(gpu, &publisher, &mut bare, &weights)?)?;
                continue;
            }
            // The same by a kernel, after which nothing is published by other means.
            "run-kernel" => {
                let frames = publisher.lend_frames().ok_or("its frames are in host memory")?;
                let mut kernel = BareGpu::on_another_stream(gpu, 8)?;
                kernel.publish(&frames)?;
                answer("it runs")?;
                let _line = next_line();
                answer(kernel.stop_publishing(&frames)?)?;
                continue;
            }
            // Versions without a pause, until the next line.
            "run" => {
                let is_over = AtomicBool::new(false);
                std::thread::scope(|scope| -> Outcome<()> {
                    answer("it runs")?;
                    scope.spawn(|| {
                        let _line = next_line();
                        is_over.store(true, Relaxed);
                    });
                    while !is_over.load(Relaxed) {
                        publish_filled(&publisher, &mut bare, &weights)?;
                    }
                    Ok(())
                })?;
            }
            other => return Err(format!("a publisher does not know `{other}`").into()),
        }
        answer(publisher.version().get())?;
    }
    Ok(())
}

/// Publishes the next version, filled throughout with the byte that goes with its number, out of `weights`.
pub(crate) fn publish_filled<T: Transport>(
    publisher: &BackgroundPublisher<T>,
    bare: &mut BareGpu,
    weights: &GpuMemory,
) -> Outcome<Version> {
    let fill = fill_of(publisher.version().next());
    publish_bytes(publisher, bare, weights, &vec![fill; weights.bytes()])
}

fn has_frame_of(version: Version, bare: &mut BareGpu, frames: &GpuMemory, bytes: usize) -> Outcome<bool> {
    for begin in (0..frames.bytes()).step_by(bytes.next_multiple_of(4096)) {
        let frame = bare.read(&frames.slice(begin, bytes)?)?;
        if frame.iter().all(|byte| *byte == fill_of(version)) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn publish_bytes<T: Transport>(
    publisher: &BackgroundPublisher<T>,
    bare: &mut BareGpu,
    weights: &GpuMemory,
    bytes: &[u8],
) -> Outcome<Version> {
    bare.write(&weights.whole(), bytes)?;
    let mut draft = publisher.draft(PATIENCE)?;
    draft.copy_from_gpu(0, &weights.whole(), &bare.stream()?)?;
    Ok(draft.commit_when_copied(VersionTag::default()).wait(PATIENCE)?)
}

/// Has a kernel of this process fault, and publishes until the error comes; its text.
fn fault<T: Transport>(
    gpu: &Gpu,
    publisher: &BackgroundPublisher<T>,
    bare: &mut BareGpu,
    weights: &GpuMemory,
) -> Outcome<String> {
    let optimizer = Optimizer::Sgd { weight_decay: 0.0 };
    let (kernels, stream, array) =
        (GpuKernels::load(gpu, &optimizer)?, bare.stream()?, GpuMemory::allocate(gpu, 64)?);
    let fold = GpuFold {
        optimizer,
        learning_rate: 1.0,
        step: 1,
        encoding: Encoding::F32,
        gradients: [(array.whole(), 1.0)].into_iter().collect(),
        arrays: [(array.whole(), array.whole())].into_iter().collect(),
        elements: 0..16,
    };
    bare.launch_fault(&kernels, fold)?;
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        let publish = || {
            let mut draft = publisher.draft(PATIENCE)?;
            draft.copy_from_gpu(0, &weights.whole(), &stream)?;
            draft.commit_when_copied(VersionTag::default()).wait(PATIENCE)
        };
        if let Err(error) = publish() {
            return Ok(error.to_string());
        }
    }
    Err("the fault was never told".into())
}

/// A server of parameters where the transport has its payloads.
fn serve_gradients<T: Transport>(bytes: usize, transport: T, address: &Address) -> Outcome<()> {
    let elements = bytes / 4;
    let table = Table::flat(elements as u64, ElementType::F32)?;
    let options = ServerOptions::new(SchemeConfig::Bsp, 1, 0.5);
    let mut server = Server::new(transport, address, table, &vec![1.0; elements], options)?;
    answer(server.address())?;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| -> Outcome<()> {
        scope.spawn(|| {
            while next_line().is_some() {}
            is_over.store(true, Relaxed);
        });
        while !server.drive(|_| is_over.load(Relaxed), PATIENCE)? {}
        Ok(())
    })
}

/// A member of a group, which says at the end that all its means were right.
fn group<T: Transport>(gpu: &Gpu, transport: T, own: Address, others: &str) -> Outcome<()> {
    member::join(gpu, transport, own, others, || answer(""))?;
    let _line = next_line();
    answer("it has the bits of processors")
}

/// A reader into memory of the GPU: says the number of the newest version and the byte that fills it, or that several
/// do.
fn read(gpu: &Gpu, bytes: usize, address: &Address) -> Outcome<()> {
    let (mut bare, weights) = (BareGpu::new(gpu, bytes)?, GpuMemory::allocate(gpu, bytes)?);
    let options = ReaderOptions::default();
    let mut reader = Reader::connect(Shm::new().with_gpu(gpu), address, options, PATIENCE)?;
    answer("")?;
    while next_line().is_some() {
        let weights = weights.whole();
        let fresh = reader.pull_to_gpu(Wanted::newest(), &weights, &bare.stream()?, PATIENCE)?;
        let seen = bare.read(&weights)?;
        let fill = seen.iter().all(|byte| *byte == seen[0]).then(|| seen[0].to_string());
        answer(format!("{} {}", fresh.version.get(), fill.unwrap_or_else(|| "several".into())))?;
    }
    Ok(())
}
