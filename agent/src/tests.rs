mod output;
mod script;
mod world;

mod changes;
mod compacting;
mod cost;
mod ends;
mod properties;
mod resume;
mod scripts;
mod waits;
