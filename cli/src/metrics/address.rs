//! The address at which metrics are served.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::failure::Failure;

/// Whether a node serves its metrics, and where.
#[derive(clap::Args, Clone, Debug, Default, PartialEq, Eq)]
#[group(skip)]
pub struct MetricsArgs {
    /// Serve metrics for Prometheus and `slackline top` at this PORT or ADDRESS:PORT
    ///
    /// With PORT only this machine can connect (127.0.0.1:PORT); with 0.0.0.0:PORT every machine that reaches this one
    /// can. Process i of a host, from 0, listens at PORT + i.
    #[arg(long, help_heading = "Output", value_name = "ADDR", value_parser = listen_address)]
    pub metrics: Option<SocketAddr>,
}

impl MetricsArgs {
    /// Returns the address at which the process with this number on its host listens. All processes have one command
    /// line, and so one port, to which each adds its number.
    pub(crate) fn address(&self, local_rank: Option<u32>) -> Result<Option<SocketAddr>, Failure> {
        let Some(mut address) = self.metrics else { return Ok(None) };
        // Port 0 is whichever is free.
        if let (Some(local_rank), true) = (local_rank, address.port() != 0) {
            let port = u16::try_from(local_rank).ok().and_then(|rank| address.port().checked_add(rank));
            let too_high = || {
                let what = format!("--metrics {address}: process {local_rank} of this host has no port");
                Failure::usage(what).help("choose a lower one")
            };
            address.set_port(port.ok_or_else(too_high)?);
        }
        Ok(Some(address))
    }
}

/// Understands `PORT`, `:PORT`, `localhost:PORT` and `ADDRESS:PORT`.
pub fn listen_address(text: &str) -> Result<SocketAddr, String> {
    let loopback = |port: &str| {
        let port = port.parse().map_err(|_| format!("{port} is no port: a number up to 65535"))?;
        Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port))
    };
    let text = text.trim();
    match text.strip_prefix(':').or_else(|| text.strip_prefix("localhost:")) {
        Some(port) => loopback(port),
        None if text.bytes().all(|byte| byte.is_ascii_digit()) => loopback(text),
        None => text.parse().map_err(|_| {
            format!("{text} is no address to listen at; give a PORT, or an IP address with one, such as [::1]:9100")
        }),
    }
}
