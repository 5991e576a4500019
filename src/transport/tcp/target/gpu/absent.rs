//! Stands in for requests for memory of a GPU where the library is built without it: there is none.

use super::{ServeOutcome, Target, Wants};
use crate::cuda::GpuSlice;
use crate::mem::VolatileSlice;
use crate::transport::tcp::check::Span;
use crate::transport::tcp::initiator::Broken;
use crate::transport::tcp::wire::Request;

pub(super) enum NoServing {}

pub(super) use NoServing as StagedServing;

impl NoServing {
    pub(super) fn room(&mut self, _: usize) -> Option<VolatileSlice<'_>> {
        match *self {}
    }

    pub(super) fn missing(&self) -> Option<usize> {
        match *self {}
    }

    pub(super) fn came(&mut self, _: usize) -> Result<(), Broken> {
        match *self {}
    }
}

impl Target {
    pub(in super::super) fn is_copying(&self) -> bool {
        false
    }

    pub(in super::super) fn is_holding(&self) -> bool {
        false
    }

    pub(super) fn release_held(&mut self) -> Result<(), Broken> {
        Ok(())
    }

    pub(super) fn hold(&mut self, _: &Request, _: usize, _: Option<Span>) -> Option<Wants> {
        None
    }

    pub(super) fn carry_out_on_gpu(
        &mut self,
        _: &Request,
        _: usize,
        _: &Span,
        grant: &GpuSlice,
    ) -> Result<Option<Wants>, Broken> {
        match *grant {}
    }

    pub(super) fn digest_on_gpu(&mut self) -> Result<Option<Wants>, Broken> {
        Ok(None)
    }

    pub(super) fn is_leaving_gpu(&self) -> bool {
        false
    }

    pub(super) fn flush_from_gpu(&mut self, _: &mut usize) -> Result<Option<ServeOutcome>, Broken> {
        Ok(None)
    }
}
