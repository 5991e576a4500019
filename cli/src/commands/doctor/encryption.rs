//! Whether the network of an adapter is encrypted below RDMA: MACsec of an interface, and IPsec of the kernel.

use std::io;
use std::path::Path;

use rustix::net::netlink;
use serde_json::json;

use super::limits::{Limit, names, read};
use super::netlink::{ask, attributes, word};

/// Asks for the number of security associations (`linux/xfrm.h`), and the attribute that has it.
const GET_SAD_INFO: u16 = 0x23;
const SAD_COUNT: u16 = 1;

/// The row about these interfaces, whose files lie below `class`.
pub(super) fn look(interfaces: &[String], class: &Path) -> Limit {
    row(interfaces, class, associations())
}

/// The number of security associations of IPsec in the kernel. Root alone may ask.
fn associations() -> io::Result<u32> {
    let answer = ask(Some(netlink::XFRM), GET_SAD_INFO, &[0; 4])?;
    count(&answer).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the kernel told no number"))
}

/// The number in such an answer, which begins with a word of flags.
fn count(answer: &[u8]) -> Option<u32> {
    let all = attributes(answer.get(4..)?);
    all.into_iter().find(|(kind, _)| *kind == SAD_COUNT).and_then(|(_, value)| word(value, 0))
}

fn row(interfaces: &[String], class: &Path, associations: io::Result<u32>) -> Limit {
    let macsec: Vec<&String> =
        interfaces.iter().filter(|name| is_macsec(&class.join("net").join(name))).collect();
    let below = match macsec.as_slice() {
        [] => "no MACsec".to_owned(),
        all => format!("MACsec on {}", all.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ")),
    };
    let (above, help) = match &associations {
        Ok(0) => ("no IPsec".to_owned(), None),
        Ok(count) => (
            format!("{count} security associations of IPsec"),
            Some(
                "RDMA passes those by that the adapter does not carry out: ip xfrm state | grep offload"
                    .into(),
            ),
        ),
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::PERM.raw_os_error()) => (
            "IPsec unknown: shown to root only".to_owned(),
            Some("run this command as root, or: ip xfrm state".into()),
        ),
        Err(_) => ("no IPsec in this kernel".to_owned(), None),
    };
    let values = json!({ "macsec": macsec, "security_associations": associations.ok() });
    Limit::new("encryption", values, format!("{below}; {above}"), help)
}

/// Whether an interface is one of MACsec, or lies on such a one.
fn is_macsec(interface: &Path) -> bool {
    read(&interface.join("uevent")).is_some_and(|text| text.lines().any(|line| line == "DEVTYPE=macsec"))
        || names(interface)
            .iter()
            .filter(|name| name.starts_with("lower_"))
            .any(|name| is_macsec(&interface.join(name)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::netlink::attribute;

    #[test]
    fn encryption_below_rdma_is_told_as_far_as_the_system_tells_it() {
        let root = tempfile::tempdir().unwrap();
        for (file, text) in [
            ("net/macsec0/uevent", "INTERFACE=macsec0\nDEVTYPE=macsec\n"),
            ("net/vlan7/uevent", "DEVTYPE=vlan\n"),
            ("net/vlan7/lower_macsec0/uevent", "DEVTYPE=macsec\n"),
            ("net/eth0/uevent", "INTERFACE=eth0\n"),
        ] {
            let file = root.path().join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        let of = |name: &str, associations| row(&[name.to_owned()], root.path(), associations);
        for name in ["macsec0", "vlan7"] {
            assert_eq!(of(name, Ok(0)).text, format!("MACsec on {name}; no IPsec"));
        }
        let found = of("eth0", Ok(4));
        assert_eq!(found.text, "no MACsec; 4 security associations of IPsec");
        assert!(found.help.unwrap().contains("offload"));
        let found = of("eth0", Err(io::Error::from_raw_os_error(1)));
        assert!(found.text.ends_with("shown to root only") && found.help.unwrap().contains("as root"));
    }

    #[test]
    fn the_number_of_associations_is_read_and_the_kernel_may_keep_it_to_itself() {
        // Flags, hash tables, and the number, as the kernel answers.
        let answer = [vec![0; 4], attribute(2, &[0; 8]), attribute(SAD_COUNT, &7_u32.to_ne_bytes())].concat();
        assert_eq!(count(&answer), Some(7));
        assert_eq!(count(&answer[..20]), None);
        if let Err(error) = associations() {
            // Not permitted, or not in this kernel; an answer that cannot be read is a fault of this program.
            assert_ne!(error.kind(), io::ErrorKind::InvalidData, "{error}");
        }
    }
}
