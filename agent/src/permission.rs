//! Decides by rules whether a tool call runs at once, after an approval, or not at all. Rules are a
//! convenience for people, and no wall: they compare texts, and a tool may do more than its
//! arguments say. The sandbox is the wall.

mod command;
mod path;

use std::cell::OnceCell;

use serde::Deserialize;

use planck_common::{
    event::{ToolEffect, json},
    id::is_id,
    permission::{
        PermissionMode, Permissions, Rule, RuleAction, RuleArgument, RuleArguments, SESSION_TOOLS,
    },
};

use self::{
    command::{CommandPattern, ShellCommand},
    path::{CallPath, PathPattern, name_fits},
};
use crate::model::ToolSpec;

/// The argument with which a call of the tool `bash` asks to leave the sandbox, as a key of its
/// schema.
const UNSANDBOXED: &str = r#""unsandboxed":"#;

/// Why a call that asks to leave the sandbox waits for a person.
const OUTSIDE: &str = "the command would run OUTSIDE of the sandbox, with all your rights: your files, keys and network";

/// The facts about a call that rules look at.
#[derive(Debug, Clone, Copy)]
pub struct CallFacts<'a> {
    pub tool: &'a str,
    pub effect: ToolEffect,
    /// The sidecar that offers the tool.
    pub sidecar: Option<&'a str>,
    /// The text of the arguments, which should be a JSON object.
    pub args: &'a str,
    /// The session's working directory. Only an absolute path is of use.
    pub dir: &'a str,
}

/// The decision about a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    pub action: RuleAction,
    /// For a denial or a question, the rule or the mode that decided, for the model or the person.
    pub why: Option<String>,
}

/// Whether a rule matches a call. The order is the one in which results about several fields, or
/// about several parts of a command, combine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Match {
    No,
    /// The arguments that the rule needs cannot be read, or do not say whether the rule matches.
    Unreadable,
    Yes,
}

impl Match {
    fn of(fits: bool) -> Self {
        if fits { Self::Yes } else { Self::No }
    }
}

/// Returns the decision of the strictest layer. Without layers every call runs.
pub fn judge(layers: &[Permissions], call: &CallFacts<'_>) -> Verdict {
    let call = ReadCall::new(call);
    let mut strictest = Verdict::allow();
    for verdict in layers.iter().map(|layer| call.judge(layer)) {
        if verdict.action > strictest.action {
            strictest = verdict;
        }
    }
    strictest
}

/// Returns whether a call asks to leave the sandbox, which only a person can allow. The schema says
/// whether the tool has the argument. Every value but a clear `false` counts, also one that occurs
/// twice.
pub fn leaves_sandbox(tool: &ToolSpec, args: &str) -> bool {
    #[derive(Deserialize)]
    struct Asked {
        #[serde(default)]
        unsandboxed: Option<bool>,
    }
    let has_argument = tool.name == "bash"
        && tool.sidecar.is_none()
        && tool.wait.is_none()
        && tool.parameters.get().contains(UNSANDBOXED);
    let asked = || serde_json::from_str(args).map(|Asked { unsandboxed }| unsandboxed);
    has_argument && !matches!(asked(), Ok(None | Some(false)))
}

/// Compares a rule with a call.
pub fn matches(rule: &Rule, call: &CallFacts<'_>) -> Match {
    ReadCall::new(call).matches(rule)
}

/// Returns the narrowest rule that allows a call like this one: for a call with a command that
/// command, for a call with a path that path, otherwise the tool. Returns `None` if no rule can
/// describe the call: its arguments cannot be read, or its command is not a simple one.
pub fn rule_for(call: &CallFacts<'_>) -> Option<Rule> {
    let read = CallArguments::read(call)?;
    let command = match &read.command {
        ArgumentValue::Missing => None,
        ArgumentValue::Unreadable => return None,
        ArgumentValue::Given((text, command)) => {
            Some(text.clone()).filter(|_| command.is_exact() && !read.elsewhere)
        }
    };
    let path = match &read.path {
        ArgumentValue::Missing => None,
        ArgumentValue::Unreadable => return None,
        ArgumentValue::Given(path) => Some(path.pattern()?),
    };
    let rule = Rule {
        tool: Some(call.tool.into()),
        effect: None,
        path,
        command,
        sidecar: call.sidecar.map(Into::into),
        action: RuleAction::Allow,
    };
    // A name with a `*` would match other tools too, and a rule for a call with a command that no
    // rule can describe would match every command. Both fail this comparison or the next one.
    let is_narrow = planck_common::id::is_id(call.tool)
        && rule.command.is_some() == matches!(read.command, ArgumentValue::Given(_));
    let is_valid = is_narrow && check(std::slice::from_ref(&rule)).is_empty();
    (is_valid && matches(&rule, call) == Match::Yes).then_some(rule)
}

/// A call, with its arguments once a rule has needed them.
struct ReadCall<'a> {
    call: &'a CallFacts<'a>,
    args: OnceCell<Option<CallArguments>>,
}

/// The arguments of a call at which rules look.
struct CallArguments {
    path: ArgumentValue<CallPath>,
    /// The command, and its text.
    command: ArgumentValue<(String, ShellCommand)>,
    /// The command runs in another directory than the session's, as far as the call says.
    elsewhere: bool,
}

enum ArgumentValue<T> {
    Missing,
    Unreadable,
    Given(T),
}

impl<T> ArgumentValue<T> {
    fn read(value: Option<&RuleArgument>, read: impl FnOnce(&str) -> Option<T>) -> Self {
        match value {
            None => Self::Missing,
            Some(value) => value
                .as_str()
                .and_then(read)
                .map_or(Self::Unreadable, Self::Given),
        }
    }
}

impl CallArguments {
    fn read(call: &CallFacts<'_>) -> Option<Self> {
        let args = RuleArguments::read(call.args)?;
        let path = |text: &str| CallPath::read(text, call.dir);
        let cwd = ArgumentValue::read(args.cwd.as_ref(), path);
        Some(Self {
            path: ArgumentValue::read(args.path.as_ref(), path),
            command: ArgumentValue::read(args.command.as_ref(), |text| {
                Some((text.to_owned(), ShellCommand::read(text)))
            }),
            elsewhere: match cwd {
                ArgumentValue::Missing => false,
                ArgumentValue::Unreadable => true,
                ArgumentValue::Given(cwd) => !cwd.is_dir(),
            },
        })
    }

    /// Compares the path. A call without one is about no path, so no rule about paths matches.
    fn path_matches(&self, pattern: &str, action: RuleAction) -> Match {
        match (&self.path, PathPattern::parse(pattern)) {
            (ArgumentValue::Missing, _) => Match::No,
            (ArgumentValue::Unreadable, _) | (_, Err(_)) => Match::Unreadable,
            (ArgumentValue::Given(path), Ok(pattern)) => path.matches(&pattern, action),
        }
    }

    /// Compares the command. In another directory the same words may run another program, so an
    /// `allow` rule matches only in the session's.
    fn command_matches(&self, pattern: &str, action: RuleAction) -> Match {
        match (&self.command, CommandPattern::parse(pattern)) {
            (ArgumentValue::Missing, _) => Match::No,
            (ArgumentValue::Unreadable, _) | (_, Err(_)) => Match::Unreadable,
            (ArgumentValue::Given(_), Ok(_)) if self.elsewhere && action == RuleAction::Allow => {
                Match::No
            }
            (ArgumentValue::Given((_, command)), Ok(pattern)) => command.matches(&pattern, action),
        }
    }
}

impl<'a> ReadCall<'a> {
    fn new(call: &'a CallFacts<'a>) -> Self {
        Self {
            call,
            args: OnceCell::new(),
        }
    }

    /// Returns the decision of one layer: that of the first rule that matches, otherwise that of
    /// the mode. A rule that cannot read the arguments that it needs might have decided here in
    /// either way, so the call cannot simply run, whatever follows. But such a rule must not make
    /// the layer wider either: if a later rule or the mode denies the call, the call is denied.
    fn judge(&self, layer: &Permissions) -> Verdict {
        let mut unread = Verdict::allow();
        for rule in &layer.rules {
            match self.matches(rule) {
                Match::No => {}
                Match::Unreadable if unread.action == RuleAction::Allow => {
                    unread = Verdict::unreadable(rule);
                }
                Match::Unreadable => {}
                Match::Yes => return unread.or_stricter(Verdict::of_rule(rule)),
            }
        }
        unread.or_stricter(self.judge_by_mode(layer.mode))
    }

    fn judge_by_mode(&self, mode: PermissionMode) -> Verdict {
        let (action, does) = match mode {
            PermissionMode::Careful if self.may_change_something() => {
                (RuleAction::Ask, "asks about")
            }
            PermissionMode::ReadOnly if self.may_change_something() => (RuleAction::Deny, "denies"),
            PermissionMode::Auto | PermissionMode::Careful | PermissionMode::ReadOnly => {
                return Verdict::allow();
            }
        };
        let name = mode.name();
        Verdict {
            action,
            why: Some(format!(
                "the mode {name} {does} calls that may change something"
            )),
        }
    }

    /// Returns whether the call may change something outside its session. An idempotent tool may,
    /// because its declaration says only that a second run changes nothing more.
    fn may_change_something(&self) -> bool {
        let acts_in_session =
            self.call.sidecar.is_none() && SESSION_TOOLS.contains(&self.call.tool);
        self.call.effect != ToolEffect::Pure && !acts_in_session
    }

    fn matches(&self, rule: &Rule) -> Match {
        let call = self.call;
        let is_about = rule
            .tool
            .as_ref()
            .is_none_or(|tool| name_fits(tool, call.tool))
            && rule.effect.is_none_or(|effect| effect == call.effect)
            && rule
                .sidecar
                .as_ref()
                .is_none_or(|sidecar| call.sidecar == Some(sidecar.as_str()));
        if !is_about {
            return Match::No;
        }
        if rule.path.is_none() && rule.command.is_none() {
            return Match::Yes;
        }
        let Some(args) = self.args.get_or_init(|| CallArguments::read(call)) else {
            return Match::Unreadable;
        };
        let path = rule
            .path
            .as_ref()
            .map(|pattern| args.path_matches(pattern, rule.action));
        let command = rule
            .command
            .as_ref()
            .map(|pattern| args.command_matches(pattern, rule.action));
        path.into_iter().chain(command).min().unwrap_or(Match::Yes)
    }
}

impl Verdict {
    /// Returns the verdict about a call that asks to leave the sandbox. No rule can allow it.
    pub(super) fn or_ask_to_leave_sandbox(self) -> Self {
        match self.action {
            RuleAction::Deny => self,
            RuleAction::Allow | RuleAction::Ask => Self {
                action: RuleAction::Ask,
                why: Some(OUTSIDE.into()),
            },
        }
    }

    fn allow() -> Self {
        Self {
            action: RuleAction::Allow,
            why: None,
        }
    }

    fn of_rule(rule: &Rule) -> Self {
        let does = match rule.action {
            RuleAction::Allow => return Self::allow(),
            RuleAction::Ask => "asks about it",
            RuleAction::Deny => "denies it",
        };
        Self {
            action: rule.action,
            why: Some(format!("the rule {} {does}", json(rule))),
        }
    }

    fn unreadable(rule: &Rule) -> Self {
        let rule = json(rule);
        Self {
            action: RuleAction::Ask,
            why: Some(format!(
                "the rule {rule} asks, because the arguments do not show whether it matches"
            )),
        }
    }

    fn or_stricter(self, other: Self) -> Self {
        if other.action > self.action {
            other
        } else {
            self
        }
    }
}

/// Returns whether a text fits a pattern in which a star stands for any number of items. After a
/// mismatch only the last star takes one item more, so the time is at most the product of the two
/// lengths.
fn wildcard<P, T>(
    pattern: &[P],
    text: &[T],
    is_star: impl Fn(&P) -> bool,
    fits: impl Fn(&P, &T) -> bool,
) -> bool {
    let (mut at, mut from) = (0, 0);
    let mut star = None;
    while let Some(item) = text.get(from) {
        match pattern.get(at) {
            Some(wanted) if is_star(wanted) => {
                star = Some((at, from));
                at += 1;
            }
            Some(wanted) if fits(wanted, item) => (at, from) = (at + 1, from + 1),
            Some(_) | None => {
                let Some((starred, taken)) = star else {
                    return false;
                };
                star = Some((starred, taken + 1));
                (at, from) = (starred + 1, taken + 1);
            }
        }
    }
    pattern.get(at..).unwrap_or_default().iter().all(is_star)
}

// Checks rules before they are used.

/// The maximum number of rules of one author.
pub const MOST_RULES: usize = 200;

/// The maximum length of a pattern in bytes.
pub const LONGEST_PATTERN: usize = 4_096;

/// A mistake in a list of rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleMistake {
    /// The position of the rule and the field, such as `[2].path`. Empty for the whole list.
    pub field: String,
    pub what: String,
    pub remedy: &'static str,
}

type Fault = (&'static str, &'static str);

/// Returns all mistakes in a list of rules.
pub fn check(rules: &[Rule]) -> Vec<RuleMistake> {
    let too_many = (rules.len() > MOST_RULES).then(|| RuleMistake {
        field: String::new(),
        what: format!("{} rules", rules.len()),
        remedy: "write at most 200; one rule with `*` can replace several",
    });
    let each = rules.iter().take(MOST_RULES).enumerate();
    too_many
        .into_iter()
        .chain(each.flat_map(|(at, rule)| check_rule(at, rule)))
        .collect()
}

fn check_rule(at: usize, rule: &Rule) -> impl Iterator<Item = RuleMistake> {
    let fields = [
        ("tool", &rule.tool, tool as fn(&str) -> Result<(), Fault>),
        ("path", &rule.path, |text| {
            PathPattern::parse(text).map(drop)
        }),
        ("command", &rule.command, |text| {
            CommandPattern::parse(text).map(drop)
        }),
        ("sidecar", &rule.sidecar, sidecar),
    ];
    fields.into_iter().filter_map(move |(field, text, check)| {
        let (what, remedy) = length(text.as_deref()?).and_then(check).err()?;
        Some(RuleMistake {
            field: format!("[{at}].{field}"),
            what: what.into(),
            remedy,
        })
    })
}

fn length(text: &str) -> Result<&str, Fault> {
    match text.len() {
        0 => Err(("it is empty", "write a pattern, or leave the field out")),
        1..=LONGEST_PATTERN => Ok(text),
        _ => Err(("longer than 4096 bytes", "write a shorter pattern with `*`")),
    }
}

fn tool(text: &str) -> Result<(), Fault> {
    if text.contains("**") {
        return Err(("`**` is only for paths", "write one `*`"));
    }
    let letters = text.replace('*', "");
    if letters.is_empty() || letters.bytes().all(is_name_byte) {
        Ok(())
    } else {
        Err((
            "no tool can have this name",
            "write the tool's name, with `*` for any characters; a sidecar's name belongs into `sidecar`",
        ))
    }
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')
}

fn sidecar(text: &str) -> Result<(), Fault> {
    if is_id(text) {
        Ok(())
    } else {
        Err((
            "no sidecar can have this name",
            "write the sidecar's whole name, of A-Z a-z 0-9 _ -",
        ))
    }
}

#[cfg(test)]
mod tests;
