//! The choice among several devices. Needs two that are equally good, as one guest of `cargo xtask softroce` has them.

use std::net::IpAddr;

use slackline::internals::mem::Access;
use slackline::internals::transport::Offer;
use slackline::internals::transport::verbs::{DeviceInfo, devices};
use slackline::{Transport, Verbs, VerbsOptions};

use super::ends::{Pair, connect, prove};
use crate::RailsFixture;
use crate::transport::fixture::{bytes_of, noise, read, run, write};

/// Both, in the order in which the library tells them.
fn both() -> [DeviceInfo; 2] {
    let names = ["SLACKLINE_RIG_DEVICE", "SLACKLINE_RIG_DEVICE_2"]
        .map(|name| std::env::var(name).unwrap_or_else(|_| panic!("{name}: this takes two devices")));
    let mut all = devices().expect("a list").into_iter().flatten().collect::<Vec<_>>();
    all.retain(|device| names.contains(&device.name));
    all.try_into().expect("both are there")
}

fn ipv4(device: &DeviceInfo) -> IpAddr {
    let mut addresses = device.ports[0].gids.iter().map(|gid| gid.address());
    addresses.find(IpAddr::is_ipv4).expect("its interface has an IPv4 address")
}

fn open(options: VerbsOptions) -> Verbs {
    Verbs::open(options).unwrap()
}

#[test]
fn two_equal_devices_are_shared_out_by_local_rank_and_the_reason_says_so() {
    let both = both();
    for local_rank in 0..4 {
        let verbs = open(VerbsOptions { local_rank, ..VerbsOptions::default() });
        assert_eq!(verbs.device(), both[local_rank % 2].name);
        assert_eq!(verbs.reason(), format!("best of 2, number {} of 2 equal ones", local_rank % 2));
    }
}

#[test]
fn the_device_on_the_way_to_the_peer_comes_first_whatever_the_local_rank() {
    for device in both() {
        // A peer on its network, and this host's own address there.
        for last in [77, 1] {
            let IpAddr::V4(own) = ipv4(&device) else { panic!("an IPv4 address") };
            let [a, b, c, _] = own.octets();
            let peer = Some([a, b, c, last].into());
            for local_rank in [0, 1] {
                let verbs = open(VerbsOptions { peer, local_rank, ..VerbsOptions::default() });
                assert_eq!(verbs.device(), device.name);
                assert_eq!(verbs.reason(), "on the way to the peer, best of 2");
                let gid = verbs.gid_towards(peer).expect("an address");
                assert_eq!(gid.gid.address(), own);
            }
        }
    }
}

#[test]
fn a_named_device_is_taken_whatever_the_rank_and_peer_and_carries_data() {
    let both = both();
    let elsewhere = [Some(ipv4(&both[1])), Some(ipv4(&both[0]))];
    for (device, peer) in both.iter().zip(elsewhere) {
        let options = |local_rank| VerbsOptions {
            devices: vec![device.name.clone()],
            peer,
            local_rank,
            ..VerbsOptions::default()
        };
        let verbs = open(options(1));
        assert_eq!(
            (verbs.device(), verbs.reason(), open(options(0)).device()),
            (&*device.name, "it was asked for", &*device.name)
        );

        let mut listener = verbs.listen(&"verbs:127.0.0.1:0".parse().unwrap()).unwrap();
        let region = verbs.allocate(70_000, Access::REMOTE_READ | Access::REMOTE_WRITE).unwrap();
        let offer = Offer { message: Vec::new(), grants: vec![region.whole()] };
        let mut pair: Pair<RailsFixture> = connect(&verbs, &mut listener, Offer::default(), offer);
        let local = verbs.allocate(70_000, Access::LOCAL).unwrap().whole();
        local.as_volatile().write(&noise(1, 70_000));
        run(&mut pair.client, write(local.clone(), pair.at_client.grants[0])).unwrap();
        prove(&verbs, &mut pair.client, pair.at_client.grants[0]);
        assert!(bytes_of(&region.whole()) == noise(1, 70_000));
        local.as_volatile().write(&vec![0; 70_000]);
        run(&mut pair.client, read(local.clone(), pair.at_client.grants[0])).unwrap();
        assert!(bytes_of(&local) == noise(1, 70_000));
    }
}
