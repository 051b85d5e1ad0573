//! Attaches the files that a prompt names with `@`. A text file becomes a text part, an image
//! becomes an image part, and a PDF file becomes a file part.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use planck_common::message::{MediaSource, Part};

use crate::{exit::UsageError, output::warn};
use planck_host::regular_file::{FileRefused, OpenFolder};
use planck_host::terminal::clean_line;

/// The maximum number of files that a prompt may attach.
const MOST_FILES: usize = 16;
/// The maximum size in bytes of an attached text file.
const MOST_TEXT: u64 = 256 * 1024;
/// The maximum size in bytes of an attached image or PDF file. Encoded as base64, it fits into a
/// prompt of 8 MiB.
const MOST_DATA: u64 = 5 * 1024 * 1024;
/// The characters that may follow the name of a file in a sentence.
const PUNCTUATION: &[char] = &['.', ',', ';', ':', '!', '?', ')'];

/// A prompt with the files that it names.
#[derive(Debug)]
struct PromptContent {
    parts: Vec<Part>,
    /// The words that look like the names of files and are none.
    missing: Vec<String>,
}

/// A name after `@`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NamedFile<'a> {
    name: &'a str,
    /// Whether the name is in quotes, so that it is certainly meant as one.
    is_quoted: bool,
}

/// Returns the parts of a prompt: its text, and the files that it names. Warns about words that look
/// like the names of files and are none.
pub fn parts(dir: &Path, text: &str) -> Result<Vec<Part>, UsageError> {
    let PromptContent { parts, missing } = content(dir, text)?;
    for name in missing {
        warn(&format!(
            "planck: there is no file {name}; the word is sent as it is"
        ));
    }
    Ok(parts)
}

fn content(dir: &Path, text: &str) -> Result<PromptContent, UsageError> {
    let (mut parts, mut missing) = (vec![Part::text(text)], Vec::new());
    let mut attached = BTreeSet::new();
    for file in named(text) {
        let refused = |why: &dyn std::fmt::Display| {
            UsageError(format!("cannot attach {}: {why}", clean_line(file.name)))
        };
        let Some(name) = file.existing(dir) else {
            if file.is_quoted {
                return Err(refused(&"there is no such file"));
            }
            if file.is_like_a_file() && !missing.iter().any(|known| known == file.name) {
                missing.push(file.name.to_owned());
            }
            continue;
        };
        if !attached.insert(name) {
            continue;
        }
        if parts.len() > MOST_FILES {
            return Err(refused(&format!(
                "a prompt takes {MOST_FILES} files; name folders in words instead"
            )));
        }
        parts.push(part(name, &dir.join(name)).map_err(|why| refused(&why))?);
    }
    Ok(PromptContent { parts, missing })
}

/// Returns the names after `@` at the beginning of words.
fn named(text: &str) -> Vec<NamedFile<'_>> {
    let starts = text.match_indices('@').filter(|(at, _)| {
        let before = text
            .get(..*at)
            .and_then(|before| before.chars().next_back());
        before.is_none_or(char::is_whitespace)
    });
    let names = starts.filter_map(|(at, _)| {
        let rest = text.get(at + 1..)?;
        let quoted = rest.strip_prefix('"').and_then(|rest| rest.split_once('"'));
        let (name, is_quoted) = match quoted {
            Some((name, _)) if !name.contains('\n') => (name, true),
            Some(_) | None => (
                rest.split_whitespace()
                    .next()
                    .filter(|_| !rest.starts_with(char::is_whitespace))?,
                false,
            ),
        };
        Some(NamedFile { name, is_quoted })
    });
    names.filter(|file| !file.name.is_empty()).collect()
}

impl<'a> NamedFile<'a> {
    /// Returns the name of an existing file, without the punctuation that follows it in a sentence.
    fn existing(&self, dir: &Path) -> Option<&'a str> {
        let exists = |name: &&str| !name.is_empty() && dir.join(name).symlink_metadata().is_ok();
        let bare = self.name.trim_end_matches(PUNCTUATION);
        let bare = Some(bare).filter(|_| !self.is_quoted);
        Some(self.name).filter(exists).or(bare.filter(exists))
    }

    /// Returns whether the word has a folder or an extension. Other words after `@` are names of
    /// people or decorators.
    fn is_like_a_file(&self) -> bool {
        let name = self.name.trim_end_matches(PUNCTUATION);
        name.contains(['/', '.'])
    }
}

fn part(name: &str, path: &Path) -> Result<Part, FileRefused> {
    let file = path.file_name().ok_or(FileRefused::Kind("a folder"))?;
    let above = path
        .parent()
        .filter(|above| !above.as_os_str().is_empty())
        .map_or_else(|| PathBuf::from("."), Path::to_owned);
    let most = MOST_DATA.max(MOST_TEXT);
    let content = OpenFolder::open(&above)?
        .file(file, most)?
        .ok_or_else(|| FileRefused::Io(std::io::ErrorKind::NotFound.into()))?;
    if let Some(mime) = image(&content.bytes) {
        return Ok(Part::Image {
            mime: mime.into(),
            source: MediaSource::Data(STANDARD.encode(&content.bytes)),
        });
    }
    if content.bytes.starts_with(b"%PDF-") {
        let name = file.to_str().map(str::to_owned);
        return Ok(Part::File {
            mime: "application/pdf".into(),
            name,
            source: MediaSource::Data(STANDARD.encode(&content.bytes)),
        });
    }
    if content.bytes.len() as u64 > MOST_TEXT {
        return Err(FileRefused::TooLarge(MOST_TEXT));
    }
    let text = content.text()?;
    Ok(Part::text(format!(
        "\n\n--- {name} ---\n{text}\n--- end of {name} ---\n"
    )))
}

/// Returns the media type of an image, or `None` for other content. The type is detected from the
/// first bytes, because the file's extension may be wrong.
fn image(bytes: &[u8]) -> Option<&'static str> {
    let is_webp = bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP");
    match bytes {
        [0x89, b'P', b'N', b'G', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', ..] => Some("image/gif"),
        _ if is_webp => Some("image/webp"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_attached_according_to_their_content() {
        let folder = tempfile::tempdir().unwrap();
        let write =
            |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
        write("a.txt", b"words");
        write("two words.txt", b"blanks");
        write("b.png", b"\x89PNG\r\n");
        write("c.pdf", b"%PDF-1.7");
        let content = content(
            folder.path(),
            "look at @a.txt, @a.txt @b.png @c.pdf @\"two words.txt\" and tell @somebody of @gone.txt.",
        )
        .unwrap();
        let PromptContent { parts, missing } = content;
        assert_eq!(missing, ["gone.txt."]);
        let kinds: Vec<&str> = parts
            .iter()
            .map(|part| match part {
                Part::Text { .. } => "text",
                Part::Image { mime, .. } | Part::File { mime, .. } => mime,
                Part::Thinking { .. } | Part::ToolCall { .. } | Part::ToolResult { .. } => "other",
            })
            .collect();
        assert_eq!(
            kinds,
            ["text", "text", "image/png", "application/pdf", "text"]
        );
        assert!(
            matches!(parts.get(1), Some(Part::Text { text, .. }) if text.contains("--- a.txt ---\nwords\n"))
        );
    }

    #[test]
    fn only_regular_files_of_a_bounded_size_are_attached() {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join("link")).unwrap();
        nix::unistd::mkfifo(&folder.path().join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        std::fs::create_dir(folder.path().join("folder")).unwrap();
        std::fs::write(folder.path().join("long"), vec![b'x'; 300 * 1024]).unwrap();
        std::fs::write(folder.path().join("binary"), [0xff, 0xfe, 0]).unwrap();
        for (name, why) in [
            ("link", "link"),
            ("pipe", "a pipe"),
            ("folder", "folder"),
            ("long", "larger"),
            ("binary", "UTF-8"),
            ("\"no file\"", "no such file"),
        ] {
            let refused = content(folder.path(), &format!("see @{name}"))
                .unwrap_err()
                .to_string();
            assert!(
                refused.contains(name.trim_matches('"')) && refused.contains(why),
                "{name}: {refused}"
            );
        }
    }
}
