//! The header of a SKILL.md, which is YAML between two lines of `---`.

use planck_common::id::is_id;
use serde::Deserialize;

const FENCE: &str = "---";

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub name: String,
    pub description: String,
}

/// A mistake in a header, and how to correct it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadHeader {
    #[error(
        "the file does not begin with `---`; begin it with `---`, `name: …`, `description: …`, `---`"
    )]
    NotOpened,
    #[error("the header is not closed; end it with a line of `---`")]
    NotClosed { line: usize },
    #[error(
        "the header cannot be read: {what}; its values are texts, and one with a colon in it needs quotes"
    )]
    NotYaml { line: usize, what: String },
    #[error("the header has no `{field}`; add `{field}: …`")]
    Missing { field: &'static str, line: usize },
    #[error("`{name}` cannot name a skill; use 1 to 64 of A-Z a-z 0-9 _ -")]
    Name { name: String, line: usize },
}

impl BadHeader {
    /// Returns the line of the mistake in the file, counted from 1.
    pub fn line(&self) -> usize {
        match self {
            Self::NotOpened => 1,
            Self::NotClosed { line }
            | Self::NotYaml { line, .. }
            | Self::Missing { line, .. }
            | Self::Name { line, .. } => *line,
        }
    }
}

/// The fields of the header that Planck reads. All others are ignored, because they belong to other
/// programs.
#[derive(Deserialize)]
struct Fields {
    name: Option<String>,
    description: Option<String>,
}

/// Parses the header of a SKILL.md. `fallback` is the name of a skill whose header has none.
pub(super) fn parse(text: &str, fallback: Option<&str>) -> Result<Header, BadHeader> {
    let (yaml, _) = split(text)?;
    let fields: Fields = serde_saphyr::from_str(yaml).map_err(|why| not_yaml(&why))?;
    let missing = |field| BadHeader::Missing { field, line: 1 };
    let name = fields
        .name
        .filter(|name| !name.is_empty())
        .or(fallback.map(Into::into))
        .ok_or(missing("name"))?;
    let description = fields
        .description
        .map(|text| one_line(&text))
        .filter(|text| !text.is_empty())
        .ok_or(missing("description"))?;
    if !is_id(&name) {
        let line = 2 + yaml
            .lines()
            .take_while(|line| !line.trim_start().starts_with("name"))
            .count();
        return Err(BadHeader::Name { name, line });
    }
    Ok(Header { name, description })
}

/// Returns the text of a SKILL.md after its header, or the whole text if the header is not valid.
pub(super) fn body(text: &str) -> &str {
    split(text)
        .map_or(text, |(_, body)| body)
        .trim_start_matches(['\r', '\n'])
}

fn split(text: &str) -> Result<(&str, &str), BadHeader> {
    let text = text.trim_start_matches('\u{feff}');
    let mut lines = text.split_inclusive('\n');
    let opening = lines
        .next()
        .filter(|line| line.trim_end() == FENCE)
        .ok_or(BadHeader::NotOpened)?;
    let mut end = opening.len();
    for line in lines {
        if line.trim_end() == FENCE {
            let yaml = text.get(opening.len()..end).unwrap_or_default();
            return Ok((yaml, text.get(end + line.len()..).unwrap_or_default()));
        }
        end += line.len();
    }
    Err(BadHeader::NotClosed {
        line: text.lines().count().max(1),
    })
}

fn not_yaml(why: &serde_saphyr::Error) -> BadHeader {
    let within = why
        .location()
        .map_or(1, |location| usize::try_from(location.line()).unwrap_or(1));
    let text = why.to_string();
    let first = text.lines().next().unwrap_or_default();
    // The message contains a position that counts from the first line of the header. The position
    // is removed, because the error has its own.
    let what = first
        .split_once("column ")
        .and_then(|(_, rest)| rest.split_once(": "))
        .map_or(first, |(_, what)| what);
    BadHeader::NotYaml {
        line: within + 1,
        what: what.to_owned(),
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_has_a_name_and_a_description() {
        let text =
            "---\nname: review\ndescription: >\n  Reviews\n  code.\nlicense: MIT\n---\n\nDo it.\n";
        assert_eq!(
            parse(text, None),
            Ok(Header {
                name: "review".into(),
                description: "Reviews code.".into()
            })
        );
        assert_eq!(body(text), "Do it.\n");
        assert_eq!(
            parse(&text.replace('\n', "\r\n"), None).map(|header| header.name),
            Ok("review".into())
        );
    }

    #[test]
    fn a_mistake_is_reported_with_its_line() {
        let told = |text: &str| {
            let bad = parse(text, None).unwrap_err();
            format!("{}: {bad}", bad.line())
        };
        insta::assert_snapshot!(told("# Review\n"), @"1: the file does not begin with `---`; begin it with `---`, `name: …`, `description: …`, `---`");
        insta::assert_snapshot!(told("---\nname: review\n"), @"2: the header is not closed; end it with a line of `---`");
        insta::assert_snapshot!(told("---\nname: review\n---\n"), @"1: the header has no `description`; add `description: …`");
        insta::assert_snapshot!(told("---\ndescription: x\n---\n"), @"1: the header has no `name`; add `name: …`");
        insta::assert_snapshot!(told("---\ndescription: x\nname: code review\n---\n"), @"3: `code review` cannot name a skill; use 1 to 64 of A-Z a-z 0-9 _ -");
        insta::assert_snapshot!(told("---\nname: review\ndescription: a: b\n---\n"), @"3: the header cannot be read: mapping values are not allowed in this context; its values are texts, and one with a colon in it needs quotes");
        insta::assert_snapshot!(told("---\nname: [review]\ndescription: b\n---\n"), @"2: the header cannot be read: expected string scalar; its values are texts, and one with a colon in it needs quotes");
    }
}
