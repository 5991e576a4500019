//! Memory of payloads, as a parameter of the suite: it is the host's, or that of a GPU, whose bytes no processor reads.

use slackline::Transport;
use slackline::internals::mem::Access;
use slackline::internals::transport::{PayloadMemory, PayloadSlice, RegisterError};

use super::fixture::bytes_of;

/// Where the payloads of claims are, and how their bytes come there. Words are in host memory always.
pub(crate) trait Payloads<T: Transport>: 'static {
    /// Whether those that are granted are on a GPU.
    const ARE_GRANTED_ON_A_GPU: bool = false;
    /// Memory that the side which serves grants. It holds zeros.
    fn granted(transport: &T, bytes: usize, access: Access) -> Result<PayloadMemory, RegisterError> {
        transport.allocate(bytes, access).map(PayloadMemory::Host)
    }
    /// Memory of one's own side.
    fn own(transport: &T, bytes: usize) -> PayloadMemory {
        transport.allocate(bytes, Access::LOCAL).expect("allocate").into()
    }
    /// Has this side see what devices have written to its memory, as it must before it uses what a word announces.
    fn see(_transport: &T) {}
    /// Sets the bytes, as if they had always been so.
    fn set(slice: &PayloadSlice, bytes: &[u8]) {
        slice.host().expect("payloads are in host memory").as_volatile().write(bytes);
    }
    /// The bytes that are there now.
    fn bytes(slice: &PayloadSlice) -> Vec<u8> {
        bytes_of(slice.host().expect("payloads are in host memory"))
    }
}

/// Host memory on both sides.
pub(crate) struct InHostMemory;

impl<T: Transport> Payloads<T> for InHostMemory {}
