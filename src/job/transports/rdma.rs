//! RDMA as one process of a job opens it.

use std::net::IpAddr;

use crate::channel::Secret;
use crate::transport::verbs::{Verbs, VerbsOptions};

/// Opens RDMA for process `index` of a job, with the settings of [`rdma_options`].
pub(super) fn open(secret: Option<Secret>, peer: Option<IpAddr>, index: usize) -> Result<Verbs, String> {
    // A process does not know all others of its host: its rank in the job spreads them as well.
    let options = VerbsOptions { peer, local_rank: index, secret, ..rdma_options()? };
    Verbs::open(options).map_err(|error| error.to_string())
}

/// The settings of RDMA in the environment: `SLACKLINE_RDMA_DEVICE`, `_PORT`, `_GID_INDEX`, `_MTU` and `_ORDER`
/// override the choice of the device and its settings.
///
/// # Errors
/// The text names a variable whose value is not usable.
pub fn rdma_options() -> Result<VerbsOptions, String> {
    options_from(&|name| std::env::var(name).ok())
}

fn options_from(variable: &dyn Fn(&str) -> Option<String>) -> Result<VerbsOptions, String> {
    fn number<N: std::str::FromStr>(name: &str, text: Option<String>) -> Result<Option<N>, String> {
        let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(None) };
        text.parse()
            .map(Some)
            .map_err(|_| format!("{name} is `{text}`, which is no such number; correct or unset it"))
    }
    const PORT: &str = "SLACKLINE_RDMA_PORT";
    const GID_INDEX: &str = "SLACKLINE_RDMA_GID_INDEX";
    const MTU: &str = "SLACKLINE_RDMA_MTU";
    const ORDER: &str = "SLACKLINE_RDMA_ORDER";
    let in_order = match variable(ORDER).as_deref() {
        None | Some("" | "auto") => None,
        Some("in-order") => Some(true),
        Some("read") => Some(false),
        Some(text) => {
            return Err(format!("{ORDER} is `{text}`; say auto, in-order or read, or unset it"));
        }
    };
    Ok(VerbsOptions {
        devices: device_list(&variable("SLACKLINE_RDMA_DEVICE").unwrap_or_default()),
        port: number(PORT, variable(PORT))?,
        gid_index: number(GID_INDEX, variable(GID_INDEX))?,
        mtu: number(MTU, variable(MTU))?,
        in_order,
        ..VerbsOptions::default()
    })
}

/// The names in a list with commas.
fn device_list(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_overrides_the_choice_and_errors_name_the_variable() {
        let set = |name: &str| match name {
            "SLACKLINE_RDMA_DEVICE" => Some("rxe0".to_owned()),
            "SLACKLINE_RDMA_GID_INDEX" => Some("3".to_owned()),
            "SLACKLINE_RDMA_PORT" => Some(String::new()),
            _ => None,
        };
        let options = options_from(&set).unwrap();
        assert_eq!(
            (options.devices, options.gid_index, options.port),
            (vec!["rxe0".to_owned()], Some(3), None)
        );
        let two = options_from(&|name| (name == "SLACKLINE_RDMA_DEVICE").then(|| "mlx5_0, mlx5_1:2".into()));
        assert_eq!(two.unwrap().devices, ["mlx5_0", "mlx5_1:2"]);
        let order = |text: &'static str| {
            options_from(&|name| (name == "SLACKLINE_RDMA_ORDER").then(|| text.into()))
                .map(|options| options.in_order)
        };
        let asked = ["", "auto", "in-order", "read"].map(order);
        assert_eq!(asked, [Ok(None), Ok(None), Ok(Some(true)), Ok(Some(false))]);
        let error = order("strict").unwrap_err();
        assert_eq!(error, "SLACKLINE_RDMA_ORDER is `strict`; say auto, in-order or read, or unset it");
        let error = options_from(&|name| (name == "SLACKLINE_RDMA_MTU").then(|| "big".into())).unwrap_err();
        assert_eq!(error, "SLACKLINE_RDMA_MTU is `big`, which is no such number; correct or unset it");
    }
}
