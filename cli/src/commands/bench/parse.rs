//! Values of the options of `slackline bench`.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use slackline::{RendezvousEndpoint, TransportKind};

/// The port to listen at and to connect to, unless another one is given: perftest's port.
const PORT: u16 = 18515;
/// Most operations that may be asked for: of microseconds they take an hour, and sums and products of them fit.
const MOST_OPERATIONS: u64 = 1_000_000_000;
/// Longest time that one measurement may be asked to take.
const LONGEST: Duration = Duration::from_secs(86_400);

/// One size, or the sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sizes {
    One(u64),
    All,
}

impl Sizes {
    pub(super) fn list(self) -> Vec<u64> {
        match self {
            Sizes::One(bytes) => vec![bytes],
            Sizes::All => (3..=26).map(|power| 1 << power).collect(),
        }
    }
}

pub(super) fn transport() -> impl TypedValueParser<Value = TransportKind> {
    let values = [("shm", "Shared memory"), ("tcp", "TCP"), ("verbs", "RDMA")];
    let values = values.map(|(name, help)| PossibleValue::new(name).help(help));
    PossibleValuesParser::new(values).try_map(|name| name.parse::<TransportKind>())
}

pub(super) fn sizes(text: &str) -> Result<Sizes, String> {
    if text == "all" {
        return Ok(Sizes::All);
    }
    size(text).map(Sizes::One).ok_or_else(|| {
        "write a number of bytes above 0, with an optional K, M or G, as in 64K; or `all`".into()
    })
}

pub(super) fn chunk(text: &str) -> Result<u64, String> {
    let bytes = size(text).filter(|bytes| bytes.is_multiple_of(64));
    bytes.ok_or_else(|| "write a multiple of 64 bytes, with an optional K, M or G, as in 256K".into())
}

pub(super) fn listening(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.parse() {
        return Ok((Ipv4Addr::UNSPECIFIED, port).into());
    }
    let address = text.parse().or_else(|_| text.parse().map(|ip| SocketAddr::new(ip, PORT)));
    address.map_err(|_| {
        "write an address of this host and a port, as in 10.0.0.1:18515 or [fd00::1]:18515".into()
    })
}

pub(super) fn meeting(text: &str) -> Result<String, String> {
    let with_port = if text.parse::<std::net::Ipv6Addr>().is_ok() {
        format!("[{text}]:{PORT}")
    } else if text.rsplit_once(':').is_some_and(|(host, _)| !host.contains(':') || host.ends_with(']')) {
        text.to_owned()
    } else {
        format!("{text}:{PORT}")
    };
    match with_port.parse::<RendezvousEndpoint>() {
        Ok(point) => Ok(point.to_string()),
        Err(error) => {
            Err(format!("{}: write a name or address, and a port, as in node1:18515", error.reason))
        }
    }
}

/// A number of operations to time.
pub(super) fn iterations(text: &str) -> Result<u64, String> {
    let count = text.parse().ok().filter(|count| (1..=MOST_OPERATIONS).contains(count));
    count.ok_or_else(|| format!("write a whole number of at least 1, at most {MOST_OPERATIONS}"))
}

/// A number of operations before the first that is timed.
pub(super) fn warmup(text: &str) -> Result<u64, String> {
    let count = text.parse().ok().filter(|count| *count <= MOST_OPERATIONS);
    count.ok_or_else(|| format!("write a whole number, at most {MOST_OPERATIONS}"))
}

/// A time in seconds.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let length = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let length = length.filter(|length| (Duration::from_millis(1)..=LONGEST).contains(length));
    length.ok_or_else(|| "write seconds above 0, at most 86400, as in 10 or 0.5".into())
}

fn size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(['K', 'M', 'G', 'k', 'm', 'g']);
    let shift = match text.get(digits.len()..)?.to_ascii_uppercase().as_str() {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return None,
    };
    let count: u64 = digits.parse().ok()?;
    count.checked_mul(1 << shift).filter(|bytes| (1..=1 << 46).contains(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_seconds_and_not_without_end() {
        assert_eq!(seconds("2"), Ok(Duration::from_secs(2)));
        assert_eq!(seconds("0.25"), Ok(Duration::from_millis(250)));
        for text in ["", "0", "-1", "1s", "inf", "NaN", "86401", "1e300"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn operations_are_at_most_as_many_as_can_be_counted() {
        assert_eq!((iterations("1"), warmup("0"), warmup("3")), (Ok(1), Ok(0), Ok(3)));
        assert_eq!(
            (iterations("1000000000"), warmup("1000000000")),
            (Ok(MOST_OPERATIONS), Ok(MOST_OPERATIONS))
        );
        for text in ["", "-1", "1K", "1000000001", "18446744073709551615", "18446744073709551616"] {
            assert!(iterations(text).is_err() && warmup(text).is_err(), "{text}");
        }
        assert!(iterations("0").is_err());
    }

    #[test]
    fn sizes_have_suffixes_and_rubbish_is_refused() {
        assert_eq!(
            ["1", "64K", "2m", "1G"].map(size),
            [Some(1), Some(64 << 10), Some(2 << 20), Some(1 << 30)]
        );
        for text in ["", "K", "0", "-1", "1KK", "1T", "1.5M", "99999999999G"] {
            assert_eq!(size(text), None, "{text}");
        }
        assert_eq!(Sizes::All.list().len(), 24);
    }

    #[test]
    fn hosts_and_addresses_have_a_port_of_their_own() {
        for (text, wanted) in [
            ("node1", "node1:18515"),
            ("node1:7", "node1:7"),
            ("10.0.0.1", "10.0.0.1:18515"),
            ("fd00::1", "[fd00::1]:18515"),
            ("[fd00::1]:7", "[fd00::1]:7"),
        ] {
            assert_eq!(meeting(text).as_deref(), Ok(wanted));
        }
        assert!(meeting("node1:x").is_err() && meeting("a b").is_err() && meeting("").is_err());
        assert_eq!(listening("7").unwrap().to_string(), "0.0.0.0:7");
        assert_eq!(listening("::1").unwrap().to_string(), "[::1]:18515");
        assert!(listening("node1:7").is_err());
    }
}
