//! The HTTP front, as its clients see it.

mod console;
mod native;
mod speed;
mod streams;
