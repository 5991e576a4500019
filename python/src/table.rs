//! Tables from arrays or from a list of their names, types and shapes.

use std::collections::HashMap;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use slackline::Table;

use crate::dtype::{self, Dtype};
use crate::errors::{Class, Failure};
use crate::source::Foreign;

/// One tensor of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spec {
    pub(crate) name: String,
    pub(crate) dtype: &'static Dtype,
    pub(crate) shape: Vec<isize>,
    /// In bytes, in C order.
    pub(crate) strides: Vec<isize>,
    /// Where it begins in the table.
    pub(crate) offset: usize,
}

impl Spec {
    pub(crate) fn bytes(&self) -> usize {
        self.shape.iter().product::<isize>() as usize * self.dtype.bytes()
    }
}

/// The tensors of a table, by number and by name.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) specs: Vec<Arc<Spec>>,
    index: HashMap<String, usize>,
}

impl Layout {
    pub(crate) fn of(table: &Table) -> Result<Arc<Layout>, Failure> {
        let mut specs = Vec::with_capacity(table.tensors().len());
        for tensor in table.tensors() {
            let dtype = Dtype::of(tensor.element())?;
            let shape: Vec<usize> = tensor.shape().iter().map(|side| *side as usize).collect();
            specs.push(Arc::new(Spec {
                name: tensor.name().into(),
                dtype,
                strides: crate::source::c_strides(&shape, dtype.bytes()),
                shape: shape.iter().map(|side| *side as isize).collect(),
                offset: tensor.range().start as usize,
            }));
        }
        let index = specs.iter().enumerate().map(|(index, spec)| (spec.name.clone(), index)).collect();
        Ok(Arc::new(Layout { specs, index }))
    }

    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        self.index.get(name).copied()
    }

    /// What users see of it.
    pub(crate) fn metadata(&self) -> Vec<TensorSpec> {
        self.specs.iter().map(|spec| TensorSpec(Arc::clone(spec))).collect()
    }

    /// Takes one array for each of the tensors, which must fit it.
    pub(crate) fn arrays(&self, tensors: &Bound<'_, PyAny>, operation: &str) -> PyResult<Vec<Foreign>> {
        let refuse = |cause: String| {
            let remedy = "give the names, types and shapes of the table";
            PyErr::from(Failure::new(Class::LayoutMismatch, operation, cause, remedy))
        };
        let mut found: Vec<Option<Foreign>> = self.specs.iter().map(|_| None).collect();
        for pair in tensors.call_method0("items")?.try_iter()? {
            let (name, array): (String, Bound<'_, PyAny>) = pair?.extract()?;
            let index = self.find(&name).ok_or_else(|| refuse(format!("the table has no tensor {name:?}")))?;
            let array = Foreign::get(&array)?;
            let spec = &self.specs[index];
            let fits = array.shape.iter().map(|side| *side as isize).eq(spec.shape.iter().copied());
            if !spec.dtype.takes(array.dtype) || !fits {
                return Err(refuse(format!(
                    "{name:?} is {} {:?}, and an array of {} {:?} was given",
                    spec.dtype.name, spec.shape, array.dtype.name, array.shape
                )));
            }
            found[index] = Some(array);
        }
        let mut arrays = Vec::with_capacity(found.len());
        for (array, spec) in found.into_iter().zip(&self.specs) {
            arrays.push(array.ok_or_else(|| refuse(format!("there is no array for {:?}", spec.name)))?);
        }
        Ok(arrays)
    }
}

/// Name, element type and shape of one tensor of a table.
///
/// `dtype` is a name such as "float32", "int64", "bfloat16" or "float8_e4m3fn" (or an object of that name, such as
/// `torch.bfloat16`); `shape` is in elements, outermost dimension first, and () for a scalar.
#[pyclass(frozen, eq, module = "slackline")]
#[derive(Clone, PartialEq)]
pub(crate) struct TensorSpec(pub(crate) Arc<Spec>);

#[pymethods]
impl TensorSpec {
    #[new]
    fn new(name: String, dtype: &Bound<'_, PyAny>, shape: Vec<usize>) -> PyResult<TensorSpec> {
        let text = dtype.str()?.to_string_lossy().into_owned();
        let dtype = Dtype::named(&text).ok_or_else(|| dtype::unknown(&text))?;
        let strides = crate::source::c_strides(&shape, dtype.bytes());
        let shape = shape.into_iter().map(|side| side as isize).collect();
        Ok(TensorSpec(Arc::new(Spec { name, dtype, shape, strides, offset: 0 })))
    }

    /// The name.
    #[getter]
    fn name(&self) -> &str {
        &self.0.name
    }

    /// The name of the element type.
    #[getter]
    fn dtype(&self) -> &str {
        self.0.dtype.name
    }

    /// The shape, in elements.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.0.shape)
    }

    /// The size in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.0.bytes()
    }

    fn __repr__(&self) -> String {
        format!("TensorSpec({:?}, {:?}, {:?})", self.0.name, self.0.dtype.name, self.0.shape)
    }
}

/// Makes a table of a mapping of names to arrays, or of a sequence of [`TensorSpec`]. For a mapping it also returns the
/// arrays, in order.
pub(crate) fn table(given: &Bound<'_, PyAny>) -> PyResult<(Table, Vec<Foreign>)> {
    let mut builder = Table::builder();
    let mut arrays = Vec::new();
    if given.hasattr("items")? {
        for pair in given.call_method0("items")?.try_iter()? {
            let (name, array): (String, Bound<'_, PyAny>) = pair?.extract()?;
            let array = Foreign::get(&array)?;
            let shape: Vec<u64> = array.shape.iter().map(|side| *side as u64).collect();
            builder = builder.tensor(name, &shape, array.dtype.element()?);
            arrays.push(array);
        }
    } else {
        for spec in given.try_iter()? {
            let spec = spec?;
            let TensorSpec(spec) = &*spec.cast::<TensorSpec>().map_err(PyErr::from)?.get();
            let shape: Vec<u64> = spec.shape.iter().map(|side| *side as u64).collect();
            builder = builder.tensor(&spec.name, &shape, spec.dtype.element()?);
        }
    }
    Ok((builder.build().map_err(Failure::from)?, arrays))
}
