//! NATS clients with few rights, and forged messages.

mod deputies;
mod described;
mod exposed;
mod forged;
mod gate;
mod records;
mod rights;
mod roles;
