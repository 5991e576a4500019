//! iperf3 as a peer: what one TCP stream carries over the loopback interface.

use super::probe::unclear;
use super::ucx::{Server, free_port};
use crate::cmd::Cmd;
use crate::failure::Failure;
use crate::site::Site;
use serde_json::Value;
use std::time::Duration;

/// The time for which it measures, in seconds.
const SECONDS: &str = "2";
/// The time that its server may take until it listens.
const STARTING: Duration = Duration::from_millis(300);

/// Bytes per second that its receiver saw, with the longest buffers that it has.
pub(super) fn bandwidth(site: &Site) -> Result<f64, Failure> {
    let port = free_port()?;
    let _server = Server(Cmd::new("iperf3", &["-s", "-1", "-p"]).arg(&port).start(site)?);
    std::thread::sleep(STARTING);
    let client = Cmd::new("iperf3", &["-c", "127.0.0.1", "-l", "1M", "-J", "-t", SECONDS, "-p"]).arg(&port);
    let said = client.answer(site)?;
    received(&said).ok_or_else(|| unclear(&client, &said))
}

fn received(said: &str) -> Option<f64> {
    let value: Value = serde_json::from_str(said).ok()?;
    let bits = value.pointer("/end/sum_received/bits_per_second")?.as_f64()?;
    (bits > 0.0).then_some(bits / 8.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_receiver_s_figure_is_found() {
        assert_eq!(received(r#"{"end": {"sum_received": {"bits_per_second": 16}}}"#), Some(2.0));
        for said in ["", "{}", r#"{"end": {"sum_received": {"bits_per_second": 0}}}"#] {
            assert_eq!(received(said), None, "{said}");
        }
    }
}
