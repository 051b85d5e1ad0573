//! The limits of one tool call. The kernel enforces some of them for each process. The reaper
//! enforces those that concern all processes of a call together.

use std::{
    collections::HashSet,
    fmt, fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    str::FromStr,
    time::{Duration, Instant},
};

use nix::{
    sys::{
        resource::{Resource, getrlimit, rlim_t, setrlimit},
        statvfs::statvfs,
    },
    unistd::{Pid, SysconfVar, sysconf},
};

use super::descendants::Descendants;

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

// Checks the number of processes and the memory of a whole call. Without a control group the
// kernel limits neither of them, and in a threaded one it does not limit memory. The reaper checks
// at intervals, so a call can exceed a limit for a moment.

/// The minimum time to the next check: `SOON` if a call is young or near its limits, and `LATER`
/// otherwise.
const SOON: Duration = Duration::from_millis(50);
const LATER: Duration = Duration::from_millis(250);

/// The time after its start for which a call counts as young.
const YOUNG: Duration = Duration::from_secs(1);

/// The time to the next check is at least this many times the duration of the last one, up to
/// [`LONGEST`], so that checks use at most about a twentieth of the time.
const SHARE: u32 = 20;

/// The maximum time to the next check, even if the last check took long.
const LONGEST: Duration = Duration::from_secs(2);

/// The number of files that can be created which a call must leave on a disk.
const FILES_FREE: u64 = 16_384;

/// The bytes and the files that a call may take of a disk that is nearly full already.
const LAST_BYTES: u64 = 64 << 20;
const LAST_FILES: u64 = 4_096;

pub(super) struct LimitWatch {
    limits: CommandLimits,
    disks: Vec<DiskFloor>,
    started: Instant,
    next: Instant,
    page: u64,
}

/// The limit that a call exceeded. Its text is shown to the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Excess {
    Processes { limit: u64 },
    Threads { limit: u64 },
    Memory { limit: u64 },
    Disk { left: u64 },
    Files { left: u64 },
}

/// The least that a call must leave on the disk of a folder.
#[derive(Debug)]
struct DiskFloor {
    folder: PathBuf,
    bytes: u64,
    files: u64,
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, key) = match self {
            Self::Disk { left } => {
                return write!(
                    f,
                    "ended: the disk has only {} MiB left (`tools.limits.disk_free`)",
                    left >> 20
                );
            }
            Self::Files { left } => {
                return write!(
                    f,
                    "ended: only {left} more files can be created on the disk"
                );
            }
            Self::Processes { limit } => (format!("{limit} processes"), "processes"),
            Self::Threads { limit } => (format!("{limit} threads"), "processes"),
            Self::Memory { limit } => (format!("{} MiB of memory", limit >> 20), "memory"),
        };
        write!(
            f,
            "ended: the command used more than {what} at one time (`tools.limits.{key}`)"
        )
    }
}

/// The resources that the processes of a call use together.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct ResourceUsage {
    processes: u64,
    threads: u64,
    /// Memory in pages. A shared page counts once for every process that maps it.
    pages: u64,
    /// The bytes of memory in files without a path, of which pages need not be mapped.
    files: u64,
}

impl DiskFloor {
    /// Returns the floor of the folder's disk as it is now, or `None` if its state is unknown.
    fn of(folder: &Path, least: u64) -> Option<Self> {
        let (bytes, files) = left_on_disk(folder)?;
        Some(Self {
            folder: folder.into(),
            bytes: least.min(bytes.saturating_sub(LAST_BYTES)),
            files: FILES_FREE.min(files.saturating_sub(LAST_FILES)),
        })
    }

    /// Returns what is left if that is less than the floor.
    fn fallen(&self) -> Option<Excess> {
        let (bytes, files) = left_on_disk(&self.folder)?;
        if bytes < self.bytes {
            return Some(Excess::Disk { left: bytes });
        }
        (files < self.files).then_some(Excess::Files { left: files })
    }
}

/// Returns the number of bytes, and of files that can be created, which users other than root have
/// left. A file system that does not count its files has `u64::MAX` of them.
fn left_on_disk(folder: &Path) -> Option<(u64, u64)> {
    let found = statvfs(folder).ok()?;
    let bytes = found
        .blocks_available()
        .saturating_mul(found.fragment_size());
    let files = match found.files() {
        0 => u64::MAX,
        _ => found.files_available(),
    };
    Some((bytes, files))
}

impl LimitWatch {
    /// Creates the watch, or returns `None` if the limits need no checks. `folders` are those whose
    /// disks the call may fill.
    pub fn new(limits: CommandLimits, folders: &[&Path]) -> Option<Self> {
        let now = Instant::now();
        let page = sysconf(SysconfVar::PAGE_SIZE)
            .ok()
            .flatten()
            .and_then(|size| u64::try_from(size).ok())
            .unwrap_or(4096);
        let disks: Vec<_> = folders
            .iter()
            .filter(|_| limits.disk_free > 0)
            .filter_map(|folder| DiskFloor::of(folder, limits.disk_free))
            .collect();
        let is_needed = limits.processes > 0 || limits.memory > 0 || !disks.is_empty();
        is_needed.then_some(Self {
            limits,
            disks,
            started: now,
            next: now + SOON,
            page,
        })
    }

    /// Returns the time until the next check.
    pub fn pause(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }

    /// Checks the limits if a check is due. Returns the limit that is exceeded, if any.
    pub fn look(&mut self) -> Option<Excess> {
        let begun = Instant::now();
        if begun < self.next {
            return None;
        }
        let processes = Descendants::of_this_process().find();
        let usage = ResourceUsage::of(&processes);
        let excess = excess(usage, self.limits, self.page, || shared_fairly(&processes))
            .or_else(|| self.disks.iter().find_map(DiskFloor::fallen));
        let relaxed = begun.duration_since(self.started) > YOUNG && self.is_far(usage);
        let now = Instant::now();
        self.next = now + until_next(now.duration_since(begun), relaxed);
        excess
    }

    /// Returns whether a call uses less than a quarter of its limits of processes and memory.
    fn is_far(&self, usage: ResourceUsage) -> bool {
        let far = |used: u64, limit: u64| limit == 0 || used.saturating_mul(4) < limit;
        far(usage.processes, self.limits.processes)
            && far(usage.memory(self.page), self.limits.memory)
    }
}

/// Returns the time until the next check. `took` is the duration of the last one, and `relaxed`
/// means that the call is neither young nor near its limits.
fn until_next(took: Duration, relaxed: bool) -> Duration {
    took.saturating_mul(SHARE)
        .clamp(if relaxed { LATER } else { SOON }, LONGEST)
}

/// Returns the limit that is exceeded, if any. `fairly` returns the memory in bytes, with each
/// shared page divided among its processes. It is called only if the simple count of pages exceeds
/// the limit, because it is expensive and forked processes share most of their memory.
fn excess(
    usage: ResourceUsage,
    limits: CommandLimits,
    page: u64,
    fairly: impl FnOnce() -> u64,
) -> Option<Excess> {
    let over = |used: u64, limit: u64| limit > 0 && used > limit;
    let threads = limits.processes.saturating_mul(THREADS);
    if over(usage.processes, limits.processes) {
        return Some(Excess::Processes {
            limit: limits.processes,
        });
    }
    if over(usage.threads, threads) {
        return Some(Excess::Threads { limit: threads });
    }
    let over_memory = over(usage.memory(page), limits.memory)
        && over(usage.files.saturating_add(fairly()), limits.memory);
    over_memory.then_some(Excess::Memory {
        limit: limits.memory,
    })
}

impl ResourceUsage {
    fn memory(&self, page: u64) -> u64 {
        self.pages.saturating_mul(page).saturating_add(self.files)
    }

    fn of(processes: &[Pid]) -> Self {
        let each = processes
            .iter()
            .filter_map(|pid| Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?));
        let none = Self {
            files: memory_files(processes),
            ..Self::default()
        };
        each.fold(none, |sum, one| Self {
            processes: sum.processes + one.processes,
            threads: sum.threads + one.threads,
            pages: sum.pages + one.pages,
            ..sum
        })
    }

    /// Parses `/proc/<pid>/stat`. The name in the second field may contain any character and ends
    /// at the last parenthesis. A dead process counts too, because it occupies an entry in the
    /// process table until its parent collects it.
    fn parse(stat: &str) -> Option<Self> {
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let number = |field: usize| fields.get(field - 3)?.parse().ok();
        Some(Self {
            processes: 1,
            threads: number(20)?,
            pages: number(24)?,
            files: 0,
        })
    }
}

/// Returns the memory of these processes in bytes, with each shared page divided among its
/// processes. A process whose shares cannot be read counts with all of its resident pages.
fn shared_fairly(processes: &[Pid]) -> u64 {
    let each = processes.iter().map(|pid| {
        let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok();
        rollup
            .and_then(|text| kibibytes(&text, "Pss:"))
            .or_else(|| {
                let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
                kibibytes(&status, "VmRSS:")
            })
    });
    each.flatten()
        .fold(0, |sum, kibibytes| sum + kibibytes * 1024)
}

/// Returns the memory in bytes of the files that these processes made with `memfd_create` and have
/// open. A page of such a file that is mapped also counts as memory of its process.
fn memory_files(processes: &[Pid]) -> u64 {
    let open = processes
        .iter()
        .filter_map(|pid| fs::read_dir(format!("/proc/{pid}/fd")).ok())
        .flat_map(|open| open.flatten().map(|entry| entry.path()));
    let is_memory = |path: &PathBuf| {
        fs::read_link(path).is_ok_and(|target| {
            target
                .as_os_str()
                .as_encoded_bytes()
                .starts_with(b"/memfd:")
        })
    };
    let mut known = HashSet::new();
    let found = open
        .filter(is_memory)
        .filter_map(|path| fs::metadata(path).ok());
    found
        .filter(|file| known.insert((file.dev(), file.ino())))
        .fold(0, |sum, file| sum + file.blocks() * 512)
}

fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
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

    const STAT: &str = "7 (a) b (c)) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 3 0 15 9000000 250 18446744073709551615 1";

    #[test]
    fn a_stat_line_gives_threads_and_pages() {
        assert_eq!(
            ResourceUsage::parse(STAT),
            Some(ResourceUsage {
                processes: 1,
                threads: 3,
                pages: 250,
                files: 0,
            })
        );
        assert_eq!(ResourceUsage::parse("7 (a) Z"), None);
    }

    #[test]
    fn a_delayed_check_does_not_put_off_the_next_one_for_long() {
        let millis = Duration::from_millis;
        assert_eq!(until_next(millis(1), false), SOON);
        assert_eq!(until_next(millis(1), true), LATER);
        assert_eq!(until_next(millis(20), false), millis(400));
        assert_eq!(until_next(millis(12_000), true), LONGEST);
    }

    #[test]
    fn the_first_limit_that_is_exceeded_is_named() {
        let limits = CommandLimits {
            processes: 2,
            memory: 4096 * 10,
            ..CommandLimits::NONE
        };
        let usage = |processes, threads, pages| ResourceUsage {
            processes,
            threads,
            pages,
            files: 0,
        };
        for (usage, fairly, wanted) in [
            (usage(2, 32, 10), 0, None),
            (usage(3, 3, 0), 0, Some(Excess::Processes { limit: 2 })),
            (usage(1, 33, 0), 0, Some(Excess::Threads { limit: 32 })),
            (usage(2, 2, 11), 4096 * 10, None),
            (
                usage(2, 2, 11),
                4096 * 10 + 1,
                Some(Excess::Memory { limit: 4096 * 10 }),
            ),
        ] {
            assert_eq!(excess(usage, limits, 4096, || fairly), wanted, "{usage:?}");
        }
        assert_eq!(
            excess(
                usage(u64::MAX, u64::MAX, u64::MAX),
                CommandLimits::NONE,
                4096,
                || u64::MAX
            ),
            None
        );
    }

    #[test]
    fn memory_files_count_towards_the_limit() {
        let limits = CommandLimits {
            memory: 4096 * 10,
            ..CommandLimits::NONE
        };
        let usage = ResourceUsage {
            files: 4096 * 9,
            pages: 2,
            ..ResourceUsage::default()
        };
        let over = Some(Excess::Memory { limit: 4096 * 10 });
        assert_eq!(excess(usage, limits, 4096, || 4096 * 2), over);
        assert_eq!(excess(usage, limits, 4096, || 4096), None);
    }

    #[test]
    fn a_disk_keeps_a_rest() {
        let folder = tempfile::tempdir().unwrap();
        let floor = |least| DiskFloor::of(folder.path(), least).unwrap();
        assert_eq!(floor(1).fallen(), None);
        let (left, _) = left_on_disk(folder.path()).unwrap();
        let nearly_full = floor(u64::MAX);
        assert!(
            nearly_full.bytes < left && nearly_full.bytes >= left.saturating_sub(2 * LAST_BYTES)
        );
        let full = DiskFloor {
            bytes: u64::MAX,
            ..nearly_full
        };
        assert!(matches!(full.fallen(), Some(Excess::Disk { .. })));
    }

    #[test]
    fn this_process_uses_memory() {
        let own = [nix::unistd::getpid()];
        let usage = ResourceUsage::of(&own);
        assert!(
            usage.processes == 1 && usage.threads >= 1 && usage.pages > 0,
            "{usage:?}"
        );
        assert!(shared_fairly(&own) > 0);
    }
}
