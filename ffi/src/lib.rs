//! The C interface of slackline.
