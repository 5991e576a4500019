//! The posting end of the lane for heartbeats: no bulk data is ever before them.

use std::sync::Arc;

use super::connection::{Connection, words};
use super::hello::Lane;
use super::initiator::{Broken, CLOSED, ENDED, PROTOCOL, REFUSED};
use super::socket::{Moved, Socket};
use super::wire::{Encoded, RESPONSE_BYTES, Response};
use crate::mem::{RemoteSlice, VolatileSlice};
use crate::transport::Disconnected;

/// Sets words at the peer and asks for no answers.
pub(super) struct HeartbeatLane {
    connection: Arc<Connection>,
    socket: Option<Socket>,
    sequence: u64,
    /// A beat that is on its way, and how much of it is sent.
    under_way: Option<(Encoded, usize)>,
    /// The code with which the peer said why it has closed the connection, if it said so here.
    close_code: Option<u64>,
}

impl HeartbeatLane {
    pub(super) fn new(connection: Arc<Connection>, socket: Option<Socket>) -> HeartbeatLane {
        HeartbeatLane { connection, socket, sequence: 0, under_way: None, close_code: None }
    }

    /// Never waits, since the heartbeats of other connections come after this one: where there is no room the peer has
    /// many beats to take, and a later one will do.
    pub(super) fn set(&mut self, word: &RemoteSlice, value: u64) -> Result<(), Disconnected> {
        self.look();
        self.connection.check()?;
        // On the accepting side the lane stands only a moment later: until then no peer can miss a beat.
        if self.flush() && self.socket.is_some() {
            self.sequence += 1;
            let request = words(self.sequence, self.connection.theirs.blob.epoch, word, &[value]);
            self.under_way = Some((request.encode(), 0));
            self.flush();
        }
        self.connection.check()
    }

    /// Sends the beat that is on its way. True if none is left.
    fn flush(&mut self) -> bool {
        while let (Some(socket), Some((beat, sent))) = (&mut self.socket, &mut self.under_way) {
            match socket.send(&[VolatileSlice::from_ref(&beat.as_bytes()[*sent..])]) {
                Ok(Moved::Bytes(bytes)) => {
                    *sent += bytes;
                    if *sent == beat.as_bytes().len() {
                        self.under_way = None;
                    }
                }
                Ok(Moved::Nothing) => return false,
                Err(Broken(reason)) => {
                    self.connection.fail(reason);
                    return false;
                }
            }
        }
        true
    }

    /// Looks whether the peer is still there.
    pub(super) fn look(&mut self) {
        if self.socket.is_none() && self.connection.over().is_none() {
            self.socket = self.connection.reverse(Lane::ReverseHeartbeat).take();
        }
        let Some(socket) = &mut self.socket else { return };
        let mut buffer = [0; RESPONSE_BYTES];
        match socket.receive(None, &mut buffer) {
            Ok(Moved::Nothing) => {}
            Ok(Moved::Bytes(bytes)) => {
                // No request of this lane asks for an answer: anything that the peer sends ends the connection.
                self.connection.fail(match Response::decode(&buffer[..bytes]) {
                    Ok(Some(Response::Refused { .. })) => REFUSED,
                    Ok(Some(Response::Closed { code })) => {
                        self.close_code = Some(code);
                        CLOSED
                    }
                    _ => PROTOCOL,
                });
            }
            Err(Broken(reason)) => self.connection.fail(reason),
        }
    }

    /// Allows as much silence as the owner of its connection does.
    pub(super) fn allow_silence(&self) {
        self.socket.iter().for_each(|socket| self.connection.allow_silence_on(socket));
    }

    pub(super) fn close_code(&self) -> Option<u64> {
        self.close_code
    }

    /// Ends the lane, and the heartbeat words with it.
    pub(super) fn close(&mut self) {
        drop(self.take());
    }

    /// The same, and leaves the socket to the caller.
    pub(super) fn take(&mut self) -> Option<Socket> {
        self.connection.fail(ENDED);
        self.socket.take()
    }
}
