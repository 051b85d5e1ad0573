//! The system calls that a tool process may not make: those that bypass the rules for files, those
//! that reach the network or other processes, and those that affect the whole machine.

use std::collections::BTreeMap;

use nix::libc::{self, c_long};
use seccompiler::{BpfProgram, sock_filter};

use super::policy::SandboxPolicy;

/// The reason why the filter could not be applied.
#[derive(Debug, thiserror::Error)]
pub enum SeccompFailure {
    #[error("cannot assemble the filter of system calls: {0}")]
    Assemble(#[from] Unassembled),
    #[error("cannot apply the filter of system calls: {0}")]
    Apply(#[from] seccompiler::Error),
}

/// Calls that fail with "operation not permitted", whatever their arguments are.
const REFUSED: &[i64] = &[
    // These calls read or change other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    // These calls change mounts, the root folder or namespaces. Landlock refuses changes of mounts
    // too, and a namespace would grant capabilities.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_setns,
    OPEN_TREE_ATTR,
    // These calls reach the kernel's keys, BPF programs, performance events, page faults, file
    // notifications and file handles.
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_fanotify_init,
    libc::SYS_open_by_handle_at,
    // These calls affect the whole machine, which matters for nodes that run as root.
    libc::SYS_kexec_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    FILE_SETATTR,
    libc::SYS_syslog,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_vhangup,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_kexec_file_load,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
];

/// Calls that have the same number on all architectures and no name in `libc` yet. The first takes
/// mounts, and the second makes any file immutable by its path, which Landlock does not check.
const OPEN_TREE_ATTR: i64 = 467;
const FILE_SETATTR: i64 = 469;

/// The highest number of a call that was reviewed for these tables. All architectures count new calls
/// with the same numbers. The kernel's later calls fail as if it did not have them, so that a newer
/// kernel opens nothing.
const NEWEST: u32 = 469;

/// The calls of System V's and POSIX's shared memory, semaphores and message queues. Their objects
/// outlive a call, count towards no limit, and are open to every process of the user. Bubblewrap
/// gives a call a namespace of its own for them.
const SHARED: &[i64] = &[
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_semctl,
    libc::SYS_msgget,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_msgctl,
    libc::SYS_mq_open,
    libc::SYS_mq_unlink,
    libc::SYS_mq_timedsend,
    libc::SYS_mq_timedreceive,
    libc::SYS_mq_notify,
    libc::SYS_mq_getsetattr,
];

/// The calls that change the limits, the scheduling or the memory of the process with a given id,
/// and the position of the id among their arguments. They fail unless the id is 0, which stands for
/// the calling process. Two of them can also mean all processes of a user, if their first argument
/// has the last value, and then fail too. The kernel checks only that both processes belong to one
/// user, and Landlock checks nothing.
const FOREIGN: &[(i64, u8, Option<u32>)] = &[
    (libc::SYS_prlimit64, 0, None),
    (libc::SYS_sched_setscheduler, 0, None),
    (libc::SYS_sched_setparam, 0, None),
    (libc::SYS_sched_setattr, 0, None),
    (libc::SYS_sched_setaffinity, 0, None),
    (libc::SYS_setpriority, 1, Some(2)),
    (libc::SYS_ioprio_set, 1, Some(3)),
    (libc::SYS_migrate_pages, 0, None),
    (libc::SYS_move_pages, 0, None),
];

/// Calls that fail as if the kernel did not have them, so that programs use older calls instead.
/// `clone3` takes its flags from memory, which a filter cannot read, and io_uring performs
/// operations that the filter would refuse.
const UNKNOWN: &[i64] = &[
    libc::SYS_clone3,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
];

/// The flags `CLONE_NEW…`. `NEW_TIME` is valid only for `unshare`. In `clone`, its bit is part of
/// the number of a signal.
const NAMESPACES: i32 = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;
const NEW_TIME: i32 = 0x80;

/// The `ioctl` requests that a tool may not make.
const COMMANDS: &[u32] = &[
    // These insert input into a terminal as if it was typed: `TIOCSTI` and `TIOCLINUX`.
    0x5412,
    0x541c,
    // These make a file immutable even for its owner: `FS_IOC_SETFLAGS` and `FS_IOC_FSSETXATTR`.
    0x4008_6602,
    0x401c_5820,
    // These freeze, thaw and shut down a whole file system: `FIFREEZE`, `FITHAW`, and the request
    // that ext4, XFS and F2FS share.
    0xc004_5877,
    0xc004_5878,
    0x8004_587d,
    // `EXT4_IOC_SWAP_BOOT` exchanges the content of a file, whatever the bits of its mode are.
    0x6611,
];

/// The type of a packet socket, `SOCK_PACKET`, which is obsolete but still accepted by the kernel.
const OLD_PACKET: i32 = 10;

/// The setuid and setgid bits, which make a file run with the rights of its owner or group.
/// Landlock does not check changes of modes.
const LENDING: u32 = 0o6000;

/// The calls that change the mode of an existing file, and the position of the mode among their
/// arguments. The last is `fchmodat2`, whose number is the same on all architectures.
const MODES: &[(i64, u8)] = &[
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_chmod, 1),
    (libc::SYS_fchmod, 1),
    (libc::SYS_fchmodat, 2),
    (452, 2),
];

/// The mask for the bits of a socket's type that are not flags.
const TYPE: u32 = 0xf;

/// Applies the filter to this thread and to everything that it starts. A system call of another
/// architecture kills the process that makes it.
pub(super) fn restrict(policy: &SandboxPolicy) -> Result<(), SeccompFailure> {
    let filter = filter(policy.network, policy.inside);
    Ok(seccompiler::apply_filter(
        &filter.assemble(std::env::consts::ARCH)?,
    )?)
}

/// Returns the filter of a process with or without the network. `inside` bubblewrap, the process has
/// namespaces of its own for process ids and for shared memory.
fn filter(network: bool, inside: bool) -> Filter {
    let mut filter = Filter::up_to(NEWEST);
    for call in REFUSED {
        filter.add(*call, SyscallRule::Refused);
    }
    for call in UNKNOWN {
        filter.add(*call, SyscallRule::Unknown);
    }
    if !inside {
        for call in SHARED {
            filter.add(*call, SyscallRule::Refused);
        }
        for (call, argument, of_user) in FOREIGN {
            let mut checks = vec![Check::NoneOf {
                argument: *argument,
                values: vec![0],
            }];
            checks.extend(of_user.map(|kind| Check::OneOf {
                argument: 0,
                mask: u32::MAX,
                values: vec![kind],
            }));
            filter.add(*call, SyscallRule::RefusedIf(checks));
        }
    }
    filter.add(
        libc::SYS_socket,
        if network {
            SyscallRule::RefusedIf(other_than_ip())
        } else {
            SyscallRule::Refused
        },
    );
    filter.add(
        libc::SYS_socketpair,
        SyscallRule::RefusedIf(other_than_connected_pairs()),
    );
    filter.add(libc::SYS_clone, any_bit(0, bits(NAMESPACES)));
    filter.add(libc::SYS_unshare, any_bit(0, bits(NAMESPACES | NEW_TIME)));
    for (call, argument) in MODES {
        filter.add(*call, any_bit(*argument, LENDING));
    }
    filter.add(
        libc::SYS_ioctl,
        SyscallRule::RefusedIf(vec![Check::OneOf {
            argument: 1,
            mask: u32::MAX,
            values: COMMANDS.to_vec(),
        }]),
    );
    filter
}

/// Returns checks that match all sockets except stream and datagram sockets of IP. Unix sockets are
/// refused, because a filter cannot read the address of a connection, and Landlock does not check
/// it.
fn other_than_ip() -> Vec<Check> {
    let families = Check::NoneOf {
        argument: 0,
        values: vec![bits(libc::AF_INET), bits(libc::AF_INET6)],
    };
    vec![
        families,
        types(&[
            libc::SOCK_RAW,
            libc::SOCK_RDM,
            libc::SOCK_SEQPACKET,
            libc::SOCK_DCCP,
            OLD_PACKET,
        ]),
    ]
}

/// Returns checks that match all socket pairs except connection-oriented ones. A pair of datagram
/// sockets is refused, because either end can be connected to another address afterwards.
fn other_than_connected_pairs() -> Vec<Check> {
    let families = Check::NoneOf {
        argument: 0,
        values: vec![bits(libc::AF_UNIX)],
    };
    vec![
        families,
        types(&[
            libc::SOCK_DGRAM,
            libc::SOCK_RAW,
            libc::SOCK_RDM,
            libc::SOCK_DCCP,
            OLD_PACKET,
        ]),
    ]
}

fn types(refused: &[i32]) -> Check {
    Check::OneOf {
        argument: 1,
        mask: TYPE,
        values: refused.iter().copied().map(bits).collect(),
    }
}

fn any_bit(argument: u8, bits: u32) -> SyscallRule {
    SyscallRule::RefusedIf(vec![Check::AnyBit { argument, bits }])
}

/// Converts an argument of which the kernel reads 32 bits.
fn bits(number: i32) -> u32 {
    number.cast_unsigned()
}

// Compiles a filter of system calls into classic BPF for the kernel.
//
// The filter finds the number of a call by binary search. When a filter is installed, the kernel
// runs it for every number to learn which calls are always allowed. With a linear search,
// installing the filter took a quarter of a millisecond for each process.

/// The reason why a filter cannot be compiled.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unassembled {
    #[error("Planck does not know the system calls of {0}")]
    Architecture(&'static str),
    #[error("the number of a call is not one: {0}")]
    Number(c_long),
    #[error("a jump is longer than {} instructions", u8::MAX)]
    Jump,
}

/// The effect of the filter on a call.
#[derive(Debug, Clone)]
enum SyscallRule {
    /// The call fails with "operation not permitted".
    Refused,
    /// The call fails as if the kernel did not have it.
    Unknown,
    /// The call fails with "operation not permitted" if one of these checks matches.
    RefusedIf(Vec<Check>),
}

/// A condition on the lower 32 bits of a call's argument.
#[derive(Debug, Clone)]
enum Check {
    /// At least one of these bits is set.
    AnyBit { argument: u8, bits: u32 },
    /// The bits under the mask have one of these values.
    OneOf {
        argument: u8,
        mask: u32,
        values: Vec<u32>,
    },
    /// The argument has none of these values.
    NoneOf { argument: u8, values: Vec<u32> },
}

/// The rules of a filter by system call number. A call without a rule is allowed.
#[derive(Debug)]
struct Filter {
    rules: BTreeMap<c_long, SyscallRule>,
    newest: u32,
}

const KILL: u32 = libc::SECCOMP_RET_KILL_PROCESS;
const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;

/// The offsets in bytes of the call number, the architecture and the arguments in `struct
/// seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;

const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const RETURN: u16 = 0x06;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_IF_AT_LEAST: u16 = 0x35;
const JUMP_IF_ANY_BIT: u16 = 0x45;

impl Filter {
    /// Creates a filter for the calls up to this number. Calls with higher numbers fail as if the
    /// kernel did not have them. Those of the x32 interface on x86-64 are among them, which have the
    /// same architecture value.
    fn up_to(newest: u32) -> Self {
        Self {
            rules: BTreeMap::new(),
            newest,
        }
    }

    /// Sets the rule of a call, and replaces an earlier rule of the same call.
    fn add(&mut self, call: c_long, rule: SyscallRule) {
        self.rules.insert(call, rule);
    }

    /// Compiles the filter for an architecture, which is named as in `std::env::consts::ARCH`.
    /// Calls of any other architecture kill their process.
    fn assemble(&self, architecture: &'static str) -> Result<BpfProgram, Unassembled> {
        let mut code = Assembler::default();
        let (kill, allow) = (code.end(KILL), code.end(ALLOW));
        let refuse = code.end(libc::SECCOMP_RET_ERRNO | libc::EPERM.unsigned_abs());
        let unknown = code.end(libc::SECCOMP_RET_ERRNO | libc::ENOSYS.unsigned_abs());
        let mut ranges = Ranges::new(allow);
        for (call, rule) in &self.rules {
            let number = u32::try_from(*call).map_err(|_| Unassembled::Number(*call))?;
            let target = match rule {
                SyscallRule::Refused => refuse,
                SyscallRule::Unknown => unknown,
                SyscallRule::RefusedIf(checks) => code.checks(checks, refuse, allow)?,
            };
            ranges.exempt(number, target);
        }
        ranges.continue_with(self.newest + 1, unknown);
        let search = code.search(&ranges.0)?;
        let search = code.load_for(NUMBER, search)?;
        let is_own = code.jump(JUMP_IF_EQUAL, audit_number(architecture)?, search, kill)?;
        code.load_for(ARCHITECTURE, is_own)?;
        Ok(code.finish())
    }
}

fn audit_number(architecture: &'static str) -> Result<u32, Unassembled> {
    match architecture {
        "x86_64" => Ok(0xc000_003e),
        "aarch64" => Ok(0xc000_00b7),
        "riscv64" => Ok(0xc000_00f3),
        other => Err(Unassembled::Architecture(other)),
    }
}

/// The position of an instruction: the number of instructions from it to the end of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Label(usize);

/// A map from ranges of call numbers to jump targets. Each entry holds the first number of its
/// range. The entries are in ascending order, and the first entry is for 0.
struct Ranges(Vec<(u32, Label)>);

impl Ranges {
    fn new(usual: Label) -> Self {
        Self(vec![(0, usual)])
    }

    /// Gives one system call number another target. The number must be higher than those that were
    /// passed to earlier calls of this function.
    fn exempt(&mut self, number: u32, target: Label) {
        let usual = self.0.first().map_or(target, |(_, usual)| *usual);
        self.continue_with(number, target);
        self.continue_with(number + 1, usual);
    }

    fn continue_with(&mut self, from: u32, target: Label) {
        if self.0.len() > 1 && self.0.last().is_some_and(|(last, _)| *last == from) {
            self.0.pop();
        }
        if self.0.last().is_none_or(|(_, last)| *last != target) {
            self.0.push((from, target));
        }
    }
}

/// A builder that adds the instructions of a program from its end to its start. Jumps only go
/// forward, so the target of a jump must already exist.
#[derive(Debug, Default)]
struct Assembler(Vec<sock_filter>);

impl Assembler {
    fn finish(mut self) -> BpfProgram {
        self.0.reverse();
        self.0
    }

    fn put(&mut self, code: u16, k: u32, jt: u8, jf: u8) -> Label {
        self.0.push(sock_filter { code, jt, jf, k });
        Label(self.0.len())
    }

    fn end(&mut self, result: u32) -> Label {
        self.put(RETURN, result, 0, 0)
    }

    fn jump(
        &mut self,
        code: u16,
        k: u32,
        then: Label,
        otherwise: Label,
    ) -> Result<Label, Unassembled> {
        let (then, otherwise) = (self.distance(then)?, self.distance(otherwise)?);
        Ok(self.put(code, k, then, otherwise))
    }

    /// Returns the distance to `target` for a jump in the instruction that is added next.
    fn distance(&self, target: Label) -> Result<u8, Unassembled> {
        u8::try_from(self.0.len() - target.0).map_err(|_| Unassembled::Jump)
    }

    /// Adds an instruction that loads a word for `next`, the instruction that was added last.
    fn load_for(&mut self, offset: u32, next: Label) -> Result<Label, Unassembled> {
        // A load cannot jump, so it must be placed directly before `next`.
        if next != Label(self.0.len()) {
            return Err(Unassembled::Jump);
        }
        Ok(self.put(LOAD, offset, 0, 0))
    }

    fn search(&mut self, ranges: &[(u32, Label)]) -> Result<Label, Unassembled> {
        let (low, high) = ranges.split_at(ranges.len() / 2);
        match (low, high) {
            ([], [(_, target)]) => Ok(*target),
            (_, [(from, _), ..]) => {
                let above = self.search(high)?;
                let below = self.search(low)?;
                self.jump(JUMP_IF_AT_LEAST, *from, above, below)
            }
            (_, []) => Err(Unassembled::Jump),
        }
    }

    fn checks(
        &mut self,
        checks: &[Check],
        refuse: Label,
        allow: Label,
    ) -> Result<Label, Unassembled> {
        checks
            .iter()
            .rev()
            .try_fold(allow, |next, check| self.check(check, refuse, next))
    }

    fn check(&mut self, check: &Check, refuse: Label, next: Label) -> Result<Label, Unassembled> {
        let (argument, mask, test) = match check {
            Check::AnyBit { argument, bits } => (
                argument,
                u32::MAX,
                self.jump(JUMP_IF_ANY_BIT, *bits, refuse, next)?,
            ),
            Check::OneOf {
                argument,
                mask,
                values,
            } => (argument, *mask, self.any_of(values, refuse, next)?),
            Check::NoneOf { argument, values } => {
                (argument, u32::MAX, self.any_of(values, next, refuse)?)
            }
        };
        let test = if mask == u32::MAX {
            test
        } else {
            self.put(AND, mask, 0, 0)
        };
        self.load_for(ARGUMENTS + 8 * u32::from(*argument), test)
    }

    fn any_of(
        &mut self,
        values: &[u32],
        then: Label,
        otherwise: Label,
    ) -> Result<Label, Unassembled> {
        values.iter().rev().try_fold(otherwise, |otherwise, value| {
            self.jump(JUMP_IF_EQUAL, *value, then, otherwise)
        })
    }
}

#[cfg(test)]
mod tests;
