use core::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// Bytes among which no two neighbourhoods are alike.
fn numbered(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

/// Copies into the middle of other bytes, and looks at all of them.
fn check(source: &[u8], to_offset: usize, from_offset: usize, len: usize, copy: impl Fn(*mut u8, *const u8)) {
    let mut destination = vec![0xAA; to_offset + len + 1000];
    copy(destination[to_offset..].as_mut_ptr(), source[from_offset..from_offset + len].as_ptr());
    assert_eq!(destination[to_offset..to_offset + len], source[from_offset..from_offset + len]);
    assert!(destination[..to_offset].iter().all(|byte| *byte == 0xAA));
    assert!(destination[to_offset + len..].iter().all(|byte| *byte == 0xAA));
}

const OFFSETS: [(usize, usize); 5] = [(0, 0), (1, 0), (0, 3), (63, 17), (32, 32)];

#[test]
fn every_path_copies_every_byte_at_every_alignment() {
    let source = numbered(LONG + 20_000);
    for len in [0, 1, 7, 8, 63, 255, 256, 4096, 4097, 9_999, LONG, LONG + 4097] {
        for (to_offset, from_offset) in OFFSETS {
            let whole = Streaming::PieceOf { total_bytes: 1 << 30 };
            for streaming in [Streaming::ByLength, whole, Streaming::Always, Streaming::Never] {
                // SAFETY: both ranges are `len` bytes, and distinct.
                let copy = |to, from| unsafe { copy_bytes(to, from, len, streaming) };
                check(&source, to_offset, from_offset, len, copy);
            }
        }
    }
}

#[test]
fn every_way_copies_every_byte_on_any_number_of_threads() {
    let source = numbered((3 << 20) + 1000);
    for way in Way::ALL {
        for threads in [1, 2, 3, 16, 100] {
            for (len, (to_offset, from_offset)) in
                [0, 5, 600 << 10, (1 << 20) + 1, (3 << 20) - 1].into_iter().zip(OFFSETS)
            {
                // SAFETY: both ranges are `len` bytes, and distinct.
                let copy = |to, from| unsafe { copy_by(to, from, len, way, threads) };
                check(&source, to_offset, from_offset, len, copy);
            }
        }
    }
}

#[test]
fn copies_by_several_callers_at_once_are_each_whole() {
    let source = numbered(2 << 20);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for turn in 0..50 {
                    // SAFETY: both ranges are so long, and distinct.
                    let copy =
                        |to, from| unsafe { copy_by(to, from, (2 << 20) - turn, Way::ALL[turn % 3], 3) };
                    check(&source, turn, 0, (2 << 20) - turn, copy);
                }
            });
        }
    });
}

#[test]
fn a_child_forked_amid_copies_makes_its_own_and_does_not_hang() {
    let (len, over) = (4 << 20, AtomicBool::new(false));
    let source = numbered(len);
    let mut destination = vec![0; len];
    let (to, from) = (destination.as_mut_ptr(), source.as_ptr());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut destination = vec![0; len];
            while !over.load(Ordering::Relaxed) {
                // SAFETY: both ranges are `len` bytes, and distinct.
                unsafe { copy_by(destination.as_mut_ptr(), source.as_ptr(), len, Way::Libc, 3) };
            }
        });
        for _ in 0..20 {
            // SAFETY: both ranges are `len` bytes, and distinct; in the child, too, which calls nothing else but
            // functions of libc, is killed if it hangs, and never returns into the test harness.
            let status = unsafe {
                let child = libc::fork();
                assert!(child >= 0, "fork: {}", std::io::Error::last_os_error());
                if child == 0 {
                    libc::alarm(60);
                    copy_by(to, from, len, Way::Libc, 3);
                    libc::_exit(libc::memcmp(to.cast(), from.cast(), len).signum().abs());
                }
                let mut status = 0;
                assert_eq!(libc::waitpid(child, &mut status, 0), child);
                status
            };
            assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "status {status:#x}");
        }
        over.store(true, Ordering::Relaxed);
    });
}
