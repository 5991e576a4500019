//! Host memory that is registered, and what devices may do with it.

use std::collections::BTreeMap;

use super::super::driver::DevicePointer;
use super::super::sys::{HOST_REGISTER_DEVICEMAP, HOST_REGISTER_PORTABLE, HOST_REGISTER_READ_ONLY};

/// Host memory that is registered, by its first address.
pub(super) struct ScriptedHost {
    ranges: BTreeMap<usize, ScriptedRange>,
}

/// A range of it.
#[derive(Clone, Copy)]
pub(super) struct ScriptedRange {
    pub(super) begin: usize,
    pub(super) bytes: usize,
    flags: u32,
    /// The device in whose context it was registered.
    device: i32,
}

impl ScriptedRange {
    fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Whether work of this device finds it locked.
    fn is_for(&self, device: i32) -> bool {
        self.device == device || self.has(HOST_REGISTER_PORTABLE)
    }
}

impl ScriptedHost {
    pub(super) fn new() -> ScriptedHost {
        ScriptedHost { ranges: BTreeMap::new() }
    }

    /// Ranges that are registered.
    pub(super) fn count(&self) -> usize {
        self.ranges.len()
    }

    /// Registers a range in the context of a device; false if a part of it is registered already.
    pub(super) fn register(&mut self, begin: usize, bytes: usize, flags: u32, device: i32) -> bool {
        let before = self.ranges.range(..begin + bytes).next_back();
        let is_free = before.is_none_or(|(_, range)| range.begin + range.bytes <= begin);
        if is_free {
            self.ranges.insert(begin, ScriptedRange { begin, bytes, flags, device });
        }
        is_free
    }

    /// Undoes it; false if no range begins there.
    pub(super) fn unregister(&mut self, begin: usize) -> bool {
        self.ranges.remove(&begin).is_some()
    }

    /// The range that an address is in.
    pub(super) fn range(&self, address: DevicePointer) -> Option<ScriptedRange> {
        let (_, range) = self.ranges.range(..=address as usize).next_back()?;
        ((address as usize) < range.begin + range.bytes).then_some(*range)
    }

    /// The address by which this device writes a byte of it, if it has one.
    pub(super) fn pointer(&self, device: i32, host: usize) -> Option<DevicePointer> {
        let pointer = host as DevicePointer;
        let range = self.range(pointer)?;
        (range.is_for(device) && range.has(HOST_REGISTER_DEVICEMAP)).then_some(pointer)
    }

    /// Fails the test unless work of this device may read these bytes, or write them.
    pub(super) fn expect(&self, device: i32, begin: usize, bytes: usize, writes: bool) {
        if bytes == 0 {
            return;
        }
        let range = self.range(begin as DevicePointer);
        let range = range.filter(|range| begin + bytes <= range.begin + range.bytes);
        let range = range.expect("a device reaches for host memory that is not locked");
        assert!(
            range.is_for(device),
            "device {device} reaches for host memory that is locked for another one"
        );
        let may_write = !writes || !range.has(HOST_REGISTER_READ_ONLY);
        assert!(may_write, "a device writes host memory that is locked for reading only");
    }
}

/// True if this process may write all that it has mapped from `begin` on to `end`.
pub(super) fn is_mapped_writable(begin: usize, end: usize) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("the mappings of this process");
    let forbids = |line: &str| -> Option<bool> {
        let (range, rights) = line.split_once(' ')?;
        let (from, to) = range.split_once('-')?;
        let [from, to] = [from, to].map(|address| usize::from_str_radix(address, 16).ok());
        Some(from? < end && begin < to? && !rights.starts_with("rw"))
    };
    !maps.lines().any(|line| forbids(line).unwrap_or(false))
}
