//! Cases that mostly wait, and so wait together.

/// Tries a claim in all cases at once, each in a thread of its own.
pub(crate) fn at_once<T: Send>(cases: impl IntoIterator<Item = T>, claim: impl Fn(T) + Sync) {
    std::thread::scope(|scope| {
        for case in cases {
            let claim = &claim;
            scope.spawn(move || claim(case));
        }
    });
}
