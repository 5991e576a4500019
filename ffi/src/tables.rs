//! Several tables behind one address: see [`slackline::Tables`].

use std::ffi::{CString, c_char};

use slackline::{Mixed, Tables};

use crate::error::slackline_status;
use crate::fabric::fabric;
use crate::handle::{Handle, create, destroy, lend_text, opaque, with};
use crate::options::{self, slackline_publisher_options, slackline_tensor};
use crate::publisher::{Publishing, slackline_publisher};
use crate::sized::sized_or_default;

/// One address at which several publishers serve a table each, by name: the adapters of a model, say.
///
/// Thread-safety: one thread at a time, any thread. A call while another thread is in one is
/// `SLACKLINE_STATUS_OUT_OF_TURN` and does nothing; destroying it meanwhile is undefined.
pub struct slackline_tables(Handle<Sharing>);

/// The tables and their address as C reads it.
pub(crate) struct Sharing {
    tables: Tables<Mixed>,
    address: CString,
}

opaque!(slackline_tables: Sharing);

/// Begins to listen at `address`, which is as for a publisher; `secret` and `secret_file` are as in the options of a
/// publisher; versions are encrypted over TCP if SLACKLINE_TCP_ENCRYPT is 1. The tables are the caller's, to be
/// destroyed; on failure it is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_tables_listen(
    address: *const c_char,
    secret: *const c_char,
    secret_file: *const c_char,
    tables: *mut *mut slackline_tables,
) -> slackline_status {
    let listen = || {
        // SAFETY: the contract.
        let (address, secret) =
            unsafe { (options::listen_address(address)?, options::secret(secret, secret_file, 0)?) };
        let fabric = fabric(secret, std::slice::from_ref(&address))?;
        let tables = Tables::listen(fabric, &address).map_err(slackline::Error::from)?;
        let address = CString::new(tables.address().to_string()).unwrap_or_default();
        Ok(Sharing { tables, address })
    };
    // SAFETY: the contract.
    unsafe { create(tables, listen) }
}

/// Lends the address at which all tables are reached. It is valid until the tables are destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_tables_address(
    tables: *const slackline_tables,
    address: *mut *const c_char,
) -> slackline_status {
    // SAFETY: the contract.
    unsafe { lend_text(tables, address, "address", |sharing| &sharing.address) }
}

/// Begins to serve a table there, by the name in `options->table`, which no other table has. Otherwise as
/// `slackline_publisher_create`, except that the secret and its encryption are those of the tables. The publisher
/// may outlive them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_tables_publisher(
    tables: *const slackline_tables,
    tensors: *const slackline_tensor,
    tensor_count: usize,
    options: *const slackline_publisher_options,
    publisher: *mut *mut slackline_publisher,
) -> slackline_status {
    let begin = || {
        // SAFETY: the contract.
        let options = unsafe { sized_or_default(options, "options")? };
        // SAFETY: the contract.
        unsafe { options.expect_on_host("a publisher of tables")? };
        // SAFETY: the contract.
        let table = unsafe { options::aligned_table(tensors, tensor_count, options.alignment)? };
        // SAFETY: the contract.
        let name = unsafe { options::table_name(options.table)? };
        let begin = |sharing: &mut Sharing| {
            let tables = &sharing.tables;
            Publishing::begin(tables.named(name), tables.address(), table, &options, None)
        };
        // SAFETY: the contract.
        unsafe { with(tables, begin) }
    };
    // SAFETY: the contract.
    unsafe { create(publisher, begin) }
}

/// Ends the listener of `slackline_tables_listen`, once all its publishers are gone. NULL does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_tables_destroy(tables: *mut slackline_tables) {
    // SAFETY: the contract.
    unsafe { destroy(tables) };
}
