//! The order in which a device applies what peers write.

/// Whether a device applies what a peer writes in the order of its requests, and who says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrivalOrder {
    /// Whether it does. If not, a READ proves what was written before each word that announces it.
    pub in_order: bool,
    /// Who says so.
    pub source: ArrivalOrderSource,
}

/// Who says in which order a device applies writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrivalOrderSource {
    /// [`VerbsOptions::in_order`](super::VerbsOptions::in_order).
    Options,
    /// It is known of soft-RoCE, whose driver cannot be asked: it copies each packet into memory as it comes, in the
    /// order of their numbers, and drops those that come too early.
    SoftRoce,
    /// The driver was asked. One that has no answer says no.
    Driver,
    /// libibverbs is older than the question, which is taken for a no.
    OldLibrary,
}

impl ArrivalOrderSource {
    /// Its name for programs, which stays the same.
    pub fn name(self) -> &'static str {
        match self {
            ArrivalOrderSource::Options => "setting",
            ArrivalOrderSource::SoftRoce => "known",
            ArrivalOrderSource::Driver => "driver",
            ArrivalOrderSource::OldLibrary => "assumed",
        }
    }

    /// The same in a few words, behind "says".
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
