//! Stands in for copies of a GPU where the library is built without them.

use std::os::fd::{BorrowedFd, OwnedFd};

use super::handshake::{MappedOnGpu, ShmHandshakeError};
use crate::cuda::{Gpu, GpuMemory, GpuSlice};
use crate::mem::RemoteSlice;
use crate::transport::wireup::Grant;
use crate::transport::{GpuPath, LocalEndpoint, PostError, RegisterError, WorkRequest};

pub(super) use crate::cuda::Gpu as GpuSide;
pub(super) use crate::cuda::GpuMemory as ReachedMemory;

impl GpuSide {
    pub(super) fn new(gpu: Gpu, _: Vec<MappedOnGpu>) -> GpuSide {
        gpu
    }

    pub(super) fn post(&mut self, _: &mut LocalEndpoint, _: &[WorkRequest]) -> Result<bool, PostError> {
        match *self {}
    }

    pub(super) fn path(&self) -> GpuPath {
        match *self {}
    }

    pub(super) fn map(&self, _: &RemoteSlice) -> Option<GpuSlice> {
        match *self {}
    }

    pub(super) fn advance(&mut self, _: &mut LocalEndpoint) -> bool {
        match *self {}
    }
}

pub(super) fn export(memory: &GpuMemory) -> Result<(OwnedFd, usize), ShmHandshakeError> {
    match *memory {}
}

pub(super) fn expect_exported(memory: &GpuMemory) -> Result<(), RegisterError> {
    match *memory {}
}

pub(super) fn import(
    _: Option<&Gpu>,
    _: BorrowedFd<'_>,
    _: &Grant,
    _: usize,
) -> Result<GpuMemory, ShmHandshakeError> {
    let reason = "its payloads are on a GPU, and this library was built without the feature cuda";
    Err(ShmHandshakeError::Gpu(reason.into()))
}
