//! Checkpoints, to be read: see [`slackline::checkpoint::Checkpoint`].

use std::ffi::c_char;

use slackline::checkpoint::Checkpoint;

use crate::error::slackline_status;
use crate::handle::{Handle, Out, OutArray, call, create, destroy, opaque, with};
use crate::options::{self, slackline_tensor};
use crate::table::Tensors;

/// One shard as a server wrote it to its checkpoint, whole and in memory of its own.
///
/// Thread-safety: its parameters may be read by any number of threads at once, until one of them destroys it.
pub struct slackline_checkpoint(Handle<Restored>);

/// A checkpoint, and the table of its job as C reads it.
pub(crate) struct Restored {
    checkpoint: Checkpoint,
    tensors: Tensors,
}

opaque!(slackline_checkpoint: Restored);

/// Reads the checkpoint in the file `path`, which a server wrote as `shard-S-of-N.safetensors` to its
/// `checkpoint_folder`, and proves that it is whole. Where the file is missing or damaged, the checkpoint before it is
/// read instead: `slackline_checkpoint_version` tells which version it is. Where there is neither, that is
/// `SLACKLINE_STATUS_BAD_ARGUMENT`. The checkpoint is the caller's, to be destroyed; on failure it is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_checkpoint_open(
    path: *const c_char,
    checkpoint: *mut *mut slackline_checkpoint,
) -> slackline_status {
    let read = || {
        // SAFETY: the contract.
        let checkpoint = Checkpoint::read(unsafe { options::path(path, "path")? })?;
        let tensors = Tensors::of(checkpoint.table())?;
        Ok(Restored { checkpoint, tensors })
    };
    // SAFETY: the contract.
    unsafe { create(checkpoint, read) }
}

/// Sets `version` to the number of the version that the checkpoint holds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_checkpoint_version(
    checkpoint: *const slackline_checkpoint,
    version: *mut u64,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let out = unsafe { Out::new(version, "version")? };
        // SAFETY: the contract.
        out.set(unsafe { with(checkpoint, |restored| Ok(restored.checkpoint.version()))? }.get());
        Ok(())
    })
}

/// Lends the table of the job, `count` tensors, of all shards. Valid until the checkpoint is destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_checkpoint_table(
    checkpoint: *const slackline_checkpoint,
    tensors: *mut *const slackline_tensor,
    count: *mut usize,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let out = unsafe { OutArray::new(tensors, count, "tensors")? };
        let lend = |restored: &mut Restored| {
            let tensors = restored.tensors.as_slice();
            Ok((tensors.as_ptr(), tensors.len()))
        };
        // SAFETY: the contract.
        out.set(unsafe { with(checkpoint, lend)? });
        Ok(())
    })
}

/// Lends the parameters of the shard, `len` values: `slackline_shard_range` says which bytes of the table they are.
/// Valid, and unchanging, until the checkpoint is destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_checkpoint_parameters(
    checkpoint: *const slackline_checkpoint,
    parameters: *mut *const f32,
    len: *mut usize,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let out = unsafe { OutArray::new(parameters, len, "parameters")? };
        let lend = |restored: &mut Restored| {
            let parameters = restored.checkpoint.parameters();
            Ok((parameters.as_ptr(), parameters.len()))
        };
        // SAFETY: the contract.
        out.set(unsafe { with(checkpoint, lend)? });
        Ok(())
    })
}

/// Frees the memory; the file stays as it is. NULL does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_checkpoint_destroy(checkpoint: *mut slackline_checkpoint) {
    // SAFETY: the contract.
    unsafe { destroy(checkpoint) };
}
