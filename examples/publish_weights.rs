//! A trainer that publishes weights, and rollout workers that read them, at most one version behind.
//!
//! All are threads here; as processes they need nothing but the address, of shared memory, TCP or RDMA.

use std::time::Duration;

use slackline::weights::{Publisher, PublisherOptions, Reader, ReaderOptions};
use slackline::{Address, ElementType, Error, Shm, Table, Version};

const ELEMENTS: usize = 100_000;
const VERSIONS: u64 = 50;
const READERS: usize = 2;
const TIMEOUT: Duration = Duration::from_secs(20);

/// Trains: each step writes its number into all weights.
fn train(address: &Address) -> Result<(), Error> {
    let table = Table::builder().tensor("weight", &[ELEMENTS as u64], ElementType::F32).build()?;
    let mut publisher = Publisher::new(Shm::new(), address, table, PublisherOptions::default())?;
    publisher.drive(|publisher| publisher.readers().len() == READERS, TIMEOUT)?;
    for step in 1..=VERSIONS {
        let bytes: Vec<u8> = (step as f32).to_ne_bytes().repeat(ELEMENTS);
        publisher.publish(&bytes, TIMEOUT)?;
        publisher.drive(|_| false, Duration::from_millis(2))?; // computes the next step
    }
    publisher.drive(|publisher| publisher.readers().is_empty(), TIMEOUT)?;
    Ok(())
}

/// Rolls out: each batch uses weights that are whole and at most one version behind the newest.
fn roll_out(address: &Address) -> Result<u64, Error> {
    let options = ReaderOptions { waits_for_server: true, ..ReaderOptions::default() };
    let mut reader = Reader::connect(Shm::new(), address, options, TIMEOUT)?;
    reader.refresh_to(Version::new(1), TIMEOUT)?;
    let mut copies = 0;
    loop {
        let fresh = reader.refresh(1, TIMEOUT)?;
        copies += u64::from(fresh.copied);
        let expected = (fresh.version.get() as f32).to_ne_bytes();
        let mut weights = reader.bytes()?.chunks_exact(4);
        assert!(weights.all(|weight| weight == expected), "a mixture at version {}", fresh.version.get());
        // The last version may be one that this reader has no need to copy.
        if fresh.version.get() + fresh.behind == VERSIONS {
            return Ok(copies);
        }
    }
}

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = Address::random();
    std::thread::scope(|scope| {
        let readers = [(); READERS].map(|()| scope.spawn(|| roll_out(&address)));
        train(&address)?;
        for reader in readers {
            let copies = reader.join().expect("a reader does not panic")?;
            println!("a reader copied {copies} of {VERSIONS} versions, each of them whole");
        }
        Ok(())
    })
}
