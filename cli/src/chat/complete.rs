//! Completes file names in a word that begins with `@`.

use std::path::{Path, PathBuf};

use planck_host::regular_file::{EntryKind, OpenFolder};
use planck_host::terminal::clean_line;

/// The maximum number of entries of a folder. Names in a larger folder are not completed.
const MOST: usize = 2_000;
/// The maximum number of names that are offered.
const OFFERED: usize = 200;

/// Returns the position of the last word in the typed text, and the words that can replace it.
/// There are none for a word that does not begin with `@`. A name with blanks is in quotes.
pub fn files(dir: &Path, typed: &str) -> (usize, Vec<String>) {
    let quoted = typed.rfind("@\"").filter(|at| {
        let is_first = typed
            .get(..*at)
            .is_some_and(|before| before.is_empty() || before.ends_with(char::is_whitespace));
        is_first && typed.get(at + 2..).is_some_and(|rest| !rest.contains('"'))
    });
    if let Some(start) = quoted {
        let path = typed.get(start + 2..).unwrap_or_default();
        return (start, names(dir, path, true).unwrap_or_default());
    }
    let word = typed.rsplit(char::is_whitespace).next().unwrap_or(typed);
    let start = typed.len() - word.len();
    match word.strip_prefix('@') {
        Some(path) => (start, names(dir, path, false).unwrap_or_default()),
        None => (start, Vec::new()),
    }
}

fn names(dir: &Path, path: &str, is_quoted: bool) -> Option<Vec<String>> {
    let (folder, begun) = path
        .rsplit_once('/')
        .map_or(("", path), |(folder, begun)| (folder, begun));
    let above = if path.starts_with('/') {
        PathBuf::from(format!("/{folder}"))
    } else {
        dir.join(folder)
    };
    let entries = OpenFolder::open(&above).ok()?.entries(MOST).ok()?;
    let folder = path.strip_suffix(begun).unwrap_or_default();
    let fits = |(name, kind): (String, EntryKind)| {
        let is_meant =
            name.starts_with(begun) && (begun.starts_with('.') || !name.starts_with('.'));
        // A name with control characters could look like a different name in the list.
        let is_plain = !name.contains('"') && clean_line(&name) == name;
        let (end, closing) = match kind {
            EntryKind::Folder => ("/", ""),
            EntryKind::File => ("", "\""),
            EntryKind::Link | EntryKind::Other(_) => return None,
        };
        let word = match is_quoted || name.contains(char::is_whitespace) {
            true => format!("@\"{folder}{name}{end}{closing}"),
            false => format!("@{folder}{name}{end}"),
        };
        (is_meant && is_plain).then_some(word)
    };
    let mut names: Vec<String> = entries.into_iter().filter_map(fits).take(OFFERED).collect();
    names.sort();
    Some(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_offered_and_hostile_names_are_not() {
        let folder = tempfile::tempdir().unwrap();
        for name in [
            "main.rs",
            "make.sh",
            ".hidden",
            "two words",
            "m\u{1b}[2Jx",
            "m\u{202e}x",
        ] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        std::fs::create_dir(folder.path().join("more")).unwrap();
        std::fs::write(folder.path().join("more/deep.txt"), "").unwrap();
        let offered = |typed| files(folder.path(), typed);
        assert_eq!(
            offered("see @m"),
            (
                4,
                vec!["@main.rs".into(), "@make.sh".into(), "@more/".into()]
            )
        );
        assert_eq!(offered("@t"), (0, vec!["@\"two words\"".into()]));
        assert_eq!(offered("a @\"two w"), (2, vec!["@\"two words\"".into()]));
        assert_eq!(offered("@\"mo"), (0, vec!["@\"more/".into()]));
        assert_eq!(offered("@\"two words\" m"), (13, Vec::new()));
        assert_eq!(offered("@more/d"), (0, vec!["@more/deep.txt".into()]));
        assert_eq!(offered("@.h"), (0, vec!["@.hidden".into()]));
        assert_eq!(offered("mail me@m"), (5, Vec::new()));
        assert_eq!(offered("@gone/x"), (0, Vec::new()));
    }
}
