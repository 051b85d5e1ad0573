//! The teams that a node knows by name, and the context in which members are resolved: the models,
//! limits, instructions and skills that are available where they start.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
};

use planck_common::{
    command::{Start, TeamRow},
    permission::Permissions,
    reply::{Code, Refusal, excerpt},
    spec::{AgentLimits, AgentSpec, Member, ModelRef},
};
use planck_providers::{Addresses, PRESETS, key_variables, keyless};
use planck_toolbox::project::{NameClash, ProjectSource};

use super::{
    DEFAULT_TOOLS, TeamTemplate, TemplateError, agents_file, find, list, load, resolve,
    template::{Mistakes, did_you_mean},
};
use crate::config::{Config, ConfiguredUrl};

/// The values that members inherit, and the names that they may use.
#[derive(Debug, Clone, Default)]
pub struct TeamContext {
    /// The name of the template, for error messages.
    pub source: String,
    pub models: KnownModels,
    pub limits: AgentLimits,
    /// The permissions that every member has: those of the node, and those that the request for the
    /// session sets.
    pub permissions: Vec<Permissions>,
    /// The user's own instructions for all agents.
    pub user_md: Option<String>,
    /// The instructions of the project in whose directory the agents work.
    pub agents_md: Option<String>,
    /// The text that describes each skill in a system prompt, by the skill's name.
    pub skills: BTreeMap<String, String>,
    /// Tools and skills that exist both in a user's folder and in the project. Agents get neither
    /// of the two.
    pub clashes: Arc<[NameClash]>,
    /// The names for all tools of each MCP server of the node. Members that name no tools get them.
    pub servers: Arc<[String]>,
}

/// The models that members may name.
#[derive(Debug, Clone, Default)]
pub struct KnownModels {
    pub default: Option<ModelRef>,
    pub entries: BTreeMap<String, ModelRef>,
    /// The names of providers that the configuration adds to the presets.
    pub providers: BTreeSet<String>,
    /// The addresses of model servers that members may name. `None` allows every address, which is
    /// used for templates that the user trusts.
    pub addresses: Option<Addresses>,
}

impl KnownModels {
    /// Returns the models that a configuration describes.
    pub fn of(config: &Config) -> Self {
        let entries: BTreeMap<String, ModelRef> = config
            .models
            .entries
            .0
            .iter()
            .filter_map(|(name, entry)| {
                let base_url = entry
                    .base_url
                    .as_ref()
                    .map(|url| ConfiguredUrl::reveal(url).to_owned());
                let id = entry.model.clone().unwrap_or_else(|| name.clone());
                Some((
                    name.clone(),
                    ModelRef {
                        provider: entry.provider.clone()?,
                        id,
                        base_url,
                    },
                ))
            })
            .collect();
        let providers = config.providers.by_name.keys().cloned().collect();
        let known = Self {
            default: None,
            entries,
            providers,
            addresses: None,
        };
        let default = config
            .models
            .default
            .as_ref()
            .and_then(|name| known.by_name(name));
        Self { default, ..known }
    }

    /// Returns the model with this name: an entry of the configuration, or `provider:model` with a
    /// known provider.
    pub fn by_name(&self, name: &str) -> Option<ModelRef> {
        self.entries.get(name).cloned().or_else(|| self.parse(name))
    }

    fn parse(&self, text: &str) -> Option<ModelRef> {
        let (provider, id) = text.split_once(':')?;
        let known = self.names().any(|name| name == provider) && !id.is_empty();
        known.then(|| ModelRef {
            provider: provider.into(),
            id: id.into(),
            base_url: None,
        })
    }

    fn names(&self) -> impl Iterator<Item = &str> + Clone {
        PRESETS
            .iter()
            .map(|preset| preset.name)
            .chain(self.providers.iter().map(String::as_str))
    }

    /// Returns the model of a member. A member without `provider` and `model_id` gets the inherited
    /// model. A `model_id` alone names an entry of the configuration, `provider:model`, or a model
    /// of the inherited provider. A `provider` alone must be that of the inherited model. If there
    /// is no valid model, adds a mistake and returns `None`.
    pub fn choose(
        &self,
        member: &Member,
        inherited: Option<&ModelRef>,
        mistakes: &mut Mistakes<'_>,
    ) -> Option<ModelRef> {
        let chosen = match (&member.provider, &member.model_id) {
            (None, None) => inherited.cloned(),
            (None, Some(id)) => self.by_id(id, inherited),
            (Some(provider), Some(id)) => Some(ModelRef {
                provider: provider.clone(),
                id: id.clone(),
                base_url: None,
            }),
            (Some(provider), None) => inherited
                .filter(|model| model.provider == *provider)
                .cloned(),
        };
        let Some(mut model) = chosen else {
            let (field, what) = match &member.provider {
                Some(provider) => ("model_id", format!("no model of `{provider}` is named")),
                None => (
                    "model_id",
                    "no model is named, and there is no default".into(),
                ),
            };
            mistakes.field(field, what, no_model());
            return None;
        };
        if let Some(url) = &member.base_url {
            let is_inherited =
                inherited.is_some_and(|inherited| inherited.base_url.as_ref() == Some(url));
            if !is_inherited
                && self
                    .addresses
                    .as_ref()
                    .is_some_and(|known| !known.allow(url))
            {
                mistakes.field(
                    "base_url",
                    format!("`{url}` is not an address that this node may ask"),
                    NO_ADDRESS,
                );
                return None;
            }
            model.base_url = Some(url.clone());
        }
        if !self.names().any(|name| name == model.provider) {
            let remedy = did_you_mean(&model.provider, self.names());
            mistakes.field(
                "provider",
                format!("unknown provider `{}`", model.provider),
                remedy,
            );
            return None;
        }
        Some(model)
    }

    /// Returns the model with this id: an entry of the configuration, `provider:model`, or a model
    /// of the inherited provider.
    fn by_id(&self, id: &str, inherited: Option<&ModelRef>) -> Option<ModelRef> {
        self.by_name(id).or_else(|| {
            inherited.map(|model| ModelRef {
                id: id.into(),
                ..model.clone()
            })
        })
    }
}

impl TeamContext {
    /// Returns the names of the tools of a member that names none.
    pub fn default_tools(&self) -> impl Iterator<Item = &str> {
        let of_servers = self.servers.iter().map(String::as_str);
        DEFAULT_TOOLS.into_iter().chain(of_servers)
    }

    /// Returns the clash of the tool or skill with this name, or `None` if the name is unique.
    pub fn clash(&self, kind: &str, name: &str) -> Option<&NameClash> {
        self.clashes
            .iter()
            .find(|clash| clash.kind == kind && clash.name == name)
    }

    /// Returns the system prompt of a member: the instructions of the user and of the project, the
    /// member's own prompt, and the
    /// descriptions of its skills.
    pub fn prompt(&self, own: Option<&str>, skills: &[String]) -> String {
        let listed: Vec<&str> = skills
            .iter()
            .filter_map(|name| self.skills.get(name))
            .map(String::as_str)
            .collect();
        let skills = (!listed.is_empty()).then(|| format!("{SKILLS}\n\n{}", listed.join("\n")));
        let titled = |title: &str, text: &Option<String>| {
            let text = text.as_ref()?;
            Some(format!("{title}\n\n{text}"))
        };
        let user = titled(OF_USER, &self.user_md);
        let project = titled(OF_PROJECT, &self.agents_md);
        let parts = [user, project, own.map(Into::into), skills];
        parts
            .into_iter()
            .flatten()
            .filter(|part| !part.trim().is_empty())
            .collect::<Vec<String>>()
            .join("\n\n")
    }
}

/// Returns advice for users whose agents have no model.
fn no_model() -> String {
    format!(
        "set a key ({}), pass `--model PROVIDER:MODEL` ({} need no key), set `models.default` in the \
         configuration, or give a member `provider` and `model_id`",
        key_variables(),
        keyless()
    )
}

/// Advice for an address that is not in the configuration.
pub const NO_ADDRESS: &str = "leave it out, or have its origin added to `models.allowed_base_urls` in the configuration of \
the nodes; an address has no user name, query or fragment";
const OF_USER: &str = "# Instructions of the user";
const OF_PROJECT: &str = "# Instructions of this project";
const SKILLS: &str = "# Skills\n\nInstructions for special work. Load one with `load_skill` before work that it is about.";

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
