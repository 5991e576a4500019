//! A member that speaks the protocol by hand, and so can stop anywhere in it, or break it.

use std::task::Poll;
use std::time::Duration;

use slackline::group::{GroupListener, GroupOptions};
use slackline::internals::mem::{Access, LocalSlice};
use slackline::internals::param::{
    GroupArea, GroupHello, GroupInbox, GroupLayout, GroupOutbox, PartHeader, Ranks, ranks_word,
};
use slackline::internals::transport::{Connecting, Endpoint, Incoming, Listener, Offer, PostError, Received};
use slackline::{Address, ConnectError, Transport};

use super::fixture::{Fixture, Member, PATIENCE, listen, wait_for};

type EndpointOf<F> = <<F as Fixture>::Transport as Transport>::Endpoint;

/// Raw members have no heart: their groups live by a lease that no test reaches.
pub(crate) fn patient() -> GroupOptions {
    GroupOptions { lease: Duration::from_secs(600), ..GroupOptions::default() }
}

/// The raw member of the highest rank: it dials the others, and does not listen.
pub(crate) struct Raw<F: Fixture> {
    transport: F::Transport,
    layout: GroupLayout,
    /// By rank.
    pub(crate) ends: Vec<(EndpointOf<F>, GroupInbox, GroupOutbox)>,
}

pub(crate) fn hello(rank: usize, members: usize, elements: usize, options: GroupOptions) -> GroupHello {
    GroupHello {
        run: options.run,
        rank: rank as u16,
        members: members as u16,
        layout: GroupLayout { elements: elements as u64 },
        lease_ns: options.lease.as_nanos() as u64,
        checksums: options.checksums,
    }
}

fn inbox<F: Fixture>(transport: &F::Transport, layout: GroupLayout) -> GroupInbox {
    let page = transport.allocate(GroupLayout::PAGE_BYTES, Access::REMOTE_WRITE).unwrap();
    let areas = transport.allocate(2 * layout.area_bytes(), Access::REMOTE_WRITE).unwrap();
    GroupInbox::new(page, areas, layout)
}

/// Says `hello` and grants an inbox that fits `layout`.
pub(crate) fn say<F: Fixture>(
    transport: &F::Transport,
    address: &Address,
    message: Vec<u8>,
    layout: GroupLayout,
) -> Result<(EndpointOf<F>, Received, GroupInbox), ConnectError> {
    let inbox = inbox::<F>(transport, layout);
    let mut connecting = transport.connect(address, Offer { message, grants: inbox.grants() })?;
    let (endpoint, received) = wait_for("an answer", || match connecting.poll(slackline::now()) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    })?;
    Ok((endpoint, received, inbox))
}

/// Takes the next peer in that arrives at `listener`, as the member that `hello` names, and listens no more.
pub(crate) fn answer<F: Fixture>(
    mut listener: <F::Transport as Transport>::Listener,
    hello: GroupHello,
) -> (EndpointOf<F>, GroupInbox) {
    let inbox = inbox::<F>(&F::transport(), hello.layout);
    let incoming = wait_for("a peer", || listener.poll(slackline::now()));
    let offer = Offer { message: hello.encode(), grants: inbox.grants() };
    (incoming.accept(offer).expect("a connection"), inbox)
}

/// `members` of a group, the last of which is a raw one.
pub(crate) fn meet_raw<F: Fixture>(
    members: usize,
    elements: usize,
    options: GroupOptions,
) -> (Vec<Member<F>>, Raw<F>) {
    let listeners: Vec<_> =
        (0..members - 1).map(|rank| listen::<F>(rank, members, elements, options)).collect();
    let mut addresses: Vec<_> = listeners.iter().map(GroupListener::address).collect();
    addresses.push(Address::random());
    let hello = hello(members - 1, members, elements, options);
    std::thread::scope(|scope| {
        let addresses = &addresses;
        let connect = |listener: GroupListener<F::Transport>| {
            scope.spawn(move || listener.connect(addresses, PATIENCE).expect("meet"))
        };
        let threads: Vec<_> = listeners.into_iter().map(connect).collect();
        let transport = F::transport();
        let end = |address| {
            let (endpoint, received, inbox) =
                say::<F>(&transport, address, hello.encode(), hello.layout).expect("meet");
            let theirs = GroupHello::decode(&received.message, &received.grants).expect("a member");
            (endpoint, inbox, GroupOutbox::new(&received.grants, theirs.layout).unwrap())
        };
        let ends = addresses[..members - 1].iter().map(end).collect();
        let raw = Raw { transport, layout: hello.layout, ends };
        (threads.into_iter().map(|thread| thread.join().unwrap()).collect(), raw)
    })
}

/// The header of a part of `round`, among `view` of `group`.
pub(crate) fn header(round: u64, group: &[usize], view: &[usize], bytes: usize) -> PartHeader {
    let word = |ranks: &[usize]| ranks_word(&ranks.iter().map(|rank| *rank as u16).collect::<Vec<_>>());
    PartHeader { round, view: word(view), group: word(group), bytes: bytes as u64, ..PartHeader::default() }
}

impl<F: Fixture> Raw<F> {
    /// Memory full of `value`, as long as the part of the member at `index` of `members`.
    pub(crate) fn part(&self, members: usize, index: usize, value: f32) -> LocalSlice {
        let bytes = self.layout.part(members, index).len();
        let region = self.transport.allocate(bytes, Access::LOCAL).unwrap();
        region.as_volatile().write(&value.to_le_bytes().repeat(bytes / 4));
        region.whole()
    }

    /// Writes a part to member `to`, and waits until it is there, or `to` wants no more of this one.
    pub(crate) fn write(&mut self, to: usize, area: GroupArea, header: PartHeader, payload: &LocalSlice) {
        let (endpoint, _, outbox) = &mut self.ends[to];
        if post(|| outbox.write(endpoint, area, header, payload.clone())) {
            let _whether_it_arrived = wait_for("a part to arrive", || endpoint.poll());
        }
    }

    /// Tells member `to` which members are gone.
    pub(crate) fn write_gone(&mut self, to: usize, gone: &[usize]) {
        let mut ranks = Ranks::default();
        gone.iter().for_each(|rank| assert!(ranks.insert(*rank)));
        let (endpoint, _, outbox) = &mut self.ends[to];
        assert!(post(|| outbox.write_gone(endpoint, ranks)));
    }

    /// Waits for what member `from` writes of `round`.
    pub(crate) fn wait_for(&self, from: usize, area: GroupArea, round: u64) {
        let inbox = &self.ends[from].1;
        wait_for("a part", || inbox.header(area).filter(|header| header.round == round));
    }
}

/// The queue may have no room for a moment: lanes are dialled after the handshake. False if the connection is gone.
fn post(mut step: impl FnMut() -> Result<(), PostError>) -> bool {
    wait_for("room", || match step() {
        Ok(()) => Some(true),
        Err(PostError::QueueFull { .. }) => None,
        Err(PostError::Disconnected(_)) => Some(false),
        Err(error) => panic!("{error}"),
    })
}
