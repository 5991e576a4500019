//! The part that this process of `slackline train` has: it starts all others, coordinates those that a launcher
//! started, or is one of them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Instant;

use slackline::RendezvousEndpoint;
use slackline::internals::job::env;
use slackline::internals::job::{MemberRole, listen_address};

use super::args::TrainArgs;
use super::job::{Job, Starts};
use super::part::Part;
use super::values;
use crate::failure::Failure;

/// The part that a process has in a job.
pub(super) enum ProcessPart {
    Coordinate(Job),
    Take(Part),
}

/// Finds out which part this process has.
pub(super) fn part(args: &TrainArgs) -> Result<ProcessPart, Failure> {
    let told =
        args.job.rank.flags().rendezvous(env::environment()).map_err(|error| Failure::refused(&error))?;
    if args.coordinate {
        // Ranks do not matter: the process that was told to coordinate does.
        let placed = || {
            env::placement(&args.job.rank.flags(), env::environment())
                .map_err(|error| Failure::refused(&error))
        };
        let rendezvous = match told {
            Some(told) => Some(told),
            None => placed()?.and_then(|placement| placement.rendezvous),
        };
        let rendezvous = rendezvous.ok_or_else(|| {
            Failure::usage("--coordinate needs a rendezvous")
                .help("add --rendezvous HOST:PORT, an address of this host")
        })?;
        return coordinate(args, &rendezvous, Starts::None, false);
    }
    let placement = env::placement(&args.job.rank.flags(), env::environment())
        .map_err(|error| Failure::refused(&error))?;
    let has_rank = placement.is_some();
    // A job of one rank is none.
    let Some(placement) = placement.filter(|placement| placement.world > 1) else {
        if told.is_some() && !has_rank {
            let what = "--rendezvous: without a rank nothing says which part this process has";
            let help =
                "add --rank and --world-size, or --coordinate to be met by `slackline serve` and `work`";
            return Err(Failure::usage(what).help(help));
        }
        // No other process needs to know where these processes meet.
        let secret = args.job.secret.own()?;
        let listen = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
        return Ok(ProcessPart::Coordinate(Job { listen, secret, starts: Starts::All }));
    };
    let (rank, world, servers) = (placement.rank, placement.world, args.servers()? as u64);
    let is_one_host = placement.is_one_host();
    let rendezvous = placement.rendezvous.ok_or_else(|| {
        Failure::usage("nothing says where to meet")
            .help("add --rendezvous HOST:PORT, the same for all ranks")
    })?;
    if let Some(launched) = placement.servers.filter(|launched| u64::from(*launched) != servers) {
        return Err(Failure::usage(format!(
            "--servers {servers} contradicts {}, which started {launched}",
            placement.source
        ))
        .help(format!("use --servers {launched}")));
    }
    let workers = u64::from(world).checked_sub(servers).filter(|workers| *workers > 0).ok_or_else(|| {
        Failure::usage(format!(
            "{} says that the world size is {world}, and --servers {servers} leaves no worker",
            placement.source
        ))
        .help(format!("start at least {}", servers + 1))
    })?;
    tracing::info!(rank, world, source = %placement.source, %rendezvous, "placed by a launcher");
    if rank == 0 {
        // A launcher that does not say how many ranks are on this host has no more than all of them there.
        let local_world = placement.local_world.unwrap_or(world);
        let starts = Starts::First { workers: workers as usize, local_world };
        return coordinate(args, &rendezvous, starts, is_one_host);
    }
    let (role, role_rank) = match u64::from(rank) < servers {
        true => (MemberRole::Server, rank),
        false => (MemberRole::Worker, rank - servers as u32),
    };
    Ok(ProcessPart::Take(Part {
        role,
        role_rank: Some(role_rank),
        address: rendezvous.to_string(),
        rank: Some(rank),
        local_rank: placement.local_rank,
        metrics: args.metrics.address(placement.local_rank)?,
        timeout: values::timeout(args.timeout)?,
        quiet: false,
    }))
}

fn coordinate(
    args: &TrainArgs,
    rendezvous: &RendezvousEndpoint,
    starts: Starts,
    is_one_host: bool,
) -> Result<ProcessPart, Failure> {
    let deadline = Instant::now() + values::timeout(args.timeout)?;
    let listen = listen_address(&rendezvous.to_string(), deadline, is_one_host);
    let listen = listen.map_err(|error| Failure::refused(&error).at("cannot be met"))?;
    Ok(ProcessPart::Coordinate(Job { listen, secret: args.job.secret.secret()?, starts }))
}
