//! The work of streams, and how it is done.

use super::super::driver::DevicePointer;
use super::super::sys::Code;
use super::ScriptedState;
use super::host::ScriptedHost;
use super::kernel::{Memory, ScriptedKernel};

/// A copy is made in so many pieces.
const PIECES: usize = 3;

const NOT_ALLOCATED: &str = "memory of the device that is allocated";

/// Work that a stream has. A fault is a kernel that fails.
pub(super) enum StreamWork {
    Record(u64),
    Wait(u64),
    ToHost { host: usize, device: DevicePointer, bytes: usize, done: usize },
    FromHost { host: usize, device: DevicePointer, bytes: usize, done: usize },
    Within { to: DevicePointer, from: DevicePointer, bytes: usize, done: usize },
    Launch { kernel: ScriptedKernel, done: usize },
    Word { host: usize, value: u64 },
    Fill { pointer: DevicePointer, bytes: usize, value: u8 },
    Kernel { to: DevicePointer, from: DevicePointer, bytes: usize },
    Fault(Code),
}

impl StreamWork {
    /// An address in each array that it reads or writes, on the device and in the host's memory.
    pub(super) fn addresses(&self) -> Vec<DevicePointer> {
        match self {
            StreamWork::Record(_) | StreamWork::Wait(_) | StreamWork::Fault(_) => Vec::new(),
            StreamWork::ToHost { host, device, .. } | StreamWork::FromHost { host, device, .. } => {
                vec![*host as DevicePointer, *device]
            }
            StreamWork::Within { to, from, .. } | StreamWork::Kernel { to, from, .. } => vec![*to, *from],
            StreamWork::Launch { kernel, .. } => kernel.addresses(),
            StreamWork::Word { host, .. } => vec![*host as DevicePointer],
            StreamWork::Fill { pointer, .. } => vec![*pointer],
        }
    }

    /// Fails the test unless the host's memory that it names is locked for a device and this use of it.
    pub(super) fn expect_locked(&self, host: &ScriptedHost, by: i32) {
        match self {
            StreamWork::ToHost { host: begin, bytes, .. } => host.expect(by, *begin, *bytes, true),
            StreamWork::FromHost { host: begin, bytes, .. } => host.expect(by, *begin, *bytes, false),
            StreamWork::Word { host: word, .. } => host.expect(by, *word, size_of::<u64>(), true),
            // What kernels write is known once they write it.
            _ => {}
        }
    }
}

impl ScriptedState {
    /// Does a piece of the work of a device; true if the work is done.
    ///
    /// # Errors
    /// The fault that it is.
    pub(super) fn piece(&mut self, by: i32, work: &mut StreamWork) -> Result<bool, Code> {
        let (memory, registered) = (&mut self.device, &self.registered);
        let is_done = match work {
            StreamWork::Record(_) | StreamWork::Wait(_) => true,
            StreamWork::ToHost { host, device, bytes, done } => {
                let (piece, offset) = next_piece(*bytes, done);
                let from = memory.load(*device + offset as u64, piece).expect(NOT_ALLOCATED);
                registered.write(by, *host + offset, &from);
                done == bytes
            }
            StreamWork::FromHost { host, device, bytes, done } => {
                let (piece, offset) = next_piece(*bytes, done);
                let mut copied = vec![0; piece];
                registered.read(by, *host + offset, &mut copied);
                memory.store(*device + offset as u64, &copied).expect(NOT_ALLOCATED);
                done == bytes
            }
            StreamWork::Within { to, from, bytes, done } => {
                let (piece, offset) = next_piece(*bytes, done);
                let copied = memory.load(*from + offset as u64, piece).expect(NOT_ALLOCATED);
                memory.store(*to + offset as u64, &copied).expect(NOT_ALLOCATED);
                done == bytes
            }
            StreamWork::Launch { kernel, .. } if !kernel.is_there(memory) => {
                return Err(Code::ILLEGAL_ADDRESS);
            }
            StreamWork::Launch { kernel, done } => {
                let (piece, offset) = next_piece(kernel.count(), done);
                let mut memory = Memory { device: memory, registered, by };
                kernel.run(offset..offset + piece, &mut memory);
                if *done == kernel.count() && kernel.goes_on(&memory) {
                    *done = 0;
                }
                *done == kernel.count()
            }
            StreamWork::Word { host, value } => {
                registered.store(by, *host, *value);
                true
            }
            StreamWork::Fill { pointer, bytes, value } => {
                memory.store(*pointer, &vec![*value; *bytes]).expect(NOT_ALLOCATED);
                true
            }
            StreamWork::Kernel { to, from, bytes } => {
                let copied = memory.load(*from, *bytes).expect(NOT_ALLOCATED);
                memory.store(*to, &copied).expect(NOT_ALLOCATED);
                true
            }
            StreamWork::Fault(code) => return Err(*code),
        };
        Ok(is_done)
    }
}

/// The length of the next piece of so many bytes, of which some are done, and where it begins.
fn next_piece(bytes: usize, done: &mut usize) -> (usize, usize) {
    let begin = *done;
    *done += bytes.div_ceil(PIECES).min(bytes - begin);
    (*done - begin, begin)
}
