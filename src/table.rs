//! Tables: named tensors laid out in one flat space, and the shards it is cut into.
//!
//! Pure: names, shapes, types and offsets; no memory.
#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::diagnostic::{Diagnostic, remedy_of};

/// Most tensors in a table.
pub const MAX_TENSORS: usize = 1 << 16;

/// Shards are cut at multiples of this many bytes: one cache line.
pub const SHARD_ALIGN: u64 = 64;

/// Type of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ElementType {
    /// IEEE 754 single precision.
    F32,
    /// bfloat16: the upper half of an `F32`.
    Bf16,
    /// IEEE 754 half precision.
    F16,
}

impl ElementType {
    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            ElementType::F32 => 4,
            ElementType::Bf16 | ElementType::F16 => 2,
        }
    }
}

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
        self.offset..self.offset + self.elements() * self.element.bytes() as u64
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
            TableError::Shards { most, .. } => format!("use 1 to {most}").into(),
        })
    }
}

/// Named tensors, laid out one after the other in one flat space.
///
/// Each tensor begins at a multiple of its element size, and nothing else separates them: a table of one element type
/// is one dense array.
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
#[serde(try_from = "Vec<Tensor>", into = "Vec<Tensor>")]
pub struct Table {
    tensors: Vec<Tensor>,
    bytes: u64,
}

impl Table {
    /// Begins a table.
    pub fn builder() -> TableBuilder {
        TableBuilder { tensors: Vec::new() }
    }

    /// A table of one unnamed array: `elements` elements of one type, as benchmarks and tests use.
    pub fn flat(elements: u64, element: ElementType) -> Result<Table, TableError> {
        Table::builder().tensor("parameters", &[elements], element).build()
    }

    /// The tensors, in order.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// Bytes of the flat space.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The element type, if all tensors have the same.
    #[doc(hidden)]
    pub fn uniform_element(&self) -> Option<ElementType> {
        let first = self.tensors.first()?.element;
        self.tensors.iter().all(|tensor| tensor.element == first).then_some(first)
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

    fn lay_out(tensors: Vec<Tensor>) -> Result<Table, TableError> {
        if tensors.len() > MAX_TENSORS {
            return Err(TableError::TooManyTensors { count: tensors.len() });
        }
        let mut table = Table { tensors: Vec::with_capacity(tensors.len()), bytes: 0 };
        let mut names = std::collections::HashSet::with_capacity(tensors.len());
        for mut tensor in tensors {
            if !names.insert(tensor.name.clone()) {
                return Err(TableError::DuplicateName { name: tensor.name });
            }
            let size = tensor.element.bytes() as u64;
            let end = table.bytes.checked_next_multiple_of(size).and_then(|offset| {
                tensor.offset = offset;
                let elements =
                    tensor.shape.iter().try_fold(1u64, |product, side| product.checked_mul(*side))?;
                offset.checked_add(elements.checked_mul(size)?)
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

impl TryFrom<Vec<Tensor>> for Table {
    type Error = TableError;

    /// Lays the tensors out again: offsets that came from a peer are not believed.
    fn try_from(tensors: Vec<Tensor>) -> Result<Self, TableError> {
        Table::lay_out(tensors)
    }
}

impl From<Table> for Vec<Tensor> {
    fn from(table: Table) -> Self {
        table.tensors
    }
}

/// Collects the tensors of a [`Table`].
#[derive(Clone, Debug)]
pub struct TableBuilder {
    tensors: Vec<Tensor>,
}

impl TableBuilder {
    /// Adds a tensor after the ones before.
    pub fn tensor(mut self, name: impl Into<String>, shape: &[u64], element: ElementType) -> Self {
        self.tensors.push(Tensor { name: name.into(), shape: shape.to_vec(), element, offset: 0 });
        self
    }

    /// Lays them out.
    pub fn build(self) -> Result<Table, TableError> {
        Table::lay_out(self.tensors)
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
        assert_eq!(table.uniform_element(), None);
    }

    #[test]
    fn tables_that_cannot_be_are_errors() {
        let one = |shape: &[u64]| Table::builder().tensor("a", shape, ElementType::F32).build();
        assert_eq!(one(&[0]), Err(TableError::Empty));
        assert!(matches!(one(&[u64::MAX, 2]), Err(TableError::TooLarge { .. })));
        assert!(matches!(one(&[1 << 62]), Err(TableError::TooLarge { .. })));
        let twice = Table::builder().tensor("a", &[1], ElementType::F32).tensor("a", &[1], ElementType::F32);
        assert!(matches!(twice.build(), Err(TableError::DuplicateName { .. })));
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
