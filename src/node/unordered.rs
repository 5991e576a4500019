//! Tests of publishing, pulling, pushing and averaging over an RDMA device that keeps no more order than it must.

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use crate::clock::Version;
    use crate::diagnostic::Diagnostic;
    use crate::kernel::Optimizer;
    use crate::node::{Error, Idle, Wanted, Worker, WorkerOptions, now};
    use crate::node::{
        GroupListener, GroupMember, GroupOptions, Reader, ReaderOptions, Server, ServerOptions,
    };
    use crate::scheme::SchemeConfig;
    use crate::table::{ElementType, Table};
    use crate::time::Duration;
    use crate::transport::Address;
    use crate::transport::verbs::Verbs;
    use crate::transport::verbs::unordered::{Neighbour, Unordered};

    const PATIENCE: Duration = Duration::from_secs(60);
    const ELEMENTS: usize = 3000;
    /// Of each of two shards.
    const SHARD_ELEMENTS: usize = 2992;
    const ROUNDS: u64 = 40;
    /// Bytes that are folded and announced at a time.
    const CHUNK_BYTES: u64 = 1024;

    /// Ends the threads that look at it when it is dropped.
    struct Stop<'a>(&'a AtomicBool);

    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// Releases the threads that wait for a neighbour when it is dropped.
    struct EndOfSilence<'a>(&'a Unordered);

    impl Drop for EndOfSilence<'_> {
        fn drop(&mut self) {
            self.0.set_neighbour(Neighbour::IsGone);
        }
    }

    /// Runs a test while the device takes its steps.
    fn over_the_device(seed: u64, test: impl FnOnce(Verbs)) {
        over(Unordered::new(seed, false), test);
    }

    fn over(device: Unordered, test: impl FnOnce(Verbs)) {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    if !device.step() {
                        std::thread::yield_now();
                    }
                }
            });
            let _stop = Stop(&is_over);
            test(device.verbs(None));
        });
    }

    fn address() -> Address {
        "verbs:127.0.0.1:0".parse().unwrap()
    }

    /// Returns the parameters of a version: each of them has been moved by 1, 2, 3 and so on half steps.
    fn parameter_of(version: u64) -> f32 {
        -0.25 * (version * (version + 1)) as f32
    }

    /// A worker finds in each version exactly the gradients that it has published.
    fn every_version_holds_every_gradient_whole(scheme: SchemeConfig, idle: Idle, seed: u64) {
        train(scheme, idle, seed, |_, _| {});
    }

    /// The same, while another thread runs `beside`. The server looks after each step of the device, so that it finds
    /// bytes that arrive in memory too early.
    fn train(scheme: SchemeConfig, idle: Idle, seed: u64, beside: impl FnOnce(Verbs, Address) + Send) {
        let device = Unordered::new(seed, false);
        let verbs = device.verbs(None);
        let mut server = server(&verbs, scheme, Idle::Poll);
        let address = server.address();
        let is_done = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                while !is_done.load(Ordering::Relaxed) {
                    if !device.step() {
                        std::thread::yield_now();
                    }
                    server.poll(now()).unwrap();
                }
            });
            let (beside_over, beside_at) = (verbs.clone(), address.clone());
            let doing = scope.spawn(move || beside(beside_over, beside_at));
            let working = scope.spawn(move || {
                let options = WorkerOptions { idle, ..WorkerOptions::new(scheme) };
                let mut worker = Worker::connect(verbs, &[address], options, PATIENCE).unwrap();
                for round in 0..ROUNDS {
                    work(&mut worker, round).unwrap_or_else(|error| panic!("{error}, in round {round}"));
                }
            });
            let results = [working.join(), doing.join()];
            is_done.store(true, Ordering::Relaxed);
            results.into_iter().for_each(Result::unwrap);
        });
    }

    fn server(verbs: &Verbs, scheme: SchemeConfig, idle: Idle) -> Server<Verbs> {
        let table = Table::flat(ELEMENTS as u64, ElementType::F32).unwrap();
        let optimizer = Optimizer::Sgd { weight_decay: 0.0 };
        let mut options = ServerOptions { optimizer, threads: 1, ..ServerOptions::new(scheme, 1, 0.5) };
        (options.memory.chunk_bytes, options.memory.idle) = (CHUNK_BYTES, idle);
        Server::new(verbs.clone(), &address(), table, &[0.0; ELEMENTS], options).unwrap()
    }

    fn work(worker: &mut Worker<Verbs>, round: u64) -> Result<(), Error> {
        let mut step = worker.step(PATIENCE)?;
        let (parameters, expected) = (step.parameters()?, parameter_of(round));
        let wrong = parameters.iter().find(|parameter| **parameter != expected);
        assert_eq!(wrong, None, "and not {expected}, in round {round}");
        step.gradient()?.fill(round as f32 + 1.0);
        step.publish(None, PATIENCE)?;
        Ok(())
    }

    #[test]
    fn gradients_and_pulled_versions_are_whole_where_no_order_is_kept() {
        (0..3).for_each(|seed| {
            every_version_holds_every_gradient_whole(SchemeConfig::Ssp { staleness: 0 }, Idle::Poll, seed)
        });
    }

    /// Under tests a sleep ends by itself after an hour only.
    #[test]
    fn a_worker_that_sleeps_is_woken_where_no_order_is_kept() {
        (0..3).for_each(|seed| {
            every_version_holds_every_gradient_whole(SchemeConfig::Ssp { staleness: 0 }, Idle::Sleep, seed)
        });
    }

    /// A sleep of an owner ends by itself after 20 ms, so that this does not show that it is woken.
    #[test]
    fn a_server_that_sleeps_folds_whole_gradients_where_no_order_is_kept() {
        for seed in 0..3 {
            over_the_device(seed, |verbs| {
                let scheme = SchemeConfig::Ssp { staleness: 0 };
                let mut server = server(&verbs, scheme, Idle::Sleep);
                let addresses = [server.address()];
                std::thread::scope(|scope| {
                    let serving = scope.spawn(move || {
                        server.drive(|server| server.status().left == 1, 3 * PATIENCE).unwrap()
                    });
                    let options = WorkerOptions { idle: Idle::Sleep, ..WorkerOptions::new(scheme) };
                    let mut worker = Worker::connect(verbs, &addresses, options, PATIENCE).unwrap();
                    (0..ROUNDS).for_each(|round| work(&mut worker, round).unwrap());
                    drop(worker);
                    assert!(serving.join().unwrap());
                });
            });
        }
    }

    /// A gradient that the first shard decides on has come to the other, however late the device brings words there
    /// that it has acknowledged.
    #[test]
    fn what_one_shard_decides_on_has_come_to_all_where_no_order_is_kept() {
        for seed in 0..3 {
            let device = Unordered::new(seed, false);
            device.be_late();
            over(device, |verbs| {
                let scheme: SchemeConfig = "dbw".parse().unwrap();
                let shard = |shard| {
                    let table = Table::flat(2 * SHARD_ELEMENTS as u64, ElementType::F32).unwrap();
                    let optimizer = Optimizer::Sgd { weight_decay: 0.0 };
                    let options = ServerOptions {
                        shard: (shard, 2),
                        optimizer,
                        threads: 1,
                        ..ServerOptions::new(scheme, 1, 0.5)
                    };
                    Server::new(verbs.clone(), &address(), table, &[0.0; SHARD_ELEMENTS], options).unwrap()
                };
                let [mut decider, mut follower] = [0, 1].map(shard);
                let addresses = [decider.address(), follower.address()];
                let (is_trained, has_followed) = (&AtomicBool::new(false), &AtomicBool::new(false));
                std::thread::scope(|scope| {
                    let _trained = Stop(is_trained);
                    let first = addresses[0].clone();
                    let following = scope.spawn(move || {
                        let _followed = Stop(has_followed);
                        follower.follow(&first, PATIENCE).unwrap();
                        let is_over = |_: &Server<Verbs>| is_trained.load(Ordering::Relaxed);
                        follower.drive(is_over, 3 * PATIENCE).unwrap();
                        follower.status().missing
                    });
                    scope.spawn(move || {
                        let is_over = |_: &Server<Verbs>| has_followed.load(Ordering::Relaxed);
                        decider.drive(is_over, 3 * PATIENCE).unwrap()
                    });
                    let mut worker =
                        Worker::connect(verbs, &addresses, WorkerOptions::new(scheme), PATIENCE).unwrap();
                    for round in 0..ROUNDS {
                        let worked = work(&mut worker, round);
                        worked.unwrap_or_else(|error| panic!("{error}, in round {round}, seed {seed}"));
                    }
                    is_trained.store(true, Ordering::Relaxed);
                    assert_eq!(following.join().unwrap(), 0, "gradients had not come, seed {seed}");
                });
            });
        }
    }

    #[test]
    fn pushed_versions_are_whole_where_no_order_is_kept() {
        (0..3).for_each(|seed| {
            every_version_holds_every_gradient_whole(SchemeConfig::Essp { staleness: 0 }, Idle::Poll, seed)
        });
    }

    /// Takes every version that it can get, and begins to copy each while the server still folds it. The last gradient
    /// may be lost with its worker, which does not wait for it.
    fn follow(verbs: Verbs, address: Address) {
        let options = ReaderOptions { follow: true, ..ReaderOptions::default() };
        let mut reader = Reader::connect(verbs, &address, options, PATIENCE).unwrap();
        let chunks = (4 * ELEMENTS as u64).div_ceil(CHUNK_BYTES) as usize;
        let (mut held, mut seen_in_part, deadline) = (0, 0, now() + PATIENCE);
        while held < ROUNDS - 1 {
            reader.begin_snapshot(Wanted::at_least(Version::new(held + 1)));
            let mut in_part = false;
            while reader.poll(now()).unwrap().is_none() {
                in_part |= reader.link.pull.landed().is_some_and(|(_, landed)| (1..chunks).contains(&landed));
                assert!(now() < deadline, "waited in vain for version {}", held + 1);
                std::thread::yield_now();
            }
            let snapshot = reader.take_snapshot().unwrap();
            held = snapshot.fresh().version.get();
            let expected = parameter_of(held).to_le_bytes();
            let torn = snapshot.bytes().chunks_exact(4).position(|parameter| parameter != expected);
            assert_eq!(torn, None, "version {held}");
            seen_in_part += u64::from(in_part);
        }
        assert!(seen_in_part > 0, "no version was copied while it was being folded");
    }

    #[test]
    fn a_reader_that_follows_takes_whole_versions_where_no_order_is_kept() {
        (0..3).for_each(|seed| train(SchemeConfig::Ssp { staleness: 0 }, Idle::Poll, seed, follow));
    }

    #[test]
    fn the_means_of_a_group_are_whole_where_no_order_is_kept() {
        const GROUP: [usize; 3] = [0, 1, 2];
        over_the_device(7, |verbs| {
            let listen = |rank| {
                let options = GroupOptions::default();
                GroupMember::listen(verbs.clone(), &address(), rank, GROUP.len(), ELEMENTS, options).unwrap()
            };
            let listeners = GROUP.map(listen);
            let addresses = &listeners.each_ref().map(GroupListener::address);
            std::thread::scope(|scope| {
                for (rank, listener) in listeners.into_iter().enumerate() {
                    scope.spawn(move || {
                        let mut member = listener.connect(addresses, PATIENCE).unwrap();
                        for round in 0..ROUNDS {
                            member.parameters_mut().unwrap().fill(3.0 * (rank as f32 + round as f32));
                            let averaged = member.average(round, &GROUP, PATIENCE);
                            let averaged =
                                averaged.unwrap_or_else(|error| panic!("{error}, in round {round}"));
                            assert_eq!((averaged.members, averaged.skipped), (3, false), "in round {round}");
                            let expected = 3.0 * (1.0 + round as f32);
                            let parameters = member.parameters().unwrap();
                            assert!(parameters.iter().all(|mean| *mean == expected), "in round {round}");
                        }
                        member.leave(PATIENCE).unwrap();
                    });
                }
            });
        });
    }

    #[test]
    fn a_member_that_finds_no_way_to_one_that_dials_it_meets_it_later() {
        let (device, is_over) = (&Unordered::new(0, false), &AtomicBool::new(false));
        let listen = |rank| {
            let (verbs, options) = (device.verbs(None), GroupOptions::default());
            GroupMember::listen(verbs, &address(), rank, 2, ELEMENTS, options).unwrap()
        };
        let listeners = [0, 1].map(listen);
        let addresses = &listeners.each_ref().map(GroupListener::address);
        device.set_neighbour(Neighbour::IsSilent);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    if !device.step() {
                        std::thread::yield_now();
                    }
                }
            });
            let (_stop, _let_go) = (Stop(is_over), EndOfSilence(device));
            let meet = |listener: GroupListener<Verbs>| scope.spawn(|| listener.connect(addresses, PATIENCE));
            let meeting = listeners.map(meet);
            while device.waiting() == 0 {
                assert!(!meeting.iter().any(std::thread::ScopedJoinHandle::is_finished));
                std::thread::yield_now();
            }
            device.set_neighbour(Neighbour::IsGone);
            // Long enough for the dialling side to be refused.
            std::thread::sleep(Duration::from_millis(500));
            device.set_neighbour(Neighbour::Answers);
            let _members = meeting.map(|member| member.join().unwrap().unwrap());
        });
    }

    /// Serves with one thread that is the device, too.
    fn serve(server: &mut Server<Verbs>, device: &Unordered, is_over: &AtomicBool) {
        while !is_over.load(Ordering::Relaxed) {
            if !device.step() {
                std::thread::yield_now();
            }
            server.poll(now()).unwrap();
        }
    }

    #[test]
    fn a_neighbour_that_does_not_answer_holds_up_no_other_peer_of_an_owner() {
        let device = Unordered::new(0, false);
        let verbs = device.verbs(None);
        let scheme = SchemeConfig::Ssp { staleness: 0 };
        let mut server = server(&verbs, scheme, Idle::Poll);
        let (address, is_over, device) = (&server.address(), &AtomicBool::new(false), &device);
        std::thread::scope(|scope| {
            scope.spawn(move || serve(&mut server, device, is_over));
            let (_stop, _let_go) = (Stop(is_over), EndOfSilence(device));
            let options = WorkerOptions::new(scheme);
            let mut worker =
                Worker::connect(verbs.clone(), std::slice::from_ref(address), options, PATIENCE).unwrap();
            work(&mut worker, 0).unwrap();

            device.set_neighbour(Neighbour::IsSilent);
            let read = || Reader::connect(verbs.clone(), address, ReaderOptions::default(), PATIENCE);
            let joining = scope.spawn(read);
            while device.waiting() == 0 {
                assert!(!joining.is_finished());
                std::thread::yield_now();
            }
            (1..ROUNDS).for_each(|round| work(&mut worker, round).unwrap());
            assert!(device.waiting() > 0 && !joining.is_finished(), "it waits still");

            // Within their time readers try again as often as they are refused, which passes.
            device.set_neighbour(Neighbour::IsGone);
            let in_short = Duration::from_secs(3);
            let refused = Reader::connect(verbs.clone(), address, ReaderOptions::default(), in_short);
            let refused = refused.err().expect("it is refused");
            assert!(refused.to_string().contains("finds no way here"), "{refused}");
            assert!(refused.retry_after().is_some());
            work(&mut worker, ROUNDS).unwrap();
            assert!(!joining.is_finished(), "it goes on asking");
            device.set_neighbour(Neighbour::Answers);
            joining.join().unwrap().unwrap();
            read().unwrap();
            work(&mut worker, ROUNDS + 1).unwrap();
        });
    }

    /// Of the gradient whose fate its worker does not know the servers say whether it counts, by the clock that they
    /// tell: each version holds all before that once.
    #[test]
    fn a_worker_that_lost_its_first_rail_goes_on_over_the_one_that_is_left() {
        for seed in 0..4 {
            let device = Unordered::new(seed, false);
            let verbs = device.verbs_over(2, 64, None);
            let scheme = SchemeConfig::Ssp { staleness: 0 };
            let mut server = server(&verbs, scheme, Idle::Poll);
            let (addresses, is_over, device) = (&[server.address()], &AtomicBool::new(false), &device);
            std::thread::scope(|scope| {
                scope.spawn(move || serve(&mut server, device, is_over));
                let _stop = Stop(is_over);
                let options = WorkerOptions::new(scheme);
                let mut worker = Worker::connect(verbs, addresses, options, PATIENCE).unwrap();
                let (is_down, mut lost) = (&AtomicBool::new(false), 0);
                while worker.clock().get() < ROUNDS {
                    let round = worker.clock().get();
                    if round == ROUNDS / 2 && !is_down.swap(true, Ordering::Relaxed) {
                        // At a random moment of the rounds that follow. In every other job the ports are up all the
                        // time, and the network between them is broken.
                        scope.spawn(move || if seed % 2 == 0 { device.take_down(1) } else { device.cut(1) });
                    }
                    if let Err(error) = work(&mut worker, round) {
                        assert!(error.is_loss(), "{error}, seed {seed}");
                        worker.reconnect(addresses, PATIENCE).unwrap();
                        lost += 1;
                    }
                }
                assert_eq!(lost, 1, "seed {seed}");
                device.bring_up(1);
                worker.reconnect(addresses, PATIENCE).unwrap();
                (ROUNDS..2 * ROUNDS).for_each(|round| work(&mut worker, round).unwrap());
            });
        }
    }

    /// Lets calls that undo something go on when it is dropped.
    struct EndOfHold<'a>(&'a Unordered);

    impl Drop for EndOfHold<'_> {
        fn drop(&mut self) {
            self.0.hold_undoing(false);
        }
    }

    #[test]
    fn a_peer_that_is_let_go_holds_up_no_other_while_its_device_undoes_it() {
        let device = Unordered::new(0, false);
        let verbs = device.verbs(None);
        let (scheme, kept) = (SchemeConfig::Ssp { staleness: 0 }, device.kept());
        let mut server = server(&verbs, scheme, Idle::Poll);
        let (address, is_over, device) = (&server.address(), &AtomicBool::new(false), &device);
        std::thread::scope(|scope| {
            scope.spawn(move || serve(&mut server, device, is_over));
            let _stop = Stop(is_over);
            let options = WorkerOptions::new(scheme);
            let mut worker =
                Worker::connect(verbs.clone(), std::slice::from_ref(address), options, PATIENCE).unwrap();
            let reader = Reader::connect(verbs.clone(), address, ReaderOptions::default(), PATIENCE).unwrap();
            work(&mut worker, 0).unwrap();

            // Before the worker is undone as well.
            let _go_on = EndOfHold(device);
            device.hold_undoing(true);
            // Its own side takes as long.
            scope.spawn(move || drop(reader));
            let deadline = now() + PATIENCE;
            while device.undoing() < 2 {
                assert!(now() < deadline, "the owner has not noticed that the reader is gone");
                std::thread::yield_now();
            }
            (1..ROUNDS).for_each(|round| work(&mut worker, round).unwrap());
            assert_eq!(device.undoing(), 2, "it is not undone yet");
        });
        assert_eq!(device.kept(), kept, "in the end all of it is");
    }

    /// A member that waits for one whose process is not there yet dials it every fifth of a second, for as long as that
    /// takes.
    #[test]
    fn a_member_that_dials_in_vain_makes_no_queue_pair_and_registers_once() {
        let device = Unordered::new(0, false);
        let nowhere = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let (verbs, options) = (device.verbs(None), GroupOptions::default());
        let member = GroupMember::listen(verbs, &address(), 1, 2, ELEMENTS, options).unwrap();
        let (before, own) = (device.made(), member.address());
        let absent = member.connect(&[Address::Verbs(nowhere), own], Duration::from_millis(500));
        assert!(matches!(absent.map(drop), Err(Error::Group(_))));
        assert_eq!(device.made() - before, 2, "the page and the areas of one inbox");
    }

    /// Returns the registrations that an owner has for a worker.
    fn regions_of_a_worker(scheme: SchemeConfig, says_in_order: bool) -> usize {
        let device = Unordered::new(0, says_in_order);
        let verbs = device.verbs(None);
        let mut server = server(&verbs, scheme, Idle::Poll);
        let (address, before) = (server.address(), device.regions());
        assert_eq!(before, 4, "the control page and the frames, for its own requests and for readers");
        let is_there = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (go, leave) = std::sync::mpsc::channel::<()>();
            let working = scope.spawn(move || {
                let _joined = Stop(is_there);
                let worker =
                    Worker::connect(verbs, &[address], WorkerOptions::new(scheme), PATIENCE).unwrap();
                is_there.store(true, Ordering::Relaxed);
                leave.recv().unwrap();
                drop(worker);
            });
            while !is_there.load(Ordering::Relaxed) {
                device.step();
                server.poll(now()).unwrap();
            }
            // The worker's registrations end with it, and the owner has not noticed yet that it is gone.
            go.send(()).unwrap();
            working.join().unwrap();
        });
        device.regions() - before
    }

    /// The row `room` of `slackline doctor` goes by these numbers, and so does `docs/scale.md`.
    #[test]
    fn an_owner_registers_four_regions_for_a_worker_a_sentinel_and_two_to_push() {
        let (pulled, pushed) = (SchemeConfig::Ssp { staleness: 0 }, SchemeConfig::Essp { staleness: 0 });
        assert_eq!(regions_of_a_worker(pulled, true), 4);
        assert_eq!(regions_of_a_worker(pulled, false), 5);
        assert_eq!(regions_of_a_worker(pushed, true), 6);
        assert_eq!(regions_of_a_worker(pushed, false), 7);
    }
}
