//! The treatment of newcomers, connections that have not finished their handshake: how many there may be and for how
//! long, the choice of a newcomer to drop where there are too many, and a log that a flood of them cannot fill.

use std::fmt::{Display, Write};
use std::io;
use std::net::TcpListener;
use std::time::Duration;

use crate::channel::{self, Channel};
use crate::time::Instant;
use crate::transport::{HANDSHAKE_TIMEOUT, MAX_PENDING_HANDSHAKES};

/// A connection that has not finished its handshake.
pub(crate) trait Newcomer {
    /// The message after which its listener decides about it.
    type Said;

    /// Reads the bytes that have arrived, without waiting; an error is the reason of a refusal.
    fn hear(&mut self) -> Result<Option<Self::Said>, String>;

    /// The number of messages that it has sent so far, or a part of one.
    fn messages(&self) -> u8;
}

/// Accepts a connection as [`Newcomers::admit`] takes it.
pub(crate) fn accept(
    socket: &TcpListener,
    terms: &channel::ChannelTerms,
) -> io::Result<Result<Channel, String>> {
    Ok(Channel::accept(socket, terms)?.map_err(|error| error.to_string()))
}

/// The newcomers of one listener: at most [`MAX_PENDING_HANDSHAKES`], each for at most [`HANDSHAKE_TIMEOUT`].
pub(crate) struct Newcomers<N: Newcomer> {
    /// In order of arrival.
    waiting: Vec<Waiting<N>>,
    /// True while the system accepts no connections, so that this is logged once.
    cannot_accept: bool,
    refusals: Refusals,
}

impl<N: Newcomer> Default for Newcomers<N> {
    fn default() -> Newcomers<N> {
        Newcomers { waiting: Vec::new(), cannot_accept: false, refusals: Refusals::default() }
    }
}

struct Waiting<N: Newcomer> {
    newcomer: N,
    since: Instant,
    /// All of its part, if it had said that when it was accepted.
    said: Option<N::Said>,
}

impl<N: Newcomer> Waiting<N> {
    /// The number of messages that it has sent so far. A newcomer whose offer is complete is ahead of all others.
    fn messages(&self) -> u8 {
        if self.said.is_some() { u8::MAX } else { self.newcomer.messages() }
    }
}

impl<N: Newcomer> Newcomers<N> {
    /// Accepts connections, at most as many as there may be newcomers, also if all are refused: the owner has more to
    /// do. `accept` makes a newcomer of the next connection, or returns the reason of its refusal.
    pub(crate) fn admit(
        &mut self,
        listener: &dyn Display,
        now: Instant,
        mut accept: impl FnMut() -> io::Result<Result<N, String>>,
    ) {
        for _ in 0..MAX_PENDING_HANDSHAKES {
            let error = match accept() {
                Ok(Ok(newcomer)) => {
                    self.keep(listener, now, newcomer);
                    continue;
                }
                Ok(Err(reason)) => {
                    self.refuse(listener, &reason);
                    continue;
                }
                Err(error) => error,
            };
            match error.kind() {
                io::ErrorKind::WouldBlock => break,
                io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                _ => {
                    if !self.cannot_accept {
                        tracing::warn!(%listener, %error, "cannot accept connections for now");
                    }
                    self.cannot_accept = true;
                    return;
                }
            }
        }
        self.cannot_accept = false;
    }

    /// Keeps a newcomer, instead of another one if there are too many. Its first message is mostly there already: one
    /// that has sent nothing goes itself where all others have sent something.
    fn keep(&mut self, listener: &dyn Display, now: Instant, mut newcomer: N) {
        let said = match newcomer.hear() {
            Ok(said) => said,
            Err(reason) => return self.refuse(listener, &reason),
        };
        let newcomer = Waiting { newcomer, since: now, said };
        let sent = self.waiting.iter().map(Waiting::messages);
        if self.waiting.len() >= MAX_PENDING_HANDSHAKES
            && let Some(index) = victim(sent.clone())
        {
            let is_behind_all = newcomer.messages() == 0 && sent.min() > Some(0);
            self.refuse(listener, &"there are too many unfinished handshakes");
            if is_behind_all {
                return;
            }
            self.waiting.remove(index);
        }
        self.waiting.push(newcomer);
    }

    /// Drives all handshakes forward. Returns the next newcomer whose offer is complete, and the offer.
    pub(crate) fn next(&mut self, listener: &dyn Display, now: Instant) -> Option<(N, N::Said)> {
        self.refusals.log(listener);
        let mut index = 0;
        while let Some(Waiting { newcomer, since, said }) = self.waiting.get_mut(index) {
            let heard = said.take().map_or_else(|| newcomer.hear(), |said| Ok(Some(said)));
            let reason = match heard {
                Ok(Some(said)) => return Some((self.waiting.remove(index).newcomer, said)),
                Ok(None) if now.saturating_since(*since) < HANDSHAKE_TIMEOUT => {
                    index += 1;
                    continue;
                }
                Ok(None) => "it said too little in time".to_owned(),
                Err(reason) => reason,
            };
            self.waiting.remove(index);
            self.refuse(listener, &reason);
        }
        None
    }

    /// Counts a refused connection, and logs it if it is time for that.
    pub(crate) fn refuse(&mut self, listener: &dyn Display, reason: &dyn Display) {
        self.refusals.add(listener, reason);
    }

    /// All connections that were refused so far.
    pub(crate) fn refused(&self) -> u64 {
        self.refusals.total()
    }

    /// True while the system accepts no connections.
    pub(crate) fn cannot_accept(&self) -> bool {
        self.cannot_accept
    }

    /// True while there is something that happens at its time, whether a newcomer says something or not.
    pub(crate) fn is_timed(&self) -> bool {
        self.cannot_accept || !self.waiting.is_empty() || self.refusals.has_unlogged()
    }

    /// The newcomers that are there now.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &N> {
        self.waiting.iter().map(|waiting| &waiting.newcomer)
    }
}

/// Shortest time between two log lines of one listener about refused connections.
const LOG_EVERY: Duration = Duration::from_secs(1);

/// The number of connections that a listener has refused, and the log about them: at most one line a second, each
/// with the count since the line before and the reason of the last refusal.
#[derive(Default)]
pub(crate) struct Refusals {
    total: u64,
    /// The refused connections that no line of the log has told of yet.
    unlogged: u64,
    /// The reason of the last one. It keeps its room, so that a flood allocates nothing here.
    reason: String,
    logged: Option<std::time::Instant>,
}

impl Refusals {
    /// Counts a refused connection. The first one is logged at once.
    pub(crate) fn add(&mut self, listener: &dyn Display, reason: &dyn Display) {
        self.total += 1;
        self.unlogged += 1;
        self.reason.clear();
        // A write to a string never fails.
        let _written = write!(self.reason, "{reason}");
        self.log(listener);
    }

    /// Logs the number of refusals since the last line, if that line is old enough.
    pub(crate) fn log(&mut self, listener: &dyn Display) {
        if self.unlogged == 0 {
            return;
        }
        if let Some(connections) = self.take_due(std::time::Instant::now()) {
            let reason = self.reason.as_str();
            tracing::warn!(%listener, connections, reason, "refused connections; the reason is that of the last one");
        }
    }

    /// All connections that were refused so far.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// True if there are some that no line of the log has told of.
    pub(crate) fn has_unlogged(&self) -> bool {
        self.unlogged > 0
    }

    /// The count for the next line of the log, if it is time for that.
    fn take_due(&mut self, now: std::time::Instant) -> Option<u64> {
        if self.logged.is_some_and(|logged| now.saturating_duration_since(logged) < LOG_EVERY) {
            return None;
        }
        self.logged = Some(now);
        Some(std::mem::take(&mut self.unlogged))
    }
}

/// Chooses which of too many newcomers a listener drops, by the number of messages that each has sent so far: at
/// random, one of the newcomers that sent the least.
///
/// An honest newcomer sends its first message as soon as it is connected, so it is behind all silent connections of a
/// flood in this order, and a newcomer that has proved that it knows the secret is behind all that cannot. A flood
/// that sends first messages, too, is met by chance: an honest newcomer survives each drop with a probability of
/// 63/64, however slow its handshake is. If the oldest were dropped, 64 connections within its handshake would always
/// push it out; if the newest were, 64 silent connections would keep all others out. A silent one alone is dropped as
/// the newest: one that has sent its first message is behind all whose handshake is further, and they, if they stand
/// still, would keep it out.
pub(crate) fn victim(messages: impl Iterator<Item = u8> + Clone) -> Option<usize> {
    let least = messages.clone().min()?;
    let candidates = messages.clone().filter(|sent| *sent == least).count();
    // Without random numbers it is the oldest: a channel cannot be made without them anyway.
    let chosen = getrandom::u32().unwrap_or(0) as usize % candidates;
    messages.enumerate().filter(|(_, sent)| *sent == least).nth(chosen).map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A newcomer that has sent so many messages, and says one thing at most, once.
    struct Terse(u8, Option<&'static str>);

    impl Newcomer for Terse {
        type Said = &'static str;

        fn hear(&mut self) -> Result<Option<&'static str>, String> {
            Ok(self.1.take())
        }

        fn messages(&self) -> u8 {
            self.0
        }
    }

    fn let_in(now: Instant, newcomer: Terse) -> Newcomers<Terse> {
        let mut newcomers = Newcomers::default();
        admit(&mut newcomers, now, newcomer);
        newcomers
    }

    fn admit(newcomers: &mut Newcomers<Terse>, now: Instant, newcomer: Terse) {
        let mut one = Some(newcomer);
        newcomers.admit(&"here", now, || one.take().map(Ok).ok_or(io::ErrorKind::WouldBlock.into()));
    }

    #[test]
    fn what_a_newcomer_has_said_when_it_is_accepted_is_not_forgotten() {
        let mut newcomers = let_in(Instant::ORIGIN, Terse(0, Some("all")));
        assert_eq!(newcomers.next(&"here", Instant::ORIGIN).map(|(_, said)| said), Some("all"));
        assert!(newcomers.next(&"here", Instant::ORIGIN).is_none());
    }

    #[test]
    fn a_newcomer_has_five_seconds_and_no_more() {
        let begin = Instant::from_nanos(77);
        let mut newcomers = let_in(begin, Terse(0, None));
        let limit = crate::time::Duration::from_secs(5);
        let last = begin + (limit - crate::time::Duration::from_nanos(1));
        assert!(newcomers.next(&"here", last).is_none() && newcomers.refused() == 0 && newcomers.is_timed());
        assert!(newcomers.next(&"here", begin + limit).is_none());
        assert_eq!((newcomers.refused(), newcomers.iter().len()), (1, 0));
    }

    #[test]
    fn a_flood_of_refusals_is_one_line_a_second_with_their_count() {
        let (mut refusals, begin) = (Refusals::default(), std::time::Instant::now());
        let mut lines = Vec::new();
        for millisecond in 0..3500 {
            refusals.total += 1;
            refusals.unlogged += 1;
            lines.extend(refusals.take_due(begin + Duration::from_millis(millisecond)));
        }
        assert_eq!(lines, [1, 1000, 1000, 1000]);
        assert!(refusals.has_unlogged());
        assert_eq!((refusals.take_due(begin + Duration::from_secs(60)), refusals.total()), (Some(499), 3500));
        assert!(!refusals.has_unlogged());
    }

    #[test]
    fn the_reason_of_a_line_is_that_of_the_last_refusal() {
        let mut refusals = Refusals::default();
        for reason in ["a long reason that is forgotten", "short"] {
            refusals.add(&"here", &reason);
        }
        assert_eq!((refusals.reason.as_str(), refusals.unlogged), ("short", 1));
    }

    #[test]
    fn a_newcomer_that_has_sent_more_is_not_dropped_before_one_that_sent_less() {
        for _ in 0..200 {
            assert_eq!(victim([2, 1, 0, 1].into_iter()), Some(2));
            assert!(matches!(victim([2, 1, 2, 1].into_iter()), Some(1 | 3)));
        }
        assert_eq!(victim([].into_iter()), None);
    }

    #[test]
    fn a_silent_newcomer_pushes_out_none_that_has_sent_something() {
        let with_room_for_none = |sent: u8| {
            let mut newcomers = Newcomers::default();
            (0..MAX_PENDING_HANDSHAKES)
                .for_each(|_| admit(&mut newcomers, Instant::ORIGIN, Terse(sent, None)));
            newcomers
        };
        for (waiting, new, is_kept) in [(1, 0, false), (1, 1, true), (2, 1, true), (0, 0, true)] {
            let mut newcomers = with_room_for_none(waiting);
            admit(&mut newcomers, Instant::from_nanos(1), Terse(new, None));
            assert_eq!((newcomers.refused(), newcomers.iter().len()), (1, MAX_PENDING_HANDSHAKES));
            let newest = newcomers.waiting.last().map(|newest| newest.since);
            assert_eq!(newest == Some(Instant::from_nanos(1)), is_kept, "{new} behind {waiting}");
        }
    }

    #[test]
    fn the_dropped_one_is_any_of_those_that_sent_the_least() {
        let mut dropped = [0; 64];
        for _ in 0..64 * 100 {
            dropped[victim([1; 64].into_iter()).unwrap()] += 1;
        }
        // A hundred each are expected; chance leaves this range once in 10^12 runs or so.
        assert!(dropped.iter().all(|times| (20..220).contains(times)), "{dropped:?}");
    }
}
