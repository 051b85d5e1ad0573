//! What a command does about the project that it was started in.

mod shown;

use std::io::{self, BufRead as _, IsTerminal as _, Read as _};

use anyhow::Context as _;

use super::{
    exit::Usage,
    output::{Stream, question, warn},
};
use crate::{
    config::Sources,
    project::{Admitted, Ledger, Project, Snapshot, Standing, Uses},
    terminal::clean_line,
};

pub use shown::{lines, told};

/// Wrong answers after which a question is given up.
const TRIES: usize = 3;

/// A project, and what it is to its user.
pub struct Met {
    pub project: Project,
    pub standing: Standing,
    /// `None`: there is no home to keep it in.
    ledger: Option<Ledger>,
}

/// The project of the folder that planck was started in, if there is one.
pub fn met(sources: &Sources, uses: Uses) -> anyhow::Result<Option<Met>> {
    let user_folder = sources.user_folder();
    let Some(project) = Project::find(&sources.folder, user_folder.as_deref())? else {
        return Ok(None);
    };
    let ledger = user_folder.map(|user_folder| Ledger::at(&user_folder));
    let standing = project.standing(ledger.as_ref(), uses)?;
    Ok(Some(Met {
        project,
        standing,
        ledger,
    }))
}

/// What a person answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Trust,
    Without,
    Quit,
}

impl Met {
    /// What the user trusts. Of a project that is not trusted a line says that it has no effect.
    pub fn or_warn(self) -> Option<Admitted> {
        match &self.standing {
            Standing::Nothing => None,
            Standing::Trusted(admitted) => Some(admitted.clone()),
            Standing::Unknown(_) | Standing::Changed(_) | Standing::Untrustable(_) => {
                warn(&format!(
                    "planck: {} and has no effect; `planck doctor` lists it",
                    told(&self)
                ));
                None
            }
        }
    }

    /// What the user trusts, who is asked where he can be; without a terminal a project that is not
    /// trusted is an error.
    pub fn or_ask(self) -> anyhow::Result<Option<Admitted>> {
        let may_ask = io::stdin().is_terminal() && Stream::Err.is_terminal();
        let snapshot = match &self.standing {
            Standing::Nothing => return Ok(None),
            Standing::Trusted(admitted) => return Ok(Some(admitted.clone())),
            Standing::Unknown(_) | Standing::Changed(_) | Standing::Untrustable(_) if !may_ask => {
                return Err(Usage(format!("{}; {}", told(&self), self.remedy())).into());
            }
            Standing::Untrustable(_) => {
                return Err(Usage(format!("{}; {}", told(&self), self.remedy())).into());
            }
            Standing::Unknown(snapshot) => snapshot,
            Standing::Changed(both) => &both.0,
        };
        question(&format!("{}\n{}", told(&self), lines(&self.standing)))?;
        match ask()? {
            Answer::Trust => self.trust(snapshot.clone()).map(Some),
            Answer::Without => Ok(None),
            Answer::Quit => anyhow::bail!("nothing was started"),
        }
    }

    /// Records what was shown.
    pub fn trust(&self, snapshot: Snapshot) -> anyhow::Result<Admitted> {
        let ledger = self
            .ledger
            .as_ref()
            .context("HOME is not set, so there is no ~/.planck to record it in")?;
        self.project
            .trust(ledger, snapshot)
            .with_context(|| format!("cannot record it in {}", ledger.file().display()))
    }

    /// What to type.
    pub fn remedy(&self) -> String {
        let without = "go on without it with `--no-project`";
        match &self.standing {
            Standing::Untrustable(_) => format!("take that away, or {without}"),
            Standing::Nothing
            | Standing::Trusted(_)
            | Standing::Unknown(_)
            | Standing::Changed(_) => {
                format!("read it and run `{}`, or {without}", self.command())
            }
        }
    }

    /// The command that trusts it, as a shell takes it.
    pub fn command(&self) -> String {
        let folder = self.project.folder.to_string_lossy();
        let quoted = shlex::try_quote(&folder)
            .map_or_else(|_| folder.to_string(), |quoted| quoted.into_owned());
        format!("planck trust {}", clean_line(&quoted))
    }
}

fn ask() -> io::Result<Answer> {
    for _ in 0..TRIES {
        question("[t]rust it, go on [w]ithout it, or [q]uit? ")?;
        let Some(line) = line()? else {
            return Ok(Answer::Quit);
        };
        match line.trim() {
            "t" | "trust" => return Ok(Answer::Trust),
            "w" | "without" => return Ok(Answer::Without),
            "q" | "quit" => return Ok(Answer::Quit),
            _ => {}
        }
    }
    Ok(Answer::Quit)
}

/// A line of standard input; `None` at its end.
pub fn line() -> io::Result<Option<String>> {
    let mut line = String::new();
    let read = io::stdin().lock().take(1024).read_line(&mut line)?;
    Ok((read > 0).then_some(line))
}
