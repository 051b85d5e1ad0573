mod script;
mod world;

mod compacting;
mod cost;
mod ends;
mod properties;
mod resume;
mod scripts;
mod waits;
