//! Stands in for requests whose memory is on a GPU where the library is built without them.

use crate::cuda::Gpu;
use crate::transport::{PostError, WorkCompletion, WorkRequest};

/// Requests of an endpoint that has a GPU: there are none.
pub(super) enum NoPosting {}

pub(super) use NoPosting as StagedPosting;

impl NoPosting {
    pub(super) fn new(gpu: &Gpu, _: usize, _: usize) -> Option<Box<NoPosting>> {
        match *gpu {}
    }

    pub(super) fn is_idle(&self) -> bool {
        match *self {}
    }

    pub(super) fn post<L>(&mut self, _: &mut L, _: &[WorkRequest]) -> Result<(), PostError> {
        match *self {}
    }

    pub(super) fn poll<L>(&mut self, _: &mut L) -> Option<WorkCompletion> {
        match *self {}
    }

    pub(super) fn advance<L>(&mut self, _: &mut L) {
        match *self {}
    }
}
