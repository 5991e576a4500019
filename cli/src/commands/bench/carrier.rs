//! The transports that can be measured.

use std::net::{Ipv4Addr, SocketAddr};

use slackline::transport::shm::Shm;
use slackline::transport::tcp::Tcp;
use slackline::transport::{Address, Transport};

/// A transport that can be measured between two processes of this host.
pub(super) trait Carrier: Transport + Clone + Default {
    /// As the command line spells it.
    const NAME: &'static str;
    /// Requests that are under way at once where bandwidth is measured; 1 where a request is done when it is posted.
    const WINDOW: u64;
    /// An address that nobody listens at.
    fn anywhere() -> Address;
}

impl Carrier for Shm {
    const NAME: &'static str = "shm";
    const WINDOW: u64 = 1;

    fn anywhere() -> Address {
        Address::random()
    }
}

impl Carrier for Tcp {
    const NAME: &'static str = "tcp";
    const WINDOW: u64 = 16;

    fn anywhere() -> Address {
        Address::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
    }
}
