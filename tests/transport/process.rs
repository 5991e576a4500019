//! Tests with two processes: the test binary runs itself again, with only the same test.

use std::process::{Child, Command, Stdio};
use std::task::Poll;

use slackline::internals::transport::{Connecting, Offer, Received};
use slackline::{Address, Transport};

use super::fixture::{EndpointOf, Fixture, now, wait_for};

const ADDRESS: &str = "SLACKLINE_TEST_CONNECT_TO";

/// Returns the address to connect to, if this is the second process of a test.
pub(crate) fn second_process() -> Option<Address> {
    std::env::var(ADDRESS).ok().map(|text| text.parse().expect("an address"))
}

/// The second process. Killed if it still runs when this is dropped.
pub(crate) struct Second(pub(crate) Child);

impl Second {
    /// Runs test `claim` of fixture `F` in another process, told to connect to `address`.
    pub(crate) fn start<F: Fixture>(claim: &str, address: &Address) -> Second {
        Second::run::<F>(&format!("{}::{claim}", F::MODULE), ADDRESS, &address.to_string())
    }

    /// Runs a test in another process, which finds `value` in its environment.
    pub(crate) fn run<F: Fixture>(test: &str, variable: &str, value: &str) -> Second {
        let mut command = Command::new(std::env::current_exe().expect("this binary"));
        command
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .env(variable, value)
            .stdout(Stdio::null());
        Second(F::start(&mut command).expect("run this binary again"))
    }

    /// Waits for its end, which must be a good one.
    pub(crate) fn wait(&mut self) {
        let status = wait_for("the second process to end", || self.0.try_wait().expect("wait"));
        assert!(status.success(), "the second process failed: {status}");
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ended = self.0.kill();
            let _status = self.0.wait();
        }
    }
}

/// Connects from the second process.
pub(crate) fn connect_to<F: Fixture>(
    transport: &F::Transport,
    address: &Address,
) -> (EndpointOf<F>, Received) {
    let mut connecting = transport.connect(address, Offer::default()).expect("connect");
    wait_for("the answer", || match connecting.poll(now()) {
        Poll::Pending => None,
        Poll::Ready(result) => Some(result.expect("the connection is made")),
    })
}
