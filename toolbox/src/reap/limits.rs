//! The limits of one tool call. The kernel enforces some of them for each process. The reaper
//! enforces those that concern all processes of a call together (`watch.rs`).

use std::{fmt, fs, str::FromStr};

use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};

/// The limits of a command and of everything that it starts. Zero means unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandLimits {
    /// The maximum number of processes that a call has at one time. It may have [`THREADS`] times
    /// as many threads.
    pub processes: u64,
    /// The maximum number of bytes of memory that all processes of a call use together.
    pub memory: u64,
    /// The maximum size in bytes of a file that a process writes.
    pub file_size: u64,
    /// The maximum number of files that one process has open.
    pub open_files: u64,
    /// The number of bytes that a call must leave on the disks of its directory and its temporary
    /// files.
    pub disk_free: u64,
}

/// How many times the limit of threads of a call exceeds its limit of processes. Runtimes such as Go's and Java's start dozens.
pub const THREADS: u64 = 16;

impl Default for CommandLimits {
    fn default() -> Self {
        Self {
            processes: 512,
            memory: 4 << 30,
            file_size: 2 << 30,
            open_files: 4096,
            disk_free: 1 << 30,
        }
    }
}

impl CommandLimits {
    pub const NONE: Self = Self {
        processes: 0,
        memory: 0,
        file_size: 0,
        open_files: 0,
        disk_free: 0,
    };

    /// Applies the limits that the kernel enforces to this process and to everything that it starts
    /// later. Also makes these processes the first that the kernel kills when memory runs out.
    pub(super) fn bind(&self) -> nix::Result<()> {
        lower(Resource::RLIMIT_FSIZE, self.file_size)?;
        lower(Resource::RLIMIT_NOFILE, self.open_files)?;
        if self.processes > 0 {
            // The kernel counts the threads of a user over all calls. The limit is therefore the
            // current number of threads on the machine plus the number that one call may have. The
            // limit only slows a fork bomb down until the reaper kills the fork bomb.
            lower(
                Resource::RLIMIT_NPROC,
                threads_of_machine().saturating_add(self.processes.saturating_mul(THREADS)),
            )?;
        }
        // If memory runs out, the kernel then kills a tool rather than the node. Raising the score
        // needs no privilege.
        let _ = fs::write("/proc/self/oom_score_adj", "1000");
        Ok(())
    }
}

/// Lowers a limit of the process to `bound`, or keeps it if it is already lower or `bound` is 0.
fn lower(resource: Resource, bound: u64) -> nix::Result<()> {
    let (soft, hard) = getrlimit(resource)?;
    let bound = |now: rlim_t| if bound == 0 { now } else { now.min(bound) };
    setrlimit(resource, bound(soft), bound(hard))
}

/// Returns the number of threads on this machine, from the fourth field of `/proc/loadavg`: 80 in
/// `0.20 0.18 0.12 1/80 11206`.
fn threads_of_machine() -> u64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let field = text
        .split_whitespace()
        .nth(3)
        .and_then(|field| field.split_once('/'));
    field
        .and_then(|(_, all)| all.parse().ok())
        .unwrap_or(u64::from(u16::MAX))
}

/// Writes the fields in a fixed order. The node passes them to a reaper in this form.
impl fmt::Display for CommandLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{},{},{},{},{}",
            self.processes, self.memory, self.file_size, self.open_files, self.disk_free
        )
    }
}

impl FromStr for CommandLimits {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut numbers = text.split(',');
        let mut next = || numbers.next().unwrap_or_default().parse();
        Ok(Self {
            processes: next()?,
            memory: next()?,
            file_size: next()?,
            open_files: next()?,
            disk_free: next()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_parsed_as_they_were_written() {
        assert_eq!(
            CommandLimits::default().to_string().parse(),
            Ok(CommandLimits::default())
        );
        assert!(
            "1,2,3,4".parse::<CommandLimits>().is_err()
                && "1,2,3,4,many".parse::<CommandLimits>().is_err()
        );
    }
}
