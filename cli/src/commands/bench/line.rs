//! The line between two hosts: the messages on it, and how they are sent over a [`Channel`].
//!
//! Each side has proved that it knows the secret before anything else is said; without one both must be on the same
//! host. What is measured has connections of its own.

use std::net::SocketAddr;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use slackline::Secret;
use slackline::internals::channel::{Channel, ChannelError, ChannelTerms, Purpose, allow_silence};

use super::error::BenchError;
use super::means::Means;
use super::messages::Task;

/// Longest time that the other side may take for the handshake, and longest time for an answer.
pub(super) const GREETING: Duration = Duration::from_secs(5);
pub(super) const ANSWER: Duration = Duration::from_secs(60);
/// Between two looks at a line on which nothing is urgent.
pub(super) const NAP: Duration = Duration::from_millis(2);

/// A message of the side that measures.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToHost {
    Task(Box<Task>),
    /// A sign to go on with it.
    Go,
    /// The task is over.
    End,
}

/// A message of the side that listens.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToClient {
    /// Something that the task has to say.
    Said(Value),
    /// The task ended as it should.
    Done,
}

/// Such a message, or the reason that the task failed.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum TaskAnswer {
    Well(ToClient),
    Failed(String),
}

pub(super) fn terms(secret: Option<&Secret>) -> ChannelTerms {
    ChannelTerms { secret: secret.cloned(), ..ChannelTerms::new(Purpose::Measurement) }
}

pub(super) fn broken(error: &ChannelError) -> BenchError {
    BenchError::Peer(error.to_string())
}

/// Waits as long as the system lets it for a side whose processors the measurement keeps busy.
pub(super) fn be_patient(channel: &Channel) {
    if let Err(error) = allow_silence(channel, ANSWER) {
        tracing::warn!(%error, "a measurement ends if the other side says nothing for seconds");
    }
}

pub(super) fn send(channel: &mut Channel, message: &impl Serialize) -> Result<(), BenchError> {
    let bytes = serde_json::to_vec(message).map_err(|error| BenchError::Peer(error.to_string()))?;
    channel.send(&bytes).map_err(|error| broken(&error))
}

/// The next message, if there is one already.
pub(super) fn poll<M: DeserializeOwned>(channel: &mut Channel) -> Result<Option<M>, BenchError> {
    let Some(bytes) = channel.poll().map_err(|error| broken(&error))? else { return Ok(None) };
    let wrong = |error| {
        BenchError::Peer(format!("it said what this version does not know ({error}): use one on both sides"))
    };
    serde_json::from_slice(&bytes).map(Some).map_err(wrong)
}

/// Refuses an address beyond this host if there is no secret, without which any process could connect.
pub(super) fn require_secret(address: SocketAddr, means: &Means, option: &str) -> Result<(), BenchError> {
    if address.ip().to_canonical().is_loopback() || means.secret.is_some() {
        return Ok(());
    }
    let what = format!("{option} {address}: beyond loopback both sides must know a secret");
    Err(BenchError::usage(what, "give both the same --secret-file (mode 0600), or SLACKLINE_SECRET_FILE"))
}
