//! Many simulations at once, on all cores.

use std::io::{self, IsTerminal};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::stderr;

/// Least time between two lines where no bar can be shown.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Does `work` for each item, and gives what came of each, in the order of the items, however many cores there are.
/// The first error, in that order, ends it; work that was begun is finished.
pub fn map<T: Sync, R: Send, E: Send>(
    what: &str,
    items: &[T],
    work: impl Fn(&T) -> Result<R, E> + Sync,
) -> Result<Vec<R>, E> {
    let progress = Progress::new(what, items.len());
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let results: Vec<Mutex<Option<Result<R, E>>>> = items.iter().map(|_| Mutex::new(None)).collect();
    let cores = thread::available_parallelism().map_or(1, usize::from).min(items.len());
    thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(index) else { break };
                    let result = work(item);
                    if result.is_err() {
                        // Nothing new is begun.
                        next.store(items.len(), Ordering::Relaxed);
                    }
                    *results[index].lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
                    progress.show(done.fetch_add(1, Ordering::Relaxed) + 1);
                }
            });
        }
    });
    let results =
        results.into_iter().map(|result| result.into_inner().unwrap_or_else(PoisonError::into_inner));
    // Where an error ended it, what was never begun has no result; the error does.
    results.flatten().collect()
}

/// A bar on a terminal; elsewhere lines, if it takes long.
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
    what: String,
    all: usize,
    told: Mutex<Instant>,
}

impl Progress {
    /// Begins to show the progress of `all` items.
    pub fn new(what: &str, all: usize) -> Progress {
        let bar = io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(all as u64);
            let style = ProgressStyle::with_template("{elapsed:>4} {wide_bar} {pos}/{len}  {msg}");
            // The template is a constant: if it could not be read there would be indicatif's own.
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("━╸ "));
            bar.set_message(what.to_owned());
            bar.tick();
            bar
        });
        Progress { bar, what: what.to_owned(), all, told: Mutex::new(Instant::now()) }
    }

    /// Shows that so many items are done.
    pub fn show(&self, done: usize) {
        if let Some(bar) = &self.bar {
            bar.set_position(done as u64);
            return;
        }
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.elapsed() >= LINE_EVERY {
            *told = Instant::now();
            stderr::tell(format_args!("{}: {done} of {}", self.what, self.all));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_items() {
        let items: Vec<u64> = (0..100).collect();
        let squares = map("squares", &items, |item| {
            thread::sleep(Duration::from_micros(500 - 5 * item));
            Ok::<_, ()>(item * item)
        });
        assert_eq!(squares.unwrap(), items.iter().map(|item| item * item).collect::<Vec<_>>());
    }

    #[test]
    fn an_error_ends_it() {
        let items: Vec<u32> = (0..1000).collect();
        let result = map("until 3", &items, |item| if *item == 3 { Err(*item) } else { Ok(*item) });
        assert_eq!(result, Err(3));
    }
}
