//! A part of a group's parameters that is written over while its reader takes it.

use std::sync::atomic::Ordering::Relaxed;

use loom::thread;
use slackline::internals::mem::Access;
use slackline::internals::param::{GroupArea, GroupInbox, GroupLayout, GroupOutbox, PartHeader};
use slackline::internals::transport::{Endpoint, LocalEndpoint};

use super::nic::Nic;
use super::world::{FRAMES, PAGE, explore, fill, region, remote};

const LAYOUT: GroupLayout = GroupLayout { elements: 4 };

/// Round 2 is written over round 1 while that is read. Without the second look at the sequence (`group_header`), or the
/// order of writes that an endpoint promises (`write_fence`), a mixture is accepted.
#[test]
fn a_part_is_taken_whole_or_not_at_all() {
    explore(3, |accepted| {
        taken(accepted, |[page, areas]| {
            let mut endpoint = LocalEndpoint::new(16);
            endpoint.attach(PAGE, page, Access::REMOTE_WRITE);
            endpoint.attach(FRAMES, areas, Access::REMOTE_WRITE);
            endpoint
        });
    });
}

#[test]
fn a_part_that_a_nic_wrote_is_taken_whole_or_not_at_all() {
    for order in 0..2 {
        explore(3, move |accepted| {
            taken(accepted, |[page, areas]| Nic::new(order, vec![(PAGE, page), (FRAMES, areas)]));
        });
    }
}

fn taken<E: Endpoint>(
    accepted: &std::sync::atomic::AtomicUsize,
    connect: impl Fn([slackline::internals::mem::MemoryRegion; 2]) -> E,
) {
    let regions = [region(GroupLayout::PAGE_BYTES), region(2 * LAYOUT.area_bytes())];
    let grants = [remote(PAGE, &regions[0]), remote(FRAMES, &regions[1])];
    let mut endpoint = connect(regions.clone());
    let [page, areas] = regions;
    let inbox = GroupInbox::new(page, areas, LAYOUT);
    let payloads = [1, 2].map(|round| {
        let payload = region(16).whole();
        fill(&payload, &[0, 1], round);
        payload
    });
    let reader = thread::spawn(move || {
        let header = inbox.header(GroupArea::Summand)?;
        assert_eq!(header.bytes, 16, "the header of a part that is not there yet");
        let payload = inbox.payload(GroupArea::Summand, header.bytes).unwrap();
        let words = [0, 8].map(|at| payload.load(at, Relaxed));
        inbox.is_still(GroupArea::Summand, header.sequence).then_some((header.round, words))
    });
    let mut outbox = GroupOutbox::new(&grants, LAYOUT).unwrap();
    for (round, payload) in (1..).zip(payloads) {
        let header = PartHeader { round, bytes: 16, ..PartHeader::default() };
        outbox.write(&mut endpoint, GroupArea::Summand, header, payload).unwrap();
        endpoint.poll().unwrap().result.unwrap();
    }
    if let Some((round, words)) = reader.join().unwrap() {
        assert_eq!(words, [round; 2], "a mixture of rounds was taken");
        accepted.fetch_add(1, Relaxed);
    }
}
