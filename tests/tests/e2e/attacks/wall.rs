//! What a tool process reads, writes and connects to inside its sandbox.
