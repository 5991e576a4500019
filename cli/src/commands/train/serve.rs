//! A server process.

use std::io::{self, BufReader, Read};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use slackline::node::{Server, ServerOptions, ShardOptions};
use slackline::transport::Address;
use slackline::transport::shm::Shm;

use super::child::{self, Trouble};
use super::messages::{Message, ServeConfig, Status, receive, send};

/// How often a server tells how it is getting on.
const STATUS_EVERY: Duration = Duration::from_millis(100);

/// Serves one shard until stdin ends.
pub(crate) fn serve() -> ExitCode {
    child::run(|| {
        let mut input = BufReader::new(io::stdin());
        let config: ServeConfig = receive(&mut input)?.ok_or("no configuration came")?;
        let values = initial(&config, &mut input)?;
        let address: Address = config.address.parse()?;
        let options = ServerOptions {
            optimizer: config.optimizer,
            threads: config.threads,
            shard: config.shard,
            memory: ShardOptions { peers: config.peers, ..ShardOptions::default() },
            ..ServerOptions::new(config.scheme, config.workers, config.learning_rate)
        };
        let mut server = Server::new(Shm::new(), &address, config.table, &values, options)?;
        drop(values);
        send(io::stdout(), &Message::Listening)?;

        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        child::at_end_of(input, move || stopped.store(true, Ordering::Relaxed))?;
        while !stop.load(Ordering::Relaxed) {
            let left = server.status().left;
            let news = |server: &Server<Shm>| stop.load(Ordering::Relaxed) || server.status().left != left;
            server.drive(news, STATUS_EVERY)?;
            let status = server.status();
            send(io::stdout(), &Message::Status(Status { version: status.version.0, left: status.left }))?;
        }
        Ok(())
    })
}

/// The values of this shard, which follow the configuration.
fn initial(config: &ServeConfig, input: &mut impl Read) -> Result<Vec<f32>, Trouble> {
    let (shard, shards) = config.shard;
    let range = config.table.shards(usize::from(shards))?[usize::from(shard)].clone();
    let mut values: Vec<f32> = Vec::new();
    let count = (range.end - range.start) as usize / 4;
    values.try_reserve_exact(count)?;
    let mut piece = [0; 1 << 16];
    while values.len() < count {
        let bytes = &mut piece[..(4 * (count - values.len())).min(1 << 16)];
        input.read_exact(bytes)?;
        values.extend(bytes.as_chunks().0.iter().map(|value| f32::from_le_bytes(*value)));
    }
    Ok(values)
}
