//! Tests of publishing, pulling, pushing and averaging over an RDMA device that keeps no more order than it must.

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use crate::kernel::Optimizer;
    use crate::node::{GroupListener, GroupMember, GroupOptions, Server, ServerOptions};
    use crate::node::{Idle, Worker, WorkerOptions, now};
    use crate::scheme::SchemeConfig;
    use crate::table::{ElementType, Table};
    use crate::time::Duration;
    use crate::transport::Address;
    use crate::transport::verbs::Verbs;
    use crate::transport::verbs::unordered::Unordered;

    const PATIENCE: Duration = Duration::from_secs(60);
    const ELEMENTS: usize = 3000;
    const ROUNDS: u64 = 40;
    /// Overrules what the device says of itself. With `Some(true)` the tests below fail.
    const IN_ORDER: Option<bool> = None;

    /// Runs a test while the device takes its steps.
    fn over_the_device(seed: u64, test: impl FnOnce(Verbs)) {
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let (device, is_over) = (Unordered::new(seed, false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    if !device.step() {
                        std::thread::yield_now();
                    }
                }
            });
            let _stop = Stop(&is_over);
            test(device.verbs(IN_ORDER));
        });
    }

    fn address() -> Address {
        "verbs:127.0.0.1:0".parse().unwrap()
    }

    /// A worker finds in each version exactly the gradients that it has published.
    fn every_version_holds_every_gradient_whole(scheme: SchemeConfig, idle: Idle, seed: u64) {
        over_the_device(seed, |verbs| {
            let table = Table::flat(ELEMENTS as u64, ElementType::F32).unwrap();
            let optimizer = Optimizer::Sgd { weight_decay: 0.0 };
            let mut options = ServerOptions { optimizer, threads: 1, ..ServerOptions::new(scheme, 1, 0.5) };
            options.memory.chunk_bytes = 1024;
            let mut server =
                Server::new(verbs.clone(), &address(), table, &[0.0; ELEMENTS], options).unwrap();
            let address = server.address();
            let is_done = &AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    while !is_done.load(Ordering::Relaxed) {
                        server.poll(now()).unwrap();
                        std::thread::yield_now();
                    }
                });
                let working = scope.spawn(move || {
                    let options = WorkerOptions { idle, ..WorkerOptions::new(scheme) };
                    let mut worker = Worker::connect(verbs, &[address], options, PATIENCE).unwrap();
                    let mut expected = 0.0;
                    for round in 0..ROUNDS {
                        let mut step = worker.step(PATIENCE).unwrap();
                        let parameters = step.parameters().unwrap();
                        let wrong = parameters.iter().position(|parameter| *parameter != expected);
                        assert_eq!(wrong.map(|at| (at, parameters[at])), None, "{expected} in round {round}");
                        step.gradient().unwrap().fill(round as f32 + 1.0);
                        step.publish(None, PATIENCE).unwrap();
                        expected -= 0.5 * (round as f32 + 1.0);
                    }
                });
                let result = working.join();
                is_done.store(true, Ordering::Relaxed);
                result.unwrap();
            });
        });
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

    #[test]
    fn pushed_versions_are_whole_where_no_order_is_kept() {
        (0..3).for_each(|seed| {
            every_version_holds_every_gradient_whole(SchemeConfig::Essp { staleness: 0 }, Idle::Poll, seed)
        });
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
                            let averaged = member.average(round, &GROUP, PATIENCE).unwrap();
                            assert_eq!((averaged.members, averaged.skipped), (3, false));
                            let expected = 3.0 * (1.0 + round as f32);
                            let parameters = member.parameters().unwrap();
                            assert!(parameters.iter().all(|mean| *mean == expected), "round {round}");
                        }
                        member.leave(PATIENCE).unwrap();
                    });
                }
            });
        });
    }
}
