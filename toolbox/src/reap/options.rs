//! The arguments of `planck reap`, which only `planck` itself writes.

use std::{ffi::OsString, time::Duration};

use nix::unistd::Pid;

use super::limits::CommandLimits;
use crate::{cgroup::CallGroup, sandbox::SandboxPolicy};

/// The task of this process.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReapMode {
    /// Runs the command and kills its descendants. If no heartbeat arrives for `watch`, the node
    /// counts as dead. The first `input` bytes in the pipe are the command's stdin.
    Reap {
        watch: Option<Duration>,
        input: usize,
    },
    /// Becomes the command, which the kernel kills when the reaper `parent` ends.
    Under { parent: Pid },
    /// Becomes the command inside bubblewrap, which ends the command when the reaper ends.
    Inside,
    /// Runs no command, but tries what the sandbox must refuse: reading this file, writing next to
    /// it, and connecting to this local port.
    Check { file: OsString, port: u16 },
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct ReapOptions {
    pub mode: ReapMode,
    /// The limits that the process gets, or `None` if it gets none.
    pub limits: Option<CommandLimits>,
    /// The sandbox rules of the command, or `None` if there are none to apply.
    pub sandbox: Option<SandboxPolicy>,
    /// The control group that the command enters, if it has one.
    pub group: Option<CallGroup>,
    pub command: Vec<OsString>,
}

impl ReapOptions {
    pub fn parse(mut args: impl Iterator<Item = OsString>) -> Result<Self, String> {
        let (mut watch, mut input, mut limits, mut sandbox, mut group) =
            (None, 0, None, None, None);
        let mut last = None;
        while let Some(arg) = args.next() {
            match arg.to_str() {
                Some("--watch") => watch = Some(Duration::from_millis(number(args.next())?)),
                Some("--input") => input = number(args.next())?,
                Some("--limits") => limits = Some(number(args.next())?),
                Some("--group") => {
                    group = Some(CallGroup::at(args.next().unwrap_or_default().into()))
                }
                Some("--under") => {
                    last = Some(ReapMode::Under {
                        parent: Pid::from_raw(number(args.next())?),
                    })
                }
                Some("--inside") => last = Some(ReapMode::Inside),
                Some("--check") => {
                    last = Some(ReapMode::Check {
                        file: args.next().unwrap_or_default(),
                        port: number(args.next())?,
                    });
                }
                Some("--wall") => {
                    let length = number(args.next())?;
                    sandbox = Some(SandboxPolicy::from_words(args.by_ref().take(length))?);
                }
                Some("--") => break,
                Some(_) | None => return Err(format!("unknown option {}", arg.display())),
            }
        }
        let command: Vec<OsString> = args.collect();
        let mode = last.unwrap_or(ReapMode::Reap { watch, input });
        if command.is_empty() && !matches!(mode, ReapMode::Check { .. }) {
            let usage = "[--watch MILLISECONDS] [--input BYTES] [--limits P,M,F,O,D] [--wall COUNT RULE…] [--group FOLDER] \
                         -- COMMAND [ARG…]";
            return Err(format!("usage: planck reap {usage}"));
        }
        Ok(Self {
            mode,
            limits,
            sandbox,
            group,
            command,
        })
    }
}

fn number<T: std::str::FromStr>(arg: Option<OsString>) -> Result<T, String> {
    let text = arg.unwrap_or_default();
    text.to_str()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| format!("{} is not a number", text.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<ReapOptions, String> {
        ReapOptions::parse(words.iter().map(OsString::from))
    }

    #[test]
    fn options_precede_the_command() {
        let reap = |watch: Option<u64>, input, command: &[&str]| {
            let watch = watch.map(Duration::from_millis);
            let command = command.iter().map(OsString::from).collect();
            Ok(ReapOptions {
                mode: ReapMode::Reap { watch, input },
                limits: None,
                sandbox: None,
                group: None,
                command,
            })
        };
        assert_eq!(
            parse(&["--", "ls", "--watch"]),
            reap(None, 0, &["ls", "--watch"])
        );
        assert_eq!(
            parse(&["--watch", "900", "--input", "12", "--", "cat"]),
            reap(Some(900), 12, &["cat"])
        );
        assert_eq!(
            parse(&["--under", "7", "--", "cat"]).unwrap().mode,
            ReapMode::Under {
                parent: Pid::from_raw(7)
            }
        );
        assert_eq!(
            parse(&["--limits", "1,2,3,4,5", "--", "cat"])
                .unwrap()
                .limits
                .unwrap()
                .to_string(),
            "1,2,3,4,5"
        );
        let grouped = parse(&["--group", "/sys/fs/cgroup/a b", "--", "cat"]).unwrap();
        assert_eq!(
            grouped.group,
            Some(CallGroup::at("/sys/fs/cgroup/a b".into()))
        );
        let sandboxed = parse(&[
            "--wall", "3", "level", "0", "network", "--inside", "--", "cat",
        ])
        .unwrap();
        assert_eq!(
            (sandboxed.mode, sandboxed.sandbox.unwrap().network),
            (ReapMode::Inside, true)
        );
        for wrong in [
            &[][..],
            &["--limits", "1,2", "--", "ls"],
            &["--"],
            &["ls"],
            &["--input", "many", "--", "ls"],
            &["--input"],
            &["--watch", "--", "ls"],
            &["--wall", "1", "--", "ls"],
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
