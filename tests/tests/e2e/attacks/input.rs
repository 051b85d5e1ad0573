//! Input that hurts: what a terminal would obey.

mod terminal;
