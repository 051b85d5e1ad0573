//! `[tools]`

use std::path::PathBuf;

use crate::config::setting::{Network, Period, Sandbox, Size};

section! {
    /// What tools may touch, and how long they may take.
    Tools {
        /// Folders tools may touch beside the session's workspace.
        workspace_roots: Vec<PathBuf> = Vec::new();
        /// Folders of external tools, each `<name>/TOOL.json`, searched in order. A trusted
        /// project's own folder is searched too, and a name that both have is an error.
        dirs: Vec<PathBuf> = vec!["~/.planck/tools".into()];
        /// Whether the kernel confines tool processes: as far as it can, strictly, or not at all.
        sandbox: Sandbox = Sandbox::Auto;
        /// Whether tool processes may open IP sockets. `on` reaches every address, those of this
        /// machine included.
        network: Network = Network::Off;
        /// Files and folders that tool processes may read besides the system and their workspace,
        /// such as toolchains in the home.
        readable: Vec<PathBuf> = Vec::new();
        /// The `bwrap` to use in place of the machine's own.
        bubblewrap: Option<PathBuf> = None;
        /// Variables that tool processes see beside the few they always see.
        pass_environment: Vec<String> = Vec::new();
        /// Calls of one answer that run at once.
        concurrency: u32 = 16;
        /// How long a call may take that does not bound itself.
        timeout: Period = Period::seconds(300);
        /// How long a `bash` command may take that does not say.
        bash_timeout: Period = Period::seconds(30);
        /// Lines of a result that reach the model.
        max_lines: usize = 2_000;
        /// Bytes of a result that reach the model.
        max_bytes: usize = 50_000;
        /// What one call's processes may use; 0 stands for no bound.
        limits: ToolLimits = ToolLimits::default();
        /// From which same call in a row on the model is told so.
        repeat_note: u32 = 3;
        /// From which same call in a row on it is not run.
        repeat_refuse: u32 = 10;
    }
}

section! {
    /// Bounds of all processes of one call. `docs/operations.md` says which of them the kernel
    /// enforces, and where.
    ToolLimits {
        /// Processes at one time; threads are bounded to 16 times as many.
        processes: u64 = 512;
        /// Memory of all processes together.
        memory: Size = Size::mebibytes(4096);
        /// Size of a file that a process writes.
        file_size: Size = Size::mebibytes(2048);
        /// Open files of each process.
        open_files: u64 = 4_096;
        /// Size of a private `/tmp` in memory, where the sandbox makes one.
        tmp: Size = Size::mebibytes(1024);
    }
}
