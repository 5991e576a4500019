//! The options that say which secret the processes of a job share, and what it protects.

use std::path::PathBuf;

use slackline::Secret;

use crate::failure::Failure;

/// The secret of a job, and whether it encrypts data.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct SecretArgs {
    /// File with the job's shared secret (mode 600); needed beyond this host
    /// [default: the file that SLACKLINE_SECRET_FILE names, or SLACKLINE_SECRET itself]
    #[arg(long, help_heading = "Job", value_name = "FILE")]
    secret_file: Option<PathBuf>,

    /// Encrypt gradients and parameters over TCP, too; the same for all processes [default: SLACKLINE_TCP_ENCRYPT]
    ///
    /// RDMA cannot, and is not used. Shared memory never leaves its host, and stays as it is.
    #[arg(long, help_heading = "Job")]
    encrypt: bool,
}

impl SecretArgs {
    /// Returns the secret of the job, if there is one.
    pub(crate) fn secret(&self) -> Result<Option<Secret>, Failure> {
        let secret = match &self.secret_file {
            Some(file) => Secret::from_file(file).map(Some),
            None => Secret::from_environment(),
        };
        secret
            .and_then(|secret| Secret::demanding(secret, self.encrypt))
            .map_err(|error| Failure::refused(&error))
    }

    /// Returns the secret of a job whose processes are all started by this one: no other process needs to know it,
    /// unless a file was given.
    pub(crate) fn own(&self) -> Result<Option<Secret>, Failure> {
        match self.secret_file {
            Some(_) => self.secret(),
            None => random(self.encrypt),
        }
    }
}

/// Makes a secret, which encrypts data if that is demanded.
pub(crate) fn random(encrypts: bool) -> Result<Option<Secret>, Failure> {
    let secret = Secret::random().map_err(|error| Failure::of(&error))?;
    Secret::demanding(Some(secret), encrypts).map_err(|error| Failure::refused(&error))
}
