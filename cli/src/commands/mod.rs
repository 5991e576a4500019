//! One module per subcommand, each with a `run` that takes its arguments and answers with an exit code.

pub(crate) mod bench;
pub(crate) mod check;
pub(crate) mod completions;
pub(crate) mod doctor;
pub(crate) mod launch;
pub(crate) mod man;
pub(crate) mod schemes;
pub(crate) mod sim;
pub(crate) mod top;
pub(crate) mod train;
