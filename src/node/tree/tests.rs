use proptest::prelude::*;

use super::*;

const LEASE: Duration = Duration::from_secs(3);

fn tree(branches: u16) -> Tree {
    Tree::new((7, Version::new(0)), Host::named("trainer"), branches, LEASE)
}

fn own() -> Address {
    Address::Several(vec![Address::Abstract("root".into()), "10.0.0.1:7000".parse().unwrap()])
}

/// A relay as it would announce itself: what it knows, and the owner that it reads from.
#[derive(Clone, Debug)]
struct Scripted {
    joiner: Joiner,
}

impl Scripted {
    fn new(index: u64, host: &str, branches: u16) -> Scripted {
        let socket = format!("10.0.1.{}:{}", index % 250, 7000 + index / 250);
        let address = Address::Several(vec![Address::Abstract(format!("r{index}")), socket.parse().unwrap()]);
        let notice = RelayNotice { number: None, address, branches, room: 8, reads_from: None, speed: 0 };
        Scripted { joiner: Joiner { host: Host::named(host), lost: None, relay: Some(notice) } }
    }

    fn notice(&mut self) -> &mut RelayNotice {
        self.joiner.relay.as_mut().unwrap()
    }

    fn number(&self) -> u64 {
        self.joiner.relay.as_ref().unwrap().number.unwrap()
    }

    fn reads_from(&self) -> Option<u64> {
        self.joiner.relay.as_ref().unwrap().reads_from
    }

    /// Announces itself, and goes to the first owner that it is told unless its own is in the answer.
    fn announce(&mut self, tree: &mut Tree, seconds: f64) -> TreePosition {
        let now = Instant::ORIGIN + Duration::from_secs_f64(seconds);
        let position = tree.position(&self.joiner, now, now.as_nanos(), &own());
        let current = self.reads_from();
        let stays = position.owners.iter().any(|owner| Some(owner.number) == current);
        let first = position.owners[0].number;
        let notice = self.notice();
        notice.number = Some(position.number);
        notice.reads_from = if stays { current } else { Some(first) };
        self.joiner.lost = None;
        position
    }
}

fn reader(host: &str) -> Joiner {
    Joiner { host: Host::named(host), lost: None, relay: None }
}

#[test]
fn relays_fill_the_tree_level_by_level() {
    let mut tree = tree(2);
    let mut relays: Vec<_> = (0..14).map(|at| Scripted::new(at, &format!("h{at}"), 2)).collect();
    for relay in &mut relays {
        relay.announce(&mut tree, 1.0);
    }
    let depths: Vec<_> = relays.iter().map(|relay| tree.depth(relay.number())).collect();
    // Of a binary tree: two, four, eight.
    assert_eq!(depths, [1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3]);
}

#[test]
fn a_relay_with_a_slow_link_is_a_leaf_where_others_have_branches() {
    let mut tree = tree(2);
    let [mut slow, mut fast, mut third, mut fourth] =
        [0, 1, 2, 3].map(|at| Scripted::new(at, &format!("h{at}"), 2));
    // Nothing is known of any link yet, so the first relay gets the third one.
    for relay in [&mut slow, &mut fast, &mut third] {
        relay.announce(&mut tree, 1.0);
    }
    assert_eq!(third.reads_from(), Some(slow.number()));
    for (relay, speed) in [(&mut slow, 100), (&mut fast, 1000), (&mut third, 90)] {
        relay.notice().speed = speed;
        relay.announce(&mut tree, 1.1);
    }
    third.announce(&mut tree, 1.2);
    assert_eq!(third.reads_from(), Some(fast.number()), "it leaves the slow one");
    fourth.announce(&mut tree, 1.3);
    assert_eq!(fourth.reads_from(), Some(fast.number()));
    let owners = tree.position(&reader("elsewhere"), Instant::ORIGIN, 1, &own()).owners;
    assert_eq!(owners[0].number, fast.number());
    // A half is not slow: two who share a link have as much.
    slow.notice().speed = 500;
    slow.announce(&mut tree, 1.4);
    let mut fifth = Scripted::new(4, "h4", 2);
    fifth.announce(&mut tree, 1.4);
    assert_eq!(fifth.reads_from(), Some(slow.number()));
}

#[test]
fn one_relay_with_a_far_faster_link_makes_no_other_one_slow() {
    let mut tree = tree(4);
    let mut relays: Vec<_> = (0..4).map(|at| Scripted::new(at, &format!("h{at}"), 2)).collect();
    for (relay, speed) in relays.iter_mut().zip([5000, 1000, 900, 100]) {
        relay.announce(&mut tree, 1.0);
        relay.notice().speed = speed;
        relay.announce(&mut tree, 1.1);
    }
    let is_slow: Vec<_> = relays.iter().map(|relay| tree.is_slow(relay.number())).collect();
    assert_eq!(is_slow, [false, false, false, true]);
}

#[test]
fn a_relay_stays_at_a_slow_owner_where_the_other_one_refuses_it() {
    let mut tree = tree(2);
    let [mut slow, mut fast, mut third] = [0, 1, 2].map(|at| Scripted::new(at, &format!("h{at}"), 2));
    for relay in [&mut slow, &mut fast, &mut third] {
        relay.announce(&mut tree, 1.0);
    }
    // Readers have all the room of the fast one, though a branch is left.
    fast.notice().room = 0;
    for (relay, speed) in [(&mut slow, 100), (&mut fast, 1000), (&mut third, 90)] {
        relay.notice().speed = speed;
        relay.announce(&mut tree, 1.1);
    }
    third.announce(&mut tree, 1.2);
    assert_eq!(third.reads_from(), Some(slow.number()));
    // It says that it has room, and could not be reached.
    fast.notice().room = 8;
    fast.announce(&mut tree, 1.3);
    third.joiner.lost = Some(fast.number());
    third.announce(&mut tree, 1.3);
    third.announce(&mut tree, 1.4);
    assert_eq!(third.reads_from(), Some(slow.number()));
    // That is not kept in mind for ever.
    for turn in 1..80 {
        for relay in [&mut slow, &mut fast, &mut third] {
            relay.announce(&mut tree, 1.4 + f64::from(turn));
        }
    }
    assert_eq!(third.reads_from(), Some(fast.number()));
}

#[test]
fn what_reads_over_shared_memory_from_a_slow_relay_is_as_slow() {
    let mut tree = tree(2);
    let mut slow = Scripted::new(0, "h0", 2);
    let (mut fast, mut near) = (Scripted::new(1, "h1", 2), Scripted::new(2, "h0", 2));
    near.notice().room = 9;
    for (relay, speed) in [(&mut slow, 100), (&mut fast, 1000), (&mut near, 0)] {
        relay.announce(&mut tree, 1.0);
        relay.notice().speed = speed;
        relay.announce(&mut tree, 1.1);
    }
    assert_eq!(near.reads_from(), Some(slow.number()));
    let owners = tree.position(&reader("elsewhere"), Instant::ORIGIN, 1, &own()).owners;
    assert_eq!(owners[0].number, fast.number());
}

#[test]
fn where_all_other_owners_are_full_a_relay_reads_over_a_slow_link() {
    let mut tree = tree(1);
    let [mut first, mut second, mut third] = [0, 1, 2].map(|at| Scripted::new(at, &format!("h{at}"), 1));
    for (relay, speed) in [(&mut first, 1000), (&mut second, 10), (&mut third, 10)] {
        relay.announce(&mut tree, 1.0);
        relay.notice().speed = speed;
        relay.announce(&mut tree, 1.1);
    }
    assert_eq!(third.reads_from(), Some(second.number()));
}

#[test]
fn a_reader_is_sent_to_the_relay_on_its_host_over_shared_memory() {
    let mut tree = tree(2);
    let (mut near, mut far) = (Scripted::new(1, "near", 2), Scripted::new(2, "far", 2));
    near.announce(&mut tree, 1.0);
    far.announce(&mut tree, 1.0);
    let mut ask = |host| tree.position(&reader(host), Instant::ORIGIN, 1, &own()).owners;
    let owners = ask("near");
    assert_eq!(owners[0], TreeOwner { number: near.number(), address: Some(Address::Abstract("r1".into())) });
    assert_eq!(owners[1].number, near.number(), "and over TCP, if that is all that the reader has");
    assert_eq!(owners.last(), Some(&TreeOwner { number: TreePosition::PUBLISHER, address: None }));
    // Elsewhere no address of shared memory is of use.
    let elsewhere = ask("elsewhere");
    assert!(elsewhere.iter().flat_map(|owner| &owner.address).all(|address| !is_local(address)));
    assert_eq!(elsewhere.len(), 3, "both relays and the publisher: {elsewhere:?}");
    let at_home = ask("trainer");
    assert_eq!(at_home[0].address, Some(Address::Abstract("root".into())));
}

#[test]
fn the_publisher_is_named_last_however_many_addresses_relays_have() {
    let mut tree = tree(8);
    for index in 0..3 {
        let mut relay = Scripted::new(index, "far", 2);
        let addresses = (1..=4).map(|host| format!("10.0.{host}.{index}:7000").parse().unwrap());
        relay.notice().address = Address::Several(addresses.collect());
        relay.announce(&mut tree, 1.0);
    }
    let owners = tree.position(&reader("elsewhere"), Instant::ORIGIN, 1, &own()).owners;
    assert_eq!(owners.len(), TreePosition::OWNERS_MAX);
    assert_eq!(owners.last(), Some(&TreeOwner { number: TreePosition::PUBLISHER, address: None }));
}

#[test]
fn readers_that_come_at_once_are_spread_over_relays_with_room() {
    let mut tree = tree(2);
    let mut relays = [Scripted::new(1, "a", 2), Scripted::new(2, "b", 2), Scripted::new(3, "c", 2)];
    relays[2].notice().room = 0;
    for relay in &mut relays {
        relay.announce(&mut tree, 1.0);
    }
    let mut sent = BTreeMap::<u64, usize>::new();
    for _ in 0..16 {
        let position = tree.position(&reader("elsewhere"), Instant::ORIGIN, 1, &own());
        *sent.entry(position.owners[0].number).or_default() += 1;
    }
    assert_eq!(sent, BTreeMap::from([(relays[0].number(), 8), (relays[1].number(), 8)]));
    let position = tree.position(&reader("elsewhere"), Instant::ORIGIN, 1, &own());
    assert_eq!(
        position.owners,
        [TreeOwner { number: TreePosition::PUBLISHER, address: None }],
        "all are full"
    );
}

#[test]
fn an_earlier_relay_without_an_owner_takes_the_branch_of_a_later_one() {
    let mut tree = tree(1);
    let mut chain: Vec<_> = (0..3).map(|at| Scripted::new(at, &format!("h{at}"), 1)).collect();
    for relay in &mut chain {
        relay.announce(&mut tree, 1.0);
    }
    let [first, mut second, mut third] = <[Scripted; 3]>::try_from(chain).unwrap();
    assert_eq!(third.reads_from(), Some(second.number()));
    // The first one is dead; the third hears of its forgetting before the second does.
    second.announce(&mut tree, 3.0);
    third.announce(&mut tree, 3.0);
    third.joiner.lost = Some(second.number());
    third.announce(&mut tree, 4.5);
    assert_eq!(third.reads_from(), Some(TreePosition::PUBLISHER));
    second.joiner.lost = Some(first.number());
    second.announce(&mut tree, 4.6);
    assert_eq!(second.reads_from(), Some(TreePosition::PUBLISHER), "it has nowhere else to go");
    third.announce(&mut tree, 4.7);
    assert_eq!(third.reads_from(), Some(second.number()), "the publisher lets one read");
}

#[test]
fn a_publisher_that_was_away_for_a_lease_keeps_its_tree() {
    let mut tree = tree(1);
    let [mut first, mut second] = [0, 1].map(|at| Scripted::new(at, &format!("h{at}"), 1));
    let at = |seconds: f64| Instant::ORIGIN + Duration::from_secs_f64(seconds);
    tree.look(at(1.0));
    first.announce(&mut tree, 1.0);
    second.announce(&mut tree, 1.0);
    assert_eq!(second.reads_from(), Some(first.number()));
    // It computes for ten seconds, and then finds the announcement of the second one first.
    tree.look(at(11.0));
    second.announce(&mut tree, 11.0);
    assert_eq!(second.reads_from(), Some(first.number()));
    // While it looks, a relay that announces itself no more is forgotten after its lease.
    for tenth in 111..=145 {
        tree.look(at(f64::from(tenth) / 10.0));
        second.announce(&mut tree, f64::from(tenth) / 10.0);
    }
    assert_eq!(second.reads_from(), Some(TreePosition::PUBLISHER));
}

#[test]
fn a_relay_that_is_started_again_replaces_the_one_before() {
    let mut tree = tree(2);
    let mut before = Scripted::new(1, "h", 2);
    before.announce(&mut tree, 1.0);
    let mut after = Scripted::new(1, "h", 2);
    after.announce(&mut tree, 1.1);
    assert!(after.number() > before.number());
    assert_eq!(tree.relays.len(), 1);
}

#[test]
fn a_relay_that_lost_its_owner_is_heard_whatever_the_lease() {
    let mut tree = Tree::new((7, Version::new(0)), Host::named("trainer"), 2, Duration::MAX);
    let mut relay = Scripted::new(0, "h0", 2);
    relay.announce(&mut tree, 1.0);
    for (lost, seconds) in [(Some(5), 2.0), (None, 3.0)] {
        relay.joiner.lost = lost;
        relay.announce(&mut tree, seconds);
    }
    assert_eq!(relay.reads_from(), Some(TreePosition::PUBLISHER));
}

/// It has come to be reached over the memory of its own host alone.
#[test]
fn an_owner_that_a_relay_cannot_reach_any_more_is_not_named() {
    let mut tree = tree(1);
    let [mut near, mut far] = [0, 1].map(|at| Scripted::new(at, &format!("h{at}"), 2));
    near.announce(&mut tree, 1.0);
    far.announce(&mut tree, 1.1);
    assert_eq!(far.reads_from(), Some(near.number()));
    near.notice().address = Address::Abstract("r0".into());
    near.announce(&mut tree, 1.2);
    let position = far.announce(&mut tree, 1.3);
    assert!(position.owners.iter().all(|owner| owner.number != near.number()), "{position:?}");
}

#[test]
fn a_relay_that_says_a_number_from_far_ahead_gets_another_one() {
    let mut tree = tree(2);
    let [mut first, mut second] = [1, 2].map(|at| Scripted::new(at, "h", 2));
    first.notice().number = Some(u64::MAX / 2);
    first.announce(&mut tree, 1.0);
    second.announce(&mut tree, 1.0);
    assert!(second.number() < AHEAD, "one more relay could not say a number after this one");
}

/// What happens to a tree: a relay joins or is killed, loses its owner, or time passes.
#[derive(Clone, Debug)]
enum Happening {
    Join { host: u8, branches: u16 },
    Kill(prop::sample::Index),
    Lose(prop::sample::Index),
    Announce(prop::sample::Index),
    Measure(prop::sample::Index, u64),
    Restart,
    Pass,
}

fn happening() -> impl Strategy<Value = Happening> {
    use prop::sample::Index;
    prop_oneof![
        3 => (0u8..6, 0u16..4).prop_map(|(host, branches)| Happening::Join { host, branches }),
        1 => any::<Index>().prop_map(Happening::Kill),
        1 => any::<Index>().prop_map(Happening::Lose),
        3 => any::<Index>().prop_map(Happening::Announce),
        2 => (any::<Index>(), 0u64..100).prop_map(|(index, speed)| Happening::Measure(index, speed)),
        1 => Just(Happening::Restart),
        2 => Just(Happening::Pass),
    ]
}

proptest! {
    /// Whatever happens, and though some member may still hold to an older answer, no relay is under its own
    /// descendant. Once nothing more happens, each reads from an owner that lives and has a branch for it.
    #[test]
    fn no_tree_has_a_cycle_and_each_repairs_itself(
        happenings in prop::collection::vec(happening(), 1..60),
        branches in 1u16..4,
    ) {
        let mut tree = tree(branches);
        let (mut relays, mut seconds, mut made) = (Vec::<Scripted>::new(), 1.0, 0);
        for happening in happenings {
            seconds += 0.01;
            let at = |index: prop::sample::Index, relays: &[Scripted]| {
                (!relays.is_empty()).then(|| index.index(relays.len()))
            };
            match happening {
                Happening::Join { host, branches } => {
                    made += 1;
                    let mut relay = Scripted::new(made, &format!("h{host}"), branches);
                    relay.announce(&mut tree, seconds);
                    relays.push(relay);
                }
                Happening::Kill(index) => {
                    at(index, &relays).map(|index| relays.remove(index));
                }
                Happening::Lose(index) => {
                    if let Some(index) = at(index, &relays) {
                        let relay = &mut relays[index];
                        (relay.joiner.lost, relay.notice().reads_from) = (relay.reads_from(), None);
                        relay.announce(&mut tree, seconds);
                    }
                }
                Happening::Announce(index) => {
                    if let Some(index) = at(index, &relays) {
                        relays[index].announce(&mut tree, seconds);
                    }
                }
                Happening::Measure(index, speed) => {
                    if let Some(index) = at(index, &relays) {
                        relays[index].notice().speed = speed;
                    }
                }
                // The publisher has forgotten all.
                Happening::Restart => tree.relays.clear(),
                Happening::Pass => seconds += 1.0,
            }
            for relay in &relays {
                prop_assert!(relay.reads_from().is_none_or(|owner| owner < relay.number()));
            }
        }
        // The dead are forgotten, then the living go where they are told: one level of the tree a turn.
        for _ in 0..relays.len() + 5 {
            seconds += 1.0;
            for relay in &mut relays {
                relay.announce(&mut tree, seconds);
            }
        }
        let mut children = BTreeMap::<u64, u16>::new();
        for relay in &relays {
            let owner = relay.reads_from().unwrap();
            prop_assert!(
                owner == TreePosition::PUBLISHER || relays.iter().any(|other| other.number() == owner),
                "{} reads from the dead", relay.number()
            );
            *children.entry(owner).or_default() += 1;
            prop_assert!(tree.depth(relay.number()) <= relays.len());
        }
        for relay in &relays {
            let has = relay.joiner.relay.as_ref().unwrap().branches.max(1);
            prop_assert!(children.get(&relay.number()).is_none_or(|children| *children <= has));
        }
        prop_assert!(children.get(&TreePosition::PUBLISHER).is_none_or(|children| *children <= branches));
    }
}
