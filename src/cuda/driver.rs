//! The calls of the driver that are used here, as a trait: the library of the system implements it, and so does the
//! scripted driver of the tests.

use std::any::Any;
use std::ffi::{CStr, c_void};
use std::os::fd::{BorrowedFd, OwnedFd};

use super::sys::{Attribute, Code, IpcHandle, PointerAttribute};

/// A handle of a device's context, which belongs to the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Context(pub(crate) usize);

/// A stream; 0 is the default stream of the context that is current.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamHandle(pub(crate) usize);

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EventHandle(pub(crate) usize);

/// Kernels that were loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ModuleHandle(pub(crate) usize);

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FunctionHandle(pub(crate) usize);

/// An address in the memory of a device, or of host memory that devices reach.
pub(crate) type DevicePointer = u64;

/// Memory that was allocated by [`Driver::allocate`], or mapped by [`Driver::import`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allocation {
    pub(crate) pointer: DevicePointer,
    /// Bytes that it takes, rounded up to the granularity of the device.
    pub(crate) bytes: usize,
    pub(crate) handle: u64,
}

/// Calls of the driver. A context must be current where a stream, an event or memory is named. All handles are those
/// that this driver has given, or that the caller has promised to be such
/// ([`GpuStream::of_caller`](super::GpuStream::of_caller)).
pub(crate) trait Driver: Any + Send + Sync {
    /// Version of the driver: 1000 times the major number, and 10 times the minor one.
    fn version(&self) -> Result<i32, Code>;

    /// Number of devices.
    fn device_count(&self) -> Result<i32, Code>;

    /// The device of this ordinal.
    fn device(&self, ordinal: i32) -> Result<i32, Code>;

    /// Name of a device.
    fn device_name(&self, device: i32) -> Result<String, Code>;

    /// The number that no other device has, nor another instance of the same device.
    fn device_uuid(&self, device: i32) -> Result<[u8; 16], Code>;

    /// True if a device can be given memory of another one.
    fn reaches(&self, device: i32, other: i32) -> Result<bool, Code>;

    /// A property of a device.
    fn attribute(&self, attribute: Attribute, device: i32) -> Result<i32, Code>;

    /// The primary context of a device, which stays until it is released as often as it was retained.
    fn retain_primary_context(&self, device: i32) -> Result<Context, Code>;

    /// Gives it back.
    fn release_primary_context(&self, device: i32) -> Result<(), Code>;

    /// Makes a context current on this thread, on top of the previous one.
    fn push_context(&self, context: Context) -> Result<(), Code>;

    /// Takes the topmost context of this thread away.
    fn pop_context(&self) -> Result<(), Code>;

    /// Sets how calls of this thread get on with captures of graphs; returns how it was.
    fn exchange_capture_mode(&self, mode: i32) -> Result<i32, Code>;

    /// A property of a pointer.
    fn pointer_attribute(&self, attribute: PointerAttribute, pointer: DevicePointer) -> Result<u64, Code>;

    /// Begin and length of the allocation, or of the segment of one, that a pointer is in.
    fn address_range(&self, pointer: DevicePointer) -> Result<(DevicePointer, usize), Code>;

    /// Memory of a device, which other processes can be given.
    fn allocate(&self, device: i32, bytes: usize) -> Result<Allocation, Code>;

    /// Memory of a device in two pieces of at least so many bytes, one right behind the other, as allocators of callers
    /// make it. Returns its begin and the length of each. It stays until the process ends: tests alone take it.
    fn allocate_two_pieces(&self, device: i32, bytes: usize) -> Result<(DevicePointer, usize), Code>;

    /// Memory of the device whose context is current, of `cuMemAlloc`, as callers allocate it. It stays until the
    /// process ends: tests alone take it.
    fn allocate_classic(&self, bytes: usize) -> Result<DevicePointer, Code>;

    /// A descriptor by which another process of this host maps memory of [`allocate`](Self::allocate).
    fn export(&self, allocation: Allocation) -> Result<OwnedFd, Code>;

    /// A dma-buf of a range of memory of a device, by which RDMA devices register it. The range begins and ends at
    /// pages of the host. Each dma-buf takes a window of the device's PCI address space of its own.
    fn dma_buf(&self, pointer: DevicePointer, bytes: usize) -> Result<OwnedFd, Code>;

    /// Makes the writes of RDMA devices to the device's memory visible to it, as far as the processor knows of them.
    fn flush_rdma_writes(&self) -> Result<(), Code>;

    /// The device that memory is on which another process has exported.
    fn home(&self, file: BorrowedFd<'_>) -> Result<i32, Code>;

    /// Maps memory that another process has exported, all of its `bytes`, for a device of this process.
    fn import(
        &self,
        device: i32,
        file: BorrowedFd<'_>,
        bytes: usize,
        is_writable: bool,
    ) -> Result<Allocation, Code>;

    /// The handle by which other processes of this host open the allocation of `cuMemAlloc` that begins at `pointer`.
    fn share(&self, pointer: DevicePointer) -> Result<IpcHandle, Code>;

    /// Opens an allocation that another process has shared, and returns its address here. The driver counts: an open
    /// allocation keeps its address, and is closed with the last [`close_shared`](Self::close_shared). A
    /// process does not open its own.
    fn open_shared(&self, handle: IpcHandle) -> Result<DevicePointer, Code>;

    /// Closes it once.
    ///
    /// # Safety
    /// Nothing uses it any more that relied on this opening.
    unsafe fn close_shared(&self, begin: DevicePointer) -> Result<(), Code>;

    /// Gives it back.
    ///
    /// # Safety
    /// Nothing uses it any more.
    unsafe fn free(&self, allocation: Allocation) -> Result<(), Code>;

    /// Locks host memory, so that devices copy it without help of a processor. Returns the address by which they write
    /// it, unless it is registered to be read only.
    ///
    /// # Safety
    /// The range is mapped, and stays so until it is unregistered.
    unsafe fn register_host(&self, begin: *mut u8, bytes: usize, flags: u32) -> Result<DevicePointer, Code>;

    /// The address by which devices write a byte of registered host memory.
    fn host_pointer(&self, host: *mut u8) -> Result<DevicePointer, Code>;

    /// Undoes it.
    ///
    /// # Safety
    /// No device uses the range any more.
    unsafe fn unregister_host(&self, begin: *mut u8) -> Result<(), Code>;

    /// A stream that waits for no other.
    fn create_stream(&self) -> Result<StreamHandle, Code>;

    /// Ends a stream, once its work is done.
    fn destroy_stream(&self, stream: StreamHandle) -> Result<(), Code>;

    /// The context of a stream.
    fn stream_context(&self, stream: StreamHandle) -> Result<Context, Code>;

    /// True while work of a stream is captured into a graph.
    fn is_capturing(&self, stream: StreamHandle) -> Result<bool, Code>;

    /// Whether all work of a stream is done; also how errors of its work are told. It does not wait.
    fn is_idle(&self, stream: StreamHandle) -> Result<bool, Code>;

    /// An event without a time.
    fn create_event(&self) -> Result<EventHandle, Code>;

    /// Gives it back.
    fn destroy_event(&self, event: EventHandle) -> Result<(), Code>;

    /// The event has happened once the work that `stream` has now is done.
    fn record(&self, event: EventHandle, stream: StreamHandle) -> Result<(), Code>;

    /// Whether the event has happened.
    fn has_happened(&self, event: EventHandle) -> Result<bool, Code>;

    /// Later work of `stream` waits for the event, as it was recorded last.
    fn wait_for(&self, stream: StreamHandle, event: EventHandle) -> Result<(), Code>;

    /// Copies from a device to registered host memory, behind the work of `stream`.
    ///
    /// # Safety
    /// Both ranges stay as they are until the copy is done, and nothing else reads or writes `to` meanwhile.
    unsafe fn copy_to_host(
        &self,
        to: *mut c_void,
        from: DevicePointer,
        bytes: usize,
        stream: StreamHandle,
    ) -> Result<(), Code>;

    /// Copies from host memory to a device, behind the work of `stream`.
    ///
    /// # Safety
    /// Both ranges stay as they are until the copy is done, and nothing writes `from` meanwhile.
    unsafe fn copy_from_host(
        &self,
        to: DevicePointer,
        from: *const c_void,
        bytes: usize,
        stream: StreamHandle,
    ) -> Result<(), Code>;

    /// Copies from one range of device memory to another, behind the work of `stream`.
    ///
    /// # Safety
    /// Both ranges stay as they are until the copy is done, and nothing else reads or writes `to` meanwhile.
    unsafe fn copy_within(
        &self,
        to: DevicePointer,
        from: DevicePointer,
        bytes: usize,
        stream: StreamHandle,
    ) -> Result<(), Code>;

    /// Makes a range of device memory zero, behind the work of `stream`.
    ///
    /// # Safety
    /// The range stays as it is until that is done, and nothing else reads or writes it meanwhile.
    unsafe fn fill_with_zeros(
        &self,
        to: DevicePointer,
        bytes: usize,
        stream: StreamHandle,
    ) -> Result<(), Code>;

    /// Compiles and loads kernels, which are PTX.
    fn load_module(&self, kernels: &CStr) -> Result<ModuleHandle, Code>;

    /// Gives them back, once none of them runs.
    fn unload_module(&self, module: ModuleHandle) -> Result<(), Code>;

    /// The kernel of this name.
    fn function(&self, module: ModuleHandle, name: &CStr) -> Result<FunctionHandle, Code>;

    /// Runs a kernel behind the work of `stream`, in so many blocks of so many threads.
    ///
    /// # Safety
    /// `parameter` is the structure of `bytes` that the kernel takes, which is read within this call. The memory that
    /// it names stays valid and unchanged until the kernel is done; nothing else uses the memory that the kernel
    /// writes meanwhile.
    unsafe fn launch(
        &self,
        function: FunctionHandle,
        blocks: u32,
        threads: u32,
        parameter: *const c_void,
        bytes: usize,
        stream: StreamHandle,
    ) -> Result<(), Code>;

    /// Stores a word behind the work of `stream`, all of whose stores are visible to the whole system before it.
    ///
    /// # Safety
    /// `to` is a word of registered host memory that stays so until it is written.
    unsafe fn write_word(&self, stream: StreamHandle, to: DevicePointer, value: u64) -> Result<(), Code>;
}
