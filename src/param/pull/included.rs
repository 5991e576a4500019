//! The part of a pull that learns which of this peer's own gradients the copied frame holds.

use super::{INCLUDED_LINE, PULL_TAG, Pull};
use crate::clock::Clock;
use crate::mem::{OutOfBounds, Streaming};
use crate::param::layout::FrameHeader;
use crate::transport::{Operation, WorkRequest};

/// The way in which a pull learns which of this peer's own gradients a frame holds.
#[derive(Debug)]
pub(super) enum Included {
    NotAsked,
    /// From the header, of a frame that was pushed to this peer.
    InHeader,
    /// From this peer's word of the frame: the looks at it, made once.
    InWords {
        peer: u16,
        looks: Vec<WorkRequest>,
    },
}

impl Pull {
    /// Has each pull from now on say which gradients of `peer` its frame holds
    /// ([`Pulled::included`](super::Pulled::included)): one word more to read. `None` where the frames were pushed to
    /// the peer that asks, whose headers say it.
    pub fn ask_included(&mut self, peer: Option<u16>) -> Result<(), OutOfBounds> {
        let Some(peer) = peer else {
            self.included = Included::InHeader;
            return Ok(());
        };
        let looks = (0..self.source.geometry.frames).map(|frame| {
            let local = self.scratch.slice(INCLUDED_LINE, 8)?;
            let remote = self.source.included(frame, peer)?;
            let operation = Operation::Read { local, remote, streaming: Streaming::Never };
            Ok(WorkRequest::signalled(PULL_TAG, operation))
        });
        let looks = looks.collect::<Result<_, OutOfBounds>>()?;
        self.included = Included::InWords { peer, looks };
        Ok(())
    }

    /// Returns whether pulls say which gradients their frame holds.
    pub(crate) fn asks_included(&self) -> bool {
        !matches!(self.included, Included::NotAsked)
    }

    /// The looks at each frame between the two looks at its header, if there are any.
    pub(super) fn looks_between(&self) -> Option<&[WorkRequest]> {
        match &self.included {
            Included::InWords { looks, .. } => Some(looks),
            _ => self.options.label.then_some(&self.labels[..]),
        }
    }

    /// The clock before which the frame with this header holds this peer's gradients, if that was asked.
    pub(super) fn included_by(&self, header: &FrameHeader) -> Option<Clock> {
        match self.included {
            Included::NotAsked => None,
            Included::InHeader => Some(header.included),
            Included::InWords { .. } => Some(Clock::new(self.scratch.as_volatile().load_u64(INCLUDED_LINE))),
        }
    }
}
