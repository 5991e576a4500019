//! The findings, as people read them.

use std::fmt::Write as _;

use slackline_lab::table::Table;

use super::check::Status;
use super::report::{Chosen, DoctorReport, PathReport, RdmaReport};
use super::settings;
use crate::commands::bench::size;

pub(super) fn text(report: &DoctorReport) -> String {
    let mut text = format!("slackline {}, Linux {}\n", report.version, report.kernel);
    for path in &report.paths {
        let _ = write!(text, "\n{}", one(path).text());
    }
    let mut table = Table::new(["this process and host", ""]);
    for limit in &report.limits {
        table.row([limit.limit.to_owned(), limit.text.clone()]);
        help(&mut table, limit.help.as_deref());
    }
    for (name, row, remedy) in report.gpu.rows() {
        table.row([name.to_owned(), row]);
        help(&mut table, remedy);
    }
    let _ = write!(text, "\n{}\n{}", table.text(), conclusion(report));
    text
}

fn help(table: &mut Table, help: Option<&str>) {
    if let Some(help) = help {
        table.row(["".to_owned(), format!("help: {help}")]);
    }
}

fn one(path: &PathReport) -> Table {
    let mut table = Table::new([path.name(), if path.works { "works" } else { "FAILS" }.into()]);
    for check in &path.checks {
        let status = match check.status {
            Status::Ok => "ok",
            Status::Failed => "FAILED",
            Status::Unavailable => "-",
        };
        table.row([check.check.to_owned(), format!("{status:<7}{}", check.text())]);
        help(&mut table, check.problem.as_ref().map(|problem| problem.help.as_str()));
    }
    if let (true, Some(problem)) = (path.checks.is_empty(), &path.problem) {
        table.row(["open".to_owned(), format!("FAILED {}", problem.error)]);
        help(&mut table, Some(&problem.help));
    }
    if let Some(rdma) = &path.rdma {
        describe(&mut table, rdma);
    }
    table
}

fn describe(table: &mut Table, rdma: &RdmaReport) {
    let mut row = |name: &str, text: String| table.row([name.to_owned(), text]);
    let kind = rdma.driver.as_ref().map_or("in software".into(), |driver| format!("driver {driver}"));
    let firmware =
        if rdma.firmware.is_empty() { String::new() } else { format!(", firmware {}", rdma.firmware) };
    let node = rdma.numa_node.map_or(String::new(), |node| format!(", on NUMA node {node}"));
    row("device", format!("{kind}{firmware}{node}"));
    if let Some(Chosen {
        port,
        gid,
        gid_reason,
        path_mtu,
        queue_depth,
        inline_bytes,
        atomics,
        in_order,
        in_order_says: _,
        in_order_text,
        settings,
    }) = &rdma.chosen
    {
        let count = rdma.ports.len();
        row("port", format!("{port} of {count}, packets of {path_mtu} bytes, queues of {queue_depth}"));
        if let Some(bytes) = inline_bytes {
            row("inline", format!("up to {bytes} bytes of data travel in a request itself"));
        }
        if let (Some(gid), Some(reason)) = (gid, gid_reason) {
            row("gid", format!("{}, index {}: {reason}", gid.address, gid.index));
        }
        row("settings", settings::text(settings));
        row("keys", rdma.keys.to_owned());
        row(
            "atomics",
            match *atomics {
                "none" => "none".into(),
                "device" => "atomic among requests through this device, not against processors".into(),
                _ => "atomic among requests and processors alike".to_owned(),
            },
        );
        row(
            "order",
            match (in_order, in_order_text) {
                (Some(true), Some(says)) => {
                    format!("writes are applied in the order of their requests, says {says}")
                }
                (Some(false), Some(says)) => {
                    format!("writes may be applied in any order, says {says}: a READ proves each payload")
                }
                _ => "unknown: no connection of this host with itself".to_owned(),
            },
        );
    }
    for limit in &rdma.adapter {
        row(limit.limit, limit.text.clone());
        if let Some(help) = &limit.help {
            row("", format!("help: {help}"));
        }
    }
    for port in &rdma.ports {
        row(
            &format!("port {}", port.number),
            format!("{} {}, packets of {}", port.state, port.link, port.mtu),
        );
        for gid in &port.gids {
            let interface = gid.interface.as_ref().map_or(String::new(), |name| format!(" on {name}"));
            let state = if gid.is_up { "" } else { ", which is down" };
            row("", format!("index {}: {} {}{interface}{state}", gid.index, gid.address, gid.kind));
        }
    }
    let limits = &rdma.device_limits;
    let region = match limits.region_bytes {
        u64::MAX => "of any length".to_owned(),
        bytes => format!("of {} bytes", size(bytes)),
    };
    row(
        "limits",
        format!(
            "{} queue pairs of {}, {} completion queues of {}, {} protection domains, {} regions {region}, {} READs \
             served and {} posted",
            limits.queue_pairs,
            limits.queue_depth,
            limits.completion_queues,
            limits.completions,
            limits.domains,
            limits.regions,
            limits.reads_served,
            limits.reads_posted
        ),
    );
}

fn conclusion(report: &DoctorReport) -> String {
    let rdma = &report.rdma;
    let chosen = match (&rdma.device, rdma.port, &rdma.reason) {
        (Some(device), Some(port), Some(reason)) => format!(" by {device}, port {port} ({reason})"),
        _ => String::new(),
    };
    match &rdma.problem {
        None => format!("RDMA works{chosen}\n"),
        Some(problem) => format!("no RDMA{chosen}: {}\nhelp: {}\n", problem.error, problem.help),
    }
}
