//! What a scheme has learned, over the end of its server.

use std::path::Path;

use slackline::{Server, ServerOptions, Shm, Worker};

use super::job::{PATIENCE, Serving, checkpointing, new, resume, worker};

const SCHEME: &str = "abs(k=1, staleness=8)";

fn options(path: &Path, scheme: &str) -> ServerOptions {
    let scheme = scheme.parse::<slackline::scheme::SchemeConfig>().unwrap();
    checkpointing(ServerOptions::new(scheme, 2, 0.05), path)
}

/// One worker publishes with these losses while another is in. Returns the server, and the number of gradients that
/// it then waits for.
fn train(server: Server<Shm>, losses: &[f32]) -> (Server<Shm>, Option<u64>) {
    let serving = Serving::start(server);
    let scheme = SCHEME.parse().unwrap();
    let mut workers: [Worker<Shm>; 2] = [(); 2].map(|()| worker(&serving.address, scheme));
    for loss in losses {
        let mut step = workers[0].step(PATIENCE).unwrap();
        step.gradient().unwrap().fill(1.0);
        step.publish(Some(*loss), PATIENCE).unwrap();
        workers[0].flush(PATIENCE).unwrap();
    }
    let server = serving.stop();
    let waits_for = server.status().waits_for;
    (server, waits_for)
}

#[test]
fn a_server_that_resumes_waits_for_as_many_as_it_had_learned_to() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shard");
    // Two, as the loss is a quarter of the first.
    let (mut server, learned) = train(new(16, options(&path, SCHEME)), &[4.0, 1.0]);
    assert_eq!(learned, Some(2));
    server.finish_checkpoint(PATIENCE).unwrap();
    drop(server);
    let (server, resumed) = train(resume(16, &path, options(&path, SCHEME)), &[]);
    assert_eq!(resumed, Some(2));
    drop(server);
    // Another scheme, or the same with other settings, begins from the start.
    let other = options(&path, "abs(k=1, staleness=9)");
    let serving = Serving::start(resume(16, &path, other));
    let scheme = "abs(k=1, staleness=9)".parse().unwrap();
    let _workers: [Worker<Shm>; 2] = [(); 2].map(|()| worker(&serving.address, scheme));
    assert_eq!(serving.stop().status().waits_for, Some(1));
}
