//! Files outside of the workspace, and the node's own process.

use std::{fs, os::unix::fs::PermissionsExt};

use anyhow::Result;
use planck_tests::world::Backend;

use super::{Walled, put, tiers, tiers_and_container};

fn wanted(
    kind: char,
    name: &'static str,
    attempt: impl Into<String>,
) -> (char, &'static str, String) {
    (kind, name, attempt.into())
}

#[tokio::test(flavor = "multi_thread")]
async fn tool_reads_no_file_of_the_user_or_of_the_node() -> Result<()> {
    for tier in tiers_and_container() {
        let walled = Walled::start(&tier, Backend::Sqlite, &[]).await?;
        put(walled.outside(".ssh/id_ed25519"), "key")?;
        put(walled.outside(".planck/config.toml"), "")?;
        put(walled.outside(".planck/http_key"), "pk_")?;
        put(walled.outside("other/project/file"), "theirs")?;
        put(walled.world.dir().join("own"), "mine")?;
        let home = walled.world.folder().display().to_string();
        let node = walled.node.pid();
        walled
            .attempts(
                &format!("H={home}; N=/proc/{node}; R=/proc/$PPID"),
                &[
                    wanted('+', "its own file", "grep -q mine own"),
                    wanted('+', "the system", "cat /etc/passwd && ls /usr/bin"),
                    wanted('-', "a key", "cat $H/.ssh/id_ed25519"),
                    wanted('-', "a folder of keys", "ls $H/.ssh"),
                    wanted('-', "the home", "ls $H | grep -v work"),
                    wanted('-', "the configuration", "cat $H/.planck/config.toml"),
                    wanted('-', "the front's key", "cat $H/.planck/http_key"),
                    wanted('-', "the sessions", "ls $H/sessions || cat $H/sessions/*"),
                    wanted('-', "the node's log", "cat $H/node-0.log"),
                    wanted('-', "another project", "cat $H/other/project/file"),
                    wanted(
                        '-',
                        "another project by a way around",
                        "cat ../work/../other/project/file",
                    ),
                    wanted('-', "a link out", "ln -s $H/.ssh/id_ed25519 way && cat way"),
                    wanted(
                        '-',
                        "a hard link out",
                        "ln $H/.ssh/id_ed25519 hard && cat hard",
                    ),
                    wanted(
                        '-',
                        "a file moved in",
                        "mv $H/.ssh/id_ed25519 moved && cat moved",
                    ),
                    wanted('-', "the node's environment", "grep -qa SECRET $N/environ"),
                    wanted('-', "the node's command line", "grep -qa node $N/cmdline"),
                    wanted(
                        '-',
                        "the node's memory",
                        "head -c 1 $N/mem || head -c 1 $N/maps",
                    ),
                    wanted(
                        '-',
                        "the node's descriptors",
                        "ls $N/fd/ | grep -q . || cat $N/fd/3",
                    ),
                    wanted(
                        '-',
                        "the node's root",
                        "cat $N/root$H/.ssh/id_ed25519 || cat $N/cwd/.ssh/id_ed25519",
                    ),
                    // A tool with a `/proc` of its own may see another process with the node's id there.
                    wanted(
                        '-',
                        "the node's state",
                        "grep -qa '^Name:.*planck' $N/status",
                    ),
                    wanted(
                        '-',
                        "the reaper",
                        "test $PPID != 1 && cat $R/environ && cat $R/cmdline | grep -qa wall",
                    ),
                    wanted('+', "the machine", "cat /proc/cpuinfo /proc/meminfo"),
                    wanted('+', "its descriptors", "echo x > /dev/stderr"),
                    wanted('-', "passwords", "cat /etc/shadow"),
                    wanted('-', "the root's home", "ls /root"),
                    wanted(
                        '-',
                        "what others mount",
                        "cat /run/secrets/* || ls /var/lib",
                    ),
                ],
            )
            .await?;
        assert_eq!(
            fs::read_to_string(walled.outside(".ssh/id_ed25519"))?,
            "key"
        );
        walled.end(&[]).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn tool_writes_in_its_workspace_and_a_private_tmp_only() -> Result<()> {
    for tier in tiers_and_container() {
        let walled = Walled::start(&tier, Backend::Sqlite, &[]).await?;
        put(walled.outside("kept"), "kept")?;
        let home = walled.world.folder().display().to_string();
        let mark = format!("planck-mark-{}", std::process::id());
        walled
            .attempts(
                &format!("H={home}"),
                &[
                    wanted('+', "its workspace", "mkdir -p a/b && echo x > a/b/c && mv a/b/c a/d && ln -s d a/l && rm -r a"),
                    wanted('+', "its tmp", "test -d $TMPDIR && test $HOME = $TMPDIR && f=$(mktemp) && echo x > $f"),
                    wanted('+', "devices that are none", "echo x > /dev/null && head -c 8 /dev/urandom"),
                    wanted('?', "beside the workspace", "touch $H/new"),
                    wanted('?', "the user's shell", "echo evil >> $H/.bashrc"),
                    wanted('?', "a file's content", "echo evil > $H/kept"),
                    wanted('?', "a file's length", "truncate -s 0 $H/kept"),
                    wanted('?', "a file's place", "mv $H/kept $H/gone"),
                    wanted('?', "a file", "rm -f $H/kept && ! test -e $H/kept"),
                    wanted('?', "a folder", "mkdir $H/folder"),
                    wanted('-', "the system", "touch /usr/evil || touch /etc/evil || touch /evil"),
                    wanted('-', "bits that lend rights", "cp /bin/true own && chmod u+s own"),
                    wanted('-', "the kernel", "echo 1 > /proc/sys/vm/drop_caches || echo x > /proc/sys/kernel/core_pattern"),
                    wanted('-', "a device", "mknod disk b 8 0 && cat disk || cat /dev/sda || cat /dev/vda || cat /dev/mem"),
                ],
            )
            .await?;
        assert_eq!(
            fs::read_to_string(walled.outside("kept"))?,
            "kept",
            "{tier:?}"
        );
        for made in ["new", ".bashrc", "gone", "folder"] {
            assert!(!walled.outside(made).exists(), "{tier:?}: {made} was made");
        }
        let tmp = walled
            .bash(&format!("echo x > $TMPDIR/{mark}; echo $TMPDIR"))
            .await?;
        assert!(
            !std::path::Path::new(tmp.trim()).join(&mark).exists(),
            "{tier:?}: {tmp} stays"
        );
        assert!(
            walled
                .bash(&format!("ls $TMPDIR/{mark}"))
                .await?
                .contains("No such file"),
            "{tier:?}"
        );
        walled.end(&[]).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn tool_reaches_no_other_process() -> Result<()> {
    for tier in tiers_and_container() {
        let walled = Walled::start(&tier, Backend::Sqlite, &[]).await?;
        let node = walled.node.pid();
        let mut attempts = vec![
            wanted('+', "its own children", "sleep 100 & kill $! && ! wait $!"),
            wanted(
                '-',
                "signals to the node",
                format!("kill -0 {node} || kill -STOP {node}"),
            ),
            wanted(
                '-',
                "signals to the reaper",
                "test $PPID != 1 && kill -0 $PPID",
            ),
            wanted(
                '-',
                "signals to all",
                "for p in /proc/[0-9]*; do test $p != /proc/$$ && kill -0 ${p#/proc/} && break; done",
            ),
            wanted(
                '-',
                "namespaces",
                "unshare -Ur true || unshare -m true || unshare -n true",
            ),
            wanted('-', "mounts", "mount -t tmpfs x . || mount --bind / ."),
        ];
        // Inside bubblewrap a tool sees and signals only its own processes, so these attempts
        // succeed there without reaching a process outside.
        attempts.retain(|(_, name, _)| {
            tier.name == "landlock" || !["signals to all", "signals to the node"].contains(name)
        });
        walled.attempts("", &attempts).await?;
        if super::has("python3") {
            let said = walled.bash(&format!("python3 - <<'E'\n{CALLS}\nE")).await?;
            assert!(
                said.contains("tried") && !said.contains("OPEN"),
                "{tier:?}: {said}"
            );
            let others = OTHERS.replace("NODE", &node.to_string());
            let said = walled
                .bash(&format!("python3 - <<'E'\n{others}\nE"))
                .await?;
            assert!(
                said.contains("tried") && !said.contains("OPEN"),
                "{tier:?}: {said}"
            );
            let shared = walled
                .bash(&format!("python3 - <<'E'\n{SHARED}\nE"))
                .await?;
            let again = walled
                .bash(&format!("python3 - <<'E'\n{SHARED}\nE"))
                .await?;
            assert_eq!(
                [shared.trim(), again.trim()],
                ["nothing is shared"; 2],
                "{tier:?}"
            );
        }
        walled.end(&[]).await?;
    }
    Ok(())
}

/// A Python program that tries system calls by their numbers on x86-64 and aarch64. Each call must
/// fail.
const CALLS: &str = r"
import ctypes, os, platform
libc = ctypes.CDLL(None, use_errno=True)
own = os.getpid()
intel = platform.machine() == 'x86_64'
calls = {
    'ptrace': (101, 117, 0, 0, 0, 0), 'process_vm_readv': (310, 270, own, 0, 0, 0, 0, 0), 'pidfd_getfd': (438, 438, 0, 0, 0),
    'unshare user': (272, 97, 0x10000000), 'unshare time': (272, 97, 0x80), 'clone user': (56, 220, 0x10000011, 0, 0, 0, 0),
    'clone3': (435, 435, 0, 0), 'setns': (308, 268, 0, 0), 'keyctl': (250, 219, 0, -3, 1), 'add_key': (248, 217, 0, 0, 0, 0, 0),
    'bpf': (321, 280, 0, 0, 0), 'perf': (298, 241, 0, 0, -1, -1, 0), 'userfaultfd': (323, 282, 1), 'fanotify': (300, 262, 0, 0),
    'open_by_handle': (304, 265, -100, 0, 0), 'mount': (165, 40, 0, 0, 0, 0, 0), 'fsopen': (430, 430, 0, 0), 'chroot': (161, 51, b'.'),
    'open_tree_attr': (467, 467, -100, b'.', 1, 0, 0), 'quotactl_fd': (443, 443, 0, 0, 0, 0),
    'file_setattr': (469, 469, -100, b'.', 0, 0, 0), 'io_uring': (425, 425, 1, 0), 'reboot': (169, 142, 0, 0, 0, 0), 'x32 getpid': (0x40000000 + 39, 0x40000000 + 39),
}
for name, (on_intel, on_arm, *args) in calls.items():
    ctypes.set_errno(0)
    if libc.syscall(on_intel if intel else on_arm, *args) == 0 and name.startswith('clone'):
        os._exit(0)
    if ctypes.get_errno() not in (1, 38):
        print('OPEN', name, ctypes.get_errno())
print('tried', len(calls))
";

/// A Python program that changes the node's limits and priorities, and those of all processes of its
/// user. It also tries to thaw the file system, which needs the right to freeze it.
const OTHERS: &str = r"
import ctypes, fcntl, os, resource, struct
node, here = NODE, os.open('.', os.O_RDONLY)
tries = {
    'learn its limits': lambda: resource.prlimit(node, resource.RLIMIT_NOFILE),
    'set its limits': lambda: resource.prlimit(node, resource.RLIMIT_NOFILE, (4, 4)),
    'move it to one processor': lambda: os.sched_setaffinity(node, {0}),
    'schedule it last': lambda: os.sched_setscheduler(node, os.SCHED_IDLE, os.sched_param(0)),
    'lower its priority': lambda: os.setpriority(os.PRIO_PROCESS, node, 19),
    'thaw the file system': lambda: fcntl.ioctl(here, 0xc0045878, 0),
}
for name, attempt in tries.items():
    try:
        attempt()
        print('OPEN', name)
    except (PermissionError, ProcessLookupError):
        pass
    except OSError as error:
        print('OPEN', name, error)
data = ctypes.create_string_buffer(24)
if ctypes.CDLL(None).capget(struct.pack('2I', 0x20080522, 0), data) != 0:
    print('OPEN: its capabilities are not known')
low, high = struct.unpack('6I', data.raw)[:3], struct.unpack('6I', data.raw)[3:]
if any(bits & ~2 for bits in low) or any(high):
    print('OPEN capabilities', low, high)
print('tried', len(tries))
";

/// A Python program that looks for memory which an earlier call left, and leaves some.
const SHARED: &str = r"
import ctypes
libc = ctypes.CDLL(None)
print('nothing is shared' if libc.shmget(0x706c616e, 4096, 0) == -1 else 'OPEN')
libc.shmget(0x706c616e, 4096, 0o1666)
";

#[tokio::test(flavor = "multi_thread")]
async fn replaced_file_keeps_no_bit_that_grants_privileges() -> Result<()> {
    let walled = Walled::start(&super::landlock(), Backend::Sqlite, &[]).await?;
    let file = walled.world.dir().join("tool");
    fs::write(&file, "old")?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o6755))?;
    walled
        .calls(&[(
            "write",
            serde_json::json!({ "path": "tool", "content": "new" }),
        )])
        .await?;
    assert_eq!(
        (
            fs::read_to_string(&file)?.as_str(),
            fs::metadata(&file)?.permissions().mode() & 0o7777
        ),
        ("new", 0o755)
    );
    walled.end(&[]).await
}

/// A Python program that creates a file with the setuid and setgid bits, writes to it, and tries to
/// give it capabilities.
const LENDING: &str = r"
import os, struct
file = os.open('made', os.O_CREAT | os.O_WRONLY, 0o6755)
os.write(file, b'x')
print('bits', oct(os.fstat(file).st_mode & 0o6000))
try:
    os.setxattr('made', 'security.capability', struct.pack('<5I', 0x02000001, 1 << 7, 0, 0, 0))
    print('capabilities set')
except PermissionError:
    print('capabilities refused')
";

/// This test shows the most if root runs it.
#[tokio::test(flavor = "multi_thread")]
async fn tool_creates_no_file_that_grants_privileges() -> Result<()> {
    if !super::has("python3") {
        return Ok(());
    }
    for tier in tiers() {
        let walled = Walled::start(&tier, Backend::Sqlite, &[]).await?;
        let said = walled
            .bash(&format!("umask 0; python3 - <<'E'\n{LENDING}\nE"))
            .await?;
        assert_eq!(said, "bits 0o0\ncapabilities refused\n", "{tier:?}");
        walled.end(&[]).await?;
    }
    Ok(())
}
