//! The words after `planck reap`; written by the node, never by a person.

use std::{ffi::OsString, time::Duration};

use nix::unistd::Pid;

use super::limits::Limits;

/// What one process of this mode does.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Runs the command and ends its descendants. `watch`: so long a silence on the pipe counts as its end. `input`: so
    /// many bytes on the pipe are the command's stdin.
    Reap { watch: Option<Duration>, input: usize },
    /// Becomes the command, bound to the reaper `parent`.
    Under { parent: Pid },
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Options {
    pub mode: Mode,
    /// `None` for a command that is not a tool's.
    pub limits: Option<Limits>,
    pub command: Vec<OsString>,
}

impl Options {
    pub fn parse(mut args: impl Iterator<Item = OsString>) -> Result<Self, String> {
        let (mut watch, mut input, mut under, mut limits) = (None, 0, None, None);
        while let Some(arg) = args.next() {
            match arg.to_str() {
                Some("--watch") => watch = Some(Duration::from_millis(number(args.next())?)),
                Some("--input") => input = number(args.next())?,
                Some("--limits") => limits = Some(number(args.next())?),
                Some("--under") => under = Some(number(args.next())?),
                Some("--") => break,
                Some(_) | None => return Err(format!("unknown option {}", arg.display())),
            }
        }
        let command: Vec<OsString> = args.collect();
        if command.is_empty() {
            return Err("usage: planck reap [--watch MILLISECONDS] [--input BYTES] [--limits P,M,F,O] -- COMMAND [ARG…]".into());
        }
        let mode = match under {
            Some(parent) => Mode::Under { parent: Pid::from_raw(parent) },
            None => Mode::Reap { watch, input },
        };
        Ok(Self { mode, limits, command })
    }
}

fn number<T: std::str::FromStr>(arg: Option<OsString>) -> Result<T, String> {
    let text = arg.unwrap_or_default();
    text.to_str().and_then(|text| text.parse().ok()).ok_or_else(|| format!("{} is not a number", text.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Options, String> {
        Options::parse(words.iter().map(OsString::from))
    }

    #[test]
    fn options_stand_before_the_command() {
        let reap = |watch: Option<u64>, input, command: &[&str]| {
            let watch = watch.map(Duration::from_millis);
            Ok(Options { mode: Mode::Reap { watch, input }, limits: None, command: command.iter().map(OsString::from).collect() })
        };
        assert_eq!(parse(&["--", "ls", "--watch"]), reap(None, 0, &["ls", "--watch"]));
        assert_eq!(parse(&["--watch", "900", "--input", "12", "--", "cat"]), reap(Some(900), 12, &["cat"]));
        assert_eq!(parse(&["--under", "7", "--", "cat"]).unwrap().mode, Mode::Under { parent: Pid::from_raw(7) });
        assert_eq!(parse(&["--limits", "1,2,3,4", "--", "cat"]).unwrap().limits.unwrap().to_string(), "1,2,3,4");
        for wrong in [
            &[][..],
            &["--limits", "1,2", "--", "ls"],
            &["--"],
            &["ls"],
            &["--input", "many", "--", "ls"],
            &["--input"],
            &["--watch", "--", "ls"],
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
