//! Tables: named tensors laid out in one flat space, and the shards it is cut into.
//!
//! Pure: names, shapes, types and offsets; no memory.
#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::diagnostic::{Diagnostic, remedy_of};

mod element;
mod selection;

pub use element::{ElementType, Encoding};
pub use selection::{MAX_PIECES, Piece, Selection, SelectionBuilder};

/// Most tensors in a table.
pub const MAX_TENSORS: usize = 1 << 16;

/// Shards are cut at multiples of this many bytes: one cache line.
pub const SHARD_ALIGN: u64 = 64;

/// Largest alignment of the tensors of a table: a page, where each frame begins.
pub const MAX_ALIGN: u64 = 4096;

/// One named tensor and where it lies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tensor {
    name: String,
    shape: Vec<u64>,
    element: ElementType,
    offset: u64,
}

impl Tensor {
    /// Its name; unique in its table.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its shape, outermost dimension first; empty for a scalar.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Type of its elements.
    pub fn element(&self) -> ElementType {
        self.element
    }

    /// Number of elements.
    #[doc(hidden)]
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// The bytes it takes in the flat space.
    pub fn range(&self) -> Range<u64> {
        // The table was laid out only if they could be counted.
        self.offset..self.offset + self.element.bytes_of(self.elements()).unwrap_or_default()
    }
}

/// A table that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// Nothing in it.
    #[error("the table holds nothing: {}", remedy_of(self))]
    Empty,
    /// Too many tensors.
    #[error("a table cannot hold {count} tensors: {}", remedy_of(self))]
    TooManyTensors {
        /// The number of tensors that were given.
        count: usize,
    },
    /// Two tensors of one name.
    #[error("two tensors are called `{name}`: {}", remedy_of(self))]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// A size that overflows.
    #[error("tensor `{name}` with shape {shape:?} does not fit an address space: {}", remedy_of(self))]
    TooLarge {
        /// The name of the tensor.
        name: String,
        /// Its shape.
        shape: Vec<u64>,
    },
    /// A type of elements that is not known.
    #[error("there is no element type `{name}`: {}", remedy_of(self))]
    UnknownType {
        /// The name that was given.
        name: String,
    },
    /// An alignment that cannot be.
    #[error("tensors cannot be aligned to {align} bytes: {}", remedy_of(self))]
    Align {
        /// The alignment that was asked for.
        align: u64,
    },
    /// A tensor that the table has not.
    #[error("the table has no tensor `{name}`: {}", remedy_of(self))]
    NoTensor {
        /// The name that was asked for.
        name: String,
    },
    /// A slice that the tensor has not.
    #[error("tensor `{name}` of shape {shape:?} has no slice {ranges:?}: {}", remedy_of(self))]
    Slice {
        /// The name of the tensor.
        name: String,
        /// The ranges of indices, outermost first.
        ranges: Vec<Range<u64>>,
        /// Its shape.
        shape: Vec<u64>,
    },
    /// A selection of too many pieces.
    #[error("a selection cannot have more than {MAX_PIECES} pieces: {}", remedy_of(self))]
    TooManyPieces,
    /// Names and shapes that are too long for the message that tells a peer of them.
    #[error("a table whose description takes {bytes} bytes cannot be served: {}", remedy_of(self))]
    Description {
        /// Bytes of the message.
        bytes: usize,
        /// The most that it may have.
        most: usize,
    },
    /// More shards than cache lines, or none.
    #[error("cannot cut {bytes} bytes into {shards} shards: {}", remedy_of(self))]
    Shards {
        /// Shards asked for.
        shards: usize,
        /// Bytes of the table.
        bytes: u64,
        /// Most shards there can be.
        most: u64,
    },
}

impl Diagnostic for TableError {
    fn operation(&self) -> &'static str {
        "laying out the table"
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        Some(match self {
            TableError::Empty => "give it at least one tensor with at least one element".into(),
            TableError::TooManyTensors { .. } => format!("use at most {MAX_TENSORS}").into(),
            TableError::DuplicateName { .. } => "give each a name of its own".into(),
            TableError::TooLarge { .. } => "check its shape".into(),
            TableError::UnknownType { .. } => {
                "use a name of numpy or ml_dtypes, such as float32, bfloat16, int64 or float8_e4m3fn".into()
            }
            TableError::NoTensor { .. } => "use a name that the table has".into(),
            TableError::Slice { .. } => {
                "give one range inside of each dimension, at whole bytes where elements are smaller".into()
            }
            TableError::TooManyPieces => "slice outer dimensions, or read the tensor whole".into(),
            TableError::Align { .. } => format!("use a power of two, at most {MAX_ALIGN}").into(),
            TableError::Description { most, .. } => {
                format!("use shorter names, or fewer tensors: {most} bytes are the most").into()
            }
            TableError::Shards { most, .. } => format!("use 1 to {most}").into(),
        })
    }
}

/// Named tensors, laid out one after the other in one flat space.
///
/// Each tensor begins at a multiple of its element size, and nothing else separates them: a table of one element type
/// is one dense array. [`TableBuilder::align`] has each tensor begin at a multiple of more bytes.
///
/// ```
/// use slackline::{ElementType, Table};
/// let table = Table::builder()
///     .tensor("linear.weight", &[10, 64], ElementType::F32)
///     .tensor("linear.bias", &[10], ElementType::F32)
///     .build()?;
/// assert_eq!(table.bytes(), 650 * 4);
/// assert_eq!(table.tensors()[1].range(), 2560..2600);
/// # Ok::<(), slackline::TableError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "TableBuilder", into = "TableBuilder")]
pub struct Table {
    tensors: Vec<Tensor>,
    /// The indices of the tensors, by their names.
    by_name: Vec<u32>,
    align: u64,
    bytes: u64,
}

impl Table {
    /// Begins a table.
    pub fn builder() -> TableBuilder {
        TableBuilder { tensors: Vec::new(), align: 1 }
    }

    /// A table of one unnamed array: `elements` elements of one type, as benchmarks and tests use.
    ///
    /// # Errors
    /// `elements` is 0 ([`TableError::Empty`]), or so many do not fit an address space ([`TableError::TooLarge`]).
    pub fn flat(elements: u64, element: ElementType) -> Result<Table, TableError> {
        Table::builder().tensor("parameters", &[elements], element).build()
    }

    /// The tensors, in order.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The tensor of this name.
    pub(crate) fn tensor(&self, name: &str) -> Option<&Tensor> {
        let tensor = |index: &u32| &self.tensors[*index as usize];
        let found = self.by_name.binary_search_by(|index| tensor(index).name.as_str().cmp(name)).ok()?;
        Some(tensor(&self.by_name[found]))
    }

    /// Bytes of the flat space.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The element type, if all tensors have the same and nothing lies between them.
    #[doc(hidden)]
    pub fn dense_element(&self) -> Option<ElementType> {
        let first = self.tensors.first()?.element;
        let filled: u64 = self.tensors.iter().map(|tensor| tensor.range().end - tensor.range().start).sum();
        let is_dense = filled == self.bytes && self.tensors.iter().all(|tensor| tensor.element == first);
        is_dense.then_some(first)
    }

    /// The byte range of each of `shards` shards: equal to within a cache line, in order, none empty.
    #[doc(hidden)]
    pub fn shards(&self, shards: usize) -> Result<Vec<Range<u64>>, TableError> {
        let lines = self.bytes.div_ceil(SHARD_ALIGN);
        if shards == 0 || shards as u64 > lines {
            return Err(TableError::Shards { shards, bytes: self.bytes, most: lines });
        }
        let shards = shards as u64;
        let cut =
            |index: u64| (u128::from(lines) * u128::from(index) / u128::from(shards)) as u64 * SHARD_ALIGN;
        Ok((0..shards).map(|index| cut(index)..cut(index + 1).min(self.bytes)).collect())
    }

    fn lay_out(TableBuilder { tensors, align }: TableBuilder) -> Result<Table, TableError> {
        if tensors.len() > MAX_TENSORS {
            return Err(TableError::TooManyTensors { count: tensors.len() });
        }
        if !align.is_power_of_two() || align > MAX_ALIGN {
            return Err(TableError::Align { align });
        }
        let mut by_name: Vec<u32> = (0..).take(tensors.len()).collect();
        let name = |index: u32| tensors[index as usize].name.as_str();
        by_name.sort_unstable_by_key(|index| name(*index));
        if let Some(pair) = by_name.windows(2).find(|pair| name(pair[0]) == name(pair[1])) {
            return Err(TableError::DuplicateName { name: name(pair[0]).to_owned() });
        }
        let mut table = Table { tensors: Vec::with_capacity(tensors.len()), by_name, align, bytes: 0 };
        for mut tensor in tensors {
            let align = align.max(tensor.element.bytes() as u64);
            let end = table.bytes.checked_next_multiple_of(align).and_then(|offset| {
                tensor.offset = offset;
                let elements =
                    tensor.shape.iter().try_fold(1u64, |product, side| product.checked_mul(*side))?;
                offset.checked_add(tensor.element.bytes_of(elements)?)
            });
            match end {
                Some(end) if end <= isize::MAX as u64 => table.bytes = end,
                _ => return Err(TableError::TooLarge { name: tensor.name, shape: tensor.shape }),
            }
            table.tensors.push(tensor);
        }
        if table.bytes == 0 { Err(TableError::Empty) } else { Ok(table) }
    }
}

impl TryFrom<TableBuilder> for Table {
    type Error = TableError;

    /// Lays the tensors out again: offsets that came from a peer are not believed.
    fn try_from(builder: TableBuilder) -> Result<Self, TableError> {
        Table::lay_out(builder)
    }
}

impl From<Table> for TableBuilder {
    fn from(table: Table) -> Self {
        TableBuilder { tensors: table.tensors, align: table.align }
    }
}

/// Collects the tensors of a [`Table`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TableBuilder {
    tensors: Vec<Tensor>,
    align: u64,
}

impl TableBuilder {
    /// Adds a tensor after the ones before.
    pub fn tensor(mut self, name: impl Into<String>, shape: &[u64], element: ElementType) -> Self {
        self.tensors.push(Tensor { name: name.into(), shape: shape.to_vec(), element, offset: 0 });
        self
    }

    /// Aligns each tensor to a multiple of `bytes`, a power of two of at most 4096: DLPack asks for 256, and 64 is a
    /// cache line. A server's table stays as it is by default, dense.
    pub fn align(mut self, bytes: u64) -> Self {
        self.align = bytes;
        self
    }

    /// Lays them out.
    ///
    /// # Errors
    /// There are no bytes in it ([`TableError::Empty`]); there are more than 65,536 tensors
    /// ([`TableError::TooManyTensors`]) or two of one name ([`TableError::DuplicateName`]); they do not fit an address
    /// space ([`TableError::TooLarge`]); the alignment is no power of two up to 4096 ([`TableError::Align`]).
    pub fn build(self) -> Result<Table, TableError> {
        Table::lay_out(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn mixed_types_are_aligned_to_their_own_size() {
        let table = Table::builder()
            .tensor("a", &[3], ElementType::Bf16)
            .tensor("b", &[2], ElementType::F32)
            .tensor("scalar", &[], ElementType::F16)
            .build()
            .unwrap();
        let ranges: Vec<_> = table.tensors().iter().map(Tensor::range).collect();
        assert_eq!(ranges, [0..6, 8..16, 16..18]);
        assert_eq!(table.dense_element(), None);
    }

    #[test]
    fn tensors_begin_where_the_table_says_and_a_peer_lays_them_out_alike() {
        let table = Table::builder()
            .tensor("flags", &[3], ElementType::Bool)
            .tensor("packed", &[5], ElementType::F4E2M1Fn)
            .tensor("steps", &[2], ElementType::I64)
            .align(256)
            .build()
            .unwrap();
        let ranges: Vec<_> = table.tensors().iter().map(Tensor::range).collect();
        assert_eq!(ranges, [0..3, 256..259, 512..528]);
        assert_eq!(table.bytes(), 528);
        let sent = postcard::to_allocvec(&table).unwrap();
        assert_eq!(postcard::from_bytes(&sent), Ok(table));
    }

    #[test]
    fn each_tensor_is_found_by_its_name_and_no_other_is() {
        let names = ["w", "b", "", "a", "w2"];
        let add = |table: TableBuilder, name: &&str| table.tensor(*name, &[1], ElementType::F32);
        let table = names.iter().fold(Table::builder(), add).build().unwrap();
        for (name, tensor) in names.iter().zip(table.tensors()) {
            assert_eq!(table.tensor(name), Some(tensor));
        }
        assert_eq!(table.tensor("c"), None);
    }

    #[test]
    fn tables_that_cannot_be_are_errors() {
        let one = |shape: &[u64]| Table::builder().tensor("a", shape, ElementType::F32).build();
        assert_eq!(one(&[0]), Err(TableError::Empty));
        assert!(matches!(one(&[u64::MAX, 2]), Err(TableError::TooLarge { .. })));
        assert!(matches!(one(&[1 << 62]), Err(TableError::TooLarge { .. })));
        let twice = Table::builder().tensor("a", &[1], ElementType::F32).tensor("a", &[1], ElementType::F32);
        assert!(matches!(twice.build(), Err(TableError::DuplicateName { .. })));
        for align in [0, 3, 8192] {
            let aligned = Table::builder().tensor("a", &[1], ElementType::F32).align(align);
            assert_eq!(aligned.build(), Err(TableError::Align { align }));
        }
        assert!(Table::flat(16, ElementType::F32).unwrap().shards(2).is_err());
        assert!(Table::flat(16, ElementType::F32).unwrap().shards(0).is_err());
    }

    proptest! {
        #[test]
        fn shards_cover_the_table_once_and_in_order(elements in 1u64..100_000, shards in 1usize..50) {
            let table = Table::flat(elements, ElementType::F32).unwrap();
            if let Ok(ranges) = table.shards(shards) {
                prop_assert_eq!(ranges[0].start, 0);
                prop_assert_eq!(ranges.last().unwrap().end, table.bytes());
                for pair in ranges.windows(2) {
                    prop_assert_eq!(pair[0].end, pair[1].start);
                }
                for range in ranges {
                    prop_assert!(range.start < range.end);
                    prop_assert_eq!(range.start % SHARD_ALIGN, 0);
                }
            }
        }
    }
}
