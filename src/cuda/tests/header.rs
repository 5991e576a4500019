//! What `sys` says of CUDA's header, held to the bindings of the crate cudarc.

use std::mem::{offset_of, size_of};

use cudarc::driver::sys as header;

use super::super::sys::*;

macro_rules! same {
    ($($ours:expr => $theirs:expr),* $(,)?) => {
        $(assert_eq!($ours as i64, $theirs as i64, stringify!($theirs));)*
    };
}

#[test]
fn values_are_those_of_the_header() {
    use header::{
        CUdevice_attribute_enum as device, CUpointer_attribute_enum as pointer, cudaError_enum as error,
    };
    same! {
        Code::SUCCESS.0 => error::CUDA_SUCCESS,
        Code::INVALID_VALUE.0 => error::CUDA_ERROR_INVALID_VALUE,
        Code::OUT_OF_MEMORY.0 => error::CUDA_ERROR_OUT_OF_MEMORY,
        Code::NOT_INITIALIZED.0 => error::CUDA_ERROR_NOT_INITIALIZED,
        Code::DEINITIALIZED.0 => error::CUDA_ERROR_DEINITIALIZED,
        Code::STUB_LIBRARY.0 => error::CUDA_ERROR_STUB_LIBRARY,
        Code::NO_DEVICE.0 => error::CUDA_ERROR_NO_DEVICE,
        Code::INVALID_DEVICE.0 => error::CUDA_ERROR_INVALID_DEVICE,
        Code::ECC_UNCORRECTABLE.0 => error::CUDA_ERROR_ECC_UNCORRECTABLE,
        Code::NVLINK_UNCORRECTABLE.0 => error::CUDA_ERROR_NVLINK_UNCORRECTABLE,
        Code::OPERATING_SYSTEM.0 => error::CUDA_ERROR_OPERATING_SYSTEM,
        Code::NOT_FOUND.0 => error::CUDA_ERROR_NOT_FOUND,
        Code::NOT_READY.0 => error::CUDA_ERROR_NOT_READY,
        Code::ILLEGAL_ADDRESS.0 => error::CUDA_ERROR_ILLEGAL_ADDRESS,
        Code::LAUNCH_TIMEOUT.0 => error::CUDA_ERROR_LAUNCH_TIMEOUT,
        Code::CONTEXT_IS_DESTROYED.0 => error::CUDA_ERROR_CONTEXT_IS_DESTROYED,
        Code::ASSERT.0 => error::CUDA_ERROR_ASSERT,
        Code::HOST_MEMORY_ALREADY_REGISTERED.0 => error::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
        Code::HARDWARE_STACK_ERROR.0 => error::CUDA_ERROR_HARDWARE_STACK_ERROR,
        Code::LAUNCH_FAILED.0 => error::CUDA_ERROR_LAUNCH_FAILED,
        Code::DEVICE_UNAVAILABLE.0 => error::CUDA_ERROR_DEVICE_UNAVAILABLE,
        Code::CONTAINED.0 => error::CUDA_ERROR_CONTAINED,
        Code::TENSOR_MEMORY_LEAK.0 => error::CUDA_ERROR_TENSOR_MEMORY_LEAK,
        Code::SYSTEM_NOT_READY.0 => error::CUDA_ERROR_SYSTEM_NOT_READY,
        Code::MPS_CLIENT_TERMINATED.0 => error::CUDA_ERROR_MPS_CLIENT_TERMINATED,
        Code::CAPTURE_UNSUPPORTED.0 => error::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
        Code::CAPTURE_WRONG_THREAD.0 => error::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
        Code::EXTERNAL_DEVICE.0 => error::CUDA_ERROR_EXTERNAL_DEVICE,
        Code::UNKNOWN.0 => error::CUDA_ERROR_UNKNOWN,
        Code::NOT_PERMITTED.0 => error::CUDA_ERROR_NOT_PERMITTED,
        Code::NOT_SUPPORTED.0 => error::CUDA_ERROR_NOT_SUPPORTED,
        Code::SYSTEM_DRIVER_MISMATCH.0 => error::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
        Code::COMPAT_NOT_SUPPORTED.0 => error::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE,
        Attribute::PCI_BUS_ID.0 => device::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID,
        Attribute::PCI_DEVICE_ID.0 => device::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID,
        Attribute::PCI_DOMAIN_ID.0 => device::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID,
        Attribute::COMPUTE_CAPABILITY_MAJOR.0 => device::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
        Attribute::COMPUTE_CAPABILITY_MINOR.0 => device::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        Attribute::HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED.0
            => device::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
        Attribute::GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED.0
            => device::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
        Attribute::GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS.0 =>
            device::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS,
        Attribute::GPU_DIRECT_RDMA_WRITES_ORDERING.0 =>
            device::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING,
        Attribute::GPU_DIRECT_RDMA_SUPPORTED.0 => device::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED,
        Attribute::CAN_USE_64_BIT_STREAM_MEM_OPS.0 => device::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS,
        Attribute::DMA_BUF_SUPPORTED.0 => device::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED,
        PointerAttribute::CONTEXT.0 => pointer::CU_POINTER_ATTRIBUTE_CONTEXT,
        PointerAttribute::MEMORY_TYPE.0 => pointer::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        PointerAttribute::BUFFER_ID.0 => pointer::CU_POINTER_ATTRIBUTE_BUFFER_ID,
        PointerAttribute::IS_MANAGED.0 => pointer::CU_POINTER_ATTRIBUTE_IS_MANAGED,
        PointerAttribute::DEVICE_ORDINAL.0 => pointer::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        PointerAttribute::IS_LEGACY_CUDA_IPC_CAPABLE.0
            => pointer::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
        PointerAttribute::RANGE_START.0 => pointer::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        PointerAttribute::RANGE_BYTES.0 => pointer::CU_POINTER_ATTRIBUTE_RANGE_SIZE,
        HANDLE_DMA_BUF => header::CUmemRangeHandleType_enum::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
        FLUSH_CURRENT_CONTEXT
            => header::CUflushGPUDirectRDMAWritesTarget_enum::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
        FLUSH_TO_OWNER
            => header::CUflushGPUDirectRDMAWritesScope_enum::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER,
        FLUSH_OPTION_HOST
            => header::CUflushGPUDirectRDMAWritesOptions_enum::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST,
        ORDERING_OWNER
            => header::CUGPUDirectRDMAWritesOrdering_enum::CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER,
        IPC_LAZY_PEER_ACCESS => header::CUipcMem_flags_enum::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS,
        MEMORY_TYPE_DEVICE => header::CUmemorytype_enum::CU_MEMORYTYPE_DEVICE,
        STREAM_NON_BLOCKING => header::CUstream_flags_enum::CU_STREAM_NON_BLOCKING,
        EVENT_DISABLE_TIMING => header::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING,
        CAPTURE_STATUS_NONE => header::CUstreamCaptureStatus_enum::CU_STREAM_CAPTURE_STATUS_NONE,
        WRITE_VALUE_DEFAULT => header::CUstreamWriteValue_flags_enum::CU_STREAM_WRITE_VALUE_DEFAULT,
        HOST_REGISTER_PORTABLE => header::CU_MEMHOSTREGISTER_PORTABLE,
        HOST_REGISTER_DEVICEMAP => header::CU_MEMHOSTREGISTER_DEVICEMAP,
        HOST_REGISTER_READ_ONLY => header::CU_MEMHOSTREGISTER_READ_ONLY,
        CAPTURE_MODE_RELAXED => header::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED,
        LOCATION_DEVICE => header::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE,
        ALLOCATION_PINNED => header::CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED,
        HANDLE_POSIX_FILE_DESCRIPTOR
            => header::CUmemAllocationHandleType_enum::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0,
        GRANULARITY_MINIMUM => header::CUmemAllocationGranularity_flags_enum::CU_MEM_ALLOC_GRANULARITY_MINIMUM,
        ACCESS_READ => header::CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READ,
        ACCESS_READ_WRITE => header::CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    }
}

#[test]
fn structures_are_laid_out_as_the_header_has_them() {
    assert_eq!(size_of::<MemoryLocation>(), size_of::<header::CUmemLocation>());
    assert_eq!(size_of::<AccessDescriptor>(), size_of::<header::CUmemAccessDesc>());
    assert_eq!(size_of::<IpcHandle>(), size_of::<header::CUipcMemHandle>());
    assert_eq!(size_of::<AllocationProperties>(), size_of::<header::CUmemAllocationProp>());
    same! {
        offset_of!(AllocationProperties, handle_types) => offset_of!(header::CUmemAllocationProp, requestedHandleTypes),
        offset_of!(AllocationProperties, location) => offset_of!(header::CUmemAllocationProp, location),
        offset_of!(AllocationProperties, windows_metadata)
            => offset_of!(header::CUmemAllocationProp, win32HandleMetaData),
        offset_of!(AllocationProperties, compression) => offset_of!(header::CUmemAllocationProp, allocFlags),
        offset_of!(AllocationProperties, is_gpu_direct_rdma_capable) - offset_of!(AllocationProperties, compression)
            => offset_of!(header::CUmemAllocationProp_st__bindgen_ty_1, gpuDirectRDMACapable),
        offset_of!(AccessDescriptor, flags) => offset_of!(header::CUmemAccessDesc, flags),
        offset_of!(MemoryLocation, id) => offset_of!(header::CUmemLocation, id),
    }
}
