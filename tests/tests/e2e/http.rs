//! The HTTP front, as its clients see it.

mod native;
mod speed;
mod streams;
