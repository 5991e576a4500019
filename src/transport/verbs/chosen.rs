//! The rails of one connection: the rails that both sides can use when it is made.
//!
//! Rails with the same index belong together, and the first rail that both sides can use leads: it carries all
//! requests that are not striped, and heartbeats. A rail whose port is down is left out, and so is a rail on which
//! the peer did not answer recently, so that a connection that was lost with its first rail is made again over the
//! others.

use std::io;
use std::net::IpAddr;
use std::time::Instant;

use super::VerbsShared;
use super::gid::GidChoice;
use super::hello::{PortAddress, Terms};
use super::queue_pair::QueuePairPath;
use super::unanswered::PeerWay;
use crate::transport::{Address, ConnectError, MAKE_RDMA_CONNECTION};

/// A rail of a connection that is being made.
pub(super) struct ChosenRail {
    /// Its index among all rails of the transport.
    pub(super) index: usize,
    /// The local address.
    pub(super) from: GidChoice,
    /// The path to the peer, if its address was known.
    pub(super) way: Option<PeerWay>,
}

impl VerbsShared {
    /// Chooses the rails of these indexes that are usable now, each towards an address of the peer. Rails on which
    /// the peer did not answer recently are used only if there is no other. A transport with one rail does not query
    /// the state of its port: without this rail there is no connection.
    ///
    /// # Errors
    /// No rail is usable: the error of the first one.
    pub(super) fn usable_rails(
        &self,
        towards: impl Iterator<Item = (usize, Option<IpAddr>)>,
        at: &Address,
    ) -> Result<Vec<ChosenRail>, ConnectError> {
        let (mut usable, mut unanswered, mut first_error) = (Vec::new(), Vec::new(), None);
        for (index, peer) in towards {
            let Some(rail) = self.rails.get(index) else { continue };
            let is_asked = self.rails.len() > 1 && !mutant!("rail_down_offered");
            let is_up = if is_asked { rail.check_up(at) } else { Ok(()) };
            match is_up.and_then(|()| rail.gid_towards(peer, at)) {
                Ok(from) => {
                    let way = peer.map(|towards| PeerWay { rail: index, towards });
                    let is_unanswered = way.is_some_and(|way| self.unanswered.has(way, Instant::now()));
                    let kind = if is_asked && is_unanswered { &mut unanswered } else { &mut usable };
                    kind.push(ChosenRail { index, from, way });
                }
                Err(error) => {
                    tracing::warn!(%error, "a rail is left out of a new RDMA connection");
                    first_error.get_or_insert(error);
                }
            }
        }
        if usable.is_empty() {
            usable = unanswered;
        } else {
            for ChosenRail { index, .. } in unanswered {
                let (device, port) = (&self.rails[index].info.name, self.rails[index].port.number);
                tracing::warn!(
                    device,
                    port,
                    "a rail is left out of a new RDMA connection: the peer did not answer on it lately"
                );
            }
        }
        match first_error {
            _ if !usable.is_empty() => Ok(usable),
            Some(error) => Err(error),
            None => Err(no_rail(
                at,
                "of the devices that both sides have none has its link up on both",
                "name as many devices in the same order on both sides, and bring their links up",
            )),
        }
    }

    /// Notes that a request was not answered on this path. If this side's port is down, this is the reason, and each
    /// new connection detects it.
    pub(super) fn note_unanswered(&self, way: PeerWay) {
        let rail = &self.rails[way.rail];
        if self.rails.len() > 1 && rail.device.is_port_active(rail.port.number).unwrap_or(false) {
            self.unanswered.note(way, Instant::now());
        }
    }

    /// Returns the port addresses of this side on these rails.
    pub(super) fn port_addresses(&self, rails: &[ChosenRail]) -> Vec<PortAddress> {
        rails.iter().map(|rail| self.rails[rail.index].port_address(&rail.from.gid)).collect()
    }

    /// The paths between two sides, one for each of these rails, with the addresses of both sides.
    pub(super) fn paths<'a>(
        &self,
        rails: &[ChosenRail],
        ours: impl Iterator<Item = &'a PortAddress>,
        theirs: &Terms,
    ) -> Result<Vec<QueuePairPath>, &'static str> {
        let ways = rails.iter().zip(ours.zip(theirs.port_addresses()));
        ways.map(|(rail, (ours, theirs))| self.rails[rail.index].path(&rail.from, ours, theirs)).collect()
    }
}

/// Refuses a connection over these rails on which either side grants atomics, if the transport's first rail does not
/// lead: atomics of two devices are not atomic against each other, and the atomics of other peers go through the
/// first.
pub(super) fn check_atomics(
    rails: &[ChosenRail],
    grants_atomics: bool,
    at: &Address,
) -> Result<(), ConnectError> {
    if !grants_atomics || rails.first().is_some_and(|lead| lead.index == 0) {
        return Ok(());
    }
    Err(no_rail(
        at,
        "it grants atomics, which take the first device of each side, and the link of one of these is down, or the \
         peer did not answer on it lately",
        "bring the links of the first devices up, or grant no atomics",
    ))
}

/// The error if no rail can carry the connection now.
fn no_rail(at: &Address, reason: &'static str, remedy: &'static str) -> ConnectError {
    let (source, address) = (io::Error::new(io::ErrorKind::NetworkDown, reason), at.clone());
    ConnectError::System { operation: MAKE_RDMA_CONNECTION, address, source, remedy }
}
