//! The processor's own counter, for measuring where the system's clock is slow to read.

/// Returns the count of this core's counter, which costs a few nanoseconds to read; `None` where a program may not
/// read one. Its speed is to be measured, and counters of different cores need not agree.
#[inline]
pub fn ticks() -> Option<u64> {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: every processor of this architecture has the instruction, and Linux lets programs use it.
    return Some(unsafe { std::arch::x86_64::_rdtsc() });
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    None
}

#[cfg(test)]
mod tests {
    use super::ticks;

    #[test]
    fn the_counter_goes_on() {
        let Some(before) = ticks() else { return };
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert_ne!(ticks(), Some(before));
    }
}
