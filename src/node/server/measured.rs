//! The statistics of a measured fold, as the scheme receives them.

use super::Server;
use crate::scheme::Statistics;
use crate::transport::Transport;

impl<T: Transport> Server<T> {
    /// The statistics for the scheme out of the measurements of this shard. Where this server decides for all shards,
    /// its elements are a sample of the gradient, and the loss is of the whole: squares are extrapolated to the
    /// elements of all shards.
    pub(super) fn of_all_shards(&self, of_shard: Statistics) -> Statistics {
        if self.shard.decider.is_none() {
            return of_shard;
        }
        let range = self.shard.range();
        let parts = self.shard.table().bytes() as f64 / (range.end - range.start) as f64;
        let Statistics { mean_norm_squared, variance, .. } = of_shard;
        let [mean_norm_squared, variance] = [mean_norm_squared, variance].map(|of| of.map(|of| parts * of));
        Statistics { mean_norm_squared, variance, ..of_shard }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use super::*;
    use crate::node::server::ServerOptions;
    use crate::node::{Worker, WorkerOptions};
    use crate::scheme::{
        Needs, Registry, Scheme, SchemeConfig, SchemeConfigError, ServerAction, ServerEvent, ServerScheme,
        Share, Start, WorkerScheme,
    };
    use crate::table::{ElementType, Table};
    use crate::time::Instant;
    use crate::transport::Address;
    use crate::transport::shm::Shm;

    const TIMEOUT: Duration = Duration::from_secs(20);
    const ELEMENTS: usize = 256;

    type Told = Arc<Mutex<Vec<Statistics>>>;

    /// DBW that records the statistics which it receives.
    struct Overheard(SchemeConfig, Told);

    impl Scheme for Overheard {
        fn name(&self) -> &str {
            "overheard"
        }

        fn needs(&self) -> Needs {
            Needs { measures_moments: true, ..self.0.needs() }
        }

        fn server(&self, start: Start) -> Result<Box<dyn ServerScheme>, SchemeConfigError> {
            Ok(Box::new(OverheardServer(Scheme::server(&self.0, start)?, self.1.clone())))
        }

        fn worker(&self) -> Box<dyn WorkerScheme> {
            self.0.worker()
        }
    }

    struct OverheardServer(Box<dyn ServerScheme>, Told);

    impl ServerScheme for OverheardServer {
        fn handle_event(&mut self, now: Instant, event: ServerEvent) {
            if let ServerEvent::Applied { statistics, .. } = event {
                self.1.lock().unwrap().push(statistics);
            }
            self.0.handle_event(now, event);
        }

        fn poll_action(&mut self, shares: &mut Vec<Share>) -> Option<ServerAction> {
            self.0.poll_action(shares)
        }

        fn smallest_clock(&self) -> crate::clock::Clock {
            self.0.smallest_clock()
        }
    }

    /// The statistics that the scheme receives of a fold of two gradients, the same in each sixteenth of the table.
    fn told_over(shards: u16) -> Statistics {
        let told = Told::default();
        let dbw: SchemeConfig = "dbw(2, delivery=pull)".parse().unwrap();
        let begin = |shard| {
            let scheme = Overheard(dbw, if shard == 0 { told.clone() } else { Told::default() });
            let options = ServerOptions { shard: (shard, shards), ..ServerOptions::new(scheme, 2, 0.5) };
            let table = Table::flat(ELEMENTS as u64, ElementType::F32).unwrap();
            let values = vec![0.0; ELEMENTS / usize::from(shards)];
            Server::new(Shm::new(), &Address::random(), table, &values, options).unwrap()
        };
        let servers: Vec<_> = (0..shards).map(begin).collect();
        let addresses: Vec<_> = servers.iter().map(Server::address).collect();
        let (addresses, is_over) = (&addresses, &AtomicBool::new(false));
        std::thread::scope(|scope| {
            for mut server in servers {
                scope.spawn(move || {
                    if server.follows() {
                        server.follow(&addresses[0], TIMEOUT).unwrap();
                    }
                    server.drive(|_| is_over.load(SeqCst), TIMEOUT).unwrap();
                });
            }
            let work = move |index: usize| {
                let make = move |_: &str| Ok(Overheard(dbw, Told::default()).into());
                let schemes = Registry::default().with("overheard", make);
                let options = WorkerOptions { schemes, ..WorkerOptions::default() };
                let mut worker = Worker::connect(Shm::new(), addresses, options, TIMEOUT).unwrap();
                let mut step = worker.step(TIMEOUT).unwrap();
                let elements = step.gradient().unwrap().iter_mut().enumerate();
                elements
                    .for_each(|(at, element)| *element = (((7 + 5 * index) * (at % 16)) % 11) as f32 - 4.0);
                step.publish(Some(1.0), TIMEOUT).unwrap();
                worker.flush(TIMEOUT).unwrap();
            };
            let working = [0, 1].map(|index| scope.spawn(move || work(index)));
            working.into_iter().for_each(|worker| worker.join().unwrap());
            is_over.store(true, SeqCst);
        });
        let told = told.lock().unwrap();
        assert_eq!(told.len(), 1);
        told[0]
    }

    #[test]
    fn the_one_that_decides_is_told_of_as_much_gradient_over_any_shards() {
        let [one, four] = [1, 4].map(told_over);
        let near = |one: Option<f64>, four: Option<f64>| (one.unwrap() / four.unwrap() - 1.0).abs() < 1e-6;
        assert!(one.mean_norm_squared.unwrap() > 100.0 && one.variance.unwrap() > 100.0, "{one:?}");
        assert!(near(one.mean_norm_squared, four.mean_norm_squared), "{one:?} and {four:?}");
        assert!(near(one.variance, four.variance), "{one:?} and {four:?}");
        assert_eq!((one.loss, one.learning_rate), (four.loss, four.learning_rate));
    }
}
