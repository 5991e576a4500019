//! Measurements of one process alone: copies and kernels.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use slackline::internals::kernel::{Fold, Gradient, Pass, triad as run_triad};
use slackline::internals::mem::{Access, HostMemory, VolatileSlice, Way, streaming_threshold};
use slackline::optim::Optimizer;
use slackline::{Encoding, Shm, Transport};

use super::error::BenchError;
use super::measure::{calls, time};
use super::pin::{cores, pin_to};
use super::report::{Measured, bandwidth, duration, rate};
use super::settings::Settings;
use super::timing::Timing;

/// The best copy that this machine has between private and shared memory, as the transport allocates them.
pub(super) fn memcpy(settings: &Settings, bytes: u64) -> Result<Measured, BenchError> {
    if let (true, Some(core)) = (settings.pin, cores().first()) {
        pin_to(*core);
    }
    let shm = Shm::new();
    let private = shm.allocate(bytes as usize, Access::LOCAL)?;
    let shared = shm.allocate(bytes as usize, Access::REMOTE_WRITE)?;
    fill(private.as_volatile());
    fill(shared.as_volatile());
    let (from, to) = if settings.from_shared { (&shared, &private) } else { (&private, &shared) };
    let (threads, cores) = (usize::from(settings.threads), if settings.pin { cores() } else { &[] });
    let run = |way: Way, name: &str| {
        time(settings, &format!("{name} of {bytes} bytes"), |count| {
            if threads == 1 {
                let (from, to) = (from.as_volatile(), to.as_volatile());
                return calls(count, || {
                    to.copy_by(from, way, 1);
                    Ok(())
                });
            }
            // Each thread copies one part, from beginning to end, without a word to the others.
            let part = |begin: usize, len: usize| {
                let [from, to] = [from, to].map(|memory| memory.as_volatile().subslice(begin, len));
                to.copy_by(from, way, 1);
                Ok(())
            };
            (0..count).map(|_| in_parts(bytes as usize, threads, cores, part)).sum()
        })
    };
    let names = ["by libc", "by the string instruction", "past the caches"];
    let timings = [run(Way::Libc, names[0])?, run(Way::String, names[1])?, run(Way::Stream, names[2])?];
    let rates = timings.map(|timing| rate(bytes, timing.latency.p50));
    let best =
        timings.into_iter().min_by(|a, b| a.latency.p50.total_cmp(&b.latency.p50)).unwrap_or(timings[0]);
    let note: Vec<String> =
        names.iter().zip(rates).map(|(name, rate)| format!("{name} {}", bandwidth(rate))).collect();
    Ok(Measured::new(settings.op.name(), bytes, bytes, best)
        .with("from_shared", settings.from_shared)
        .with("threads", settings.threads)
        .with("libc_bytes_per_s", rates[0])
        .with("string_bytes_per_s", rates[1])
        .with("streaming_bytes_per_s", rates[2])
        .note(note.join(", ")))
}

/// A fold of gradients into parameters.
pub(super) fn apply(settings: &Settings, bytes: u64) -> Result<Measured, BenchError> {
    let optimizer = settings.optimizer.optimizer();
    let kind = Kind::Fold { optimizer, k: usize::from(settings.k), shared: false };
    let measured = over_arrays(settings, kind, bytes)?;
    let name = settings.optimizer.name();
    Ok(measured.with("k", settings.k).with("optimizer", name).with("parameters", bytes / 4))
}

/// STREAM's triad.
pub(super) fn triad(settings: &Settings, bytes: u64) -> Result<Measured, BenchError> {
    over_arrays(settings, Kind::Triad, bytes)
}

fn over_arrays(settings: &Settings, kind: Kind, bytes: u64) -> Result<Measured, BenchError> {
    let arrays = Arrays::new(kind, bytes as usize)?;
    let cores = if settings.pin { cores() } else { &[] };
    let threads = usize::from(settings.threads);
    let timing: Timing = time(settings, &format!("over {bytes} bytes"), |count| {
        (0..count).map(|_| arrays.run(threads, cores)).sum()
    })?;
    let moved = bytes * kind.streams() as u64;
    let best = rate(moved, timing.latency.min);
    let note = format!("best {} in {}", bandwidth(best), duration(timing.latency.min));
    Ok(Measured::new(settings.op.name(), bytes, moved, timing)
        .with("threads", settings.threads)
        .with("pinned", settings.pin)
        .with("best_bytes_per_s", best)
        .note(note))
}

/// The kernel that runs over whole arrays.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// `shared`: in shared memory, as a server's frames and slots are.
    Fold {
        optimizer: Optimizer,
        k: usize,
        shared: bool,
    },
    Triad,
}

impl Kind {
    /// Arrays that one pass reads or writes.
    fn streams(self) -> usize {
        match self {
            Kind::Fold { optimizer, k, .. } => k + 2 + 2 * optimizer.states(),
            Kind::Triad => 3,
        }
    }
}

/// The arrays, every page of them touched.
pub(super) struct Arrays {
    kind: Kind,
    /// Parameters from and to, then each state from and to, then gradients; or the three of the triad.
    arrays: Vec<HostMemory>,
}

impl Arrays {
    pub(super) fn new(kind: Kind, bytes: usize) -> Result<Arrays, BenchError> {
        let shared = matches!(kind, Kind::Fold { shared: true, .. });
        let allocate = || if shared { HostMemory::shared(bytes) } else { HostMemory::anonymous(bytes) };
        let arrays = (0..kind.streams()).map(|_| allocate()).collect::<Result<Vec<_>, _>>()?;
        for array in &arrays {
            fill(array.as_volatile());
        }
        Ok(Arrays { kind, arrays })
    }

    /// One pass by so many threads, each over its part, on `cores` if there are any; from the first to begin to the
    /// last to end.
    pub(super) fn run(&self, threads: usize, cores: &[usize]) -> Result<Duration, BenchError> {
        in_parts(self.arrays[0].len(), threads, cores, |begin, len| {
            let parts: Vec<_> =
                self.arrays.iter().map(|array| array.as_volatile().subslice(begin, len)).collect();
            self.pass(&parts)
        })
    }

    fn pass(&self, parts: &[VolatileSlice<'_>]) -> Result<(), BenchError> {
        if parts[0].is_empty() {
            return Ok(());
        }
        let Kind::Fold { optimizer, k, .. } = self.kind else {
            run_triad(parts[0], parts[1], parts[2], 0.5);
            return Ok(());
        };
        let passes: Vec<Pass<'_>> = parts[..2 + 2 * optimizer.states()]
            .chunks_exact(2)
            .map(|pair| Pass { from: pair[0], to: pair[1] })
            .collect();
        let gradients: Vec<Gradient<'_>> = parts[2 + 2 * optimizer.states()..]
            .iter()
            .map(|elements| Gradient { elements: *elements, weight: 1.0 / k as f32 })
            .collect();
        let fold = Fold {
            gradients: &gradients,
            encoding: Encoding::F32,
            optimizer,
            learning_rate: 1e-3,
            step: 10,
            parameters: passes[0],
            states: &passes[1..],
            streaming: self.arrays[0].len() >= streaming_threshold(),
        };
        Ok(fold.run().map(drop)?)
    }
}

/// Does `work` from a begin on for a length, on so many threads, each for its part of `bytes`, on `cores` if there are
/// any; from the first to begin to the last to end.
fn in_parts(
    bytes: usize,
    threads: usize,
    cores: &[usize],
    work: impl Fn(usize, usize) -> Result<(), BenchError> + Sync,
) -> Result<Duration, BenchError> {
    let barrier = Barrier::new(threads);
    let work = |thread: usize| {
        if !cores.is_empty() {
            pin_to(cores[thread % cores.len()]);
        }
        let (begin, len) = part(bytes, threads, thread);
        barrier.wait();
        let begun = Instant::now();
        work(begin, len)?;
        Ok::<_, BenchError>((begun, Instant::now()))
    };
    if threads == 1 && cores.is_empty() {
        let (begun, ended) = work(0)?;
        return Ok(ended - begun);
    }
    let times = std::thread::scope(|scope| {
        let work = &work;
        let running: Vec<_> = (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
        let ended = running.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|_| Err(BenchError::Peer("a thread panicked".into())))
        });
        ended.collect::<Result<Vec<_>, _>>()
    })?;
    let begun = times.iter().map(|(begun, _)| *begun).min();
    let ended = times.iter().map(|(_, ended)| *ended).max();
    Ok(begun.zip(ended).map_or(Duration::ZERO, |(begun, ended)| ended - begun))
}

/// The begin and the length of a thread's part of so many bytes, in whole lines but for the last.
fn part(bytes: usize, threads: usize, thread: usize) -> (usize, usize) {
    let each = bytes.div_ceil(threads).next_multiple_of(64);
    let begin = (thread * each).min(bytes);
    (begin, each.min(bytes - begin))
}

/// Small numbers, so that no pass meets anything but ordinary ones.
fn fill(memory: VolatileSlice<'_>) {
    let piece: Vec<u8> = (0..1 << 16).flat_map(|i: u32| (1e-3 * (i % 7 + 1) as f32).to_le_bytes()).collect();
    for at in (0..memory.len()).step_by(piece.len()) {
        let len = piece.len().min(memory.len() - at);
        memory.subslice(at, len).write(&piece[..len]);
    }
}

#[cfg(test)]
mod tests {
    use super::part;

    #[test]
    fn the_parts_of_all_threads_are_all_bytes_each_once() {
        for bytes in [1, 4, 63, 64, 65, 100, 1000, 4100, 1 << 20, (1 << 20) + 12] {
            for threads in [1, 2, 3, 7, 64, 1024] {
                let mut end = 0;
                for (begin, len) in (0..threads).map(|thread| part(bytes, threads, thread)) {
                    assert_eq!(begin, end, "{bytes} bytes, {threads} threads");
                    end = begin + len;
                }
                assert_eq!(end, bytes, "{threads} threads");
            }
        }
    }
}
