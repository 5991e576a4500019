//! The boundary itself: no panic crosses it, no pointer is used unchecked, no object is used by two threads at once.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};

use slackline::VolatileSlice;
use slackline::internals::mem::ForkGuard;

use crate::error::{Failure, remember, slackline_status as Status};

/// Runs the body of a foreign function: its failure becomes a status and a message, and so does a panic.
pub(crate) fn call(body: impl FnOnce() -> Result<(), Failure>) -> Status {
    // What a panic may leave half done is an object, which is spoilt by it (see `Handle`), or what an output pointer
    // points at, which means nothing unless the status is `Ok`.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Status::Ok,
        Ok(Err(failure)) => remember(failure),
        Err(panic) => {
            let text = panic
                .downcast_ref::<&str>()
                .map(|text| (*text).to_owned())
                .or_else(|| panic.downcast_ref::<String>().cloned())
                .unwrap_or_default();
            // A payload may panic in its own destructor; leaking it is the lesser evil.
            std::mem::forget(panic);
            remember(Failure::new(Status::Panic, format!("a bug in slackline, please report it: {text}")))
        }
    }
}

const IDLE: u8 = 0;
const BUSY: u8 = 1;
const SPOILT: u8 = 2;

/// The target of an opaque pointer: a value, and whether a call is using it.
///
/// The C caller promises to use an object from one thread at a time. The state turns most breaches of that promise
/// into a status instead of a race, and keeps an object that a panic left half changed from being used again.
///
/// In a forked child the value is not touched: a thread that the child does not have may hold a lock in it for ever.
pub(crate) struct Handle<T> {
    state: AtomicU8,
    guard: ForkGuard,
    value: UnsafeCell<T>,
}

/// A type that C knows by pointer only.
pub(crate) trait Opaque: Sized {
    /// The value behind the pointer. It is `Send`, as C may hand the pointer from thread to thread.
    type Value: Send;

    fn wrap(handle: Handle<Self::Value>) -> Self;
    fn handle(&self) -> &Handle<Self::Value>;
}

/// Makes `$name`, a struct of nothing but a [`Handle`], the type by which C knows a `$value`.
macro_rules! opaque {
    ($name:ident: $value:ty) => {
        impl crate::handle::Opaque for $name {
            type Value = $value;
            fn wrap(handle: crate::handle::Handle<$value>) -> Self {
                $name(handle)
            }
            fn handle(&self) -> &crate::handle::Handle<$value> {
                &self.0
            }
        }
    };
}
pub(crate) use opaque;

/// The whole of a foreign function that makes an object: `object` becomes what `make` returns, or NULL.
///
/// # Safety
///
/// As for [`Out::new`].
pub(crate) unsafe fn create<H: Opaque>(
    object: *mut *mut H,
    make: impl FnOnce() -> Result<H::Value, Failure>,
) -> Status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(object, "the pointer to the new object")? };
        out.set(std::ptr::null_mut());
        out.set(give(make()?));
        Ok(())
    })
}

/// Gives a value away: the pointer owns it until [`destroy`].
fn give<H: Opaque>(value: H::Value) -> *mut H {
    let (state, guard, value) = (AtomicU8::new(IDLE), ForkGuard::new(), UnsafeCell::new(value));
    let handle = Handle { state, guard, value };
    Box::into_raw(Box::new(H::wrap(handle)))
}

/// Lends the value behind `pointer` to `operation`.
///
/// # Safety
///
/// `pointer` is NULL, or came from [`give`] and was not destroyed, and is not being destroyed.
pub(crate) unsafe fn with<H: Opaque, R>(
    pointer: *const H,
    operation: impl FnOnce(&mut H::Value) -> Result<R, Failure>,
) -> Result<R, Failure> {
    // SAFETY: the caller's promise: NULL or alive. Only shared references to the handle itself are ever made.
    let handle = unsafe { pointer.as_ref() }.ok_or_else(|| Failure::null("the object"))?.handle();
    if handle.guard.is_inherited() {
        let reason = "the object belongs to the process that forked this one: make one here";
        return Err(Failure::new(Status::OutOfTurn, reason));
    }
    let turn = Turn::take(&handle.state)?;
    // SAFETY: `turn` is held by one call at a time and until after the last use of this reference; the value is
    // reached in no other way.
    let result = operation(unsafe { &mut *handle.value.get() });
    turn.end();
    result
}

/// The whole of a foreign function that lends a text of an object.
///
/// # Safety
///
/// As for [`with`] and [`Out::new`]. The text is lent for as long as the value keeps it.
pub(crate) unsafe fn lend_text<H: Opaque>(
    object: *const H,
    text: *mut *const c_char,
    what: &str,
    find: impl FnOnce(&mut H::Value) -> &CStr,
) -> Status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(text, what)? };
        // SAFETY: as above.
        out.set(unsafe { with(object, |value| Ok(find(value).as_ptr()))? });
        Ok(())
    })
}

/// Takes the value back and drops it; NULL is nothing. A panic of its destructor ends here. One that a call is using,
/// such as the call whose function of the caller's destroys it, is not freed, nor is one that a forked child inherited.
///
/// # Safety
///
/// As for [`with`]; afterwards the pointer is dead, and so is everything that was lent from its value.
pub(crate) unsafe fn destroy<H: Opaque>(pointer: *mut H) {
    if pointer.is_null() {
        return;
    }
    let _ = call(|| {
        // SAFETY: the caller's promise: alive.
        let handle = unsafe { &*pointer }.handle();
        if handle.guard.is_inherited() {
            return Ok(());
        }
        if handle.state.load(Ordering::Acquire) == BUSY {
            // It stays, as the call that uses it goes on.
            let reason = "the object is in use, by another thread or by the call that this one was made from";
            return Err(Failure::new(Status::OutOfTurn, reason));
        }
        // SAFETY: it came from `Box::into_raw` in `give`, and the caller gives up the only pointer to it.
        drop(unsafe { Box::from_raw(pointer) });
        Ok(())
    });
}

/// The right to use a value, until [`end`](Self::end). One that is dropped instead was dropped by a panic of the call,
/// which may have left the value half changed. Whether the thread panics says less: a host may call while it unwinds.
struct Turn<'a>(&'a AtomicU8);

impl<'a> Turn<'a> {
    fn take(state: &'a AtomicU8) -> Result<Turn<'a>, Failure> {
        // Acquire, with the release in `drop`: what the thread before did to the value is seen here.
        match state.compare_exchange(IDLE, BUSY, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(Turn(state)),
            Err(SPOILT) => {
                Err(Failure::new(Status::Panic, "an earlier call panicked inside this object: destroy it"))
            }
            Err(_) => Err(Failure::new(Status::OutOfTurn, "another thread is using this object right now")),
        }
    }

    fn end(self) {
        self.0.store(IDLE, Ordering::Release);
        std::mem::forget(self);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.store(SPOILT, Ordering::Release);
    }
}

/// An out-parameter: a value in the caller's memory that a result is written to.
pub(crate) struct Out<T>(NonNull<T>);

impl<T> Out<T> {
    /// # Safety
    ///
    /// `pointer` is NULL, or may be written as a `T` while the call lasts.
    pub(crate) unsafe fn new(pointer: *mut T, what: &str) -> Result<Out<T>, Failure> {
        aligned(pointer, what)?;
        NonNull::new(pointer).map(Out).ok_or_else(|| Failure::null(what))
    }

    /// As [`new`](Self::new), but NULL means that the caller does not want to know.
    ///
    /// # Safety
    ///
    /// As for [`new`](Self::new).
    pub(crate) unsafe fn wanted(pointer: *mut T, what: &str) -> Result<Option<Out<T>>, Failure> {
        aligned(pointer, what)?;
        Ok(NonNull::new(pointer).map(Out))
    }

    pub(crate) fn set(&self, value: T) {
        // SAFETY: not NULL, aligned, and writable by the promise of the caller that made this. Nothing is dropped:
        // what was there came from C.
        unsafe { self.0.write(value) };
    }
}

/// The out-parameters for an array that is lent: where it begins, and its length.
pub(crate) struct OutArray<P> {
    pointer: Out<P>,
    len: Out<usize>,
}

impl<P> OutArray<P> {
    /// # Safety
    ///
    /// As for [`Out::new`], for both.
    pub(crate) unsafe fn new(pointer: *mut P, len: *mut usize, what: &str) -> Result<OutArray<P>, Failure> {
        // SAFETY: the caller's promise.
        Ok(unsafe { OutArray { pointer: Out::new(pointer, what)?, len: Out::new(len, "the length")? } })
    }

    pub(crate) fn set(&self, (pointer, len): (P, usize)) {
        self.pointer.set(pointer);
        self.len.set(len);
    }
}

/// Returns the array that `pointer` and `len` describe. NULL is an empty array, and nothing else.
///
/// # Safety
///
/// `pointer` is NULL, or points at `len` values of `T` that no thread writes while the result is used.
pub(crate) unsafe fn slice<'a, T>(pointer: *const T, len: usize, what: &str) -> Result<&'a [T], Failure> {
    check_array(pointer, len, what)?;
    if len == 0 {
        return Ok(&[]);
    }
    // SAFETY: not NULL, aligned, and not longer than an address space, all checked; readable by the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(pointer, len) })
}

/// As [`slice`], of bytes that another process may write meanwhile.
///
/// # Safety
///
/// `pointer` is NULL, or points at `len` bytes that stay mapped, that no thread of this process writes, and to which
/// there is no Rust reference, while the result is used.
pub(crate) unsafe fn volatile<'a>(
    pointer: *const u8,
    len: usize,
    what: &str,
) -> Result<VolatileSlice<'a>, Failure> {
    check_array(pointer, len, what)?;
    if len == 0 {
        return Ok(VolatileSlice::from_ref(&[]));
    }
    // SAFETY: not NULL and not longer than an address space, both checked; mapped and without references by the
    // caller's promise, and never written through the result.
    Ok(unsafe { VolatileSlice::new(pointer.cast_mut(), len, false) })
}

/// As [`slice`], to be written to.
///
/// # Safety
///
/// `pointer` is NULL, or points at `len` values of `T` that nothing else reads or writes while the result is used.
pub(crate) unsafe fn slice_mut<'a, T>(
    pointer: *mut T,
    len: usize,
    what: &str,
) -> Result<&'a mut [T], Failure> {
    check_array(pointer, len, what)?;
    if len == 0 {
        return Ok(&mut []);
    }
    // SAFETY: as in `slice`; writable and not shared by the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer, len) })
}

/// Copies `values` to an array of the caller's that must be as long.
///
/// # Safety
///
/// `pointer` is NULL, or may be written as `len` values of `T`, and `values` lies elsewhere.
pub(crate) unsafe fn copy_out<T: Copy>(
    values: &[T],
    pointer: *mut T,
    len: usize,
    what: &str,
) -> Result<(), Failure> {
    check_array(pointer, len, what)?;
    if len != values.len() {
        let message = format!("{what} has room for {len} values, and there are {}", values.len());
        return Err(Failure::bad_argument(message));
    }
    // SAFETY: both sides have `len` values: `values` by its type, `pointer`, aligned and not NULL unless `len` is 0,
    // by the caller's promise, as that they do not overlap.
    unsafe { pointer.copy_from_nonoverlapping(values.as_ptr(), len) };
    Ok(())
}

/// A text of the caller's.
///
/// # Safety
///
/// That of [`c_text`].
pub(crate) unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str, Failure> {
    // SAFETY: the caller's promise.
    let text = unsafe { c_text(pointer, what)? };
    text.to_str().map_err(|_| Failure::bad_argument(format!("{what} is not UTF-8: {text:?}")))
}

/// The same, in whatever encoding.
///
/// # Safety
///
/// `pointer` is NULL, or points at bytes that end in a zero and that no thread writes while the result is used.
pub(crate) unsafe fn c_text<'a>(pointer: *const c_char, what: &str) -> Result<&'a CStr, Failure> {
    if pointer.is_null() {
        return Err(Failure::null(what));
    }
    // SAFETY: not NULL; ends in a zero by the caller's promise.
    Ok(unsafe { CStr::from_ptr(pointer) })
}

/// The value that `pointer` points at, or `None` for NULL.
///
/// # Safety
///
/// `pointer` is NULL, or points at a `T`.
pub(crate) unsafe fn value<T: Copy>(pointer: *const T, what: &str) -> Result<Option<T>, Failure> {
    aligned(pointer, what)?;
    // SAFETY: aligned; NULL or readable by the caller's promise.
    Ok(unsafe { pointer.as_ref() }.copied())
}

fn check_array<T>(pointer: *const T, len: usize, what: &str) -> Result<(), Failure> {
    aligned(pointer, what)?;
    if pointer.is_null() && len > 0 {
        return Err(Failure::bad_argument(format!("{what} is NULL, and its length is {len}")));
    }
    match len.checked_mul(size_of::<T>()) {
        Some(bytes) if isize::try_from(bytes).is_ok() => Ok(()),
        _ => Err(Failure::bad_argument(format!(
            "{what} cannot have {len} values: no address space holds them"
        ))),
    }
}

pub(crate) fn aligned<T>(pointer: *const T, what: &str) -> Result<(), Failure> {
    if pointer.is_aligned() {
        return Ok(());
    }
    Err(Failure::bad_argument(format!("{what} is not aligned to {} bytes", align_of::<T>())))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Number(Handle<u32>);
    opaque!(Number: u32);

    #[test]
    fn a_panic_becomes_a_status_and_spoils_its_object_alone() {
        let (one, other) = (give::<Number>(1), give::<Number>(2));
        // SAFETY: both came from `give` and live until the end of the test.
        unsafe {
            let status = call(|| with(one, |_| -> Result<(), _> { panic!("number {}", 7) }));
            assert_eq!(status, Status::Panic);
            let message = CStr::from_ptr(crate::error::last_message()).to_str().unwrap();
            assert!(message.ends_with("please report it: number 7"), "{message}");
            assert_eq!(call(|| with(one, |_| Ok(()))), Status::Panic);
            assert_eq!(with(other, |value| Ok(*value)).unwrap(), 2);
            destroy(one);
            destroy(other);
            destroy(std::ptr::null_mut::<Number>());
        }
    }

    /// Calls one object in order, and panics inside another, when it is dropped.
    struct Caller(*mut Number, *mut Number);

    impl Drop for Caller {
        fn drop(&mut self) {
            // SAFETY: both live until the end of the test.
            unsafe {
                assert_eq!(call(|| with(self.0, |_| Ok(()))), Status::Ok);
                assert_eq!(call(|| with(self.1, |_| -> Result<(), _> { panic!("inside") })), Status::Panic);
            }
        }
    }

    #[test]
    fn calls_of_a_thread_that_unwinds_spoil_an_object_only_if_they_panic() {
        let (one, other) = (give::<Number>(1), give::<Number>(2));
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            let _caller = Caller(one, other);
            panic!("the host's own");
        }));
        assert!(unwound.is_err());
        // SAFETY: both came from `give` and live until the end of the test.
        unsafe {
            assert_eq!(with(one, |value| Ok(*value)).unwrap(), 1);
            assert_eq!(call(|| with(other, |_| Ok(()))), Status::Panic);
            destroy(one);
            destroy(other);
        }
    }

    #[test]
    fn an_object_in_use_is_out_of_turn_for_everybody_else() {
        let number = give::<Number>(1);
        // SAFETY: it came from `give` and lives until the end of the test.
        unsafe {
            with(number, |_| {
                assert_eq!(with(number, |_| Ok(())).unwrap_err().status, Status::OutOfTurn);
                destroy(number);
                let message = CStr::from_ptr(crate::error::last_message()).to_str().unwrap();
                assert!(message.contains("in use"), "it was not freed: {message}");
                Ok(())
            })
            .unwrap();
            let increment = |value: &mut u32| {
                *value += 1;
                Ok(())
            };
            with(number, increment).unwrap();
            assert_eq!(with(number, |value| Ok(*value)).unwrap(), 2);
            destroy(number);
        }
    }

    #[test]
    fn pointers_that_cannot_be_are_bad_arguments() {
        let values = [1u64, 2];
        let odd = values.as_ptr().wrapping_byte_add(1);
        // SAFETY: what is read lies in `values`; the rest is refused before it is read.
        unsafe {
            assert_eq!(slice(values.as_ptr(), 2, "x").unwrap(), values);
            assert!(slice::<u64>(std::ptr::null(), 0, "x").unwrap().is_empty());
            for refused in [
                slice(std::ptr::null::<u64>(), 1, "x").unwrap_err(),
                slice(odd, 1, "x").unwrap_err(),
                slice(values.as_ptr(), usize::MAX / 8, "x").unwrap_err(),
                copy_out(&values, std::ptr::null_mut(), 2, "x").unwrap_err(),
                copy_out(&values, [0; 3].as_mut_ptr(), 3, "x").unwrap_err(),
                text(std::ptr::null(), "x").unwrap_err(),
                text(c"\xff".as_ptr(), "x").unwrap_err(),
            ] {
                assert_eq!(refused.status, Status::BadArgument, "{}", refused.message);
                assert!(refused.message.starts_with("x "), "{}", refused.message);
            }
        }
    }
}
