//! The settings of the packets' path: service level, traffic class, partition, timeout and retries.

use std::time::Duration;

use super::VerbsOptions;
use super::device::{DeviceInfo, Port};
use super::error::OpenError;

/// The code of the time that a queue pair waits for an answer before it retries: 4.096 us times 2 to this power, 268
/// ms.
const TIMEOUT: u8 = 16;
/// The shortest of these times, whose code is 0.
const TIMEOUT_UNIT: Duration = Duration::from_nanos(4096);
/// Number of retries before it gives up: after 1.9 s without any answer. The specification lets a device take up to
/// four times as long.
const RETRIES: u8 = 6;
/// The greatest value of each.
const TIMEOUT_MAX: u8 = 31;
const RETRIES_MAX: u8 = 7;
const SERVICE_LEVEL_MAX: u8 = 15;

/// The bit of a partition key that says whether its holder is a full member; the other bits name the partition.
const IS_FULL_MEMBER: u16 = 1 << 15;

/// The settings of one port's queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathSettings {
    /// The service level of packets.
    pub service_level: u8,
    /// The traffic class of packets with a global route header.
    pub traffic_class: u8,
    /// The index of the partition key in the port's table.
    pub pkey_index: u16,
    /// The time after which the device retries, as the specification codes it.
    pub timeout: u8,
    /// The number of retries.
    pub retries: u8,
}

impl PathSettings {
    /// The settings in `options`, if this port supports them.
    pub(super) fn new(
        options: &VerbsOptions,
        info: &DeviceInfo,
        port: &Port,
    ) -> Result<PathSettings, OpenError> {
        let cannot = |what, remedy| Err(OpenError::Setting { device: info.name.clone(), what, remedy });
        let VerbsOptions { service_level, traffic_class, .. } = *options;
        if service_level > SERVICE_LEVEL_MAX {
            return cannot(
                format!("service level {service_level}"),
                format!("choose 0 to {SERVICE_LEVEL_MAX}"),
            );
        }
        let timeout = options.timeout.unwrap_or(TIMEOUT);
        if !(1..=TIMEOUT_MAX).contains(&timeout) {
            // 0 would wait without end.
            let remedy = format!("choose 1 to {TIMEOUT_MAX}: 4.096 us times 2 to this power");
            return cannot(format!("the timeout {timeout}"), remedy);
        }
        let retries = options.retries.unwrap_or(RETRIES);
        // With the greatest number soft-RoCE never gives up.
        let most = if info.is_soft_roce { RETRIES_MAX - 1 } else { RETRIES_MAX };
        if retries > most {
            return cannot(format!("{retries} retries"), format!("choose 0 to {most}"));
        }
        let partition_key = options.partition_key_at(port);
        // A port that is down may have no keys yet: it is queried again once it is up.
        let pkey_index = index_of(partition_key, &port.partition_keys).or((!port.is_active).then_some(0));
        let Some(pkey_index) = pkey_index else {
            let list: Vec<String> = port.partition_keys.iter().map(|key| format!("{key:#06x}")).collect();
            let what = format!("the partition key {:#06x}", partition_key.unwrap_or_default());
            return cannot(what, format!("port {} has {}", port.number, list.join(", ")));
        };
        Ok(PathSettings { service_level, traffic_class, pkey_index, timeout, retries })
    }
}

/// The index of a partition key in a port's table, which may hold the key of a full member, of a limited member, or
/// both. The full member's key is preferred, since limited members do not reach each other. Without a key, the first
/// entry.
pub(super) fn index_of(key: Option<u16>, table: &[u16]) -> Option<u16> {
    let Some(key) = key else { return Some(0) };
    let partition = Some(key & !IS_FULL_MEMBER).filter(|partition| *partition != 0)?;
    let index_of_entry = |key: u16| table.iter().position(|entry| *entry == key);
    let index = index_of_entry(partition | IS_FULL_MEMBER).or_else(|| index_of_entry(partition))?;
    u16::try_from(index).ok()
}

impl PathSettings {
    /// The longest time that the specification allows a device to find that a peer does not answer. Devices have a
    /// shortest timeout, and wait longer than a setting below it, so the result is a second at least.
    pub(super) fn gives_up_after(&self) -> Duration {
        (TIMEOUT_UNIT * (1 << self.timeout) * 4 * (u32::from(self.retries) + 1)).max(Duration::from_secs(1))
    }
}

#[cfg(test)]
mod tests {
    use super::super::scripted::{gid, info};
    use super::*;

    fn settings(options: &VerbsOptions, is_soft_roce: bool) -> Result<PathSettings, String> {
        let mut info = info("scripted0", true, vec![gid()]);
        info.is_soft_roce = is_soft_roce;
        info.ports[0].partition_keys = vec![0xFFFF, 0x0000, 0x8012, 0x0034];
        PathSettings::new(options, &info, &info.ports[0]).map_err(|error| error.to_string())
    }

    #[test]
    fn settings_are_taken_as_asked_and_the_defaults_end_after_two_seconds() {
        let plain = VerbsOptions::default();
        let expected =
            PathSettings { service_level: 0, traffic_class: 0, pkey_index: 0, timeout: 16, retries: 6 };
        assert_eq!(settings(&plain, true), Ok(expected));
        // 4 times 7 times 4.096 us times 2 to the power of 16.
        assert_eq!(expected.gives_up_after(), Duration::from_nanos(7_516_192_768));
        let options = VerbsOptions {
            service_level: 3,
            traffic_class: 106,
            partition_key: Some(0x8034),
            timeout: Some(20),
            retries: Some(7),
            ..plain
        };
        let expected =
            PathSettings { service_level: 3, traffic_class: 106, pkey_index: 3, timeout: 20, retries: 7 };
        assert_eq!(settings(&options, false), Ok(expected));
        let error = settings(&options, true).unwrap_err();
        assert!(error.contains("7 retries; choose 0 to 6"), "soft-RoCE would never give up: {error}");
    }

    #[test]
    fn what_no_port_has_is_refused_with_the_values_that_it_has() {
        let plain = VerbsOptions::default();
        for (options, said) in [
            (VerbsOptions { service_level: 16, ..plain.clone() }, "service level 16; choose 0 to 15"),
            (VerbsOptions { timeout: Some(0), ..plain.clone() }, "the timeout 0; choose 1 to 31"),
            (VerbsOptions { timeout: Some(32), ..plain.clone() }, "the timeout 32; choose 1 to 31"),
            (VerbsOptions { retries: Some(8), ..plain.clone() }, "8 retries; choose 0 to 7"),
            (
                VerbsOptions { partition_key: Some(0x55), ..plain.clone() },
                "port 1 has 0xffff, 0x0000, 0x8012",
            ),
            (VerbsOptions { partition_key: Some(0x8000), ..plain }, "the partition key 0x8000"),
        ] {
            let error = settings(&options, false).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn a_partition_is_entered_as_a_full_member_where_the_port_may_be_one() {
        let table = [0xFFFF, 0x0012, 0x8012, 0x0034];
        let keys = [None, Some(0x7FFF), Some(0x8012), Some(0x12), Some(0x34), Some(0x8034), Some(0x13)];
        let indices = keys.map(|key| index_of(key, &table));
        assert_eq!(indices, [Some(0), Some(0), Some(2), Some(2), Some(3), Some(3), None]);
    }

    #[test]
    fn the_partition_that_ucx_is_told_counts_on_infiniband_alone() {
        let options = VerbsOptions { partition_key: Some(0x55), ..VerbsOptions::default() };
        let of = |variable| VerbsOptions { partition_key_from: Some(variable), ..options.clone() };
        let mut info = info("mlx5_0", true, vec![gid()]);
        let index = |options: &VerbsOptions, info: &DeviceInfo| {
            PathSettings::new(options, info, &info.ports[0]).map(|settings| settings.pkey_index).ok()
        };
        assert_eq!(index(&of("UCX_IB_PKEY"), &info), Some(0), "Ethernet has one partition");
        assert_eq!(index(&of("SLACKLINE_RDMA_PKEY"), &info), None);
        info.ports[0].is_infiniband = true;
        assert_eq!(index(&of("UCX_IB_PKEY"), &info), None);
        info.ports[0].partition_keys.push(0x8055);
        assert_eq!(index(&of("UCX_IB_PKEY"), &info), Some(1));
    }
}
