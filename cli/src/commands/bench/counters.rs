//! Counters of RDMA ports and of TCP, before a measurement and after it. They count all that the host does meanwhile.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use slackline::TransportKind;

/// Counters of TCP that tell of lost or refused packets (`/proc/net/snmp`, `/proc/net/netstat`).
const OF_TCP: [&str; 12] = [
    "Tcp.RetransSegs",
    "Tcp.InErrs",
    "Tcp.AttemptFails",
    "Tcp.EstabResets",
    "TcpExt.TCPTimeouts",
    "TcpExt.TCPLostRetransmit",
    "TcpExt.TCPFastRetrans",
    "TcpExt.TCPRcvCollapsed",
    "TcpExt.TCPBacklogDrop",
    "TcpExt.TCPToZeroWindowAdv",
    "TcpExt.ListenDrops",
    "TcpExt.PruneCalled",
];

/// Counters by their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Counters(BTreeMap<String, u64>);

impl Counters {
    /// Those that the transport moves, below `root`, which is `/` on a real host. A file that cannot be read has none.
    pub(super) fn look(transport: TransportKind, root: &Path) -> Counters {
        match transport {
            TransportKind::Tcp => {
                let files =
                    ["proc/net/snmp", "proc/net/netstat"].map(|file| fs::read_to_string(root.join(file)));
                let mut all: BTreeMap<_, _> =
                    files.into_iter().flatten().flat_map(|text| table(&text)).collect();
                all.retain(|name, _| OF_TCP.contains(&name.as_str()));
                Counters(all)
            }
            TransportKind::Verbs => {
                let mut all = BTreeMap::new();
                let class = root.join("sys/class/infiniband");
                for device in names(&class) {
                    let ports = class.join(&device).join("ports");
                    for port in names(&ports) {
                        for folder in ["counters", "hw_counters"].map(|folder| ports.join(&port).join(folder))
                        {
                            for name in names(&folder) {
                                let text = fs::read_to_string(folder.join(&name)).unwrap_or_default();
                                if let Ok(count) = text.trim().parse() {
                                    all.insert(format!("{device}:{port}.{name}"), count);
                                }
                            }
                        }
                    }
                }
                Counters(all)
            }
            _ => Counters::default(),
        }
    }

    /// What has been added since; counters that have not moved are left out.
    pub(super) fn since(&self, before: &Counters) -> BTreeMap<String, u64> {
        let moved = |(name, count): (&String, &u64)| {
            let more = count.checked_sub(*before.0.get(name)?).filter(|more| *more > 0)?;
            Some((name.clone(), more))
        };
        self.0.iter().filter_map(moved).collect()
    }
}

/// Pairs of lines, one of names and one of values, that begin with the same word.
fn table(text: &str) -> Vec<(String, u64)> {
    let lines: Vec<&str> = text.lines().collect();
    let pairs = lines.chunks_exact(2).filter_map(|pair| {
        let ((kind, names), (other, values)) = (pair[0].split_once(':')?, pair[1].split_once(':')?);
        (kind == other)
            .then(|| names.split_whitespace().zip(values.split_whitespace()).map(move |pair| (kind, pair)))
    });
    pairs
        .flatten()
        .filter_map(|(kind, (name, value))| Some((format!("{kind}.{name}"), value.parse().ok()?)))
        .collect()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_that_have_moved_are_told_and_no_others() {
        let root = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let file = root.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        let look = |transport| Counters::look(transport, root.path());
        write("proc/net/snmp", "Ip: Forwarding\nIp: 1\nTcp: MaxConn RetransSegs InSegs\nTcp: -1 5 70\n");
        write("proc/net/netstat", "TcpExt: TCPTimeouts PruneCalled\nTcpExt: 1 0\n");
        let port = "sys/class/infiniband/mlx5_0/ports/1";
        write(&format!("{port}/hw_counters/out_of_sequence"), "7\n");
        write(&format!("{port}/hw_counters/lifespan"), "not a number\n");
        write(&format!("{port}/counters/link_downed"), "1\n");
        let before = [TransportKind::Tcp, TransportKind::Verbs, TransportKind::Shm].map(look);
        write("proc/net/snmp", "Tcp: MaxConn RetransSegs InSegs\nTcp: -1 8 90\n");
        write(&format!("{port}/hw_counters/out_of_sequence"), "9\n");
        let moved =
            |transport, before: &Counters| look(transport).since(before).into_iter().collect::<Vec<_>>();
        assert_eq!(moved(TransportKind::Tcp, &before[0]), [("Tcp.RetransSegs".to_owned(), 3)]);
        assert_eq!(moved(TransportKind::Verbs, &before[1]), [("mlx5_0:1.out_of_sequence".to_owned(), 2)]);
        assert!(moved(TransportKind::Shm, &before[2]).is_empty());
    }

    #[test]
    fn this_host_counts_what_tcp_sends_again() {
        let Counters(all) = Counters::look(TransportKind::Tcp, Path::new("/"));
        assert!(all.contains_key("Tcp.RetransSegs") && all.contains_key("TcpExt.TCPTimeouts"), "{all:?}");
    }
}
