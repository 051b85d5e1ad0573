//! Nodes in a cluster: how they join and leave, when they are declared dead, which outages they
//! survive, and how one team works over several of them.

mod acknowledged;
mod crowd;
mod death;
mod draining;
mod ending;
mod field;
mod interference;
mod membership;
mod outages;
mod placing;
mod refusals;
pub mod scene;
mod stopped_process;
mod unwatched;
mod verbs;
mod working;
