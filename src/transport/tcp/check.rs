//! The only code that decides whether a request may touch memory.
//!
//! A peer names memory by a random key that was made for its connection alone, and an offset into the region behind
//! it: never by an address. The result of [`check`] lies inside one grant; all code that touches memory calls this
//! function first.

use super::wire::{Kind, Request};
use crate::mem::Access;
use crate::transport::wireup::Grant;

/// A range inside a grant, counted from the grant's begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) grant: usize,
    pub(super) offset: usize,
    pub(super) bytes: usize,
}

/// Returns the span in which the request works, if it may: the epoch is this connection's, the key is known, the
/// range lies inside its grant, the right was granted, and requests on words are aligned. `None` refuses.
#[inline]
pub(super) fn check(grants: &[Grant], epoch: u64, request: &Request) -> Option<Span> {
    let (right, is_of_words) = match request.kind {
        Kind::Write => (Access::REMOTE_WRITE, false),
        Kind::Words => (Access::REMOTE_WRITE, true),
        Kind::Read => (Access::REMOTE_READ, false),
        Kind::FetchAdd | Kind::CompareSwap => (Access::REMOTE_ATOMIC, true),
        Kind::Nothing => return None,
    };
    if request.epoch != epoch || (is_of_words && !request.offset.is_multiple_of(8)) {
        return None;
    }
    let index = grants.iter().position(|grant| grant.key == request.key)?;
    let grant = &grants[index];
    let from_begin = request.offset.checked_sub(grant.offset)?;
    let end = from_begin.checked_add(request.bytes)?;
    if end > grant.bytes || !grant.access.contains(right) {
        return None;
    }
    let (offset, bytes) = (usize::try_from(from_begin).ok()?, usize::try_from(request.bytes).ok()?);
    Some(Span { grant: index, offset, bytes })
}

#[cfg(test)]
mod tests {
    use super::super::wire::MAX_WORDS;
    use super::*;
    use crate::mem::RemoteKey;

    const EPOCH: u64 = 0xE70C;
    const KINDS: [Kind; 6] =
        [Kind::Write, Kind::Words, Kind::Read, Kind::FetchAdd, Kind::CompareSwap, Kind::Nothing];

    fn request(kind: Kind, key: u64, offset: u64, bytes: u64) -> Request {
        let (words, count) = ([0; MAX_WORDS], 0);
        let key = RemoteKey(key);
        Request {
            kind,
            answer: true,
            notify: false,
            sequence: 1,
            epoch: EPOCH,
            key,
            offset,
            bytes,
            words,
            count,
        }
    }

    fn grant(key: u64, offset: u64, bytes: u64, access: Access) -> Grant {
        Grant { key: RemoteKey(key), offset, bytes, access }
    }

    const EDGES: [u64; 22] = [
        0,
        1,
        7,
        8,
        9,
        15,
        16,
        17,
        23,
        24,
        25,
        31,
        32,
        33,
        1 << 31,
        1 << 32,
        i64::MAX as u64,
        1 << 63,
        u64::MAX - 8,
        u64::MAX - 7,
        u64::MAX - 1,
        u64::MAX,
    ];

    #[test]
    fn a_span_lies_inside_its_grant_and_everything_inside_is_allowed() {
        // All edges for the grant's own begin and length too: a grant is ours, but let nothing depend on that.
        for (from, len) in EDGES.iter().flat_map(|from| EDGES.map(|len| (*from, len))) {
            let grants = [grant(7, from, len, Access::all())];
            for (offset, bytes) in EDGES.iter().flat_map(|offset| EDGES.map(|bytes| (*offset, bytes))) {
                for kind in KINDS {
                    let span = check(&grants, EPOCH, &request(kind, 7, offset, bytes));
                    let wide = |value: u64| u128::from(value);
                    let inside = offset >= from && wide(offset) + wide(bytes) <= wide(from) + wide(len);
                    let aligned = offset % 8 == 0 || matches!(kind, Kind::Write | Kind::Read);
                    let expected = (inside && aligned && kind != Kind::Nothing).then(|| Span {
                        grant: 0,
                        offset: (offset - from) as usize,
                        bytes: bytes as usize,
                    });
                    assert_eq!(span, expected, "{kind:?} of {bytes} at {offset} in {len} at {from}");
                }
            }
        }
    }

    #[test]
    fn each_kind_needs_its_right_and_no_other_helps() {
        for bits in 0..8 {
            let access = Access::from_bits(bits).unwrap();
            let grants = [grant(7, 0, 64, access)];
            for (kind, right) in KINDS.iter().zip([2, 2, 1, 4, 4, 8]) {
                let allowed = check(&grants, EPOCH, &request(*kind, 7, 8, 8)).is_some();
                assert_eq!(allowed, bits & right != 0, "{kind:?} with {access:?}");
            }
        }
    }

    #[test]
    fn an_unknown_key_another_epoch_and_no_grants_are_refused() {
        let grants = [grant(7, 0, 64, Access::all()), grant(9, 64, 64, Access::REMOTE_READ)];
        let good = request(Kind::Read, 9, 64, 8);
        assert_eq!(check(&grants, EPOCH, &good), Some(Span { grant: 1, offset: 0, bytes: 8 }));
        for key in [0, 8, 10, u64::MAX] {
            assert_eq!(check(&grants, EPOCH, &Request { key: RemoteKey(key), ..good }), None);
        }
        for epoch in [0, EPOCH - 1, EPOCH + 1, !EPOCH] {
            assert_eq!(check(&grants, EPOCH, &Request { epoch, ..good }), None);
            assert_eq!(check(&grants, epoch, &good), None);
        }
        assert_eq!(check(&[], EPOCH, &good), None);
        // A range of the first grant under the key of the second.
        assert_eq!(check(&grants, EPOCH, &Request { offset: 0, ..good }), None);
    }
}
