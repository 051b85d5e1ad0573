//! The sections about a node and what it connects to: the node itself, its NATS, store and cluster,
//! its tools and sidecars, the HTTP front and the telemetry.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use planck_cluster::ClusterTimes;

use crate::config::{
    ProjectPlace, Secret,
    setting::{
        ConfiguredUrl, HeaderText, KeyChoice, Listen, LogFormat, NamedSettings, Network, Period,
        Sandbox, ServerSandbox, ServerScope, ServerVariable, Size, StoreKind, Synchronous,
        Unsandboxed,
    },
};

section! {
    /// The name of this node, and how much it takes on.
    Node {
        /// The name for people. Unset: the name of the host.
        name: Option<String> = None;
        /// Properties of the node, which a team's member may require.
        labels: NamedSettings<String> = NamedSettings::default();
        /// The maximum number of agents that the node hosts.
        capacity: u32 = 1_000;
        /// The number of threads that agents run on. Unset: one for each core.
        threads: Option<u32> = None;
        /// How long an agent must be idle before it leaves memory. The next message for it loads it
        /// again.
        park_after: Period = Period::seconds(5);
        /// Whether a session over NATS may work in any directory of this machine, named by an
        /// absolute path, rather than only in the workspaces. Unset: only if NATS is on this
        /// machine.
        absolute_dirs: Option<bool> = None;
        /// The folder for the node's own files.
        data_dir: PathBuf = "~/.planck".into();
        /// How long a drain waits for running turns before it hands them over unfinished.
        drain_timeout: Period = Period::seconds(120);
    }
}

section! {
    /// The connection to NATS.
    Nats {
        /// Servers, separated by commas. Unset: `run` and `chat` work in one process, without a
        /// cluster.
        url: Option<ConfiguredUrl> = None;
        /// A credentials file.
        creds: Option<PathBuf> = None;
        /// A seed. `NATS_NKEY` may also be the path of a file with the seed, as for the `nats`
        /// command line.
        nkey: Option<Secret> = None;
        /// Certificate authorities that are trusted in addition to the system's.
        tls_ca: Option<PathBuf> = None;
        /// The client's certificate.
        tls_cert: Option<PathBuf> = None;
        /// The client's key.
        tls_key: Option<PathBuf> = None;
        /// Words before every subject, so that two clusters in one account stay separate.
        subject_prefix: String = String::new();
        /// The beginning of the subjects of replies. Give each user another one if users must not
        /// read each other's replies.
        inbox_prefix: String = "_INBOX".into();
        /// Further subjects to which replies may be sent: the `inbox_prefix` of other users.
        /// Subjects that begin with `_INBOX` are always allowed.
        reply_prefixes: Vec<String> = Vec::new();
        /// Copies of the registry: 1 on a single server, 3 in a cluster.
        replicas: u32 = 1;
        /// How long the first connection may take.
        connect_timeout: Period = Period::seconds(5);
        /// How long a request may take.
        request_timeout: Period = Period::seconds(10);
    }
}

impl Nats {
    /// Returns whether every configured server has a loopback address. Also returns `true` if no
    /// server is configured.
    pub fn is_on_this_machine(&self) -> bool {
        let urls = self
            .url
            .as_ref()
            .map(|url| url.reveal().to_owned())
            .unwrap_or_default();
        urls.split(',')
            .map(str::trim)
            .filter(|url| !url.is_empty())
            .all(|url| is_this_machine(host(url)))
    }
}

/// Returns the host of a URL such as `scheme://user:password@host:port`. All parts except the host
/// are optional.
fn host(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let rest = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
    match rest.strip_prefix('[') {
        Some(six) => six.split(']').next().unwrap_or(six),
        None => rest.split(':').next().unwrap_or(rest),
    }
}

/// Returns whether a host name or address is the loopback of this machine.
pub fn is_this_machine(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost")
        || host
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

section! {
    /// The store of the sessions.
    Store {
        /// `sqlite:DIR`, a folder of session files for one host, or `postgres://…` for any number
        /// of hosts. By default, each folder that planck is started in has its own place in the
        /// user's data directory.
        url: ConfiguredUrl = ConfiguredUrl::of_project();
        /// What SQLite's commits survive: the death of every process (`normal`), or also the loss
        /// of power (`full`).
        synchronous: Synchronous = Synchronous::Normal;
        /// The maximum number of connections to Postgres, or of open session files of SQLite.
        pool: Option<u32> = None;
        /// How long one statement of Postgres may take.
        statement_timeout: Period = Period::seconds(5);
        /// How long closed sessions are kept after the last write to them. Unset: forever.
        retention: Option<Period> = None;
    }
}

impl Store {
    /// Returns the kind of store that the address names, or `None` if its scheme is not that of a
    /// store.
    pub fn kind(&self) -> Option<StoreKind> {
        match self.url.scheme() {
            "sqlite" => Some(StoreKind::Sqlite),
            "postgres" | "postgresql" => Some(StoreKind::Postgres),
            _ => None,
        }
    }

    /// Returns the folder of session files. Returns `None` if the store does not consist of files,
    /// or if the default place is unknown because neither a data directory nor a home folder is
    /// known.
    pub fn folder(&self) -> Option<PathBuf> {
        if self.url.is_of_project() {
            return Some(self.project()?.folder());
        }
        let rest = self.url.reveal().strip_prefix("sqlite:")?;
        Some(rest.strip_prefix("//").unwrap_or(rest).into())
    }

    /// Returns the address of the store, without passwords.
    pub fn address(&self) -> String {
        self.folder().map_or_else(
            || self.url.to_string(),
            |folder| format!("sqlite:{}", folder.display()),
        )
    }

    /// Returns the default place. Returns `None` if a store is configured, or if the default place
    /// is unknown.
    pub fn project(&self) -> Option<&ProjectPlace> {
        self.url.project()
    }
}

section! {
    /// How nodes detect that another node has failed. All nodes of a cluster must have the same
    /// values.
    Cluster {
        /// How long a node must be silent to become a suspect, between 2500ms and 10s. All other
        /// times of the cluster are multiples of it, such as the time between two heartbeats, which
        /// is a fifth.
        suspicion: Period = Period(ClusterTimes::default().suspicion);
        /// How often records and leases are compared with the agents that run.
        sweep: Period = Period(ClusterTimes::default().sweep);
    }
}

impl Cluster {
    /// Returns the times by which the node judges itself and its peers.
    pub fn times(&self) -> ClusterTimes {
        ClusterTimes::new(self.suspicion.0, self.sweep.0)
    }

    /// Returns each key of this section with its value as text.
    pub fn shown(&self) -> BTreeMap<String, String> {
        let all = [("suspicion", self.suspicion), ("sweep", self.sweep)];
        all.map(|(key, time)| (key.to_owned(), time.to_string()))
            .into()
    }
}

section! {
    /// What tools may access, and how long they may take.
    Tools {
        /// Folders that tools may access in addition to the session's workspace.
        workspace_roots: Vec<PathBuf> = Vec::new();
        /// Folders of external tools, each `<name>/TOOL.json`, searched in order. A trusted
        /// project's own folder is searched too, and a name that is in both is an error.
        dirs: Vec<PathBuf> = vec!["~/.planck/tools".into()];
        /// Whether the kernel confines tool processes: as far as it can, strictly, or not at all.
        sandbox: Sandbox = Sandbox::Auto;
        /// Whether tool processes may open IP sockets. `on` allows every address, including those
        /// of this machine.
        network: Network = Network::Off;
        /// Whether a model can ask to run one command outside of the sandbox, with all rights of
        /// the user. `ask` holds for `run` and `chat` on a terminal without NATS, where a person is
        /// asked about each such command, and no rule answers.
        unsandboxed: Unsandboxed = Unsandboxed::Off;
        /// Files and folders that tool processes may read in addition to the system and their
        /// workspace, such as toolchains in the home folder.
        readable: Vec<PathBuf> = Vec::new();
        /// Toolchains in the home folder that tool processes may use, such as `rustup`, `nvm` or
        /// `uv`: their folders can be read, and their variables are passed. `planck init` writes
        /// those that it finds.
        toolchains: Vec<String> = Vec::new();
        /// The path of the `bwrap` to use instead of the machine's own.
        bubblewrap: Option<PathBuf> = None;
        /// Variables that are passed to tool processes in addition to `PATH`, `HOME`, `LANG` and
        /// `TMPDIR`.
        pass_environment: Vec<String> = Vec::new();
        /// The maximum number of tools that an agent's requests list from the start. If an agent has
        /// more, its model finds those of sidecars, plain subjects and `tools.dirs` with the tool
        /// `tool_search`.
        listed: usize = 40;
        /// The maximum number of calls of one answer that run at once.
        concurrency: u32 = 16;
        /// How long a call may take if its tool sets no limit of its own.
        timeout: Period = Period::seconds(300);
        /// How long a `bash` command may take if the call names no limit.
        bash_timeout: Period = Period::seconds(30);
        /// The maximum number of lines of a result that reach the model.
        max_lines: usize = 2_000;
        /// The maximum number of bytes of a result that reach the model.
        max_bytes: usize = 50_000;
        /// The limits of one call's processes; 0 means no limit.
        limits: ToolLimits = ToolLimits::default();
        /// The number of identical calls in a row from which the model is warned.
        repeat_note: u32 = 3;
        /// The number of identical calls in a row from which the call is not run.
        repeat_refuse: u32 = 10;
    }
}

section! {
    /// The limits of all processes of one call. `docs/sandbox.md` shows which of them the kernel
    /// enforces, and where.
    ToolLimits {
        /// The maximum number of processes at one time. Threads are limited to 16 times as many.
        processes: u64 = 512;
        /// The maximum amount of memory that all processes together use.
        memory: Size = Size::mebibytes(4096);
        /// The largest file that a process may write.
        file_size: Size = Size::mebibytes(2048);
        /// The maximum number of open files of each process.
        open_files: u64 = 4_096;
        /// The space that a call must leave on the disks of its directory and its temporary files.
        /// On a disk with less space, a call may take 64 MiB.
        disk_free: Size = Size::mebibytes(1024);
        /// The size of a private `/tmp` in memory, if the sandbox creates one.
        tmp: Size = Size::mebibytes(1024);
    }
}

section! {
    /// The sidecars that may offer tools and compactors over NATS.
    Sidecars {
        /// Names of the sidecars that may offer tools and compactors. Unset: all of them.
        allow: Option<Vec<String>> = None;
        /// How long a sidecar's tool may be silent.
        tool_timeout: Period = Period::seconds(300);
        /// A plain NATS subject as a tool, by the tool's name.
        tools: NamedSettings<PlainTool> = NamedSettings::default();
    }
}

section! {
    /// A NATS subject that answers requests.
    PlainTool {
        /// The subject that requests are sent to.
        subject: String = String::new();
        /// The description of the tool for the model.
        description: String = String::new();
        /// JSON Schema of the arguments, as text.
        parameters: String = r#"{"type":"object"}"#.into();
        /// The effect of a second run: pure, idempotent or mutating.
        effect: String = "mutating".into();
        /// How long it may be silent. Unset: `sidecars.tool_timeout`.
        timeout: Option<Period> = None;
    }
}

section! {
    /// An MCP server of this node, by the name of the sidecar that it becomes. Its tools are called
    /// `NAME__tool`, and `NAME__*` stands for all of them.
    McpServer {
        /// The program that the node starts, and its arguments. It speaks MCP on its standard input
        /// and output.
        command: Vec<String> = Vec::new();
        /// The address of a server that speaks streamable HTTP, instead of `command`.
        url: Option<ConfiguredUrl> = None;
        /// A header for every request to `url`: text, `env:NAME` or `file:PATH`, which are read again
        /// for each connection.
        headers: NamedSettings<HeaderText> = NamedSettings::default();
        /// The folder in which the program runs, and the only one that it may change in the sandbox.
        dir: PathBuf = ".".into();
        /// Variables that the program gets in addition to `PATH`, `HOME`, `LANG` and `TMPDIR`: `NAME`
        /// passes on one of the node, and `NAME=value` sets one.
        env: Vec<ServerVariable> = Vec::new();
        /// Whether the program is confined: to its folder and without a network (`on`), to its folder
        /// (`network`), or not at all (`off`). It is never confined if `tools.sandbox` is `off`.
        sandbox: ServerSandbox = ServerSandbox::On;
        /// Whether all agents of the node share a process (`node`), or each session has one of its own
        /// (`session`), which starts at its first call. `dir` is then relative to the session's folder.
        per: ServerScope = ServerScope::Node;
        /// How long a session's process stays while no agent of the session works.
        stay: Period = Period::seconds(300);
        /// The tools of the server that agents can have, by the server's names. Unset: all of them.
        allow: Option<Vec<String>> = None;
        /// The tools of the server that agents cannot have.
        deny: Vec<String> = Vec::new();
        /// The effect of a second run of a tool, by the server's name: pure, idempotent or mutating.
        /// Others are mutating.
        effects: NamedSettings<String> = NamedSettings::default();
        /// Whether the server is believed which of its other tools change nothing, or change nothing
        /// when repeated.
        trust_hints: bool = false;
        /// How long a call may be silent. Unset: `sidecars.tool_timeout`.
        timeout: Option<Period> = None;
        /// How long the server may take to answer after it was started.
        start_within: Period = Period::seconds(30);
    }
}

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

section! {
    /// Logs, traces and metrics.
    Telemetry {
        /// The filter of the log, in the syntax of `RUST_LOG`.
        log: String = "info".into();
        /// The format of the log: `auto` is text on a terminal and JSON elsewhere.
        log_format: LogFormat = LogFormat::Auto;
        /// The address to which traces and metrics are sent by OTLP over HTTP. Unset: they are not
        /// sent.
        otlp_endpoint: Option<ConfiguredUrl> = None;
        /// The name of this service in traces and metrics.
        service_name: String = "planck".into();
        /// Whether traces contain instructions, messages, arguments and results of tools. Long ones
        /// are cut.
        content: bool = false;
        /// The address at which `planck node` and `planck serve` serve `/livez`, `/readyz` and
        /// `/metrics` over HTTP, without authentication. Port 0 turns it off.
        listen: Listen = Listen::OFF;
    }
}

impl Telemetry {
    /// Returns the address at which a node listens, or `None` if none is configured or its port is
    /// 0.
    pub fn listener(&self) -> Option<SocketAddr> {
        self.listen.address()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_this_machine_are_recognised() {
        for (urls, expected) in [
            ("nats://127.0.0.1:4222", true),
            ("127.0.0.1", true),
            ("localhost:4222", true),
            ("tls://user:p@localhost:4222", true),
            ("nats://[::1]:4222", true),
            ("nats://127.0.0.1:4222, nats://127.0.0.1:4223", true),
            ("nats://127.0.0.1:4222,nats://10.0.0.1:4222", false),
            ("nats://nats:4222", false),
            ("nats://127.0.0.1@evil.example:4222", false),
            ("nats://localhost.evil.example", false),
            ("nats://evil.example/127.0.0.1", false),
            ("nats://127.0.0.1.evil.example", false),
            ("nats://0.0.0.0:4222", false),
        ] {
            assert_eq!(
                urls.split(',').all(|url| is_this_machine(host(url.trim()))),
                expected,
                "{urls}"
            );
        }
        assert!(Nats::default().is_on_this_machine());
    }
}
