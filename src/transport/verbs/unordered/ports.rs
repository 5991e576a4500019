//! Faults of the device's ports.

use super::calls::state;
use super::*;

/// The faults of the ports.
#[derive(Default)]
pub(super) struct PortFaults {
    /// The ports through which no answer comes.
    pub(super) cut: HashSet<u8>,
    /// The ports that do nothing any more, and report nothing.
    pub(super) silent: HashSet<u8>,
    /// The ports that are down in the device's answer to a query.
    down: HashSet<u8>,
    /// The bytes of WRITEs that were posted through each port.
    pub(super) written: HashMap<u8, usize>,
}

impl PortFaults {
    /// The status of a request that gets no answer. A port that is down sends nothing, and has the status that
    /// soft-RoCE reports.
    pub(super) fn failure_of(&self, port: u8) -> sys::ibv_wc_status {
        if self.down.contains(&port) { sys::IBV_WC_LOC_QP_OP_ERR } else { sys::IBV_WC_RETRY_EXC_ERR }
    }
}

impl Unordered {
    /// From now on no answer comes through this port.
    pub(crate) fn cut(&self, port: u8) {
        lock(&self.world.state).ports.cut.insert(port);
    }

    /// From now on this port does nothing, and reports nothing.
    pub(super) fn silence(&self, port: u8) {
        lock(&self.world.state).ports.silent.insert(port);
    }

    /// From now on this port carries no data, and the device reports that it is down.
    #[cfg(test)]
    pub(crate) fn take_down(&self, port: u8) {
        self.cut(port);
        lock(&self.world.state).ports.down.insert(port);
    }

    /// From now on this port carries data again.
    #[cfg(test)]
    pub(crate) fn bring_up(&self, port: u8) {
        let mut state = lock(&self.world.state);
        state.ports.cut.remove(&port);
        state.ports.down.remove(&port);
    }

    /// The ports that queue pairs use.
    #[cfg(test)]
    pub(super) fn used_ports(&self) -> HashSet<u8> {
        lock(&self.world.state).pairs.iter().map(|pair| pair.port).collect()
    }

    /// Makes the device report the end of the queue pair that has requests under way through this port.
    #[cfg(test)]
    pub(super) fn tell_of_posting(&self, port: u8) {
        let posts = |pair: &ScriptedPair| pair.port == port && !pair.requests.is_empty();
        let pair = lock(&self.world.state).pairs.iter().position(posts).expect("a request is under way");
        self.tell_of_pair(sys::IBV_EVENT_QP_FATAL, pair);
    }

    /// The bytes of WRITEs that were posted through this port.
    #[cfg(all(test, feature = "cuda"))]
    pub(crate) fn written(&self, port: u8) -> usize {
        lock(&self.world.state).ports.written.get(&port).copied().unwrap_or(0)
    }

    /// Makes the device raise this event for its port.
    pub(super) fn tell_of_port(&self, event_type: sys::ibv_event_type, port: u8) {
        let mut event = sys::ibv_async_event { event_type, ..Default::default() };
        event.element.port_num = port.into();
        lock(&self.world.state).events.push_back(event);
    }
}

pub(super) unsafe extern "C" fn compat_query_port(
    context: *mut sys::ibv_context,
    port: u8,
    attributes: *mut sys::_compat_ibv_port_attr,
) -> c_int {
    let is_down = state(context).ports.down.contains(&port);
    // SAFETY: the caller's structure begins with this one's fields, and is longer.
    let attributes = unsafe { &mut *attributes.cast::<sys::ibv_port_attr>() };
    attributes.state = if is_down { sys::IBV_PORT_DOWN } else { sys::IBV_PORT_ACTIVE };
    (attributes.gid_tbl_len, attributes.pkey_tbl_len) = (8, 1);
    attributes.active_mtu = sys::IBV_MTU_1024;
    0
}
