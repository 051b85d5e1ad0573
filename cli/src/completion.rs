//! The command `planck completion`.

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use super::{Planck, exit::Exit, output::data};

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  planck completion bash > ~/.local/share/bash-completion/completions/planck\n  planck completion zsh > ~/.zfunc/_planck"
)]
pub struct Completion {
    shell: Shell,
}

impl Completion {
    pub fn perform(self) -> anyhow::Result<Exit> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Planck::command(), "planck", &mut script);
        data(&String::from_utf8_lossy(&script))?;
        Ok(Exit::Done)
    }
}
