//! Protects the process of `planck` before it does anything else. Other processes of the same user
//! cannot read its memory, its environment or its open files, and it leaves no core dump.
//!
//! The kernel keeps the environment with which a program was started on the program's initial
//! stack. Root can read it through `/proc/<pid>/environ`, whatever the process does later. If a
//! variable may hold a secret, `planck` therefore executes itself again without that variable, and
//! passes the variable on in anonymous memory, which the new process reads once.

use std::{
    collections::BTreeMap,
    env,
    ffi::{CString, OsStr, OsString},
    fs::{self, File},
    io::{self, Write},
    os::{
        fd::AsRawFd,
        unix::{
            ffi::{OsStrExt, OsStringExt},
            process::CommandExt,
        },
    },
    process::{self, Command},
};

use nix::{
    sys::{
        memfd::{MFdFlags, memfd_create},
        prctl,
        resource::{Resource, getrlimit, setrlimit},
    },
    unistd::close,
};

use planck_host::environment;
use planck_node::config;
use planck_toolbox::reap::THIS_BINARY;

/// The variable that describes the memory with the secrets. It contains the process id, the
/// descriptor of the memory and the name of the process, separated by colons. The process id shows
/// whether the variable is meant for this process or was inherited from its parent.
const HANDED_OVER: &str = "PLANCK_HANDED_OVER";

/// The name of the anonymous memory in `/proc/self/fd`.
const MEMORY: &str = "planck-environment";

type Variables = BTreeMap<OsString, OsString>;

/// Protects the process. It must be called before any thread is started. It may execute the program
/// again, with the same process id, arguments and standard streams.
pub fn harden() -> io::Result<()> {
    prctl::set_dumpable(false)?;
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    // Shells allow 1,024 open files, which a few hundred clients and sessions use up.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    match Handover::of_this_process() {
        Some(handover) => {
            let _ = prctl::set_name(&handover.name);
            environment::keep(handover.take()?);
            Ok(())
        }
        None => hide_secrets(),
    }
}

/// Executes the program again, with the secrets in anonymous memory, if the environment may contain
/// a secret. Otherwise returns `Ok`.
fn hide_secrets() -> io::Result<()> {
    let keys = config::keys();
    let is_secret = |name: &OsStr, value: &OsStr| {
        config::may_be_secret(&name.to_string_lossy(), &value.to_string_lossy(), &keys)
            && name != OsStr::new(HANDED_OVER)
    };
    let (secret, open): (Variables, Variables) =
        env::vars_os().partition(|(name, value)| is_secret(name, value));
    if secret.is_empty() {
        return Ok(());
    }
    let mut memory = File::from(memfd_create(MEMORY, MFdFlags::empty())?);
    memory.write_all(&packed(&secret))?;
    let name = prctl::get_name()?;
    let handed_over = format!(
        "{}:{}:{}",
        process::id(),
        memory.as_raw_fd(),
        name.to_string_lossy()
    );
    let mut args = env::args_os();
    let mut again = Command::new(THIS_BINARY);
    again
        .arg0(args.next().unwrap_or_else(|| "planck".into()))
        .args(args);
    Err(again
        .env_clear()
        .envs(open)
        .env(HANDED_OVER, handed_over)
        .exec())
}

struct Handover {
    descriptor: i32,
    /// The name of the process. It must be passed on, because the kernel names a process after the
    /// file that it executes, which here is `/proc/self/exe`.
    name: CString,
}

impl Handover {
    fn of_this_process() -> Option<Self> {
        let handed_over = env::var(HANDED_OVER).ok()?;
        let mut parts = handed_over.splitn(3, ':');
        let (own, descriptor, name) = (parts.next()?, parts.next()?, parts.next()?);
        let handover = Self {
            descriptor: descriptor.parse().ok()?,
            name: CString::new(name).ok()?,
        };
        (own.parse() == Ok(process::id()) && handover.is_ours()).then_some(handover)
    }

    fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.descriptor)
    }

    fn is_ours(&self) -> bool {
        let target = fs::read_link(self.path()).unwrap_or_default();
        target
            .as_os_str()
            .as_bytes()
            .starts_with(format!("/memfd:{MEMORY}").as_bytes())
    }

    fn take(self) -> io::Result<Variables> {
        let bytes = fs::read(self.path())?;
        close(self.descriptor)?;
        Ok(unpacked(&bytes))
    }
}

/// Encodes variables as the kernel does: `NAME=value`, each followed by a zero byte.
fn packed(variables: &Variables) -> Vec<u8> {
    let each = variables
        .iter()
        .map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes(), b"\0"].concat());
    each.collect::<Vec<_>>().concat()
}

fn unpacked(bytes: &[u8]) -> Variables {
    let lines = bytes.split(|byte| *byte == 0).filter_map(|line| {
        let (name, value) = line.split_at(line.iter().position(|byte| *byte == b'=')?);
        Some((
            OsString::from_vec(name.into()),
            OsString::from_vec(value.get(1..)?.into()),
        ))
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_unpacked_as_they_were_packed() {
        let variables = [("A", "1=2"), ("EMPTY", ""), ("LINES", "one\ntwo")]
            .map(|(name, value)| (name.into(), value.into()));
        let mut variables = Variables::from(variables);
        variables.insert("RAW".into(), OsString::from_vec(vec![0xff, 0x01]));
        assert_eq!(unpacked(&packed(&variables)), variables);
    }
}
