//! The order in which a device applies the writes of peers.

/// Whether a device applies a peer's writes in the order of the requests, and the source of this answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrivalOrder {
    /// Whether it does. If not, a READ proves the earlier writes before each announcing word is written.
    pub in_order: bool,
    /// The source of the answer.
    pub source: ArrivalOrderSource,
}

/// The source of the answer about the order in which a device applies writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrivalOrderSource {
    /// [`VerbsOptions::in_order`](super::VerbsOptions::in_order).
    Options,
    /// The order of soft-RoCE is known, although its driver cannot be queried: it copies each packet into memory on
    /// arrival, in the order of the packets' numbers, and drops packets that arrive too early.
    SoftRoce,
    /// The driver was queried. A driver without an answer says no.
    Driver,
    /// libibverbs is too old for this query, which counts as a no.
    OldLibrary,
}

impl ArrivalOrderSource {
    /// A stable name for programs.
    pub fn name(self) -> &'static str {
        match self {
            ArrivalOrderSource::Options => "setting",
            ArrivalOrderSource::SoftRoce => "known",
            ArrivalOrderSource::Driver => "driver",
            ArrivalOrderSource::OldLibrary => "assumed",
        }
    }

    /// The same in a few words, to follow "says".
    pub fn text(self) -> &'static str {
        match self {
            ArrivalOrderSource::Options => "the options",
            ArrivalOrderSource::SoftRoce => "the source of soft-RoCE, which cannot be asked",
            ArrivalOrderSource::Driver => "the driver, and one without an answer says no",
            ArrivalOrderSource::OldLibrary => {
                "nothing: this libibverbs is too old to ask the driver (rdma-core before 36)"
            }
        }
    }
}
