//! The files of the system that every sandboxed process may use.

/// Paths that processes may read and run, if they exist.
pub(super) const PROGRAMS: &[&str] = &[
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/libx32",
    "/lib64",
    "/nix/store",
    "/opt",
    "/run/current-system/sw",
];

/// Paths that processes may read, if they exist. `/etc` is not allowed as a whole, because it
/// contains private keys that a node running as root could read.
pub(super) const SETTINGS: &[&str] = &[
    "/etc/alternatives",
    "/etc/bash.bashrc",
    "/etc/bashrc",
    "/etc/ca-certificates",
    "/etc/crypto-policies",
    "/etc/debian_version",
    "/etc/fonts",
    "/etc/gai.conf",
    "/etc/gitattributes",
    "/etc/gitconfig",
    "/etc/group",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/inputrc",
    "/etc/java",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/locale.alias",
    "/etc/localtime",
    "/etc/lsb-release",
    "/etc/magic",
    "/etc/maven",
    "/etc/mime.types",
    "/etc/nsswitch.conf",
    "/etc/os-release",
    "/etc/passwd",
    "/etc/perl",
    "/etc/pki/ca-trust",
    "/etc/pki/tls/certs",
    "/etc/pki/tls/cert.pem",
    "/etc/pki/tls/openssl.cnf",
    "/etc/profile",
    "/etc/profile.d",
    "/etc/protocols",
    "/etc/python3",
    "/etc/resolv.conf",
    "/etc/services",
    "/etc/shells",
    "/etc/ssh/ssh_config",
    "/etc/ssl/certs",
    "/etc/ssl/cert.pem",
    "/etc/ssl/openssl.cnf",
    "/etc/static",
    "/etc/terminfo",
    "/etc/timezone",
    "/etc/xml",
];

/// Paths that processes without a `/proc` of their own may read, if they exist. They describe the machine and
/// not its processes: command lines, environments and memory of other processes are in
/// `/proc/<pid>`, and connections and sockets in `/proc/net`.
pub(super) const MACHINE: &[&str] = &[
    "/proc/cpuinfo",
    "/proc/filesystems",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/sys/fs/file-max",
    "/proc/sys/fs/nr_open",
    "/proc/sys/fs/pipe-max-size",
    "/proc/sys/kernel/cap_last_cap",
    "/proc/sys/kernel/ngroups_max",
    "/proc/sys/kernel/osrelease",
    "/proc/sys/kernel/ostype",
    "/proc/sys/kernel/pid_max",
    "/proc/sys/kernel/random",
    "/proc/sys/kernel/threads-max",
    "/proc/sys/kernel/version",
    "/proc/sys/vm/max_map_count",
    "/proc/sys/vm/overcommit_memory",
    "/proc/uptime",
    "/proc/version",
    "/sys/devices/system/cpu",
    "/sys/devices/system/node",
    "/sys/kernel/mm/transparent_hugepage",
];

/// Returns the paths of [`MACHINE`] that processes in bubblewrap may always read too. The others are
/// in `/proc`, of which bubblewrap makes a private one where it can.
pub(super) fn hardware() -> impl Iterator<Item = &'static str> {
    let machine = MACHINE.iter().copied();
    machine.filter(|path| path.starts_with("/sys/"))
}

/// Devices that processes without bubblewrap may read and write. Terminals, shared memory and disks
/// are not among them.
pub(super) const DEVICES: &[&str] = &[
    "/dev/full",
    "/dev/null",
    "/dev/random",
    "/dev/urandom",
    "/dev/zero",
];

/// Paths that bubblewrap makes private to the process: its process ids and its temporary file
/// systems.
pub(super) const OWN_READABLE: &[&str] = &["/proc"];
pub(super) const OWN_WRITABLE: &[&str] = &["/dev", "/tmp"];
