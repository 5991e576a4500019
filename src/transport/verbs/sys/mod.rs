//! libibverbs, exactly as its header defines it: no policy, no safety, no lifetimes.
//!
//! Nothing is linked. The library is opened at run time, so that one binary runs with and without an RDMA stack, and
//! reports which. Three parts:
//!
//! - [`bindings`]: types and constants, generated from `<infiniband/verbs.h>`. Enumerations are integers with
//!   constants, since kernels and drivers may answer with values that are newer than the header. Structures grow at
//!   their end (or, `verbs_context`, at its beginning) from version to version: only the fields that the runtime's
//!   own header had are assumed to be filled.
//! - [`Library`]: the exported functions, found by name and version.
//! - [`inline`]: the functions that the header defines as `static inline`, so that no library exports them.
#![allow(unsafe_code)]

#[allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    unused_qualifications,
    clippy::undocumented_unsafe_blocks,
    clippy::identity_op,
    clippy::unnecessary_operation
)]
#[rustfmt::skip] // the generator has formatted it, and a check compares it byte for byte
pub mod bindings;
pub(crate) mod inline;
mod library;
#[cfg(test)]
mod tests;

pub(crate) use bindings::*;
pub(crate) use library::Library;
pub use library::LibraryError;
