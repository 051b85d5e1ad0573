//! Paths in rules and in calls. They are compared as text: nothing here looks at the file system, so
//! symbolic links are not resolved, and a path whose text does not say where it leads is not read.

use planck_common::permission::RuleAction;

use super::{Match, wildcard};

/// The length in bytes of the longest path that is compared. The kernel accepts no longer one.
const LONGEST: usize = 4_096;

/// The `path` of a call, split at its slashes, without `.`, `..` and empty parts. At least one of
/// the two forms is known.
#[derive(Debug)]
pub(super) struct CallPath {
    /// The path below the root, or `None` for a relative path if the working directory is unknown.
    absolute: Option<Vec<String>>,
    below_dir: BelowDir,
}

/// The path of a call below the working directory.
#[derive(Debug)]
enum BelowDir {
    At(Vec<String>),
    Outside,
    /// The path is absolute, and the working directory is unknown.
    Unknown,
}

impl CallPath {
    /// Resolves `path` in the directory `dir`, which is unknown unless it is an absolute path.
    /// Returns `None` if the path cannot be resolved.
    pub(super) fn read(path: &str, dir: &str) -> Option<Self> {
        if path.len() > LONGEST || path.contains('\0') {
            return None;
        }
        let known = match dir.starts_with('/') {
            true => below(Vec::new(), dir),
            false => None,
        };
        let (absolute, below_dir) = match (path.starts_with('/'), known) {
            (true, None) => (Some(below(Vec::new(), path)?), BelowDir::Unknown),
            (true, Some(dir)) => {
                let absolute = below(Vec::new(), path)?;
                let below = BelowDir::of(&absolute, &dir);
                (Some(absolute), below)
            }
            (false, Some(dir)) => {
                let absolute = below(dir.clone(), path)?;
                let below = BelowDir::of(&absolute, &dir);
                (Some(absolute), below)
            }
            (false, None) if path.split('/').any(|part| part == "..") => return None,
            (false, None) => (None, BelowDir::At(below(Vec::new(), path)?)),
        };
        Some(Self {
            absolute,
            below_dir,
        })
    }

    /// Compares the path with the pattern of a rule with this action. A pattern without a slash at
    /// its start stands for paths below the working directory, so an `allow` rule with such a
    /// pattern matches no other path. An `ask` or `deny` rule whose pattern begins with `**`, such
    /// as `**/.env`, also matches paths elsewhere, because it is better to stop one call too many.
    pub(super) fn matches(&self, pattern: &PathPattern, action: RuleAction) -> Match {
        let fits = |path: &[String]| Match::of(pattern.fits(path));
        match (pattern.absolute, &self.absolute, &self.below_dir) {
            (true, Some(path), _) | (false, _, BelowDir::At(path)) => fits(path),
            (true, None, _) | (false, _, BelowDir::Unknown) => Match::Unreadable,
            (false, Some(path), BelowDir::Outside)
                if action != RuleAction::Allow && pattern.is_anywhere() =>
            {
                fits(path)
            }
            (false, _, BelowDir::Outside) => Match::No,
        }
    }

    /// Returns the pattern that matches only this path, or `None` if there is none.
    pub(super) fn pattern(&self) -> Option<String> {
        let text = match (&self.below_dir, &self.absolute) {
            (BelowDir::At(path), _) if path.is_empty() => ".".into(),
            (BelowDir::At(path), _) => path.join("/"),
            (BelowDir::Outside | BelowDir::Unknown, path) => {
                format!("/{}", path.as_deref()?.join("/"))
            }
        };
        (!text.contains('*')).then_some(text)
    }

    /// Returns whether this is the working directory itself.
    pub(super) fn is_dir(&self) -> bool {
        matches!(&self.below_dir, BelowDir::At(path) if path.is_empty())
    }
}

impl BelowDir {
    fn of(path: &[String], dir: &[String]) -> Self {
        path.strip_prefix(dir)
            .map_or(Self::Outside, |below| Self::At(below.to_vec()))
    }
}

/// Appends a path to the parts of a directory. `..` in the root is the root. Returns `None` if `..`
/// follows a name: if the name is a link, `..` is the parent of the folder to which the link leads.
fn below(mut parts: Vec<String>, path: &str) -> Option<Vec<String>> {
    let mut follows_name = false;
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if follows_name => return None,
            ".." => {
                parts.pop();
            }
            name => {
                follows_name = true;
                parts.push(name.into());
            }
        }
    }
    Some(parts)
}

/// The pattern of a rule, split at its slashes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PathPattern {
    absolute: bool,
    parts: Vec<String>,
}

impl PathPattern {
    /// Reads a pattern, or returns what is wrong with it and how to write it.
    pub(super) fn parse(text: &str) -> Result<Self, (&'static str, &'static str)> {
        if text.starts_with('~') {
            return Err(("`~` is not expanded", "write the absolute path"));
        }
        let (absolute, rest) = match text.strip_prefix('/') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        if (absolute && rest.is_empty()) || text == "." {
            return Ok(Self {
                absolute,
                parts: Vec::new(),
            });
        }
        let parts: Vec<String> = rest.split('/').map(Into::into).collect();
        if parts.iter().any(|part| matches!(&**part, "" | "." | "..")) {
            return Err((
                "no path contains an empty part, `.` or `..` when it is compared",
                "write it without that part; `docs/**` is everything in docs",
            ));
        }
        if parts.iter().any(|part| part.contains("**") && part != "**") {
            return Err((
                "`**` stands for folders and must be alone between slashes",
                "write for example `docs/**/*.md`",
            ));
        }
        Ok(Self { absolute, parts })
    }

    /// Returns whether the pattern begins in any folder.
    fn is_anywhere(&self) -> bool {
        self.parts.first().is_some_and(|part| part == "**")
    }

    fn fits(&self, path: &[String]) -> bool {
        wildcard(
            &self.parts,
            path,
            |part| part == "**",
            |part, name| name_fits(part, name),
        )
    }
}

/// Returns whether a name fits a pattern in which `*` stands for any characters.
pub(super) fn name_fits(pattern: &str, name: &str) -> bool {
    wildcard(
        pattern.as_bytes(),
        name.as_bytes(),
        |byte| *byte == b'*',
        |wanted, byte| wanted == byte,
    )
}
