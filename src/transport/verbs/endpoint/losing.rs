//! The end of a connection, and the failures after which it continues on fewer rails.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::{
    ACCESS_VIOLATION, BROKEN, FLUSHED, GONE, LOOK_EVERY, NO_DEVICE, REFUSED, UNREACHABLE, VerbsEndpoint,
};
use crate::transport::verbs::device::{QueuePairError, lock};
use crate::transport::verbs::hello::{Hello, Note};
use crate::transport::verbs::pairs::Responder;
use crate::transport::verbs::rails::Rails;
use crate::transport::verbs::unanswered::PeerWay;
use crate::transport::{CompletionError, Disconnected};

impl VerbsEndpoint {
    /// Notes the paths on which the peer did not answer, if the peer is still connected.
    #[cold]
    pub(super) fn note_unanswered(&mut self) {
        let of_beats = u8::from(lock(&self.heartbeat).is_unanswered());
        let rails = self.data.as_mut().map_or(0, Rails::take_unanswered) | of_beats;
        if rails == 0 || mutant!("way_unanswered_again") {
            return;
        }
        // A peer that is gone answers on no path.
        self.hear();
        if self.over.is_none() {
            let of_rail = |(rail, way): (usize, &Option<PeerWay>)| way.filter(|_| rails & 1 << rail != 0);
            let ways = self.ways.iter().enumerate().filter_map(of_rail);
            ways.for_each(|way| self.shared.note_unanswered(way));
        }
    }

    /// Ends the connection: requests under way come back flushed, and the peer can no longer access any memory of
    /// this process through it. If a completion queue failed, no completions come back, and requests keep their
    /// memory until the endpoint is dropped. The drop also does the cleanup that takes devices long. The first reason
    /// stays.
    #[cold]
    pub(super) fn fail(&mut self, reason: Disconnected) {
        if self.over.is_some() {
            return;
        }
        tracing::debug!(reason = reason.reason, "RDMA peer disconnected");
        self.over = Some(reason);
        // If a device does not stop serving, the responder is destroyed at once.
        self.responder = self.responder.take().filter(Responder::stop);
        self.link = None;
        lock(&self.heartbeat).end();
        if let Some(data) = &mut self.data {
            data.end();
        }
    }

    /// Whether the protocol allows the peer to report the loss of this rail now.
    pub(super) fn may_lose(&self, rail: u8) -> bool {
        (1..self.rails.len()).contains(&rail.into()) && self.given_up_there & 1 << rail == 0
    }

    /// Whether the connection needs one of these devices, a bit for each rail of the transport. It does not need the
    /// devices of rails that this side has given up; while requests must still be repeated, the peer must have given
    /// them up as well.
    pub(super) fn needs_any(&self, devices: u8) -> bool {
        let is_repeating = self.data.as_ref().is_some_and(Rails::is_repeating);
        let left_behind = if is_repeating { self.given_up & self.given_up_there } else { self.given_up };
        let needs =
            |(rail, index): (usize, &usize)| devices & 1 << index != 0 && left_behind & 1 << rail == 0;
        self.rails.iter().enumerate().any(needs)
    }

    /// Gives up rails, a bit for each: the connection continues over the others, unless that fails. False if it is
    /// over.
    #[cold]
    pub(super) fn lose_rails(&mut self, lost: u8) -> bool {
        for rail in 1..self.rails.len() {
            if lost & !self.given_up & 1 << rail == 0 || self.over.is_some() {
                continue;
            }
            self.given_up |= 1 << rail;
            // Until the peer has reported the same loss, every call checks for its report.
            self.is_settled = false;
            let is_closed = self.data.as_mut().is_none_or(|data| data.lose_rail(rail));
            // A driver may report that it has destroyed the queue pairs of a device that is gone without asking the
            // device, so that packets of the device may still arrive.
            let at = &self.shared.rails[self.rails[rail]];
            at.device.take_events();
            if at.device.is_gone() {
                self.fail(NO_DEVICE);
                continue;
            }
            if !self.responder.as_mut().is_none_or(|responder| responder.lose_rail(rail)) || !is_closed {
                self.fail(BROKEN);
                continue;
            }
            self.shared.rails_lost.fetch_add(1, Ordering::Relaxed);
            let at = &self.shared.rails[self.rails[rail]];
            let left = self.rails.len() - self.given_up.count_ones() as usize;
            let (device, port) = (at.info.name.as_str(), at.port.number);
            tracing::warn!(
                device,
                port,
                left,
                "a rail of an RDMA connection failed: it goes on over those left"
            );
            if let Some(link) = &mut self.link {
                // If the peer is gone, another call notices it.
                let _unheard = link.channel.send(&Hello::Note(Note::RailLost(rail as u8)).encode(&[]));
            }
        }
        self.over.is_none()
    }

    /// Returns how a pair that serves the peer ended, if it did. Most adapters raise an event. A device that raises
    /// none is queried from time to time: on soft-RoCE that is a system call, while on an adapter it is a command to
    /// the firmware for each pair.
    pub(super) fn queue_pair_error(&mut self) -> Option<QueuePairError> {
        let told = self.lose_failed(Responder::take_broken);
        let lead = &self.shared.rails[self.rails[0]];
        if told.is_some() || !lead.info.breaks_silently || self.looked.elapsed() < LOOK_EVERY {
            return told;
        }
        self.looked = Instant::now();
        self.lose_failed(Responder::ask_broken)
    }

    /// Ends the connection to a peer whose conversation is over. A peer that has accessed memory that was not granted
    /// to it also ends its conversation, and this side's device has reported the access before.
    #[cold]
    pub(super) fn lose_peer(&mut self) {
        self.rails.iter().for_each(|rail| self.shared.rails[*rail].device.take_events());
        let breaks_silently = self.shared.rails[self.rails[0]].info.breaks_silently;
        let broken = if breaks_silently { Responder::ask_broken } else { Responder::take_broken };
        match self.responder.as_ref().and_then(|responder| broken(responder).0) {
            Some(QueuePairError::Refused) => self.fail_for_access_violation(),
            _ => self.fail(GONE),
        }
    }

    /// Gives up the rails on which serving pairs have failed, unless the whole connection is over.
    fn lose_failed(
        &mut self,
        broken: fn(&Responder) -> (Option<QueuePairError>, u8),
    ) -> Option<QueuePairError> {
        let (over, failed) = broken(self.responder.as_ref()?);
        if over.is_none() && failed != 0 {
            self.lose_rails(failed);
        }
        over
    }

    /// Whether the device has reported the end of a pair on which this side posts, and no completion gives the
    /// reason. Devices also report the end when a request fails, since the peer is unreachable or refused it; then
    /// the completion gives more detail.
    pub(super) fn was_told_of_own_pairs(&mut self) -> bool {
        let data = self.data.as_mut().and_then(Rails::take_broken);
        data.or(lock(&self.heartbeat).take_broken()).is_some()
    }

    #[cold]
    pub(super) fn fail_for_access_violation(&mut self) {
        if self.over.is_none() {
            self.shared.access_violations.fetch_add(1, Ordering::Relaxed);
            tracing::warn!("an RDMA peer reached for memory that it was not granted: disconnected");
            self.fail(ACCESS_VIOLATION);
        }
    }

    /// Ends the connection because of a failed request.
    #[cold]
    pub(super) fn settle_failure(&mut self, error: Option<CompletionError>) {
        if self.over.is_none() {
            self.note_unanswered();
        }
        if self.over.is_some() {
            return;
        }
        if error == Some(CompletionError::RemoteAccess)
            && let Some(link) = &mut self.link
        {
            // The peer's device may or may not have reported it to the peer. If the peer is already gone, it does not
            // need the note.
            let _unheard = link.channel.send(&Hello::Note(Note::AccessViolation).encode(&[]));
        }
        self.fail(match error {
            Some(CompletionError::RemoteAccess) => REFUSED,
            Some(CompletionError::Unreachable) => UNREACHABLE,
            _ => FLUSHED,
        });
    }
}
