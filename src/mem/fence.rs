//! The one module that orders memory between words.
//!
//! Memory behind a [`VolatileSlice`](super::VolatileSlice) may be read and written by a device: a NIC reads frames and
//! writes slots. The fences of the language order accesses for the processors of one host and no further. On x86-64
//! that makes no difference, since a device is in the order that the processors see. On aarch64 the language's fences
//! reach the *inner shareable* domain (`dmb ish`, `ldar`, `stlr`), and a platform is free to leave its PCI Express
//! devices out of it. So here they reach the *outer shareable* domain, as Linux's `dma_wmb`, `dma_rmb` and `dma_mb` do.

#[cfg(not(loom))]
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering;

/// Orders this thread's accesses to shared memory for other processors and for devices.
///
/// The rules are those of `core::sync::atomic::fence`. Non-temporal stores are ordered, too: every copy that may make
/// them ends with a store fence of its own, so a fence here never waits for one.
#[inline(always)]
pub fn fence(ordering: Ordering) {
    #[cfg(loom)]
    loom::sync::atomic::fence(ordering);
    #[cfg(all(not(loom), target_arch = "x86_64"))]
    core::sync::atomic::fence(ordering);
    #[cfg(all(not(loom), target_arch = "aarch64"))]
    aarch64::fence(ordering);
    // Of other processors nothing is known about devices: the strongest fence that the language has.
    #[cfg(all(not(loom), not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    {
        let _ = ordering;
        core::sync::atomic::fence(Ordering::SeqCst);
    }
}

/// True where the language's orderings of single loads and stores hold for devices, too.
#[cfg(not(loom))]
const WORDS_ORDER_DEVICES: bool = cfg!(target_arch = "x86_64");

/// Loads a word. `Acquire` holds for all stores of a processor or a device before it stored the word.
#[cfg(not(loom))]
#[inline(always)]
pub(super) fn load(word: &AtomicU64, ordering: Ordering) -> u64 {
    if WORDS_ORDER_DEVICES || ordering == Ordering::Relaxed {
        return word.load(ordering);
    }
    if ordering == Ordering::SeqCst {
        fence(ordering);
    }
    let value = word.load(Ordering::Relaxed);
    fence(ordering);
    value
}

/// Stores a word. `Release` holds for a processor or a device that loads the word.
#[cfg(not(loom))]
#[inline(always)]
pub(super) fn store(word: &AtomicU64, value: u64, ordering: Ordering) {
    if WORDS_ORDER_DEVICES || ordering == Ordering::Relaxed {
        return word.store(value, ordering);
    }
    fence(ordering);
    word.store(value, Ordering::Relaxed);
    if ordering == Ordering::SeqCst {
        fence(ordering);
    }
}

/// Updates a word, `AcqRel` among processors, with the fences that devices need before and behind it.
#[cfg(not(loom))]
#[inline(always)]
pub(super) fn update<T>(update: impl FnOnce() -> T) -> T {
    if WORDS_ORDER_DEVICES {
        return update();
    }
    fence(Ordering::Release);
    let result = update();
    fence(Ordering::Acquire);
    result
}

#[cfg(all(not(loom), target_arch = "aarch64"))]
mod aarch64 {
    use core::arch::asm;
    use core::sync::atomic::Ordering;

    #[inline(always)]
    pub(super) fn fence(ordering: Ordering) {
        // SAFETY: a barrier touches neither memory nor registers nor flags nor the stack. It is not declared `nomem`,
        // so the compiler takes it for code that may access all shared memory and moves no access across it.
        unsafe {
            match ordering {
                // Loads before it come before loads and stores behind it.
                Ordering::Acquire => asm!("dmb oshld", options(nostack, preserves_flags)),
                // `dmb oshst` would let loads pass, which a release has to keep before the stores behind it.
                _ => asm!("dmb osh", options(nostack, preserves_flags)),
            }
        }
    }
}

/// Lets other threads run inside a loop that waits for their writes.
#[inline]
pub fn pause() {
    #[cfg(not(loom))]
    core::hint::spin_loop();
    #[cfg(loom)]
    loom::hint::spin_loop();
}

/// Lets other threads have this processor, in a loop that waits for one of them.
pub fn yield_now() {
    #[cfg(not(loom))]
    std::thread::yield_now();
    #[cfg(loom)]
    loom::thread::yield_now();
}

/// Whether this run is one of the mutant `name`: never, but under the model checker, in a build of mutants and in unit
/// tests.
#[cfg(not(any(loom, test, slackline_mutants)))]
#[inline(always)]
pub(crate) const fn runs_as_mutant(_name: &str) -> bool {
    false
}

/// Whether this run is one of the mutant `name`: one build serves all of them.
#[cfg(any(loom, test, slackline_mutants))]
pub(crate) fn runs_as_mutant(name: &str) -> bool {
    static MUTANT: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    MUTANT.get_or_init(|| std::env::var("SLACKLINE_MUTANT").unwrap_or_default()) == name
}

#[cfg(all(test, not(loom), target_arch = "aarch64"))]
mod tests {
    use super::*;

    const RETURN: u32 = 0xd65f_03c0;
    const DMB_OSH: u32 = 0xd503_33bf;
    const DMB_OSHLD: u32 = 0xd503_31bf;

    #[inline(never)]
    extern "C" fn sequential(_: &AtomicU64) {
        fence(Ordering::SeqCst);
    }
    #[inline(never)]
    extern "C" fn release(_: &AtomicU64) {
        fence(Ordering::Release);
    }
    #[inline(never)]
    extern "C" fn acquire(_: &AtomicU64) {
        fence(Ordering::Acquire);
    }
    #[inline(never)]
    extern "C" fn announce(word: &AtomicU64) {
        store(word, 1, Ordering::Release);
    }
    #[inline(never)]
    extern "C" fn look(word: &AtomicU64) {
        core::hint::black_box(load(word, Ordering::Acquire));
    }
    #[inline(never)]
    extern "C" fn raise(word: &AtomicU64) {
        core::hint::black_box(update(|| word.fetch_max(1, Ordering::AcqRel)));
    }

    /// True if the machine code of `function` has this instruction before it returns.
    fn has(function: extern "C" fn(&AtomicU64), instruction: u32) -> bool {
        let code = function as *const u32;
        for at in 0..64 {
            // SAFETY: code is readable memory, made of aligned words, and none behind the function's return is read.
            let word = unsafe { code.add(at).read_volatile() };
            if word == instruction || word == RETURN {
                return word == instruction;
            }
        }
        panic!("a function of a few instructions does not return");
    }

    /// Looks for the fence's instruction in the code. The order that a fence gives for a device shows on no
    /// processor, and no emulator has such a device.
    #[test]
    fn fences_and_words_order_memory_for_devices_on_aarch64() {
        for (name, function) in [("SeqCst", sequential as extern "C" fn(&_)), ("Release", release)] {
            assert!(has(function, DMB_OSH), "fence({name}) has no `dmb osh`");
        }
        assert!(has(acquire, DMB_OSHLD), "fence(Acquire) has no `dmb oshld`");
        assert!(has(announce, DMB_OSH), "a release store has no `dmb osh`");
        assert!(has(look, DMB_OSHLD), "an acquire load has no `dmb oshld`");
        assert!(has(raise, DMB_OSH) && has(raise, DMB_OSHLD), "an update has not both barriers");
    }
}
