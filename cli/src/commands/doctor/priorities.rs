//! The priorities of an Ethernet interface: which of them the network carries without loss, and which packets go there
//! (IEEE 802.1Qaz and 802.1Qbb, as the kernel tells them: `linux/dcbnl.h`).

use std::collections::BTreeMap;

use serde_json::json;

use super::limits::Limit;
use super::netlink::{ask, attribute, attributes, half};

const GET_DCB: u16 = 78;
const IEEE_GET: u8 = 21;
const IFNAME: u16 = 1;
const IEEE: u16 = 13;
const PFC: u16 = 2;
const APP_TABLE: u16 = 3;
/// The selector of an entry whose number is a DSCP.
const DSCP: u8 = 5;

/// The row of one interface; none if its driver knows no priorities.
pub(super) fn look(interface: &str) -> Option<Limit> {
    let name = [interface.as_bytes(), &[0]].concat();
    let question = [vec![0, IEEE_GET, 0, 0], attribute(IFNAME, &name)].concat();
    row(interface, &ask(None, GET_DCB, &question).ok()?)
}

fn row(interface: &str, answer: &[u8]) -> Option<Limit> {
    let find = |all: Vec<(u16, &[u8])>, wanted| {
        all.into_iter().find(|(kind, _)| *kind == wanted).map(|(_, value)| value.to_vec())
    };
    let ieee = find(attributes(answer.get(4..)?), IEEE)?;
    let pfc = find(attributes(&ieee), PFC)?;
    let lossless: Vec<u8> =
        (0..8).filter(|priority| pfc.get(1).is_some_and(|on| on >> priority & 1 == 1)).collect();
    let (sent, received) = (pauses(&pfc, 8), pauses(&pfc, 72));
    let table = find(attributes(&ieee), APP_TABLE).unwrap_or_default();
    let mut trusted: BTreeMap<u16, u8> = BTreeMap::new();
    for (_, entry) in attributes(&table) {
        if let (Some(&DSCP), Some(priority), Some(dscp)) = (entry.first(), entry.get(1), half(entry, 2)) {
            trusted.insert(dscp, *priority);
        }
    }
    let there: Vec<u16> =
        trusted.iter().filter(|(_, priority)| lossless.contains(priority)).map(|(dscp, _)| *dscp).collect();
    let list = |numbers: &[u16]| numbers.iter().map(u16::to_string).collect::<Vec<_>>().join(", ");
    let without_loss = match lossless.as_slice() {
        [] => "none without loss (PFC)".to_owned(),
        all => {
            let all = list(&all.iter().copied().map(u16::from).collect::<Vec<_>>());
            format!("{all} without loss (PFC: {sent} pauses sent, {received} received)")
        }
    };
    let which = match (trusted.is_empty(), there.as_slice()) {
        (true, _) => "the DSCP of packets is not trusted".to_owned(),
        (false, []) => "no DSCP leads there".to_owned(),
        (false, there) => format!("DSCP {} there", list(there)),
    };
    let help = if lossless.is_empty() {
        Some(format!(
            "RDMA that loses packets is slow: have one priority without loss, here and on all switches: \
             mlnx_qos -i {interface} --trust dscp --pfc 0,0,0,1,0,0,0,0 (or dcb pfc set)"
        ))
    } else {
        there
            .first()
            .map(|dscp| format!("use it: SLACKLINE_RDMA_TRAFFIC_CLASS={} (4 times the DSCP)", 4 * dscp))
    };
    let values = json!({
        "interface": interface, "lossless": lossless, "dscp": trusted, "pauses_sent": sent,
        "pauses_received": received,
    });
    Some(Limit::new("priorities", values, format!("{interface}: {without_loss}; {which}"), help))
}

/// The sum over all priorities of one of the two counts in `struct ieee_pfc`.
fn pauses(pfc: &[u8], at: usize) -> u64 {
    let counts = pfc.get(at..at + 64).unwrap_or_default().chunks_exact(8);
    counts.filter_map(|count| Some(u64::from_ne_bytes(count.try_into().ok()?))).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer of a driver, as the kernel puts it together.
    fn answer(enabled: u8, entries: &[(u8, u8, u16)]) -> Vec<u8> {
        let mut pfc = vec![8, enabled, 0, 0, 0, 0, 0, 0];
        for count in (0..16_u64).map(|index| if index == 3 { 12 } else { u64::from(index == 11) }) {
            pfc.extend(count.to_ne_bytes());
        }
        let entry = |(selector, priority, protocol): &(u8, u8, u16)| {
            attribute(1, &[&[*selector, *priority][..], &protocol.to_ne_bytes()].concat())
        };
        let table: Vec<u8> = entries.iter().flat_map(entry).collect();
        let ieee = [attribute(1, &[0; 8]), attribute(PFC, &pfc), attribute(APP_TABLE, &table)].concat();
        [vec![0, IEEE_GET, 0, 0], attribute(IFNAME, b"eth0\0"), attribute(IEEE, &ieee)].concat()
    }

    #[test]
    fn the_priorities_without_loss_and_the_way_to_them_are_shown() {
        // RoCE's own entry by its EtherType, and three DSCP.
        let found =
            row("eth0", &answer(1 << 3, &[(1, 3, 0x8915), (5, 3, 26), (5, 3, 27), (5, 6, 48)])).unwrap();
        let wanted = "eth0: 3 without loss (PFC: 12 pauses sent, 1 received); DSCP 26, 27 there";
        assert_eq!(found.text, wanted);
        assert!(found.help.unwrap().contains("SLACKLINE_RDMA_TRAFFIC_CLASS=104 "));
    }

    #[test]
    fn a_network_that_loses_packets_and_a_dscp_that_leads_nowhere_are_told() {
        let lossy = row("eth0", &answer(0, &[(5, 3, 26)])).unwrap();
        assert!(lossy.text.contains("none without loss") && lossy.help.unwrap().contains("--pfc 0,0,0,1"));
        assert!(row("eth0", &answer(8, &[(5, 4, 26)])).unwrap().text.ends_with("no DSCP leads there"));
        assert!(row("eth0", &answer(8, &[])).unwrap().text.ends_with("is not trusted"));
        let whole = answer(8, &[(5, 3, 26)]);
        for end in 0..whole.len() {
            // No panic, and no row of half an answer.
            assert!(row("eth0", &whole[..end]).is_none(), "{end}");
        }
    }

    #[test]
    fn an_interface_without_priorities_has_no_row() {
        assert!(look("lo").is_none() && look("no-such-interface").is_none());
    }
}
