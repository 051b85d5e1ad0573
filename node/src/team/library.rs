//! The teams that a node knows by name, and the context in which members of a team are resolved.

use std::path::{Path, PathBuf};

use planck_common::{
    command::{Start, TeamRow},
    permission::Permissions,
    reply::{Code, Refusal, excerpt},
    spec::AgentSpec,
};

use super::{
    TeamContext, TeamTemplate, TemplateError, agents_file, context::NO_ADDRESS, find, list, load,
    resolve,
};
use planck_toolbox::project::ProjectSource;

/// The teams of a node.
pub struct TeamLibrary {
    /// The context in which members are resolved, without the AGENTS.md of their directory.
    pub context: TeamContext,
    /// The folders with templates.
    pub sources: Vec<ProjectSource>,
    /// The data folder of the node, which contains the user's own templates. The user is assumed to
    /// have approved the addresses in these templates.
    pub own: PathBuf,
}

impl TeamLibrary {
    /// Returns the specs of the agents for a request that starts a session. The orchestrator's spec
    /// is the first.
    pub fn specs(
        &self,
        request: &Start,
        instructions: Option<String>,
    ) -> Result<Vec<AgentSpec>, Refusal> {
        let source = request.team.clone().unwrap_or_else(|| "members".into());
        let mut context = self.context(source, instructions);
        let mode = request.permissions.map(Permissions::of_mode);
        context.permissions.extend(mode);
        let members = match (&request.team, &request.members) {
            (Some(_), Some(_)) => {
                return Err(Refusal::bad_request(
                    "name a `team` or give `members`, not both",
                ));
            }
            (Some(name), None) => {
                let template = self.template(name)?;
                if self.is_trusted(&template.file) {
                    context.models.addresses = None;
                }
                template.members
            }
            (None, members) => members.clone().unwrap_or_default(),
        };
        // A request without members gets a default member. The name of the default member would
        // mean nothing to the client, so errors do not contain the name.
        let has_members = !members.is_empty();
        resolve(&members, &context).map_err(|errors| {
            let text = |error: &TemplateError| match has_members {
                true => error.to_string(),
                false => format!("{}; {}", error.what, error.remedy),
            };
            let errors: Vec<String> = errors.iter().map(text).collect();
            Refusal::bad_request(errors.join("\n"))
        })
    }

    /// Returns the context in which members are resolved. `instructions` are those of the directory
    /// in which the members work.
    pub fn context(&self, source: String, instructions: Option<String>) -> TeamContext {
        TeamContext {
            source,
            user_md: agents_file::of_user(&self.own),
            agents_md: instructions,
            ..self.context.clone()
        }
    }

    /// Refuses a model address that the configuration does not allow.
    pub fn check_address(&self, url: &str) -> Result<(), Refusal> {
        let allowed = self.context.models.addresses.as_ref();
        if allowed.is_none_or(|allowed| allowed.allow(url)) {
            return Ok(());
        }
        Err(Refusal::new(
            Code::Denied,
            format!("base_url `{url}` is not an address that this node may ask; {NO_ADDRESS}"),
        ))
    }

    /// Returns the rows for a list of templates. Templates with mistakes are left out.
    pub fn rows(&self) -> Vec<TeamRow> {
        let templates = list(&self.sources)
            .into_iter()
            .filter_map(|(_, template)| template.ok());
        templates.map(|template| template.row()).collect()
    }

    fn template(&self, name: &str) -> Result<TeamTemplate, Refusal> {
        let found = find(&self.sources, name)
            .map_err(|clash| Refusal::bad_request(format!("{clash}; rename one of them")))?;
        let Some(file) = found else {
            let known: Vec<String> = list(&self.sources)
                .into_iter()
                .map(|(name, _)| name)
                .collect();
            let known = if known.is_empty() {
                "there are none; on the command line, a folder with a TEAM.json is named by its path".into()
            } else {
                format!("there are {}", known.join(", "))
            };
            return Err(Refusal::not_found(format!(
                "no team `{}` on this node; {known}",
                excerpt(name)
            )));
        };
        load(&file).map_err(|errors| Refusal::bad_request(errors.to_string()))
    }

    /// Returns whether the user trusts the content of a template: it is in the user's own folder or
    /// in a trusted project.
    fn is_trusted(&self, file: &Path) -> bool {
        let is_in_project =
            |source: &ProjectSource| source.project().is_some() && file.starts_with(source.dir());
        if self.sources.iter().any(is_in_project) {
            return true;
        }
        let whole = |path: &Path| path.canonicalize().ok();
        whole(file)
            .zip(whole(&self.own))
            .is_some_and(|(file, own)| file.starts_with(own.join("teams")))
    }
}
