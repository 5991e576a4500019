//! Authenticated channels: who may connect is proved before anything else is said.
#![forbid(unsafe_code)]
