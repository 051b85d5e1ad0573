//! The MCP servers that a project has for other programs, in its `.mcp.json`. Each server that can be
//! used becomes the values of an entry of `mcp`.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
};

use planck_common::id::is_id;
use planck_mcp::ServerUrl;
use serde::{Deserialize, de::IgnoredAny};
use serde_json::value::RawValue;
use toml::Value;

use super::{
    setting::{ConfiguredUrl, HeaderText, ServerVariable, Setting},
    values::{GivenValues, KeyPath, Raw, ValueContext, ValueOrigin},
};

/// The maximum number of servers in a file.
const MOST: usize = 64;

/// A server as it stands in the file. Fields that are not named here are those of other programs, and
/// change nothing.
#[derive(Debug, Deserialize)]
struct Server {
    #[serde(rename = "type")]
    kind: Option<String>,
    command: Option<String>,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    url: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    disabled: bool,
    cwd: Option<IgnoredAny>,
    #[serde(rename = "envFile")]
    env_file: Option<IgnoredAny>,
}

/// A server of a file that may be used, or why it is not.
struct Entry {
    name: String,
    line: usize,
    server: Result<Server, String>,
}

/// The values that a file gives to the entries of `mcp`.
#[derive(Default)]
pub struct ServerValues {
    /// The values by the name of the server.
    pub values: BTreeMap<String, Vec<(KeyPath, GivenValues)>>,
    /// The servers that cannot be used, each as a line that names the file and the reason.
    pub left_out: Vec<String>,
}

/// Returns the values of the servers of a file. Leaves out those for which `is_taken` holds, because
/// another entry with the same name replaces the whole server.
pub fn values(
    path: &Path,
    text: &str,
    world: &ValueContext,
    is_taken: impl Fn(&str) -> bool,
) -> ServerValues {
    let mut read = ServerValues::default();
    let entries = match entries(text) {
        Ok(entries) => entries,
        Err(why) => {
            read.left_out.push(format!("{}: {why}", path.display()));
            return read;
        }
    };
    let shared = Arc::new(PathBuf::from(path));
    for Entry { name, line, server } in entries {
        if is_taken(&name) {
            continue;
        }
        let origin = ValueOrigin::File {
            path: Arc::clone(&shared),
            line,
        };
        match server.and_then(|server| server.values(world)) {
            Ok(values) => {
                let at = KeyPath::of("mcp").then(&name);
                let given = values.into_iter().map(|(words, value)| {
                    let key = words.iter().fold(at.clone(), |key, word| key.then(word));
                    let (raw, origin) = (Raw::Toml(value), origin.clone());
                    (key, GivenValues { raw, origin })
                });
                read.values.insert(name, given.collect());
            }
            Err(why) => read.left_out.push(format!(
                "{origin}: the MCP server {name:?} is left out: {why}"
            )),
        }
    }
    read
}

/// Describes the servers of a file for the user who decides whether to trust it: a line for each. The
/// values of variables and headers are not shown.
pub fn described(text: &str) -> Vec<String> {
    let entries = match entries(text) {
        Ok(entries) => entries,
        Err(why) => return vec![format!("left out: {why}")],
    };
    let line = |Entry { name, server, .. }: Entry| match server {
        Ok(server) => format!("MCP server {name} {}", server.described()),
        Err(why) => format!("MCP server {name:?} is left out: {why}"),
    };
    entries.into_iter().map(line).collect()
}

#[derive(Deserialize)]
struct Document<'a> {
    #[serde(rename = "mcpServers", borrow)]
    servers: BTreeMap<String, &'a RawValue>,
}

fn entries(text: &str) -> Result<Vec<Entry>, String> {
    let Document { servers } = serde_json::from_str(text)
        .map_err(|why| format!("it is no JSON object with `mcpServers`: {why}"))?;
    if servers.len() > MOST {
        return Err(format!(
            "it has {} servers, and at most {MOST} can be used",
            servers.len()
        ));
    }
    let entry = |(name, raw): (String, &RawValue)| Entry {
        line: line_of(text, raw),
        server: serde_json::from_str(raw.get())
            .map_err(|why| format!("it is not an entry of a server: {}", plain(&why)))
            .and_then(|server: Server| server.check(&name).map(|()| server)),
        name,
    };
    Ok(servers.into_iter().map(entry).collect())
}

/// Returns the line of a text in which a part of the text begins.
fn line_of(text: &str, part: &RawValue) -> usize {
    let at = part.get().as_ptr().addr() - text.as_ptr().addr();
    let before = text.as_bytes().iter().take(at);
    before.filter(|byte| **byte == b'\n').count() + 1
}

/// Returns a mistake without its position, which would be that in the entry.
fn plain(why: &serde_json::Error) -> String {
    let text = why.to_string();
    let end = text.find(" at line ").unwrap_or(text.len());
    text.get(..end).unwrap_or_default().to_owned()
}

impl Server {
    fn check(&self, name: &str) -> Result<(), String> {
        let own = format!("write `[mcp.{name}]` in .planck/config.toml instead");
        if !is_id(name) {
            return Err(
                "this cannot name a sidecar; use 1 to 64 of A-Z a-z 0-9 _ - as its name".into(),
            );
        }
        if self.disabled {
            return Err("it is disabled in the file".into());
        }
        let others = [("cwd", &self.cwd), ("envFile", &self.env_file)];
        if let Some((field, _)) = others.iter().find(|(_, field)| field.is_some()) {
            return Err(format!("`{field}` is not supported; {own}"));
        }
        let needs_command = match self.kind.as_deref() {
            None => self.url.is_none(),
            Some("stdio") => true,
            Some("http" | "streamable-http" | "streamableHttp") => false,
            Some("sse") => {
                return Err("the transport `sse` is not supported; give the address of its streamable HTTP the type `http`".into());
            }
            Some(other) => {
                return Err(format!(
                    "its type {other:?} is not known; write `stdio` or `http`"
                ));
            }
        };
        match (needs_command, &self.command, &self.url) {
            (true, Some(command), None) if !command.is_empty() => Ok(()),
            (false, None, Some(_)) => Ok(()),
            (_, Some(_), Some(_)) => {
                Err("it has both `command` and `url`; take one of them out".into())
            }
            (true, ..) => Err("it has no `command`; write the program that starts it".into()),
            (false, ..) => Err("it has no `url`; write its address".into()),
        }
    }

    /// Returns the values of the keys below the entry of the server, with the variables of this
    /// process in the place of their names.
    fn values(self, world: &ValueContext) -> Result<Vec<(Vec<String>, Value)>, String> {
        let put_in = |text: &str| {
            filled(text, |name| world.environment.get(name).cloned()).map_err(|name| {
                format!("the variable `{name}` is not set; set it, or write `${{{name}:-DEFAULT}}`")
            })
        };
        let Some(url) = self.url else {
            let words = self.command.iter().chain(&self.args);
            let words = words.map(|word| put_in(word).map(Value::from));
            let variables = self.env.iter().map(|(name, value)| {
                let variable = format!("{name}={}", put_in(value)?);
                let is_valid = ServerVariable::parse(&Raw::Text(variable.clone()), world);
                is_valid.map_err(|wrong| format!("{}; {}", wrong.what, wrong.remedy))?;
                Ok(Value::from(variable))
            });
            return Ok(vec![
                (
                    vec!["command".into()],
                    Value::Array(words.collect::<Result<_, String>>()?),
                ),
                (
                    vec!["env".into()],
                    Value::Array(variables.collect::<Result<_, String>>()?),
                ),
            ]);
        };
        let url = put_in(&url)?;
        url.parse::<ServerUrl>()?;
        let mut values = vec![(vec!["url".into()], Value::from(url))];
        for (name, value) in &self.headers {
            let value = put_in(value)?;
            // In a configuration this would be a reference.
            if ["env:", "file:"]
                .iter()
                .any(|start| value.starts_with(start))
            {
                return Err(format!(
                    "the header `{name}` begins with `env:` or `file:`; write `${{NAME}}` for a variable"
                ));
            }
            let is_valid = HeaderText::parse(&Raw::Text(value.clone()), world);
            is_valid.map_err(|wrong| format!("the header `{name}`: {}", wrong.what))?;
            values.push((vec!["headers".into(), name.clone()], Value::from(value)));
        }
        Ok(values)
    }

    fn described(&self) -> String {
        let words = self.command.iter().chain(&self.args);
        let texts = words.clone().chain(&self.url);
        let texts = texts.chain(self.env.values()).chain(self.headers.values());
        let mut read = BTreeSet::new();
        for text in texts {
            let _none_is_missing = filled(text, |name| {
                read.insert(name.to_owned());
                Some(String::new())
            });
        }
        let mut line = match &self.url {
            Some(url) => format!("is at {}", ConfiguredUrl::new(url.clone())),
            None => format!("runs {:?}", words.collect::<Vec<_>>()),
        };
        for (what, names) in [
            ("sets", self.env.keys().collect::<Vec<_>>()),
            ("sends the headers", self.headers.keys().collect()),
            ("reads your variables", read.iter().collect()),
        ] {
            if !names.is_empty() {
                let names: Vec<&str> = names.into_iter().map(String::as_str).collect();
                line.push_str(&format!(", {what} {}", names.join(" ")));
            }
        }
        line
    }
}

/// Puts the values of variables in the place of `${NAME}` and `${NAME:-DEFAULT}`. Fails with the name of
/// a variable that has neither a value nor a default.
fn filled(text: &str, mut variable: impl FnMut(&str) -> Option<String>) -> Result<String, String> {
    let (mut whole, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once("${") {
        let Some((inside, after)) = after.split_once('}') else {
            break;
        };
        let (name, default) = match inside.split_once(":-") {
            Some((name, default)) => (name, Some(default.to_owned())),
            None => (inside, None),
        };
        whole.push_str(before);
        whole.push_str(&variable(name).or(default).ok_or_else(|| name.to_owned())?);
        rest = after;
    }
    Ok(whole + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> ServerValues {
        let environment = [("TOKEN", "secret"), ("REFERENCE", "file:/etc/passwd")];
        let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let world = ValueContext {
            environment: environment.into(),
            ..ValueContext::default()
        };
        values(Path::new("/repo/.mcp.json"), text, &world, |name| {
            name == "taken"
        })
    }

    fn one(server: &str) -> ServerValues {
        read(&format!("{{\"mcpServers\": {{\"one\": {server}}}}}"))
    }

    #[test]
    fn servers_become_entries() {
        let text = r#"{
            "mcpServers": {
                "db": {
                    "command": "npx", "args": ["-y", "db", "--url=${URL:-http://a:1}", "${TOKEN}"],
                    "env": {"LEVEL": "debug", "KEY": "<${TOKEN}>", "EMPTY": ""}, "alwaysAllow": [1]
                },
                "taken": {"command": "evil"},

                "issues": {"type": "http", "url": "https://a/${TOKEN}", "headers": {"Authorization": "Bearer ${TOKEN}"}}
            },
            "other": 1
        }"#;
        let read = read(text);
        assert_eq!(read.left_out, Vec::<String>::new());
        let lines = read.values.into_values().flatten().map(|(key, given)| {
            let Raw::Toml(value) = given.raw else {
                panic!("{key}")
            };
            format!("{key} = {value} from {}", given.origin)
        });
        insta::assert_snapshot!(lines.collect::<Vec<_>>().join("\n"), @r#"
        mcp.db.command = ["npx", "-y", "db", "--url=http://a:1", "secret"] from /repo/.mcp.json:3
        mcp.db.env = ["EMPTY=", "KEY=<secret>", "LEVEL=debug"] from /repo/.mcp.json:3
        mcp.issues.url = "https://a/secret" from /repo/.mcp.json:9
        mcp.issues.headers.Authorization = "Bearer secret" from /repo/.mcp.json:9
        "#);
        insta::assert_snapshot!(described(text).join("\n"), @r#"
        MCP server db runs ["npx", "-y", "db", "--url=${URL:-http://a:1}", "${TOKEN}"], sets EMPTY KEY LEVEL, reads your variables TOKEN URL
        MCP server issues is at https://a/${TOKEN}, sends the headers Authorization, reads your variables TOKEN
        MCP server taken runs ["evil"]
        "#);
    }

    #[test]
    fn server_that_cannot_be_used_is_named_and_stops_no_other() {
        for (server, told) in [
            ("1", "invalid type: integer `1`"),
            (r#"{"command": ["npx"]}"#, "invalid type: sequence"),
            (r#"{"env": {"A": 1}}"#, "invalid type: integer `1`"),
            ("{}", "it has no `command`"),
            (r#"{"command": ""}"#, "it has no `command`"),
            (r#"{"type": "http"}"#, "it has no `url`"),
            (
                r#"{"type": "stdio", "url": "http://a"}"#,
                "it has no `command`",
            ),
            (
                r#"{"command": "a", "url": "http://a"}"#,
                "both `command` and `url`",
            ),
            (
                r#"{"type": "sse", "url": "http://a"}"#,
                "`sse` is not supported",
            ),
            (
                r#"{"type": "ws", "url": "ws://a"}"#,
                "type \"ws\" is not known",
            ),
            (r#"{"command": "a", "disabled": true}"#, "disabled"),
            (r#"{"command": "a", "cwd": "/home"}"#, "`[mcp.one]`"),
            (r#"{"command": "a", "envFile": ".env"}"#, "`envFile` is not"),
            (
                r#"{"command": "a", "args": ["${NONE}"]}"#,
                "`NONE` is not set",
            ),
            (
                r#"{"command": "a", "env": {"B": "${env:TOKEN}"}}"#,
                "`env:TOKEN` is not set",
            ),
            (r#"{"command": "a", "env": {"": "b"}}"#, "names no variable"),
            (
                r#"{"command": "a", "env": {"LD_PRELOAD": "./evil.so"}}"#,
                "outside of the sandbox",
            ),
            (r#"{"url": "file:/etc/passwd"}"#, "http://"),
            (r#"{"url": "${REFERENCE}"}"#, "http://"),
            (
                r#"{"url": "http://a", "headers": {"A": "file:/etc/passwd"}}"#,
                "begins with",
            ),
            (
                r#"{"url": "http://a", "headers": {"A": "${REFERENCE}"}}"#,
                "begins with",
            ),
            (
                r#"{"url": "http://a", "headers": {"A": "b\nc: d"}}"#,
                "control characters",
            ),
        ] {
            let both = format!(
                "{{\"mcpServers\":\n{{\"one\": {server}, \"two\": {{\"command\": \"b\"}}}}}}"
            );
            let read = read(&both);
            let [left_out] = read.left_out.as_slice() else {
                panic!("{server}: {:?}", read.left_out)
            };
            let start = "/repo/.mcp.json:2: the MCP server \"one\" is left out: ";
            assert!(
                left_out.starts_with(start) && left_out.contains(told),
                "{server}: {left_out}"
            );
            assert_eq!(Vec::from_iter(read.values.keys()), ["two"]);
        }
        let wrong_names =
            read(r#"{"mcpServers": {"a b\u001b": {"command": "a"}, "": {"command": "a"}}}"#);
        assert_eq!(wrong_names.left_out.len(), 2, "{:?}", wrong_names.left_out);
        assert!(
            wrong_names
                .left_out
                .iter()
                .all(|line| !line.contains('\x1b'))
        );
    }

    #[test]
    fn file_that_is_no_list_of_servers_is_named() {
        let many = (0..=MOST).map(|number| format!("\"s{number}\": {{\"command\": \"a\"}}"));
        let many = format!(
            "{{\"mcpServers\": {{{}}}}}",
            many.collect::<Vec<_>>().join(", ")
        );
        let deep = format!("{{\"mcpServers\": {}", "[".repeat(100_000));
        for (text, told) in [
            ("", "no JSON object"),
            ("[]", "no JSON object"),
            ("{\"mcpServers\": {}", "no JSON object"),
            ("{\"servers\": {}}", "`mcpServers`"),
            ("{\"mcpServers\": []}", "no JSON object"),
            (deep.as_str(), "no JSON object"),
            (many.as_str(), "it has 65 servers"),
        ] {
            let read = read(text);
            let [line] = read.left_out.as_slice() else {
                panic!("{:?}", read.left_out)
            };
            assert!(
                line.starts_with("/repo/.mcp.json: ") && line.contains(told),
                "{line}"
            );
            assert!(read.values.is_empty());
        }
        assert!(one(r#"{"command": "a"}"#).left_out.is_empty());
    }

    #[test]
    fn variables_are_filled_in_once() {
        let fill = |text: &str| {
            filled(text, |name| match name {
                "A" => Some("${B}".into()),
                "EMPTY" => Some(String::new()),
                _ => None,
            })
        };
        for (text, wanted) in [
            ("a$b", Ok("a$b")),
            ("${A}${A}", Ok("${B}${B}")),
            ("<${EMPTY:-x}>", Ok("<>")),
            ("${B:-}|${B:-a:-b}", Ok("|a:-b")),
            ("${A", Ok("${A")),
            ("${B}", Err("B")),
            ("${}", Err("")),
        ] {
            let wanted = wanted.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(fill(text), wanted, "{text}");
        }
    }
}
