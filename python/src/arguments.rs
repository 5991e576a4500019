//! Arguments whose wrong types are refused in Python's words.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyIterator, PyString};

/// The TypeError for what was given, with the remedy.
pub(crate) fn wrong_type(given: &Bound<'_, PyAny>, remedy: &str) -> PyErr {
    match given.get_type().name() {
        Ok(name) => PyTypeError::new_err(format!("cannot take a value of type {name}: {remedy}")),
        Err(error) => error,
    }
}

/// The same for a TypeError of Python's own. Any other error stays as it is: the type is right, and the value is not.
fn in_words(error: PyErr, given: &Bound<'_, PyAny>, remedy: &str) -> PyErr {
    match error.is_instance_of::<PyTypeError>(given.py()) {
        true => wrong_type(given, remedy),
        false => error,
    }
}

/// The pairs of a mapping of names to arrays.
pub(crate) fn arrays_by_name<'py>(given: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyIterator>> {
    if !given.hasattr("items")? {
        return Err(wrong_type(given, "give a mapping of names to arrays"));
    }
    given.call_method0("items")?.try_iter()
}

/// The addresses of servers.
pub(crate) struct Addresses(pub(crate) Vec<String>);

impl FromPyObject<'_, '_> for Addresses {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, '_, PyAny>) -> PyResult<Addresses> {
        // It is a sequence of texts, too.
        if given.is_instance_of::<PyString>() {
            return Err(wrong_type(&given, ADDRESSES));
        }
        let addresses =
            given.try_iter().map_err(|error| in_words(error, &given, ADDRESSES))?.map(|address| {
                let address = address?;
                address.extract().map_err(|error| in_words(error, &address, ADDRESSES))
            });
        Ok(Addresses(addresses.collect::<PyResult<_>>()?))
    }
}

const ADDRESSES: &str = "give a list of addresses, each of them a str";

/// The label of a version.
pub(crate) struct Label(pub(crate) Vec<u8>);

impl FromPyObject<'_, '_> for Label {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, '_, PyAny>) -> PyResult<Label> {
        given.extract().map(Label).map_err(|_| wrong_type(&given, "give bytes"))
    }
}
