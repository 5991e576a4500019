//! The structs that cross the boundary, and their counterparts on this side.

mod job;
mod publisher;
mod reader;
mod server;
mod tensor;
mod texts;
mod values;
mod worker;

pub use job::slackline_job_options;
pub use publisher::slackline_publisher_options;
pub use reader::slackline_reader_options;
pub use server::slackline_server_options;
pub use tensor::slackline_tensor;
pub(crate) use tensor::{aligned_table, table};
pub(crate) use texts::{address, listen_address, path, schedule, scheme, secret, table_name};
pub(crate) use values::{DAMPINGS, ELEMENTS, milliseconds, named, version_number};
pub use values::{
    SLACKLINE_NO_VERSION, slackline_damping, slackline_element, slackline_idle, slackline_non_finite,
    slackline_optimizer, slackline_read, slackline_resume,
};
pub use worker::slackline_worker_options;
