//! Errors that keep this process from RDMA, each with its remedy.

use std::io;

use super::sys::LibraryError;

/// RDMA cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// There is no verbs library, or one that is too old.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// Encryption is demanded.
    #[error(
        "data by RDMA cannot be encrypted here, as the device sends it from memory; use TCP, or leave the encryption \
         out and protect the link by IPsec or MACsec"
    )]
    Encryption,
    /// There is a library and no device.
    #[error(
        "this host has no RDMA device; load the driver of its adapter, or make a software one with \
         `rdma link add rxe0 type rxe netdev eth0`"
    )]
    NoDevice,
    /// No device has this name.
    #[error("this host has no RDMA device `{name}`; it has {known}: see `slackline doctor`")]
    UnknownDevice {
        /// The name that was asked for.
        name: String,
        /// The devices that there are.
        known: String,
    },
    /// The device may not be opened.
    #[error("cannot open the RDMA device {device}: {source}; {remedy}")]
    Open {
        /// The device.
        device: String,
        /// The error that the system reported.
        source: io::Error,
        /// A remedy that the user can try.
        remedy: &'static str,
    },
    /// The device has no such port.
    #[error("the RDMA device {device} has no port {port}; it has ports 1 to {ports}")]
    NoPort {
        /// The device.
        device: String,
        /// The port that was asked for.
        port: u8,
        /// The number of ports that the device has.
        ports: u8,
    },
    /// The port carries nothing now.
    #[error("port {port} of the RDMA device {device} is {state}; {remedy}")]
    PortDown {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// Its state, in the library's words.
        state: String,
        /// A remedy that the user can try.
        remedy: String,
    },
    /// The port has no address to speak from.
    #[error("port {port} of the RDMA device {device} has {found}; {remedy}")]
    NoGid {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// A description of what it has instead of an address that can be used.
        found: String,
        /// A remedy that the user can try.
        remedy: String,
    },
    /// A setting that the device does not take.
    #[error("the RDMA device {device} cannot do {what}; {remedy}")]
    Setting {
        /// The device.
        device: String,
        /// The setting that was asked for.
        what: String,
        /// A remedy that the user can try.
        remedy: String,
    },
    /// The system refused something else.
    #[error("cannot {operation} on the RDMA device {device}: {source}; {remedy}")]
    System {
        /// The operation that was tried.
        operation: &'static str,
        /// The device.
        device: String,
        /// The error that the system reported.
        source: io::Error,
        /// A remedy that the user can try.
        remedy: &'static str,
    },
}

impl OpenError {
    /// The device that cannot be used, where it is about one.
    #[doc(hidden)]
    pub fn device(&self) -> Option<&str> {
        match self {
            OpenError::Library(_) | OpenError::Encryption | OpenError::NoDevice => None,
            OpenError::UnknownDevice { name: device, .. }
            | OpenError::Open { device, .. }
            | OpenError::NoPort { device, .. }
            | OpenError::PortDown { device, .. }
            | OpenError::NoGid { device, .. }
            | OpenError::Setting { device, .. }
            | OpenError::System { device, .. } => Some(device),
        }
    }
}
