//! Access to the machine on which a Planck process runs. The crate opens files that other users may
//! have created, checks whether folders are writable, reads the environment, and cleans text for a
//! terminal.

#![forbid(unsafe_code)]

pub mod environment;
pub mod folder_trial;
pub mod regular_file;
pub mod terminal;
pub mod whole_file;
