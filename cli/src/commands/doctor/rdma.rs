//! The RDMA devices of this host, each of them tried.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Instant;

use slackline::internals::job::transports::{Origins, rdma_settings};
use slackline::internals::mem::HostMemory;
use slackline::internals::transport::RegisterError;
use slackline::internals::transport::verbs::{DeviceInfo, devices};
use slackline::{Address, OpenError, Verbs, VerbsOptions};

use super::adapter;
use super::check::{Check, CheckProgress, Figure, Problem};
use super::loopback::try_all;
use super::report::{Chosen, PathReport, Rdma, RdmaReport};
use super::settings;

const NAME: &str = "verbs";
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// A huge page of a GPU.
const DMA_BUF_BYTES: usize = 2 << 20;

/// Tries every device, or the one called `NAME` or `NAME:PORT`, with the settings of the environment; also which one
/// would be taken, and why.
pub(super) fn examine(wanted: Option<&str>, progress: &CheckProgress) -> (Vec<PathReport>, Rdma) {
    progress.go_on("verbs: opening devices");
    let (options, from) = match rdma_settings() {
        Ok((options, from)) => (named(options, wanted), from),
        Err(error) => return misconfigured(wanted, error.into()),
    };
    let best = Verbs::open(options.clone());
    let paths = match devices() {
        Err(error) => vec![PathReport::closed(NAME, None, error.into())],
        Ok(all) => {
            let wanted = wanted.map(name_of);
            let is_meant = |device: Option<&str>| wanted.is_none() || device == wanted;
            let mut paths = Vec::new();
            for device in all {
                match device {
                    Ok(info) if is_meant(Some(&info.name)) => {
                        let open = match &best {
                            Ok(best) if best.device() == info.name => Ok(best.clone()),
                            _ => Verbs::open(only(&options, &info.name)),
                        };
                        paths.push(try_one(&info, open, (&options, &from), progress));
                    }
                    Err(error) if is_meant(error.device()) => {
                        let device = error.device().map(str::to_owned);
                        paths.push(PathReport::closed(NAME, device, error.into()));
                    }
                    _ => {}
                }
            }
            paths
        }
    };
    conclude(paths, wanted, best)
}

/// The same for the device of this name, if one is given.
fn named(options: VerbsOptions, device: Option<&str>) -> VerbsOptions {
    match device {
        Some(device) => VerbsOptions { devices: vec![device.to_owned()], ..options },
        None => options,
    }
}

/// The same for the device of this name alone: with the ports that the list of devices gives it, if it is in there.
fn only(options: &VerbsOptions, name: &str) -> VerbsOptions {
    let mut devices = options.devices.clone();
    devices.retain(|device| name_of(device) == name);
    if devices.is_empty() {
        devices.push(name.to_owned());
    }
    VerbsOptions { devices, ..options.clone() }
}

/// The name in `NAME` or `NAME:PORT`.
fn name_of(device: &str) -> &str {
    match device.rsplit_once(':') {
        Some((name, port)) if port.parse::<u8>().is_ok() => name,
        _ => device,
    }
}

/// What a variable says cannot be used: a process of a job would open no device.
fn misconfigured(wanted: Option<&str>, problem: Problem) -> (Vec<PathReport>, Rdma) {
    let device = wanted.map(|wanted| name_of(wanted).to_owned());
    let path = PathReport::closed(NAME, device.clone(), problem.clone());
    (vec![path], Rdma { works: false, device, port: None, reason: None, problem: Some(problem) })
}

fn try_one(
    info: &DeviceInfo,
    open: Result<Verbs, OpenError>,
    (options, from): (&VerbsOptions, &Origins),
    progress: &CheckProgress,
) -> PathReport {
    let device = Some(info.name.clone());
    let (mut report, chosen) = match open {
        Err(error) => (PathReport::closed(NAME, device, error.into()), None),
        Ok(verbs) => {
            let at = Address::Verbs(SocketAddr::from((HERE, 0)));
            let mut checks = try_all(&verbs, &at, verbs.atomics_fault(), progress);
            checks.push(dma_buf(&verbs));
            let gid = verbs.gid_towards(Some(HERE));
            let settings = settings::look(&verbs, gid.as_ref(), options, from);
            // Why it is not found out the checks have told: they make such a connection, too.
            let chosen = Chosen::new(&verbs, gid, verbs.arrival_order().ok(), settings);
            (PathReport::tried(NAME, device, checks), Some((chosen, verbs.port().number)))
        }
    };
    let (chosen, number) = chosen.unzip();
    let port = info.ports.iter().find(|port| number.is_none_or(|number| port.number == number));
    let adapter = port.map_or_else(Vec::new, |port| adapter::look(info, port, Path::new("/")));
    report.rdma = Some(RdmaReport::new(info, driver(&info.name), chosen, adapter));
    report
}

/// Tries what memory of a GPU asks of the device, with host memory in the form in which a GPU's would come.
fn dma_buf(verbs: &Verbs) -> Check {
    const NAME: &str = "dma-buf";
    let unavailable = |problem| Check::unavailable(NAME, problem);
    let buffer = HostMemory::shared(DMA_BUF_BYTES).and_then(|memory| memory.dma_buf());
    // A device that takes none says so whatever it is given: where the kernel makes none, that much is found out.
    let no_buffer = io::stdin();
    let file = buffer.as_ref().map_or(no_buffer.as_fd(), AsFd::as_fd);
    let begun = Instant::now();
    let tried = verbs.try_dma_buf(file, DMA_BUF_BYTES);
    let took = begun.elapsed().as_secs_f64() * 1e9;
    match (tried, buffer) {
        (Ok(()), Ok(_)) => Check::ok(NAME, [Figure::registered(DMA_BUF_BYTES, took)]),
        (Err(error), Ok(_)) => unavailable(error.into()),
        (Err(error), Err(_)) if is_unsupported(&error) => unavailable(error.into()),
        (_, Err(error)) => unavailable(error.into()),
    }
}

/// Concludes whether RDMA as a whole works: it does if the device that would be taken works.
fn conclude(
    mut paths: Vec<PathReport>,
    wanted: Option<&str>,
    best: Result<Verbs, OpenError>,
) -> (Vec<PathReport>, Rdma) {
    let rdma = match best {
        Ok(best) => {
            let device = Some(best.device().to_owned());
            let problem = match paths.iter().find(|path| path.device == device) {
                Some(path) => path.problem.clone(),
                None => Some(OpenError::NoDevice.into()),
            };
            let (port, reason) = (Some(best.port().number), Some(best.reason().to_owned()));
            Rdma { works: problem.is_none(), device, port, reason, problem }
        }
        Err(error) => {
            let device = error.device().or(wanted.map(name_of)).map(str::to_owned);
            let problem = Problem::from(error);
            if paths.is_empty() {
                paths.push(PathReport::closed(NAME, device.clone(), problem.clone()));
            }
            Rdma { works: false, device, port: None, reason: None, problem: Some(problem) }
        }
    };
    (paths, rdma)
}

fn is_unsupported(error: &RegisterError) -> bool {
    matches!(error, RegisterError::Device { source, .. } if source.kind() == io::ErrorKind::Unsupported)
}

/// The driver of the hardware behind a device; a device in software has none.
fn driver(device: &str) -> Option<String> {
    let link = Path::new("/sys/class/infiniband").join(device).join("device/driver");
    Some(fs::read_link(link).ok()?.file_name()?.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_on_the_command_line_wins_and_the_other_settings_stay() {
        let environment =
            || VerbsOptions { devices: vec!["mlx5_0".into()], mtu: Some(1024), ..VerbsOptions::default() };
        assert_eq!(named(environment(), None).devices, ["mlx5_0"]);
        let options = named(environment(), Some("mlx5_1"));
        assert_eq!((options.devices, options.mtu), (vec!["mlx5_1".to_owned()], Some(1024)));
    }

    #[test]
    fn each_device_is_tried_at_the_port_that_it_is_named_with() {
        assert_eq!(["mlx5_0", "mlx5_0:2", "a:b"].map(name_of), ["mlx5_0", "mlx5_0", "a:b"]);
        let devices = ["mlx5_0:1", "mlx5_1:2", "mlx5_1:1"].map(String::from).to_vec();
        let options = VerbsOptions { devices, mtu: Some(1024), ..VerbsOptions::default() };
        assert_eq!(only(&options, "mlx5_0").devices, ["mlx5_0:1"]);
        assert_eq!(only(&options, "mlx5_1").devices, ["mlx5_1:2", "mlx5_1:1"]);
        assert_eq!(only(&options, "mlx5_2").devices, ["mlx5_2"]);
        assert_eq!(only(&options, "mlx5_1").mtu, Some(1024));
        let named = named(options, Some("mlx5_2:2"));
        assert_eq!(only(&named, "mlx5_2").devices, ["mlx5_2:2"]);
    }

    #[test]
    fn a_variable_that_cannot_be_used_is_the_reason_that_there_is_no_rdma() {
        let is_big = Problem::new("SLACKLINE_RDMA_MTU is `big`, which is no such number", "correct it");
        let (paths, rdma) = misconfigured(None, is_big);
        let problem = rdma.problem.unwrap();
        assert!(!rdma.works && !paths[0].works);
        assert_eq!(problem.error, "SLACKLINE_RDMA_MTU is `big`, which is no such number");
        assert_eq!(problem.help, "correct it");
    }
}
