//! What a Planck process sees of its machine: regular files and folders that others may have made,
//! the variables of its environment, and the terminal.

#![forbid(unsafe_code)]

pub mod environment;
pub mod folder_trial;
pub mod regular_file;
pub mod terminal;
