//! The parameters of a coordinated job, read while it trains: of each shard, or of each worker's own copy.

use std::sync::PoisonError;
use std::time::Duration;

use super::coordinator::Addresses;
use crate::clock::Version;
use crate::node::{Error, Reader, ReaderOptions};
use crate::transport::Address;
use crate::transport::mixed::Mixed;

/// The longest time in which a worker's own copy is to be connected to, and to be read.
const COPY_WITHIN: Duration = Duration::from_secs(2);

/// The parameters at one time.
#[derive(Clone, Debug)]
pub struct Gathered {
    /// The parameters of the whole table; the mean of the copies that could be read, where each worker has its own.
    pub parameters: Vec<f32>,
    /// The version of the shard, or of the copy, that has seen the fewest.
    pub versions: u64,
    /// The first copy, and its Euclidean distance from the mean, where each worker has its own.
    pub local: Option<(Vec<f32>, f64)>,
}

/// The parts that the parameters are read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parts {
    /// Shards, which are put together.
    Shards,
    /// Whole copies, each worker's own, whose mean counts. A copy that cannot be read is left out.
    Copies,
}

/// The parameters cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GatherError {
    /// A server, or a worker, cannot be read.
    #[error(transparent)]
    Node(#[from] Error),
    /// There are more or fewer parameters than the table has.
    #[error("{given} parameters where the model has {expected}")]
    Length {
        /// Parameters that were read.
        given: usize,
        /// Elements of the table.
        expected: usize,
    },
    /// No copy can be read: the error of the last, if there is any.
    #[error("no worker's parameters can be read{}", .0.as_ref().map_or(String::new(), |(index, error)| {
        format!("; copy {index}: {error}")
    }))]
    NoCopy(Option<(usize, Box<GatherError>)>),
}

/// A reader of each shard or copy, connected again where a server was started again.
pub struct Gather {
    addresses: Addresses,
    transports: Mixed,
    parts: Parts,
    /// Elements of all shards together, and of each copy.
    elements: usize,
    readers: Vec<(Address, Reader<Mixed>)>,
}

impl Gather {
    /// Readers at these addresses, of a table of so many elements. Nothing is connected yet.
    pub fn new(addresses: Addresses, transports: Mixed, parts: Parts, elements: usize) -> Gather {
        Gather { addresses, transports, parts, elements, readers: Vec::new() }
    }

    /// Reads all parameters; with `newest`, of the newest versions. Each part has `timeout` (a worker's copy two
    /// seconds).
    ///
    /// # Errors
    /// A shard cannot be read, or no copy can. The next call connects again.
    pub fn collect(&mut self, timeout: Duration, newest: bool) -> Result<Gathered, GatherError> {
        if self.parts == Parts::Copies {
            return self.collect_copies();
        }
        let collected = self.collect_shards(timeout, newest);
        collected.inspect_err(|_| {
            // After any error a new connection does no harm.
            self.readers.clear();
        })
    }

    fn addresses(&self) -> Vec<Address> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn collect_shards(&mut self, timeout: Duration, newest: bool) -> Result<Gathered, GatherError> {
        let addresses = self.addresses();
        if !self.readers.iter().map(|(address, _)| address).eq(&addresses) {
            self.readers.clear();
            for address in addresses {
                let options = ReaderOptions::default();
                let reader = Reader::connect(self.transports.clone(), &address, options, timeout)?;
                self.readers.push((address, reader));
            }
        }
        let mut whole = Gathered { parameters: Vec::new(), versions: u64::MAX, local: None };
        for (_, reader) in &mut self.readers {
            let fresh = match newest {
                true => reader.refresh(0, timeout)?,
                // While workers publish, the newest version at the begin of the copy is good enough.
                false => reader.refresh_to(Version::new(0), timeout)?,
            };
            whole.versions = whole.versions.min(fresh.version.get());
            whole.parameters.extend(floats(reader.bytes()?));
        }
        self.check(&whole.parameters)?;
        Ok(whole)
    }

    /// The mean of all copies that can be read.
    fn collect_copies(&mut self) -> Result<Gathered, GatherError> {
        let addresses = self.addresses();
        self.readers.retain(|(address, _)| addresses.contains(address));
        let mut copies: Vec<Vec<f32>> = Vec::with_capacity(addresses.len());
        let mut versions = u64::MAX;
        let mut failed = None;
        for (index, address) in addresses.iter().enumerate() {
            let at = self.readers.iter().position(|(known, _)| known == address);
            // The version is the worker's own word, and is not trusted.
            let copy = self.copy(at, address).map_err(GatherError::from).and_then(|copy| {
                self.check(&copy.1)?;
                Ok(copy)
            });
            match copy {
                Ok((version, copy)) => {
                    // The first version has the initial values.
                    versions = versions.min(version.saturating_sub(1));
                    copies.push(copy);
                }
                Err(error) => {
                    self.readers.retain(|(known, _)| known != address);
                    failed = Some((index, Box::new(error)));
                }
            }
        }
        let Some(first) = copies.first() else { return Err(GatherError::NoCopy(failed)) };
        let mean: Vec<f32> = (0..first.len())
            .map(|index| copies.iter().map(|copy| f64::from(copy[index])).sum::<f64>() / copies.len() as f64)
            .map(|mean| mean as f32)
            .collect();
        let squares = first.iter().zip(&mean).map(|(own, mean)| (f64::from(*own) - f64::from(*mean)).powi(2));
        let distance = squares.sum::<f64>().sqrt();
        Ok(Gathered {
            parameters: mean,
            versions,
            local: copies.into_iter().next().map(|copy| (copy, distance)),
        })
    }

    fn check(&self, parameters: &[f32]) -> Result<(), GatherError> {
        let (given, expected) = (parameters.len(), self.elements);
        if given == expected { Ok(()) } else { Err(GatherError::Length { given, expected }) }
    }

    fn copy(&mut self, at: Option<usize>, address: &Address) -> Result<(u64, Vec<f32>), Error> {
        let at = match at {
            Some(at) => at,
            None => {
                let options = ReaderOptions::default();
                let reader = Reader::connect(self.transports.clone(), address, options, COPY_WITHIN)?;
                self.readers.push((address.clone(), reader));
                self.readers.len() - 1
            }
        };
        let reader = &mut self.readers[at].1;
        let fresh = reader.refresh_to(Version::new(1), COPY_WITHIN)?;
        Ok((fresh.version.get(), floats(reader.bytes()?).collect()))
    }
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.as_chunks().0.iter().map(|value| f32::from_ne_bytes(*value))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex};

    use super::super::super::transports::Transports;
    use super::*;
    use crate::node::{Publisher, PublisherOptions};
    use crate::table::{ElementType, Table};

    #[test]
    fn a_copy_of_another_length_is_left_out_like_one_that_cannot_be_read() {
        let transports = Transports::new(None, None, 0).open();
        let publisher = |elements: u64| {
            let table = Table::flat(elements, ElementType::F32).unwrap();
            let options = PublisherOptions::default();
            let mut publisher =
                Publisher::new(transports.clone(), &Address::random(), table, options).unwrap();
            let values = vec![elements as f32; elements as usize];
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
            publisher.publish(&bytes, COPY_WITHIN).unwrap();
            publisher
        };
        // The long one comes first: by its length all would be judged.
        let mut publishers = [7, 5, 3, 5].map(publisher);
        let addresses = publishers.each_ref().map(Publisher::address).to_vec();
        let readers =
            |addresses| Gather::new(Arc::new(Mutex::new(addresses)), transports.clone(), Parts::Copies, 5);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    publishers.iter_mut().for_each(|publisher| {
                        publisher.poll(crate::node::now());
                    });
                }
            });
            let all = readers(addresses.clone()).collect(COPY_WITHIN, true);
            let none = readers(addresses[..1].to_vec()).collect(COPY_WITHIN, true);
            over.store(true, Ordering::Relaxed);
            assert_eq!(all.unwrap().parameters, [5.0; 5]);
            let none = none.unwrap_err().to_string();
            assert!(none.ends_with("copy 0: 7 parameters where the model has 5"), "{none}");
        });
    }
}
