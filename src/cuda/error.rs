//! Errors of GPU memory.

use std::borrow::Cow;
use std::time::Duration;

use super::lent::{OPENING, SHARING};
use super::sys::Code;
use crate::diagnostic::{Diagnostic, remedy_of};

/// The operation in which the driver meets the system: modules of the kernel, devices, and the rights on them.
const INITIALISING: &str = "initialising the driver";

/// The operation that takes room in the window of the GPU on the PCI bus.
pub(super) const EXPORTING: &str = "exporting memory of a GPU to RDMA devices";

/// The remedy where memory of the caller's does not come from one process to another.
const SHARED: &str = "CUDA passes memory of cudaMalloc on between processes of one host that see each other (not of \
                      two containers), on one GPU or on two with peer access, without MIG and not under WSL: run \
                      both so, leave `PublisherOptions::gpu_memory` out, or connect over TCP";

/// The remedy where that window has no room for memory of a GPU.
pub(crate) const FULL_WINDOW: &str = "the window of the GPU on the PCI bus may be full: see BAR1 in \
                                      `nvidia-smi -q -d MEMORY`, and turn on \"Resizable BAR\" in the host's \
                                      firmware";

/// A GPU, or memory of one, cannot be used as asked. The text ends in the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// There is no driver.
    #[error("cannot open libcuda.so.1: {reason}; {}", remedy_of(self))]
    NoDriver {
        /// The message of the loader.
        reason: String,
    },
    /// The driver is older than CUDA 12.0.
    #[error(
        "the NVIDIA driver has CUDA {}.{}, and 12.0 or later is needed; {}",
        version / 1000, version % 1000 / 10, remedy_of(self)
    )]
    OldDriver {
        /// Its version: 1000 times the major number, and 10 times the minor one.
        version: i32,
    },
    /// The library that was opened is the stub with which toolkits link programs.
    #[error("libcuda.so.1 is the stub of a CUDA toolkit, not a driver; {}", remedy_of(self))]
    StubDriver,
    /// The driver lacks a function that it should have.
    #[error("the NVIDIA driver has no function {symbol}; {}", remedy_of(self))]
    NoSymbol {
        /// The function.
        symbol: &'static str,
    },
    /// There is no such GPU, or this process may not use it.
    #[error("there is no GPU {ordinal}: this process sees {count}; {}", remedy_of(self))]
    NoDevice {
        /// The ordinal that was asked for.
        ordinal: u32,
        /// Number of GPUs that the process sees.
        count: u32,
    },
    /// The GPU has no more memory.
    #[error(
        "{operation} failed: GPU {ordinal} is out of memory{}; {}",
        asked_for(*bytes), remedy_of(self)
    )]
    OutOfMemory {
        /// The call, in words.
        operation: &'static str,
        /// The GPU.
        ordinal: u32,
        /// Bytes that were asked for, where that is known: contexts, streams and kernels take memory, too.
        bytes: Option<usize>,
    },
    /// The pointer is not one of memory of a GPU, or of managed memory.
    #[error("{pointer:#x} does not point to memory of a GPU but to {kind}; {}", remedy_of(self))]
    NotOnDevice {
        /// The address.
        pointer: u64,
        /// "host memory", "managed memory" or "memory that CUDA does not know".
        kind: &'static str,
    },
    /// The memory is on another GPU.
    #[error("the memory at {pointer:#x} is that of GPU {found}, not of GPU {ordinal}; {}", remedy_of(self))]
    OtherDevice {
        /// The address.
        pointer: u64,
        /// The GPU that it was to be of.
        ordinal: u32,
        /// The GPU that it is of.
        found: u32,
    },
    /// The range is longer than the allocation.
    #[error(
        "{bytes} bytes from {pointer:#x} on were not allocated: only {available} are; {}",
        remedy_of(self)
    )]
    BeyondAllocation {
        /// The address of the first byte.
        pointer: u64,
        /// Bytes that were asked for.
        bytes: usize,
        /// Bytes from there to the end of the allocation.
        available: usize,
    },
    /// Memory of the caller's cannot be passed to other processes.
    #[error(
        "the memory at {pointer:#x} is the caller's, and no other process can be given it; {}",
        remedy_of(self)
    )]
    NotOurs {
        /// The address.
        pointer: u64,
    },
    /// The system has no socket to pass memory of the caller's by, or the peer has passed nothing by it.
    #[error("{operation} failed: {reason}; {}", remedy_of(self))]
    Socket {
        /// The call, in words.
        operation: &'static str,
        /// The error that the system reported.
        reason: String,
    },
    /// The memory holds a version that a reader has pinned, which the publisher lends for reading.
    #[error("the memory at {pointer:#x} is of a pinned version, and is not copied into; {}", remedy_of(self))]
    Lent {
        /// The address.
        pointer: u64,
    },
    /// A call touches bytes, and they are in memory of a GPU.
    #[error("cannot {operation}: the bytes are in memory of a GPU; {}", remedy_of(self))]
    OnGpu {
        /// The call, in words.
        operation: &'static str,
    },
    /// The stream or the memory is one of another context than the primary one of the GPU.
    #[error("the {what} is not of the primary context of GPU {ordinal}; {}", remedy_of(self))]
    OtherContext {
        /// "stream" or "memory".
        what: &'static str,
        /// The GPU.
        ordinal: u32,
    },
    /// The stream is capturing a graph.
    #[error(
        "the stream is capturing a CUDA graph, and a copy of parameters cannot be replayed; {}",
        remedy_of(self)
    )]
    Capturing,
    /// A kernel or a copy of this process failed, and with it all of its work on the GPU.
    #[error(
        "work of this process on GPU {ordinal} failed with CUDA error {code}, after which no call succeeds; {}",
        remedy_of(self)
    )]
    Faulted {
        /// The GPU.
        ordinal: u32,
        /// The error (`CUresult`).
        code: i32,
    },
    /// The process was forked after it had opened the GPU, or after another library had initialised CUDA.
    #[error(
        "this process was forked from one that had opened the GPU or initialised CUDA, which is of no use in it; {}",
        remedy_of(self)
    )]
    Forked,
    /// A copy is not done yet, or the driver does not say that it is.
    #[error("the GPU did not copy within {:?}: {}; {}", whole_ms(*.waited), delay(cause), remedy_of(self))]
    NotCopied {
        /// The time that was waited.
        waited: Duration,
        /// The driver's error when it was asked whether the copy is done.
        cause: Option<Box<GpuError>>,
    },
    /// No RDMA device carries the memory itself, and it may not be staged.
    #[error("RDMA devices do not carry {bytes} bytes of a GPU themselves: {reason}")]
    NotDirect {
        /// Bytes that were to be carried.
        bytes: usize,
        /// The reason, with its remedy.
        reason: String,
    },
    /// The source of a conversion to halves does not have whole f32 elements, or the destination has another length.
    #[error(
        "cannot convert {bytes} bytes at {pointer:#x} to halves in {room} bytes at {to:#x}: they are not as many \
         whole, aligned elements; {}",
        remedy_of(self)
    )]
    Elements {
        /// The address that is converted from.
        pointer: u64,
        /// Bytes from there on.
        bytes: usize,
        /// The address that is converted to.
        to: u64,
        /// Bytes from there on.
        room: usize,
    },
    /// The parts of a fold do not go together.
    #[error("cannot fold on a GPU: {reason}")]
    Fold {
        /// The reason, with its remedy.
        reason: &'static str,
    },
    /// A length of zero.
    #[error("memory of a GPU has at least one byte")]
    Empty,
    /// Host memory cannot be had, or not be locked, for copies.
    #[error("no host memory for copies of a GPU: {reason}")]
    Host {
        /// The reason, with its remedy.
        reason: String,
    },
    /// The driver refused a call for another reason.
    #[error("{operation} failed with CUDA error {code}; {}", remedy_of(self))]
    Driver {
        /// The call, in words.
        operation: &'static str,
        /// The error (`CUresult`).
        code: i32,
    },
}

fn asked_for(bytes: Option<usize>) -> String {
    bytes.map_or_else(String::new, |bytes| format!(" for {bytes} bytes"))
}

/// The cause that holds a copy up.
fn delay(cause: &Option<Box<GpuError>>) -> String {
    match cause.as_deref() {
        None => "its stream has other work before the copy".into(),
        Some(GpuError::Driver { operation, code }) => format!("{operation} failed with CUDA error {code}"),
        Some(other) => other.to_string(),
    }
}

/// A duration as people read it.
fn whole_ms(duration: Duration) -> Duration {
    Duration::from_millis(duration.as_millis() as u64)
}

impl GpuError {
    /// The error of a call that has no device yet.
    pub(super) fn of(operation: &'static str, code: Code) -> GpuError {
        match code {
            Code::STUB_LIBRARY => GpuError::StubDriver,
            Code::NO_DEVICE => GpuError::NoDevice { ordinal: 0, count: 0 },
            Code(code) => GpuError::Driver { operation, code },
        }
    }

    /// The error of a driver that cannot be initialised. `was_loaded` if its library was in the process before.
    pub(super) fn of_initialisation(code: Code, was_loaded: bool) -> GpuError {
        match code {
            // The answer to a forked child whose parent, or another library in it, had initialised the driver. A
            // process that has just loaded the library inherits nothing of it.
            Code::NOT_INITIALIZED if was_loaded => GpuError::Forked,
            code => GpuError::of(INITIALISING, code),
        }
    }

    /// The error of a call that concerns a device.
    pub(super) fn of_device(operation: &'static str, ordinal: u32, code: Code) -> GpuError {
        match code {
            code if code.is_sticky() => GpuError::Faulted { ordinal, code: code.0 },
            code if code.is_of_capture() => GpuError::Capturing,
            Code::OUT_OF_MEMORY => GpuError::OutOfMemory { operation, ordinal, bytes: None },
            code => GpuError::of(operation, code),
        }
    }

    /// True if the driver exports no memory because the window of the GPU on the PCI bus has no room for it.
    pub(crate) fn is_of_full_window(&self) -> bool {
        matches!(self, GpuError::Driver { operation: EXPORTING, code } if Code(*code) == Code::OUT_OF_MEMORY)
    }
}

/// The remedy for the error of a driver that cannot be initialised. The error stays the same for as long as the process
/// lives.
fn remedy_of_initialisation(code: Code) -> &'static str {
    match code {
        Code::NOT_INITIALIZED => {
            "load the kernel modules nvidia and nvidia-uvm (`nvidia-modprobe -u -c 0`), look at the kernel's log \
             (`dmesg`), and start the program again"
        }
        // What a process is told that may not open the devices, or whose host or container lacks that of nvidia-uvm.
        Code::UNKNOWN | Code::OPERATING_SYSTEM => {
            "let this process read and write /dev/nvidiactl, /dev/nvidia-uvm and /dev/nvidia0 and following: look at \
             their rights, at the devices of its container, at whether the kernel module nvidia-uvm is loaded \
             (`nvidia-modprobe -u -c 0`) and at the kernel's log (`dmesg`), and start the program again"
        }
        code => remedy_of_code(code),
    }
}

/// The remedy of an error that has no variant of its own.
fn remedy_of_code(code: Code) -> &'static str {
    match code {
        Code::OUT_OF_MEMORY => "free memory of the GPU and of the host",
        Code::NOT_INITIALIZED => "start the process by exec: CUDA is of no use in a forked child",
        Code::INVALID_DEVICE => {
            "let this process use the GPU that the memory is on: look at CUDA_VISIBLE_DEVICES and at \
             `nvidia-smi topo -p2p r`"
        }
        Code::UNKNOWN => "look at the kernel's log (`dmesg`) for Xid, and start the program again",
        Code::NOT_PERMITTED => "look at the rights on /dev/nvidia*, and at whether MIG or MPS forbids it",
        Code::NOT_SUPPORTED => "use host memory for it: this GPU or its driver cannot",
        Code::SYSTEM_DRIVER_MISMATCH => "reboot, or load the kernel module of the driver's own release",
        Code::COMPAT_NOT_SUPPORTED => {
            "take the folder of the compatibility library (`cuda/compat`) out of LD_LIBRARY_PATH, as this GPU does \
             not have forward compatibility, or take a container of the CUDA version that the host's driver has"
        }
        Code::OPERATING_SYSTEM => "look at the kernel's log (`dmesg`)",
        Code::DEVICE_UNAVAILABLE => {
            "end the process that has the GPU to itself, or set its compute mode to default"
        }
        Code::SYSTEM_NOT_READY => "start the service nvidia-fabricmanager, which a host of this kind needs",
        _ => "look the number up in the documentation of CUresult",
    }
}

impl Diagnostic for GpuError {
    fn operation(&self) -> &'static str {
        match self {
            GpuError::NoDriver { .. }
            | GpuError::OldDriver { .. }
            | GpuError::StubDriver
            | GpuError::NoSymbol { .. } => "opening the NVIDIA driver",
            GpuError::NoDevice { .. } | GpuError::Forked => "opening a GPU",
            GpuError::OutOfMemory { operation, .. } => operation,
            GpuError::NotOnDevice { .. }
            | GpuError::OtherDevice { .. }
            | GpuError::BeyondAllocation { .. } => "taking memory of a GPU",
            GpuError::NotOurs { .. } => "granting memory of a GPU",
            GpuError::Lent { .. } => "copying to memory of a GPU",
            GpuError::OnGpu { operation } | GpuError::Socket { operation, .. } => operation,
            GpuError::OtherContext { what: "memory", .. } => "taking memory of a GPU",
            GpuError::OtherContext { .. } | GpuError::Capturing => "copying behind a stream",
            GpuError::Faulted { .. } | GpuError::NotCopied { .. } => "waiting for a copy of a GPU",
            GpuError::Elements { .. } => "converting elements to halves",
            GpuError::Fold { .. } => "folding on a GPU",
            GpuError::Empty => "taking memory of a GPU",
            GpuError::Host { .. } => "allocating host memory",
            GpuError::NotDirect { .. } => "registering memory of a GPU with an RDMA device",
            GpuError::Driver { operation, .. } => operation,
        }
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        Some(Cow::Borrowed(match self {
            // Its reason ends in one.
            GpuError::Host { .. } | GpuError::NotDirect { .. } | GpuError::Fold { .. } | GpuError::Empty => {
                return None;
            }
            GpuError::NotCopied { cause: None, .. } => "wait for that work first, or use a longer timeout",
            GpuError::NotCopied { cause: Some(cause), .. } => return cause.remedy(),
            GpuError::NoDriver { .. } => {
                "install the NVIDIA driver, and in a container give it the GPU (`--gpus all`)"
            }
            GpuError::OldDriver { .. } => "install driver R525 or later",
            GpuError::StubDriver => "take the toolkit's folder `stubs` out of LD_LIBRARY_PATH",
            GpuError::NoSymbol { .. } => "install a driver of one release, R525 or later",
            GpuError::NoDevice { count: 0, .. } => {
                "look at `nvidia-smi`, at CUDA_VISIBLE_DEVICES and at the rights on /dev/nvidia*"
            }
            GpuError::NoDevice { .. } => "count from 0, and look at CUDA_VISIBLE_DEVICES",
            GpuError::OutOfMemory { .. } => {
                "end what else uses its memory (`nvidia-smi` lists it), or ask for less"
            }
            GpuError::NotOnDevice { .. } => {
                "give memory of cudaMalloc, of cuMemCreate, or of a tensor on the GPU"
            }
            GpuError::OtherDevice { .. } => "open the GPU that the memory is on",
            GpuError::BeyondAllocation { .. } => "give a range inside one allocation",
            GpuError::Elements { .. } => {
                "give at least one f32 element at a multiple of 4 bytes, and 2 bytes for each at a multiple of 2"
            }
            GpuError::NotOurs { .. } => {
                "give memory of cudaMalloc (of PyTorch with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False), or of \
                 `GpuMemory::allocate`"
            }
            GpuError::Socket { .. } => {
                "raise this process's limit on open files (`ulimit -n`), or look at the log of the peer"
            }
            GpuError::Lent { .. } => "copy into memory of this process",
            GpuError::OnGpu { .. } => "use the call for memory of a GPU, or a transport without a GPU",
            GpuError::OtherContext { .. } => {
                "give a stream and memory of the CUDA runtime on this GPU, as PyTorch's are"
            }
            GpuError::Capturing => "copy outside the capture",
            GpuError::Faulted { .. } => {
                "find the kernel with CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer, and start the program again"
            }
            GpuError::Forked => "open the GPU after the fork, or start the process by exec",
            error if error.is_of_full_window() => FULL_WINDOW,
            GpuError::Driver { operation: SHARING | OPENING, .. } => SHARED,
            GpuError::Driver { operation: INITIALISING, code } => remedy_of_initialisation(Code(*code)),
            GpuError::Driver { code, .. } => remedy_of_code(Code(*code)),
        }))
    }

    fn is_retryable(&self) -> bool {
        matches!(self, GpuError::OutOfMemory { .. } | GpuError::NotCopied { .. })
    }
}
