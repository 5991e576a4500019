//! UCX's own benchmark, over shared memory and over TCP, as a peer.

use super::probe::unclear;
use crate::cmd::Cmd;
use crate::failure::Failure;
use crate::site::Site;
use std::net::TcpListener;
use std::process::Child;
use std::time::Duration;

/// Most attempts of the client to connect, while the server is still starting.
const ATTEMPTS: u32 = 10;
const BETWEEN: Duration = Duration::from_millis(300);
/// Longest time that the client may take, in seconds, before it is ended.
const SECONDS_MAX: &str = "120";

/// Median latency of 8 bytes over shared memory, in nanoseconds, of one of its tests, both sides on cores of their own
/// as ours are.
pub(super) fn latency(site: &Site, test: &str, iterations: u32) -> Result<f64, Failure> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let common = |cmd: Cmd, server: bool| {
        let core = if server { cores - 1 } else { 0 };
        let cmd = cmd.arg("-s").arg("8").arg("-c").arg(&core.to_string());
        cmd.env("UCX_TLS", "posix,self")
    };
    measure(site, test, iterations, &common, median)
}

/// Bandwidth over TCP in bytes per second, of one of its tests, the sides on whichever cores the system gives them.
pub(super) fn bandwidth(site: &Site, test: &str, bytes: u64, iterations: u32) -> Result<f64, Failure> {
    let common = |cmd: Cmd, _: bool| cmd.arg("-s").arg(&bytes.to_string()).env("UCX_TLS", "tcp,self");
    measure(site, test, iterations, &common, overall_bandwidth)
}

fn measure(
    site: &Site,
    test: &str,
    iterations: u32,
    common: &dyn Fn(Cmd, bool) -> Cmd,
    find: fn(&str) -> Option<f64>,
) -> Result<f64, Failure> {
    let port = free_port()?;
    let common = |cmd: Cmd, server: bool| {
        let cmd = cmd.arg("-p").arg(&port).arg("-t").arg(test).arg("-n").arg(&iterations.to_string());
        common(cmd, server)
    };
    let _server = Server(common(Cmd::new("ucx_perftest", &[]), true).start(site)?);
    let client = common(Cmd::new("timeout", &[SECONDS_MAX, "ucx_perftest"]), false).arg("127.0.0.1");
    let mut last = String::new();
    for _ in 0..ATTEMPTS {
        std::thread::sleep(BETWEEN);
        if let Some(said) = client.output(site) {
            return find(&said).ok_or_else(|| unclear(&client, &said));
        }
        last = "it could not reach its server, or did not end in time".into();
    }
    Err(unclear(&client, &last))
}

/// Returns a port on which no process listens now.
pub(super) fn free_port() -> Result<String, Failure> {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
    port.map(|address| address.port().to_string()).map_err(|error| Failure::Missing {
        what: format!("no free port on localhost: {error}"),
        remedy: "allow processes to listen on 127.0.0.1".into(),
    })
}

/// The first number of the line of final results is the median in microseconds.
fn median(said: &str) -> Option<f64> {
    let line = said.lines().find_map(|line| line.strip_prefix("Final:"))?;
    let micros: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
    (micros > 0.0).then_some(micros * 1e3)
}

/// The line of final results has the overall bandwidth in MiB per second in its seventh column.
fn overall_bandwidth(said: &str) -> Option<f64> {
    let line = said.lines().find_map(|line| line.strip_prefix("Final:"))?;
    let mebibytes: f64 = line.split_whitespace().nth(5)?.parse().ok()?;
    (mebibytes > 0.0).then_some(mebibytes * f64::from(1 << 20))
}

/// A process that is ended with this.
pub(super) struct Server(pub(super) Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It ends by itself once its client has gone; where there was none, it is ended.
        let _ended_already = self.0.kill();
        let _reaped_already = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_found_in_what_ucx_prints() {
        let said = "[thread 0]  29858  0.152  17.148  17.148  0.44  0.44  58317  58317\n\
                    Final:     200000      0.149    17.443    15.020        0.44       0.51       57329  66577\n";
        assert_eq!(median(said), Some(149.0));
        assert_eq!(overall_bandwidth(said), Some(0.51 * 1048576.0));
        assert_eq!(median("Final: 10"), None);
        assert_eq!(median("no final line"), None);
    }
}
