//! The wire-up of a connection: the messages of the two sides before the first request, alike over every transport.
//!
//! The connector makes an offer, the listener accepts or refuses it. Both name the memory that the other side may use
//! (grants) and carry a message of the layer above; a transport adds a blob of its own (queue pairs, a ticket, the
//! segments whose descriptors come along) and may have notes that it sends besides. The check of an offer, the format,
//! its version, refusals and the treatment of newcomers are the same everywhere and are here.
//!
//! ```text
//! u32 wire version   at the same offset in every version
//! body               postcard: an offer, an acceptance, a refusal or a note, with grants and blob
//! the rest           the message of the layer above, at most MAX_MESSAGE_BYTES
//! ```
//!
//! A channel carries these messages whole; shared memory frames them itself.

mod message;
mod newcomers;
mod offer;

#[cfg(any(test, fuzzing))]
pub(crate) use message::fuzz;
pub(crate) use message::{Blob, Grant, Hello, LIMIT, Side, Terms, WIRE_VERSION, WireError};
pub(crate) use newcomers::{Newcomer, Newcomers, accept};
pub(crate) use offer::{check_offer, lets_write, random};
