//! Finds the name that a mistyped word is meant to be.

use strsim::{jaro_winkler, osa_distance};

/// How similar a name must be by Jaro and Winkler, which favours names that begin like the word.
const SIMILAR: f64 = 0.75;

/// Returns the name that is most similar to a word in upper or lower case, or `None` if none is similar
/// enough.
///
/// ```
/// use planck_common::similar::nearest;
///
/// assert_eq!(nearest("rnu", ["run", "chat"]), Some("run"));
/// assert_eq!(nearest("permision", ["prompt", "permissions"]), Some("permissions"));
/// assert_eq!(nearest("xyz", ["run", "chat"]), None);
/// ```
pub fn nearest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    similar(word, names).into_iter().next()
}

/// Returns the names that are similar enough to a word in upper or lower case, the [`nearest`] first.
pub fn similar<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let word = word.to_lowercase();
    let rated = names.into_iter().filter_map(|name| {
        let lower = name.to_lowercase();
        let (slips, likeness) = (osa_distance(&word, &lower), jaro_winkler(&word, &lower));
        // Swapped, wrong, missing and additional letters, of which a short word has few that are right.
        let length = lower.chars().count();
        let is_slip = slips <= 1 + length / 5 && slips < length;
        (is_slip || likeness > SIMILAR).then_some((is_slip, likeness, name))
    });
    let mut rated: Vec<_> = rated.collect();
    rated.sort_by(|a, b| b.0.cmp(&a.0).then(b.1.total_cmp(&a.1)));
    rated.into_iter().map(|(_, _, name)| name).collect()
}

/// Returns the question whether the [`nearest`] name was meant, or `None` if no name is similar enough.
pub fn did_you_mean<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<String> {
    nearest(word, names).map(|name| format!("did you mean `{name}`?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_name_is_found_despite_a_few_wrong_letters() {
        let names = [
            "run",
            "chat",
            "session",
            "ls",
            "write",
            "store.url",
            "store.path",
        ];
        for (word, meant) in [
            ("rnu", Some("run")),
            ("sl", Some("ls")),
            ("chta", Some("chat")),
            ("sesion", Some("session")),
            ("WRIET", Some("write")),
            ("stor", Some("store.url")),
            ("store.pth", Some("store.path")),
            ("x", None),
            ("zzz", None),
            ("fix", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, names), meant, "{word}");
        }
        let question = did_you_mean("rnu", names);
        assert_eq!(question.as_deref(), Some("did you mean `run`?"));
        assert_eq!(nearest("b", ["a"]), None, "nothing of it is right");
        assert_eq!(
            similar("store.pat", names),
            ["store.path", "store.url"],
            "the nearest first, and no others"
        );
    }
}
