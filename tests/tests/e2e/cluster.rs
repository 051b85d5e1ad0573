//! Nodes that are a cluster: who is there, who is given up, and what none of them dies of.

mod membership;
mod outages;
mod refusals;
mod scene;
