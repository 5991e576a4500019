//! x
mod coroutine;
mod flow;
mod meet;
mod net;
mod random;
mod transport;
pub use transport::SimTransport;
