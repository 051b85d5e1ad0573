//! The rules for one process: what it may read, write and connect to. This module also encodes the
//! rules as arguments of `planck reap`, and parses them.

use std::{ffi::OsString, path::PathBuf};

use super::landlock::Level;

/// The sandbox rules of one call. The node decides them. The process that becomes the command
/// applies them to itself first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SandboxPolicy {
    /// The level of Landlock that the kernel supports. All rules of this level are required.
    pub level: Level,
    /// Whether the command may open IP sockets.
    pub network: bool,
    /// Whether the command runs inside bubblewrap, with its own `/dev` and `/tmp`.
    pub inside: bool,
    /// Whether bubblewrap gave the command a `/proc` of its own, with no process of the node.
    pub own_proc: bool,
    /// Folders that the command may change. The paths contain no links.
    pub writable: Vec<PathBuf>,
    /// Files and folders that the command may read and run.
    pub readable: Vec<PathBuf>,
    /// The folder among `writable` that is removed when the call ends.
    pub scratch: Option<PathBuf>,
    /// Mounts of bubblewrap that must show exactly the files that the node chose.
    pub mounted: Vec<Mounted>,
}

/// A mount inside bubblewrap, and the identity of the file that the node chose. Bubblewrap mounts
/// by path, so a concurrent call could have replaced the file with a link in the meantime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mounted {
    pub path: PathBuf,
    pub device: u64,
    pub inode: u64,
}

impl SandboxPolicy {
    /// Returns the arguments that pass the policy to `planck reap`.
    pub fn to_option(&self) -> Vec<OsString> {
        let words = self.to_words();
        ["--wall".into(), words.len().to_string().into()]
            .into_iter()
            .chain(words)
            .collect()
    }

    fn to_words(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec!["level".into(), self.level.number().to_string().into()];
        words.extend(self.network.then(|| "network".into()));
        words.extend(self.inside.then(|| "inside".into()));
        words.extend(self.own_proc.then(|| "own-proc".into()));
        words.extend(
            self.writable
                .iter()
                .flat_map(|path| ["write".into(), path.into()]),
        );
        words.extend(
            self.readable
                .iter()
                .flat_map(|path| ["read".into(), path.into()]),
        );
        words.extend(
            self.scratch
                .iter()
                .flat_map(|path| ["scratch".into(), path.into()]),
        );
        for Mounted {
            path,
            device,
            inode,
        } in &self.mounted
        {
            words.extend([
                "mounted".into(),
                path.into(),
                device.to_string().into(),
                inode.to_string().into(),
            ]);
        }
        words
    }

    /// Parses the result of [`to_words`](Self::to_words). An unknown word is an error, because it
    /// may be a rule of another version.
    pub fn from_words(words: impl IntoIterator<Item = OsString>) -> Result<Self, String> {
        let mut words = words.into_iter();
        let mut policy = Self::default();
        while let Some(word) = words.next() {
            match word.to_str() {
                Some("level") => policy.level = Level::of(number(words.next())?)?,
                Some("network") => policy.network = true,
                Some("inside") => policy.inside = true,
                Some("own-proc") => policy.own_proc = true,
                Some("write") => policy.writable.push(path(words.next())?),
                Some("read") => policy.readable.push(path(words.next())?),
                Some("scratch") => policy.scratch = Some(path(words.next())?),
                Some("mounted") => policy.mounted.push(Mounted {
                    path: path(words.next())?,
                    device: number(words.next())?,
                    inode: number(words.next())?,
                }),
                Some(_) | None => return Err(format!("unknown rule {}", word.display())),
            }
        }
        Ok(policy)
    }
}

fn path(word: Option<OsString>) -> Result<PathBuf, String> {
    word.map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .ok_or_else(|| "a rule lacks its absolute path".into())
}

fn number<T: std::str::FromStr>(word: Option<OsString>) -> Result<T, String> {
    let text = word.unwrap_or_default();
    text.to_str()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| format!("{} is not a number", text.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_carry_the_whole_policy() {
        let policy = SandboxPolicy {
            level: Level::of(3).unwrap(),
            network: true,
            inside: true,
            own_proc: true,
            writable: vec!["/ws".into(), "/read".into()],
            readable: vec!["/a b".into()],
            scratch: Some("/tmp/x".into()),
            mounted: vec![Mounted {
                path: "/ws/.git".into(),
                device: 7,
                inode: u64::MAX,
            }],
        };
        assert_eq!(SandboxPolicy::from_words(policy.to_words()), Ok(policy));
        assert_eq!(
            SandboxPolicy::from_words(SandboxPolicy::default().to_words()),
            Ok(SandboxPolicy::default())
        );
    }

    #[test]
    fn an_unknown_rule_is_refused() {
        for wrong in [
            &["deny", "/x"][..],
            &["write"],
            &["write", "relative"],
            &["level", "many"],
            &["level", "99"],
            &["mounted", "/x", "1"],
        ] {
            assert!(
                SandboxPolicy::from_words(wrong.iter().map(OsString::from)).is_err(),
                "{wrong:?}"
            );
        }
    }
}
