//! The error of `slackline bench`, and what it tells a user to do.

use std::borrow::Cow;

use slackline::Diagnostic;

use crate::failure::Failure;

/// A measurement was called wrongly, or failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum BenchError {
    #[error("{what}: {help}")]
    Usage { what: String, help: &'static str },
    #[error(transparent)]
    Secret(#[from] slackline::SecretError),
    #[error(transparent)]
    Node(#[from] slackline::Error),
    #[error(transparent)]
    Open(#[from] slackline::OpenError),
    #[error(transparent)]
    Gpu(#[from] slackline::gpu::GpuError),
    /// A variable of RDMA that is not usable, and the remedy.
    #[error(transparent)]
    Setting(#[from] slackline::internals::job::transports::SettingError),
    #[error("the atomics of this RDMA device do not work; there is nothing to measure")]
    NoAtomics,
    #[error("validation failed: {0}")]
    Invalid(String),
    #[error(transparent)]
    Register(#[from] slackline::internals::transport::RegisterError),
    #[error(transparent)]
    Connect(#[from] slackline::ConnectError),
    #[error(transparent)]
    Post(#[from] slackline::internals::transport::PostError),
    #[error("the target is gone: {0}; it says why itself")]
    Disconnected(#[from] slackline::internals::transport::Disconnected),
    #[error("a request failed: {0}")]
    Completion(#[from] slackline::internals::transport::CompletionError),
    #[error(transparent)]
    Memory(#[from] slackline::internals::mem::MemoryError),
    #[error(transparent)]
    Range(#[from] slackline::internals::mem::OutOfBounds),
    #[error(transparent)]
    Table(#[from] slackline::TableError),
    #[error(transparent)]
    Fold(#[from] slackline::internals::kernel::FoldError),
    #[error("cannot {operation}: {source}{}", self.remedy().map_or(String::new(), |remedy| format!("; {remedy}")))]
    System { operation: Cow<'static, str>, source: std::io::Error, help: Option<&'static str> },
    #[error("the other process failed: {0}")]
    Peer(String),
    /// The same in the words of that process, on another host.
    #[error("the other process failed: {0}")]
    Remote(String),
    #[error("{_0}; {}", self.remedy().unwrap_or_default())]
    Unreachable(String),
}

impl Diagnostic for BenchError {
    fn operation(&self) -> &'static str {
        "measuring"
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        match self {
            BenchError::Usage { help, .. } => Some((*help).into()),
            BenchError::System { help, .. } => help.map(Cow::from),
            BenchError::Secret(error) => error.remedy(),
            BenchError::Node(error) => error.remedy(),
            BenchError::Open(error) => error.remedy(),
            BenchError::Gpu(error) => error.remedy(),
            BenchError::Setting(error) => error.remedy(),
            BenchError::Register(error) => error.remedy(),
            BenchError::Connect(error) => error.remedy(),
            BenchError::Memory(error) => error.remedy(),
            BenchError::Table(error) => error.remedy(),
            BenchError::NoAtomics => Some("there is nothing to measure".into()),
            BenchError::Unreachable(_) => {
                Some("start `slackline bench --transport ... --listen` there first".into())
            }
            BenchError::Disconnected(_) => Some("it says why itself".into()),
            _ => None,
        }
    }
}

impl BenchError {
    pub(super) fn usage(what: impl Into<String>, help: &'static str) -> BenchError {
        BenchError::Usage { what: what.into(), help }
    }

    pub(super) fn system(operation: &'static str) -> impl FnOnce(std::io::Error) -> BenchError {
        move |source| BenchError::System { operation: operation.into(), source, help: None }
    }

    /// The same where there is something that a user can do about it.
    pub(super) fn system_with(
        operation: String,
        help: &'static str,
    ) -> impl FnOnce(std::io::Error) -> BenchError {
        move |source| BenchError::System { operation: operation.into(), source, help: Some(help) }
    }
}

impl From<BenchError> for Failure {
    fn from(error: BenchError) -> Failure {
        match error {
            BenchError::Usage { .. } | BenchError::Secret(_) | BenchError::Setting(_) => {
                Failure::refused(&error)
            }
            error => Failure::of(&error),
        }
    }
}
