//! Peers over TCP whose connection their owner has closed: the reason is there for them to read, whenever they look.

use std::time::Duration;

use rustix::process::Signal;
use slackline::{
    Address, Error, Eviction, Server, ServerOptions, Tcp, Version, Worker, WorkerOptions, now,
    scheme::SchemeConfig,
};

use super::second::{EVICTED, PATIENCE, SERVER_LOST, Second, table, told};

fn server() -> Server<Tcp> {
    let mut options = ServerOptions::new(SchemeConfig::Asp, 1, 0.001);
    options.memory.lease = Duration::from_millis(400);
    let address = "127.0.0.1:0".parse().unwrap();
    Server::new(Tcp::new(), &address, table(100), &[0.0; 100], options).unwrap()
}

fn connect(address: &Address) -> Worker<Tcp> {
    let options = WorkerOptions::new(SchemeConfig::Asp);
    Worker::connect(Tcp::new(), std::slice::from_ref(address), options, PATIENCE).unwrap()
}

/// Trains in the second process until something goes wrong, and says in the exit code what it was.
fn train_until_it_fails(address: &Address) -> ! {
    let mut worker = connect(address);
    let mut train = || {
        let mut step = worker.step(PATIENCE)?;
        step.gradient()?.fill(1.0);
        step.publish(None, PATIENCE)
    };
    loop {
        match train() {
            Ok(_) => {}
            Err(Error::Evicted { why: Eviction::Silent, .. }) => std::process::exit(EVICTED),
            Err(Error::ServerLost { .. }) => std::process::exit(SERVER_LOST),
            Err(error) => panic!("{error}"),
        }
    }
}

fn drive(server: &mut Server<Tcp>, what: &str, until: impl Fn(&Server<Tcp>) -> bool) {
    assert!(server.drive(until, PATIENCE).unwrap(), "waited in vain for {what}");
}

/// Stops a worker for longer than its lease and continues it when `meanwhile` has returned. How it ended.
fn stop(claim: impl Fn(), meanwhile: impl FnOnce(Server<Tcp>) -> Option<Server<Tcp>>) -> Option<i32> {
    let mut server = server();
    let mut worker = Second::start(claim, &[server.address().to_string()]);
    drive(&mut server, "the worker to train", |server| server.status().version >= Version::new(2));
    worker.signal(Signal::STOP);
    drive(&mut server, "the eviction", |server| server.status().left == 1);
    let _kept = meanwhile(server);
    worker.signal(Signal::CONT);
    worker.wait().code()
}

#[test]
fn a_worker_that_was_stopped_over_tcp_is_told_why_when_it_wakes() {
    let claim = a_worker_that_was_stopped_over_tcp_is_told_why_when_it_wakes;
    if let Some(words) = told() {
        train_until_it_fails(&words[0].parse().unwrap());
    }
    let at_once = |server| Some(server);
    assert_eq!(stop(claim, at_once), Some(EVICTED), "it wakes at once");
    // Longer than a server keeps the connection of a peer that it has let go.
    let much_later = |mut server: Server<Tcp>| {
        let until = now() + Duration::from_secs(3);
        drive(&mut server, "the time to pass", |_| now() >= until);
        Some(server)
    };
    assert_eq!(stop(claim, much_later), Some(EVICTED), "it wakes when its connection is closed");
    let after_the_end = |server| {
        drop(server);
        None
    };
    assert_eq!(stop(claim, after_the_end), Some(EVICTED), "it wakes when the server has ended");
}
