//! RDMA as one process of a job opens it.

use std::borrow::Cow;
use std::net::IpAddr;

use super::NoRdma;
use crate::channel::Secret;
use crate::diagnostic::Diagnostic;
use crate::transport::verbs::{Verbs, VerbsOptions};

/// Opens RDMA for process `index` of a job, with the settings of [`rdma_options`], near the GPU at this address.
pub(super) fn open(
    secret: Option<Secret>,
    peer: Option<IpAddr>,
    index: usize,
    near: Option<String>,
) -> Result<Verbs, NoRdma> {
    // A process does not know all others of its host: its rank in the job spreads them as well.
    let options = rdma_options().map_err(|error| NoRdma::of(&error))?;
    let options = VerbsOptions { peer, local_rank: index, secret, near, ..options };
    Verbs::open(options).map_err(|error| NoRdma::of(&error))
}

/// The settings of RDMA in the environment: `SLACKLINE_RDMA_DEVICE`, `_PORT` and `_ORDER` override the choice of the
/// device and its settings; `_GID_INDEX`, `_MTU`, `_SL`, `_TRAFFIC_CLASS`, `_PKEY`, `_TIMEOUT` and `_RETRIES` set the
/// path, and `_RELAXED_ORDERING` says how the device writes payloads. Where one of the latter two kinds is not
/// set, the variables of NCCL and UCX that mean the same are taken.
///
/// # Errors
/// A variable has a value that is not usable.
pub fn rdma_options() -> Result<VerbsOptions, SettingError> {
    rdma_settings().map(|(options, _)| options)
}

/// The same, and the variables from which numbers were taken.
///
/// # Errors
/// A variable has a value that is not usable.
pub fn rdma_settings() -> Result<(VerbsOptions, Origins), SettingError> {
    settings_from(&|name| std::env::var(name).ok())
}

/// A variable with a setting of RDMA has a value that is not usable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} is `{text}`{}; {remedy}", if *is_number { ", which is no such number" } else { "" })]
pub struct SettingError {
    name: &'static str,
    text: String,
    /// The setting is a number.
    is_number: bool,
    remedy: &'static str,
}

impl SettingError {
    fn no_number(name: &'static str, text: String) -> SettingError {
        SettingError { name, text, is_number: true, remedy: "correct or unset it" }
    }
}

impl Diagnostic for SettingError {
    fn operation(&self) -> &'static str {
        "reading the settings of RDMA"
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        Some(self.remedy.into())
    }
}

/// The variables that settings of RDMA were taken from; none for a setting that no variable says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origins {
    /// Of the entry of the GID table.
    pub gid_index: Option<&'static str>,
    /// Of the largest packet.
    pub mtu: Option<&'static str>,
    /// Of the service level.
    pub service_level: Option<&'static str>,
    /// Of the traffic class.
    pub traffic_class: Option<&'static str>,
    /// Of the partition.
    pub partition_key: Option<&'static str>,
    /// Of the time after which a device asks again.
    pub timeout: Option<&'static str>,
    /// Of the number of times that it does.
    pub retries: Option<&'static str>,
    /// Of the order in which a device is assumed to apply the writes of peers.
    pub order: Option<&'static str>,
    /// Of relaxed ordering.
    pub relaxed_ordering: Option<&'static str>,
}

fn settings_from(variable: &dyn Fn(&str) -> Option<String>) -> Result<(VerbsOptions, Origins), SettingError> {
    const ORDER: &str = "SLACKLINE_RDMA_ORDER";
    let in_order = match variable(ORDER).as_deref() {
        None | Some("" | "auto") => None,
        Some("in-order") => Some(true),
        Some("read") => Some(false),
        Some(text) => {
            let (text, remedy) = (text.to_owned(), "say auto, in-order or read, or unset it");
            return Err(SettingError { name: ORDER, text, is_number: false, remedy });
        }
    };
    let order = variable(ORDER).filter(|text| !text.is_empty()).map(|_| ORDER);
    let mut from = Origins { order, ..Origins::default() };
    // UCX says it in words, too.
    let in_digits = |name: &str| {
        variable(name).map(|text| match text.to_ascii_lowercase().as_str() {
            "on" | "yes" | "y" => "1".to_owned(),
            "off" | "no" | "n" => "0".to_owned(),
            _ => text,
        })
    };
    let relaxed_ordering = number::<u8>(&in_digits, &RELAXED_ORDERING, &mut from.relaxed_ordering)?;
    let options = VerbsOptions {
        devices: device_list(&variable("SLACKLINE_RDMA_DEVICE").unwrap_or_default()),
        port: number(variable, &["SLACKLINE_RDMA_PORT"], &mut None)?,
        gid_index: number(variable, &GID_INDEX, &mut from.gid_index)?,
        gid_index_from: from.gid_index,
        mtu: number(variable, &MTU, &mut from.mtu)?,
        in_order,
        relaxed_ordering: relaxed_ordering != Some(0),
        service_level: number(variable, &SERVICE_LEVEL, &mut from.service_level)?.unwrap_or(0),
        traffic_class: number(variable, &TRAFFIC_CLASS, &mut from.traffic_class)?.unwrap_or(0),
        partition_key: number(variable, &PARTITION_KEY, &mut from.partition_key)?,
        partition_key_from: from.partition_key,
        timeout: number(variable, &TIMEOUT, &mut from.timeout)?,
        retries: number(variable, &RETRIES, &mut from.retries)?,
        ..VerbsOptions::default()
    };
    Ok((options, from))
}

/// Variables that say the same in the same unit, the one of this library first. NCCL_IB_PKEY is not among them: it is
/// an index in a table, which differs between ports; nor is UCX_RC_TIMEOUT, which is a time.
const GID_INDEX: [&str; 3] = ["SLACKLINE_RDMA_GID_INDEX", "NCCL_IB_GID_INDEX", "UCX_IB_GID_INDEX"];
const MTU: [&str; 2] = ["SLACKLINE_RDMA_MTU", "UCX_IB_PATH_MTU"];
const SERVICE_LEVEL: [&str; 3] = ["SLACKLINE_RDMA_SL", "NCCL_IB_SL", "UCX_IB_SL"];
const TRAFFIC_CLASS: [&str; 3] = ["SLACKLINE_RDMA_TRAFFIC_CLASS", "NCCL_IB_TC", "UCX_IB_TRAFFIC_CLASS"];
const PARTITION_KEY: [&str; 2] = ["SLACKLINE_RDMA_PKEY", "UCX_IB_PKEY"];
const TIMEOUT: [&str; 2] = ["SLACKLINE_RDMA_TIMEOUT", "NCCL_IB_TIMEOUT"];
const RELAXED_ORDERING: [&str; 3] =
    ["SLACKLINE_RDMA_RELAXED_ORDERING", "NCCL_IB_PCI_RELAXED_ORDERING", "UCX_IB_PCI_RELAXED_ORDERING"];
const RETRIES: [&str; 3] = ["SLACKLINE_RDMA_RETRIES", "NCCL_IB_RETRY_CNT", "UCX_RC_RETRY_COUNT"];

/// The values, in letters of either case, by which UCX leaves a choice to itself.
const LEFT_OPEN: [&str; 6] = ["", "auto", "inf", "default", "try", "maybe"];

/// The number in the first of these variables that is set, decimal or, after `0x`, hexadecimal, and the name of that
/// variable. A value that [leaves the choice open](LEFT_OPEN), in variables of NCCL also -1, counts as not set.
fn number<N: TryFrom<u32>>(
    variable: &dyn Fn(&str) -> Option<String>,
    names: &[&'static str],
    from: &mut Option<&'static str>,
) -> Result<Option<N>, SettingError> {
    let says_nothing = |name: &str, text: &str| {
        LEFT_OPEN.iter().any(|word| text.eq_ignore_ascii_case(word))
            || name.starts_with("NCCL_") && text == "-1"
    };
    let set = |name: &&'static str| {
        let text = variable(name).filter(|text| !says_nothing(name, text))?;
        Some((*name, text))
    };
    let Some((name, text)) = names.iter().find_map(set) else { return Ok(None) };
    let number = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    let number = number.and_then(|number| N::try_from(number).ok());
    let number = number.ok_or_else(|| SettingError::no_number(name, text.clone()))?;
    if names.first() != Some(&name) {
        tracing::info!(variable = name, value = text, "a setting of another library is taken for RDMA");
    }
    *from = Some(name);
    Ok(Some(number))
}

/// The names in a list with commas.
fn device_list(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options_of(variable: &dyn Fn(&str) -> Option<String>) -> Result<VerbsOptions, SettingError> {
        settings_from(variable).map(|(options, _)| options)
    }

    #[test]
    fn the_way_is_set_by_variables_of_ours_and_else_by_those_of_nccl_and_ucx() {
        let settings = |set: &'static [(&str, &str)]| {
            settings_from(&|name| {
                set.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned())
            })
        };
        let way = |(options, _): (VerbsOptions, Origins)| {
            let VerbsOptions { service_level, traffic_class, partition_key, timeout, retries, .. } = options;
            (service_level, traffic_class, partition_key, timeout, retries)
        };
        assert_eq!(way(settings(&[]).unwrap()), (0, 0, None, None, None));
        let nccl =
            [("NCCL_IB_SL", "1"), ("NCCL_IB_TC", "106"), ("NCCL_IB_TIMEOUT", "22"), ("NCCL_IB_PKEY", "2")];
        let nccl: &'static [(&str, &str)] = nccl.to_vec().leak();
        assert_eq!(way(settings(nccl).unwrap()), (1, 106, None, Some(22), None));
        let both = settings(&[
            ("UCX_IB_SL", "auto"),
            ("UCX_IB_TRAFFIC_CLASS", "auto"),
            ("UCX_IB_PKEY", "0x8012"),
            ("UCX_RC_RETRY_COUNT", "5"),
            ("SLACKLINE_RDMA_RETRIES", "3"),
            ("SLACKLINE_RDMA_SL", ""),
        ]);
        assert_eq!(way(both.unwrap()), (0, 0, Some(0x8012), None, Some(3)));
        let error = settings(&[("NCCL_IB_TC", "300")]).unwrap_err();
        assert_eq!(error.to_string(), "NCCL_IB_TC is `300`, which is no such number; correct or unset it");
    }

    #[test]
    fn the_gid_index_of_nccl_and_ucx_is_taken_unless_they_leave_it_open() {
        let gid_index = |set: &'static [(&str, &str)]| {
            let (options, from) = settings_from(&|name| {
                set.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned())
            })?;
            assert_eq!(options.gid_index_from, from.gid_index);
            Ok::<_, SettingError>((options.gid_index, from.gid_index))
        };
        let (ours, nccl, ucx) = ("SLACKLINE_RDMA_GID_INDEX", "NCCL_IB_GID_INDEX", "UCX_IB_GID_INDEX");
        assert_eq!(gid_index(&[("NCCL_IB_GID_INDEX", "3")]), Ok((Some(3), Some(nccl))));
        assert_eq!(gid_index(&[("UCX_IB_GID_INDEX", "5")]), Ok((Some(5), Some(ucx))));
        let open = gid_index(&[("NCCL_IB_GID_INDEX", "-1"), ("UCX_IB_GID_INDEX", "auto")]);
        assert_eq!(open, Ok((None, None)));
        let all = gid_index(&[
            ("UCX_IB_GID_INDEX", "5"),
            ("NCCL_IB_GID_INDEX", "3"),
            ("SLACKLINE_RDMA_GID_INDEX", "1"),
        ]);
        assert_eq!(all, Ok((Some(1), Some(ours))));
        let error = gid_index(&[("SLACKLINE_RDMA_GID_INDEX", "-1")]).unwrap_err();
        assert!(error.to_string().starts_with("SLACKLINE_RDMA_GID_INDEX is `-1`"), "{error}");
    }

    #[test]
    fn the_longest_packet_of_ucx_is_taken_unless_it_leaves_that_open() {
        let mtu = |text: &'static str| {
            options_of(&|name| (name == "UCX_IB_PATH_MTU").then(|| text.into())).map(|options| options.mtu)
        };
        assert_eq!(["default", "512", "4096"].map(mtu), [Ok(None), Ok(Some(512)), Ok(Some(4096))]);
    }

    #[test]
    fn the_variable_that_a_setting_was_taken_from_is_told() {
        let set = |name: &str| match name {
            "NCCL_IB_TC" => Some("104".to_owned()),
            "SLACKLINE_RDMA_MTU" => Some("1024".to_owned()),
            "SLACKLINE_RDMA_ORDER" => Some("read".to_owned()),
            "NCCL_IB_PCI_RELAXED_ORDERING" => Some("0".to_owned()),
            "UCX_IB_SL" => Some("auto".to_owned()),
            "UCX_IB_PKEY" => Some("0x12".to_owned()),
            _ => None,
        };
        let (options, from) = settings_from(&set).unwrap();
        assert_eq!(options.partition_key_from, Some("UCX_IB_PKEY"));
        let expected = Origins {
            traffic_class: Some("NCCL_IB_TC"),
            mtu: Some("SLACKLINE_RDMA_MTU"),
            partition_key: Some("UCX_IB_PKEY"),
            order: Some("SLACKLINE_RDMA_ORDER"),
            relaxed_ordering: Some("NCCL_IB_PCI_RELAXED_ORDERING"),
            ..Origins::default()
        };
        assert_eq!(from, expected);
    }

    #[test]
    fn the_environment_overrides_the_choice_and_errors_name_the_variable() {
        let set = |name: &str| match name {
            "SLACKLINE_RDMA_DEVICE" => Some("rxe0".to_owned()),
            "SLACKLINE_RDMA_GID_INDEX" => Some("3".to_owned()),
            "SLACKLINE_RDMA_PORT" => Some(String::new()),
            _ => None,
        };
        let options = options_of(&set).unwrap();
        assert_eq!(
            (options.devices, options.gid_index, options.port),
            (vec!["rxe0".to_owned()], Some(3), None)
        );
        let two = options_of(&|name| (name == "SLACKLINE_RDMA_DEVICE").then(|| "mlx5_0, mlx5_1:2".into()));
        assert_eq!(two.unwrap().devices, ["mlx5_0", "mlx5_1:2"]);
        let order = |text: &'static str| {
            options_of(&|name| (name == "SLACKLINE_RDMA_ORDER").then(|| text.into()))
                .map(|options| options.in_order)
        };
        let asked = ["", "auto", "in-order", "read"].map(order);
        assert_eq!(asked, [Ok(None), Ok(None), Ok(Some(true)), Ok(Some(false))]);
        let relaxed = |name: &'static str, text: &'static str| {
            options_of(&|asked| (asked == name).then(|| text.into())).map(|options| options.relaxed_ordering)
        };
        assert_eq!(relaxed("SLACKLINE_RDMA_RELAXED_ORDERING", "0"), Ok(false));
        let of_nccl = ["", "0", "1", "2"].map(|text| relaxed("NCCL_IB_PCI_RELAXED_ORDERING", text));
        assert_eq!(of_nccl, [Ok(true), Ok(false), Ok(true), Ok(true)]);
        for (texts, is_on) in [
            (["on", "yes", "y", "1", "try", "maybe", "auto"].as_slice(), true),
            (["off", "OFF", "no", "n", "0"].as_slice(), false),
        ] {
            for text in texts {
                assert_eq!(relaxed("UCX_IB_PCI_RELAXED_ORDERING", text), Ok(is_on), "{text}");
            }
        }
        assert!(relaxed("UCX_IB_PCI_RELAXED_ORDERING", "often").is_err());
        let error = order("strict").unwrap_err();
        assert_eq!(error.remedy().as_deref(), Some("say auto, in-order or read, or unset it"));
        assert_eq!(
            error.to_string(),
            "SLACKLINE_RDMA_ORDER is `strict`; say auto, in-order or read, or unset it"
        );
        let error = options_of(&|name| (name == "SLACKLINE_RDMA_MTU").then(|| "big".into())).unwrap_err();
        assert_eq!(
            error.to_string(),
            "SLACKLINE_RDMA_MTU is `big`, which is no such number; correct or unset it"
        );
    }
}
