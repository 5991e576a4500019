//! The claims of the launchers, and the choice of the one to believe.

use super::slurm::tasks_of_node;
use super::{LaunchError, LaunchFlags, Source};

/// Steps from here on are no `srun`: Slurm's numbers for the shells of batch scripts, `salloc` and the like.
const SPECIAL_STEPS: u32 = 0xffff_fff0;

/// The claim of one launcher: the rank of the process and the size of the job, as its variables say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) rank: u32,
    pub(super) world: u32,
    pub(super) local_rank: Option<u32>,
    pub(super) local_world: Option<u32>,
    pub(super) source: Source,
}

/// A number, and where it was said.
#[derive(Clone, Copy, Debug)]
struct StatedNumber {
    name: &'static str,
    value: u32,
}

impl std::fmt::Display for StatedNumber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A flag reads as it was written.
        let sign = if self.name.starts_with("--") { ' ' } else { '=' };
        write!(f, "{}{sign}{}", self.name, self.value)
    }
}

/// The names of the variables that a launcher sets.
struct Names {
    source: Source,
    rank: &'static str,
    world: &'static [&'static str],
    local_rank: &'static str,
    local_world: Option<&'static str>,
}

/// The launchers, in the order in which they are asked where several agree.
const LAUNCHERS: [Names; 4] = [
    Names {
        source: Source::Torchrun,
        rank: "RANK",
        world: &["WORLD_SIZE"],
        local_rank: "LOCAL_RANK",
        local_world: Some("LOCAL_WORLD_SIZE"),
    },
    Names {
        source: Source::Slurm,
        rank: "SLURM_PROCID",
        // Inside a step that was started by another launcher, the second is still the job's.
        world: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
        local_rank: "SLURM_LOCALID",
        local_world: None,
    },
    Names {
        source: Source::OpenMpi,
        rank: "OMPI_COMM_WORLD_RANK",
        world: &["OMPI_COMM_WORLD_SIZE"],
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        local_world: Some("OMPI_COMM_WORLD_LOCAL_SIZE"),
    },
    Names {
        source: Source::Pmi,
        rank: "PMI_RANK",
        world: &["PMI_SIZE"],
        local_rank: "MPI_LOCALRANKID",
        local_world: Some("MPI_LOCALNRANKS"),
    },
];

/// A number that a variable holds.
pub(super) fn number(
    name: &'static str,
    env: &impl Fn(&str) -> Option<String>,
) -> Result<Option<u32>, LaunchError> {
    let parse = |value: String| value.parse().map_err(|_| LaunchError::Number { name, value });
    env(name).map(parse).transpose()
}

fn said(
    name: &'static str,
    env: &impl Fn(&str) -> Option<String>,
) -> Result<Option<StatedNumber>, LaunchError> {
    Ok(number(name, env)?.map(|value| StatedNumber { name, value }))
}

/// Believes one of the launchers that say something, or explains why none can be believed.
pub(super) fn settle(
    flags: &LaunchFlags,
    env: &impl Fn(&str) -> Option<String>,
) -> Result<Option<Claim>, LaunchError> {
    let told = Told::read(flags, env)?;
    let mut claims = Vec::with_capacity(LAUNCHERS.len() + 1);
    for names in &LAUNCHERS {
        claims.extend(launcher(names, env)?);
    }
    if let Some(claim) = pmix(&claims, told.world, env)? {
        claims.push(claim);
    }
    claims.extend(super::dmlc::claim(env)?);
    match believe(&claims)? {
        Some(claim) => told.beside(claim, env),
        None => told.alone(env),
    }
}

/// Reads the claim of one launcher, if it is there.
fn launcher(names: &Names, env: &impl Fn(&str) -> Option<String>) -> Result<Option<Claim>, LaunchError> {
    let source = names.source;
    let step = number("SLURM_STEP_ID", env)?;
    if source == Source::Slurm && step.is_none_or(|step| step >= SPECIAL_STEPS) {
        return Ok(None);
    }
    let rank = said(names.rank, env)?;
    let mut world = None;
    for name in names.world {
        world = world.or(said(name, env)?);
    }
    let (rank, world) = match (rank, world) {
        (Some(rank), Some(world)) => check(rank, world)?,
        (None, None) => return Ok(None),
        (Some(rank), None) => {
            return Err(LaunchError::Partial { present: rank.to_string(), missing: names.world[0] });
        }
        // Slurm sets the sizes of the whole job, too.
        (None, Some(_)) if source == Source::Slurm => return Ok(None),
        (None, Some(world)) => {
            return Err(LaunchError::Partial { present: world.to_string(), missing: names.rank });
        }
    };
    let local_rank = number(names.local_rank, env)?;
    let local_world = match names.local_world {
        Some(name) => number(name, env)?,
        None => slurm_local_world(world, env),
    };
    Ok(Some(Claim { rank, world, local_rank, local_world, source }))
}

fn slurm_local_world(world: u32, env: &impl Fn(&str) -> Option<String>) -> Option<u32> {
    if env("SLURM_STEP_NUM_NODES").is_some_and(|nodes| nodes == "1") {
        return Some(world);
    }
    let node = env("SLURM_NODEID").map_or(Some(0), |node| node.parse().ok())?;
    tasks_of_node(&env("SLURM_STEP_TASKS_PER_NODE")?, node)
}

/// Reads the claim of PMIx, where it does not merely repeat Open MPI or Slurm; PMIx lacks the size.
fn pmix(
    claims: &[Claim],
    told: Option<StatedNumber>,
    env: &impl Fn(&str) -> Option<String>,
) -> Result<Option<Claim>, LaunchError> {
    let Some(rank) = said("PMIX_RANK", env)? else { return Ok(None) };
    let is_repeated = |claim: &Claim| {
        claim.source == Source::OpenMpi || (claim.source == Source::Slurm && claim.rank == rank.value)
    };
    if claims.iter().any(is_repeated) {
        return Ok(None);
    }
    let in_step = claims.iter().any(|claim| claim.source == Source::Slurm);
    let world = match told {
        Some(world) => world,
        // Of the step, not of a job that was started within it.
        None if in_step => return Err(LaunchError::NoSize { rank: rank.value }),
        None => said("SLURM_NTASKS", env)?.ok_or(LaunchError::NoSize { rank: rank.value })?,
    };
    let (rank, world) = check(rank, world)?;
    Ok(Some(Claim { rank, world, local_rank: None, local_world: None, source: Source::Pmix }))
}

/// The innermost launcher's claim.
fn believe(claims: &[Claim]) -> Result<Option<Claim>, LaunchError> {
    let rank_and_world = |claim: &Claim| (claim.rank, claim.world);
    // A launcher that started one process says nothing about the ranks of a job that was started from it.
    let is_shell = |claim: &Claim| claim.world == 1 && claims.iter().any(|other| other.world > 1);
    let mut claims = claims.iter().filter(|claim| !is_shell(claim));
    let slurm = claims.clone().find(|claim| claim.source == Source::Slurm);
    let Some(inner) = claims.find(|claim| claim.source != Source::Slurm) else { return Ok(slurm.copied()) };
    let contradicts = |claim: &&Claim| rank_and_world(claim) != rank_and_world(inner);
    if let Some(other) = claims.find(|claim| claim.source != Source::Slurm && contradicts(claim)) {
        return Err(LaunchError::TwoLaunchers {
            one: inner.source,
            other: other.source,
            ranks: [rank_and_world(inner), rank_and_world(other)],
        });
    }
    let Some(slurm) = slurm else { return Ok(Some(*inner)) };
    // Slurm itself speaks PMI to its steps (srun --mpi=pmi2). Hydra would say which processes are on this host.
    let agree = rank_and_world(inner) == rank_and_world(slurm);
    if inner.source == Source::Pmi && agree && inner.local_world.is_none() {
        return Ok(Some(*slurm));
    }
    if !agree {
        tracing::info!(
            "{} says rank {} of {}, within a step of Slurm that says rank {} of {}: the inner launcher wins",
            inner.source,
            inner.rank,
            inner.world,
            slurm.rank,
            slurm.world
        );
    }
    Ok(Some(*inner))
}

/// The rank that flags tell, or the variables that stand for them.
struct Told {
    rank: Option<StatedNumber>,
    world: Option<StatedNumber>,
    local_rank: Option<StatedNumber>,
}

impl Told {
    fn read(flags: &LaunchFlags, env: &impl Fn(&str) -> Option<String>) -> Result<Told, LaunchError> {
        let told = |flag: Option<u32>, name, variable| match flag {
            Some(value) => Ok(Some(StatedNumber { name, value })),
            None => said(variable, env),
        };
        let told = Told {
            rank: told(flags.rank, "--rank", "SLACKLINE_RANK")?,
            world: told(flags.world_size, "--world-size", "SLACKLINE_WORLD_SIZE")?,
            local_rank: told(flags.local_rank, "--local-rank", "SLACKLINE_LOCAL_RANK")?,
        };
        if let (Some(rank), Some(world)) = (told.rank, told.world) {
            check(rank, world)?;
        }
        Ok(told)
    }

    /// Without a launcher.
    fn alone(&self, env: &impl Fn(&str) -> Option<String>) -> Result<Option<Claim>, LaunchError> {
        // An indexed Job of Kubernetes numbers its pods and does not say how many there are. Other launchers may run
        // within its pods, so its number counts only beside a size that is told.
        let index =
            said("JOB_COMPLETION_INDEX", env)?.filter(|_| self.rank.is_none() && self.world.is_some());
        let source = if index.is_some() { Source::Kubernetes } else { Source::Flags };
        let (rank, world) = match (self.rank.or(index), self.world) {
            (Some(rank), Some(world)) => check(rank, world)?,
            (None, None) => return Ok(None),
            (Some(rank), None) => {
                let missing = "--world-size (SLACKLINE_WORLD_SIZE)";
                return Err(LaunchError::Partial { present: rank.to_string(), missing });
            }
            (None, Some(world)) => {
                let missing = "--rank (SLACKLINE_RANK)";
                return Err(LaunchError::Partial { present: world.to_string(), missing });
            }
        };
        let local_rank = self.local_rank.map(|local_rank| local_rank.value);
        Ok(Some(Claim { rank, world, local_rank, local_world: None, source }))
    }

    /// The claim of a process that has flags or variables of its own beside those of a launcher.
    fn beside(
        &self,
        claim: Claim,
        env: &impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Claim>, LaunchError> {
        // Enough is told for a job that was started by hand from, say, `srun --pty bash`.
        if claim.world == 1 && self.rank.is_some() && self.world.is_some() {
            return self.alone(env);
        }
        let names = LAUNCHERS.iter().find(|names| names.source == claim.source);
        // PMIx has no size of its own, and ps-lite counts each role apart.
        let (rank, size) = match claim.source {
            Source::Dmlc => ("the rank of DMLC_ROLE", "DMLC_NUM_SERVER + DMLC_NUM_WORKER"),
            _ => ("PMIX_RANK", "SLURM_NTASKS"),
        };
        let name = |pick: fn(&Names) -> &'static str| names.map_or(rank, pick);
        let world = |names: &Names| {
            let name = names.world.iter().find(|name| env(name).is_some());
            name.copied().unwrap_or(names.world[0])
        };
        let launched = [
            (self.rank, Some(claim.rank), name(|names| names.rank)),
            (self.world, Some(claim.world), names.map_or(size, world)),
            (self.local_rank, claim.local_rank, name(|names| names.local_rank)),
        ];
        for (told, value, name) in launched {
            let (Some(told), Some(value)) = (told, value) else { continue };
            if told.value != value {
                return Err(LaunchError::Contradiction {
                    told: told.to_string(),
                    launched: StatedNumber { name, value }.to_string(),
                    launcher: claim.source,
                });
            }
        }
        let local_rank = claim.local_rank.or(self.local_rank.map(|local_rank| local_rank.value));
        Ok(Some(Claim { local_rank, ..claim }))
    }
}

fn check(rank: StatedNumber, world: StatedNumber) -> Result<(u32, u32), LaunchError> {
    if world.value == 0 {
        return Err(LaunchError::Empty { world: world.to_string() });
    }
    if rank.value >= world.value {
        return Err(LaunchError::Rank { rank: rank.to_string(), world: world.to_string() });
    }
    Ok((rank.value, world.value))
}
