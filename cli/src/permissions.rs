//! Permissions in the words of the command line: the option `--permissions`, and what a session's
//! permissions say.

use std::collections::HashMap;

use clap::ValueEnum;
use futures_util::TryStreamExt as _;
use planck_common::{
    CallId, SessionId,
    envelope::Envelope,
    event::{Event, ToolEffect},
    permission::{PermissionMode, Permissions, Rule},
    wait::{WaitDecision, WaitScope},
};

use super::render::style::one_line;
use planck_client::Client;

/// Which tool calls of a new session run at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ModeChoice {
    /// Every call that no rule stops
    Auto,
    /// Only those that change nothing; the others ask
    Careful,
    /// Only those that change nothing; the others are refused
    ReadOnly,
}

impl ModeChoice {
    pub fn mode(self) -> PermissionMode {
        match self {
            Self::Auto => PermissionMode::Auto,
            Self::Careful => PermissionMode::Careful,
            Self::ReadOnly => PermissionMode::ReadOnly,
        }
    }
}

/// Returns the words that describe which calls a rule matches.
pub fn calls_of(rule: &Rule) -> String {
    let tool = rule.tool.as_deref().unwrap_or("any tool");
    let effect = rule.effect.map(|effect| match effect {
        ToolEffect::Pure => "pure",
        ToolEffect::Idempotent => "idempotent",
        ToolEffect::Mutating => "mutating",
    });
    let fields = [
        ("effect", effect),
        ("command", rule.command.as_deref()),
        ("path", rule.path.as_deref()),
        ("sidecar", rule.sidecar.as_deref()),
    ];
    let fields = fields
        .into_iter()
        .filter_map(|(name, value)| Some(format!(" with {name} `{}`", one_line(value?, 80))));
    format!("{}{}", one_line(tool, 40), fields.collect::<String>())
}

/// Describes the layers of an agent's permissions, one line for each rule and each mode.
pub fn described(layers: &[Permissions]) -> String {
    if layers.is_empty() {
        return "  every call runs\n".into();
    }
    let mut lines = Vec::new();
    for layer in layers {
        let rules = layer.rules.iter();
        lines.extend(rules.map(|rule| format!("  {}: {}\n", rule.action.name(), calls_of(rule))));
        let other = match layer.mode {
            PermissionMode::Auto => "every other call runs",
            PermissionMode::Careful => "other calls that may change something ask",
            PermissionMode::ReadOnly => "other calls that may change something are refused",
        };
        lines.push(format!("  mode {}: {other}\n", layer.mode.name()));
    }
    lines.join("")
}

/// Describes who may do what in a session: the permissions of each agent, and the rules that answers
/// have added.
pub async fn of_session(client: &Client, session: &SessionId) -> anyhow::Result<String> {
    let info = client.session(session).await?;
    let mut groups: Vec<(Vec<String>, Vec<Permissions>)> = Vec::new();
    for agent in &info.agents {
        let layers = client.agent(&agent.id).await?.permissions;
        match groups.iter_mut().find(|(_, known)| *known == layers) {
            Some((names, _)) => names.push(agent.name.clone()),
            None => groups.push((vec![agent.name.clone()], layers)),
        }
    }
    let mut text: String = groups
        .iter()
        .map(|(names, layers)| format!("{}\n{}", names.join(", "), described(layers)))
        .collect();
    if groups.iter().any(|(_, layers)| layers.len() > 1) {
        text += "the strictest line that fits a call decides: denied before asked before allowed\n";
    }
    let learnt = learnt(client, session, info.head).await?;
    if !learnt.is_empty() {
        text += "answers allow, for this session\n";
        text.extend(learnt.iter().map(|rule| format!("  {}\n", calls_of(rule))));
    }
    Ok(text)
}

/// Returns the rules that answers have added, from the session's log.
async fn learnt(client: &Client, session: &SessionId, head: i64) -> anyhow::Result<Vec<Rule>> {
    let (mut offered, mut learnt) = (HashMap::<CallId, Rule>::new(), Vec::new());
    let mut pages = client.pages(session, 1, head);
    while let Some(page) = pages.try_next().await? {
        let events = page.iter();
        let events = events.filter_map(|event| serde_json::from_str::<Envelope>(event.get()).ok());
        for event in events.filter(|event| event.hidden_by.is_none()) {
            match event.event() {
                Some(Ok(Event::WaitOpened(wait))) => {
                    offered.extend(wait.rule.map(|rule| (wait.id, rule)))
                }
                Some(Ok(Event::WaitClosed(closed))) => {
                    let rule = offered.remove(&closed.id);
                    let adds = closed.decision == WaitDecision::Allow
                        && closed.scope == Some(WaitScope::Session);
                    learnt.extend(rule.filter(|rule| adds && !learnt.contains(rule)));
                }
                Some(_) | None => {}
            }
        }
    }
    Ok(learnt)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn permissions_are_described_line_by_line() {
        let layers = json!([
            { "mode": "careful", "rules": [
                { "tool": "bash", "command": "git push *", "action": "deny" },
                { "path": "docs/**", "action": "allow" },
            ]},
            { "mode": "auto", "rules": [{ "effect": "mutating", "action": "ask" }] },
        ]);
        let layers: Vec<Permissions> = serde_json::from_value(layers).unwrap();
        insta::assert_snapshot!(described(&layers), @r"
          deny: bash with command `git push *`
          allow: any tool with path `docs/**`
          mode careful: other calls that may change something ask
          ask: any tool with effect `mutating`
          mode auto: every other call runs
        ");
        assert_eq!(described(&[]), "  every call runs\n");
    }

    #[test]
    fn the_words_of_the_option_are_the_names_of_the_modes() {
        for choice in ModeChoice::value_variants() {
            let word = choice.to_possible_value().unwrap();
            assert_eq!(word.get_name(), choice.mode().name());
        }
        assert_eq!(
            ModeChoice::value_variants().len(),
            PermissionMode::ALL.len()
        );
    }

    #[test]
    fn rule_is_described_by_its_fields() {
        let of = |value: Value| calls_of(&serde_json::from_value(value).unwrap());
        assert_eq!(
            of(json!({ "tool": "bash", "command": "git push", "action": "allow" })),
            "bash with command `git push`"
        );
        assert_eq!(of(json!({ "tool": "read", "action": "allow" })), "read");
    }
}
