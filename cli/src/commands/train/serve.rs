//! A server process.

use std::time::Duration;

use slackline::node::{Server, ServerOptions, ShardOptions};

use super::Trouble;
use super::fabric::{Fabric, fabric, flatten, listen_at};
use super::messages::{Message, Order, ServeConfig, Status};
use super::seat::{End, Seat};

/// How often a server tells how it is getting on.
const STATUS_EVERY: Duration = Duration::from_millis(100);

/// How long a server may wait for one event before it looks whether the job is over.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Serves one shard until the job is over.
pub(super) fn serve(seat: &Seat, timeout: Duration) -> Result<(), Trouble> {
    let Order::Serve(config) = seat.order(timeout)? else {
        return Err("the coordinator takes this server for a worker".into());
    };
    let mut server = start(seat, *config, timeout)?;
    seat.announce(flatten(server.address()));
    loop {
        let before = server.status();
        let mut waited = Duration::ZERO;
        while waited < STATUS_EVERY && seat.end().is_none() {
            if server.drive(|server: &Server<Fabric>| server.status().left != before.left, LOOK_EVERY)? {
                break;
            }
            waited += LOOK_EVERY;
        }
        let status = server.status();
        seat.say(Message::Status(Status {
            version: status.version.0,
            left: status.left,
            ..Status::default()
        }));
        match seat.end() {
            None => {}
            Some(End::Dismissed) => return Ok(()),
            Some(End::Lost(why)) => return Err(why.into()),
        }
    }
}

fn start(seat: &Seat, config: ServeConfig, timeout: Duration) -> Result<Server<Fabric>, Trouble> {
    let (shard, shards) = config.shard;
    let ranges = config.table.shards(usize::from(shards))?;
    let range = ranges.get(usize::from(shard)).ok_or("the coordinator names a shard that is not there")?;
    let values = seat.values((range.end - range.start) as usize / 4, timeout)?;
    let options = ServerOptions {
        optimizer: config.optimizer,
        threads: config.threads,
        shard: config.shard,
        memory: ShardOptions { peers: config.peers, ..ShardOptions::default() },
        ..ServerOptions::new(config.scheme, config.workers, config.learning_rate)
    };
    let address = listen_at(&config.listen, seat.ip);
    Ok(Server::new(fabric(seat.secret.as_ref()), &address, config.table, &values, options)?)
}
