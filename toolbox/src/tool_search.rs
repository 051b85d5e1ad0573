//! The tool `tool_search`, with which a model finds the tools of its agent that requests do not list.

use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use planck_agent::{
    model::ToolSpec,
    search::{FoundTool, TOOL_SEARCH},
};
use planck_common::event::{ToolEffect, json};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Invocation, Tool, ToolOutcome, args, blocking, catalogue::ToolEntry, spec};

/// The number of tools that a search returns by default, and the maximum.
const USUAL: usize = 5;
const MOST: usize = 20;

/// The maximum number of characters of a query, and of words in it that count.
const LONGEST_QUERY: usize = 500;
const MOST_WORDS: usize = 32;

/// The maximum number of characters of a description in a result.
const SHOWN: usize = 200;

/// The maximum number of sidecars that the description of the tool names.
const MOST_SIDECARS: usize = 20;

/// A search in the searched tools of one toolbox. Words are counted at each search, which takes a few
/// milliseconds. An index would take memory for every toolbox.
pub(super) struct ToolSearch {
    spec: ToolSpec,
    tools: Arc<[Arc<ToolEntry>]>,
    /// The sidecars from which the tools come, with the number of tools of each.
    sources: String,
}

#[derive(Deserialize)]
struct SearchArgs {
    query: String,
    limit: Option<usize>,
}

impl ToolSearch {
    pub(super) fn new(tools: Arc<[Arc<ToolEntry>]>) -> Self {
        let sources = sources(tools.iter().map(|entry| entry.tool.spec()));
        let description = format!(
            "Find tools by words of their names, descriptions and arguments. You have {} more tools, which are not listed \
             until you find them. Their sidecars are {sources}. Call a tool that you found like any other one. Search \
             before you say that you have no tool for something.",
            tools.len()
        );
        let parameters = json!({
            "type": "object",
            "properties": {
                "query": {
                    "type": "string", "minLength": 1, "maxLength": LONGEST_QUERY,
                    "description": "What the tool does and to what, in a few words, or its name.",
                },
                "limit": {
                    "type": "integer", "minimum": 1, "maximum": MOST,
                    "description": format!("How many tools to return at most; {USUAL} by default."),
                },
            },
            "required": ["query"],
            "additionalProperties": false,
        });
        Self {
            spec: spec(TOOL_SEARCH, &description, ToolEffect::Pure, &parameters),
            tools,
            sources,
        }
    }

    fn nothing(&self, query: &str) -> String {
        format!(
            "no tool has a word of {query:?}; search for other words, for example what the tool acts on, or for a \
             sidecar; the sidecars are {}",
            self.sources
        )
    }
}

#[async_trait]
impl Tool for ToolSearch {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn run(&self, call: Invocation) -> ToolOutcome {
        let SearchArgs { query, limit } = match args(&call) {
            Ok(args) => args,
            Err(refused) => return refused,
        };
        let (tools, asked) = (Arc::clone(&self.tools), query.clone());
        let found = blocking(move || {
            let specs: Vec<&ToolSpec> = tools.iter().map(|entry| entry.tool.spec()).collect();
            let ranked = rank(&asked, &specs).into_iter();
            let lines = ranked.take(limit.unwrap_or(USUAL).min(MOST)).map(line);
            lines.collect::<Vec<_>>().join("\n")
        });
        match found.await {
            Ok(lines) if lines.is_empty() => ToolOutcome::ok(self.nothing(&query)),
            Ok(lines) => ToolOutcome::ok(lines),
            Err(panic) => ToolOutcome::error(panic),
        }
    }
}

/// Returns the line about a tool in the result of a search.
fn line(tool: &ToolSpec) -> String {
    let words: Vec<&str> = tool.description.split_whitespace().collect();
    let whole = words.join(" ");
    let description = match whole.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", whole.get(..end).unwrap_or_default()).into(),
        None => whole.into(),
    };
    json(&FoundTool {
        name: &tool.name,
        description,
    })
}

/// Lists the sidecars of tools with their numbers of tools, the one with the most tools first.
fn sources<'a>(tools: impl Iterator<Item = &'a ToolSpec>) -> String {
    let (mut counts, mut others) = (BTreeMap::<&str, usize>::new(), 0);
    for tool in tools {
        match &tool.sidecar {
            Some(sidecar) => *counts.entry(sidecar).or_default() += 1,
            None => others += 1,
        }
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| Reverse(*count));
    let rest = counts.split_off(counts.len().min(MOST_SIDECARS));
    let named = counts.iter();
    let mut parts: Vec<String> = named
        .map(|(name, count)| format!("`{name}` ({count})"))
        .collect();
    if !rest.is_empty() {
        let tools: usize = rest.iter().map(|(_, count)| count).sum();
        parts.push(format!("{} others ({tools})", rest.len()));
    }
    if others > 0 {
        parts.push(format!("none ({others})"));
    }
    parts.join(", ")
}

// The ranking, which is BM25 with two weights.

/// The weight of a word in a tool's name; other words count 1.
const IN_NAME: f64 = 4.0;

/// The share of a word's weight that counts if the words only begin alike.
const BEGINS_ALIKE: f64 = 0.5;

/// The minimum number of bytes in which two words have to begin alike.
const SHORTEST_BEGIN: usize = 3;

/// Words of a query that say nothing about a tool.
const IGNORED: [&str; 14] = [
    "a", "an", "and", "by", "for", "from", "in", "is", "of", "on", "or", "the", "to", "with",
];

/// How soon further occurrences of a word count less, and how much the length of a text counts.
const SATURATION: f64 = 1.2;
const LENGTH: f64 = 0.75;

/// The words of a tool, and how often each word of the query occurs among them.
struct Document<'a> {
    tool: &'a ToolSpec,
    is_named: bool,
    length: f64,
    counts: Vec<f64>,
}

impl<'a> Document<'a> {
    fn new(tool: &'a ToolSpec, query: &[String]) -> Self {
        let name = words(&tool.name);
        let mut texts = words(&tool.description);
        texts.extend(words(tool.sidecar.as_deref().unwrap_or_default()));
        if let Ok(schema) = serde_json::from_str(tool.parameters.get()) {
            add_parameters(&schema, &mut texts);
        }
        let count = |wanted: &String| {
            let of =
                |words: &[String]| words.iter().map(|word| likeness(word, wanted)).sum::<f64>();
            IN_NAME * of(&name) + of(&texts)
        };
        Self {
            tool,
            is_named: name == query,
            length: (name.len() + texts.len()) as f64,
            counts: query.iter().map(count).collect(),
        }
    }
}

/// Returns the tools that have a word of the query, the best first. A tool whose name is the query
/// is the first, and of equal tools the one whose name comes first.
fn rank<'a>(query: &str, tools: &[&'a ToolSpec]) -> Vec<&'a ToolSpec> {
    let mut query = words(query);
    query.retain(|word| !IGNORED.contains(&word.as_str()));
    query.truncate(MOST_WORDS);
    let documents: Vec<Document<'a>> = tools
        .iter()
        .map(|tool| Document::new(tool, &query))
        .collect();
    let count = documents.len() as f64;
    let usual_length = documents
        .iter()
        .map(|document| document.length)
        .sum::<f64>()
        / count;
    let rarity = |at: usize| {
        let has =
            |document: &&Document<'_>| document.counts.get(at).is_some_and(|found| *found > 0.0);
        let having = documents.iter().filter(has).count() as f64;
        (1.0 + (count - having + 0.5) / (having + 0.5)).ln()
    };
    let rarities: Vec<f64> = (0..query.len()).map(rarity).collect();
    let score = |document: &Document<'_>| {
        let brake = SATURATION * (1.0 - LENGTH + LENGTH * document.length / usual_length);
        let words = document.counts.iter().zip(&rarities);
        words
            .map(|(found, rarity)| rarity * found * (SATURATION + 1.0) / (found + brake))
            .sum::<f64>()
    };
    let mut scored: Vec<(bool, f64, &ToolSpec)> = documents
        .iter()
        .map(|document| (document.is_named, score(document), document.tool))
        .filter(|(_, score, _)| *score > 0.0)
        .collect();
    scored.sort_by(|a, b| {
        let by_score = b.0.cmp(&a.0).then(b.1.total_cmp(&a.1));
        by_score.then_with(|| a.2.name.cmp(&b.2.name))
    });
    scored.into_iter().map(|(_, _, tool)| tool).collect()
}

/// Returns how much a word counts as the one that is wanted: a plural or another form counts less.
fn likeness(word: &str, wanted: &str) -> f64 {
    let shorter = word.len().min(wanted.len());
    match word == wanted {
        true => 1.0,
        false if shorter < SHORTEST_BEGIN => 0.0,
        false if word.starts_with(wanted) || wanted.starts_with(word) => BEGINS_ALIKE,
        false => 0.0,
    }
}

/// Returns the words of a text in lower case. Words end at signs, and a word in camel case at a
/// capital.
fn words(text: &str) -> Vec<String> {
    let (mut words, mut word, mut was_lower) = (Vec::new(), String::new(), false);
    for c in text.chars() {
        let begins = !c.is_alphanumeric() || (was_lower && c.is_uppercase());
        if begins && !word.is_empty() {
            words.push(std::mem::take(&mut word));
        }
        if c.is_alphanumeric() {
            word.extend(c.to_lowercase());
        }
        was_lower = c.is_lowercase();
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

/// Adds the words in the names and the descriptions of parameters, at every depth of a schema.
fn add_parameters(schema: &Value, texts: &mut Vec<String>) {
    match schema {
        Value::Object(fields) => {
            for (key, value) in fields {
                match value {
                    Value::String(text) if key == "description" => texts.extend(words(text)),
                    Value::Object(parameters) if key == "properties" => {
                        texts.extend(parameters.keys().flat_map(|name| words(name)));
                    }
                    Value::Object(_)
                    | Value::Array(_)
                    | Value::String(_)
                    | Value::Number(_)
                    | Value::Bool(_)
                    | Value::Null => {}
                }
                add_parameters(value, texts);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| add_parameters(item, texts)),
        Value::String(_) | Value::Number(_) | Value::Bool(_) | Value::Null => {}
    }
}

#[cfg(test)]
mod tests;
