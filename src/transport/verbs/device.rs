//! Devices and their ports: their names, limits and states, and the events that they report.

use std::collections::HashMap;
use std::ffi::CStr;
use std::io;
use std::net::Ipv6Addr;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use super::error::OpenError;
use super::gid::{Gid, GidKind, is_own};
use super::sys::{self, Library};
use crate::mem::ForkGuard;
use crate::transport::AtomicDomain;

/// The limits of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Queue pairs.
    pub queue_pairs: u32,
    /// Completion queues.
    pub completion_queues: u32,
    /// Protection domains.
    pub domains: u32,
    /// Requests in the queue of one pair.
    pub queue_depth: u32,
    /// Completions in one queue.
    pub completions: u32,
    /// Registered regions.
    pub regions: u32,
    /// Bytes in one region.
    pub region_bytes: u64,
    /// READs and atomics that one queue pair answers at once.
    pub reads_served: u8,
    /// READs and atomics that one queue pair has under way at once.
    pub reads_posted: u8,
    /// The scope within which atomics are atomic, as the device reports it.
    pub atomics: AtomicDomain,
}

/// One port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Counted from 1.
    pub number: u8,
    /// True if the port carries data now.
    pub is_active: bool,
    /// Its state, as the library names it.
    pub state: String,
    /// True for InfiniBand, false for Ethernet (RoCE).
    pub is_infiniband: bool,
    /// Its InfiniBand address; 0 on Ethernet.
    pub lid: u16,
    /// Largest packet that the port carries now, in bytes.
    pub mtu: u16,
    /// Longest message in bytes.
    pub message_bytes: u32,
    /// Speed of all lanes together in Mbit/s; 0 if unknown.
    pub speed: u32,
    /// Its addresses; empty entries are left out.
    pub gids: Vec<Gid>,
    /// Its table of partition keys. An entry of 0 is not a key.
    pub partition_keys: Vec<u16>,
    /// True if packets must carry a global route header, also within a subnet.
    pub needs_global_route: bool,
}

/// `IBV_QPF_GRH_REQUIRED`, a flag of ports that the header defines as a macro.
const GRH_REQUIRED: u8 = 1;

/// A device of this host.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// Its name in the system.
    pub name: String,
    /// The NUMA node to which it is attached, if that is known.
    pub numa_node: Option<u32>,
    /// Its limits.
    pub limits: Limits,
    /// Firmware version, as the vendor writes it.
    pub firmware: String,
    /// True for the kernel's own software device for RoCE (rxe).
    pub is_soft_roce: bool,
    /// True if the device raises no event when a queue pair breaks that only serves: soft-RoCE, and Broadcom's before
    /// Linux 6.7 ("RDMA/bnxt_re: Report async events and errors"). Such pairs are queried from time to time.
    pub breaks_silently: bool,
    /// Its ports.
    pub ports: Vec<Port>,
}

/// The way in which a queue pair ended, as its device reported. If the device reported both, the greater one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum QueuePairError {
    /// The device could not continue with it.
    Failed,
    /// For a pair that serves: its peer accessed memory that was not granted to it. For a pair that posts: a request
    /// failed, and its completion says how.
    Refused,
}

/// An open device.
pub(super) struct Device {
    pub(super) library: &'static Library,
    context: NonNull<sys::ibv_context>,
    pub(super) name: String,
    guard: ForkGuard,
    /// Held by the thread that drains the queue of events.
    events: Mutex<()>,
    is_dead: AtomicBool,
    /// The number of events that reported a change of some port's state, addresses or tables.
    port_changes: AtomicU64,
    /// Queue pairs, by serial, that the device reported as ended, until their owners notice; and completion queues
    /// that several pairs share, for as long as they exist.
    broken: Mutex<HashMap<usize, QueuePairError>>,
    /// True while `broken` may have entries.
    has_broken: AtomicBool,
}

// SAFETY: a context may be used from any thread: all calls of the library are thread-safe (ibv_open_device(3),
// `man 7 rdma_cm` and the library's documentation: "verbs are thread safe"). The pointer is dropped once.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// The library's answer if the kernel copies pinned pages for a child (`enum ibv_fork_status`).
const FORK_UNNEEDED: std::ffi::c_uint = 2;

/// The means that keep registered memory with the parent when a process forks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForkSafety {
    /// The kernel copies pinned pages for the child (Linux 5.12 and later).
    Kernel,
    /// The library keeps them from the child, at some cost for each registration.
    Library,
    /// No means: a process that forks may lose its registered memory to the child.
    None,
}

/// Returns the means that keep registered memory with the parent when this process forks.
///
/// # Errors
/// There is no verbs library.
pub fn fork_safety() -> Result<ForkSafety, OpenError> {
    Ok(prepare_for_forks(Library::get()?))
}

/// The vendor ID that rxe reports (`RXE_VENDOR_ID` in the kernel).
const SOFT_ROCE: u32 = 0xFF_FFFF;

/// The vendor ID of Broadcom's adapters.
const BROADCOM: u32 = 0x14E4;

/// Whether devices of this vendor raise no event when a serving queue pair breaks, under this release of Linux. One
/// that cannot be read counts as a newer one.
fn breaks_silently(vendor: u32, release: &str) -> bool {
    let mut numbers = release.split(|digit: char| !digit.is_ascii_digit()).map(|number| number.parse().ok());
    let version: (Option<u32>, Option<u32>) = (numbers.next().flatten(), numbers.next().flatten());
    let is_old = matches!(version, (Some(major), Some(minor)) if (major, minor) < (6, 7));
    vendor == SOFT_ROCE || (vendor == BROADCOM && is_old)
}

const SYSFS: &str = "/sys/class/infiniband";

/// The folder of the device of this name.
pub(super) fn sysfs(name: &str) -> PathBuf {
    Path::new(SYSFS).join(name)
}

/// The names of all devices.
pub(super) fn names() -> Result<Vec<String>, OpenError> {
    let list = DeviceList::get()?;
    Ok(list.devices().map(|device| list.name(device)).collect())
}

/// The library's list of devices, freed when dropped. After that, only the devices that were opened can be used.
struct DeviceList {
    library: &'static Library,
    first: *mut *mut sys::ibv_device,
    count: usize,
}

impl DeviceList {
    fn get() -> Result<DeviceList, OpenError> {
        let library = Library::get()?;
        prepare_for_forks(library);
        let mut count = 0;
        // SAFETY: the pointer to `count` is valid; the result is checked.
        let first = unsafe { (library.get_device_list)(&raw mut count) };
        if first.is_null() {
            let source = io::Error::last_os_error();
            // The library reports with this code that the kernel has no RDMA at all.
            return match source.raw_os_error() {
                Some(libc::ENOSYS) => Err(OpenError::NoDevice),
                _ => {
                    let (operation, device) = ("list the devices", "(any)".into());
                    let remedy = "see whether /sys/class/infiniband and /dev/infiniband can be read";
                    Err(OpenError::System { operation, device, source, remedy })
                }
            };
        }
        Ok(DeviceList { library, first, count: usize::try_from(count).unwrap_or(0) })
    }

    fn devices(&self) -> impl Iterator<Item = *mut sys::ibv_device> + '_ {
        // SAFETY: the list has `count` entries and lives as long as `self`.
        (0..self.count).map(|index| unsafe { *self.first.add(index) })
    }

    fn name(&self, device: *mut sys::ibv_device) -> String {
        // SAFETY: `device` is of this list; its name is a C string that lives as long as the device.
        let name = unsafe { CStr::from_ptr((self.library.get_device_name)(device)) };
        name.to_string_lossy().into_owned()
    }

    /// Returns the error that keeps this user from opening the file of a device, if there is one.
    fn cannot_enter(&self, device: *mut sys::ibv_device) -> Option<io::Error> {
        // SAFETY: `device` is of this list; the name of its file is a C string in it.
        let name = unsafe { CStr::from_ptr((&raw const (*device).dev_name).cast()) };
        let file = Path::new("/dev/infiniband").join(name.to_string_lossy().as_ref());
        let error = std::fs::File::options().read(true).write(true).open(file).err()?;
        (error.kind() == io::ErrorKind::PermissionDenied).then_some(error)
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: it was made by `ibv_get_device_list` and is freed once.
        unsafe { (self.library.free_device_list)(self.first) };
    }
}

/// Pinned pages must stay with the parent when a process forks. Kernels from 5.12 on copy them for the child; on
/// older kernels, the library must prepare for forks before any memory is registered.
fn prepare_for_forks(library: &Library) -> ForkSafety {
    static ONCE: std::sync::OnceLock<ForkSafety> = std::sync::OnceLock::new();
    *ONCE.get_or_init(|| {
        // SAFETY: it takes nothing.
        let state = library.is_fork_initialized.map(|ask| unsafe { ask() });
        if state == Some(FORK_UNNEEDED) {
            return ForkSafety::Kernel;
        }
        // SAFETY: it takes nothing, and may be called at any time before memory is registered.
        let errno = unsafe { (library.fork_init)() };
        if errno == 0 {
            return ForkSafety::Library;
        }
        let error = io::Error::from_raw_os_error(errno);
        tracing::warn!(%error, "forking while RDMA is in use is not safe on this kernel: registered memory \
            may go to the child");
        ForkSafety::None
    })
}

impl Device {
    /// Opens the device of this name.
    pub(super) fn open(name: &str) -> Result<Arc<Device>, OpenError> {
        let list = DeviceList::get()?;
        let Some(device) = list.devices().find(|device| list.name(*device) == name) else {
            let known: Vec<String> = list.devices().map(|device| list.name(device)).collect();
            if known.is_empty() {
                return Err(OpenError::NoDevice);
            }
            return Err(OpenError::UnknownDevice { name: name.into(), known: known.join(", ") });
        };
        // SAFETY: as below.
        if unsafe { (*device).transport_type } != sys::IBV_TRANSPORT_IB {
            let what = "reliable connections of InfiniBand or RoCE (iWARP and others are not spoken)".into();
            let remedy = "use another device, or TCP".into();
            return Err(OpenError::Setting { device: name.into(), what, remedy });
        }
        // SAFETY: `device` is of the list, which lives until the end of this function.
        let context = unsafe { (list.library.open_device)(device) };
        let Some(context) = NonNull::new(context) else {
            let source = io::Error::last_os_error();
            // Where the library may not open a file, it tries a second path, and reports that this path does not
            // exist.
            let source = list.cannot_enter(device).unwrap_or(source);
            let remedy = match source.raw_os_error() {
                Some(libc::EACCES | libc::EPERM) => {
                    "this user may not: let it read and write /dev/infiniband/uverbs* (on most systems: join the \
                     group `rdma`, in a container: pass the devices in)"
                }
                Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => {
                    "its file under /dev/infiniband is missing: load the module ib_uverbs, or pass the device into \
                     the container"
                }
                _ => "see the kernel's log (dmesg), and the limit on open files (ulimit -n)",
            };
            return Err(OpenError::Open { device: name.into(), source, remedy });
        };
        let device = Device {
            library: list.library,
            context,
            name: name.into(),
            guard: ForkGuard::new(),
            events: Mutex::new(()),
            is_dead: AtomicBool::new(false),
            port_changes: AtomicU64::new(0),
            broken: Mutex::default(),
            has_broken: AtomicBool::new(false),
        };
        device.events_fd(|fd| rustix::io::ioctl_fionbio(fd, true)).map_err(|errno| OpenError::System {
            operation: "set up its events",
            device: name.into(),
            source: errno.into(),
            remedy: "see the kernel's log (dmesg)",
        })?;
        Ok(Arc::new(device))
    }

    /// A device whose library functions and handle all belong to a test.
    #[cfg(test)]
    pub(super) fn of_library(library: &'static Library, context: NonNull<sys::ibv_context>) -> Arc<Device> {
        Arc::new(Device {
            library,
            context,
            name: "scripted0".into(),
            guard: ForkGuard::new(),
            events: Mutex::new(()),
            is_dead: AtomicBool::new(false),
            port_changes: AtomicU64::new(0),
            broken: Mutex::default(),
            has_broken: AtomicBool::new(false),
        })
    }

    /// Behaves as if the device had reported that it is gone.
    #[cfg(test)]
    pub(super) fn die(&self) {
        self.is_dead.store(true, Ordering::Relaxed);
    }

    /// Holds the lock on the events that threads pass to each other for as long as the result lives.
    #[cfg(test)]
    pub(super) fn hold_told(&self) -> impl Drop + '_ {
        lock(&self.broken)
    }

    /// The library's handle.
    pub(super) fn context(&self) -> *mut sys::ibv_context {
        self.context.as_ptr()
    }

    /// True in a forked child, which must not touch the objects that the parent created.
    pub(super) fn is_inherited(&self) -> bool {
        self.guard.is_inherited()
    }

    fn events_fd<R>(&self, with: impl FnOnce(BorrowedFd<'_>) -> R) -> R {
        // SAFETY: the context is open for as long as `self`, and with it this descriptor.
        with(unsafe { BorrowedFd::borrow_raw((*self.context()).async_fd) })
    }

    fn failed(&self, operation: &'static str, source: io::Error) -> OpenError {
        let remedy = "see the kernel's log (dmesg), and `slackline doctor`";
        OpenError::System { operation, device: self.name.clone(), source, remedy }
    }

    /// Queries the device's attributes and its ports.
    pub(super) fn info(&self) -> Result<DeviceInfo, OpenError> {
        let mut attributes = sys::ibv_device_attr::default();
        // SAFETY: the context is open, and the pointer to `attributes` is valid.
        let errno = unsafe { (self.library.query_device)(self.context(), &raw mut attributes) };
        if errno != 0 {
            return Err(self.failed("ask for its attributes", io::Error::from_raw_os_error(errno)));
        }
        let count = |number: i32| u32::try_from(number).unwrap_or(0);
        let few = |number: i32| u8::try_from(number.clamp(0, 255)).unwrap_or(0);
        let limits = Limits {
            queue_pairs: count(attributes.max_qp),
            completion_queues: count(attributes.max_cq),
            domains: count(attributes.max_pd),
            queue_depth: count(attributes.max_qp_wr),
            completions: count(attributes.max_cqe),
            regions: count(attributes.max_mr),
            region_bytes: attributes.max_mr_size,
            reads_served: few(attributes.max_qp_rd_atom),
            reads_posted: few(attributes.max_qp_init_rd_atom),
            atomics: match attributes.atomic_cap {
                sys::IBV_ATOMIC_HCA => AtomicDomain::Device,
                sys::IBV_ATOMIC_GLOB => AtomicDomain::Host,
                _ => AtomicDomain::None,
            },
        };
        // SAFETY: every bit pattern is a valid `u8`; the array is part of `attributes`.
        let firmware: Vec<u8> =
            attributes.fw_ver.iter().map(|byte| *byte as u8).take_while(|byte| *byte != 0).collect();
        let ports =
            (1..=attributes.phys_port_cnt).map(|number| self.port(number)).collect::<Result<_, _>>()?;
        let node = std::fs::read_to_string(self.sysfs().join("device/numa_node"));
        let system = rustix::system::uname();
        Ok(DeviceInfo {
            name: self.name.clone(),
            numa_node: node.ok().and_then(|text| text.trim().parse().ok()),
            limits,
            firmware: String::from_utf8_lossy(&firmware).into_owned(),
            is_soft_roce: attributes.vendor_id == SOFT_ROCE,
            breaks_silently: breaks_silently(attributes.vendor_id, &system.release().to_string_lossy()),
            ports,
        })
    }

    fn sysfs(&self) -> PathBuf {
        sysfs(&self.name)
    }

    /// Queries the attributes of a port.
    fn port_attributes(&self, number: u8) -> io::Result<sys::ibv_port_attr> {
        let mut attributes = sys::ibv_port_attr::default();
        // SAFETY: the context is open, and `attributes` has the size that the call gets.
        let errno = unsafe { self.library.query_port(self.context(), number, &mut attributes) };
        if errno == 0 { Ok(attributes) } else { Err(io::Error::from_raw_os_error(errno)) }
    }

    /// Queries whether a port carries data.
    pub(super) fn is_port_active(&self, number: u8) -> io::Result<bool> {
        Ok(self.port_attributes(number)?.state == sys::IBV_PORT_ACTIVE)
    }

    /// Queries a port's state, its addresses and its tables.
    pub(super) fn port(&self, number: u8) -> Result<Port, OpenError> {
        let attributes = self.port_attributes(number);
        let attributes = attributes.map_err(|error| self.failed("ask for the state of a port", error))?;
        // SAFETY: the library answers any number with a static C string.
        let state = unsafe { CStr::from_ptr((self.library.port_state_str)(attributes.state)) };
        Ok(Port {
            number,
            is_active: attributes.state == sys::IBV_PORT_ACTIVE,
            state: state.to_string_lossy().into_owned(),
            is_infiniband: u32::from(attributes.link_layer) == sys::IBV_LINK_LAYER_INFINIBAND,
            lid: attributes.lid,
            mtu: bytes_of_mtu(attributes.active_mtu),
            message_bytes: attributes.max_msg_sz,
            // The structure has no room for the codes of speeds from XDR on: for them the kernel reports the code of
            // NDR. Its text in sysfs has the true speed.
            speed: self
                .rate(number)
                .unwrap_or_else(|| megabits(attributes.active_width, attributes.active_speed)),
            gids: self.gids(number, attributes.gid_tbl_len),
            partition_keys: self.partition_keys(number, attributes.pkey_tbl_len),
            needs_global_route: attributes.flags & GRH_REQUIRED != 0,
        })
    }

    /// A port's table of partition keys, as far as the device reports it.
    fn partition_keys(&self, port: u8, table: u16) -> Vec<u16> {
        let key = |index: u16| {
            let mut key = 0;
            // SAFETY: the context is open, and the pointer is valid.
            let errno =
                unsafe { (self.library.query_pkey)(self.context(), port, index.into(), &raw mut key) };
            // The key is in network byte order.
            (errno == 0).then_some(u16::from_be(key))
        };
        (0..table).map_while(key).collect()
    }

    /// The entries of a port's table that are not empty.
    fn gids(&self, port: u8, table: i32) -> Vec<Gid> {
        let ask = self.library.query_gid_ex;
        let entry = |index: u16| {
            let mut entry = sys::ibv_gid_entry::default();
            let (size, flags) = (size_of::<sys::ibv_gid_entry>(), 0);
            // SAFETY: the context is open, and `entry` has the size that the call gets.
            let errno =
                unsafe { ask(self.context(), port.into(), index.into(), &raw mut entry, flags, size) };
            // An empty entry is also an error here.
            (errno == 0).then_some(entry)
        };
        let known = |index: u16| {
            let entry = entry(index)?;
            // SAFETY: all views of a GID are 16 bytes.
            let bytes = unsafe { entry.gid.raw };
            let kind = match entry.gid_type {
                sys::IBV_GID_TYPE_IB => GidKind::InfiniBand,
                sys::IBV_GID_TYPE_ROCE_V1 => GidKind::RoceV1,
                _ => GidKind::RoceV2,
            };
            let interface = self.interface(port, index);
            let is_up = interface.as_deref().is_none_or(is_interface_up);
            let is_own = is_own(kind, Ipv6Addr::from(bytes).to_canonical());
            (bytes != [0; 16]).then_some(Gid { index, bytes, kind, interface, is_up, is_own })
        };
        (0..u16::try_from(table).unwrap_or(0)).filter_map(known).collect()
    }

    /// The speed of a port in Mbit/s from the text in sysfs, if there is one.
    fn rate(&self, port: u8) -> Option<u32> {
        let text = std::fs::read_to_string(self.sysfs().join(format!("ports/{port}/rate"))).ok()?;
        megabits_of_rate(&text)
    }

    fn interface(&self, port: u8, gid: u16) -> Option<String> {
        let file = self.sysfs().join(format!("ports/{port}/gid_attrs/ndevs/{gid}"));
        Some(std::fs::read_to_string(file).ok()?.trim().to_owned()).filter(|name| !name.is_empty())
    }

    /// Takes the device's events without waiting, and logs them.
    pub(super) fn take_events(&self) {
        if self.is_inherited() {
            // The events are the parent's, and they name objects in its memory.
            return;
        }
        // The thread that holds the lock takes the events.
        let _only_one = match self.events.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let mut event = sys::ibv_async_event::default();
        // SAFETY: the context is open; the pointer to `event` is valid. The descriptor does not block.
        while unsafe { (self.library.get_async_event)(self.context(), &raw mut event) } == 0 {
            // SAFETY: the library answers any number with a static C string.
            let text = unsafe { CStr::from_ptr((self.library.event_type_str)(event.event_type)) };
            let kind = event.event_type;
            if let Some((serial, error)) = ended_by(&event) {
                let mut broken = lock(&self.broken);
                // The same end may be reported several times.
                let told = broken.entry(serial).or_insert(error);
                *told = error.max(*told);
                self.has_broken.store(true, Ordering::Release);
            }
            // SAFETY: it was taken just now and is acknowledged once; no code that could panic runs in between.
            unsafe { (self.library.ack_async_event)(&raw mut event) };
            let (device, event) = (self.name.as_str(), text.to_string_lossy());
            match kind {
                sys::IBV_EVENT_DEVICE_FATAL => {
                    tracing::error!(device, %event, "the RDMA device is gone");
                    self.is_dead.store(true, Ordering::Relaxed);
                }
                sys::IBV_EVENT_COMM_EST | sys::IBV_EVENT_SQ_DRAINED => {
                    tracing::debug!(device, %event, "RDMA event");
                }
                sys::IBV_EVENT_PORT_ACTIVE
                | sys::IBV_EVENT_PORT_ERR
                | sys::IBV_EVENT_LID_CHANGE
                | sys::IBV_EVENT_PKEY_CHANGE
                | sys::IBV_EVENT_SM_CHANGE
                | sys::IBV_EVENT_CLIENT_REREGISTER
                | sys::IBV_EVENT_GID_CHANGE => {
                    tracing::warn!(device, %event, "RDMA event");
                    self.port_changes.fetch_add(1, Ordering::Release);
                }
                _ => tracing::warn!(device, %event, "RDMA event"),
            }
        }
    }

    /// Returns how often the device has reported a change of a port, as far as its events were taken.
    pub(super) fn port_changes(&self) -> u64 {
        self.port_changes.load(Ordering::Acquire)
    }

    /// True once the device has reported that it is gone.
    pub(super) fn is_gone(&self) -> bool {
        self.is_dead.load(Ordering::Relaxed)
    }

    /// Returns how the queue pair of this serial ended, if the device has reported its end. Reports each end once.
    pub(super) fn take_broken(&self, serial: usize) -> Option<QueuePairError> {
        if !self.has_broken.load(Ordering::Acquire) {
            return None;
        }
        let mut broken = lock(&self.broken);
        let told = broken.remove(&serial);
        self.has_broken.store(!broken.is_empty(), Ordering::Release);
        told
    }

    /// Returns how the completion queue of this serial, which several pairs share, ended, if the device has reported
    /// its end.
    pub(super) fn broken_queue(&self, serial: usize) -> Option<QueuePairError> {
        if !self.has_broken.load(Ordering::Acquire) {
            return None;
        }
        lock(&self.broken).get(&serial).copied()
    }
}

/// The serial of the queue pair that an event ends, if it ends one, and how. The event must not be acknowledged yet.
fn ended_by(event: &sys::ibv_async_event) -> Option<(usize, QueuePairError)> {
    // SAFETY: these events are of queue pairs, and a queue pair is not destroyed before its event is acknowledged.
    let pair = || unsafe { (*event.element.qp).qp_context }.addr();
    match event.event_type {
        sys::IBV_EVENT_QP_ACCESS_ERR | sys::IBV_EVENT_QP_REQ_ERR => Some((pair(), QueuePairError::Refused)),
        sys::IBV_EVENT_QP_FATAL => Some((pair(), QueuePairError::Failed)),
        sys::IBV_EVENT_CQ_ERR => {
            // SAFETY: as above, for completion queues. The completion queue of a single pair has the serial of that
            // pair.
            let serial = unsafe { (*event.element.cq).cq_context }.addr();
            Some((serial, QueuePairError::Failed))
        }
        _ => None,
    }
}

/// Takes a lock whose holder never leaves the guarded value half changed, so that a holder that panicked did no harm.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Device {
    fn drop(&mut self) {
        // The context that a forked child inherited is the parent's: closing it in the child would destroy objects
        // that the parent uses.
        if !self.is_inherited() {
            // SAFETY: every object that was created from the context holds `self`, so the context is closed last, and
            // once.
            let errno = unsafe { (self.library.close_device)(self.context()) };
            if errno != 0 {
                tracing::warn!(device = self.name, "an RDMA device could not be closed");
            }
        }
    }
}

fn is_interface_up(name: &str) -> bool {
    const IFF_UP: u32 = 1;
    let flags = std::fs::read_to_string(Path::new("/sys/class/net").join(name).join("flags"));
    let flags =
        flags.ok().and_then(|text| u32::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok());
    // If the flags cannot be read, only the port's state counts.
    flags.is_none_or(|flags| flags & IFF_UP != 0)
}

/// Speed of a port in Mbit/s, from the codes for its width and for the speed of a lane (`ibv_query_port(3)`); 0 for
/// unknown codes.
fn megabits(width: u8, speed: u8) -> u32 {
    let lanes = match width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 0,
    };
    let lane = match speed {
        1 => 2_500,
        2 => 5_000,
        4 | 8 => 10_000,
        16 => 14_000,
        32 => 25_000,
        64 => 50_000,
        128 => 100_000,
        _ => 0,
    };
    lanes * lane
}

/// Speed in Mbit/s of a text like `800 Gb/sec (4X XDR)`.
fn megabits_of_rate(text: &str) -> Option<u32> {
    let gigabits: f64 = text.split_whitespace().next()?.parse().ok()?;
    (gigabits.is_finite() && gigabits > 0.0).then_some((gigabits * 1000.0) as u32)
}

/// Bytes of the library's code for an MTU; 0 for an unknown code.
pub(super) fn bytes_of_mtu(mtu: sys::ibv_mtu) -> u16 {
    match mtu {
        sys::IBV_MTU_256..=sys::IBV_MTU_4096 => 128 << mtu,
        _ => 0,
    }
}

/// The library's code for an MTU of so many bytes.
pub(super) fn mtu_of_bytes(bytes: u16) -> Option<sys::ibv_mtu> {
    (sys::IBV_MTU_256..=sys::IBV_MTU_4096).find(|mtu| bytes_of_mtu(*mtu) == bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_fast_lanes_are_slower_than_four() {
        assert_eq!(megabits(2, 64), 200_000);
        assert_eq!(megabits(16, 64), 100_000);
        assert_eq!((megabits(1, 1), megabits(0, 64), megabits(2, 0)), (2_500, 0, 0));
    }

    #[test]
    fn speeds_are_read_from_the_systems_text() {
        let texts = ["800 Gb/sec (4X XDR)\n", "2.5 Gb/sec (1X SDR)", "", "fast", "-1 Gb/sec"];
        assert_eq!(texts.map(megabits_of_rate), [Some(800_000), Some(2_500), None, None, None]);
    }

    #[test]
    fn pairs_break_silently_on_soft_roce_and_on_broadcoms_before_linux_6_7() {
        let vendors = |release| [SOFT_ROCE, BROADCOM, 0x15B3].map(|vendor| breaks_silently(vendor, release));
        for release in ["5.15.0-91-generic", "6.1.0", "6.6.30-rt30+"] {
            assert_eq!(vendors(release), [true, true, false], "{release}");
        }
        for release in ["6.7.0-rc1", "6.12.3", "10.0", "", "unknown"] {
            assert_eq!(vendors(release), [true, false, false], "{release}");
        }
    }

    #[test]
    fn sizes_of_packets_are_numbered_as_the_library_does() {
        assert_eq!([256, 512, 1024, 2048, 4096].map(mtu_of_bytes), [1, 2, 3, 4, 5].map(Some));
        assert_eq!(mtu_of_bytes(1500), None);
        assert_eq!((bytes_of_mtu(5), bytes_of_mtu(0), bytes_of_mtu(6)), (4096, 0, 0));
    }
}
