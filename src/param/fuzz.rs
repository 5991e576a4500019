//! Words that other processes write into memory that they are granted, for `fuzz/` to write.

use super::{Decision, FrameHeader, FrameLabel, PeerInbox, SlotGeometry, SlotHeader};
use crate::clock::{Clock, Version};
use crate::mem::{Access, DeviceKeys, HostMemory, MemoryRegion};
use crate::table::Encoding;

const EPOCH: u64 = 7;
const SLOTS: u16 = 2;
const GEOMETRY: SlotGeometry =
    SlotGeometry { slots: SLOTS, encoding: Encoding::F32, elements: 16, chunk_elements: 16 };

/// Decodes arbitrary `bytes` as each header, and as the page of a worker with its slots behind it.
pub(crate) fn fuzz_words(bytes: &[u8]) {
    let words: [u64; 8] = std::array::from_fn(|index| {
        let word = bytes.as_chunks().0.get(index).copied();
        u64::from_le_bytes(word.unwrap_or_default())
    });
    // Words that say nothing are lost with the first turn.
    let frame = FrameHeader::from_words(words).to_words();
    assert_eq!(FrameHeader::from_words(frame).to_words(), frame);
    let label = FrameLabel::from_words(words).to_words();
    assert_eq!(FrameLabel::from_words(label).to_words(), label);
    let slot = SlotHeader::from_words(words).to_words();
    assert_eq!(SlotHeader::from_words(slot).to_words(), slot);
    let [a, b, c, d, ..] = words;
    if let Some(decision) = Decision::from_words([a, b, c, d]) {
        let words = decision.to_words();
        assert_eq!(Decision::from_words(words).map(Decision::to_words), Some(words));
    }
    take_page(bytes);
}

fn region(bytes: usize) -> MemoryRegion {
    let memory = HostMemory::anonymous(bytes).expect("some memory");
    MemoryRegion::new(memory, Access::LOCAL, DeviceKeys::NONE, ())
}

/// Calls every method on a worker's page that its server calls.
fn take_page(bytes: &[u8]) {
    let (page, slots) = (region(PeerInbox::page_bytes(SLOTS)), region(GEOMETRY.bytes() as usize));
    let inbox = PeerInbox::new(page.clone(), Some((slots.clone().into(), GEOMETRY)), Clock::new(0));
    let (words, payloads) = bytes.split_at(bytes.len().min(PeerInbox::page_bytes(SLOTS)));
    let payloads = &payloads[..payloads.len().min(GEOMETRY.bytes() as usize)];
    page.as_volatile().subslice(0, words.len()).write(words);
    slots.as_volatile().subslice(0, payloads.len()).write(payloads);
    let published = inbox.published();
    for clock in [Clock::new(0), published, Clock::new(published.get().wrapping_sub(1))] {
        let _landed = inbox.landed(clock);
        let Ok(header) = inbox.header(clock, EPOCH) else { continue };
        assert_eq!((header.clock, header.epoch), (clock, EPOCH));
        assert_eq!(header.bytes, GEOMETRY.payload_bytes());
        assert!(inbox.payload(clock).is_some() && inbox.header_again(clock, EPOCH).is_some());
    }
    let _unchecked = (inbox.held(), inbox.followed(), inbox.heartbeat(), inbox.sleeps());
    assert!(!inbox.reads_in_place(1) || inbox.pins(1));
}

/// A decision of each kind, and a page with a gradient.
pub(crate) fn word_samples() -> Vec<Vec<u8>> {
    let (session, ordinal) = (5, 6);
    let decisions = [
        Decision::Joined { session },
        Decision::Left { session },
        Decision::Share { session, ordinal, weight: 0.5 },
        Decision::Apply { version: Version::new(9), learning_rate: 0.1 },
        Decision::Drop { session, ordinal },
        Decision::Clock { clock: Clock::new(3) },
    ];
    let bytes = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let header = SlotHeader {
        clock: Clock::new(0),
        base: Version::new(1),
        epoch: EPOCH,
        bytes: GEOMETRY.payload_bytes(),
        encoding: 0,
        others: 0,
        checksum: 0,
        loss: Some(0.5),
        magnitude: None,
    };
    let mut page = vec![0; PeerInbox::page_bytes(SLOTS)];
    let at = super::layout::inbox::slot_header(GEOMETRY.slot_of(header.clock));
    page[at..at + 64].copy_from_slice(&bytes(&header.to_words()));
    page[super::layout::inbox::PUBLISHED] = 1;
    let decisions = decisions.iter().map(|decision| bytes(&decision.to_words()));
    decisions.chain([page]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_the_samples_holds_a_gradient_that_is_taken() {
        let page = word_samples().pop().unwrap();
        let region = region(page.len());
        let slots = self::region(GEOMETRY.bytes() as usize);
        let inbox = PeerInbox::new(region.clone(), Some((slots.into(), GEOMETRY)), Clock::new(0));
        region.as_volatile().subslice(0, page.len()).write(&page);
        assert_eq!(inbox.published(), Clock::new(1));
        assert!(inbox.header(Clock::new(0), EPOCH).is_ok());
    }
}
