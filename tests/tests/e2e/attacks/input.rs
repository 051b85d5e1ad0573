//! Harmful input: text that a terminal would interpret, endless answers, addresses that an attacker
//! chooses, arguments that are options, and more bytes than a node can hold.

mod addresses;
mod answers;
mod floods;
mod hostile;
mod options;
mod terminal;
