//! The section `[http]`.

use crate::config::setting::{KeyChoice, Listen};

section! {
    /// The HTTP front, which `planck serve` starts.
    Http {
        /// The address at which the front listens. Beyond this machine it needs `http.keys`.
        listen: Listen = Listen::local(8400);
        /// The keys of the callers, each with a name, a hash and a role: `observe`, `use` or
        /// `operate`. `planck serve key NAME` makes one. Unset: the front makes one key, which `planck
        /// serve key` prints. `none`: every program on this machine may do everything.
        keys: KeyChoice = KeyChoice::default();
        /// The names under which clients may address the front, besides `localhost` and IP
        /// addresses. Empty: with a list of keys any name, otherwise no other. Also the names of
        /// `telemetry.listen`, which serves every name without a dot as well.
        allowed_hosts: Vec<String> = Vec::new();
        /// The origins, such as `http://localhost:3000`, whose pages may use the front.
        allowed_origins: Vec<String> = Vec::new();
        /// The maximum number of concurrent connections, at most half of the files that the process
        /// may open.
        connections: u32 = 4_096;
    }
}
