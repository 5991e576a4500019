//! A connection of this process with itself, and what is tried over it.
//!
//! Everything is done as between two separate processes: through the public interface of a transport, with the grants
//! of a handshake. What is timed is one request at a time; every byte is compared.

use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::{Duration, Instant};

use slackline::internals::mem::{
    Access, HostMemory, MemoryRegion, PAGE_SIZE, RemoteSlice, Streaming, VolatileSlice,
};
use slackline::internals::transport::{
    AtomicDomain, Connecting, Endpoint, Incoming, Inline, Listener, Offer, Operation, PostError,
    RegisterError, WorkRequest,
};
use slackline::{Address, Transport};

use super::check::{Check, CheckProgress, Figure, Problem};

/// No request and no handshake takes longer where things work.
const PATIENCE: Duration = Duration::from_secs(10);

/// Time that one figure may take to find, and the least and the most rounds of which it is the median.
const BUDGET: Duration = Duration::from_millis(100);
const ROUNDS: std::ops::RangeInclusive<usize> = 3..=200;

/// Turns of a wait before it lets others run.
const SPINS: u32 = 1000;

/// Memory that is registered to be written: more than the limit on locked memory that systems have by default.
const PAYLOAD_BYTES: usize = 16 << 20;
const LONG: usize = 1 << 20;
const SHORT: usize = 8;
const HUGE_PAGE: usize = 2 << 20;

/// Offsets in the memory for words: of the word that announces, and of the word for atomics.
const ANNOUNCED: usize = 0;
const COUNTED: usize = 64;

/// Tries all that the library needs, one thing after another, up to the first that fails. `atomics_fault` says why
/// atomics are not used although there are some.
pub(super) fn try_all<T: Transport>(
    transport: &T,
    at: &Address,
    atomics_fault: Option<&str>,
    progress: &CheckProgress,
) -> Vec<Check> {
    let mut checks = Vec::new();
    // What comes after a failure builds upon what failed.
    if let Err(failed) = try_in_turn(transport, at, atomics_fault, progress, &mut checks) {
        checks.push(failed);
    }
    checks
}

fn try_in_turn<T: Transport>(
    transport: &T,
    at: &Address,
    atomics_fault: Option<&str>,
    progress: &CheckProgress,
    checks: &mut Vec<Check>,
) -> Result<(), Check> {
    let capabilities = transport.capabilities();
    let name = capabilities.name;
    progress.go_on(format!("{name}: registering memory"));
    let begun = Instant::now();
    let payload = transport
        .allocate(PAYLOAD_BYTES, Access::REMOTE_READ | Access::REMOTE_WRITE | Access::RELAXED)
        .map_err(|error| Check::failed("host-memory", error.into()))?;
    checks.push(Check::ok("host-memory", [Figure::registered(PAYLOAD_BYTES, nanos(begun.elapsed()))]));
    let huge = match huge_pages(transport) {
        Ok(registered) => Some(registered),
        Err(check) => {
            checks.push(check);
            None
        }
    };

    progress.go_on(format!("{name}: connecting"));
    let begun = Instant::now();
    let memory = huge.as_ref().map(|(region, _)| region);
    let mut loopback = Loopback::connect(transport, at, &payload, memory, progress)
        .map_err(|problem| Check::failed("connect", problem))?;
    let connected = begun.elapsed();
    if let (Some(granted), Some((_, registered))) = (loopback.huge.clone(), huge) {
        let result = loopback.median("huge pages", |loopback, round| {
            loopback.write(&granted, LONG, round)?;
            loopback.read(&granted, LONG, round)
        });
        result.map_err(|problem| Check::failed("huge-pages", problem))?;
        checks.push(Check::ok("huge-pages", [Figure::registered(HUGE_PAGE, nanos(registered))]));
    }
    checks.push(Check::ok("connect", [Figure::took(nanos(connected))]));

    let granted = loopback.payload.clone();
    type Transfer<'a, T> = fn(&mut Loopback<'a, T>, &GrantedRegion, usize, u64) -> Result<Duration, Problem>;
    let transfers: [(&'static str, Transfer<'_, T>); 2] =
        [("write", Loopback::write), ("read", Loopback::read)];
    for (name, transfer) in transfers {
        let figures = [SHORT, LONG].map(|bytes| {
            let ns = loopback.median(name, |loopback, round| transfer(loopback, &granted, bytes, round))?;
            Ok(Figure::moved(bytes, ns))
        });
        let figures: Result<Vec<_>, _> = figures.into_iter().collect();
        checks.push(Check::ok(name, figures.map_err(|problem| Check::failed(name, problem))?));
    }
    type Atomic<'a, T> = fn(&mut Loopback<'a, T>, u64) -> Result<Duration, Problem>;
    let atomics: [(&'static str, Atomic<'_, T>); 2] =
        [("fetch-add", Loopback::fetch_add), ("compare-swap", Loopback::compare_swap)];
    for (name, atomic) in atomics {
        if capabilities.atomics == AtomicDomain::None {
            checks.push(Check::unavailable(name, no_atomics(atomics_fault)));
            continue;
        }
        let ns = loopback.median(name, atomic).map_err(|problem| Check::failed(name, problem))?;
        checks.push(Check::ok(name, [Figure::moved(SHORT, ns)]));
    }
    let ns = loopback
        .median("visibility", Loopback::announce)
        .map_err(|problem| Check::failed("visibility", problem))?;
    checks.push(Check::ok("visibility", [Figure::moved(PAGE_SIZE, ns)]));
    Ok(())
}

/// A huge page, registered, and how long that took.
fn huge_pages<T: Transport>(transport: &T) -> Result<(MemoryRegion, Duration), Check> {
    let name = "huge-pages";
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::RELAXED;
    let register = |memory| transport.register(memory, access);
    let private = HostMemory::anonymous(PAGE_SIZE).map_err(RegisterError::from).and_then(register);
    if let Err(error @ RegisterError::NotShareable { .. }) = private {
        let help = "leave it: it takes transparent huge pages where the system gives them";
        return Err(Check::unavailable(name, Problem::new(error.to_string(), help)));
    }
    let memory = HostMemory::huge_pages(HUGE_PAGE).map_err(|error| Check::unavailable(name, error.into()))?;
    let begun = Instant::now();
    let region = register(memory).map_err(|error| Check::failed(name, error.into()))?;
    Ok((region, begun.elapsed()))
}

fn no_atomics(fault: Option<&str>) -> Problem {
    match fault {
        None => Problem::new("the device has no atomics", "leave it: nothing in slackline needs them"),
        Some(fault) => Problem::new(
            format!("the device says it has atomics, and they do not work: {fault}"),
            "update its driver and firmware, or leave it: nothing in slackline needs them",
        ),
    }
}

/// Memory as its owner holds it, and as the peer knows it.
#[derive(Clone)]
struct GrantedRegion {
    region: MemoryRegion,
    remote: RemoteSlice,
}

/// Both ends.
struct Loopback<'a, T: Transport> {
    client: T::Endpoint,
    server: T::Endpoint,
    payload: GrantedRegion,
    words: GrantedRegion,
    huge: Option<GrantedRegion>,
    local: MemoryRegion,
    progress: &'a CheckProgress,
}

/// A wait for something: its beginning, and its turns so far.
struct Wait {
    begun: Instant,
    turns: u32,
}

impl Wait {
    fn new() -> Wait {
        Wait { begun: Instant::now(), turns: 0 }
    }

    /// One more turn; true if it is time to look whether all is well.
    fn turn(&mut self) -> bool {
        self.turns = self.turns.wrapping_add(1);
        if self.turns < SPINS {
            std::hint::spin_loop();
            return false;
        }
        std::thread::yield_now();
        self.turns.is_multiple_of(SPINS)
    }

    fn check(&self, what: &str) -> Result<(), Problem> {
        if self.begun.elapsed() < PATIENCE {
            return Ok(());
        }
        let help = "look whether a firewall or the network between drops the packets (RoCE: UDP port 4791), and at the \
                    kernel's log (dmesg)";
        Err(Problem::new(format!("no {what} within {} s", PATIENCE.as_secs()), help))
    }
}

impl<'a, T: Transport> Loopback<'a, T> {
    fn connect(
        transport: &T,
        at: &Address,
        payload: &MemoryRegion,
        huge: Option<&MemoryRegion>,
        progress: &'a CheckProgress,
    ) -> Result<Self, Problem> {
        let every = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let words = transport.allocate(PAGE_SIZE, every)?;
        let local = transport.allocate(LONG, Access::LOCAL)?;
        let regions: Vec<MemoryRegion> = [payload, &words].into_iter().chain(huge).cloned().collect();
        let mut offer =
            Some(Offer { message: Vec::new(), grants: regions.iter().map(MemoryRegion::whole).collect() });
        let mut listener = transport.listen(at)?;
        let mut connecting = transport.connect(&listener.address(), Offer::default())?;
        let (mut server, mut client) = (None, None);
        let mut wait = Wait::new();
        let origin = Instant::now();
        let (server, (client, received)) = loop {
            let now = slackline::Instant::from_nanos(origin.elapsed().as_nanos() as u64);
            if let Some(incoming) = listener.poll(now)
                && let Some(offer) = offer.take()
            {
                server = Some(incoming.accept(offer)?);
            }
            if let Some(server) = &mut server {
                Endpoint::check(server)?;
            }
            if client.is_none()
                && let Poll::Ready(result) = connecting.poll(now)
            {
                client = Some(result?);
            }
            if server.is_some()
                && client.is_some()
                && let (Some(server), Some(client)) = (server.take(), client.take())
            {
                break (server, client);
            }
            if wait.turn() {
                wait.check("connection")?;
            }
        };
        let mut granted =
            regions.into_iter().zip(received.grants).map(|(region, remote)| GrantedRegion { region, remote });
        let missing =
            || Problem::new("the handshake lost a grant", "report this, with the log of RUST_LOG=debug");
        let (payload, words) = (granted.next().ok_or_else(missing)?, granted.next().ok_or_else(missing)?);
        let huge = granted.next();
        Ok(Loopback { client, server, payload, words, huge, local, progress })
    }

    /// The median of many rounds.
    fn median(
        &mut self,
        what: &str,
        mut round: impl FnMut(&mut Self, u64) -> Result<Duration, Problem>,
    ) -> Result<f64, Problem> {
        self.progress.go_on(format!("{}: {what}", self.client.transport()));
        let begun = Instant::now();
        let mut times = Vec::new();
        while times.len() < *ROUNDS.start() || (times.len() < *ROUNDS.end() && begun.elapsed() < BUDGET) {
            times.push(round(self, times.len() as u64 + 1)?);
        }
        times.sort_unstable();
        Ok(nanos(times[times.len() / 2]))
    }

    fn write(&mut self, to: &GrantedRegion, bytes: usize, round: u64) -> Result<Duration, Problem> {
        let sent = pattern(bytes, round);
        let local = self.local.slice(0, bytes)?;
        local.as_volatile().write(&sent);
        let remote = to.remote.slice(0, bytes as u64)?;
        let took = self.run(Operation::Write { local, remote, streaming: Streaming::ByLength })?;
        self.prove(remote)?;
        same("written", to.region.as_volatile(), &sent)?;
        Ok(took)
    }

    /// Waits until this processor sees all that was written, or changed by atomics: what is complete may be on its way
    /// to memory still, and a READ behind it is answered once it is there. The first word of the local memory stays.
    fn prove(&mut self, remote: RemoteSlice) -> Result<(), Problem> {
        let (local, remote) = (self.local.slice(8, 8)?, remote.slice(0, 8)?);
        self.run(Operation::Read { local, remote, streaming: Streaming::ByLength }).map(|_| ())
    }

    fn read(&mut self, from: &GrantedRegion, bytes: usize, round: u64) -> Result<Duration, Problem> {
        let held = pattern(bytes, !round);
        from.region.as_volatile().subslice(0, bytes).write(&held);
        let local = self.local.slice(0, bytes)?;
        let remote = from.remote.slice(0, bytes as u64)?;
        let took = self.run(Operation::Read { local, remote, streaming: Streaming::ByLength })?;
        same("read", self.local.as_volatile(), &held)?;
        Ok(took)
    }

    fn fetch_add(&mut self, round: u64) -> Result<Duration, Problem> {
        self.set_counted(round << 40);
        let (local, remote) = (self.local.slice(0, 8)?, self.words.remote.slice(COUNTED as u64, 8)?);
        let took = self.run(Operation::FetchAdd { local, remote, add: round })?;
        self.found(round << 40, (round << 40) + round)?;
        Ok(took)
    }

    /// Once where nothing matches, and once where it does.
    fn compare_swap(&mut self, round: u64) -> Result<Duration, Problem> {
        self.set_counted(round);
        let (local, remote) = (self.local.slice(0, 8)?, self.words.remote.slice(COUNTED as u64, 8)?);
        let swap = |compare| Operation::CompareSwap { local: local.clone(), remote, compare, swap: !round };
        self.run(swap(round + 1))?;
        self.found(round, round)?;
        let took = self.run(swap(round))?;
        self.found(round, !round)?;
        Ok(took)
    }

    fn set_counted(&self, value: u64) {
        self.words.region.as_volatile().store_u64(COUNTED, value);
    }

    /// Whether an atomic brought back what was there before, and left what it should.
    fn found(&mut self, before: u64, after: u64) -> Result<(), Problem> {
        self.prove(self.words.remote)?;
        let found = (self.local.as_volatile().load_u64(0), self.words.region.as_volatile().load_u64(COUNTED));
        if found == (before, after) {
            return Ok(());
        }
        let error = format!("{found:x?} where {before:x} and {after:x} were to be found");
        Err(Problem::new(error, "update the driver and the firmware of the device"))
    }

    /// Writes a payload and a word that announces it, and checks their order: a side that sees the word sees the
    /// payload, and so does a READ once the word is complete. Returns the time until the word was seen.
    fn announce(&mut self, round: u64) -> Result<Duration, Problem> {
        let sent = pattern(PAGE_SIZE, round);
        let local = self.local.slice(0, PAGE_SIZE)?;
        local.as_volatile().write(&sent);
        let (payload, word) =
            (self.payload.remote.slice(0, PAGE_SIZE as u64)?, self.words.remote.slice(ANNOUNCED as u64, 8)?);
        let streaming = Streaming::ByLength;
        let batch = [
            WorkRequest::unsignalled(
                0,
                Operation::Write { local: local.clone(), remote: payload, streaming },
            ),
            WorkRequest::signalled(1, Operation::WriteInline { data: Inline::word(round), remote: word }),
        ];
        let begun = Instant::now();
        self.post(&batch)?;
        let mut is_complete = false;
        let mut wait = Wait::new();
        let words = self.words.region.clone();
        while words.as_volatile().load(ANNOUNCED, Ordering::Acquire) != round {
            is_complete |= self.poll()?;
            self.turn(&mut wait, "word that announces")?;
        }
        let took = begun.elapsed();
        same("announced", self.payload.region.as_volatile(), &sent)?;
        while !is_complete {
            is_complete = self.poll()?;
            self.turn(&mut wait, "completion")?;
        }
        local.as_volatile().write(&vec![0; PAGE_SIZE]);
        self.run(Operation::Read { local, remote: payload, streaming })?;
        same("read after completion", self.local.as_volatile(), &sent)?;
        Ok(took)
    }

    /// From the post to the completion of one request.
    fn run(&mut self, operation: Operation) -> Result<Duration, Problem> {
        let batch = [WorkRequest::signalled(1, operation)];
        let begun = Instant::now();
        self.post(&batch)?;
        let mut wait = Wait::new();
        while !self.poll()? {
            self.turn(&mut wait, "completion")?;
        }
        Ok(begun.elapsed())
    }

    fn post(&mut self, batch: &[WorkRequest]) -> Result<(), Problem> {
        let mut wait = Wait::new();
        loop {
            match self.client.post(batch) {
                Ok(()) => return Ok(()),
                Err(PostError::QueueFull { .. }) => self.turn(&mut wait, "room in the queue")?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// True once a request has completed.
    fn poll(&mut self) -> Result<bool, Problem> {
        match self.client.poll() {
            None => Ok(false),
            Some(completion) => Ok(completion.result.map(|()| true)?),
        }
    }

    fn turn(&mut self, wait: &mut Wait, what: &str) -> Result<(), Problem> {
        if wait.turn() {
            self.client.check()?;
            self.server.check()?;
            wait.check(what)?;
        }
        Ok(())
    }
}

fn nanos(time: Duration) -> f64 {
    time.as_secs_f64() * 1e9
}

/// Bytes that no other round has, at any position in a word.
fn pattern(bytes: usize, round: u64) -> Vec<u8> {
    let words = (0..bytes.div_ceil(8) as u64).map(|word| {
        let mixed = (word ^ round.rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        mixed ^ (mixed >> 32)
    });
    let mut all: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    all.truncate(bytes);
    all
}

/// Whether memory begins with these bytes.
fn same(what: &str, memory: VolatileSlice<'_>, expected: &[u8]) -> Result<(), Problem> {
    let mut found = vec![0; expected.len()];
    memory.subslice(0, expected.len()).read(&mut found);
    match found.iter().zip(expected).position(|(found, expected)| found != expected) {
        None => Ok(()),
        Some(byte) => {
            let error = format!("byte {byte} of {} is not what was {what}", expected.len());
            Err(Problem::new(error, "update the driver and the firmware of the device, and test the memory"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_rounds_send_the_same_word_and_what_differs_is_found() {
        let rounds: Vec<Vec<u8>> = (1..20).map(|round| pattern(64, round)).collect();
        for (index, one) in rounds.iter().enumerate() {
            for other in &rounds[index + 1..] {
                assert!(one.chunks(8).zip(other.chunks(8)).all(|(one, other)| one != other));
            }
        }
        let memory = HostMemory::anonymous(PAGE_SIZE).unwrap();
        memory.as_volatile().subslice(0, 64).write(&rounds[0]);
        assert!(same("written", memory.as_volatile(), &rounds[0]).is_ok());
        memory.as_volatile().store_u64(16, 0);
        let problem = same("written", memory.as_volatile(), &rounds[0]).unwrap_err();
        assert_eq!(problem.error, "byte 16 of 64 is not what was written");
    }
}
