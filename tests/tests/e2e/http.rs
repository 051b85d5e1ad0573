//! The HTTP front, as its clients see it.

mod authors;
mod clients;
mod console;
mod mcp;
mod native;
mod outcomes;
mod react;
mod snippets;
mod speed;
mod streams;
mod teams;
