//! The HTTP front, as its clients see it.

mod authors;
mod console;
mod native;
mod speed;
mod streams;
