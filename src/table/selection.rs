//! A part of a table: which bytes to read, and where each of them goes.

use std::ops::Range;
use std::sync::Arc;

use super::{MAX_TENSORS, Table, TableBuilder, TableError};

/// Most pieces of a selection: each is a request of its own.
pub const MAX_PIECES: usize = 1 << 16;

/// Longest piece: as long as a request may be over any transport.
const PIECE_BYTES: u64 = 1 << 30;

/// Bytes that lie one after the other in the table and in the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its begin in the table.
    pub from: u64,
    /// Its begin in the copy.
    pub to: u64,
    /// Its length.
    pub bytes: u64,
}

/// Tensors of a table, or slices of them, that a reader wants: a plan for resharding, made once and used in each pull.
///
/// The copy is a table of its own: the selected tensors in the order of their selection, each with the shape of its
/// slice, aligned as the tensors of the whole table are.
///
/// ```
/// use slackline::{ElementType, Selection, Table};
/// let table = Table::builder()
///     .tensor("embed", &[1000, 64], ElementType::Bf16)
///     .tensor("head", &[64, 32], ElementType::Bf16)
///     .align(256)
///     .build()?;
/// // The second half of the rows of one tensor, the first quarter of the columns of the other.
/// let selection = Selection::of(&table).slice("embed", &[500..1000, 0..64]).slice("head", &[0..64, 0..8]).build()?;
/// assert_eq!(selection.table().tensors()[0].shape(), [500, 64]);
/// assert_eq!(selection.table().bytes(), 64_000 + 1_024);
/// # Ok::<(), slackline::TableError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// The table that it was made of.
    of: Table,
    table: Table,
    pieces: Arc<[Piece]>,
}

impl Selection {
    /// Begins a selection of tensors of `table`.
    pub fn of(table: &Table) -> SelectionBuilder<'_> {
        SelectionBuilder { table, slices: Vec::new() }
    }

    /// The copy as a table: the selected tensors with their shapes, one after the other.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// True if it was made of this table, or of a table with the same layout.
    pub(crate) fn is_of(&self, table: &Table) -> bool {
        self.of == *table
    }

    /// The pieces, and the bytes of the copy.
    pub(crate) fn plan(&self) -> (Arc<[Piece]>, u64) {
        (self.pieces.clone(), self.table.bytes())
    }

    /// The pieces, in the order of the copy.
    #[doc(hidden)]
    pub fn pieces(&self) -> &Arc<[Piece]> {
        &self.pieces
    }
}

/// Collects the slices of a [`Selection`].
#[derive(Clone, Debug)]
pub struct SelectionBuilder<'a> {
    table: &'a Table,
    slices: Vec<(&'a str, Option<Vec<Range<u64>>>)>,
}

impl<'a> SelectionBuilder<'a> {
    /// Adds a whole tensor.
    pub fn tensor(mut self, name: &'a str) -> Self {
        self.slices.push((name, None));
        self
    }

    /// Adds a slice of a tensor: a range of indices for each dimension, outermost first.
    pub fn slice(mut self, name: &'a str, ranges: &[Range<u64>]) -> Self {
        self.slices.push((name, Some(ranges.to_vec())));
        self
    }

    /// Makes the plan.
    ///
    /// # Errors
    /// A name that the table has not or that is selected twice, a range outside of its dimension, elements of less than
    /// a byte that do not begin and end at whole bytes, more pieces than 65,536, or nothing selected.
    pub fn build(self) -> Result<Selection, TableError> {
        let mut copy = Table::builder().align(self.table.align);
        let mut sources = Vec::with_capacity(self.slices.len().min(MAX_TENSORS));
        for (name, ranges) in self.slices {
            let no_tensor = || TableError::NoTensor { name: name.into() };
            let tensor = self.table.tensor(name).ok_or_else(no_tensor)?;
            let ranges = ranges.unwrap_or_else(|| tensor.shape.iter().map(|side| 0..*side).collect());
            let is_inside =
                |(range, side): (&Range<u64>, &u64)| range.start <= range.end && range.end <= *side;
            if ranges.len() != tensor.shape.len() || !ranges.iter().zip(&tensor.shape).all(is_inside) {
                return Err(TableError::Slice { name: name.into(), ranges, shape: tensor.shape.clone() });
            }
            let shape: Vec<u64> = ranges.iter().map(|range| range.end - range.start).collect();
            copy = copy.tensor(name, &shape, tensor.element);
            sources.push((tensor, ranges));
        }
        let table = TableBuilder::build(copy)?;
        let mut pieces = Vec::new();
        for ((tensor, ranges), target) in sources.into_iter().zip(&table.tensors) {
            // The sides of a tensor without elements may have a product that no number holds.
            if target.elements() == 0 {
                continue;
            }
            let bits = tensor.element.bits() as u128;
            let (run, starts) = runs(&tensor.shape, &ranges);
            let mut to = target.offset;
            for start in starts {
                let (begin, length) = (u128::from(start) * bits, u128::from(run) * bits);
                if !begin.is_multiple_of(8) || !length.is_multiple_of(8) && run != tensor.elements() {
                    let (name, shape) = (tensor.name.clone(), tensor.shape.clone());
                    return Err(TableError::Slice { name, ranges, shape });
                }
                // The table was laid out only if its bytes can be counted.
                let (begin, bytes) = ((begin / 8) as u64, length.div_ceil(8) as u64);
                push(&mut pieces, Piece { from: tensor.offset + begin, to, bytes })?;
                to += bytes;
            }
        }
        Ok(Selection { of: self.table.clone(), table, pieces: pieces.into() })
    }
}

/// The runs of elements that lie one after the other in a slice: their common length and the index at which each
/// begins.
fn runs(shape: &[u64], ranges: &[Range<u64>]) -> (u64, impl Iterator<Item = u64> + use<>) {
    // The innermost dimensions that are taken whole belong to one run, and so does the range before them.
    let whole = shape.iter().zip(ranges).rev().take_while(|(side, range)| **range == (0..**side)).count();
    let outer = shape.len().saturating_sub(whole + 1);
    let row: u64 = shape[outer.min(shape.len())..].iter().skip(1).product();
    let (begin, length) =
        ranges.get(outer).map_or((0, 1), |range| (range.start * row, (range.end - range.start) * row));
    let outer_ranges: Vec<(u64, Range<u64>)> = (0..outer)
        .map(|dimension| (shape[dimension + 1..].iter().product(), ranges[dimension].clone()))
        .collect();
    let is_empty = length == 0;
    let count: u64 = outer_ranges.iter().map(|(_, range)| range.end - range.start).product();
    let starts = (0..if is_empty { 0 } else { count }).map(move |mut index| {
        let mut start = begin;
        for (stride, range) in outer_ranges.iter().rev() {
            let side = range.end - range.start;
            start += (range.start + index % side) * stride;
            index /= side;
        }
        start
    });
    (length, starts)
}

/// Adds a piece, joined to the one before where both go on, and cut where it is too long for one request.
fn push(pieces: &mut Vec<Piece>, piece: Piece) -> Result<(), TableError> {
    let mut piece = piece;
    if let Some(last) = pieces.last_mut()
        && last.from + last.bytes == piece.from
        && last.to + last.bytes == piece.to
        && last.bytes + piece.bytes <= PIECE_BYTES
    {
        last.bytes += piece.bytes;
        return Ok(());
    }
    while piece.bytes > 0 {
        if pieces.len() == MAX_PIECES {
            return Err(TableError::TooManyPieces);
        }
        let bytes = piece.bytes.min(PIECE_BYTES);
        pieces.push(Piece { bytes, ..piece });
        piece = Piece { from: piece.from + bytes, to: piece.to + bytes, bytes: piece.bytes - bytes };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::ElementType;
    use super::*;
    use proptest::prelude::*;

    fn table() -> Table {
        Table::builder()
            .tensor("scalar", &[], ElementType::F64)
            .tensor("cube", &[4, 3, 5], ElementType::I16)
            .tensor("packed", &[8, 4], ElementType::F4E2M1Fn)
            .align(64)
            .build()
            .unwrap()
    }

    #[test]
    fn a_selection_that_cannot_be_is_an_error() {
        let table = table();
        let of = || Selection::of(&table);
        assert_eq!(of().build(), Err(TableError::Empty));
        assert!(matches!(of().tensor("other").build(), Err(TableError::NoTensor { .. })));
        assert!(matches!(of().tensor("cube").tensor("cube").build(), Err(TableError::DuplicateName { .. })));
        for ranges in [&[0..4, 0..3][..], &[0..5, 0..3, 0..5], &[0..4, 0..3, 0..6]] {
            assert!(matches!(of().slice("cube", ranges).build(), Err(TableError::Slice { .. })));
        }
        let half_a_byte = of().slice("packed", &[0..8, 1..3]).build();
        assert!(matches!(half_a_byte, Err(TableError::Slice { .. })), "{half_a_byte:?}");
        let rows = Table::flat(1, ElementType::U8).unwrap();
        assert_eq!(Selection::of(&rows).tensor("parameters").build().unwrap().pieces().len(), 1);
        let many = Table::builder().tensor("a", &[70_000, 2], ElementType::U8).build().unwrap();
        let columns = Selection::of(&many).slice("a", &[0..70_000, 0..1]).build();
        assert_eq!(columns, Err(TableError::TooManyPieces));
    }

    #[test]
    fn tensors_without_elements_are_selected_and_have_no_pieces() {
        let table = Table::builder()
            .tensor("a", &[3], ElementType::U8)
            .tensor("none", &[0, 1 << 40, 1 << 40], ElementType::F64)
            .align(256)
            .build()
            .unwrap();
        let selection = Selection::of(&table).tensor("a").tensor("none").build().unwrap();
        assert_eq!(selection.pieces()[..], [Piece { from: 0, to: 0, bytes: 3 }]);
        assert_eq!(selection.plan().1, selection.table().bytes());
    }

    #[test]
    fn neighbours_are_read_at_once_and_long_pieces_are_cut() {
        let table = table();
        let halves = Selection::of(&table).slice("cube", &[1..3, 0..3, 0..5]).build().unwrap();
        assert_eq!(halves.pieces()[..], [Piece { from: 64 + 15 * 2, to: 0, bytes: 60 }]);
        let large = Table::flat(5 << 28, ElementType::U16).unwrap();
        let whole = Selection::of(&large).tensor("parameters").build().unwrap();
        let lengths: Vec<u64> = whole.pieces().iter().map(|piece| piece.bytes).collect();
        assert_eq!(lengths, [1 << 30, 1 << 30, 1 << 29]);
    }

    proptest! {
        /// Against the plain definition of a slice: the elements whose indices are all inside of the ranges, in order.
        #[test]
        fn a_slice_has_the_elements_whose_indices_it_names(
            shape in prop::collection::vec(1u64..5, 0..4),
            cuts in prop::collection::vec((0u64..5, 0u64..5), 4),
        ) {
            let element = ElementType::I32;
            let table = Table::builder()
                .tensor("before", &[3], ElementType::U8)
                .tensor("a", &shape, element)
                .align(64)
                .build()
                .unwrap();
            let ranges: Vec<Range<u64>> = shape.iter().zip(&cuts).map(|(side, (from, to))| {
                let (from, to) = (from % side, to % (side + 1));
                from.min(to)..from.max(to)
            }).collect();
            let wanted: Vec<u64> = (0..shape.iter().product()).filter(|index| {
                let mut rest = *index;
                shape.iter().zip(&ranges).rev().all(|(side, range)| {
                    let at = rest % side;
                    rest /= side;
                    range.contains(&at)
                })
            }).collect();
            let selection = Selection::of(&table).slice("a", &ranges).build();
            if wanted.is_empty() {
                prop_assert_eq!(selection, Err(TableError::Empty));
            } else {
                let selection = selection.unwrap();
                let mut found = vec![u64::MAX; wanted.len()];
                for piece in selection.pieces().iter() {
                    for at in (0..piece.bytes).step_by(4) {
                        found[((piece.to + at) / 4) as usize] = (piece.from + at - 64) / 4;
                    }
                }
                prop_assert_eq!(found, wanted);
            }
        }
    }
}
