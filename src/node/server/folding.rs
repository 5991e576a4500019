//! The folder of a server, and the slots that it gives back once no fold reads them any more.

#[cfg(feature = "cuda")]
use super::NonFinite;
use super::{Server, ServerOptions};
use crate::clock::Clock;
#[cfg(feature = "cuda")]
use crate::cuda::{Gpu, MAX_GRADIENTS as MOST_ON_GPU};
use crate::kernel::MAX_GRADIENTS;
use crate::node::Error;
use crate::node::aggregate::Aggregator;
use crate::node::folder::Folder;
#[cfg(feature = "cuda")]
use crate::node::folder_gpu::GpuFolder;
use crate::scheme::AnyScheme;
use crate::transport::Transport;

/// Creates the folder: on the GPU of the transport, if it has one, otherwise on processors.
pub(super) fn folder<T: Transport>(
    transport: &T,
    options: &ServerOptions,
    scheme_measures: bool,
) -> Result<Box<dyn Folder>, Error> {
    match transport.gpu() {
        None => Ok(Box::new(Aggregator::new(options.threads)?)),
        #[cfg(feature = "cuda")]
        Some(gpu) => folder_on(gpu, options, scheme_measures),
        #[cfg(not(feature = "cuda"))]
        Some(gpu) => {
            let _ = scheme_measures;
            match *gpu {}
        }
    }
}

/// Most workers that may be in at once: no more than there are gradients in a fold, where the scheme folds one of each,
/// and fewer where it may fold several of each. A scheme from outside of this crate asks for as few gradients as it
/// likes.
pub(super) fn most_workers<T: Transport>(transport: &T, scheme: &AnyScheme) -> usize {
    let most = match transport.gpu() {
        None => MAX_GRADIENTS,
        #[cfg(feature = "cuda")]
        Some(_) => MOST_ON_GPU,
        #[cfg(not(feature = "cuda"))]
        Some(gpu) => match *gpu {},
    };
    let fits = |at_once: Option<u16>| at_once.is_some_and(|gradients| usize::from(gradients) <= most);
    let Some(scheme) = scheme.built_in() else { return usize::MAX };
    match fits(scheme.gradients_at_once()) {
        true => usize::MAX,
        // One worker is always let in: of its own gradients one is due in a round on average, and hundreds never.
        false => usize::try_from(scheme.gradients_of_each()).map_or(1, |of_each| (most / of_each).max(1)),
    }
}

#[cfg(feature = "cuda")]
fn folder_on(gpu: &Gpu, options: &ServerOptions, scheme_measures: bool) -> Result<Box<dyn Folder>, Error> {
    let measures = scheme_measures || options.measure_moments;
    let looks = options.non_finite != NonFinite::Allow;
    Ok(Box::new(GpuFolder::new(gpu, &options.optimizer, measures, looks)?))
}

impl<T: Transport> Server<T> {
    /// Gives a worker its slots before `clock` back: at once, or after the current fold of a GPU.
    pub(super) fn give_back(&mut self, peer: u16, clock: Clock) -> Result<(), Error> {
        if self.folder.is_quiet()? || mutant!("slot_given_back_under_fold") {
            self.shard.set_consumed(peer, clock);
        } else if let Some(of) = &self.shard.peers[usize::from(peer)] {
            self.owed.push((peer, of.generation));
        }
        Ok(())
    }

    /// Gives back the slots that are owed, if nothing reads them any more.
    pub(super) fn pay(&mut self) -> Result<(), Error> {
        if self.owed.is_empty() || !self.folder.is_quiet()? {
            return Ok(());
        }
        for (peer, generation) in self.owed.drain(..) {
            let present = self.shard.peers[usize::from(peer)].as_ref();
            let is_same = present.is_some_and(|present| present.generation == generation);
            if let Some(state) = self.workers[usize::from(peer)].as_ref().filter(|_| is_same) {
                self.shard.set_consumed(peer, state.consumed);
            }
        }
        Ok(())
    }
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use std::collections::VecDeque;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use super::*;
    use crate::clock::WorkerId;
    use crate::cuda::Scripted;
    use crate::node::{ShardOptions, Worker, WorkerOptions};
    use crate::scheme::{GradientId, SchemeConfig, ServerAction, ServerEvent, ServerScheme, Share};
    use crate::table::{ElementType, Table};
    use crate::time::Instant;
    use crate::transport::Address;
    use crate::transport::shm::Shm;

    const PATIENCE: Duration = Duration::from_secs(60);
    const GRADIENT: GradientId = GradientId { worker: WorkerId(0), clock: Clock::new(0) };

    /// The actions that the scheme is to take next.
    #[derive(Clone, Default)]
    struct Orders(Arc<Mutex<VecDeque<ServerAction>>>);

    impl ServerScheme for Orders {
        fn handle_event(&mut self, _: Instant, event: ServerEvent) {
            if let ServerEvent::Arrived { .. } = event {
                self.0.lock().unwrap().push_back(ServerAction::Expect);
            }
        }

        fn poll_action(&mut self, shares: &mut Vec<Share>) -> Option<ServerAction> {
            let action = self.0.lock().unwrap().pop_front()?;
            if let ServerAction::Expect = action {
                shares.push(Share { gradient: GRADIENT, weight: 1.0 });
            }
            Some(action)
        }

        fn smallest_clock(&self) -> Clock {
            Clock::new(0)
        }
    }

    /// Over the scripted driver: no GPU is needed, and none is tested.
    #[test]
    fn a_slot_that_a_gpu_still_folds_is_not_given_back_when_it_is_dropped() {
        let driver = Arc::new(Scripted::new());
        let (gpu, ..) = driver.open_gpu();
        let making = driver.work_in_a_thread();
        let table = Table::flat(64, ElementType::F32).unwrap();
        let transport = Shm::new().with_gpu(&gpu);
        let options = ServerOptions::new(SchemeConfig::Asp, 1, 0.5);
        let mut server = Server::new(transport, &Address::random(), table, &[0.0; 64], options).unwrap();
        let orders = Orders::default();
        server.scheme = Box::new(orders.clone());
        let (address, may_publish) = (server.address(), &AtomicBool::new(false));
        std::thread::scope(|scope| {
            let working = scope.spawn(move || {
                let theirs = Arc::new(Scripted::new());
                let (gpu, ..) = theirs.open_gpu();
                let _working = theirs.work_in_a_thread();
                let (transport, options) = (Shm::new().with_gpu(&gpu), WorkerOptions::new(SchemeConfig::Asp));
                let mut worker = Worker::connect(transport, &[address], options, PATIENCE).unwrap();
                while !may_publish.load(Relaxed) {
                    std::thread::yield_now();
                }
                worker.step(PATIENCE).unwrap().publish(None, PATIENCE).unwrap();
                worker.flush(PATIENCE).unwrap();
            });
            assert!(server.drive(|server| server.status().workers == 1, PATIENCE).unwrap());
            drop(making);
            may_publish.store(true, Relaxed);
            assert!(server.drive(|_| driver.launches() > 0, PATIENCE).unwrap());
            orders.0.lock().unwrap().push_back(ServerAction::Drop { gradient: GRADIENT });
            assert!(server.drive(|server| server.status().dropped == 1, PATIENCE).unwrap());
            assert_eq!(server.owed.len(), 1, "the GPU still reads the slot");
            driver.finish();
            assert!(server.drive(|_| working.is_finished(), PATIENCE).unwrap());
        });
    }

    fn crowded(scheme: SchemeConfig, workers: usize) -> Result<Server<Shm>, Error> {
        let options = ServerOptions::new(scheme, workers, 0.5);
        let memory = ShardOptions { peers: 2000, ..options.memory };
        let table = Table::flat(64, ElementType::F32).unwrap();
        Server::new(Shm::new(), &Address::random(), table, &[0.0; 64], ServerOptions { memory, ..options })
    }

    #[test]
    fn more_workers_than_a_server_has_room_for_are_not_blamed_on_its_peers() {
        for workers in [usize::from(u16::MAX) + 1, usize::MAX] {
            let error = crowded(SchemeConfig::Asp, workers).map(drop).unwrap_err();
            assert!(matches!(error, Error::Option { option: "workers", .. }), "{error}");
            assert!(error.to_string().ends_with("has room for 65535: use fewer workers"), "{error}");
        }
        let error = crowded(SchemeConfig::Asp, 2001).map(drop).unwrap_err();
        assert!(matches!(error, Error::Option { option: "peers", .. }), "{error}");
    }

    #[test]
    fn more_workers_than_a_fold_takes_gradients_are_refused_at_the_begin() {
        let most = MAX_GRADIENTS;
        for scheme in ["bsp", "bap(1)", "dbw", "abs"] {
            let scheme: SchemeConfig = scheme.parse().unwrap();
            let error = crowded(scheme, 1200).map(drop).unwrap_err();
            assert!(matches!(error, Error::Option { option: "workers", .. }), "{scheme}: {error}");
        }
        assert!(crowded(SchemeConfig::Bsp, most + 1).is_err() && crowded(SchemeConfig::Bsp, most).is_ok());
        for scheme in ["asp", "essp(2)", "abs(k=2, rule=fixed)"] {
            assert!(crowded(scheme.parse().unwrap(), most + 1).is_ok(), "{scheme} folds fewer at once");
        }
    }

    /// All gradients that a worker published in `s + 1` rounds may be due in one.
    #[test]
    fn delay_takes_only_workers_all_of_whose_gradients_a_fold_has_room_for() {
        for (scheme, most) in [("delay(0)", 1024), ("delay(1)", 512), ("delay(4)", 204), ("delay(1024)", 1)] {
            let scheme: SchemeConfig = scheme.parse().unwrap();
            assert!(crowded(scheme, most).is_ok(), "{scheme}");
            let error = crowded(scheme, most + 1).map(drop).unwrap_err();
            assert!(matches!(error, Error::Option { option: "workers", .. }), "{scheme}: {error}");
        }
        let server = crowded("delay(4)".parse().unwrap(), 1).unwrap();
        assert_eq!(server.shard.most_workers, 204, "nor does it let more in later");
    }

    #[test]
    fn a_worker_too_many_for_a_fold_is_refused_and_the_round_goes_on() {
        let mut server = crowded(SchemeConfig::Bsp, 1).unwrap();
        assert_eq!(server.shard.most_workers, MAX_GRADIENTS);
        server.shard.most_workers = 1;
        let address = server.address();
        let connect = || {
            let (addresses, options) = ([address.clone()], WorkerOptions::new(SchemeConfig::Bsp));
            Worker::connect(Shm::new(), &addresses, options, PATIENCE)
        };
        std::thread::scope(|scope| {
            let working = scope.spawn(|| {
                let mut worker = connect()?;
                worker.step(PATIENCE)?.publish(None, PATIENCE)?;
                let refused = connect().map(drop);
                worker.step(PATIENCE)?.publish(None, PATIENCE)?;
                worker.flush(PATIENCE)?;
                refused
            });
            assert!(server.drive(|_| working.is_finished(), PATIENCE).unwrap());
            let error = working.join().unwrap().unwrap_err();
            assert!(error.to_string().contains("use fewer workers"), "{error}");
        });
        assert_eq!((server.status().version.get(), server.status().refused), (2, 1));
    }
}
