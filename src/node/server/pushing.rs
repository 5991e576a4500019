//! Versions that a server writes to the peers which take them unasked.

use super::Server;
use crate::param::FrameHeader;
use crate::transport::{Endpoint, Transport};

impl<T: Transport> Server<T> {
    /// Has the newest version pushed to a peer that takes pushes.
    pub(super) fn push_to(&mut self, peer_index: u16) {
        if let Some(peer) = &mut self.shard.peers[usize::from(peer_index)] {
            peer.wants_push = peer.push.is_some();
        }
    }

    /// Begins the pushes that are due, and records the pushes that have ended.
    pub(super) fn push(&mut self) {
        let frames = &self.shard.frames;
        let latest = frames.latest();
        let mut has_pushed = false;
        for (index, peer) in self.shard.peers.iter_mut().enumerate() {
            let Some(peer) = peer else { continue };
            let Some(push) = &mut peer.push else { continue };
            while let Some(completion) = peer.endpoint.poll() {
                push.complete(completion);
                has_pushed = true;
            }
            if peer.wants_push {
                let payload = frames.payload(latest.frame);
                let included = frames.included(latest.frame, index as u16);
                let header = FrameHeader { included, ..frames.header(latest.frame) };
                match push.start(&mut peer.endpoint, latest.frame, &header, &payload) {
                    Ok(started) => peer.wants_push = !started,
                    // Its connection is gone or its grants are bad; `poll` notices the former and evicts it.
                    Err(error) => {
                        tracing::warn!(peer = index, %error, "push failed");
                        peer.wants_push = false;
                    }
                }
            }
        }
        if has_pushed {
            self.shard.note_news();
        }
    }
}
