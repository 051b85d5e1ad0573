//! The examples, each run as its README says.
