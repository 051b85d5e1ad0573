//! Nodes that are a cluster: who is there, who is given up, what none of them dies of; and one team over several of them.

mod membership;
mod outages;
mod refusals;
mod scene;

mod crowd;
mod ending;
mod field;
mod placing;
mod verbs;
mod working;
