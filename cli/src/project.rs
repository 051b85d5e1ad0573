//! Decides whether a command uses the project in the folder in which the command was started, and
//! describes the project to the user: what it contains, what trusting it would allow, and what has
//! changed.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, BufRead as _, IsTerminal as _, Read as _},
    path::Path,
};

use anyhow::Context as _;
use planck_host::terminal::clean_line;
use planck_node::config::{Sources, WrittenKeys, described_servers, written};
use planck_toolbox::project::{
    Admitted, CONFIG, Difference, FOLDER, Ledger, OfferedFiles, Project, ProjectStanding,
    ProjectUse, SERVERS, Snapshot, TrustRecord,
};
use serde_json::Value;

use crate::{
    exit::UsageError,
    output::{Stream, question, warn},
    render::style::counted,
};

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
            // Most repositories have such files for a program that the user does not use, so they
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

/// The maximum number of characters of a line that are shown.
const WIDE: usize = 300;
/// The maximum number of lines of a list that are shown.
const LONG: usize = 100;

/// Returns one line about whether the project is trusted.
pub fn describe(found: &FoundProject) -> String {
    let path = found.project.path().display().to_string();
    let path = clean_line(&path);
    match &found.standing {
        ProjectStanding::Nothing => format!("{path} holds nothing that could have an effect"),
        ProjectStanding::Trusted(_) => format!("{path} is trusted"),
        ProjectStanding::Offered(offered) => {
            let folder = found.project.folder.display().to_string();
            let (files, have) = counted_files(&offered.files);
            format!("{files} in {} {have} no effect", clean_line(&folder))
        }
        ProjectStanding::Unknown(snapshot) => format!(
            "{path} ({}) is not trusted",
            clean_line(&snapshot.summary())
        ),
        ProjectStanding::Changed(both) => {
            let (snapshot, record) = &**both;
            format!(
                "{path} ({}) is not what you trusted on {}",
                clean_line(&snapshot.summary()),
                record.at
            )
        }
        ProjectStanding::Untrustable(why) => {
            format!("{path} cannot be trusted: {}", clean_line(&why.to_string()))
        }
    }
}

/// Returns how many files for other programs these are, and the verb that follows.
pub fn counted_files(files: &[String]) -> (String, &'static str) {
    let has_servers = files.iter().any(|file| file == SERVERS);
    let skills = files.len() - usize::from(has_servers);
    let counted = match (skills, has_servers) {
        (0, _) => SERVERS.to_owned(),
        (_, false) => format!("{} for other programs", counted(skills, "skill")),
        (_, true) => format!(
            "{SERVERS} and {} for other programs",
            counted(skills, "skill")
        ),
    };
    (counted, if files.len() == 1 { "has" } else { "have" })
}

/// Returns lines that list what trusting the project would allow, or what has changed since it was
/// trusted. Returns an empty text if the project is trusted, is empty or cannot be trusted.
pub fn lines(standing: &ProjectStanding) -> String {
    let lines = match standing {
        ProjectStanding::Nothing
        | ProjectStanding::Trusted(_)
        | ProjectStanding::Untrustable(_) => Vec::new(),
        ProjectStanding::Offered(offered) => {
            let OfferedFiles {
                snapshot, files, ..
            } = &**offered;
            let mut lines = vec!["trusting the folder would admit:".to_owned()];
            lines.extend(offered_files(snapshot, files));
            lines
        }
        ProjectStanding::Unknown(snapshot) => admitted(snapshot),
        ProjectStanding::Changed(both) => changed(&both.0, &both.1),
    };
    let more = lines.len().saturating_sub(LONG);
    let mut text: String = lines
        .iter()
        .take(LONG)
        .map(|line| format!("  {}\n", cut(&clean_line(line))))
        .collect();
    if more > 0 {
        text.push_str(&format!(
            "  … and {more} more lines; read the files before you trust them\n"
        ));
    }
    text
}

fn cut(line: &str) -> String {
    let all = line.chars().count();
    if all <= WIDE {
        return line.to_owned();
    }
    let shown: String = line.chars().take(WIDE).collect();
    format!("{shown}… ({} more characters)", all - WIDE)
}

fn admitted(snapshot: &Snapshot) -> Vec<String> {
    let mut lines = vec!["trusting it would admit:".to_owned()];
    if let Some(text) = &snapshot.config {
        let WrittenKeys { values, problems } = written(Path::new(CONFIG), text);
        lines.push(format!("{CONFIG} sets {}", counted(values.len(), "key")));
        lines.extend(
            values
                .iter()
                .map(|(key, value)| format!("  {key} = {value}")),
        );
        lines.extend(problems.iter().map(|problem| format!("  {problem}")));
    }
    lines.extend(
        snapshot
            .texts
            .iter()
            .map(|(name, text)| described(name, text)),
    );
    let others: Vec<&str> = snapshot
        .files()
        .filter(|name| *name != CONFIG && !snapshot.texts.contains_key(*name))
        .collect();
    if !others.is_empty() {
        lines.push(format!(
            "programs and other files of tools: {}",
            others.join(", ")
        ));
    }
    lines.extend(texts(snapshot));
    lines.extend(offered_files(snapshot, &snapshot.pending(&BTreeMap::new())));
    lines
}

/// Returns lines about these files for other programs, and about those that cannot be used.
fn offered_files(snapshot: &Snapshot, files: &[String]) -> Vec<String> {
    let servers = snapshot.servers.iter();
    let servers = servers.filter(|_| files.iter().any(|file| file == SERVERS));
    let servers = servers.flat_map(|servers| described_servers(&servers.text));
    let servers = servers.map(|line| format!("{line} ({SERVERS})"));
    let described = files.iter().filter_map(|file| {
        let skill = snapshot.offered.get(file)?;
        Some(format!(
            "skill {} instructs agents: {} ({file})",
            skill.name, skill.description
        ))
    });
    let left_out = snapshot.left_out.iter();
    servers
        .chain(described)
        .chain(left_out.map(|why| format!("left out: {why}")))
        .collect()
}

/// Returns lines that list the skills and the prompts, which may change without a new question.
fn texts(snapshot: &Snapshot) -> Vec<String> {
    let mut lines = Vec::new();
    if !snapshot.skills.is_empty() {
        lines.push(format!("skills: {}", snapshot.skills.join(", ")));
    }
    if !snapshot.prompts.is_empty() {
        lines.push(format!("prompts of teams: {}", snapshot.prompts.join(", ")));
    }
    if !lines.is_empty() {
        lines.push(
            "skills and prompts may change later without your being asked again; nothing else may"
                .into(),
        );
    }
    lines
}

/// Returns the most important fields of a tool or a team on one line.
fn described(name: &str, text: &str) -> String {
    let Ok(value) = serde_json::from_str::<Value>(text) else {
        return format!("{name}: not JSON");
    };
    if name.ends_with("TOOL.json") {
        let field = |name: &str| {
            value
                .get(name)
                .and_then(Value::as_str)
                .unwrap_or("?")
                .to_owned()
        };
        return format!(
            "tool {} runs `{}` ({name})",
            field("name"),
            field("command")
        );
    }
    let members = value
        .get("members")
        .unwrap_or(&value)
        .as_array()
        .cloned()
        .unwrap_or_default();
    let texts = |field: &str| -> BTreeSet<String> {
        members
            .iter()
            .filter_map(|member| member.get(field)?.as_str())
            .map(Into::into)
            .collect()
    };
    let tools: BTreeSet<String> = members
        .iter()
        .filter_map(|member| member.get("tools")?.as_array())
        .flatten()
        .filter_map(Value::as_str)
        .map(Into::into)
        .collect();
    let join = |names: BTreeSet<String>| names.into_iter().collect::<Vec<_>>().join(", ");
    let addresses = texts("base_url");
    let addresses = if addresses.is_empty() {
        String::new()
    } else {
        format!("; talks to {}", join(addresses))
    };
    format!(
        "team of {} with the tools {}{addresses} ({name})",
        join(texts("type")),
        join(tools)
    )
}

fn changed(snapshot: &Snapshot, record: &TrustRecord) -> Vec<String> {
    let Difference {
        added,
        changed,
        gone,
    } = Difference::between(&record.files, &snapshot.prints);
    let mut lines = vec!["since then:".to_owned()];
    let files = [("new    ", added), ("changed", changed), ("gone   ", gone)];
    for (what, names) in files {
        for name in names {
            lines.push(format!("{what} {FOLDER}/{name}"));
            if name == CONFIG {
                lines.extend(keys(record.config.as_deref(), snapshot.config.as_deref()));
            } else if let Some(text) = snapshot.texts.get(&name) {
                lines.push(format!("  now {}", described(&name, text)));
            }
        }
    }
    lines.extend(offered_files(snapshot, &snapshot.pending(&record.skills)));
    lines
}

/// Returns a line for each configuration key whose value has changed, and for each mistake in the
/// new configuration. If there is none of these, one line says where else the file may have
/// changed.
fn keys(before: Option<&str>, now: Option<&str>) -> Vec<String> {
    let read = |text: Option<&str>| {
        text.map(|text| written(Path::new(CONFIG), text))
            .unwrap_or_default()
    };
    let (before, now) = (read(before), read(now));
    let names: BTreeSet<&String> = before.values.keys().chain(now.values.keys()).collect();
    let mut lines = Vec::new();
    for name in names {
        lines.extend(match (before.values.get(name), now.values.get(name)) {
            (Some(before), Some(now)) if before != now => {
                Some(format!("  {name}: {before} is now {now}"))
            }
            (None, Some(now)) => Some(format!("  {name} = {now} is new")),
            (Some(before), None) => Some(format!("  {name} = {before} is gone")),
            (Some(_), Some(_)) | (None, None) => None,
        });
    }
    lines.extend(now.problems.iter().map(|problem| format!("  {problem}")));
    if lines.is_empty() {
        lines.push("  in comments, in the order, or in a secret".into());
    }
    lines
}
