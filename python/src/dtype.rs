//! Element types by their names, as DLPack has them and as the buffer protocol writes them.

use std::ffi::CStr;

use slackline::ElementType;

use crate::errors::{Class, Failure};

/// An element type.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Dtype {
    /// The name that numpy and ml_dtypes give it.
    pub(crate) name: &'static str,
    /// DLPack's code and bits.
    pub(crate) code: u8,
    pub(crate) bits: u8,
    /// The format of the buffer protocol. A type that the protocol has none for is lent as unsigned integers of its
    /// size.
    pub(crate) format: &'static CStr,
    /// False if numpy by itself has no such type.
    pub(crate) is_native: bool,
}

/// DLPack's codes of kinds of types that numpy has.
const INT: u8 = 0;
const UINT: u8 = 1;
const FLOAT: u8 = 2;
const COMPLEX: u8 = 5;
const BOOL: u8 = 6;

const fn native(name: &'static str, code: u8, bits: u8, format: &'static CStr) -> Dtype {
    Dtype { name, code, bits, format, is_native: true }
}

const fn opaque(name: &'static str, code: u8, bits: u8, format: &'static CStr) -> Dtype {
    Dtype { name, code, bits, format, is_native: false }
}

static ALL: [Dtype; 26] = [
    native("bool", BOOL, 8, c"?"),
    native("int8", INT, 8, c"b"),
    native("int16", INT, 16, c"h"),
    native("int32", INT, 32, c"i"),
    native("int64", INT, 64, c"q"),
    native("uint8", UINT, 8, c"B"),
    native("uint16", UINT, 16, c"H"),
    native("uint32", UINT, 32, c"I"),
    native("uint64", UINT, 64, c"Q"),
    native("float16", FLOAT, 16, c"e"),
    native("float32", FLOAT, 32, c"f"),
    native("float64", FLOAT, 64, c"d"),
    native("complex64", COMPLEX, 64, c"Zf"),
    native("complex128", COMPLEX, 128, c"Zd"),
    opaque("bfloat16", 4, 16, c"H"),
    opaque("float8_e3m4", 7, 8, c"B"),
    opaque("float8_e4m3", 8, 8, c"B"),
    opaque("float8_e4m3b11fnuz", 9, 8, c"B"),
    opaque("float8_e4m3fn", 10, 8, c"B"),
    opaque("float8_e4m3fnuz", 11, 8, c"B"),
    opaque("float8_e5m2", 12, 8, c"B"),
    opaque("float8_e5m2fnuz", 13, 8, c"B"),
    opaque("float8_e8m0fnu", 14, 8, c"B"),
    opaque("float6_e2m3fn", 15, 6, c"B"),
    opaque("float6_e3m2fn", 16, 6, c"B"),
    opaque("float4_e2m1fn", 17, 4, c"B"),
];

impl Dtype {
    /// Bytes of one element.
    pub(crate) const fn bytes(&self) -> usize {
        (self.bits as usize).div_ceil(8)
    }

    pub(crate) fn from_dlpack(code: u8, bits: u8) -> Option<&'static Dtype> {
        ALL.iter().find(|dtype| (dtype.code, dtype.bits) == (code, bits))
    }

    /// The type of this name; `torch.float32` is `float32`.
    pub(crate) fn named(name: &str) -> Option<&'static Dtype> {
        let name = name.strip_prefix("torch.").unwrap_or(name);
        ALL.iter().find(|dtype| dtype.name == name)
    }

    pub(crate) fn of(element: ElementType) -> Result<&'static Dtype, Failure> {
        let (code, bits) = element.dlpack();
        Dtype::from_dlpack(code, bits).ok_or_else(|| unknown(element))
    }

    pub(crate) fn element(&self) -> Result<ElementType, Failure> {
        ElementType::from_dlpack(self.code, self.bits).ok_or_else(|| unknown(self.name))
    }

    /// True if several elements share a byte: arrays of them are arrays of their bytes.
    pub(crate) const fn is_packed(&self) -> bool {
        self.bits < 8
    }

    /// The unsigned integers that have the bits of an element, or of those that share a byte.
    pub(crate) fn raw(&self) -> Option<&'static Dtype> {
        ALL.iter().find(|raw| raw.code == UINT && raw.bytes() == self.bytes())
    }

    /// True if an array of `other` is taken where this type is wanted: it is the same, or numpy has no such type and
    /// `other` is its bits.
    pub(crate) fn takes(&self, other: &Dtype) -> bool {
        self == other || (!self.is_native && self.raw() == Some(other))
    }

    /// Reads a format of the buffer protocol, with elements of `bytes`. `None`: not one number, or not in this
    /// machine's order of bytes.
    pub(crate) fn from_format(format: &str, bytes: usize) -> Option<&'static Dtype> {
        let format = match format.as_bytes() {
            [b'>' | b'!', rest @ ..] if bytes > 1 && !rest.is_empty() => return None,
            [b'@' | b'=' | b'<' | b'>' | b'!', ..] => &format[1..],
            _ => format,
        };
        let code = match format {
            "?" => BOOL,
            "b" | "h" | "i" | "l" | "q" | "n" => INT,
            "B" | "H" | "I" | "L" | "Q" | "N" => UINT,
            "e" | "f" | "d" => FLOAT,
            "Ze" | "Zf" | "Zd" | "F" | "D" => COMPLEX,
            _ => return None,
        };
        Dtype::from_dlpack(code, u8::try_from(bytes * 8).ok()?)
    }

    /// Reads a type of numpy's array interface, such as `<f4`.
    pub(crate) fn from_typestr(typestr: &str) -> Option<&'static Dtype> {
        let (order, kind, bytes) = (typestr.get(..1)?, typestr.get(1..2)?, typestr.get(2..)?);
        let bytes: usize = bytes.parse().ok()?;
        let code = match kind {
            "b" => BOOL,
            "i" => INT,
            "u" => UINT,
            "f" => FLOAT,
            "c" => COMPLEX,
            _ => return None,
        };
        if order == ">" && bytes > 1 {
            return None;
        }
        Dtype::from_dlpack(code, u8::try_from(bytes.checked_mul(8)?).ok()?)
    }
}

/// The failure of an element type that tables cannot have.
pub(crate) fn unknown(what: impl std::fmt::Display) -> Failure {
    let remedy = "use a type of DLPack, or a view of the same bytes as unsigned integers";
    let cause = format_args!("a table has no elements of type {what}");
    Failure::new(Class::LayoutMismatch, "laying out the table", cause, remedy)
}
