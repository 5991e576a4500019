//! Jobs of several processes, each of which runs the program that a user writes.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use slackline::group::GroupOptions;
use slackline::scheme::SchemeConfig;
use slackline::{
    ElementType, Job, JobError, JobPlan, Placement, RendezvousEndpoint, ServerOptions, Table, WorkerOptions,
};

#[path = "../examples/parameter_server.rs"]
mod parameter_server;
#[path = "job/processes.rs"]
mod processes;
#[path = "job/program.rs"]
mod program;

use processes::{Ended, Meeting, PATIENCE, Processes, all_succeeded};

#[test]
fn a_process_runs_the_program_of_its_job() {
    program::run();
}

#[test]
fn the_example_of_a_parameter_server_learns_the_model() {
    let ended = Processes::start(Ipv4Addr::LOCALHOST, "parameter_server", 3, &[]).end();
    all_succeeded(&ended);
    let (_, error) = ended[0].stdout.split_once("largest error ").expect("the server says its error");
    let error: f32 = error.split_whitespace().next().unwrap().parse().unwrap();
    assert!(error < 0.05, "{ended:#?}");
    for worker in 0..2 {
        assert!(ended[1 + worker].stdout.contains(&format!("worker {worker}: 300 clocks")), "{ended:#?}");
    }
}

#[test]
fn one_program_trains_over_each_transport_to_the_same_bits() {
    let mut results = Vec::new();
    for transport in ["shm", "tcp"] {
        let variables = [("TRANSPORT", transport), ("SERVERS", "2")];
        let ended = Processes::start(Ipv4Addr::LOCALHOST, "pull_to_one", 4, &variables).end();
        all_succeeded(&ended);
        // Lock step: p' = p - 0.1 (p - 1), 50 times from 0.
        let expected = format!("50 versions to {:.6}", 1.0 - 0.9f64.powi(50));
        for (shard, ended) in ended[..2].iter().enumerate() {
            let said = &ended.stdout;
            assert!(said.contains(&format!("shard {shard}: {expected}")), "{said}, not {expected}");
            results.push(
                said.split_once("bits ").and_then(|(_, bits)| bits.split_once(',')).unwrap().0.to_owned(),
            );
        }
    }
    assert!(results.iter().all(|bits| *bits == results[0]), "{results:?}");
}

/// All are on one host here: one of them stands for all, and one that dies is left out.
#[test]
fn the_workers_of_a_host_are_one_worker_to_the_servers_if_the_plan_says_so() {
    for (transport, dies) in [("shm", "none"), ("tcp", "none"), ("tcp", "1:10")] {
        let variables = [("TRANSPORT", transport), ("SERVERS", "2"), ("PER_HOST", "1"), ("DIE_AT", dies)];
        let ended = Processes::start(Ipv4Addr::LOCALHOST, "pull_to_one", 6, &variables).end();
        let succeeded: Vec<_> = ended.iter().map(|ended| ended.succeeded).collect();
        assert_eq!(succeeded, [true, true, true, dies == "none", true, true], "{ended:#?}");
        let expected = format!("50 versions to {:.6}", 1.0 - 0.9f64.powi(50));
        for server in &ended[..2] {
            let said = &server.stdout;
            assert!(said.contains(&expected) && said.contains(", 1 joined"), "{said}, not {expected}");
        }
    }
}

#[test]
fn workers_without_a_server_meet_and_average() {
    for transport in ["shm", "tcp"] {
        let ended = Processes::start(Ipv4Addr::LOCALHOST, "average", 4, &[("TRANSPORT", transport)]).end();
        all_succeeded(&ended);
        for (rank, ended) in ended.iter().enumerate() {
            // The mean of 0, 1, 2 and 3.
            assert!(ended.stdout.contains(&format!("rank {rank}: 1.5")), "{ended:#?}");
        }
    }
}

#[test]
fn a_worker_that_is_stopped_holds_up_no_end_of_a_job_without_servers() {
    let variables = [("TRANSPORT", "tcp"), ("TIMEOUT", "5"), ("STOP", "3")];
    let mut processes = Processes::start(Ipv4Addr::LOCALHOST, "average", 4, &variables);
    // It is killed at the end.
    let _stopped = Processes(processes.0.split_off(3));
    all_succeeded(&processes.end());
}

#[test]
fn a_worker_that_is_alone_in_its_job_has_its_own_parameters_for_a_mean() {
    let job = Job::join(JobPlan::servers(0), &Placement::default(), None).unwrap();
    let mut member = job.group(3, GroupOptions::default()).unwrap();
    member.parameters_mut().unwrap().fill(7.0);
    assert_eq!(member.average(0, &[0], PATIENCE).unwrap().members, 1);
    assert_eq!(member.parameters().unwrap(), [7.0; 3]);
    member.leave(PATIENCE).unwrap();
    while !job.end(PATIENCE).unwrap() {}
}

#[test]
fn a_required_transport_that_is_missing_ends_all_processes_with_the_reason() {
    let ended = Processes::start(
        Ipv4Addr::LOCALHOST,
        "pull_to_one",
        3,
        // No host has this device.
        &[("TRANSPORT", "verbs"), ("SLACKLINE_RDMA_DEVICE", "none")],
    )
    .end();
    for process in &ended {
        assert!(!process.succeeded && process.stderr.contains("RDMA"), "{ended:#?}");
    }
}

#[test]
fn a_worker_that_dies_is_left_out_and_the_job_ends_when_the_others_finish() {
    for transport in ["shm", "tcp"] {
        let ended = Processes::start(
            Ipv4Addr::LOCALHOST,
            "pull_to_one",
            4,
            &[("DIE_AT", "1:10"), ("TRANSPORT", transport)],
        )
        .end();
        let succeeded: Vec<_> = ended.iter().map(|ended| ended.succeeded).collect();
        assert_eq!(succeeded, [true, true, false, true], "{ended:#?}");
        assert!(ended[0].stdout.contains("50 versions"), "{ended:#?}");
    }
}

#[test]
fn a_job_without_its_workers_ends_with_the_missing_one_by_name() {
    // The world has a second worker that no launcher starts.
    let meeting = Meeting::at(Ipv4Addr::LOCALHOST.into());
    let start = |rank| meeting.start("pull_to_one", rank, 3, &[("CLOCKS", "3"), ("TIMEOUT", "8")]);
    let ended = Processes((0..2).map(start).collect()).end();
    for process in &ended {
        assert!(!process.succeeded, "{ended:#?}");
        assert!(process.stderr.contains("worker 1 did not join within 8s"), "{ended:#?}");
    }
}

#[test]
fn processes_with_another_plan_end_the_job_and_say_so() {
    let meeting = Meeting::at(Ipv4Addr::LOCALHOST.into());
    let start = |rank: usize| {
        let transport = if rank == 2 { "tcp" } else { "shm" };
        let variables = [("TRANSPORT", transport), ("PAUSE_MS", "20")];
        meeting.start("pull_to_one", rank, 3, &variables)
    };
    let ended = Processes((0..3).map(start).collect()).end();
    for process in &ended {
        assert!(!process.succeeded, "{ended:#?}");
        assert!(process.stderr.contains("worker 1 was started with another plan"), "{ended:#?}");
    }
}

/// The number after some words in the output of a process.
fn number(ended: &Ended, before: &str) -> u64 {
    let (_, after) = ended.stdout.split_once(before).unwrap_or_else(|| panic!("{before}: {ended:#?}"));
    after.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().expect(before)
}

/// Trains with two servers and this many workers, of which some may die; kills the second server once all workers hold
/// and it has a checkpoint, if it is to have one, and starts it again.
fn with_a_server_that_comes_back(workers: usize, more: &[(&str, &str)], has_checkpoint: bool) -> Vec<Ended> {
    let folder = tempfile::tempdir().unwrap();
    let (checkpoints, hold) = (folder.path().to_str().unwrap(), folder.path().join("hold"));
    std::fs::write(&hold, "").unwrap();
    let meeting = Meeting::at(Ipv4Addr::LOCALHOST.into());
    let fixed = [
        ("CHECKPOINT", checkpoints),
        ("HOLD", hold.to_str().unwrap()),
        ("SERVERS", "2"),
        ("TRANSPORT", "tcp"),
    ];
    let variables = [&fixed[..], more].concat();
    // Shard 1 is not at rank 0, which the others cannot do without.
    let start = |rank| meeting.start("pull_to_one", rank, 2 + workers, &variables);
    let mut processes = Processes((0..2 + workers).map(start).collect());
    let file = folder.path().join("shard-1.safetensors");
    let deadline = Instant::now() + PATIENCE;
    while has_checkpoint && !file.exists() {
        assert!(Instant::now() < deadline, "there is no checkpoint");
        std::thread::sleep(Duration::from_millis(5));
    }
    if let Some(dead) = more.iter().find(|(name, _)| *name == "DIE_AT") {
        let rank = 2 + dead.1.split_once(':').unwrap().0.parse::<usize>().unwrap();
        while processes.0[rank].try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "rank {rank} does not die");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    processes.0[1].kill().unwrap();
    processes.0[1].wait().unwrap();
    processes.0[1] = start(1);
    std::fs::remove_file(&hold).unwrap();
    let ended = processes.end();
    let versions = number(&ended[1], "shard 1: ");
    let resumed = if has_checkpoint { number(&ended[1], "resumed from ") } else { 0 };
    assert!(has_checkpoint || ended[1].stdout.contains("resumed from none"), "{ended:#?}");
    // Gradients that came after the last checkpoint are lost with the server: two at most were published by then. One
    // without a checkpoint counts its versions from none, and workers skip clocks until both shards are at one.
    let least = if has_checkpoint { 48 } else { 1 };
    assert!((resumed >= 1) == has_checkpoint && (least..=50).contains(&versions), "{ended:#?}");
    let expected = format!("{versions} versions to {:.6}", 1.0 - 0.9f64.powi(versions as i32));
    assert!(ended[1].stdout.contains(&expected), "{ended:#?}, not {expected}");
    ended
}

#[test]
fn workers_wait_for_a_server_that_comes_back_with_its_checkpoint() {
    all_succeeded(&with_a_server_that_comes_back(2, &[], true));
}

#[test]
fn a_server_that_comes_back_does_not_wait_for_a_worker_that_is_lost() {
    for (every, has_checkpoint) in [("1", true), ("1000", false)] {
        let variables = [("DIE_AT", "1:1"), ("EVERY", every)];
        let ended = with_a_server_that_comes_back(3, &variables, has_checkpoint);
        let succeeded: Vec<_> = ended.iter().map(|ended| ended.succeeded).collect();
        assert_eq!(succeeded, [true, true, true, false, true], "{ended:#?}");
    }
}

#[test]
fn a_job_says_what_it_makes_of_checkpoints_that_an_earlier_one_left() {
    let folder = tempfile::tempdir().unwrap();
    let run = |more: &[(&str, &str)]| {
        let fixed = [("CHECKPOINT", folder.path().to_str().unwrap()), ("CLOCKS", "20")];
        let variables = [&fixed[..], more].concat();
        Processes::start(Ipv4Addr::LOCALHOST, "pull_to_one", 2, &variables).end()
    };
    let ended = run(&[("RESUME", "1")]);
    assert!(ended[0].stderr.contains("there is no checkpoint"), "{ended:#?}");
    all_succeeded(&run(&[]));
    let ended = run(&[]);
    for process in &ended {
        assert!(!process.succeeded && process.stderr.contains("an earlier run left"), "{ended:#?}");
    }
    let ended = run(&[("RESUME", "1"), ("CLOCKS", "30")]);
    all_succeeded(&ended);
    assert_eq!((number(&ended[0], "shard 0: "), number(&ended[0], "resumed from ")), (30, 20), "{ended:#?}");
}

#[test]
fn a_job_that_resumes_waits_for_all_its_workers_before_it_applies() {
    let folder = tempfile::tempdir().unwrap();
    let fixed = [("CHECKPOINT", folder.path().to_str().unwrap()), ("CLOCKS", "20")];
    all_succeeded(&Processes::start(Ipv4Addr::LOCALHOST, "pull_to_one", 4, &fixed).end());
    let variables = [&fixed[..], &[("RESUME", "1"), ("CLOCKS", "30")]].concat();
    let meeting = Meeting::at(Ipv4Addr::LOCALHOST.into());
    let start = |rank| meeting.start("pull_to_one", rank, 4, &variables);
    let mut processes = Processes((0..3).map(start).collect());
    // The others are in long before the last one.
    std::thread::sleep(Duration::from_secs(2));
    processes.0.push(start(3));
    let ended = processes.end();
    all_succeeded(&ended);
    assert_eq!((number(&ended[0], "shard 0: "), number(&ended[0], "resumed from ")), (30, 20), "{ended:#?}");
    assert_eq!(number(&ended[0], "joined, "), 90, "gradients of three workers in 30 clocks: {ended:#?}");
}

#[test]
fn a_server_that_returns_takes_up_no_checkpoint_from_before_the_job() {
    let folder = tempfile::tempdir().unwrap();
    let variables = [("CHECKPOINT", folder.path().to_str().unwrap()), ("CLOCKS", "20"), ("SERVERS", "2")];
    all_succeeded(&Processes::start(Ipv4Addr::LOCALHOST, "pull_to_one", 3, &variables).end());
    for name in ["shard-0.safetensors", "shard-0.safetensors.previous"] {
        std::fs::remove_file(folder.path().join(name)).unwrap();
    }
    let meeting = Meeting::at(Ipv4Addr::LOCALHOST.into());
    let start =
        |rank, more: &[(&str, &str)]| meeting.start("pull_to_one", rank, 3, &[&variables[..], more].concat());
    let mut processes = Processes(vec![start(0, &[]), start(1, &[("DIE_JOINED", "1")]), start(2, &[])]);
    // It has told no process where it listens.
    processes.0[1].wait().unwrap();
    processes.0[1] = start(1, &[]);
    for process in &processes.end() {
        assert!(!process.succeeded && process.stderr.contains("an earlier run left"), "{process:#?}");
    }
}

#[test]
fn a_process_that_no_launcher_started_is_told_how_to_start_it() {
    // This process runs under no launcher, or the other tests would not be run by it.
    let error = Job::from_env(JobPlan::servers(1)).err().expect("no job");
    assert!(matches!(error, JobError::NotLaunched), "{error}");
    assert!(error.to_string().contains("slackline launch -n 3"), "{error}");
}

#[test]
fn a_rank_that_the_job_does_not_have_is_refused_before_anything_is_opened() {
    let rendezvous = "127.0.0.1:9".parse().ok();
    let placement = Placement { rank: 3, world: 3, rendezvous, ..Placement::default() };
    let error = Job::join(JobPlan::servers(1), &placement, None).err().expect("no job");
    assert!(matches!(error, JobError::NoSuchRank { rank: 3, world: 3 }), "{error}");
    assert!(error.to_string().contains("no rank 3 of 3"), "{error}");
}

/// As in an event loop, which calls it again and again.
#[test]
fn a_server_that_is_never_given_time_serves_its_job_all_the_same() {
    let meeting = RendezvousEndpoint::free(Ipv4Addr::LOCALHOST.into()).unwrap();
    let join = |rank| {
        let placement =
            Placement { rank, world: 2, rendezvous: Some(meeting.clone()), ..Placement::default() };
        Job::join(JobPlan::servers(1).timeout(PATIENCE), &placement, None).unwrap()
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let job = join(1);
            let mut worker = job.worker(WorkerOptions::default()).unwrap();
            for _ in 0..3 {
                let mut step = worker.next_step().unwrap().unwrap();
                step.borrow().unwrap().1.fill(1.0);
                step.publish(None).unwrap();
            }
            worker.finish().unwrap();
        });
        let job = join(0);
        let table = Table::flat(4, ElementType::F32).unwrap();
        let options = ServerOptions::new(SchemeConfig::Bsp, 1, 0.5);
        let (mut server, _) = job.server(table, &[2.0; 4], options).unwrap();
        let deadline = Instant::now() + PATIENCE;
        while !job.drive(&mut server, Duration::ZERO).unwrap() {
            assert!(Instant::now() < deadline, "the job never ends");
        }
        assert_eq!(server.parameters().unwrap(), [0.5; 4]);
    });
}
