//! Listeners and handshakes: messages arrive late, or never.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::io;

use super::flow::{ConnectionEnd, NetGrant};
use super::net::{HostId, Net, NetEvent};
use crate::mem::{Access, LocalSlice, RemoteKey, RemoteSlice};
use crate::transport::{
    Address, ConnectError, HANDSHAKE_TIMEOUT, MAX_GRANTS, MAX_MESSAGE_BYTES, MAX_PENDING_HANDSHAKES, Offer,
    Received, Refusal,
};

/// A listener, at whose address peers arrive.
pub(super) struct SimAcceptor {
    pub(super) address: Address,
    pub(super) host: HostId,
    pub(super) is_open: bool,
    /// The handshakes that wait, and since when.
    pending: VecDeque<(usize, u64)>,
}

/// A handshake.
pub(super) struct Attempt {
    pub(super) from: HostId,
    address: Address,
    offer: Offer,
    /// The listener that it has arrived at.
    at: Option<HostId>,
    answer: Option<Result<(usize, Received), ConnectError>>,
    /// The answer is there.
    pub(super) is_answered: bool,
    /// No peer waits for it any more.
    is_abandoned: bool,
}

impl Net {
    /// Opens a listener, or says that the address is taken.
    pub(super) fn open_acceptor(&mut self, address: &Address, host: HostId) -> Result<usize, ConnectError> {
        if self.acceptors.iter().any(|acceptor| acceptor.is_open && acceptor.address == *address) {
            return Err(ConnectError::System {
                operation: "listen",
                address: address.clone(),
                source: io::ErrorKind::AddrInUse.into(),
                remedy: "a listener is there already: choose another address",
            });
        }
        let (address, pending) = (address.clone(), VecDeque::new());
        self.acceptors.push(SimAcceptor { address, host, is_open: true, pending });
        Ok(self.acceptors.len() - 1)
    }

    pub(super) fn close_acceptor(&mut self, acceptor: usize) {
        self.acceptors[acceptor].is_open = false;
        for (attempt, _) in std::mem::take(&mut self.acceptors[acceptor].pending) {
            let address = self.attempts[attempt].address.clone();
            self.answer(attempt, Err(ConnectError::Closed { address }));
        }
    }

    /// Checks the grants and the message of an offer.
    pub(super) fn check_offer(address: &Address, offer: &Offer) -> Result<(), ConnectError> {
        let is_local = |grant: &LocalSlice| grant.region().access() == Access::LOCAL;
        let reason = if offer.message.len() > MAX_MESSAGE_BYTES {
            "its message is longer than a handshake's may be"
        } else if offer.grants.len() > MAX_GRANTS {
            "it grants more regions than a handshake may"
        } else if offer.grants.iter().any(is_local) {
            "it grants memory that was registered for local use only"
        } else {
            return Ok(());
        };
        Err(ConnectError::Offer { address: address.clone(), reason })
    }

    /// Begins a handshake.
    pub(super) fn attempt(&mut self, from: HostId, address: &Address, offer: Offer) -> usize {
        self.attempts.push(Attempt {
            from,
            address: address.clone(),
            offer,
            at: None,
            answer: None,
            is_answered: false,
            is_abandoned: false,
        });
        let attempt = self.attempts.len() - 1;
        let arrival = self.latency();
        self.schedule_in(arrival, NetEvent::Arrive { attempt });
        attempt
    }

    pub(super) fn on_arrive(&mut self, attempt: usize) {
        let Attempt { from, address, is_abandoned, .. } = &self.attempts[attempt];
        if *is_abandoned {
            return;
        }
        let (from, address) = (*from, address.clone());
        let Some(acceptor) =
            self.acceptors.iter().position(|acceptor| acceptor.is_open && acceptor.address == address)
        else {
            let refused = ConnectError::System {
                operation: "connect",
                address,
                source: io::ErrorKind::ConnectionRefused.into(),
                remedy: "no process listens there: start the server first, or wait for it",
            };
            return self.answer(attempt, Err(refused));
        };
        let host = self.acceptors[acceptor].host;
        if let Some(until) = self.stalled_until(from, host) {
            return self.schedule(until, NetEvent::Arrive { attempt });
        }
        self.attempts[attempt].at = Some(host);
        if self.acceptors[acceptor].pending.len() >= MAX_PENDING_HANDSHAKES
            && let Some((oldest, _)) = self.acceptors[acceptor].pending.pop_front()
        {
            self.turn_away(oldest);
        }
        let now = self.now;
        self.acceptors[acceptor].pending.push_back((attempt, now));
        self.touch(host);
    }

    /// The next peer that waits at a listener.
    pub(super) fn greet(&mut self, acceptor: usize) -> Option<(usize, Received)> {
        let patience = HANDSHAKE_TIMEOUT.as_nanos() as u64;
        while let Some((attempt, since)) = self.acceptors[acceptor].pending.pop_front() {
            if self.now - since > patience {
                self.turn_away(attempt);
                continue;
            }
            if self.attempts[attempt].is_abandoned {
                continue;
            }
            let offer = &mut self.attempts[attempt].offer;
            let (message, grants) = (std::mem::take(&mut offer.message), offer.grants.clone());
            let grants = self.grant(&grants).iter().map(of_key).collect();
            return Some((attempt, Received { message, grants }));
        }
        None
    }

    /// Accepts a peer: the connection, at the listener's end. `granted` are the peer's grants as the listener
    /// received them.
    pub(super) fn accept(
        &mut self,
        attempt: usize,
        granted: &[RemoteSlice],
        offer: Offer,
    ) -> Result<usize, ConnectError> {
        let Attempt { from, address, at, is_abandoned, .. } = &self.attempts[attempt];
        let (from, at, address) = (*from, at.unwrap_or(*from), address.clone());
        Self::check_offer(&address, &offer)?;
        if *is_abandoned {
            return Err(ConnectError::Closed { address });
        }
        let theirs = std::mem::take(&mut self.attempts[attempt].offer.grants);
        let theirs = granted.iter().zip(theirs).map(|(remote, slice)| NetGrant { key: remote.key, slice });
        let reach_of_listener = theirs.collect();
        let ours = self.grant(&offer.grants);
        let grants = ours.iter().map(of_key).collect();
        let connection =
            self.connect_ends([ConnectionEnd::new(from, ours), ConnectionEnd::new(at, reach_of_listener)]);
        self.answer(attempt, Ok((connection, Received { message: offer.message, grants })));
        Ok(connection)
    }

    pub(super) fn refuse(&mut self, attempt: usize, refusal: Refusal) {
        let address = self.attempts[attempt].address.clone();
        self.answer(attempt, Err(ConnectError::refused(address, refusal)));
    }

    /// Drops a handshake without a word.
    pub(super) fn turn_away(&mut self, attempt: usize) {
        let address = self.attempts[attempt].address.clone();
        self.answer(attempt, Err(ConnectError::Closed { address }));
    }

    fn answer(&mut self, attempt: usize, answer: Result<(usize, Received), ConnectError>) {
        if self.attempts[attempt].answer.is_none() {
            self.attempts[attempt].answer = Some(answer);
            let back = self.latency();
            self.schedule_in(back, NetEvent::Answer { attempt });
        }
    }

    pub(super) fn on_answer(&mut self, attempt: usize) {
        let Attempt { from, at, .. } = self.attempts[attempt];
        if let Some(until) = at.and_then(|at| self.stalled_until(at, from)) {
            return self.schedule(until, NetEvent::Answer { attempt });
        }
        if let Some(until) = self.deaf_until(from) {
            return self.schedule(until, NetEvent::Answer { attempt });
        }
        self.attempts[attempt].is_answered = true;
        self.touch(from);
    }

    /// The answer to a handshake, once it is there.
    pub(super) fn take_answer(&mut self, attempt: usize) -> Option<Result<(usize, Received), ConnectError>> {
        let Attempt { is_answered, answer, .. } = &mut self.attempts[attempt];
        if *is_answered { answer.take() } else { None }
    }

    /// Notes that the peer no longer waits for the answer.
    pub(super) fn abandon_attempt(&mut self, attempt: usize) {
        self.attempts[attempt].is_abandoned = true;
        self.attempts[attempt].offer = Offer::default();
        if let Some(Ok((connection, _))) = self.attempts[attempt].answer.take() {
            let notice = self.notice();
            self.end(connection, 0, notice);
        }
    }

    fn grant(&mut self, slices: &[LocalSlice]) -> Vec<NetGrant> {
        let grant =
            |slice: &LocalSlice| NetGrant { key: RemoteKey(self.random.word()), slice: slice.clone() };
        slices.iter().map(grant).collect()
    }
}

fn of_key(grant: &NetGrant) -> RemoteSlice {
    RemoteSlice { key: grant.key, offset: 0, len: grant.slice.len() as u64 }
}
