//! The system calls that a tool process may not make: those that open a way around the rules for files, to the network,
//! or into other processes.

use std::collections::BTreeMap;

use nix::libc;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen::Dword, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, sock_filter,
};

/// Why no filter is in force.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("cannot compile the filter of system calls: {0}")]
    Compile(#[from] BackendError),
    #[error("cannot apply the filter of system calls: {0}")]
    Apply(#[from] seccompiler::Error),
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;
type Compiled<T> = Result<T, BackendError>;

/// Refused whatever the arguments are, with "operation not permitted".
const REFUSED: &[i64] = &[
    // Other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    // Mounts and namespaces: Landlock refuses mounts too, and a namespace would lend capabilities.
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
    // The kernel's keys, programs, events and handles of files.
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_fanotify_init,
    libc::SYS_open_by_handle_at,
    // The machine as a whole, where a node runs as root.
    libc::SYS_kexec_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
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

/// Answered as a kernel without them would, so that programs fall back: `clone3` takes its flags from memory, which a filter
/// cannot read, and a ring performs what a filter would refuse.
const UNKNOWN: &[i64] = &[libc::SYS_clone3, libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];

/// `CLONE_NEW…`. The last is a flag of `unshare` alone; `clone` has a signal's number in these bits.
const NAMESPACES: &[i32] = &[
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];
const NEW_TIME: i32 = 0x80;

/// Input that a terminal is made to believe was typed, and attributes that make a file unchangeable even for its owner.
const COMMANDS: &[u64] = &[0x5412, 0x541c, 0x4008_6602, 0x401c_5820];

/// `SOCK_PACKET`, which the kernel still takes.
const OLD_PACKET: i32 = 10;

/// Bits of a file's mode that lend its owner's or group's rights to whoever runs it. Landlock does not look at changes of modes.
const LENDING: &[i32] = &[0o4000, 0o2000];

/// The calls that set a mode, with the argument that it is. The last is `fchmodat2`, which has one number everywhere.
const MODES: &[(i64, u8)] = &[
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_chmod, 1),
    (libc::SYS_fchmod, 1),
    (libc::SYS_fchmodat, 2),
    (452, 2),
];

/// The part of a socket's type that is no flag.
const TYPE: u64 = 0xf;

/// Applies the filters to this thread and all that it starts. A system call of a foreign architecture kills its process.
pub(super) fn restrict(network: bool) -> Result<(), Failure> {
    for program in programs(network)? {
        seccompiler::apply_filter(&program)?;
    }
    Ok(())
}

/// One filter for each error that is returned.
fn programs(network: bool) -> Result<[BpfProgram; 2], Failure> {
    let unknown = UNKNOWN.iter().map(|call| (*call, Vec::new())).collect();
    let mut first = foreign_numbers();
    first.extend(compile(unknown, libc::ENOSYS)?);
    Ok([first, compile(refused(network)?, libc::EPERM)?])
}

fn compile(rules: Rules, error: i32) -> Compiled<BpfProgram> {
    let arch: TargetArch = std::env::consts::ARCH.try_into()?;
    let errno = SeccompAction::Errno(error.unsigned_abs());
    SeccompFilter::new(rules, SeccompAction::Allow, errno, arch)?.try_into()
}

/// On x86-64 the numbers from 2^30 on are the calls of the x32 interface, under the same architecture.
fn foreign_numbers() -> BpfProgram {
    const LOAD_WORD: u16 = 0x20;
    const JUMP_IF_AT_LEAST: u16 = 0x35;
    const RETURN: u16 = 0x06;
    const X32: u32 = 0x4000_0000;
    const NO_SUCH_CALL: u32 = 0x0005_0000 | libc::ENOSYS.unsigned_abs();
    vec![
        sock_filter { code: LOAD_WORD, jt: 0, jf: 0, k: 0 },
        sock_filter { code: JUMP_IF_AT_LEAST, jt: 0, jf: 1, k: X32 },
        sock_filter { code: RETURN, jt: 0, jf: 0, k: NO_SUCH_CALL },
    ]
}

fn refused(network: bool) -> Compiled<Rules> {
    let mut rules: Rules = REFUSED.iter().map(|call| (*call, Vec::new())).collect();
    rules.insert(libc::SYS_socket, if network { other_than_ip()? } else { Vec::new() });
    rules.insert(libc::SYS_socketpair, other_than_connected_pairs()?);
    rules.insert(libc::SYS_clone, flags(0, NAMESPACES)?);
    rules.insert(libc::SYS_unshare, [flags(0, NAMESPACES)?, flags(0, &[NEW_TIME])?].concat());
    for (call, argument) in MODES {
        rules.insert(*call, flags(*argument, LENDING)?);
    }
    rules.insert(
        libc::SYS_ioctl,
        COMMANDS.iter().map(|command| rule(&[(1, SeccompCmpOp::Eq, *command)])).collect::<Compiled<_>>()?,
    );
    Ok(rules)
}

/// Everything but stream and datagram sockets of IP. Unix sockets stay closed: a filter sees no address, and Landlock does not
/// look at a path that is connected to.
fn other_than_ip() -> Compiled<Vec<SeccompRule>> {
    let families = rule(&[(0, SeccompCmpOp::Ne, domain(libc::AF_INET)), (0, SeccompCmpOp::Ne, domain(libc::AF_INET6))])?;
    let types = types(&[libc::SOCK_RAW, libc::SOCK_RDM, libc::SOCK_SEQPACKET, libc::SOCK_DCCP, OLD_PACKET])?;
    Ok([vec![families], types].concat())
}

/// A pair of datagram sockets is refused: either end can be connected to another address afterwards.
fn other_than_connected_pairs() -> Compiled<Vec<SeccompRule>> {
    let families = rule(&[(0, SeccompCmpOp::Ne, domain(libc::AF_UNIX))])?;
    let types = types(&[libc::SOCK_DGRAM, libc::SOCK_RAW, libc::SOCK_RDM, libc::SOCK_DCCP, OLD_PACKET])?;
    Ok([vec![families], types].concat())
}

fn types(refused: &[i32]) -> Compiled<Vec<SeccompRule>> {
    refused.iter().map(|kind| rule(&[(1, SeccompCmpOp::MaskedEq(TYPE), domain(*kind))])).collect()
}

fn flags(argument: u8, refused: &[i32]) -> Compiled<Vec<SeccompRule>> {
    refused.iter().map(|flag| rule(&[(argument, SeccompCmpOp::MaskedEq(domain(*flag)), domain(*flag))])).collect()
}

/// The kernel reads these arguments as 32 bits.
fn domain(number: i32) -> u64 {
    u64::from(number.cast_unsigned())
}

/// A rule matches when all of its conditions do.
fn rule(conditions: &[(u8, SeccompCmpOp, u64)]) -> Compiled<SeccompRule> {
    let conditions: Compiled<Vec<_>> =
        conditions.iter().map(|(argument, op, value)| SeccompCondition::new(*argument, Dword, op.clone(), *value)).collect();
    SeccompRule::new(conditions?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_filters_compile_and_fit() {
        for network in [false, true] {
            for program in programs(network).unwrap() {
                assert!(program.len() < 1000, "{} instructions", program.len());
            }
        }
    }
}
