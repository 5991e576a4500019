//! The settings of the way that packets of RDMA take and of how devices write, and the variables that they were taken
//! from.

use serde::Serialize;
use serde_json::Value;
use slackline::internals::job::transports::Origins;
use slackline::internals::transport::verbs::{GidChoice, PathSettings};
use slackline::{Verbs, VerbsOptions};

/// A setting that is in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Setting {
    pub(crate) setting: &'static str,
    /// A number, whether it is on, or a word; null where there is nothing to choose from.
    pub(crate) value: Value,
    /// The variable that says so; none for the library's own choice.
    pub(crate) set_by: Option<&'static str>,
}

/// The settings of a device that was opened with these options.
pub(crate) fn look(
    verbs: &Verbs,
    gid: Option<&GidChoice>,
    options: &VerbsOptions,
    from: &Origins,
) -> Vec<Setting> {
    let path = verbs.path_settings();
    let partition_key = verbs.port().partition_keys.get(usize::from(path.pkey_index)).copied();
    let (gid_index, mtu) = (gid.map(|choice| choice.gid.index), verbs.mtu());
    let (gid_index_at, partition_key_at) =
        (options.gid_index_at(verbs.port()), options.partition_key_at(verbs.port()));
    let of_the_way_from = Origins {
        gid_index: gid_index_at.and(from.gid_index),
        partition_key: partition_key_at.and(from.partition_key),
        ..*from
    };
    of_the_way(path, partition_key, gid_index, mtu, &of_the_way_from)
        .into_iter()
        .chain(of_writes(options, from))
        .collect()
}

fn setting(setting: &'static str, value: impl Into<Value>, set_by: Option<&'static str>) -> Setting {
    Setting { setting, value: value.into(), set_by }
}

fn of_the_way(
    path: &PathSettings,
    partition_key: Option<u16>,
    gid_index: Option<u16>,
    mtu: u16,
    from: &Origins,
) -> [Setting; 7] {
    [
        setting("service level", path.service_level, from.service_level),
        setting("traffic class", path.traffic_class, from.traffic_class),
        setting(PARTITION_KEY, partition_key, from.partition_key),
        setting("GID index", gid_index, from.gid_index),
        setting("MTU", mtu, from.mtu),
        setting("timeout", path.timeout, from.timeout),
        setting("retries", path.retries, from.retries),
    ]
}

/// How this host's device writes, and what it is taken to do, in the words of the variables.
fn of_writes(options: &VerbsOptions, from: &Origins) -> [Setting; 2] {
    let order = match options.in_order {
        None => "auto",
        Some(true) => "in-order",
        Some(false) => "read",
    };
    [
        setting("order", order, from.order),
        setting("relaxed ordering", options.relaxed_ordering, from.relaxed_ordering),
    ]
}

const PARTITION_KEY: &str = "partition key";

/// The same in one line.
pub(super) fn text(settings: &[Setting]) -> String {
    let one = |Setting { setting, value, set_by }: &Setting| {
        let value = match value {
            Value::Null => "none".into(),
            Value::Bool(is_on) => if *is_on { "on" } else { "off" }.into(),
            Value::String(word) => word.clone(),
            value => match value.as_u64() {
                Some(key) if *setting == PARTITION_KEY => format!("{key:#06x}"),
                _ => value.to_string(),
            },
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
        let said = text(&of_the_way(&path, Some(0x12), Some(3), 1024, &from));
        assert_eq!(
            said,
            "service level 0, traffic class 106 (NCCL_IB_TC), partition key 0x0012, GID index 3, \
             MTU 1024 (SLACKLINE_RDMA_MTU), timeout 16, retries 6"
        );
        let said = text(&of_the_way(&path, None, None, 1024, &from));
        assert!(said.contains("partition key none, GID index none"), "{said}");
    }

    #[test]
    fn order_and_relaxed_ordering_are_told_in_the_words_of_their_variables() {
        let said = |in_order, relaxed_ordering| {
            let options = VerbsOptions { in_order, relaxed_ordering, ..VerbsOptions::default() };
            text(&of_writes(&options, &Origins { order: Some("SLACKLINE_RDMA_ORDER"), ..Origins::default() }))
        };
        assert_eq!(said(None, true), "order auto (SLACKLINE_RDMA_ORDER), relaxed ordering on");
        assert_eq!(said(Some(true), false), "order in-order (SLACKLINE_RDMA_ORDER), relaxed ordering off");
        assert!(said(Some(false), true).starts_with("order read "));
    }
}
