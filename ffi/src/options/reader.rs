//! The settings of a reader.

use std::ffi::c_char;
use std::ptr::null;

use slackline::weights::ReaderOptions;

use super::values::{idle, slackline_idle};
use crate::error::Failure;
use crate::gpu::slackline_gpu;
use crate::sized::Measured;

/// Settings of a reader. Set `size`, call `slackline_reader_options_init`, then change fields.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct slackline_reader_options {
    /// `sizeof(struct slackline_reader_options)`.
    pub size: usize,
    /// Not 0: check the owner's checksums, where there are any. By default 0.
    pub checksums: u32,
    /// The secret that all processes of the job know, 16 to 4096 bytes of UTF-8 and a zero; needed over TCP and RDMA
    /// beyond this host. By default NULL: see `secret_file`.
    pub secret: *const c_char,
    /// The path of a file of mode 600 with the secret in it. By default NULL: if `secret` is NULL as well, it comes
    /// from the file that the variable SLACKLINE_SECRET_FILE names, or else from the text in SLACKLINE_SECRET.
    pub secret_file: *const c_char,
    /// The name of the table to read, UTF-8 and a zero, where its owner has one for it. By default NULL: it has none.
    pub table: *const c_char,
    /// Not 0: the address belongs to a publisher whose relays are in a tree. The publisher says which owner this reader
    /// reads from, each time that it connects. By default 0.
    pub in_tree: u64,
    /// One of `enum slackline_idle`: how it waits for a version; by default it polls.
    pub idle: u64,
    /// Not 0: it begins to copy a version that it waits for while a server still writes it, piece by piece, and has it
    /// sooner. A version is lent only once it is whole, and a selection is never read so. By default 0.
    pub follow: u64,
    /// Not 0: versions are encrypted over TCP, and not only the handshakes. This needs a secret. Peers
    /// that do not encrypt are refused, and RDMA is `SLACKLINE_STATUS_UNSUPPORTED`. By default 0: they are encrypted if
    /// SLACKLINE_TCP_ENCRYPT is 1.
    pub encrypt: u64,
    /// The GPU that `slackline_reader_pull_to_gpu` copies to: see `slackline_gpu_open`. By default NULL: there is none.
    pub gpu: *const slackline_gpu,
}

impl Measured for slackline_reader_options {
    const FIRST: usize = 16;
}

impl Default for slackline_reader_options {
    fn default() -> Self {
        slackline_reader_options {
            size: size_of::<Self>(),
            checksums: 0,
            secret: null(),
            secret_file: null(),
            table: null(),
            in_tree: 0,
            idle: slackline_idle::Poll as u64,
            follow: 0,
            encrypt: 0,
            gpu: null(),
        }
    }
}

impl slackline_reader_options {
    pub(crate) fn translate(&self) -> Result<ReaderOptions, Failure> {
        Ok(ReaderOptions {
            checksums: self.checksums != 0,
            follow: self.follow != 0,
            waits_for_server: true,
            in_tree: self.in_tree != 0,
            idle: idle(self.idle)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_the_library_s_own() {
        let reader = ReaderOptions { waits_for_server: true, ..ReaderOptions::default() };
        assert_eq!(slackline_reader_options::default().translate().unwrap(), reader);
    }

    #[test]
    fn each_setting_of_a_reader_is_the_library_s() {
        let given = slackline_reader_options { idle: 1, follow: 1, in_tree: 1, ..Default::default() };
        let (idle, waits_for_server) = (slackline::Idle::Sleep, true);
        let reader = ReaderOptions { checksums: false, follow: true, waits_for_server, in_tree: true, idle };
        assert_eq!(given.translate().unwrap(), reader);
        assert!(slackline_reader_options { idle: 2, ..Default::default() }.translate().is_err());
    }
}
