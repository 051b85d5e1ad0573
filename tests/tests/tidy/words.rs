//! Refuses words that make comments and pages hard to read, and says what to write instead.

use crate::{
    none,
    source::{files, root},
};

/// The refused words and phrases, and what to write instead. Each is split in two so that this file
/// does not contain it.
const REFUSED: &[(&str, &str, &str)] = &[
    ("who", "ever", "name the person or the program"),
    ("wh", "om", "name the receiver, in the active voice"),
    ("a", "new", "`again`"),
    ("unless ", "said", "state the default: `5 s by default`"),
    ("no", "body", "`no node`, `no client`, `no other task`"),
    ("some", "body", "`a client`, `another node`"),
    ("he", "ars", "`receives`"),
    ("con", "victed", "`declared dead`"),
    ("con", "victs", "`declares dead`"),
    ("ac", "cused", "`suspect`"),
    ("bu", "ried", "`marked dead`"),
    ("new", "born", "`new agent`"),
    ("un", "born", "`hidden`, `not created`"),
    ("is ", "born", "`is created`"),
    ("are ", "born", "`are created`"),
    ("of one ", "life", "`of one incarnation`"),
    ("it is ", "so", "name the condition"),
    ("has its ", "say", "name the rule"),
];

/// A comment or paragraph that begins like this has no subject.
const HEADLESS: &[&str] = &["Who ", "Whose ", "Of a ", "Of an ", "Of the ", "To whom "];

#[test]
fn comments_and_pages_are_plain() {
    let mut breaches = Vec::new();
    for path in files() {
        let is_code = path.ends_with(".rs");
        if !is_code && !path.ends_with(".md") {
            continue;
        }
        let text = std::fs::read_to_string(root().join(&path)).unwrap();
        let mut begins = true;
        for (number, line) in text.lines().enumerate() {
            let prose = if is_code { comment(line) } else { Some(line) };
            let Some(prose) = prose else {
                begins = true;
                continue;
            };
            for why in faults(prose, begins) {
                breaches.push(format!("{path}:{}: {why}", number + 1));
            }
            begins = prose.trim().is_empty();
        }
    }
    none(breaches);
}

/// Returns the text of a line that is a comment, or `None` for any other line.
fn comment(line: &str) -> Option<&str> {
    let text = line.trim_start().strip_prefix("//")?;
    Some(text.trim_start_matches(['/', '!']).trim())
}

fn faults(prose: &str, begins: bool) -> Vec<String> {
    // Text in backticks is skipped, because it quotes code.
    let lower = prose
        .split('`')
        .step_by(2)
        .collect::<String>()
        .to_lowercase();
    let refused = REFUSED.iter().filter_map(|(one, other, instead)| {
        let word = format!("{one}{other}");
        has_word(&lower, &word).then(|| format!("`{word}`: write {instead}"))
    });
    let headless = HEADLESS
        .iter()
        .filter(|start| begins && prose.starts_with(**start))
        .map(|start| format!("begins with `{}`: begin with the subject", start.trim()));
    refused.chain(headless).collect()
}

/// Returns whether a text contains these words, and not as a part of other words.
fn has_word(text: &str, word: &str) -> bool {
    let is_part = |character: Option<char>| {
        character.is_some_and(|character| character.is_alphanumeric() || character == '_')
    };
    text.match_indices(word).any(|(at, _)| {
        let before = text.get(..at).and_then(|text| text.chars().next_back());
        let after = text
            .get(at + word.len()..)
            .and_then(|text| text.chars().next());
        !is_part(before) && !is_part(after)
    })
}

#[test]
fn each_mark_is_found_and_plain_text_passes() {
    let (one, other, _) = REFUSED[0];
    assert_eq!(faults(&format!("For {one}{other} asks."), false).len(), 1);
    assert_eq!(faults("Of a turn that was aborted.", true).len(), 1);
    assert!(faults("Of a turn that was aborted.", false).is_empty());
    assert!(faults("Renewed leases are kept.", true).is_empty());
}
