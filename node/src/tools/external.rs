//! Tools from files: `<dir>/<name>/TOOL.json` describes a command, and each call runs it.

mod definition;
mod template;

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use serde_json::{Map, Value};

use super::{
    Invocation, Outcome, Tool,
    files::{Files, args},
    process::Launch,
    shell::Shell,
};
use crate::model::ToolSpec;
use definition::Definition;
pub use definition::Fault;

/// The file that describes a tool.
pub const FILE: &str = "TOOL.json";

/// A larger one is not read.
const LARGEST: u64 = 1024 * 1024;

/// A file that describes no tool, with all that is wrong with it.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    #[error("cannot read {file}: {why}")]
    Unreadable { file: PathBuf, why: io::Error },
    #[error("{file} describes no tool: {}", told(faults))]
    Faulty { file: PathBuf, faults: Vec<Fault> },
}

fn told(faults: &[impl fmt::Display]) -> String {
    faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// A tool that is a command.
pub struct ExternalTool {
    definition: Definition,
    /// Where its file is; the command may name programs beside it.
    home: PathBuf,
    files: Files,
    shell: Shell,
}

/// Every tool below the folders, in their order, and every problem. A folder that does not exist holds none.
pub fn load(dirs: &[PathBuf], files: &Files, shell: &Shell) -> (Vec<Arc<dyn Tool>>, Vec<Problem>) {
    let (mut tools, mut problems): (Vec<Arc<dyn Tool>>, _) = (Vec::new(), Vec::new());
    for home in dirs.iter().flat_map(|dir| subfolders(dir)) {
        match load_one(&home) {
            Ok(Some(definition)) => {
                tools.push(Arc::new(ExternalTool { definition, home, files: files.clone(), shell: shell.clone() }));
            }
            Ok(None) => {}
            Err(problem) => problems.push(problem),
        }
    }
    (tools, problems)
}

/// The names that [`load`] would find, with their files, and every problem.
pub fn names(dirs: &[PathBuf]) -> (Vec<(String, PathBuf)>, Vec<Problem>) {
    let (mut names, mut problems) = (Vec::new(), Vec::new());
    for home in dirs.iter().flat_map(|dir| subfolders(dir)) {
        match load_one(&home) {
            Ok(Some(definition)) => names.push((definition.spec.name, home.join(FILE))),
            Ok(None) => {}
            Err(problem) => problems.push(problem),
        }
    }
    (names, problems)
}

/// The folders in a folder by absolute path, sorted by name.
pub(crate) fn subfolders(dir: &Path) -> Vec<PathBuf> {
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    folders.sort();
    folders
}

fn load_one(home: &Path) -> Result<Option<Definition>, Problem> {
    let file = home.join(FILE);
    let unreadable = |why| Problem::Unreadable { file: file.clone(), why };
    let size = match fs::metadata(&file) {
        Ok(found) => found.len(),
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(why) => return Err(unreadable(why)),
    };
    if size > LARGEST {
        return Err(unreadable(io::Error::other(format!("it is larger than {LARGEST} bytes"))));
    }
    let text = fs::read_to_string(&file).map_err(unreadable)?;
    Definition::parse(&text).map(Some).map_err(|faults| Problem::Faulty { file, faults })
}

#[async_trait]
impl Tool for ExternalTool {
    fn spec(&self) -> &ToolSpec {
        &self.definition.spec
    }

    /// The process has its own.
    fn timeout(&self, _usual: Duration) -> Option<Duration> {
        None
    }

    async fn run(&self, call: Invocation) -> Outcome {
        let args: Map<String, Value> = match args(&call) {
            Ok(args) => args,
            Err(refused) => return refused,
        };
        let workspace = match self.files.workspace(&call.dir) {
            Ok(workspace) => workspace,
            Err(why) => return Outcome::error(why.to_string()),
        };
        let mut words = match self.definition.command.fill(&args, &self.definition.options) {
            Ok(words) => words.into_iter(),
            Err(refused) => return Outcome::error(refused),
        };
        let launch = Launch {
            program: self.program(words.next().unwrap_or_default()),
            args: words.map(Into::into).collect(),
            dir: workspace.dir().to_owned(),
            env: self.shell.env(),
            wall: None,
            input: call.args.get().as_bytes().to_vec(),
            keep: self.shell.caps().bytes,
        };
        let readable = std::slice::from_ref(&self.home);
        self.shell.run(launch, &workspace, readable, self.definition.timeout, &call.cancel).await
    }
}

impl ExternalTool {
    /// `./run.sh` is beside the tool's file, whatever the working directory.
    fn program(&self, word: String) -> std::ffi::OsString {
        match word.contains('/') {
            true => self.home.join(word).into(),
            false => word.into(),
        }
    }
}

#[cfg(test)]
mod tests;
