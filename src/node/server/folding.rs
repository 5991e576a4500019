//! What a server folds by, and the slots that it gives back once nothing reads them any more.

#[cfg(feature = "cuda")]
use super::NonFinite;
use super::{Server, ServerOptions};
use crate::clock::Clock;
#[cfg(feature = "cuda")]
use crate::cuda::{Gpu, MAX_GRADIENTS};
use crate::node::Error;
use crate::node::aggregate::Aggregator;
use crate::node::folder::Folder;
#[cfg(feature = "cuda")]
use crate::node::folder_gpu::GpuFolder;
use crate::transport::Transport;

/// What folds: the GPU of the transport, if it has one, or else processors.
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

#[cfg(feature = "cuda")]
fn folder_on(gpu: &Gpu, options: &ServerOptions, scheme_measures: bool) -> Result<Box<dyn Folder>, Error> {
    if options.workers > MAX_GRADIENTS {
        let (option, value) = ("workers", options.workers.to_string());
        return Err(Error::Option { option, value, reason: "a GPU folds at most 256 gradients at a time" });
    }
    let measures = scheme_measures || options.measure_moments;
    let looks = options.non_finite != NonFinite::Allow;
    Ok(Box::new(GpuFolder::new(gpu, &options.optimizer, measures, looks)?))
}

impl<T: Transport> Server<T> {
    /// Gives a worker its slots back before `clock`: at once, or after what a GPU folds just now.
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
    use crate::node::{Worker, WorkerOptions};
    use crate::scheme::{GradientId, SchemeConfig, ServerAction, ServerEvent, ServerScheme, Share};
    use crate::table::{ElementType, Table};
    use crate::time::Instant;
    use crate::transport::Address;
    use crate::transport::shm::Shm;

    const PATIENCE: Duration = Duration::from_secs(20);
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
}
