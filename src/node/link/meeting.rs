//! How a peer meets its owner: it shakes hands, and asks again while the owner is too busy to answer.

use std::sync::Arc;
use std::task::Poll;

use super::Link;
use crate::mem::LocalSlice;
use crate::node::runtime::Runtime;
use crate::node::wait::{WaitTurn, wait};
use crate::node::{Awaited, Error};
use crate::param::{Joiner, PeerHello, PeerRole, TreePosition, Welcome};
use crate::scheme::Bound;
use crate::time::{Duration, Instant};
use crate::transport::{
    Address, ConnectError, Connecting as _, Doorbell, Endpoint, Offer, Received, Transport,
};

impl<E: Endpoint> Link<E> {
    /// Asks the owner for a description of its table, and does not join.
    pub(in crate::node) async fn ask<T: Transport<Endpoint = E>>(
        transport: &T,
        address: &Address,
        timeout: Duration,
    ) -> Result<Welcome, Error> {
        let hello = PeerHello::from(PeerRole::Inquirer);
        let deadline = Runtime::of(transport).now() + timeout;
        let (_, _, welcome) =
            Self::shake_hands(transport, address, hello, (Vec::new(), None), deadline, timeout).await?;
        Ok(welcome)
    }

    /// Asks a publisher which owners to read from.
    pub(in crate::node) async fn ask_position<T: Transport<Endpoint = E>>(
        transport: &T,
        address: &Address,
        joiner: Joiner,
        timeout: Duration,
    ) -> Result<TreePosition, Error> {
        let runtime = Runtime::of(transport);
        let hello = PeerHello::from(PeerRole::Joiner(joiner));
        let deadline = runtime.now() + timeout;
        let asked = Self::exchange(transport, address, hello.encode(), (&[], None), deadline, timeout);
        let (_, received) = asked.await?;
        TreePosition::decode(&received.message)
            .map_err(|source| Error::Handshake { address: address.clone(), source })
    }

    /// Shakes hands with an owner, which is granted memory and given a doorbell to wake this peer by.
    pub(in crate::node) async fn shake_hands<T: Transport<Endpoint = E>>(
        transport: &T,
        address: &Address,
        hello: PeerHello,
        (grants, doorbell): (Vec<LocalSlice>, Option<&Arc<Doorbell>>),
        deadline: Instant,
        timeout: Duration,
    ) -> Result<(E, Received, Welcome), Error> {
        let given = (&grants[..], doorbell);
        let exchanged = Self::exchange(transport, address, hello.encode(), given, deadline, timeout);
        let (endpoint, received) = exchanged.await?;
        let welcome = Welcome::decode(&received.message, &hello.role, &received.grants)
            .map_err(|source| Error::Handshake { address: address.clone(), source })?;
        Ok((endpoint, received, welcome))
    }

    /// Connects, and takes the owner's answer as it is. An owner that drops the connection before it has answered is
    /// asked again: it may be so busy, or so many peers may have come at once, that it had to drop this one.
    async fn exchange<T: Transport<Endpoint = E>>(
        transport: &T,
        address: &Address,
        message: Vec<u8>,
        (grants, doorbell): (&[LocalSlice], Option<&Arc<Doorbell>>),
        deadline: Instant,
        timeout: Duration,
    ) -> Result<(E, Received), Error> {
        let runtime = Runtime::of(transport);
        let mut pause = ASK_AGAIN.0;
        loop {
            let offer = Offer { message: message.clone(), grants: grants.to_vec() };
            let connecting = match doorbell {
                None => transport.connect(address, offer)?,
                Some(doorbell) => transport.connect_to_be_woken(address, offer, doorbell)?,
            };
            match Self::exchange_once::<T>(&runtime, connecting, address, deadline, timeout).await {
                Err(Error::Connect(error))
                    if error.is_lost_handshake() && runtime.now() + pause < deadline =>
                {
                    tracing::debug!(%address, "refused in the handshake; asking again");
                    runtime.sleep(pause).await;
                    pause = (2 * pause).min(ASK_AGAIN.1);
                }
                exchanged => return exchanged,
            }
        }
    }

    async fn exchange_once<T: Transport<Endpoint = E>>(
        runtime: &Runtime,
        mut connecting: T::Connecting,
        address: &Address,
        deadline: Instant,
        timeout: Duration,
    ) -> Result<(E, Received), Error> {
        let connected = wait(runtime, deadline, |now| match connecting.poll(now) {
            Poll::Ready(connected) => Ok(WaitTurn::Done(connected?)),
            Poll::Pending => Ok(WaitTurn::Idle),
        });
        let Some(exchanged) = connected.await? else {
            if !connecting.is_accepted() {
                return Err(ConnectError::no_answer(address.clone()).into());
            }
            if let Some(held_up) = connecting.held_up() {
                return Err(held_up.into());
            }
            let (needed, seen, awaited) = (Bound::NONE, Bound::NONE, Awaited::Answer);
            return Err(Error::Deadline { operation: "connecting", waited: timeout, needed, seen, awaited });
        };
        Ok(exchanged)
    }
}

/// Shortest and longest pause before an owner is asked again to let this peer in.
const ASK_AGAIN: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(640));
