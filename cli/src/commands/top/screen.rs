//! The terminal while the table is live: a screen of its own, keys as they are pressed, and all as it was afterwards.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// To the other screen, without a cursor; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// To the upper left; to the end of the line and of the screen, cleared.
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_REST: &str = "\x1b[J";

/// The size that is assumed for a terminal that does not tell its own: rows and columns.
const SIZE: (usize, usize) = (24, 80);

/// Ctrl-C and Ctrl-D, which are keys like any other here.
const INTERRUPT: u8 = 3;
const END: u8 = 4;

/// The terminal. Dropping this leaves the terminal as it was before.
pub(super) struct Screen {
    before: Termios,
}

impl Screen {
    pub(super) fn open() -> io::Result<Screen> {
        let before = tcgetattr(io::stdin())?;
        let mut keys = before.clone();
        // Without ISIG there is no way out that skips the drop.
        keys.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
        tcsetattr(io::stdin(), OptionalActions::Now, &keys)?;
        let screen = Screen { before };
        write(ENTER)?;
        Ok(screen)
    }

    /// Draws over what was there, as much as there is room for.
    pub(super) fn show(&self, table: &str, interval_s: f64) -> io::Result<()> {
        let (rows, columns) = match tcgetwinsize(io::stdout()) {
            Ok(size) if size.ws_row > 0 && size.ws_col > 0 => (size.ws_row.into(), size.ws_col.into()),
            _ => SIZE,
        };
        write(&frame(table, interval_s, rows, columns))
    }

    /// Waits for a key that ends it.
    pub(super) fn quits_within(&self, wait: Duration) -> io::Result<bool> {
        let deadline = Instant::now() + wait;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
            let stdin = io::stdin();
            match poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&timeout)) {
                // A changed size interrupts: draw again.
                Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(false),
                result => result?,
            };
            let mut keys = [0; 64];
            // Past the buffer of std, which `poll` would not see.
            let read = rustix::io::read(&stdin, &mut keys)?;
            // None: the terminal is gone.
            if read == 0 || keys[..read].iter().any(|key| matches!(*key, b'q' | b'Q' | INTERRUPT | END)) {
                return Ok(true);
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone cannot be put in order, nor need it be.
        let _ = write(LEAVE);
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

fn frame(table: &str, interval_s: f64, rows: usize, columns: usize) -> String {
    let foot = format!("every {interval_s} s, q ends");
    // The last line is the foot's: a newline in it would scroll.
    let room = rows.saturating_sub(1);
    let mut text = String::from(HOME);
    for line in table.lines().take(room) {
        text.extend(line.chars().take(columns));
        text.push_str(CLEAR_LINE);
        text.push_str("\r\n");
    }
    text.push_str(CLEAR_REST);
    let hidden = table.lines().count().saturating_sub(room);
    let foot = if hidden == 0 { foot } else { format!("{foot}; {hidden} more lines do not fit") };
    text.extend(foot.chars().take(columns));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_never_is_wider_or_higher_than_the_screen() {
        let table = format!("{}\n", "x".repeat(200)).repeat(50);
        let text = frame(&table, 1.0, 10, 40);
        let lines: Vec<_> = text.trim_start_matches(HOME).split("\r\n").collect();
        assert_eq!(lines.len(), 10);
        for line in &lines {
            let line = line.replace(CLEAR_LINE, "").replace(CLEAR_REST, "");
            assert!(line.chars().count() <= 40, "{line}");
        }
        assert!(lines[9].contains("every 1 s, q ends; 41 more lines"), "{}", lines[9]);
        assert!(frame("a\n", 1.0, 1, 80).contains("q ends"));
    }
}
