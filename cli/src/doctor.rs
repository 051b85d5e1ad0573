//! The command `planck doctor`.

mod machine;
mod servers;

use std::{path::PathBuf, time::Duration};

use clap::Args;
use serde::Serialize;
use tokio::time::timeout;

use super::{
    args::GlobalArgs,
    exit::Exit,
    output::{Format, Output, draw, json},
    project::{FoundProject, describe, lines},
    render::{
        Style,
        style::{Paint, counted},
    },
};
use planck_host::terminal::Drawing;
use planck_node::config::Config;
use planck_node::node::{self, Inventory, ModelTrial};
use planck_node::team;
use planck_toolbox::project::{ProjectStanding, SourcePart};

/// The maximum duration of a check that waits for something outside this process.
const DEADLINE: Duration = Duration::from_secs(30);

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  planck doctor
  planck doctor --online                  # also asks each provider one short question
  planck doctor --nats nats://db1:4222 --store postgres://db1/planck
  planck doctor -o json | jq '.[] | select(.state == \"bad\")'")]
pub struct Doctor {
    /// Also send one short request to each provider, which costs a few tokens
    #[arg(long)]
    online: bool,
    /// Check what a node here needs, although this is only a client of a cluster
    #[arg(long)]
    node: bool,
    #[command(flatten)]
    output: Output,
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DoctorFinding {
    name: &'static str,
    state: FindingState,
    what: String,
    /// How the user can correct the problem, or `None` if there is no problem.
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum FindingState {
    Good,
    /// A problem that does not keep Planck from working, or a check that was skipped.
    Note,
    Bad,
}

impl DoctorFinding {
    fn good(name: &'static str, what: impl Into<String>) -> Self {
        Self {
            name,
            state: FindingState::Good,
            what: what.into(),
            remedy: None,
        }
    }

    fn note(name: &'static str, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            name,
            state: FindingState::Note,
            what: what.into(),
            remedy: Some(remedy.into()),
        }
    }

    fn bad(name: &'static str, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            name,
            state: FindingState::Bad,
            what: what.into(),
            remedy: Some(remedy.into()),
        }
    }

    fn line(&self, style: Style) -> Drawing {
        let (mark, paint) = match self.state {
            FindingState::Good => ("✓", Paint::Good),
            FindingState::Note => ("·", Paint::Warning),
            FindingState::Bad => ("✗", Paint::Bad),
        };
        let remedy = self.remedy.as_ref().map_or(String::new(), |remedy| {
            format!("\n               → {remedy}")
        });
        style.paint(paint, mark) + format!(" {:<12} {}{remedy}\n", self.name, self.what)
    }
}

impl Doctor {
    /// Runs all checks and prints the findings. The exit status is a failure if one of them is bad.
    pub async fn perform(self, global: &GlobalArgs) -> anyhow::Result<Exit> {
        let findings = Box::pin(self.findings(global)).await?;
        match self.output.output {
            Format::Json => json(&findings)?,
            Format::Table => {
                let style = Style::of_stdout();
                draw(&findings.iter().map(|finding| finding.line(style)).collect())?;
            }
        }
        let is_bad = findings
            .iter()
            .any(|finding| finding.state == FindingState::Bad);
        Ok(if is_bad { Exit::Failed } else { Exit::Done })
    }

    async fn findings(&self, global: &GlobalArgs) -> anyhow::Result<Vec<DoctorFinding>> {
        let (loaded, found) = global.inspect()?;
        let config = &loaded.config;
        let mut findings = vec![files(global, &loaded.files)];
        findings.extend(found.as_ref().map(project));
        findings.extend(loaded.left_out.iter().map(|line| {
            DoctorFinding::note(
                "mcp",
                line.as_str(),
                "correct the file, or go on without the server",
            )
        }));
        findings.extend(bounded("nats", servers::nats(config)).await);
        // A client needs no store. In a cluster, the default one serves nothing else.
        let is_client = config.nats.url.is_some() && config.store.project().is_some();
        if is_client && !self.node {
            findings.push(DoctorFinding::note(
                "node",
                "without `store.url`, this counts as a client of the cluster; what only a node needs was not checked",
                "`planck doctor --node` checks it",
            ));
        } else {
            findings.extend(node_here(config).await);
        }
        if self.online {
            findings.extend(bounded("online", online(config)).await);
        }
        Ok(findings)
    }
}

fn files(global: &GlobalArgs, files: &[PathBuf]) -> DoctorFinding {
    let named = |file: &PathBuf| match global.named_file() == Some(file) {
        true => " (named by --config)",
        false => "",
    };
    let described: Vec<String> = files
        .iter()
        .map(|file| format!("{}{}", file.display(), named(file)))
        .collect();
    match described.is_empty() {
        true => DoctorFinding::good("config", "no file; the defaults and the environment"),
        false => DoctorFinding::good("config", described.join(", ")),
    }
}

/// Checks what a node on this machine needs, or a command that runs agents itself.
async fn node_here(config: &Config) -> Vec<DoctorFinding> {
    let mut findings = bounded("store", servers::store(config)).await;
    findings.extend(models(config));
    findings.extend(described(config));
    findings.extend(bounded("sandbox", machine::sandbox(config)).await);
    findings.extend(bounded("folder", machine::folders(config)).await);
    findings.extend(bounded("mcp", servers::mcp(config)).await);
    findings.extend(machine::all(config));
    findings.extend(machine::git().await);
    findings
}

/// Sends one short request to each provider that has what it needs.
async fn online(config: &Config) -> Vec<DoctorFinding> {
    let trials = match node::try_models(config).await {
        Ok(trials) => trials,
        Err(error) => {
            let remedy = "correct the proxy or the certificates of the provider";
            return vec![DoctorFinding::bad("online", error.to_string(), remedy)];
        }
    };
    if trials.is_empty() {
        let remedy = "`planck init` writes a default model";
        return vec![DoctorFinding::note("online", "no model to ask", remedy)];
    }
    let found = trials.into_iter().map(|ModelTrial { model, answer }| {
        let model = format!("{}:{}", model.provider, model.id);
        match answer {
            Ok(took) => DoctorFinding::good(
                "online",
                format!("{model} answered after {} ms", took.as_millis()),
            ),
            Err(failure) => DoctorFinding::bad(
                "online",
                format!("{model}: {}", failure.why),
                failure.remedy,
            ),
        }
    });
    found.collect()
}

/// Runs a check with [`DEADLINE`] as its time limit. The steps of a check have limits of their own,
/// but the sum of these limits can be longer.
async fn bounded(
    name: &'static str,
    check: impl Future<Output = Vec<DoctorFinding>>,
) -> Vec<DoctorFinding> {
    match timeout(DEADLINE, Box::pin(check)).await {
        Ok(findings) => findings,
        Err(_) => vec![DoctorFinding::bad(
            name,
            format!("was not looked at to the end within {DEADLINE:?}"),
            "try again; something that it waits for does not answer",
        )],
    }
}

/// Reports whether the project in this folder is trusted. If it is not, also reports what trusting
/// it would allow, or what has changed since it was trusted.
fn project(found: &FoundProject) -> DoctorFinding {
    match &found.standing {
        ProjectStanding::Nothing | ProjectStanding::Trusted(_) => {
            DoctorFinding::good("project", describe(found))
        }
        ProjectStanding::Offered(_) => DoctorFinding::note(
            "project",
            format!("{}{}", describe(found), indented(found)),
            format!("read them and run `{}`", found.command()),
        ),
        ProjectStanding::Unknown(_)
        | ProjectStanding::Changed(_)
        | ProjectStanding::Untrustable(_) => DoctorFinding::note(
            "project",
            format!("{} and has no effect{}", describe(found), indented(found)),
            found.remedy(),
        ),
    }
}

fn indented(found: &FoundProject) -> String {
    lines(&found.standing)
        .lines()
        .map(|line| format!("\n             {line}"))
        .collect()
}

/// Checks the files that describe tools, skills and teams.
fn described(config: &Config) -> Vec<DoctorFinding> {
    let here = Inventory::of(config);
    let remedy = "correct the file; agents go without until then";
    let mut findings: Vec<DoctorFinding> = here
        .problems
        .iter()
        .map(|problem| DoctorFinding::bad("files", problem.as_str(), remedy))
        .collect();
    let teams = team::list(&config.sources(SourcePart::Teams));
    let broken = teams
        .iter()
        .filter_map(|(name, template)| template.as_ref().err().map(|errors| (name, errors)));
    findings.extend(broken.map(|(name, errors)| {
        DoctorFinding::bad(
            "team",
            format!("{name} has {}", counted(errors.0.len(), "error")),
            "`planck team validate` shows them",
        )
    }));
    if findings.is_empty() {
        let (tools, skills) = (here.tools.len(), here.skills.names().count());
        findings.push(DoctorFinding::good(
            "files",
            [
                counted(tools, "tool"),
                counted(skills, "skill"),
                counted(teams.len(), "team"),
            ]
            .join(", "),
        ));
    }
    findings
}

fn models(config: &Config) -> Vec<DoctorFinding> {
    let ready: Vec<&str> = config
        .providers
        .by_name
        .keys()
        .map(String::as_str)
        .filter(|name| config.providers.is_ready(name))
        .collect();
    let known = node::default_model(config);
    let keyless = known
        .as_ref()
        .map(|model| model.provider.as_str())
        .filter(|provider| config.providers.is_ready(provider));
    let keys = if let (true, Some(provider)) = (ready.is_empty(), keyless) {
        DoctorFinding::good("providers", format!("{provider}, which needs no key"))
    } else if ready.is_empty() {
        let remedy = format!(
            "set {} or that of another provider, or use ollama",
            planck_providers::key_variables()
        );
        DoctorFinding::note("providers", "no provider has a key", remedy)
    } else {
        DoctorFinding::good("providers", ready.join(", "))
    };
    let model = match (known, &config.models.default) {
        (Some(model), _) if !config.providers.is_ready(&model.provider) => DoctorFinding::bad(
            "model",
            format!(
                "the default is {}:{}, and {} has no key",
                model.provider, model.id, model.provider
            ),
            "set its key, or another `models.default`",
        ),
        (Some(model), Some(_)) => {
            DoctorFinding::good("model", format!("{}:{}", model.provider, model.id))
        }
        (Some(model), None) => {
            let what = format!(
                "{}:{}, the standard one of {}",
                model.provider, model.id, model.provider
            );
            DoctorFinding::good("model", what)
        }
        (None, _) => DoctorFinding::note(
            "model",
            "no default",
            "`planck init` writes one, or name one with --model",
        ),
    };
    vec![keys, model]
}
