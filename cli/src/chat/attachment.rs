//! Attaches the files that a prompt names with `@`. A text file becomes a text part, an image
//! becomes an image part, and a PDF file becomes a file part.

use std::path::{Path, PathBuf};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use planck_common::message::{MediaSource, Part};

use crate::exit::UsageError;
use planck_host::regular_file::{FileRefused, OpenFolder};
use planck_host::terminal::clean_line;

/// The maximum number of files that a prompt may attach.
const MOST_FILES: usize = 16;
/// The maximum size in bytes of an attached text file.
const MOST_TEXT: u64 = 256 * 1024;
/// The maximum size in bytes of an attached image or PDF file. Encoded as base64, it fits into a
/// prompt of 8 MiB.
const MOST_DATA: u64 = 5 * 1024 * 1024;

/// Returns the parts of a prompt: its text, and the files that it names.
pub fn content(dir: &Path, text: &str) -> Result<Vec<Part>, UsageError> {
    let mut parts = vec![Part::text(text)];
    let mut named: Vec<&str> = text
        .split_whitespace()
        .filter_map(|word| word.strip_prefix('@'))
        .collect();
    named.sort_unstable();
    named.dedup();
    for name in named {
        let path = dir.join(name);
        // `@` also begins words that are not paths, such as the name of a user or a decorator.
        if name.is_empty() || path.symlink_metadata().is_err() {
            continue;
        }
        let refused = |why: &dyn std::fmt::Display| {
            UsageError(format!("cannot attach {}: {why}", clean_line(name)))
        };
        if parts.len() > MOST_FILES {
            return Err(refused(&format!(
                "a prompt takes {MOST_FILES} files; name folders in words instead"
            )));
        }
        parts.push(part(name, &path).map_err(|why| refused(&why))?);
    }
    Ok(parts)
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
        write("b.png", b"\x89PNG\r\n");
        write("c.pdf", b"%PDF-1.7");
        let parts = content(
            folder.path(),
            "look at @a.txt, @a.txt @b.png @c.pdf and tell @somebody",
        )
        .unwrap();
        let kinds: Vec<&str> = parts
            .iter()
            .map(|part| match part {
                Part::Text { .. } => "text",
                Part::Image { mime, .. } | Part::File { mime, .. } => mime,
                Part::Thinking { .. } | Part::ToolCall { .. } | Part::ToolResult { .. } => "other",
            })
            .collect();
        assert_eq!(kinds, ["text", "text", "image/png", "application/pdf"]);
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
        ] {
            let refused = content(folder.path(), &format!("see @{name}"))
                .unwrap_err()
                .to_string();
            assert!(
                refused.contains(name) && refused.contains(why),
                "{name}: {refused}"
            );
        }
    }
}
