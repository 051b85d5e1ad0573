//! Checks rules before they are used.

use planck_common::{id::is_id, permission::Rule};

use super::{CommandPattern, PathPattern};

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
