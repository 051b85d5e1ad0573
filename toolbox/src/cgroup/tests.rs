//! Tests of the parsers, and of real groups if this machine lets tests create them.

use std::process::{Command, Stdio};

use super::*;

const HYBRID: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
36 31 0:33 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:7 - cgroup2 cgroup2 rw";
const UNIFIED: &str =
    "35 24 0:30 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot";
/// A line of `mountinfo` in a Docker container without a cgroup namespace.
const INNER: &str =
    "700 699 0:30 /docker/abc /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw,nsdelegate";

fn found(groups: &str, mounts: &str) -> Option<String> {
    own_folder(groups, mounts)
        .ok()
        .map(|folder| folder.display().to_string())
}

#[test]
fn a_process_finds_its_own_group_wherever_the_hierarchy_is_mounted() {
    let some = |folder: &str| Some(folder.to_owned());
    let versions = "9:name=systemd:/\n8:pids:/a\n0::/system.slice/planck.service\n";
    assert_eq!(
        found(versions, HYBRID),
        some("/sys/fs/cgroup/unified/system.slice/planck.service")
    );
    assert_eq!(
        found("0::/system.slice/planck.service\n", UNIFIED),
        some("/sys/fs/cgroup/system.slice/planck.service")
    );
    assert_eq!(found("0::/\n", UNIFIED), some("/sys/fs/cgroup"));
    assert_eq!(
        found("0::/docker/abc/node", INNER),
        some("/sys/fs/cgroup/node")
    );
    for (groups, mounts) in [
        ("0::/docker/other", INNER),
        ("0::/../other", UNIFIED),
        ("8:pids:/a", UNIFIED),
        ("", UNIFIED),
        ("0::/", HYBRID.lines().next().unwrap()),
        ("0::/", "truncated - cgroup2 cgroup2 rw"),
        ("0::/", ""),
    ] {
        assert_eq!(found(groups, mounts), None, "{groups} {mounts}");
    }
}

#[test]
fn only_names_of_calls_belong_to_a_node() {
    assert_ne!(own_namespace(), 0);
    assert_eq!(
        node_of("planck-call-5-71-00ff00ff00ff00ff", 5),
        Some(Pid::from_raw(71))
    );
    for other in [
        "planck-call-5-71",
        "planck-call-5-71-",
        "planck-call-5-71-00ff",
        "planck-call-5-71-00ff00ff00ff00fg",
        "planck-call-5-71-000ff00ff00ff00ff",
        "planck-call-5-0-00ff00ff00ff00ff",
        "planck-call-5--1-00ff00ff00ff00ff",
        "planck-call-5-x-00ff00ff00ff00ff",
        "planck-call-6-71-00ff00ff00ff00ff",
        "planck-call-71-00ff00ff00ff00ff",
        "",
        "planck.service",
        "docker",
    ] {
        assert_eq!(node_of(other, 5), None, "{other}");
    }
}

/// Prepares control groups for a test. Returns `None` if this machine does not let the test create
/// groups.
fn groups() -> Option<Groups> {
    match Groups::prepare(CommandLimits::default()) {
        Ok(groups) => Some(groups),
        Err(why) => {
            eprintln!("skipped: {why}");
            None
        }
    }
}

/// Starts a shell and moves it into this group. The shell then starts two children, one of them in
/// another session. Returns when the group has all three processes.
fn populate(group: &CallGroup) -> std::process::Child {
    let script = "read go; setsid sleep 1000 & sleep 1000";
    let mut child = Command::new("sh")
        .args(["-c", script])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    write(&group.0, "cgroup.threads", &child.id().to_string()).unwrap();
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while group.members().len() < 3 && Instant::now() < deadline {
        thread::sleep(PAUSE);
    }
    assert_eq!(group.members().len(), 3, "the shell and two others");
    child
}

#[tokio::test]
async fn a_group_holds_all_processes_of_its_call_until_they_are_dead() {
    let Some(groups) = groups() else { return };
    let group = groups.of_call().unwrap();
    assert!(group.is_empty() && group.kill().is_empty());
    let mut child = populate(&group);
    assert!(!group.remove() && !group.is_empty(), "what is in use stays");
    assert_eq!(group.end().await, []);
    assert!(!group.folder().exists());
    assert!(!child.wait().unwrap().success());
    assert!(
        group.is_empty() && group.end().await.is_empty(),
        "a group that is gone is empty"
    );
}

#[test]
fn a_group_created_inside_is_removed_with_its_call() {
    let Some(groups) = groups() else { return };
    let group = groups.of_call().unwrap();
    let inner = CallGroup::at(group.folder().join("own"));
    fs::create_dir(inner.folder()).unwrap();
    write(inner.folder(), "cgroup.type", "threaded").unwrap();
    let mut child = populate(&inner);
    assert!(!group.is_empty());
    assert_eq!(group.kill().len(), 3);
    child.wait().unwrap();
    group.wait_until_empty();
    assert!(group.remove() && !group.folder().exists());
}

/// The test uses the process id of a child that it has waited for, so the id belongs to no live
/// process.
#[test]
fn leftovers_of_a_dead_node_are_ended_and_live_groups_are_kept() {
    let Some(groups) = groups() else { return };
    let mut node = Command::new("sleep").arg("1000").spawn().unwrap();
    let id = Pid::from_raw(i32::try_from(node.id()).unwrap());
    let name = |call: &str| groups.folder().join(prefix(own_namespace(), id) + call);
    let of_node = ["00000000000000aa", "00000000000000bb"].map(|call| CallGroup::at(name(call)));
    for group in &of_node {
        fs::create_dir(group.folder()).unwrap();
        write(group.folder(), "cgroup.type", "threaded").unwrap();
    }
    let [empty, populated] = &of_node;
    let mut child = populate(populated);
    end_leftovers(groups.folder());
    assert!(
        empty.folder().exists() && populated.members().len() == 3,
        "its node lives"
    );
    node.kill().unwrap();
    node.wait().unwrap();
    end_leftovers(groups.folder());
    child.wait().unwrap();
    assert!(!empty.folder().exists() && !populated.folder().exists());
}
