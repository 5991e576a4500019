//! The part of CUDA's driver interface that is used here: types and values as `cuda.h` has them.
//!
//! They are written out instead of taken from the crate cudarc, whose bindings of the whole interface make the first
//! build of a program three to five seconds longer. A test holds every size and value here to that crate's.

use std::ffi::{c_int, c_void};

/// The result of a call (`CUresult`), which newer drivers may extend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Code(pub(crate) c_int);

impl Code {
    pub(crate) const SUCCESS: Code = Code(0);
    pub(crate) const INVALID_VALUE: Code = Code(1);
    pub(crate) const OUT_OF_MEMORY: Code = Code(2);
    pub(crate) const NOT_INITIALIZED: Code = Code(3);
    pub(crate) const DEINITIALIZED: Code = Code(4);
    pub(crate) const STUB_LIBRARY: Code = Code(34);
    pub(crate) const DEVICE_UNAVAILABLE: Code = Code(46);
    pub(crate) const NO_DEVICE: Code = Code(100);
    /// Also of a device that has no peer access.
    pub(crate) const INVALID_DEVICE: Code = Code(101);
    pub(crate) const ECC_UNCORRECTABLE: Code = Code(214);
    pub(crate) const NVLINK_UNCORRECTABLE: Code = Code(220);
    pub(crate) const CONTAINED: Code = Code(226);
    pub(crate) const OPERATING_SYSTEM: Code = Code(304);
    pub(crate) const NOT_FOUND: Code = Code(500);
    pub(crate) const NOT_READY: Code = Code(600);
    pub(crate) const ILLEGAL_ADDRESS: Code = Code(700);
    pub(crate) const LAUNCH_TIMEOUT: Code = Code(702);
    pub(crate) const CONTEXT_IS_DESTROYED: Code = Code(709);
    pub(crate) const ASSERT: Code = Code(710);
    pub(crate) const HOST_MEMORY_ALREADY_REGISTERED: Code = Code(712);
    pub(crate) const HARDWARE_STACK_ERROR: Code = Code(714);
    pub(crate) const LAUNCH_FAILED: Code = Code(719);
    pub(crate) const TENSOR_MEMORY_LEAK: Code = Code(721);
    pub(crate) const NOT_PERMITTED: Code = Code(800);
    pub(crate) const NOT_SUPPORTED: Code = Code(801);
    pub(crate) const SYSTEM_NOT_READY: Code = Code(802);
    pub(crate) const SYSTEM_DRIVER_MISMATCH: Code = Code(803);
    /// A library of forward compatibility, and a GPU that it is not for.
    pub(crate) const COMPAT_NOT_SUPPORTED: Code = Code(804);
    pub(crate) const MPS_CLIENT_TERMINATED: Code = Code(810);
    pub(crate) const CAPTURE_UNSUPPORTED: Code = Code(900);
    pub(crate) const CAPTURE_WRONG_THREAD: Code = Code(908);
    pub(crate) const EXTERNAL_DEVICE: Code = Code(911);
    pub(crate) const UNKNOWN: Code = Code(999);

    /// True for an error that ends the context: each later call of this process in it fails the same way.
    pub(crate) fn is_sticky(self) -> bool {
        let faults = Code::ILLEGAL_ADDRESS.0..=Code::LAUNCH_TIMEOUT.0;
        let later = Code::HARDWARE_STACK_ERROR.0..=Code::LAUNCH_FAILED.0;
        // 701, a launch that asks for too much, is the only one in there after which the context goes on.
        (faults.contains(&self.0) && self.0 != 701)
            || later.contains(&self.0)
            || [
                Code::ASSERT,
                Code::CONTAINED,
                Code::CONTEXT_IS_DESTROYED,
                Code::ECC_UNCORRECTABLE,
                Code::EXTERNAL_DEVICE,
                Code::MPS_CLIENT_TERMINATED,
                Code::NVLINK_UNCORRECTABLE,
                Code::TENSOR_MEMORY_LEAK,
            ]
            .contains(&self)
    }

    /// True for what a stream that captures a graph answers.
    pub(crate) fn is_of_capture(self) -> bool {
        (Code::CAPTURE_UNSUPPORTED.0..=Code::CAPTURE_WRONG_THREAD.0).contains(&self.0)
    }
}

/// A property of a device (`CUdevice_attribute`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Attribute(pub(crate) c_int);

impl Attribute {
    pub(crate) const PCI_BUS_ID: Attribute = Attribute(33);
    pub(crate) const PCI_DEVICE_ID: Attribute = Attribute(34);
    pub(crate) const PCI_DOMAIN_ID: Attribute = Attribute(50);
    pub(crate) const COMPUTE_CAPABILITY_MAJOR: Attribute = Attribute(75);
    pub(crate) const COMPUTE_CAPABILITY_MINOR: Attribute = Attribute(76);
    pub(crate) const HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: Attribute = Attribute(103);
    pub(crate) const GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED: Attribute = Attribute(110);
    pub(crate) const GPU_DIRECT_RDMA_SUPPORTED: Attribute = Attribute(116);
    pub(crate) const GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS: Attribute = Attribute(117);
    pub(crate) const GPU_DIRECT_RDMA_WRITES_ORDERING: Attribute = Attribute(118);
    /// Of the second form of `cuStreamWriteValue64`, which is there from CUDA 11.7 on.
    pub(crate) const CAN_USE_64_BIT_STREAM_MEM_OPS: Attribute = Attribute(122);
    pub(crate) const DMA_BUF_SUPPORTED: Attribute = Attribute(124);
}

/// A property of a pointer (`CUpointer_attribute`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct PointerAttribute(pub(crate) c_int);

impl PointerAttribute {
    /// Of memory that belongs to no context, such as that of `cuMemCreate` and of pools, 0 or unknown.
    pub(crate) const CONTEXT: PointerAttribute = PointerAttribute(1);
    pub(crate) const MEMORY_TYPE: PointerAttribute = PointerAttribute(2);
    /// A number that no other allocation of the process has had or will have.
    pub(crate) const BUFFER_ID: PointerAttribute = PointerAttribute(7);
    pub(crate) const IS_MANAGED: PointerAttribute = PointerAttribute(8);
    pub(crate) const DEVICE_ORDINAL: PointerAttribute = PointerAttribute(9);
    /// True of an allocation of `cuMemAlloc`, which is in one piece.
    pub(crate) const IS_LEGACY_CUDA_IPC_CAPABLE: PointerAttribute = PointerAttribute(10);
    pub(crate) const RANGE_START: PointerAttribute = PointerAttribute(11);
    pub(crate) const RANGE_BYTES: PointerAttribute = PointerAttribute(12);
}

/// What another process opens memory of `cuMemAlloc` by (`CUipcMemHandle`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct IpcHandle(pub(crate) [u8; 64]);

/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`, without which no handle is opened.
pub(crate) const IPC_LAZY_PEER_ACCESS: u32 = 1;
/// `CU_MEMORYTYPE_DEVICE`.
pub(crate) const MEMORY_TYPE_DEVICE: u32 = 2;
/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`.
pub(crate) const HANDLE_DMA_BUF: c_int = 1;
/// `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX`.
pub(crate) const FLUSH_CURRENT_CONTEXT: c_int = 0;
/// `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER`: writes become visible to the GPU whose memory they are to.
pub(crate) const FLUSH_TO_OWNER: c_int = 100;
/// `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST`: the call by which the host flushes is there.
pub(crate) const FLUSH_OPTION_HOST: i32 = 1;
/// `CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER`: the GPU sees the writes in order without a flush.
pub(crate) const ORDERING_OWNER: i32 = 100;
/// `CU_STREAM_NON_BLOCKING`: the stream does not wait for the legacy default stream.
pub(crate) const STREAM_NON_BLOCKING: u32 = 1;
/// `CU_EVENT_DISABLE_TIMING`.
pub(crate) const EVENT_DISABLE_TIMING: u32 = 2;
/// `CU_STREAM_CAPTURE_STATUS_NONE`.
pub(crate) const CAPTURE_STATUS_NONE: c_int = 0;
/// `CU_STREAM_WRITE_VALUE_DEFAULT`: the write comes behind a fence of the whole system.
pub(crate) const WRITE_VALUE_DEFAULT: u32 = 0;
/// `CU_MEMHOSTREGISTER_PORTABLE`: registered for all contexts of the process.
pub(crate) const HOST_REGISTER_PORTABLE: u32 = 1;
/// `CU_MEMHOSTREGISTER_DEVICEMAP`: the device has an address for it.
pub(crate) const HOST_REGISTER_DEVICEMAP: u32 = 2;
/// `CU_MEMHOSTREGISTER_READ_ONLY`: devices only read it.
pub(crate) const HOST_REGISTER_READ_ONLY: u32 = 8;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`: no call of this thread disturbs a capture.
pub(crate) const CAPTURE_MODE_RELAXED: c_int = 2;

/// `CUmemLocation`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct MemoryLocation {
    pub(crate) kind: c_int,
    pub(crate) id: c_int,
}

/// `CU_MEM_LOCATION_TYPE_DEVICE`.
pub(crate) const LOCATION_DEVICE: c_int = 1;

/// `CUmemAllocationProp`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct AllocationProperties {
    pub(crate) kind: c_int,
    pub(crate) handle_types: c_int,
    pub(crate) location: MemoryLocation,
    pub(crate) windows_metadata: *mut c_void,
    pub(crate) compression: u8,
    pub(crate) is_gpu_direct_rdma_capable: u8,
    pub(crate) usage: u16,
    pub(crate) reserved: [u8; 4],
}

/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
pub(crate) const ALLOCATION_PINNED: c_int = 1;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub(crate) const HANDLE_POSIX_FILE_DESCRIPTOR: c_int = 1;
/// `CU_MEM_ALLOC_GRANULARITY_MINIMUM`.
pub(crate) const GRANULARITY_MINIMUM: c_int = 0;
/// `CU_MEM_ACCESS_FLAGS_PROT_READ`.
pub(crate) const ACCESS_READ: c_int = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
pub(crate) const ACCESS_READ_WRITE: c_int = 3;

impl AllocationProperties {
    /// Nothing, to be filled in.
    pub(crate) const NONE: AllocationProperties = AllocationProperties {
        kind: 0,
        handle_types: 0,
        location: MemoryLocation { kind: 0, id: 0 },
        windows_metadata: std::ptr::null_mut(),
        compression: 0,
        is_gpu_direct_rdma_capable: 0,
        usage: 0,
        reserved: [0; 4],
    };
}

/// `CUmemAccessDesc`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct AccessDescriptor {
    pub(crate) location: MemoryLocation,
    pub(crate) flags: c_int,
}
