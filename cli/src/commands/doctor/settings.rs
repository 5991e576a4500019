//! The settings of the way that packets of RDMA take, and the variables that they were taken from.

use serde::Serialize;
use slackline::Verbs;
use slackline::internals::job::transports::Origins;
use slackline::internals::transport::verbs::{GidChoice, PathSettings};

/// A setting that is in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Setting {
    pub(super) setting: &'static str,
    /// The number; none where there is nothing to choose from.
    pub(super) value: Option<u16>,
    /// The variable that says so; none for the library's own choice.
    pub(super) set_by: Option<&'static str>,
}

/// The settings of a device that is open.
pub(super) fn look(verbs: &Verbs, gid: Option<&GidChoice>, from: &Origins) -> Vec<Setting> {
    let path = verbs.path_settings();
    let partition_key = verbs.port().partition_keys.get(usize::from(path.pkey_index)).copied();
    all(path, partition_key, gid.map(|choice| choice.gid.index), verbs.mtu(), from)
}

fn all(
    path: &PathSettings,
    partition_key: Option<u16>,
    gid_index: Option<u16>,
    mtu: u16,
    from: &Origins,
) -> Vec<Setting> {
    let setting = |setting, value, set_by| Setting { setting, value, set_by };
    vec![
        setting("service level", Some(path.service_level.into()), from.service_level),
        setting("traffic class", Some(path.traffic_class.into()), from.traffic_class),
        setting(PARTITION_KEY, partition_key, from.partition_key),
        setting("GID index", gid_index, from.gid_index),
        setting("MTU", Some(mtu), from.mtu),
        setting("timeout", Some(path.timeout.into()), from.timeout),
        setting("retries", Some(path.retries.into()), from.retries),
    ]
}

const PARTITION_KEY: &str = "partition key";

/// The same in one line.
pub(super) fn text(settings: &[Setting]) -> String {
    let one = |Setting { setting, value, set_by }: &Setting| {
        let value = match value {
            None => "none".into(),
            Some(key) if *setting == PARTITION_KEY => format!("{key:#06x}"),
            Some(number) => number.to_string(),
        };
        let origin = set_by.map_or(String::new(), |name| format!(" ({name})"));
        format!("{setting} {value}{origin}")
    };
    settings.iter().map(one).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_in_force_are_told_with_the_variable_if_one_says_so() {
        let path =
            PathSettings { service_level: 0, traffic_class: 106, pkey_index: 1, timeout: 16, retries: 6 };
        let from = Origins {
            traffic_class: Some("NCCL_IB_TC"),
            mtu: Some("SLACKLINE_RDMA_MTU"),
            ..Origins::default()
        };
        let said = text(&all(&path, Some(0x12), Some(3), 1024, &from));
        assert_eq!(
            said,
            "service level 0, traffic class 106 (NCCL_IB_TC), partition key 0x0012, GID index 3, \
             MTU 1024 (SLACKLINE_RDMA_MTU), timeout 16, retries 6"
        );
        assert!(text(&all(&path, None, None, 1024, &from)).contains("partition key none, GID index none"));
    }
}
