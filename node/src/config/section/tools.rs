//! The section `[tools]`.

use std::path::PathBuf;

use crate::config::setting::{Network, Period, Sandbox, Size, Unsandboxed};

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
