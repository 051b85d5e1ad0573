//! Nodes in a cluster: which nodes are members, which are declared dead, what they survive, and one
//! team over several of them.

mod chaos;
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
mod scene;
mod verbs;
mod working;
