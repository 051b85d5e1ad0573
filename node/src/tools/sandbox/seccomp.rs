//! The system calls that a tool process may not make: those that open a way around the rules for
//! files, to the network, or into other processes.

mod program;

use nix::libc;

use program::{Check, Filter, Rule, Unassembled};

/// Why no filter is in force.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("cannot assemble the filter of system calls: {0}")]
    Assemble(#[from] Unassembled),
    #[error("cannot apply the filter of system calls: {0}")]
    Apply(#[from] seccompiler::Error),
}

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

/// Answered as a kernel without them would, so that programs fall back: `clone3` takes its flags
/// from memory, which a filter cannot read, and a ring performs what a filter would refuse.
const UNKNOWN: &[i64] = &[
    libc::SYS_clone3,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
];

/// `CLONE_NEW…`. The last is a flag of `unshare` alone; `clone` has a signal's number in these
/// bits.
const NAMESPACES: i32 = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;
const NEW_TIME: i32 = 0x80;

/// Input that a terminal is made to believe was typed, and attributes that make a file unchangeable
/// even for its owner.
const COMMANDS: &[u32] = &[0x5412, 0x541c, 0x4008_6602, 0x401c_5820];

/// `SOCK_PACKET`, which the kernel still takes.
const OLD_PACKET: i32 = 10;

/// Bits of a file's mode that lend its owner's or group's rights to whoever runs it. Landlock does
/// not look at changes of modes.
const LENDING: u32 = 0o6000;

/// The calls that set a mode, with the argument that it is. The last is `fchmodat2`, which has one
/// number everywhere.
const MODES: &[(i64, u8)] = &[
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_chmod, 1),
    (libc::SYS_fchmod, 1),
    (libc::SYS_fchmodat, 2),
    (452, 2),
];

/// The part of a socket's type that is no flag.
const TYPE: u32 = 0xf;

/// Applies the filter to this thread and all that it starts. A system call of a foreign
/// architecture kills its process.
pub(super) fn restrict(network: bool) -> Result<(), Failure> {
    Ok(seccompiler::apply_filter(
        &filter(network).assemble(std::env::consts::ARCH)?,
    )?)
}

fn filter(network: bool) -> Filter {
    let mut filter = Filter::default();
    for call in REFUSED {
        filter.add(*call, Rule::Refused);
    }
    for call in UNKNOWN {
        filter.add(*call, Rule::Unknown);
    }
    filter.add(
        libc::SYS_socket,
        if network {
            Rule::RefusedIf(other_than_ip())
        } else {
            Rule::Refused
        },
    );
    filter.add(
        libc::SYS_socketpair,
        Rule::RefusedIf(other_than_connected_pairs()),
    );
    filter.add(libc::SYS_clone, any_bit(0, bits(NAMESPACES)));
    filter.add(libc::SYS_unshare, any_bit(0, bits(NAMESPACES | NEW_TIME)));
    for (call, argument) in MODES {
        filter.add(*call, any_bit(*argument, LENDING));
    }
    filter.add(
        libc::SYS_ioctl,
        Rule::RefusedIf(vec![Check::OneOf {
            argument: 1,
            mask: u32::MAX,
            values: COMMANDS.to_vec(),
        }]),
    );
    filter
}

/// Everything but stream and datagram sockets of IP. Unix sockets stay closed: a filter sees no
/// address, and Landlock does not look at a path that is connected to.
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

/// A pair of datagram sockets is refused: either end can be connected to another address
/// afterwards.
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

fn any_bit(argument: u8, bits: u32) -> Rule {
    Rule::RefusedIf(vec![Check::AnyBit { argument, bits }])
}

/// The kernel reads these arguments as 32 bits.
fn bits(number: i32) -> u32 {
    number.cast_unsigned()
}

#[cfg(test)]
mod tests;
