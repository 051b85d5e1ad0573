//! Decides whether a command uses the project in the folder in which the command was started.

mod description;

use std::io::{self, BufRead as _, IsTerminal as _, Read as _};

use anyhow::Context as _;

use super::{
    exit::UsageError,
    output::{Stream, question, warn},
};
use planck_host::terminal::clean_line;
use planck_node::config::Sources;
use planck_toolbox::project::{Admitted, Ledger, Project, ProjectStanding, ProjectUse, Snapshot};

pub use description::{describe, lines};

/// The number of invalid answers after which the command quits.
const TRIES: usize = 3;

/// A project, and whether the user trusts it.
pub struct FoundProject {
    pub project: Project,
    pub standing: ProjectStanding,
    /// The list of trusted projects, or `None` if there is no home directory to store it in.
    ledger: Option<Ledger>,
}

/// Finds the project in the folder of `sources`, and whether the user trusts it.
pub fn find(sources: &Sources, uses: ProjectUse) -> anyhow::Result<Option<FoundProject>> {
    let user_folder = sources.user_folder();
    let Some(project) = Project::find(&sources.folder, user_folder.as_deref())? else {
        return Ok(None);
    };
    let ledger = user_folder.map(|user_folder| Ledger::at(&user_folder));
    let standing = project.standing(ledger.as_ref(), uses)?;
    Ok(Some(FoundProject {
        project,
        standing,
        ledger,
    }))
}

/// The user's answer to the question whether to trust the project.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TrustAnswer {
    Trust,
    Without,
    Quit,
}

impl FoundProject {
    /// Returns the trusted part of the project. If the project is not trusted, prints a warning
    /// that it has no effect.
    pub fn or_warn(self) -> Option<Admitted> {
        match &self.standing {
            ProjectStanding::Nothing => None,
            ProjectStanding::Trusted(admitted) => Some(admitted.clone()),
            ProjectStanding::Offered(offered) => offered.admitted.clone(),
            ProjectStanding::Unknown(_)
            | ProjectStanding::Changed(_)
            | ProjectStanding::Untrustable(_) => {
                warn(&format!(
                    "planck: {} and has no effect; `planck doctor` lists it",
                    describe(&self)
                ));
                None
            }
        }
    }

    /// Returns the trusted part of the project, after asking the user if necessary. Returns `None`
    /// if the project is empty or the user continues without it. Fails if the user quits, if the
    /// project cannot be trusted, or if it is not trusted and there is no terminal.
    pub fn or_ask(self) -> anyhow::Result<Option<Admitted>> {
        let may_ask = io::stdin().is_terminal() && Stream::Err.is_terminal();
        let snapshot = match &self.standing {
            ProjectStanding::Nothing => return Ok(None),
            ProjectStanding::Trusted(admitted) => return Ok(Some(admitted.clone())),
            // Most repositories have such skills for a program that the user does not use, so they
            // are no reason to stop.
            ProjectStanding::Offered(offered) => {
                warn(&format!(
                    "planck: {}; `{}` shows and admits them",
                    describe(&self),
                    self.command()
                ));
                return Ok(offered.admitted.clone());
            }
            ProjectStanding::Unknown(_)
            | ProjectStanding::Changed(_)
            | ProjectStanding::Untrustable(_)
                if !may_ask =>
            {
                return Err(UsageError(format!("{}; {}", describe(&self), self.remedy())).into());
            }
            ProjectStanding::Untrustable(_) => {
                return Err(UsageError(format!("{}; {}", describe(&self), self.remedy())).into());
            }
            ProjectStanding::Unknown(snapshot) => snapshot,
            ProjectStanding::Changed(both) => &both.0,
        };
        question(&format!("{}\n{}", describe(&self), lines(&self.standing)))?;
        match ask()? {
            TrustAnswer::Trust => self.trust(snapshot.clone()).map(Some),
            TrustAnswer::Without => Ok(None),
            TrustAnswer::Quit => anyhow::bail!("nothing was started"),
        }
    }

    /// Records that the user trusts the contents of the snapshot.
    pub fn trust(&self, snapshot: Snapshot) -> anyhow::Result<Admitted> {
        let ledger = self
            .ledger
            .as_ref()
            .context("HOME is not set, so there is no ~/.planck to record it in")?;
        self.project
            .trust(ledger, snapshot)
            .with_context(|| format!("cannot record it in {}", ledger.file().display()))
    }

    /// Returns advice on what the user can do about a project that is not trusted.
    pub fn remedy(&self) -> String {
        let without = "go on without it with `--no-project`";
        match &self.standing {
            ProjectStanding::Untrustable(_) => format!("take that away, or {without}"),
            ProjectStanding::Nothing
            | ProjectStanding::Trusted(_)
            | ProjectStanding::Offered(_)
            | ProjectStanding::Unknown(_)
            | ProjectStanding::Changed(_) => {
                format!("read it and run `{}`, or {without}", self.command())
            }
        }
    }

    /// Returns the command line that trusts the project, quoted for a shell.
    pub fn command(&self) -> String {
        let folder = self.project.folder.to_string_lossy();
        let quoted = shlex::try_quote(&folder)
            .map_or_else(|_| folder.to_string(), |quoted| quoted.into_owned());
        format!("planck trust {}", clean_line(&quoted))
    }
}

fn ask() -> io::Result<TrustAnswer> {
    for _ in 0..TRIES {
        question("[t]rust it, go on [w]ithout it, or [q]uit? ")?;
        let Some(line) = line()? else {
            return Ok(TrustAnswer::Quit);
        };
        match line.trim() {
            "t" | "trust" => return Ok(TrustAnswer::Trust),
            "w" | "without" => return Ok(TrustAnswer::Without),
            "q" | "quit" => return Ok(TrustAnswer::Quit),
            _ => {}
        }
    }
    Ok(TrustAnswer::Quit)
}

/// Reads a line of at most 1,024 bytes from standard input. Returns `None` at the end of the input.
pub fn line() -> io::Result<Option<String>> {
    let mut line = String::new();
    let read = io::stdin().lock().take(1024).read_line(&mut line)?;
    Ok((read > 0).then_some(line))
}
