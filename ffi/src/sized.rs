//! Structs that begin with their size, so that both sides can be of different age.
//!
//! Such a struct only ever grows at its end, by fields of 8 bytes each and never into its own padding: every size it
//! ever had ends at the border of a field. A caller that was built against an older header passes a smaller size, and
//! the fields that its struct lacks take their defaults. A caller that was built against a newer header passes a
//! larger one, which is accepted as long as the fields that are unknown here are zero; zero is the default of every
//! field added later.

use crate::error::{Failure, slackline_status};
use crate::handle::{aligned, call};

/// A struct whose first field is its size, a `size_t`, and that any bytes are a value of.
pub(crate) trait Measured: Copy + Default {
    /// The size it had in the first release.
    const FIRST: usize;
}

/// No struct of any release is larger: a size beyond it is memory that was never set.
const LARGEST: usize = 4096;

/// Reads the struct that `pointer` points at.
///
/// # Safety
///
/// `pointer` is NULL, or points at a `size_t` and at as many bytes, counted from it, as that says, which no thread
/// changes during the call.
pub(crate) unsafe fn sized<T: Measured>(pointer: *const T, what: &str) -> Result<T, Failure> {
    // SAFETY: the caller's promise.
    let size = unsafe { size(pointer, what)? };
    let bytes = pointer.cast::<u8>();
    let known = size.min(size_of::<T>());
    // SAFETY: these bytes lie within the size that the caller has set.
    let tail = unsafe { std::slice::from_raw_parts(bytes.add(known), size - known) };
    if tail.iter().any(|byte| *byte != 0) {
        return Err(Failure::bad_argument(format!(
            "{what} sets a field that this library does not know: it has {} bytes here and {size} in the header that \
             the program was built with; leave the new fields zero, or use the library of that header",
            size_of::<T>()
        )));
    }
    let mut value = T::default();
    // SAFETY: `known` bytes are readable by the caller's promise and fit into `value`, which any bytes are valid for;
    // `value` is a local and overlaps nothing.
    unsafe { bytes.copy_to_nonoverlapping((&raw mut value).cast::<u8>(), known) };
    Ok(value)
}

/// As [`sized`], where NULL stands for the defaults.
///
/// # Safety
///
/// As for [`sized`].
pub(crate) unsafe fn sized_or_default<T: Measured>(pointer: *const T, what: &str) -> Result<T, Failure> {
    if pointer.is_null() {
        return Ok(T::default());
    }
    // SAFETY: the caller's promise.
    unsafe { sized(pointer, what) }
}

/// The whole of a foreign function that sets a struct of options to its defaults.
///
/// # Safety
///
/// As for [`SizedOut::new`].
pub(crate) unsafe fn set_default<T: Measured>(options: *mut T) -> slackline_status {
    call(|| {
        // SAFETY: the caller's promise.
        unsafe { SizedOut::new(options, "options")? }.set(T::default());
        Ok(())
    })
}

/// A struct of the caller's to write a result to.
pub(crate) struct SizedOut<T> {
    pointer: *mut T,
    size: usize,
}

impl<T: Measured> SizedOut<T> {
    /// # Safety
    ///
    /// `pointer` is NULL, or points at a `size_t` and at as many bytes, counted from it, as that says, which may be
    /// written while the call lasts.
    pub(crate) unsafe fn new(pointer: *mut T, what: &str) -> Result<SizedOut<T>, Failure> {
        // SAFETY: the caller's promise.
        let size = unsafe { size(pointer, what)? };
        Ok(SizedOut { pointer, size })
    }

    /// As [`new`](Self::new), but NULL means that the caller does not want to know.
    ///
    /// # Safety
    ///
    /// As for [`new`](Self::new).
    pub(crate) unsafe fn wanted(pointer: *mut T, what: &str) -> Result<Option<SizedOut<T>>, Failure> {
        if pointer.is_null() {
            return Ok(None);
        }
        // SAFETY: the caller's promise.
        unsafe { SizedOut::new(pointer, what).map(Some) }
    }

    /// Writes as much of `value` as the caller's struct holds and zeros after it; the caller's size stays.
    pub(crate) fn set(&self, value: T) {
        let (from, to) = ((&raw const value).cast::<u8>(), self.pointer.cast::<u8>());
        let (first, known) = (size_of::<usize>(), self.size.min(size_of::<T>()));
        // SAFETY: `size` bytes from `to` on are writable by the promise given to `new`, and it is at least `FIRST`,
        // which is more than the size itself; `from` is a local of `size_of::<T>()` bytes. Bytes are copied without
        // being looked at, so padding bytes may hold anything.
        unsafe {
            from.add(first).copy_to_nonoverlapping(to.add(first), known - first);
            to.add(known).write_bytes(0, self.size - known);
        }
    }
}

/// The size that the caller has set.
///
/// # Safety
///
/// `pointer` is NULL, or points at a `size_t`.
unsafe fn size<T: Measured>(pointer: *const T, what: &str) -> Result<usize, Failure> {
    aligned(pointer, what)?;
    if pointer.is_null() {
        return Err(Failure::null(what));
    }
    // SAFETY: neither NULL nor misaligned; the caller's promise that at least the size is there. The rest of the
    // struct is not touched.
    let size = unsafe { pointer.cast::<usize>().read() };
    if size < T::FIRST || size > LARGEST || !size.is_multiple_of(8) {
        return Err(Failure::bad_argument(format!(
            "{what}->size is {size}, and no release has a struct of that size (this one: {}): set it to the sizeof of \
             the struct before the call",
            size_of::<T>()
        )));
    }
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::slackline_status as Status;

    /// A struct that began with one field and got another.
    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Grown {
        size: usize,
        first: u64,
        later: u64,
    }

    impl Default for Grown {
        fn default() -> Grown {
            Grown { size: size_of::<Grown>(), first: 1, later: 2 }
        }
    }

    impl Measured for Grown {
        const FIRST: usize = 16;
    }

    /// The struct that a caller of any age hands over.
    fn read(words: &[usize]) -> Result<Grown, Failure> {
        // SAFETY: every size that is used below and accepted lies within `words`.
        unsafe { sized(words.as_ptr().cast::<Grown>(), "x") }
    }

    #[test]
    fn an_older_caller_s_missing_tail_is_the_default() {
        assert_eq!(read(&[16, 7]).unwrap(), Grown { size: 16, first: 7, later: 2 });
        assert_eq!(read(&[24, 7, 8]).unwrap(), Grown { size: 24, first: 7, later: 8 });
    }

    #[test]
    fn a_newer_caller_s_tail_must_be_zero_and_the_error_says_what_to_do() {
        assert_eq!(read(&[40, 7, 8, 0, 0]).unwrap(), Grown { size: 40, first: 7, later: 8 });
        let refused = read(&[40, 7, 8, 0, 1]).unwrap_err();
        assert_eq!(refused.status, Status::BadArgument);
        assert!(refused.message.contains("leave the new fields zero"), "{}", refused.message);
    }

    #[test]
    fn a_size_that_no_release_has_is_a_bad_argument() {
        for size in [0, 8, 15, 17, 20, 4104, usize::MAX] {
            let refused = read(&[size, 0, 0]).unwrap_err();
            assert_eq!(refused.status, Status::BadArgument, "{size}");
            assert!(refused.message.contains("x->size is "), "{}", refused.message);
        }
    }

    #[test]
    fn a_result_fills_what_the_caller_has_and_no_byte_more() {
        for (size, expected) in
            [(16, [16, 1, 9, 9, 9]), (24, [24, 1, 2, 9, 9]), (32, [32, 1, 2, 0, 9]), (40, [40, 1, 2, 0, 0])]
        {
            let mut words = [size, 9, 9, 9, 9usize];
            // SAFETY: `words` is at least as long as every size that is used.
            unsafe { SizedOut::new(words.as_mut_ptr().cast::<Grown>(), "x") }.unwrap().set(Grown::default());
            assert_eq!(words, expected);
        }
    }
}
