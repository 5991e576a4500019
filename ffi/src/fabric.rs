//! What nodes talk over: shared memory and TCP, as their addresses say.

use slackline::channel::Secret;
use slackline::transport::mixed::Mixed;
use slackline::transport::shm::Shm;
use slackline::transport::tcp::Tcp;

use crate::error::Failure;

pub(crate) type Fabric = Mixed;

/// With the secret that the environment names, if it names one.
pub(crate) fn fabric() -> Result<Fabric, Failure> {
    let secret = Secret::from_environment().map_err(|error| Failure::bad_argument(error.to_string()))?;
    Ok(Mixed::new(Shm::new(), secret.map_or_else(Tcp::new, Tcp::with_secret)))
}
