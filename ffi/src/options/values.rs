//! The numbers by which C names a choice, and the meaning of each on this side.

use std::time::Duration;

use slackline::checkpoint::Resume;
use slackline::{ElementType, Encoding, Idle, ReadMode, Version, scheme::Damping};

use crate::error::Failure;

/// A version that there is not.
pub const SLACKLINE_NO_VERSION: u64 = 0xffff_ffff_ffff_ffff;

/// Types of elements, for the field called `element`: the types of DLPack 1.1 except vectors and complex numbers of two
/// float16. A server's table is f32. Of the field called `encoding` the first three are values.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum slackline_element {
    /// IEEE 754 single precision, 4 bytes.
    F32 = 0,
    /// bfloat16, 2 bytes.
    Bf16 = 1,
    /// IEEE 754 half precision, 2 bytes.
    F16 = 2,
    /// IEEE 754 double precision, 8 bytes.
    F64 = 3,
    /// A byte that is 0 or 1.
    Bool = 4,
    /// Signed integer of 1 byte.
    I8 = 5,
    /// Signed integer of 2 bytes.
    I16 = 6,
    /// Signed integer of 4 bytes.
    I32 = 7,
    /// Signed integer of 8 bytes.
    I64 = 8,
    /// Unsigned integer of 1 byte.
    U8 = 9,
    /// Unsigned integer of 2 bytes.
    U16 = 10,
    /// Unsigned integer of 4 bytes.
    U32 = 11,
    /// Unsigned integer of 8 bytes.
    U64 = 12,
    /// Two f32, real and imaginary part.
    Complex64 = 13,
    /// Two f64, real and imaginary part.
    Complex128 = 14,
    /// 1 byte: 3 bits of exponent, 4 of mantissa.
    F8E3M4 = 15,
    /// 1 byte: 4 bits of exponent, 3 of mantissa, as IEEE 754 would have it.
    F8E4M3 = 16,
    /// 1 byte: 4 bits of exponent with bias 11, 3 of mantissa, finite, one zero.
    F8E4M3B11Fnuz = 17,
    /// 1 byte: 4 bits of exponent, 3 of mantissa, finite (OCP E4M3).
    F8E4M3Fn = 18,
    /// 1 byte: 4 bits of exponent, 3 of mantissa, finite, one zero.
    F8E4M3Fnuz = 19,
    /// 1 byte: 5 bits of exponent, 2 of mantissa (OCP E5M2).
    F8E5M2 = 20,
    /// 1 byte: 5 bits of exponent, 2 of mantissa, finite, one zero.
    F8E5M2Fnuz = 21,
    /// 1 byte: 8 bits of exponent, for scales (OCP E8M0).
    F8E8M0Fnu = 22,
    /// 6 bits, packed: 2 of exponent, 3 of mantissa.
    F6E2M3Fn = 23,
    /// 6 bits, packed: 3 of exponent, 2 of mantissa.
    F6E3M2Fn = 24,
    /// 4 bits, packed: 2 of exponent, 1 of mantissa.
    F4E2M1Fn = 25,
}

/// The rules by which gradients move parameters, for the field called `optimizer`. Formulas are PyTorch's.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum slackline_optimizer {
    /// Uses `learning_rate` and `weight_decay`.
    Sgd = 0,
    /// Uses `momentum` as well.
    Momentum = 1,
    /// Uses `learning_rate`, `beta1`, `beta2`, `epsilon` and `weight_decay`, an L2 penalty.
    Adam = 2,
    /// As Adam, with the decay taken from the parameter itself.
    Adamw = 3,
}

/// The treatments of gradients that hold a NaN or an infinity, for the field called `non_finite`.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum slackline_non_finite {
    /// They are folded in as they are.
    Allow = 0,
    /// They are left out, and count as dropped.
    Drop = 1,
    /// They are left out, and the worker that sent one is evicted.
    Refuse = 2,
}

/// Whether a server goes on from its checkpoint, for the field called `resume`.
#[repr(u64)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum slackline_resume {
    /// It begins with the initial values that it is given.
    Never = 0,
    /// It goes on from its checkpoint if there is one. The version in its status tells.
    IfThere = 1,
    /// It goes on from its checkpoint; that there is none is an error.
    Required = 2,
}

/// The ways in which a worker reads parameters, for the field called `read`.
#[repr(u64)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum slackline_read {
    /// It copies them into memory of its own: `slackline_worker_parameters`.
    Copy = 0,
    /// It reads them where they lie and holds a pin while it computes, over shared memory only:
    /// `slackline_worker_in_place`.
    InPlace = 1,
}

/// The effects of a gradient's staleness on its weight, for the field called `damping`.
#[repr(u64)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum slackline_damping {
    /// It has no effect.
    None = 0,
    /// The weight is divided by the staleness, where that is more than 1.
    Inverse = 1,
}

/// The ways in which an owner, a worker or a reader waits while there is nothing to do, for the field called `idle`.
#[repr(u64)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum slackline_idle {
    /// It polls without pause: an event is seen at once, at the cost of a processor.
    Poll = 0,
    /// It sleeps until a peer wakes it, over shared memory, TCP and RDMA, or for 20 ms at most; a worker or a reader
    /// over TCP and RDMA for 100 ms at most. An owner that shares its listener with other tables polls, as does one at
    /// several RDMA addresses. A publisher with `background` is not woken: it looks every millisecond, and every 20 ms
    /// once it has had nothing to do for 100 ms.
    Sleep = 1,
}

pub(crate) const DAMPINGS: [(u64, Damping); 2] =
    [(slackline_damping::None as u64, Damping::None), (slackline_damping::Inverse as u64, Damping::Inverse)];

/// The library's name of a number of [`slackline_resume`].
pub(super) fn resume_of(number: u64) -> Result<Resume, Failure> {
    let known = [
        (slackline_resume::Never as u64, Resume::Never),
        (slackline_resume::IfThere as u64, Resume::IfThere),
        (slackline_resume::Required as u64, Resume::Required),
    ];
    named(known, number, "setting of resume")
}

pub(super) fn idle(number: u64) -> Result<Idle, Failure> {
    let known = [(slackline_idle::Poll as u64, Idle::Poll), (slackline_idle::Sleep as u64, Idle::Sleep)];
    named(known, number, "setting of idle")
}

pub(super) fn read_mode(number: u64) -> Result<ReadMode, Failure> {
    let known =
        [(slackline_read::Copy as u64, ReadMode::Copy), (slackline_read::InPlace as u64, ReadMode::InPlace)];
    named(known, number, "setting of read")
}

/// Each type of elements, as C and as Rust name it.
pub(crate) const ELEMENTS: [(u64, ElementType); 26] = [
    (slackline_element::F32 as u64, ElementType::F32),
    (slackline_element::Bf16 as u64, ElementType::Bf16),
    (slackline_element::F16 as u64, ElementType::F16),
    (slackline_element::F64 as u64, ElementType::F64),
    (slackline_element::Bool as u64, ElementType::Bool),
    (slackline_element::I8 as u64, ElementType::I8),
    (slackline_element::I16 as u64, ElementType::I16),
    (slackline_element::I32 as u64, ElementType::I32),
    (slackline_element::I64 as u64, ElementType::I64),
    (slackline_element::U8 as u64, ElementType::U8),
    (slackline_element::U16 as u64, ElementType::U16),
    (slackline_element::U32 as u64, ElementType::U32),
    (slackline_element::U64 as u64, ElementType::U64),
    (slackline_element::Complex64 as u64, ElementType::Complex64),
    (slackline_element::Complex128 as u64, ElementType::Complex128),
    (slackline_element::F8E3M4 as u64, ElementType::F8E3M4),
    (slackline_element::F8E4M3 as u64, ElementType::F8E4M3),
    (slackline_element::F8E4M3B11Fnuz as u64, ElementType::F8E4M3B11Fnuz),
    (slackline_element::F8E4M3Fn as u64, ElementType::F8E4M3Fn),
    (slackline_element::F8E4M3Fnuz as u64, ElementType::F8E4M3Fnuz),
    (slackline_element::F8E5M2 as u64, ElementType::F8E5M2),
    (slackline_element::F8E5M2Fnuz as u64, ElementType::F8E5M2Fnuz),
    (slackline_element::F8E8M0Fnu as u64, ElementType::F8E8M0Fnu),
    (slackline_element::F6E2M3Fn as u64, ElementType::F6E2M3Fn),
    (slackline_element::F6E3M2Fn as u64, ElementType::F6E3M2Fn),
    (slackline_element::F4E2M1Fn as u64, ElementType::F4E2M1Fn),
];

pub(super) fn element(number: u32) -> Result<ElementType, Failure> {
    named(ELEMENTS, number.into(), "element type")
}

pub(super) fn encoding(number: u32) -> Result<Encoding, Failure> {
    let known = [
        (slackline_element::F32 as u64, Encoding::F32),
        (slackline_element::Bf16 as u64, Encoding::Bf16),
        (slackline_element::F16 as u64, Encoding::F16),
    ];
    named(known, number.into(), "encoding of gradients")
}

/// The value that C knows by this number.
pub(crate) fn named<T, const COUNT: usize>(
    known: [(u64, T); COUNT],
    number: u64,
    what: &str,
) -> Result<T, Failure> {
    let found = known.into_iter().find(|(name, _)| *name == number);
    found
        .map(|(_, value)| value)
        .ok_or_else(|| Failure::bad_argument(format!("no {what} has the number {number}")))
}

/// The number of a version, for a field that may have none.
pub(crate) fn version_number(version: Option<Version>) -> u64 {
    version.map_or(SLACKLINE_NO_VERSION, Version::get)
}

pub(crate) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_name_nothing_are_bad_arguments() {
        assert!(element(26).is_err() && encoding(3).is_err());
        assert!(idle(2).is_err() && read_mode(2).is_err() && resume_of(3).is_err());
        assert!(named(DAMPINGS, 2, "setting of damping").is_err());
    }
}
