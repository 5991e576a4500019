//! The exported functions of libibverbs, found at run time by name and version.

use std::borrow::Cow;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use super::bindings::*;
use super::inline;
use crate::diagnostic::{Diagnostic, remedy_of};

/// The name of the library in every distribution since rdma-core began.
const SONAME: &CStr = c"libibverbs.so.1";

/// The reason why libibverbs is not usable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LibraryError {
    /// It cannot be opened.
    #[error("cannot open libibverbs.so.1: {reason}; {}", remedy_of(self))]
    NotInstalled {
        /// The message of the loader.
        reason: String,
    },
    /// It lacks a function that libibverbs has had for many years.
    #[error("libibverbs.so.1 has no {symbol} of version {version}; {}", remedy_of(self))]
    TooOld {
        /// The function.
        symbol: &'static str,
        /// Its version.
        version: &'static str,
    },
}

impl Diagnostic for LibraryError {
    fn operation(&self) -> &'static str {
        "opening libibverbs"
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        Some(match self {
            LibraryError::NotInstalled { .. } => {
                "install libibverbs1 and ibverbs-providers (Debian, Ubuntu) or \
                                                  rdma-core and libibverbs (Fedora, RHEL, SUSE)"
                    .into()
            }
            LibraryError::TooOld { .. } => "install rdma-core 32 or later".into(),
        })
    }
}

/// Declares the table of functions and the code that fills it: `name: "symbol" @ "version" as type`.
macro_rules! library {
    (
        required { $($name:ident: $symbol:literal @ $version:literal as fn($($argument:ty),*) $(-> $result:ty)?;)* }
        optional {
            $($new:ident: $new_symbol:literal @ $new_version:literal as fn($($new_argument:ty),*) -> $new_result:ty;)*
        }
    ) => {
        /// The functions of the header, with its signatures; later functions are optional.
        pub(crate) struct Library {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            $(pub(crate) $new: Option<unsafe extern "C" fn($($new_argument),*) -> $new_result>,)*
        }

        impl Library {
            /// Looks all of them up.
            ///
            /// # Safety
            ///
            /// `handle` is from `dlopen` of libibverbs, and is never closed.
            unsafe fn find(handle: *mut c_void) -> Result<Library, LibraryError> {
                Ok(Library {
                    $($name: {
                        let found = lookup(handle, $symbol, $version);
                        let too_old = LibraryError::TooOld { symbol: $symbol, version: $version };
                        let found = found.ok_or(too_old)?;
                        // SAFETY: this is the function of that name and version, whose type the header gives; the
                        // library stays loaded until the process ends.
                        unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) $(-> $result)?>(
                                found,
                            )
                        }
                    },)*
                    $($new: {
                        // SAFETY: as above.
                        lookup(handle, $new_symbol, $new_version).map(|found| unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($new_argument),*) -> $new_result>(
                                found,
                            )
                        })
                    },)*
                })
            }

            /// A library without any function, for tests that supply the functions that they need. A call of any
            /// other function ends the process.
            #[cfg(test)]
            pub(crate) fn absent() -> Library {
                Library {
                    $($name: {
                        unsafe extern "C" fn absent($(_: $argument),*) $(-> $result)? {
                            panic!("this test does not expect a call of {}", $symbol)
                        }
                        absent
                    },)*
                    $($new: None,)*
                }
            }
        }
    };
}

library! {
    required {
        get_device_list: "ibv_get_device_list" @ "IBVERBS_1.1" as fn(*mut c_int) -> *mut *mut ibv_device;
        free_device_list: "ibv_free_device_list" @ "IBVERBS_1.1" as fn(*mut *mut ibv_device);
        get_device_name: "ibv_get_device_name" @ "IBVERBS_1.1" as fn(*mut ibv_device) -> *const c_char;
        get_device_guid: "ibv_get_device_guid" @ "IBVERBS_1.1" as fn(*mut ibv_device) -> __be64;
        open_device: "ibv_open_device" @ "IBVERBS_1.1" as fn(*mut ibv_device) -> *mut ibv_context;
        close_device: "ibv_close_device" @ "IBVERBS_1.1" as fn(*mut ibv_context) -> c_int;
        get_async_event: "ibv_get_async_event" @ "IBVERBS_1.1"
            as fn(*mut ibv_context, *mut ibv_async_event) -> c_int;
        ack_async_event: "ibv_ack_async_event" @ "IBVERBS_1.1" as fn(*mut ibv_async_event);
        query_device: "ibv_query_device" @ "IBVERBS_1.1" as fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
        // Fills a shorter structure than the header has: call `Library::query_port` instead.
        compat_query_port: "ibv_query_port" @ "IBVERBS_1.1"
            as fn(*mut ibv_context, u8, *mut _compat_ibv_port_attr) -> c_int;
        query_gid: "ibv_query_gid" @ "IBVERBS_1.1" as fn(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int;
        query_pkey: "ibv_query_pkey" @ "IBVERBS_1.1" as fn(*mut ibv_context, u8, c_int, *mut u16) -> c_int;
        alloc_pd: "ibv_alloc_pd" @ "IBVERBS_1.1" as fn(*mut ibv_context) -> *mut ibv_pd;
        dealloc_pd: "ibv_dealloc_pd" @ "IBVERBS_1.1" as fn(*mut ibv_pd) -> c_int;
        reg_mr: "ibv_reg_mr" @ "IBVERBS_1.1" as fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
        dereg_mr: "ibv_dereg_mr" @ "IBVERBS_1.1" as fn(*mut ibv_mr) -> c_int;
        create_comp_channel: "ibv_create_comp_channel" @ "IBVERBS_1.0" as fn(*mut ibv_context) -> *mut ibv_comp_channel;
        destroy_comp_channel: "ibv_destroy_comp_channel" @ "IBVERBS_1.0" as fn(*mut ibv_comp_channel) -> c_int;
        create_cq: "ibv_create_cq" @ "IBVERBS_1.1"
            as fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
        destroy_cq: "ibv_destroy_cq" @ "IBVERBS_1.1" as fn(*mut ibv_cq) -> c_int;
        get_cq_event: "ibv_get_cq_event" @ "IBVERBS_1.1"
            as fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
        ack_cq_events: "ibv_ack_cq_events" @ "IBVERBS_1.1" as fn(*mut ibv_cq, c_uint);
        create_qp: "ibv_create_qp" @ "IBVERBS_1.1" as fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
        modify_qp: "ibv_modify_qp" @ "IBVERBS_1.1" as fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
        query_qp: "ibv_query_qp" @ "IBVERBS_1.1"
            as fn(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
        destroy_qp: "ibv_destroy_qp" @ "IBVERBS_1.1" as fn(*mut ibv_qp) -> c_int;
        fork_init: "ibv_fork_init" @ "IBVERBS_1.1" as fn() -> c_int;
        node_type_str: "ibv_node_type_str" @ "IBVERBS_1.1" as fn(ibv_node_type) -> *const c_char;
        event_type_str: "ibv_event_type_str" @ "IBVERBS_1.1" as fn(ibv_event_type) -> *const c_char;
        wc_status_str: "ibv_wc_status_str" @ "IBVERBS_1.1" as fn(ibv_wc_status) -> *const c_char;
        port_state_str: "ibv_port_state_str" @ "IBVERBS_1.1" as fn(ibv_port_state) -> *const c_char;
        reg_mr_iova2: "ibv_reg_mr_iova2" @ "IBVERBS_1.8"
            as fn(*mut ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut ibv_mr;
        // The last argument of this is the size of an entry.
        query_gid_ex: "_ibv_query_gid_ex" @ "IBVERBS_1.11"
            as fn(*mut ibv_context, u32, u32, *mut ibv_gid_entry, u32, usize) -> c_int;
    }
    optional {
        // The last argument is the size of an entry.
        query_gid_table: "_ibv_query_gid_table" @ "IBVERBS_1.11"
            as fn(*mut ibv_context, *mut ibv_gid_entry, usize, u32, usize) -> isize;
        reg_dmabuf_mr: "ibv_reg_dmabuf_mr" @ "IBVERBS_1.12"
            as fn(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr;
        is_fork_initialized: "ibv_is_fork_initialized" @ "IBVERBS_1.13" as fn() -> c_uint;
        query_qp_data_in_order: "ibv_query_qp_data_in_order" @ "IBVERBS_1.14"
            as fn(*mut ibv_qp, ibv_wr_opcode, u32) -> c_int;
    }
}

impl Library {
    /// The library of this process, opened by the first call and never closed: providers leave threads, forked
    /// children and thread-local data behind that would run into unmapped code.
    pub(crate) fn get() -> Result<&'static Library, LibraryError> {
        static LIBRARY: OnceLock<Result<Library, LibraryError>> = OnceLock::new();
        LIBRARY.get_or_init(|| Library::open(SONAME)).as_ref().map_err(LibraryError::clone)
    }

    /// Queries the state of a port, counted from 1; returns 0, or an error number. Fields that the provider does not
    /// know are zero.
    ///
    /// # Safety
    ///
    /// `context` is live.
    pub(crate) unsafe fn query_port(
        &self,
        context: *mut ibv_context,
        port: u8,
        attributes: &mut ibv_port_attr,
    ) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { inline::query_port(self.compat_query_port, context, port, attributes) }
    }

    pub(super) fn open(soname: &CStr) -> Result<Library, LibraryError> {
        // SAFETY: a string that ends in NUL; the library's constructors are those of a system library.
        let handle = unsafe { libc::dlopen(soname.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            // SAFETY: the text of this thread's last error, or null; it lives until the next call, and is copied.
            let reason = unsafe {
                let text = libc::dlerror();
                if text.is_null() { "no reason given".into() } else { CStr::from_ptr(text).to_string_lossy() }
            };
            return Err(LibraryError::NotInstalled { reason: reason.into_owned() });
        }
        // SAFETY: just opened, and nothing here closes it.
        unsafe { Library::find(handle) }
    }
}

fn lookup(handle: *mut c_void, symbol: &str, version: &str) -> Option<*mut c_void> {
    let (symbol, version) = (std::ffi::CString::new(symbol).ok()?, std::ffi::CString::new(version).ok()?);
    // SAFETY: a handle that is open, and strings that end in NUL.
    let found = unsafe { libc::dlvsym(handle, symbol.as_ptr(), version.as_ptr()) };
    (!found.is_null()).then_some(found)
}
