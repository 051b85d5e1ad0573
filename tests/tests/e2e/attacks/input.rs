//! Input that hurts: what a terminal would obey, answers without end, addresses of somebody else's
//! choice, arguments that are options, and more bytes than a node can hold.

mod addresses;
mod answers;
mod floods;
mod hostile;
mod options;
mod terminal;
