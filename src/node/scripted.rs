//! Tests of the services that nodes offer to schemes: measuring, interrupting, and telling which peer holds which
//! version, over shared memory and over TCP. The server's half of the scheme is a script that the test writes as it
//! goes.

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex};
    use std::thread::ScopedJoinHandle;

    use crate::clock::{Clock, Version, WorkerId};
    use crate::kernel::Optimizer;
    use crate::node::link::Link;
    use crate::node::runtime::complete;
    use crate::node::{Error, Server, ServerOptions, ServerStatus, Worker, WorkerOptions, now};
    use crate::param::{PeerRole, WorkerProgress};
    use crate::scheme::{
        Bound, GradientId, SchemeConfig, ServerAction, ServerEvent, ServerScheme, Share, Statistics,
        WorkerAction, WorkerEvent, WorkerScheme,
    };
    use crate::table::{ElementType, Encoding, Table};
    use crate::time::{Duration, Instant};
    use crate::transport::shm::Shm;
    use crate::transport::tcp::Tcp;
    use crate::transport::{Address, Transport};

    const PATIENCE: Duration = Duration::from_secs(60);
    const ELEMENTS: usize = 1000;

    /// The events that the script's scheme was told of, and the actions that it is to take next.
    #[derive(Default)]
    struct Lines {
        events: Vec<ServerEvent>,
        actions: VecDeque<(ServerAction, Vec<Share>)>,
        /// The newest version that workers can read: the scheme hears of one before it is committed.
        committed: u64,
    }

    #[derive(Clone, Default)]
    struct Script(Arc<Mutex<Lines>>);

    impl ServerScheme for Script {
        fn handle_event(&mut self, _now: Instant, event: ServerEvent) {
            self.0.lock().unwrap().events.push(event);
        }

        fn poll_action(&mut self, shares: &mut Vec<Share>) -> Option<ServerAction> {
            let (action, these) = self.0.lock().unwrap().actions.pop_front()?;
            shares.extend(these);
            Some(action)
        }

        fn smallest_clock(&self) -> Clock {
            Clock::new(0)
        }
    }

    impl Script {
        fn order(&self, action: ServerAction) {
            self.0.lock().unwrap().actions.push_back((action, Vec::new()));
        }

        /// Folds the gradients of these workers and clocks.
        fn apply(&self, gradients: &[(u32, u64)]) {
            let weight = 1.0 / gradients.len() as f32;
            let share = |&(worker, clock): &(u32, u64)| Share { gradient: id(worker, clock), weight };
            let shares = gradients.iter().map(share).collect();
            self.0.lock().unwrap().actions.push_back((ServerAction::Apply, shares));
        }

        /// Waits until it was told of something, and returns it.
        fn hear<R>(&self, what: impl Fn(&ServerEvent) -> Option<R>) -> R {
            let deadline = now() + PATIENCE;
            loop {
                if let Some(found) = self.0.lock().unwrap().events.iter().find_map(&what) {
                    return found;
                }
                assert!(now() < deadline, "never told: {:?}", self.0.lock().unwrap().events);
                std::thread::yield_now();
            }
        }

        /// Waits until workers can read this version, and returns its statistics as the scheme received them.
        fn hear_version(&self, version: u64) -> Statistics {
            let statistics = self.hear(|event| match event {
                ServerEvent::Applied { version: made, statistics } => {
                    (made.get() == version).then_some(*statistics)
                }
                _ => None,
            });
            let deadline = now() + PATIENCE;
            while self.0.lock().unwrap().committed < version {
                assert!(now() < deadline, "version {version} is never committed");
                std::thread::yield_now();
            }
            statistics
        }

        /// Base version and magnitude of a gradient, once it has arrived.
        fn hear_gradient(&self, worker: u32, clock: u64) -> (Version, Option<f32>) {
            self.hear(|event| match event {
                ServerEvent::Arrived { gradient, base, magnitude, .. } => {
                    (*gradient == id(worker, clock)).then_some((*base, *magnitude))
                }
                _ => None,
            })
        }
    }

    fn id(worker: u32, clock: u64) -> GradientId {
        GradientId { worker: WorkerId(worker), clock: Clock::new(clock) }
    }

    struct Scripted<'scope> {
        script: Script,
        address: Address,
        stop: Arc<AtomicBool>,
        serving: Option<ScopedJoinHandle<'scope, (Vec<f32>, ServerStatus)>>,
    }

    /// A test that fails ends its server, for which its scope waits.
    impl Drop for Scripted<'_> {
        fn drop(&mut self) {
            self.stop.store(true, Ordering::Relaxed);
        }
    }

    impl<'scope> Scripted<'scope> {
        /// A server of parameters that are all 1, in a thread of its own.
        fn serve<T: Transport>(
            scope: &'scope std::thread::Scope<'scope, '_>,
            (transport, address): (T, Address),
            options: ServerOptions,
        ) -> Self {
            let table = Table::flat(ELEMENTS as u64, ElementType::F32).unwrap();
            let mut server = Server::new(transport, &address, table, &[1.0; ELEMENTS], options).unwrap();
            let script = Script::default();
            server.scheme = Box::new(script.clone());
            (server.measures_moments, server.reports_reads) = (true, true);
            let address = server.address();
            let stop = Arc::new(AtomicBool::new(false));
            let (stopped, told) = (Arc::clone(&stop), script.clone());
            let serving = scope.spawn(move || {
                while !stopped.load(Ordering::Relaxed) {
                    server.poll(now()).unwrap();
                    told.0.lock().unwrap().committed = server.status().version.get();
                    std::thread::yield_now();
                }
                (server.parameters().unwrap(), server.status())
            });
            Scripted { script, address, stop, serving: Some(serving) }
        }

        fn worker<T: Transport>(&self, transport: T) -> Worker<T> {
            let address = self.address.clone();
            let options = WorkerOptions::new(SchemeConfig::Asp);
            let mut worker = Worker::connect(transport, &[address], options, PATIENCE).unwrap();
            (worker.measures_magnitude, worker.reports_reads) = (true, true);
            worker
        }

        fn end(mut self) -> (Vec<f32>, ServerStatus) {
            self.stop.store(true, Ordering::Relaxed);
            self.serving.take().unwrap().join().unwrap()
        }
    }

    fn options(threads: usize, optimizer: Optimizer) -> ServerOptions {
        let mut options =
            ServerOptions { threads, optimizer, ..ServerOptions::new(SchemeConfig::Asp, 1, 0.5) };
        options.memory.chunk_bytes = 256;
        options
    }

    const SGD: Optimizer = Optimizer::Sgd { weight_decay: 0.0 };

    fn shm() -> (Shm, Address) {
        (Shm::new(), Address::random())
    }

    /// Publishes a gradient that holds `value` throughout.
    fn publish<T: Transport>(worker: &mut Worker<T>, value: f32) {
        let mut step = worker.resume().unwrap();
        step.gradient().unwrap().fill(value);
        step.publish(Some(value), PATIENCE).unwrap();
    }

    #[test]
    fn a_fold_measures_the_same_on_one_thread_and_on_three() {
        let measured = [1, 3].map(|threads| {
            std::thread::scope(|scope| {
                let server = Scripted::serve(scope, shm(), options(threads, SGD));
                let mut workers = [(); 2].map(|()| server.worker(Shm::new()));
                for (index, worker) in workers.iter_mut().enumerate() {
                    let mut step = worker.step(PATIENCE).unwrap();
                    let gradient = step.gradient().unwrap().iter_mut().enumerate();
                    gradient.for_each(|(at, g)| *g = (at as f32 * 0.37 + index as f32).sin());
                    step.publish(Some(index as f32), PATIENCE).unwrap();
                }
                server.script.apply(&[(0, 0), (1, 0)]);
                let statistics = server.script.hear_version(1);
                let (_, status) = server.end();
                assert_eq!(status.mean_norm_squared, statistics.mean_norm_squared);
                assert_eq!(status.variance, statistics.variance);
                statistics
            })
        });
        assert_eq!(measured[0], measured[1], "bit for bit");
        let gradients = [0, 1].map(|index| {
            (0..ELEMENTS)
                .map(move |at| f64::from((at as f32 * 0.37 + index as f32).sin()))
                .collect::<Vec<_>>()
        });
        let of = |value: fn(f64, f64) -> f64| -> f64 {
            gradients[0].iter().zip(&gradients[1]).map(|(a, b)| value(*a, *b)).sum()
        };
        let near = |found: Option<f64>, expected: f64| (found.unwrap() / expected - 1.0).abs() < 1e-5;
        assert!(near(measured[0].mean_norm_squared, of(|a, b| ((a + b) / 2.0).powi(2))), "{measured:?}");
        // Half the squared difference: the sample variance of two.
        assert!(near(measured[0].variance, of(|a, b| (a - b).powi(2) / 2.0)), "{measured:?}");
        assert_eq!((measured[0].loss, measured[0].learning_rate), (Some(0.5), Some(0.5)));
    }

    #[test]
    fn an_apply_without_shares_is_a_step_on_a_gradient_of_zero() {
        std::thread::scope(|scope| {
            let momentum = Optimizer::Momentum { momentum: 0.5, weight_decay: 0.0 };
            let server = Scripted::serve(scope, shm(), options(2, momentum));
            let mut worker = server.worker(Shm::new());
            worker.step(PATIENCE).unwrap().suspend();
            publish(&mut worker, 1.0);
            server.script.apply(&[(0, 0)]);
            server.script.apply(&[]);
            let statistics = server.script.hear_version(2);
            // 0.5 / (1 - 0.5): the step of plain SGD that gets as far in the long run.
            assert_eq!(statistics, Statistics { learning_rate: Some(1.0), ..Statistics::default() });
            let step = worker.step(PATIENCE).unwrap();
            assert_eq!(step.view().version, Version::new(2));
            // 1 - 0.5 * 1, then the momentum alone: 0.5 - 0.5 * 0.5.
            assert_eq!(step.parameters().unwrap(), [0.25; ELEMENTS]);
            drop(step);
            drop(worker);
            server.end();
        });
    }

    /// One worker's update makes the other's computation void; that worker stops, begins again, and only its gradient
    /// of the newer version arrives. A request that it has overtaken does not disturb it.
    fn an_interrupted_worker_begins_again<T: Transport>(transport: fn() -> T, address: Address) {
        std::thread::scope(|scope| {
            let server = Scripted::serve(scope, (transport(), address), options(1, SGD));
            let [mut slow, mut fast] = [(); 2].map(|()| server.worker(transport()));
            for worker in [&mut slow, &mut fast] {
                assert_eq!(worker.step(PATIENCE).unwrap().suspend().version, Version::new(0));
            }
            let mut step = slow.resume().unwrap();
            assert!(!step.should_stop().unwrap());
            publish(&mut fast, 1.0);
            server.script.apply(&[(1, 0)]);
            server.script.order(ServerAction::Interrupt { worker: WorkerId(0) });
            let deadline = now() + PATIENCE;
            while !step.should_stop().unwrap() {
                assert!(now() < deadline, "it was never asked to stop");
            }
            step.gradient().unwrap().fill(100.0);
            step.abandon().unwrap();
            let mut step = slow.step(PATIENCE).unwrap();
            let view = step.view();
            assert_eq!((view.clock, view.version), (Clock::new(0), Version::new(1)));
            assert_eq!(step.worker().statistics().abandoned, 1);
            for _ in 0..3 {
                assert!(!step.should_stop().unwrap(), "once is enough");
            }
            // It computes on the latest version already.
            server.script.order(ServerAction::Interrupt { worker: WorkerId(0) });
            server.script.apply(&[]);
            server.script.hear_version(2);
            for _ in 0..3 {
                assert!(!step.should_stop().unwrap(), "that request was overtaken");
                std::thread::sleep(Duration::from_millis(2));
            }
            step.suspend();
            publish(&mut slow, 0.5);
            assert_eq!(server.script.hear_gradient(0, 0).0, Version::new(1));
            server.script.apply(&[(0, 0)]);
            server.script.hear_version(3);
            drop((slow, fast));
            let (parameters, status) = server.end();
            assert_eq!(parameters, [1.0 - 0.5 - 0.25; ELEMENTS], "what was abandoned is nowhere in it");
            assert_eq!((status.folded, status.dropped), (2, 0));
        });
    }

    #[test]
    fn an_interrupted_worker_begins_again_over_shared_memory() {
        an_interrupted_worker_begins_again(Shm::new, Address::random());
    }

    #[test]
    fn an_interrupted_worker_begins_again_over_tcp() {
        let tcp = || {
            let secret = crate::channel::Secret::from_text("what both sides know", "this test").unwrap();
            Tcp::with_secret(secret)
        };
        an_interrupted_worker_begins_again(tcp, "127.0.0.1:0".parse().unwrap());
    }

    #[test]
    fn a_late_gradient_after_an_interrupt_shows_its_base_and_can_be_dropped() {
        std::thread::scope(|scope| {
            let server = Scripted::serve(scope, shm(), options(1, SGD));
            let [mut late, mut fast] = [(); 2].map(|()| server.worker(Shm::new()));
            late.step(PATIENCE).unwrap().suspend();
            fast.step(PATIENCE).unwrap().suspend();
            publish(&mut fast, 1.0);
            server.script.apply(&[(1, 0)]);
            server.script.order(ServerAction::Interrupt { worker: WorkerId(0) });
            server.script.hear_version(1);
            // It did not ask in time.
            publish(&mut late, 100.0);
            assert_eq!(server.script.hear_gradient(0, 0).0, Version::new(0));
            server.script.order(ServerAction::Drop { gradient: id(0, 0) });
            late.flush(PATIENCE).unwrap();
            let step = late.step(PATIENCE).unwrap();
            let view = step.view();
            assert_eq!((view.clock, view.version), (Clock::new(1), Version::new(1)));
            assert_eq!(step.parameters().unwrap(), [0.5; ELEMENTS]);
            drop(step);
            drop((late, fast));
            let (_, status) = server.end();
            assert_eq!((status.folded, status.dropped), (1, 1));
        });
    }

    #[test]
    fn what_a_worker_holds_is_told_before_what_it_made_of_it() {
        std::thread::scope(|scope| {
            let server = Scripted::serve(scope, shm(), options(1, SGD));
            let mut worker = server.worker(Shm::new());
            for clock in 0..3 {
                worker.step(PATIENCE).unwrap().suspend();
                publish(&mut worker, 1.0);
                // As schemes do: a scheme that folds a gradient before it hears of it would miss the worker's earlier
                // events.
                server.script.hear_gradient(0, clock);
                server.script.apply(&[(0, clock)]);
                server.script.hear_version(clock + 1);
            }
            let told = server.script.0.lock().unwrap().events.iter().fold(Vec::new(), |mut told, event| {
                match event {
                    ServerEvent::Seen { version, .. } => told.push(('s', version.get())),
                    ServerEvent::Arrived { gradient, .. } => told.push(('a', gradient.clock.get())),
                    _ => {}
                }
                told
            });
            assert_eq!(told, [('s', 0), ('a', 0), ('s', 1), ('a', 1), ('s', 2), ('a', 2)]);
            drop(worker);
            server.end();
        });
    }

    #[test]
    fn a_worker_that_says_it_holds_what_there_is_not_is_let_go() {
        std::thread::scope(|scope| {
            let server = Scripted::serve(scope, shm(), options(1, SGD));
            let mut worker = server.worker(Shm::new());
            worker.step(PATIENCE).unwrap().suspend();
            worker.say_held(Version::new(u64::MAX - 1));
            let error = loop {
                match worker.poll(now()) {
                    Ok(_) => std::thread::yield_now(),
                    Err(error) => break error,
                }
            };
            assert!(matches!(error, Error::Evicted { .. } | Error::ServerLost { .. }), "{error}");
            server.script.hear(|event| matches!(event, ServerEvent::Left { .. }).then_some(()));
            server.end();
        });
    }

    #[test]
    fn an_evicted_worker_does_not_take_its_successors_messages_for_its_own() {
        std::thread::scope(|scope| {
            let server = Scripted::serve(scope, shm(), options(1, SGD));
            let mut worker = server.worker(Shm::new());
            worker.step(PATIENCE).unwrap().suspend();
            publish(&mut worker, 1.0);
            worker.step(PATIENCE).unwrap().suspend();
            server.script.hear_gradient(0, 0);
            worker.say_held(Version::new(u64::MAX - 1));
            // Once, so that it does not find out before it flushes.
            let _most_likely_well = worker.poll(now());
            server.script.hear(|event| matches!(event, ServerEvent::Left { .. }).then_some(()));
            // It gets the same index, at a later clock: all before that is consumed, for it.
            let role =
                PeerRole::Worker { encoding: Encoding::F32, scheme: "asp".into(), identity: 0, session: 0 };
            let resume = Some(WorkerProgress { clock: Clock::new(9), epoch: 1, version: Version::new(0) });
            let transport = Shm::new();
            let connect = Link::connect(&transport, &server.address, role.into(), resume, PATIENCE);
            let other = complete(connect).unwrap();
            assert_eq!((other.welcome.peer, other.welcome.clock), (0, Clock::new(9)));
            let error = worker.flush(PATIENCE).unwrap_err();
            assert!(matches!(error, Error::Evicted { .. } | Error::ServerLost { .. }), "{error}");
            drop(other);
            server.end();
        });
    }

    #[test]
    fn no_two_peers_of_any_incarnation_have_the_same_generation() {
        std::thread::scope(|scope| {
            let generations = [(); 2].map(|()| {
                let server = Scripted::serve(scope, shm(), options(1, SGD));
                let join = |()| {
                    let (transport, role) = (Shm::new(), PeerRole::Reader.into());
                    complete(Link::connect(&transport, &server.address, role, None, PATIENCE))
                };
                let links = [(); 2].map(join).map(Result::unwrap);
                let generations = links.each_ref().map(|link| link.welcome.generation);
                drop(links);
                server.end();
                generations
            });
            let [[one, two], others] = generations;
            assert!(one != two && !others.contains(&one) && !others.contains(&two), "{generations:?}");
        });
    }

    /// Records the events that it receives.
    struct Listening(Box<dyn WorkerScheme>, Arc<Mutex<Vec<WorkerEvent>>>);

    impl WorkerScheme for Listening {
        fn handle_event(&mut self, now: Instant, event: WorkerEvent) {
            self.1.lock().unwrap().push(event);
            self.0.handle_event(now, event);
        }

        fn poll_action(&mut self) -> Option<WorkerAction> {
            self.0.poll_action()
        }
    }

    #[test]
    fn both_halves_of_the_scheme_are_told_the_largest_magnitude() {
        std::thread::scope(|scope| {
            let server = Scripted::serve(scope, shm(), options(1, SGD));
            let mut worker = server.worker(Shm::new());
            let events = Arc::new(Mutex::new(Vec::new()));
            worker.listen(|scheme| Box::new(Listening(scheme, Arc::clone(&events))));
            let told = |magnitude: f32, clock: u64| {
                assert_eq!(server.script.hear_gradient(0, clock).1, Some(magnitude));
                let last = events.lock().unwrap().iter().rev().find_map(|event| match event {
                    WorkerEvent::Published { magnitude } => Some(*magnitude),
                    _ => None,
                });
                assert_eq!(last, Some(Some(magnitude)));
            };
            let mut step = worker.step(PATIENCE).unwrap();
            step.gradient().unwrap()[777] = -7.5;
            step.publish(None, PATIENCE).unwrap();
            told(7.5, 0);
            let mut step = worker.step(PATIENCE).unwrap();
            step.gradient().unwrap()[0] = f32::NAN;
            step.publish(None, PATIENCE).unwrap();
            told(f32::INFINITY, 1);
            server.script.apply(&[(0, 0)]);
            let mut step = worker.step(PATIENCE).unwrap();
            let slot: Vec<_> = step.borrow_slots(PATIENCE).unwrap().collect();
            slot[0].as_volatile().write(&3f32.to_le_bytes().repeat(ELEMENTS));
            step.publish_slots(None, PATIENCE).unwrap();
            told(3.0, 2);
            drop(slot);
            drop(worker);
            server.end();
        });
    }

    #[test]
    fn workers_are_told_how_many_are_in() {
        std::thread::scope(|scope| {
            let server = Scripted::serve(scope, shm(), options(1, SGD));
            let mut worker = server.worker(Shm::new());
            let events = Arc::new(Mutex::new(Vec::new()));
            worker.listen(|scheme| Box::new(Listening(scheme, Arc::clone(&events))));
            let mut hears = |workers: usize| {
                let deadline = now() + PATIENCE;
                while !events.lock().unwrap().contains(&WorkerEvent::Membership { workers }) {
                    assert!(now() < deadline, "never told of {workers}: {:?}", events.lock().unwrap());
                    worker.poll(now()).unwrap();
                }
                events.lock().unwrap().clear();
            };
            hears(1);
            let other = server.worker(Shm::new());
            hears(2);
            drop(other);
            hears(1);
            server.end();
        });
    }

    /// Waits for a version that never comes, until its gradient is consumed: then any copy will do.
    struct Impatient {
        clock: u64,
        actions: VecDeque<WorkerAction>,
    }

    const REFRESH: WorkerAction = WorkerAction::Refresh { bound: Bound::NONE };

    impl WorkerScheme for Impatient {
        fn handle_event(&mut self, _now: Instant, event: WorkerEvent) {
            match event {
                WorkerEvent::Holds { .. } => self.actions.push_back(WorkerAction::Compute),
                WorkerEvent::Published { .. } => {
                    self.clock += 1;
                    let bound = Bound::version(Version::new(1000));
                    self.actions.push_back(WorkerAction::Refresh { bound });
                }
                WorkerEvent::Consumed { clock } if clock.get() == self.clock => {
                    self.actions.push_back(REFRESH)
                }
                _ => {}
            }
        }

        fn poll_action(&mut self) -> Option<WorkerAction> {
            self.actions.pop_front()
        }
    }

    #[test]
    fn an_event_may_change_the_bound_that_a_waiting_worker_waits_for() {
        fn holds<T: Transport>((ours, theirs, address): (T, T, Address)) {
            std::thread::scope(|scope| {
                let server = Scripted::serve(scope, (ours, address), options(1, SGD));
                let mut worker = server.worker(theirs);
                worker.listen(|_| Box::new(Impatient { clock: 0, actions: VecDeque::from([REFRESH]) }));
                worker.step(PATIENCE).unwrap().suspend();
                publish(&mut worker, 1.0);
                let waits = worker.step(Duration::from_millis(50)).map(drop);
                assert!(matches!(waits, Err(Error::Deadline { .. })), "{waits:?}");
                server.script.apply(&[(0, 0)]);
                assert_eq!(worker.step(PATIENCE).unwrap().view().version, Version::new(1));
                drop(worker);
                server.end();
            });
        }
        let (shm, address) = shm();
        holds((shm, Shm::new(), address));
        holds((Tcp::new(), Tcp::new(), Address::Tcp(([127, 0, 0, 1], 0).into())));
    }
}
