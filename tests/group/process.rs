//! Members that are processes, which are killed and stopped: the test binary runs itself again, with only the same
//! test.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use slackline::group::{Averaged, GroupError, GroupListener, GroupMember, GroupOptions};
use slackline::{Address, Error};

use super::fixture::{Fixture, Listening, Member, PATIENCE, listen, wait_for};

const SECOND: &str = "SLACKLINE_GROUP_SECOND";
const ELEMENTS: usize = 100_000;
const GROUP: [usize; 3] = [0, 1, 2];

/// The exit code by which a member in a second process says that it was cut off.
const CUT_OFF: i32 = 42;

/// A member in another process, of the highest rank: it dials the others and needs no address that they know. Killed if
/// it still runs when this is dropped.
struct Second(Child);

impl Second {
    fn start<F: Fixture>(claim: &str, addresses: &[Address], lease: Duration) -> Second {
        let addresses: Vec<_> = addresses.iter().map(Address::to_string).collect();
        let mut command = Command::new(std::env::current_exe().expect("this binary"));
        command
            .args(["--exact", &format!("{}::{claim}", F::MODULE), "--nocapture", "--test-threads=1"])
            .env(SECOND, format!("{} {}", lease.as_nanos(), addresses.join(" ")))
            .stdout(Stdio::null());
        Second(command.spawn().expect("run this binary again"))
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.0.id() as i32).expect("a process id");
        kill_process(pid, signal).expect("signal a child of ours");
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            let _gone = self.0.kill();
            let _status = self.0.wait();
        }
    }
}

/// Sets all parameters to one value that depends on the round, and averages.
fn round<F: Fixture>(member: &mut Member<F>, round: u64) -> Result<Averaged, Error> {
    member.parameters_mut()?.fill(round as f32);
    let averaged = member.average(round, &GROUP, PATIENCE)?;
    assert!(member.parameters()?.iter().all(|value| *value == round as f32), "a mixture in round {round}");
    Ok(averaged)
}

/// In the second process: averages until something goes wrong.
fn second_process<F: Fixture>() {
    let Ok(told) = std::env::var(SECOND) else { return };
    let mut words = told.split(' ');
    let lease = Duration::from_nanos(words.next().unwrap().parse().unwrap());
    let mut addresses: Vec<Address> = words.map(|word| word.parse().unwrap()).collect();
    let options = GroupOptions { lease, ..GroupOptions::default() };
    let listener = listen::<F>(2, 3, ELEMENTS, options);
    addresses.push(listener.address());
    let mut member = listener.connect(&addresses, PATIENCE).unwrap();
    for number in 0.. {
        match round::<F>(&mut member, number) {
            // The others are done, or this one is alone for another reason.
            Ok(averaged) if averaged.members == 1 && !averaged.skipped => std::process::exit(0),
            Ok(_) => {}
            Err(Error::Group(GroupError::CutOff { rank: 2 })) => std::process::exit(CUT_OFF),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Two members here and one in another process, met.
fn meet_second<F: Fixture>(claim: &str, lease: Duration) -> (Vec<Member<F>>, Second) {
    let options = GroupOptions { lease, ..GroupOptions::default() };
    let listeners: Vec<Listening<F>> = (0..2).map(|rank| listen::<F>(rank, 3, ELEMENTS, options)).collect();
    let mut addresses: Vec<_> = listeners.iter().map(GroupListener::address).collect();
    let second = Second::start::<F>(claim, &addresses, lease);
    addresses.push(Address::random());
    let members = std::thread::scope(|scope| {
        let addresses = &addresses;
        let connect =
            |listener: Listening<F>| scope.spawn(move || listener.connect(addresses, PATIENCE).unwrap());
        let members: Vec<_> = listeners.into_iter().map(connect).collect();
        members.into_iter().map(|member| member.join().unwrap()).collect()
    });
    (members, second)
}

/// Both members average until rounds have two members, and ten more; `strike` is called after `rounds` rounds.
fn outlive<F: Fixture>(members: &mut [GroupMember<F::Transport>], rounds: u64, strike: impl FnOnce() + Send) {
    let mut strike = Some(strike);
    std::thread::scope(|scope| {
        for member in members {
            let strike = if member.rank() == 0 { strike.take() } else { None };
            scope.spawn(move || {
                let mut strike = strike;
                let mut among_two = 0;
                for number in 0.. {
                    if number == rounds
                        && let Some(strike) = strike.take()
                    {
                        strike();
                    }
                    let averaged = round::<F>(member, number).unwrap();
                    among_two += u64::from(averaged.members == 2);
                    if among_two == 10 {
                        return;
                    }
                }
            });
        }
    });
}

pub(crate) fn a_killed_process_is_left_out_whenever_it_dies<F: Fixture>() {
    second_process::<F>();
    for rounds in [0, 7, 30] {
        let claim = "a_killed_process_is_left_out_whenever_it_dies";
        let (mut members, second) = meet_second::<F>(claim, Duration::from_secs(30));
        outlive::<F>(&mut members, rounds, || second.signal(Signal::KILL));
        assert!(members.iter().all(|member| member.alive().eq([0, 1])));
    }
}

pub(crate) fn a_frozen_process_is_left_out_within_the_lease_and_cut_off_when_it_wakes<F: Fixture>() {
    second_process::<F>();
    let claim = "a_frozen_process_is_left_out_within_the_lease_and_cut_off_when_it_wakes";
    let lease = Duration::from_secs(2);
    let (mut members, mut second) = meet_second::<F>(claim, lease);
    let mut frozen = None;
    outlive::<F>(&mut members, 5, || {
        second.signal(Signal::STOP);
        frozen = Some(Instant::now());
    });
    // It is the lease that ends the wait, not the patience of the round.
    assert!(frozen.unwrap().elapsed() < PATIENCE / 2);
    assert!(members.iter().all(|member| member.alive().eq([0, 1])));
    second.signal(Signal::CONT);
    let status = wait_for("the frozen one to end", || second.0.try_wait().unwrap());
    assert_eq!(status.code(), Some(CUT_OFF));
}

pub(crate) fn who_leaves_is_told_whom_that_has_not_reached<F: Fixture>() {
    second_process::<F>();
    let claim = "who_leaves_is_told_whom_that_has_not_reached";
    let half = Duration::from_millis(500);
    // The time of the call ends first, or the lease of the frozen process.
    for (lease, timeout) in [(Duration::from_secs(30), half), (4 * half, PATIENCE)] {
        let (mut members, second) = meet_second::<F>(claim, lease);
        second.signal(Signal::STOP);
        // A signal is sent before it is heeded.
        let pid = Pid::from_raw(second.0.id() as i32).unwrap();
        waitpid(Some(pid), WaitOptions::UNTRACED).unwrap();
        match members.remove(0).leave(timeout) {
            // Where memory is shared, no process need be awake.
            Ok(()) => assert_ne!(F::MODULE, "tcp"),
            Err(Error::Group(GroupError::Unheard { ranks, .. })) => assert!(ranks.contains(&2), "{ranks:?}"),
            Err(error) => panic!("{error}"),
        }
    }
}
