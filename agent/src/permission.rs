//! Placeholder until the evaluator is merged.

use planck_common::{
    event::ToolEffect,
    permission::{PermissionMode, Permissions, Rule, RuleAction},
};

pub struct CallFacts<'a> {
    pub tool: &'a str,
    pub effect: ToolEffect,
    pub sidecar: Option<&'a str>,
    pub args: &'a str,
    pub dir: &'a str,
}

pub struct Verdict {
    pub action: RuleAction,
    pub why: Option<String>,
}

pub enum Match {
    Yes,
    No,
    Unreadable,
}

pub fn judge(layers: &[Permissions], call: &CallFacts<'_>) -> Verdict {
    let action = layers
        .iter()
        .map(|layer| {
            layer
                .rules
                .iter()
                .find(|rule| matches!(matches(rule, call), Match::Yes))
                .map_or(
                    match layer.mode {
                        PermissionMode::Auto => RuleAction::Allow,
                        PermissionMode::Careful if call.effect != ToolEffect::Pure => {
                            RuleAction::Ask
                        }
                        PermissionMode::ReadOnly if call.effect != ToolEffect::Pure => {
                            RuleAction::Deny
                        }
                        PermissionMode::Careful | PermissionMode::ReadOnly => RuleAction::Allow,
                    },
                    |rule| rule.action,
                )
        })
        .max()
        .unwrap_or(RuleAction::Allow);
    Verdict { action, why: None }
}

pub fn matches(rule: &Rule, call: &CallFacts<'_>) -> Match {
    if rule.tool.as_deref().is_none_or(|tool| tool == call.tool) {
        Match::Yes
    } else {
        Match::No
    }
}

pub fn rule_for(call: &CallFacts<'_>) -> Option<Rule> {
    Some(Rule {
        tool: Some(call.tool.into()),
        effect: None,
        path: None,
        command: None,
        sidecar: None,
        action: RuleAction::Allow,
    })
}
