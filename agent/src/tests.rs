mod output;
mod script;
mod world;

mod changes;
mod checks;
mod compacting;
mod cost;
mod ends;
mod properties;
mod questions;
mod resume;
mod scripts;
mod searching;
mod waits;
