//! Errors that keep this process from RDMA, each with its remedy.

use std::borrow::Cow;
use std::io;

use super::sys::LibraryError;
use crate::diagnostic::{Diagnostic, remedy_of};

/// RDMA cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// There is no verbs library, or it is too old.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// Encryption is required.
    #[error("data by RDMA cannot be encrypted here, as the device sends it from memory; {}", remedy_of(self))]
    Encryption,
    /// There is a library but no device.
    #[error("this host has no RDMA device; {}", remedy_of(self))]
    NoDevice,
    /// No device has this name.
    #[error("this host has no RDMA device `{name}`; {}", remedy_of(self))]
    UnknownDevice {
        /// The requested name.
        name: String,
        /// The devices of this host.
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
    #[error("the RDMA device {device} has no port {port}; {}", remedy_of(self))]
    NoPort {
        /// The device.
        device: String,
        /// The requested port.
        port: u8,
        /// The number of ports that the device has.
        ports: u8,
    },
    /// The port carries no data now.
    #[error("port {port} of the RDMA device {device} is {state}; {remedy}")]
    PortDown {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// Its state, as the library names it.
        state: String,
        /// A remedy that the user can try.
        remedy: String,
    },
    /// The port has no usable local address.
    #[error("port {port} of the RDMA device {device} has {found}; {remedy}")]
    NoGid {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// A description of the addresses that it has instead.
        found: String,
        /// A remedy that the user can try.
        remedy: String,
    },
    /// A setting that the device does not support.
    #[error("the RDMA device {device} cannot do {what}; {remedy}")]
    Setting {
        /// The device.
        device: String,
        /// The requested setting.
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

impl Diagnostic for OpenError {
    fn operation(&self) -> &'static str {
        "opening an RDMA device"
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        Some(match self {
            OpenError::Library(error) => return error.remedy(),
            OpenError::Encryption => {
                "use TCP, or leave the encryption out and protect the link by IPsec or MACsec".into()
            }
            OpenError::NoDevice => {
                "load the driver of its adapter, or make a software one with `rdma link add rxe0 \
                                    type rxe netdev eth0`"
                    .into()
            }
            OpenError::UnknownDevice { known, .. } => {
                format!("it has {known}: see `slackline doctor`").into()
            }
            OpenError::NoPort { ports, .. } => format!("it has ports 1 to {ports}").into(),
            OpenError::Open { remedy, .. } | OpenError::System { remedy, .. } => (*remedy).into(),
            OpenError::PortDown { remedy, .. }
            | OpenError::NoGid { remedy, .. }
            | OpenError::Setting { remedy, .. } => remedy.into(),
        })
    }
}

impl OpenError {
    /// The unusable device, if the error concerns one device.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_against_rdma_ends_in_its_remedy() {
        let (device, known) = ("rxe0".to_owned(), "mlx5_0".to_owned());
        let source = io::Error::from_raw_os_error(libc::EPERM);
        let errors = [
            OpenError::Library(LibraryError::NotInstalled { reason: "no such file".into() }),
            OpenError::NoDevice,
            OpenError::UnknownDevice { name: device.clone(), known },
            OpenError::NoPort { device: device.clone(), port: 3, ports: 2 },
            OpenError::Open { device, source, remedy: "ask for the right" },
        ];
        for error in errors {
            let remedy = error.remedy().expect("there is a remedy");
            assert!(!remedy.is_empty() && error.to_string().ends_with(&*remedy), "{error} / {remedy}");
        }
    }
}
