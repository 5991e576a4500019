//! Tables from arrays or from a list of their names, types and shapes.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PySlice, PyString, PyTuple};

use slackline::{Selection, Table, Tensor};

use crate::arguments::{arrays_by_name, wrong_type};
use crate::dtype::{self, Dtype};
use crate::errors::{Class, Failure};
use crate::gpu::Streams;
use crate::source::Given;
use crate::view::ArrayView;

/// One tensor of a table.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    pub(crate) name: String,
    pub(crate) dtype: &'static Dtype,
    /// In elements.
    pub(crate) shape: Vec<isize>,
    /// The shape and the strides, in bytes, in which its memory is lent: its own in C order, or that of its bytes if
    /// elements share them.
    pub(crate) lent_shape: Vec<isize>,
    pub(crate) lent_strides: Vec<isize>,
    /// Where it begins in the table.
    pub(crate) offset: usize,
}

impl Spec {
    pub(crate) fn new(name: String, dtype: &'static Dtype, shape: &[usize], offset: usize) -> Spec {
        let shape: Vec<isize> = shape.iter().map(|side| *side as isize).collect();
        let lent_shape = match dtype.is_packed() {
            true => vec![(shape.iter().product::<isize>() * dtype.bits as isize + 7) / 8],
            false => shape.clone(),
        };
        let sides: Vec<usize> = lent_shape.iter().map(|side| *side as usize).collect();
        let lent_strides = crate::source::c_strides(&sides, dtype.bytes());
        Spec { name, dtype, shape, lent_shape, lent_strides, offset }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.lent_shape.iter().product::<isize>() as usize * self.dtype.bytes()
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
            let offset = tensor.range().start as usize;
            specs.push(Arc::new(Spec::new(tensor.name().into(), dtype, &shape, offset)));
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
    pub(crate) fn arrays(
        &self,
        tensors: &Bound<'_, PyAny>,
        operation: &str,
        streams: &Streams,
    ) -> PyResult<Vec<Given>> {
        crate::device::release(tensors.py());
        let refuse = |cause: String| {
            let remedy = "give the names, types and shapes of the table";
            PyErr::from(Failure::new(Class::LayoutMismatch, operation, cause, remedy))
        };
        let mut found: Vec<Option<Given>> = self.specs.iter().map(|_| None).collect();
        for pair in arrays_by_name(tensors)? {
            let (name, array): (String, Bound<'_, PyAny>) = pair?.extract()?;
            let index =
                self.find(&name).ok_or_else(|| refuse(format!("the table has no tensor {name:?}")))?;
            let viewed = ArrayView::spec_of(&array);
            let array = Given::get(&array, streams)?;
            let dtype = viewed.map_or_else(|| array.dtype(), |spec| spec.dtype);
            let spec = &self.specs[index];
            let fits = array.shape().iter().map(|side| *side as isize).eq(spec.lent_shape.iter().copied());
            if !spec.dtype.takes(dtype) || !fits {
                return Err(refuse(format!(
                    "{name:?} is {} {:?}, and an array of {} {:?} was given",
                    spec.dtype.name,
                    spec.lent_shape,
                    dtype.name,
                    array.shape()
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
/// `torch.bfloat16`); `shape` is in elements, outermost dimension first, and () for a scalar. LayoutMismatch if no
/// table has such elements, or so many of them.
#[pyclass(frozen, eq, module = "slackline")]
#[derive(Clone)]
pub(crate) struct TensorSpec(pub(crate) Arc<Spec>);

impl PartialEq for TensorSpec {
    /// Where the two begin in their tables does not count.
    fn eq(&self, TensorSpec(other): &TensorSpec) -> bool {
        let TensorSpec(own) = self;
        (&own.name, own.dtype, &own.shape) == (&other.name, other.dtype, &other.shape)
    }
}

#[pymethods]
impl TensorSpec {
    #[new]
    fn new(name: String, dtype: &Bound<'_, PyAny>, shape: Vec<usize>) -> PyResult<TensorSpec> {
        let text = dtype.str()?.to_string_lossy().into_owned();
        let dtype = Dtype::named(&text).ok_or_else(|| dtype::unknown(&text))?;
        // Sides without elements count as one: strides are products of all of them.
        let mut sides = shape.iter().map(|side| (*side).max(1));
        let bits = sides.try_fold(usize::from(dtype.bits), usize::checked_mul);
        if bits.is_none_or(|bits| bits > isize::MAX as usize) {
            let (cause, remedy) =
                (format_args!("{name:?} of shape {shape:?} is too large"), "give it fewer elements");
            return Err(Failure::new(Class::LayoutMismatch, "laying out the table", cause, remedy).into());
        }
        Ok(TensorSpec(Arc::new(Spec::new(name, dtype, &shape, 0))))
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

/// Makes a table of a mapping of names to arrays, or of a sequence of [`TensorSpec`], with each tensor at a multiple of
/// `align` bytes. For a mapping it also returns the arrays, in order.
pub(crate) fn table(given: &Bound<'_, PyAny>, align: u64) -> PyResult<(Table, Vec<Given>)> {
    let streams = Streams::new(None, None)?;
    let mut builder = Table::builder().align(align);
    let mut arrays = Vec::new();
    if given.hasattr("items")? {
        for pair in given.call_method0("items")?.try_iter()? {
            let (name, array): (String, Bound<'_, PyAny>) = pair?.extract()?;
            let viewed = ArrayView::spec_of(&array);
            let array = Given::get(&array, &streams)?;
            let (shape, dtype): (Vec<u64>, _) = match &viewed {
                Some(spec) => (spec.shape.iter().map(|side| *side as u64).collect(), spec.dtype),
                None => (array.shape().iter().map(|side| *side as u64).collect(), array.dtype()),
            };
            builder = builder.tensor(name, &shape, dtype.element()?);
            arrays.push(array);
        }
    } else {
        for spec in given.try_iter()? {
            let spec = spec?;
            let TensorSpec(spec) = spec.cast::<TensorSpec>().map_err(PyErr::from)?.get();
            let shape: Vec<u64> = spec.shape.iter().map(|side| *side as u64).collect();
            builder = builder.tensor(&spec.name, &shape, spec.dtype.element()?);
        }
    }
    Ok((builder.build().map_err(Failure::from)?, arrays))
}

/// The part of a table that is selected: by a sequence of names, or by a mapping of names to slices or None.
pub(crate) fn selection(table: &Table, given: &Bound<'_, PyAny>) -> PyResult<Selection> {
    let mut parts: Vec<(String, Option<Vec<Range<u64>>>)> = Vec::new();
    if given.hasattr("items")? {
        for pair in given.call_method0("items")?.try_iter()? {
            let (name, slices): (String, Option<Vec<Bound<'_, PySlice>>>) = pair?.extract()?;
            let shape = table.tensors().iter().find(|tensor| tensor.name() == name).map(Tensor::shape);
            // A name that is not there has no slices that could be wrong.
            let ranges = slices.zip(shape).map(|(slices, shape)| ranges(&slices, shape)).transpose()?;
            parts.push((name, ranges));
        }
    } else if given.is_instance_of::<PyString>() {
        // It is a sequence of names, too.
        return Err(wrong_type(given, "give a list of names, or a mapping of names to slices"));
    } else {
        for name in given.try_iter()? {
            parts.push((name?.extract()?, None));
        }
    }
    let builder = parts.iter().fold(Selection::of(table), |builder, (name, ranges)| match ranges {
        Some(ranges) => builder.slice(name, ranges),
        None => builder.tensor(name),
    });
    Ok(builder.build().map_err(Failure::from)?)
}

/// The ranges of indices that slices mean in a tensor of this shape.
fn ranges(slices: &[Bound<'_, PySlice>], shape: &[u64]) -> PyResult<Vec<Range<u64>>> {
    let range = |(slice, side): (&Bound<'_, PySlice>, &u64)| {
        let indices = slice.indices(*side as isize)?;
        if indices.step != 1 {
            let cause = format_args!("a slice has step {}", indices.step);
            return Err(Failure::new(Class::LayoutMismatch, "selecting", cause, "use step 1").into());
        }
        let start = indices.start as u64;
        Ok(start..start + indices.slicelength as u64)
    };
    if slices.len() != shape.len() {
        let cause = format_args!("{} slices were given for {} dimensions", slices.len(), shape.len());
        let remedy = "give one for each dimension";
        return Err(Failure::new(Class::LayoutMismatch, "selecting", cause, remedy).into());
    }
    slices.iter().zip(shape).map(range).collect()
}
