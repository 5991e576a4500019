//! Types of elements: of tensors, and of the gradients that servers sum.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::TableError;

/// Type of the elements of a tensor: the types of DLPack 1.1 except vectors and complex numbers of two float16, as
/// bytes that the library carries and does not look into.
///
/// A server computes with its parameters, which are [`F32`](Self::F32). A publisher takes tensors of every type.
/// Numbers are little-endian. The names that `Display` writes and `FromStr` reads are those of numpy, `ml_dtypes` and
/// PyTorch.
///
/// ```
/// use slackline::ElementType;
/// assert_eq!("bfloat16".parse(), Ok(ElementType::Bf16));
/// assert_eq!(ElementType::F8E4M3Fn.to_string(), "float8_e4m3fn");
/// assert_eq!((ElementType::F64.bits(), ElementType::F4E2M1Fn.bits()), (64, 4));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ElementType {
    /// IEEE 754 single precision.
    F32,
    /// bfloat16: the upper half of an `F32`.
    Bf16,
    /// IEEE 754 half precision.
    F16,
    /// IEEE 754 double precision.
    F64,
    /// A byte that is 0 or 1.
    Bool,
    /// Signed integer of 8 bits.
    I8,
    /// Signed integer of 16 bits.
    I16,
    /// Signed integer of 32 bits.
    I32,
    /// Signed integer of 64 bits.
    I64,
    /// Unsigned integer of 8 bits.
    U8,
    /// Unsigned integer of 16 bits.
    U16,
    /// Unsigned integer of 32 bits.
    U32,
    /// Unsigned integer of 64 bits.
    U64,
    /// Two `F32`: the real and the imaginary part.
    Complex64,
    /// Two `F64`: the real and the imaginary part.
    Complex128,
    /// 8 bits, of which 3 are the exponent and 4 the mantissa.
    F8E3M4,
    /// 8 bits, of which 4 are the exponent and 3 the mantissa; IEEE 754's rules for infinities and NaN.
    F8E4M3,
    /// 8 bits, of which 4 are the exponent (bias 11) and 3 the mantissa; finite, one zero, one NaN.
    F8E4M3B11Fnuz,
    /// 8 bits, of which 4 are the exponent and 3 the mantissa; finite, with NaN (OCP's E4M3).
    F8E4M3Fn,
    /// 8 bits, of which 4 are the exponent and 3 the mantissa; finite, one zero, one NaN.
    F8E4M3Fnuz,
    /// 8 bits, of which 5 are the exponent and 2 the mantissa (OCP's E5M2).
    F8E5M2,
    /// 8 bits, of which 5 are the exponent and 2 the mantissa; finite, one zero, one NaN.
    F8E5M2Fnuz,
    /// 8 bits of exponent: a power of two, for scales (OCP's E8M0).
    F8E8M0Fnu,
    /// 6 bits, of which 2 are the exponent and 3 the mantissa; elements are packed without a gap.
    F6E2M3Fn,
    /// 6 bits, of which 3 are the exponent and 2 the mantissa; elements are packed without a gap.
    F6E3M2Fn,
    /// 4 bits, of which 2 are the exponent and 1 the mantissa; elements are packed without a gap.
    F4E2M1Fn,
}

/// Each type with its name, its type code in DLPack, and the bits of one element.
const TYPES: [(ElementType, &str, u8, u8); 26] = [
    (ElementType::F32, "float32", 2, 32),
    (ElementType::Bf16, "bfloat16", 4, 16),
    (ElementType::F16, "float16", 2, 16),
    (ElementType::F64, "float64", 2, 64),
    (ElementType::Bool, "bool", 6, 8),
    (ElementType::I8, "int8", 0, 8),
    (ElementType::I16, "int16", 0, 16),
    (ElementType::I32, "int32", 0, 32),
    (ElementType::I64, "int64", 0, 64),
    (ElementType::U8, "uint8", 1, 8),
    (ElementType::U16, "uint16", 1, 16),
    (ElementType::U32, "uint32", 1, 32),
    (ElementType::U64, "uint64", 1, 64),
    (ElementType::Complex64, "complex64", 5, 64),
    (ElementType::Complex128, "complex128", 5, 128),
    (ElementType::F8E3M4, "float8_e3m4", 7, 8),
    (ElementType::F8E4M3, "float8_e4m3", 8, 8),
    (ElementType::F8E4M3B11Fnuz, "float8_e4m3b11fnuz", 9, 8),
    (ElementType::F8E4M3Fn, "float8_e4m3fn", 10, 8),
    (ElementType::F8E4M3Fnuz, "float8_e4m3fnuz", 11, 8),
    (ElementType::F8E5M2, "float8_e5m2", 12, 8),
    (ElementType::F8E5M2Fnuz, "float8_e5m2fnuz", 13, 8),
    (ElementType::F8E8M0Fnu, "float8_e8m0fnu", 14, 8),
    (ElementType::F6E2M3Fn, "float6_e2m3fn", 15, 6),
    (ElementType::F6E3M2Fn, "float6_e3m2fn", 16, 6),
    (ElementType::F4E2M1Fn, "float4_e2m1fn", 17, 4),
];

impl ElementType {
    /// All types, in the order of their declaration.
    #[doc(hidden)]
    pub fn all() -> impl Iterator<Item = ElementType> {
        TYPES.iter().map(|(element, ..)| *element)
    }

    /// Bits of one element.
    pub const fn bits(self) -> usize {
        TYPES[self as usize].3 as usize
    }

    /// Bytes of one element that stands alone: 1 for elements of less than 8 bits.
    pub const fn bytes(self) -> usize {
        self.bits().div_ceil(8)
    }

    /// Bytes of a dense tensor of so many elements; `None` if they are more than a `u64` counts.
    pub(super) fn bytes_of(self, elements: u64) -> Option<u64> {
        let bits = u128::from(elements) * self.bits() as u128;
        u64::try_from(bits.div_ceil(8)).ok()
    }

    /// Its type code and the bits of one element in a `DLDataType` of one lane (DLPack 1.1).
    #[doc(hidden)]
    pub const fn dlpack(self) -> (u8, u8) {
        (TYPES[self as usize].2, TYPES[self as usize].3)
    }

    /// The type of this code and so many bits in DLPack, if there is one.
    #[doc(hidden)]
    pub fn from_dlpack(code: u8, bits: u8) -> Option<ElementType> {
        TYPES.iter().find(|(_, _, its, of)| (*its, *of) == (code, bits)).map(|(element, ..)| *element)
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(TYPES[*self as usize].1)
    }
}

impl FromStr for ElementType {
    type Err = TableError;

    fn from_str(name: &str) -> Result<ElementType, TableError> {
        let found = TYPES.iter().find(|(_, its, ..)| *its == name);
        found.map(|(element, ..)| *element).ok_or_else(|| TableError::UnknownType { name: name.into() })
    }
}

/// Encoding of the elements of gradients, which a server decodes, sums and folds into f32 parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Encoding {
    /// IEEE 754 single precision.
    #[default]
    F32,
    /// bfloat16: the upper half of an `F32`.
    Bf16,
    /// IEEE 754 half precision.
    F16,
}

impl Encoding {
    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Encoding::F32 => 4,
            Encoding::Bf16 | Encoding::F16 => 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_type_finds_its_own_row_and_comes_back_from_its_name_and_from_dlpack() {
        for (index, (element, name, code, bits)) in TYPES.into_iter().enumerate() {
            assert_eq!(element as usize, index, "{name}");
            assert_eq!((element.to_string().as_str(), element.dlpack()), (name, (code, bits)));
            assert_eq!(name.parse(), Ok(element));
            assert_eq!(ElementType::from_dlpack(code, bits), Some(element));
        }
        assert_eq!(ElementType::from_dlpack(2, 128), None);
        let unknown = "float31".parse::<ElementType>().unwrap_err();
        assert_eq!(unknown, TableError::UnknownType { name: "float31".into() });
    }

    #[test]
    fn elements_of_less_than_a_byte_are_packed() {
        assert_eq!(ElementType::F4E2M1Fn.bytes_of(3), Some(2));
        assert_eq!(ElementType::F6E2M3Fn.bytes_of(5), Some(4));
        assert_eq!(ElementType::Complex128.bytes_of(2), Some(32));
        assert_eq!(ElementType::F64.bytes_of(u64::MAX), None);
        assert_eq!((ElementType::F4E2M1Fn.bytes(), ElementType::F6E3M2Fn.bytes()), (1, 1));
    }
}
