//! Readers that are killed while they sleep.

use slackline::weights::{Publisher, PublisherOptions, Reader, ReaderOptions};
use slackline::{Address, Idle, ShardOptions, Shm, Version};

use super::second::{LONG_LEASE, PATIENCE, Second, table, told, wait_for};

/// Reads each version as it comes, asleep in between, until it is killed.
fn read_all(words: &[String]) -> ! {
    let address: Address = words[0].parse().unwrap();
    let options = ReaderOptions { idle: Idle::Sleep, ..ReaderOptions::default() };
    let mut reader = Reader::connect(Shm::new(), &address, options, PATIENCE).unwrap();
    let mut next = Version::new(0);
    loop {
        next = reader.refresh_to(next, PATIENCE).unwrap().version.next();
    }
}

#[test]
fn a_reader_that_is_killed_in_its_sleep_holds_up_no_publisher() {
    if let Some(words) = told() {
        read_all(&words);
    }
    let memory = ShardOptions { lease: LONG_LEASE, ..ShardOptions::default() };
    let options = PublisherOptions { memory, ..PublisherOptions::default() };
    let mut publisher = Publisher::new(Shm::new(), &Address::random(), table(16), options).unwrap();
    let claim = a_reader_that_is_killed_in_its_sleep_holds_up_no_publisher;
    for round in 1..=3 {
        let mut reader = Second::start(claim, &[publisher.address().to_string()]);
        assert!(publisher.drive(|publisher| publisher.joined() == round, PATIENCE).unwrap());
        let version = publisher.publish(&[round as u8; 64], PATIENCE).unwrap();
        let holds_it = |publisher: &Publisher<Shm>| {
            publisher.readers().iter().any(|reader| reader.holds == Some(version))
        };
        assert!(publisher.drive(holds_it, PATIENCE).unwrap());
        wait_for("it to sleep until the next version", || reader.is_asleep().then_some(()));
        reader.kill();
        for _ in 0..1000 {
            publisher.publish(&[0; 64], PATIENCE).unwrap();
        }
        assert!(publisher.drive(|publisher| publisher.readers().is_empty(), PATIENCE).unwrap());
    }
    assert_eq!(publisher.version(), Version::new(3 * 1001));
}
