//! The two tasks that there are models for, and the examples of each.

use std::path::Path;

use super::{DataError, Dataset, Entries, Split, digits, entries, load, read};

/// The kinds of tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskKind {
    /// Tell the class of an example.
    Classes,
    /// Tell the value of an entry of a matrix.
    Values,
}

/// A task: the examples to train on, and others to judge the model by.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// The examples to train on.
    pub train: TaskPart,
    /// The examples to judge the model by, of the same kind.
    pub test: TaskPart,
}

/// The examples of one part of a task.
#[derive(Clone, Debug, PartialEq)]
pub enum TaskPart {
    /// Examples with a class each.
    Classes(Dataset),
    /// Entries of a matrix.
    Values(Entries),
}

/// Examples of either kind, borrowed.
#[derive(Clone, Copy, Debug)]
pub enum Examples<'a> {
    /// Examples with a class each.
    Classes(&'a Dataset),
    /// Entries of a matrix.
    Values(&'a Entries),
}

impl Task {
    /// Reads a task of this kind from a file as [`load`] does, or takes the one that comes with the program: the
    /// [`digits`], or a matrix of 60 x 40 and rank 4 without noise.
    ///
    /// Entries of a matrix are told by a CSV file with row, column and value in a line (a fourth value, such as the
    /// time of a rating, is not used), or by a LIBSVM file with a row of the matrix in a line: its number, and
    /// `column:value` for each known entry. Rows and columns may have any whole numbers, which are mapped to 0, 1, 2,
    /// ... in ascending order. Values stay as they are.
    ///
    /// # Errors
    ///
    /// As [`load`].
    pub fn load(kind: TaskKind, path: Option<&Path>) -> Result<Task, DataError> {
        Ok(match kind {
            TaskKind::Classes => path.map_or_else(|| Ok(digits()), load)?.into(),
            TaskKind::Values => {
                let (train, test) = match path {
                    Some(path) => entries::parse(path, &read(path)?)?,
                    None => entries::matrix(),
                };
                Task { train: TaskPart::Values(train), test: TaskPart::Values(test) }
            }
        })
    }
}

impl From<Split> for Task {
    fn from(split: Split) -> Task {
        Task { train: TaskPart::Classes(split.train), test: TaskPart::Classes(split.test) }
    }
}

impl TaskPart {
    /// The same examples, borrowed.
    pub fn examples(&self) -> Examples<'_> {
        match self {
            TaskPart::Classes(data) => Examples::Classes(data),
            TaskPart::Values(entries) => Examples::Values(entries),
        }
    }
}

impl<'a> Examples<'a> {
    /// The number of examples.
    pub fn count(self) -> usize {
        self.groups().len()
    }

    /// What a model is given and what it gives: values per example and classes, or rows and columns of the matrix.
    pub fn shape(self) -> (usize, usize) {
        match self {
            Examples::Classes(data) => (data.columns, data.classes),
            Examples::Values(entries) => (entries.rows, entries.columns),
        }
    }

    /// The group of each example by which examples are dealt out to workers: its class, or the row of the matrix.
    pub fn groups(self) -> &'a [u32] {
        match self {
            Examples::Classes(data) => &data.labels,
            Examples::Values(entries) => &entries.row_numbers,
        }
    }
}

impl<'a> From<&'a Dataset> for Examples<'a> {
    fn from(data: &'a Dataset) -> Examples<'a> {
        Examples::Classes(data)
    }
}

impl<'a> From<&'a Entries> for Examples<'a> {
    fn from(entries: &'a Entries) -> Examples<'a> {
        Examples::Values(entries)
    }
}

impl<'a> From<&'a TaskPart> for Examples<'a> {
    fn from(part: &'a TaskPart) -> Examples<'a> {
        part.examples()
    }
}
