//! One team over several node processes that share a NATS and a store.

mod crowd;
mod ending;
mod field;
mod placing;
mod verbs;
mod working;
