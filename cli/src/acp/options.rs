//! The settings of a session that a client can choose: which calls run, the team, and the model. This
//! module does no I/O.

use std::path::PathBuf;

use clap::ValueEnum as _;
use planck_common::{
    command::{ModelRow, SessionInfo, TeamRow},
    permission::PermissionMode,
    spec::ModelRef,
};

use super::{
    rpc::RpcError,
    wire::{ConfigOption, ConfigValue, Mode, Modes},
};
use crate::permissions::ModeChoice;

/// The value of a setting that the configuration decides.
const CONFIGURED: &str = "default";

const MODE: &str = "mode";
const TEAM: &str = "team";
const MODEL: &str = "model";

const MODES: [Mode; 3] = [
    Mode {
        id: "auto",
        name: "Auto",
        description: "Every call runs that no rule stops",
    },
    Mode {
        id: "careful",
        name: "Careful",
        description: "Calls that may change something ask",
    },
    Mode {
        id: "read-only",
        name: "Read-only",
        description: "Calls that may change something are refused",
    },
];

/// What the nodes offer.
#[derive(Debug, Default)]
pub struct Offers {
    pub teams: Vec<TeamRow>,
    pub models: Vec<ModelRow>,
}

/// A session without a prompt, which starts with its first one. So a client can choose its team, and
/// an editor that opens sessions and leaves them unused leaves nothing behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draft {
    pub dir: PathBuf,
    pub permissions: Option<ModeChoice>,
    pub team: Option<String>,
    /// The model that the client chose.
    pub model: Option<String>,
}

/// The values of the settings.
#[derive(Debug, PartialEq, Eq)]
pub struct Settings {
    mode: &'static str,
    team: String,
    model: String,
    /// Whether the session has started. Then only the model of its lead can change.
    has_started: bool,
}

impl Draft {
    /// Returns the settings. `model` is the one on the command line.
    pub fn settings(&self, model: Option<&str>) -> Settings {
        let named = |name: Option<&str>| name.unwrap_or(CONFIGURED).to_owned();
        Settings {
            mode: mode(self.permissions.map(ModeChoice::mode)),
            team: named(self.team.as_deref()),
            model: named(self.model.as_deref().or(model)),
            has_started: false,
        }
    }

    /// Changes a setting to one of the values that `settings` offers.
    pub fn set(&mut self, setting: &str, value: &str) {
        let chosen = Some(value.to_owned()).filter(|value| value != CONFIGURED);
        match setting {
            TEAM => self.team = chosen,
            MODEL => self.model = chosen,
            _ => self.permissions = ModeChoice::from_str(value, false).ok(),
        }
    }
}

impl Settings {
    /// Returns the settings of a session that has started. `model` is that of its lead.
    pub fn of(info: &SessionInfo, model: &ModelRef) -> Self {
        // The strictest layer decides.
        let layers = &info.permissions;
        let mut strictest = PermissionMode::ALL.iter().rev();
        let strictest = strictest.find(|mode| layers.iter().any(|layer| layer.mode == **mode));
        let lead = info.agents.first().map(|agent| agent.r#type.clone());
        Self {
            mode: mode(strictest.copied()),
            team: info
                .team
                .clone()
                .or(lead)
                .unwrap_or_else(|| CONFIGURED.into()),
            model: format!("{}:{}", model.provider, model.id),
            has_started: true,
        }
    }

    pub fn modes(&self) -> Modes {
        let available = MODES
            .into_iter()
            .filter(|mode| !self.has_started || mode.id == self.mode);
        Modes {
            current_mode_id: self.mode.to_owned(),
            available_modes: available.collect(),
        }
    }

    /// Returns the settings as config options. A current value is always one of the values.
    pub fn options(&self, offers: &Offers) -> Vec<ConfigOption> {
        let modes = self.modes().available_modes.into_iter();
        let modes = modes.map(|mode| value(mode.id, mode.name, mode.description));
        let configured = |what: &str| value(CONFIGURED, "Default", what);
        let teams = std::iter::once(configured("the team that the configuration names"));
        let teams = teams.chain(
            offers
                .teams
                .iter()
                .map(|team| value(&team.name, &team.name, &team.description)),
        );
        let models = (!self.has_started).then(|| configured("the models that the team names"));
        let models = models.into_iter();
        let models = models.chain(
            offers
                .models
                .iter()
                .map(|model| value(&model.id, &model.model, &model.provider)),
        );
        let teams = teams.filter(|team| !self.has_started || team.value == self.team);
        vec![
            select(MODE, "Permissions", Some("mode"), self.mode, modes),
            select(TEAM, "Team", None, &self.team, teams),
            select(MODEL, "Model", Some("model"), &self.model, models),
        ]
    }

    /// Returns an error unless a setting has this value among those that can be chosen.
    pub fn check(&self, offers: &Offers, setting: &str, value: &str) -> Result<(), RpcError> {
        let options = self.options(offers);
        let Some(option) = options.iter().find(|option| option.id == setting) else {
            let why =
                format!("there is no option `{setting}`; there are `mode`, `team` and `model`");
            return Err(RpcError::bad_params(why));
        };
        if option.options.iter().any(|known| known.value == value) {
            return Ok(());
        }
        let values = option.options.iter().map(|known| &*known.value);
        let values = values.take(20).collect::<Vec<_>>().join(", ");
        let why = match self.has_started && setting != MODEL {
            true => format!(
                "the {setting} of a session is fixed by its first prompt; start a new session with `{value}`"
            ),
            false => format!("`{value}` is no {setting}; there are {values}"),
        };
        Err(RpcError::bad_params(why))
    }
}

fn mode(mode: Option<PermissionMode>) -> &'static str {
    match mode {
        None | Some(PermissionMode::Auto) => "auto",
        Some(PermissionMode::Careful) => "careful",
        Some(PermissionMode::ReadOnly) => "read-only",
    }
}

fn value(value: &str, name: &str, description: &str) -> ConfigValue {
    ConfigValue {
        value: value.to_owned(),
        name: name.to_owned(),
        description: Some(description.to_owned()).filter(|text| !text.is_empty()),
    }
}

fn select(
    id: &'static str,
    name: &'static str,
    category: Option<&'static str>,
    current: &str,
    values: impl Iterator<Item = ConfigValue>,
) -> ConfigOption {
    let mut options: Vec<_> = values.collect();
    if !options.iter().any(|known| known.value == current) {
        options.insert(0, value(current, current, ""));
    }
    ConfigOption {
        kind: "select",
        id,
        name,
        category,
        current_value: current.to_owned(),
        options,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offers() -> Offers {
        let team = serde_json::json!({"name": "painter", "description": "paints", "members": []});
        let model = serde_json::json!({"id": "openai:gpt-5", "provider": "openai",
            "model": "gpt-5", "context_window": 1, "max_output": 1, "prices": null});
        Offers {
            teams: vec![serde_json::from_value(team).unwrap()],
            models: vec![serde_json::from_value(model).unwrap()],
        }
    }

    fn values(settings: &Settings) -> Vec<(String, Vec<String>)> {
        let options = settings.options(&offers()).into_iter();
        options
            .map(|option| {
                let values = option.options.into_iter().map(|known| known.value);
                (option.current_value, values.collect())
            })
            .collect()
    }

    fn expected(settings: &[(&str, &[&str])]) -> Vec<(String, Vec<String>)> {
        let texts = |values: &[&str]| values.iter().map(ToString::to_string).collect();
        settings
            .iter()
            .map(|(current, values)| (current.to_string(), texts(values)))
            .collect()
    }

    #[test]
    fn everything_is_chosen_before_the_first_prompt_and_then_only_the_model() {
        let mut draft = Draft {
            dir: "/work".into(),
            permissions: None,
            team: Some("./mine".into()),
            model: None,
        };
        let modes: &[&str] = &["auto", "careful", "read-only"];
        let settings = draft.settings(Some("x:y"));
        let before = expected(&[
            ("auto", modes),
            ("./mine", &["./mine", "default", "painter"]),
            ("x:y", &["x:y", "default", "openai:gpt-5"]),
        ]);
        assert_eq!(values(&settings), before);
        for (setting, value, is_good) in [
            (MODE, "careful", true),
            (MODE, "yolo", false),
            (TEAM, "painter", true),
            (TEAM, "unknown", false),
            (MODEL, "openai:gpt-5", true),
            ("speed", "fast", false),
        ] {
            let checked = settings.check(&offers(), setting, value);
            assert_eq!(checked.is_ok(), is_good, "{setting} {value}");
            if is_good {
                draft.set(setting, value);
            }
        }
        let after = expected(&[
            ("careful", modes),
            ("painter", &["default", "painter"]),
            ("openai:gpt-5", &["default", "openai:gpt-5"]),
        ]);
        assert_eq!(values(&draft.settings(None)), after);

        let started = Settings {
            has_started: true,
            ..draft.settings(None)
        };
        let fixed = expected(&[
            ("careful", &["careful"]),
            ("painter", &["painter"]),
            ("openai:gpt-5", &["openai:gpt-5"]),
        ]);
        assert_eq!(values(&started), fixed);
        let refused = started.check(&offers(), MODE, "auto").unwrap_err();
        assert!(refused.message.contains("first prompt"), "{refused:?}");
    }
}
