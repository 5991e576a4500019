//! Runs on this host itself: where it has an RDMA device, or can make one of rxe over a network of its own.

use crate::cmd::Cmd;
use crate::failure::Failure;
use crate::site::Site;
use std::fs;
use std::path::{Path, PathBuf};

const DEVICES: &str = "/sys/class/infiniband";
/// Of the device and the interface that are made.
const MADE: &str = "slackline-rxe";
/// An address for documentation (RFC 5737), so no host has it. It goes with the interface.
const ADDRESS: &str = "192.0.2.1/32";

/// An RDMA device with an active port.
#[derive(Debug)]
pub(super) struct Device<'a> {
    site: &'a Site,
    name: String,
    /// Another one, if there is one.
    second: Option<String>,
    is_ours: bool,
}

impl Device<'_> {
    /// The one of this name, or the first that is there, or one that is made, and goes when this does.
    pub(super) fn find<'a>(site: &'a Site, wanted: Option<&str>) -> Result<Device<'a>, Failure> {
        let active_now: Vec<String> = names().collect();
        match choose(&active_now, wanted) {
            Ok(Some((name, second))) => return Ok(Device { site, name, second, is_ours: false }),
            Ok(None) => {}
            Err(what) => {
                return Err(Failure::Missing { what, remedy: "bring it up, or name another one".into() });
            }
        }
        // From here on it is taken away again, however far this comes.
        let device = Device { site, name: MADE.into(), second: None, is_ours: true };
        let script = format!(
            "modprobe rdma_rxe || test -d /sys/module/rdma_rxe && ip link add {MADE} type dummy \
             && ip link set {MADE} mtu 4200 up && ip address add {ADDRESS} dev {MADE} \
             && rdma link add {MADE} type rxe netdev {MADE}"
        );
        let output = admin(&script).outcome(site)?;
        if output.status.success() && names().next().is_some() {
            return Ok(device);
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(Failure::Missing {
            what: format!(
                "this host has no active RDMA device, and none can be made: {}",
                said.trim().replace('\n', "; ")
            ),
            remedy: "run this as root on a kernel with rdma_rxe and dummy, or without --host in a guest"
                .into(),
        })
    }

    /// Whether it is there for the runs alone.
    pub(super) fn is_ours(&self) -> bool {
        self.is_ours
    }

    /// Returns how many devices runs can use.
    pub(super) fn count(&self) -> usize {
        1 + usize::from(self.second.is_some())
    }

    /// Returns the variables that programs find in their environment.
    pub(super) fn environment(&self) -> Vec<(&'static str, String)> {
        let mut environment = vec![("SLACKLINE_RIG_DEVICE", self.name.clone())];
        let netdev = Path::new(DEVICES).join(&self.name).join("ports/1/gid_attrs/ndevs/0");
        if let Ok(netdev) = fs::read_to_string(netdev) {
            let netdev = netdev.trim();
            let addresses = admin(&format!("ip -4 -oneline address show dev {netdev}")).output(self.site);
            environment
                .extend(address(&addresses.unwrap_or_default()).map(|ip| ("SLACKLINE_RIG_ADDRESS", ip)));
            environment.push(("SLACKLINE_RIG_NETDEV", netdev.into()));
        }
        environment.extend(self.second.clone().map(|second| ("SLACKLINE_RIG_DEVICE_2", second)));
        environment
    }
}

impl Drop for Device<'_> {
    fn drop(&mut self) {
        if self.is_ours {
            // What was not made is not there to go.
            let script = format!("rdma link delete {MADE}; ip link delete {MADE}");
            let _gone_already = admin(&script).outcome(self.site);
        }
    }
}

fn admin(script: &str) -> Cmd {
    Cmd::new("sh", &["-c", &format!("PATH=$PATH:/usr/sbin:/sbin; {script}")])
}

/// The device of this name among those that are active, or the first of them, and another one; none if there is none to
/// choose from and none was named.
fn choose(active: &[String], wanted: Option<&str>) -> Result<Option<(String, Option<String>)>, String> {
    let name = match wanted {
        Some(wanted) if active.iter().any(|name| name == wanted) => wanted,
        Some(wanted) => return Err(format!("this host has no active RDMA device {wanted}")),
        None => match active.first() {
            Some(first) => first,
            None => return Ok(None),
        },
    };
    Ok(Some((name.to_owned(), active.iter().find(|other| *other != name).cloned())))
}

/// The names of the active devices of this host.
fn names() -> impl Iterator<Item = String> {
    active(Path::new(DEVICES)).filter_map(|device| Some(device.file_name()?.to_string_lossy().into_owned()))
}

/// The devices of this folder that have an active port, by name.
pub(crate) fn active(devices: &Path) -> impl Iterator<Item = PathBuf> {
    let is_active = |device: &PathBuf| {
        let ports = fs::read_dir(device.join("ports")).into_iter().flatten().flatten();
        ports
            .filter_map(|port| fs::read_to_string(port.path().join("state")).ok())
            .any(|state| state.contains("ACTIVE"))
    };
    let devices = fs::read_dir(devices).into_iter().flatten().flatten();
    let mut active: Vec<PathBuf> = devices.map(|device| device.path()).filter(is_active).collect();
    active.sort();
    active.into_iter()
}

/// The first address in what `ip -oneline address` prints.
fn address(said: &str) -> Option<String> {
    let (_, rest) = said.split_once(" inet ")?;
    rest.split('/').next().map(String::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_that_is_named_is_taken_and_the_first_other_is_the_second() {
        let active = ["mlx5_0", "mlx5_1"].map(String::from);
        let both = |first: &str, second: &str| Ok(Some((first.to_owned(), Some(second.to_owned()))));
        assert_eq!(choose(&active, None), both("mlx5_0", "mlx5_1"));
        assert_eq!(choose(&active, Some("mlx5_1")), both("mlx5_1", "mlx5_0"));
        assert_eq!(choose(&[], None), Ok(None));
        assert!(choose(&active, Some("mlx5_2")).unwrap_err().ends_with("no active RDMA device mlx5_2"));
    }

    #[test]
    fn the_address_of_an_interface_is_found() {
        let said = "2: eth0    inet 10.9.9.1/24 brd 10.9.9.255 scope global eth0\\       valid_lft forever";
        assert_eq!(address(said).as_deref(), Some("10.9.9.1"));
        assert_eq!(address(""), None);
    }
}
