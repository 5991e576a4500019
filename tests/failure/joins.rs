//! Coming late, and coming and going.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use slackline::internals::param::{PeerHello, PeerRole};
use slackline::weights::{Reader, ReaderOptions};
use slackline::{
    Address, Clock, ElementType, Server, ServerOptions, Shm, Table, Version, Worker, WorkerOptions,
    scheme::{Bound, SchemeConfig},
};

use super::raw::say;
use super::second::{PATIENCE, SCHEMES, Second, drive, scheme, server, table, told, train, worker};

#[test]
fn a_late_joiner_begins_at_the_smallest_clock_and_both_go_on() {
    for name in SCHEMES {
        let scheme = scheme(name);
        let mut server = server(100, ServerOptions::new(scheme, 1, 0.001));
        let address = server.address();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut worker = worker(&address, scheme);
                while !stop.load(SeqCst) {
                    train(&mut worker, 1.0).unwrap();
                }
            });
            drive(&mut server, "a start", |server| server.status().version >= Version::new(20));
            let before = server.status().smallest_clock;
            let late = scope.spawn(|| {
                let mut worker = worker(&address, scheme);
                let first = worker.clock();
                for _ in 0..30 {
                    let mut step = worker.step(PATIENCE).unwrap();
                    let view = step.view();
                    if let Some(bound) = scheme.staleness() {
                        assert!(view.staleness() <= bound, "{name}: {view:?}");
                    }
                    step.gradient().unwrap().fill(1.0);
                    step.publish(None, PATIENCE).unwrap();
                }
                stop.store(true, SeqCst);
                first
            });
            drive(&mut server, "both to end", |server| server.status().left == 2);
            let first = late.join().unwrap();
            assert!(first >= before && first > Clock::new(0), "{name}: began at {first:?}");
        });
    }
}

#[test]
fn a_worker_that_left_early_counts_though_another_has_its_peer_index() {
    for name in SCHEMES {
        let scheme = scheme(name);
        let mut server = server(100, ServerOptions::new(scheme, 2, 0.001));
        let address = server.address();
        std::thread::scope(|scope| {
            scope.spawn(|| drop(worker(&address, scheme)));
            drive(&mut server, "the first to come and go", |server| server.status().left == 1);
            scope.spawn(|| {
                let mut worker = worker(&address, scheme);
                train(&mut worker, 1.0).unwrap();
                worker.flush(PATIENCE).unwrap();
            });
            drive(&mut server, "the second to train alone", |server| server.status().left == 2);
        });
        assert_eq!(server.status().folded, 1, "{name}");
    }
}

#[test]
fn a_late_joiner_of_two_shards_that_stand_at_different_clocks_goes_on() {
    let whole = table(64);
    let ranges = whole.shards(2).unwrap();
    let addresses = [Address::random(), Address::random()];
    let mut servers: Vec<Server<Shm>> = (0..2)
        .map(|shard| {
            let options =
                ServerOptions { shard: (shard, 2), ..ServerOptions::new(SchemeConfig::Bsp, 1, -1.0) };
            let (index, table) = (usize::from(shard), whole.clone());
            let initial = vec![0.0; (ranges[index].end - ranges[index].start) as usize / 4];
            Server::new(Shm::new(), &addresses[index], table, &initial, options).unwrap()
        })
        .collect();
    let mut poll = |which: &[usize]| {
        for index in which {
            servers[*index].poll(slackline::now()).unwrap();
        }
        servers.iter().map(|server| server.status()).collect::<Vec<_>>()
    };
    let connect =
        || Worker::connect(Shm::new(), &addresses, WorkerOptions::new(SchemeConfig::Bsp), PATIENCE).unwrap();
    std::thread::scope(|scope| {
        let connecting = scope.spawn(connect);
        while !connecting.is_finished() {
            poll(&[0, 1]);
        }
        let mut early = connecting.join().unwrap();
        train(&mut early, 1.0).unwrap();
        // Only shard 0 applies it before the late one asks to join.
        while poll(&[0])[0].version == Version::new(0) {}
        let late = scope.spawn(move || {
            let mut late = connect();
            for _ in 0..5 {
                train(&mut late, 1.0).unwrap();
            }
            late.flush(PATIENCE).unwrap();
        });
        while poll(&[0])[0].joined < 2 {}
        // Shard 1 finds its pending connection at its next poll, before it looks for gradients.
        std::thread::sleep(std::time::Duration::from_millis(300));
        while poll(&[1])[1].joined < 2 {}
        let going_on = scope.spawn(move || {
            for _ in 0..5 {
                train(&mut early, 1.0).unwrap();
            }
            early.flush(PATIENCE).unwrap();
        });
        while !(late.is_finished() && going_on.is_finished()) {
            poll(&[0, 1]);
        }
        late.join().unwrap();
        going_on.join().unwrap();
    });
}

/// Descriptors, memory files, and mappings of them, of this process.
fn held() -> [usize; 3] {
    let descriptors: Vec<_> = std::fs::read_dir("/proc/self/fd").unwrap().flatten().collect();
    let is_memory = |link: &std::path::PathBuf| link.to_string_lossy().contains("memfd:slackline");
    let files =
        descriptors.iter().filter_map(|entry| std::fs::read_link(entry.path()).ok()).filter(is_memory);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    [descriptors.len(), files.count(), maps.lines().filter(|line| line.contains("memfd:slackline")).count()]
}

#[test]
fn coming_and_going_two_hundred_times_leaks_nothing() {
    let Some(words) = told() else {
        // Each where no other test opens files meanwhile, and all at once: a round mostly waits.
        let claim = coming_and_going_two_hundred_times_leaks_nothing;
        let mut alone = SCHEMES.map(|name| Second::start(claim, &[name.to_owned()]));
        assert!(alone.iter_mut().all(|process| process.wait().success()));
        return;
    };
    let name = &words[0];
    let scheme = scheme(name);
    let mut server = server(1000, ServerOptions::new(scheme, 1, 0.001));
    let address = server.address();
    let round = |server: &mut Server<Shm>| {
        let gone = server.status().left + 1;
        std::thread::scope(|scope| {
            let visiting = scope.spawn(|| {
                let mut worker = worker(&address, scheme);
                train(&mut worker, 1.0).unwrap();
                worker.flush(PATIENCE).unwrap();
                let mut reader =
                    Reader::connect(Shm::new(), &address, ReaderOptions::default(), PATIENCE).unwrap();
                reader.refresh(0, PATIENCE).unwrap();
                drop(reader.pin(Bound::NONE, PATIENCE).unwrap());
            });
            drive(server, "it to come and go", |server| {
                server.status().left == gone && server.status().readers == 0 && visiting.is_finished()
            });
        });
    };
    for _ in 0..3 {
        round(&mut server);
    }
    let before = held();
    assert!(before[1] > 0 && before[2] > 0, "the server's own memory is seen: {before:?}");
    for _ in 0..200 {
        round(&mut server);
    }
    // A thread of the server undoes what is left of a peer, a moment after that has left.
    let is_undone = || held().iter().zip(before).all(|(held, before)| *held <= before);
    drive(&mut server, &format!("{name}: what it held before ({before:?})"), |_| is_undone());
}

#[test]
fn a_table_description_longer_than_a_socket_buffer_reaches_every_worker() {
    for name in ["bsp", "essp"] {
        let mut table = Table::builder();
        for index in 0..20_000 {
            let tensor = format!("a/rather/long/name/of/a/tensor/in/some/block/of/the/model/{index}");
            table = table.tensor(&tensor, &[1], ElementType::F32);
        }
        let table = table.build().unwrap();
        let (address, scheme) = (Address::random(), scheme(name));
        let options = ServerOptions::new(scheme, 1, -1.0);
        let mut server = Server::new(Shm::new(), &address, table, &vec![0.0; 20_000], options).unwrap();
        std::thread::scope(|scope| {
            let training = scope.spawn(|| {
                let mut worker = worker(&address, scheme);
                train(&mut worker, 1.0).unwrap();
                worker.flush(PATIENCE).unwrap();
            });
            let ended = |server: &Server<Shm>| server.status().left == 1 || training.is_finished();
            drive(&mut server, "it to come and go", ended);
            training.join().unwrap();
        });
    }
}

#[test]
fn inquirers_that_stay_do_not_keep_others_from_asking() {
    let mut server = server(100, ServerOptions::new(SchemeConfig::Bsp, 1, 0.001));
    let address = server.address();
    let hello = PeerHello::from(PeerRole::Inquirer).encode();
    let mut inquirers = Vec::new();
    for number in 0..100 {
        let answer = say(&address, hello.clone(), || _ = server.poll(slackline::now()).unwrap());
        inquirers.push(answer.unwrap_or_else(|error| panic!("inquirer {number}: {error}")));
    }
}
