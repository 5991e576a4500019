//! Tests of a server whose memory is taken from its RDMA device before its connections are, as happens when a process
//! ends.

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use crate::diagnostic::Diagnostic;
    use crate::node::{Error, Server, ServerOptions, Worker, WorkerOptions, now};
    use crate::scheme::SchemeConfig;
    use crate::table::{ElementType, Table};
    use crate::time::Duration;
    use crate::transport::Address;
    use crate::transport::verbs::Verbs;
    use crate::transport::verbs::unordered::Unordered;

    const PATIENCE: Duration = Duration::from_secs(60);
    const ELEMENTS: usize = 600;

    /// Ends the threads that look at it when it is dropped.
    struct Stop<'a>(&'a AtomicBool);

    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    fn server(verbs: &Verbs) -> Server<Verbs> {
        let address: Address = "verbs:127.0.0.1:0".parse().unwrap();
        let table = Table::flat(ELEMENTS as u64, ElementType::F32).unwrap();
        let options = ServerOptions { threads: 1, ..ServerOptions::new(SchemeConfig::Asp, 1, 0.5) };
        Server::new(verbs.clone(), &address, table, &[0.0; ELEMENTS], options).unwrap()
    }

    fn train(worker: &mut Worker<Verbs>) -> Result<(), Error> {
        let mut step = worker.step(PATIENCE)?;
        step.gradient()?.fill(1.0);
        step.publish(None, PATIENCE)
    }

    /// Has a worker lose a server while it waits for a free slot there, so many steps of the device after the server
    /// was driven last; and come back to another. Returns the error of the loss.
    fn lose(device: &Unordered, steps: u64) -> Error {
        let (verbs, is_over, is_dying) =
            (device.verbs(None), &AtomicBool::new(false), &AtomicBool::new(false));
        let drive = |mut server: Server<Verbs>, ends: bool| {
            let mut left = steps;
            while !is_over.load(Ordering::Relaxed) {
                let stepped = device.step();
                if !stepped {
                    std::thread::yield_now();
                }
                if !ends || !is_dying.load(Ordering::Relaxed) {
                    server.poll(now()).unwrap();
                } else if stepped && left > 0 {
                    left -= 1;
                    if left == 0 {
                        device.deregister();
                    }
                }
            }
        };
        std::thread::scope(|scope| {
            let _stop = Stop(is_over);
            let serve = |ends| {
                let server = server(&verbs);
                let address = server.address();
                scope.spawn(move || drive(server, ends));
                address
            };
            let (options, dying) = (WorkerOptions::new(SchemeConfig::Asp), serve(true));
            let mut worker = Worker::connect(verbs.clone(), &[dying], options, PATIENCE).unwrap();
            train(&mut worker).unwrap();
            is_dying.store(true, Ordering::Relaxed);
            // The worker fills the slots, and then asks again and again for a free one.
            let lost = (0..8).find_map(|_| train(&mut worker).err());
            worker.reconnect(&[serve(false)], PATIENCE).unwrap();
            (0..3).for_each(|_| train(&mut worker).unwrap());
            lost.expect("the server's memory is gone")
        })
    }

    #[test]
    fn memory_that_a_dying_server_takes_back_counts_as_its_loss() {
        // The requests behind a refused one are flushed, which looks like any other loss: it is chance whether the last
        // one of a batch is refused.
        let refused = (0..64).find_map(|seed| {
            let error = lose(&Unordered::new(seed, false), 500 + seed);
            assert!(error.is_loss() && error.is_retryable(), "seed {seed}: {error}");
            error.is_failed_request().then_some(error)
        });
        let told = refused.expect("no refused request was the last of its batch").to_string();
        assert!(told.contains("the target refused access"), "{told}");
    }
}
