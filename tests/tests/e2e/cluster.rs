//! Nodes that are a cluster: who is there, who is given up, what none of them dies of, and one team
//! over several of them.

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
