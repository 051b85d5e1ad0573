//! `[tools]`

use std::path::PathBuf;

use crate::config::setting::{Period, Sandbox};

section! {
    /// What tools may touch, and how long they may take.
    Tools {
        /// Folders tools may touch beside the session's workspace.
        workspace_roots: Vec<PathBuf> = Vec::new(), guarded;
        /// Folders of external tools, each `<name>/TOOL.json`.
        dirs: Vec<PathBuf> = vec![".planck/tools".into(), "~/.planck/tools".into()], guarded;
        /// Whether the kernel confines tool processes: as far as it can, strictly, or not at all.
        sandbox: Sandbox = Sandbox::Auto, guarded;
        /// Variables that tool processes see beside the few they always see.
        pass_environment: Vec<String> = Vec::new(), guarded;
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
        /// From which same call in a row on the model is told so.
        repeat_note: u32 = 3;
        /// From which same call in a row on it is not run.
        repeat_refuse: u32 = 10;
    }
}
