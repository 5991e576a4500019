//! One-sided RDMA on InfiniBand and RoCE, through libibverbs.

#[allow(dead_code, unused_imports)] // until the transport over it is here
pub(crate) mod sys;
