//! Clients of NATS with few rights, and forged messages.
