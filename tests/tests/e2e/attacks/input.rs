//! Harmful input: text that a terminal would interpret, endless answers, addresses that an attacker
//! chooses, arguments that are options, and more bytes than a node can hold or parse.

mod addresses;
mod answers;
mod bodies;
mod floods;
mod hostile;
mod options;
mod terminal;
