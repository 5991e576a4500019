//! A server with one worker.

use std::time::Duration;

use slackline::scheme::SchemeConfig;
use slackline::{Address, ElementType, Server, ServerOptions, Table, Transport, Worker, WorkerOptions};

pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);
pub(crate) const ELEMENTS: usize = 1000;

/// Runs `work` with the only worker of a server, and returns the parameters that the server has in the end. They begin
/// at 1, and the learning rate is 0.5.
pub(crate) fn with_worker<T: Transport + Clone>(
    transport: T,
    address: &Address,
    scheme: SchemeConfig,
    work: impl FnOnce(&mut Worker<T>),
) -> Vec<f32> {
    let table = Table::flat(ELEMENTS as u64, ElementType::F32).unwrap();
    let options = ServerOptions::new(scheme, 1, 0.5);
    let mut server = Server::new(transport.clone(), address, table, &[1.0; ELEMENTS], options).unwrap();
    let addresses = [server.address()];
    std::thread::scope(|scope| {
        let serving = scope.spawn(move || {
            assert!(server.drive(|server| server.status().left == 1, TIMEOUT).unwrap());
            server.parameters().unwrap()
        });
        let mut worker = Worker::connect(transport, &addresses, WorkerOptions::new(scheme), TIMEOUT).unwrap();
        work(&mut worker);
        worker.flush(TIMEOUT).unwrap();
        drop(worker);
        serving.join().unwrap()
    })
}
