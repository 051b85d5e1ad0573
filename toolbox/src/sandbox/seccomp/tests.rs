use nix::libc::c_long;
use seccompiler::sock_filter;

use super::*;

const X86_64: u32 = 0xc000_003e;

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Allowed,
    NotPermitted,
    NotKnown,
    Killed,
}
use Verdict::{Allowed, Killed, NotKnown, NotPermitted};

/// Interprets a BPF program, as the kernel does, for a call with up to six arguments.
fn run(program: &[sock_filter], architecture: u32, call: c_long, args: &[u64]) -> Verdict {
    let mut data = [0; 64];
    let mut put = |at: usize, bytes: &[u8]| data[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &u32::try_from(call).unwrap().to_ne_bytes());
    put(4, &architecture.to_ne_bytes());
    args.iter()
        .enumerate()
        .for_each(|(index, arg)| put(16 + 8 * index, &arg.to_ne_bytes()));
    let (mut next, mut held) = (0, 0_u32);
    loop {
        let sock_filter { code, jt, jf, k } = program[next].clone();
        let jump = |holds: bool| usize::from(if holds { jt } else { jf });
        next += 1;
        match code {
            0x20 => held = u32::from_ne_bytes(data[k as usize..][..4].try_into().unwrap()),
            0x54 => held &= k,
            0x15 => next += jump(held == k),
            0x35 => next += jump(held >= k),
            0x45 => next += jump(held & k != 0),
            0x06 => {
                return match k {
                    0x7fff_0000 => Allowed,
                    0x0005_0001 => NotPermitted,
                    0x0005_0026 => NotKnown,
                    0x8000_0000 => Killed,
                    other => panic!("{other:#x}"),
                };
            }
            other => panic!("{other:#x} at {next}"),
        }
    }
}

fn program(network: bool) -> Vec<sock_filter> {
    filter(network, false).assemble("x86_64").unwrap()
}

fn flag(number: i32) -> u64 {
    u64::from(bits(number))
}

#[test]
fn calls_without_checked_arguments_have_one_verdict() {
    for network in [false, true] {
        let program = program(network);
        let verdict = |call| run(&program, X86_64, call, &[]);
        for call in REFUSED.iter().chain(SHARED) {
            assert_eq!(verdict(*call), NotPermitted, "{call}");
        }
        for call in UNKNOWN {
            assert_eq!(verdict(*call), NotKnown, "{call}");
        }
        let conditional = [
            libc::SYS_socket,
            libc::SYS_socketpair,
            libc::SYS_clone,
            libc::SYS_unshare,
            libc::SYS_ioctl,
        ];
        let has_rule = |call: &c_long| {
            REFUSED.contains(call)
                || SHARED.contains(call)
                || UNKNOWN.contains(call)
                || conditional.contains(call)
                || MODES.iter().any(|(mode, _)| mode == call)
        };
        for call in (0..=NEWEST.into()).filter(|call| !has_rule(call)) {
            assert_eq!(verdict(call), Allowed, "{call}");
        }
        let newer = c_long::from(NEWEST) + 1;
        for call in [newer, 1_000, 0x4000_0000, 0x4000_0001, 0xffff_ffff] {
            assert_eq!(verdict(call), NotKnown, "{call:#x}");
        }
    }
}

#[test]
fn a_call_of_another_architecture_kills_its_process() {
    for architecture in [0x4000_0003, 0xc000_00b7, 0] {
        assert_eq!(
            run(&program(true), architecture, libc::SYS_read, &[]),
            Killed
        );
    }
    assert!(filter(false, false).assemble("aarch64").is_ok());
    assert_eq!(
        filter(false, false).assemble("m68k").unwrap_err(),
        Unassembled::Architecture("m68k")
    );
}

#[test]
fn arguments_decide_about_a_call() {
    let ip = |kind| vec![flag(libc::AF_INET), flag(kind)];
    let pair = |kind| vec![flag(libc::AF_UNIX), flag(kind)];
    let cases: Vec<(c_long, Vec<u64>, [Verdict; 2])> = vec![
        (
            libc::SYS_socket,
            ip(libc::SOCK_STREAM | libc::SOCK_CLOEXEC),
            [NotPermitted, Allowed],
        ),
        (
            libc::SYS_socket,
            vec![flag(libc::AF_INET6), flag(libc::SOCK_DGRAM)],
            [NotPermitted, Allowed],
        ),
        (
            libc::SYS_socket,
            ip(libc::SOCK_RAW | libc::SOCK_NONBLOCK),
            [NotPermitted, NotPermitted],
        ),
        (
            libc::SYS_socket,
            ip(OLD_PACKET),
            [NotPermitted, NotPermitted],
        ),
        (
            libc::SYS_socket,
            pair(libc::SOCK_STREAM),
            [NotPermitted, NotPermitted],
        ),
        (
            libc::SYS_socket,
            vec![flag(libc::AF_NETLINK), flag(libc::SOCK_DGRAM)],
            [NotPermitted, NotPermitted],
        ),
        (
            libc::SYS_socketpair,
            pair(libc::SOCK_STREAM),
            [Allowed, Allowed],
        ),
        (
            libc::SYS_socketpair,
            pair(libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC),
            [Allowed, Allowed],
        ),
        (
            libc::SYS_socketpair,
            pair(libc::SOCK_DGRAM),
            [NotPermitted, NotPermitted],
        ),
        (
            libc::SYS_socketpair,
            ip(libc::SOCK_STREAM),
            [NotPermitted, NotPermitted],
        ),
        (
            libc::SYS_clone,
            vec![flag(libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD)],
            [Allowed, Allowed],
        ),
        (
            libc::SYS_clone,
            vec![flag(libc::CLONE_NEWUSER)],
            [NotPermitted, NotPermitted],
        ),
        (
            libc::SYS_clone,
            vec![flag(libc::CLONE_NEWNET | libc::SIGCHLD)],
            [NotPermitted, NotPermitted],
        ),
        (libc::SYS_clone, vec![flag(NEW_TIME)], [Allowed, Allowed]),
        (
            libc::SYS_unshare,
            vec![flag(NEW_TIME)],
            [NotPermitted, NotPermitted],
        ),
        (
            libc::SYS_unshare,
            vec![flag(libc::CLONE_NEWNS)],
            [NotPermitted, NotPermitted],
        ),
        (
            libc::SYS_unshare,
            vec![flag(libc::CLONE_FS)],
            [Allowed, Allowed],
        ),
        (libc::SYS_fchmod, vec![3, 0o755], [Allowed, Allowed]),
        (
            libc::SYS_fchmod,
            vec![3, 0o4755],
            [NotPermitted, NotPermitted],
        ),
        (
            libc::SYS_fchmodat,
            vec![3, 0o6755, 0o2755],
            [NotPermitted, NotPermitted],
        ),
        (
            libc::SYS_fchmodat,
            vec![3, 0o6755, 0o1755],
            [Allowed, Allowed],
        ),
        (452, vec![3, 0, 0o4000], [NotPermitted, NotPermitted]),
        (libc::SYS_ioctl, vec![0, 0x5401], [Allowed, Allowed]),
        (
            libc::SYS_ioctl,
            vec![0, 0x5412],
            [NotPermitted, NotPermitted],
        ),
        // The kernel reads only the lower half of this argument, and so does the filter.
        (
            libc::SYS_ioctl,
            vec![0, 0x1_0000_5412],
            [NotPermitted, NotPermitted],
        ),
        (
            libc::SYS_ioctl,
            vec![3, 0xc004_5877],
            [NotPermitted, NotPermitted],
        ),
        (libc::SYS_clone, vec![1 << 32], [Allowed, Allowed]),
    ];
    for (call, args, expected) in cases {
        let found = [false, true].map(|network| run(&program(network), X86_64, call, &args));
        assert_eq!(found, expected, "call {call} with {args:x?}");
    }
}

/// The calls of the kernel that take the id of a process, and why a tool may make those that are
/// allowed with the id of another process. Signals are limited by Landlock.
const OF_OTHERS: &[(c_long, Option<&str>)] = &[
    (libc::SYS_kill, Some("a signal")),
    (libc::SYS_tkill, Some("a signal")),
    (libc::SYS_tgkill, Some("a signal")),
    (libc::SYS_rt_sigqueueinfo, Some("a signal")),
    (libc::SYS_rt_tgsigqueueinfo, Some("a signal")),
    (libc::SYS_pidfd_send_signal, Some("a signal")),
    (libc::SYS_pidfd_open, Some("what takes it is refused")),
    (libc::SYS_process_mrelease, Some("only of a dying process")),
    (libc::SYS_setpgid, Some("only of a child")),
    (libc::SYS_wait4, Some("only of a child")),
    (libc::SYS_waitid, Some("only of a child")),
    (libc::SYS_getpgid, Some("changes nothing")),
    (libc::SYS_getsid, Some("changes nothing")),
    (libc::SYS_getpriority, Some("changes nothing")),
    (libc::SYS_ioprio_get, Some("changes nothing")),
    (libc::SYS_sched_getscheduler, Some("changes nothing")),
    (libc::SYS_sched_getparam, Some("changes nothing")),
    (libc::SYS_sched_getattr, Some("changes nothing")),
    (libc::SYS_sched_getaffinity, Some("changes nothing")),
    (libc::SYS_sched_rr_get_interval, Some("changes nothing")),
    (libc::SYS_get_robust_list, Some("needs the right to trace")),
    (libc::SYS_capget, Some("changes nothing")),
    (libc::SYS_capset, Some("only of the caller")),
    (libc::SYS_ptrace, None),
    (libc::SYS_process_vm_readv, None),
    (libc::SYS_process_vm_writev, None),
    (libc::SYS_process_madvise, None),
    (libc::SYS_pidfd_getfd, None),
    (libc::SYS_kcmp, None),
    (libc::SYS_perf_event_open, None),
    (libc::SYS_prlimit64, None),
    (libc::SYS_sched_setscheduler, None),
    (libc::SYS_sched_setparam, None),
    (libc::SYS_sched_setattr, None),
    (libc::SYS_sched_setaffinity, None),
    (libc::SYS_setpriority, None),
    (libc::SYS_ioprio_set, None),
    (libc::SYS_migrate_pages, None),
    (libc::SYS_move_pages, None),
];

#[test]
fn a_call_on_another_process_is_refused_or_harmless() {
    let [outside, inside] =
        [false, true].map(|inside| filter(false, inside).assemble("x86_64").unwrap());
    for (call, why) in OF_OTHERS {
        // Whichever argument is the id, it is that of another process.
        let verdict = run(&outside, X86_64, *call, &[7; 6]);
        let expected = why.map_or(NotPermitted, |_| Allowed);
        assert_eq!(verdict, expected, "{call}");
    }
    for (call, _, of_user) in FOREIGN {
        assert_eq!(run(&outside, X86_64, *call, &[0; 6]), Allowed, "{call}");
        assert_eq!(run(&inside, X86_64, *call, &[7; 6]), Allowed, "{call}");
        if let Some(kind) = of_user {
            let verdict = run(&outside, X86_64, *call, &[u64::from(*kind), 0, 0]);
            assert_eq!(verdict, NotPermitted, "{call}");
        }
    }
    for call in SHARED {
        assert_eq!(run(&inside, X86_64, *call, &[]), Allowed, "{call}");
    }
}

/// The kernel runs the program for every call number when it is installed, so a long program would
/// delay each start of a process.
#[test]
fn a_program_is_short() {
    let program = program(true);
    assert!(program.len() < 280, "{} instructions", program.len());
}
