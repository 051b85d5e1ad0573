//! Calls that try to hide a change from the guard, and folders that the guard cannot record.

use std::thread;

use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use super::*;

/// Runs `act` on a thread without capabilities, so that modes of files restrict it even if root
/// runs the tests.
fn without_capabilities<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    let restricted = || {
        let mut sets = capabilities(None).unwrap();
        sets.effective = CapabilitySet::empty();
        set_capabilities(None, sets).unwrap();
        act()
    };
    thread::scope(|scope| scope.spawn(restricted).join().unwrap())
}

fn names(folder: &Path) -> usize {
    fs::read_dir(folder).unwrap().count()
}

impl World {
    fn fill(&self, folder: &str, files: usize) {
        fs::create_dir_all(self.at(folder)).unwrap();
        for number in 0..files {
            fs::write(self.at(folder).join(number.to_string()), "x").unwrap();
        }
    }

    fn lock(&self, path: &str, mode: u32) {
        fs::set_permissions(self.at(path), Permissions::from_mode(mode)).unwrap();
    }

    fn mode(&self, path: &str) -> u32 {
        fs::metadata(self.at(path)).unwrap().permissions().mode() & 0o7777
    }

    fn exists(&self, path: &str) -> bool {
        fs::symlink_metadata(self.at(path)).is_ok()
    }
}

#[test]
fn a_flood_of_files_hides_no_change() {
    let world = World::new();
    world.write(".vscode/settings.json", "{}");
    let said = world.after(|| {
        world.fill(".bash_aliases", 5000);
        world.fill(".vscode", 5000);
        world.write(".envrc", "evil");
        world.write(".vscode/tasks.json", "evil");
        world.write(".git/hooks/post-checkout", "evil");
    });
    for gone in [".bash_aliases", ".envrc", ".git/hooks/post-checkout"] {
        assert!(!world.exists(gone), "{gone}");
    }
    assert_eq!(names(&world.at(".vscode")), 1);
    assert!(
        said.contains("put back: .bash_aliases, .envrc, ") && !said.contains("could not"),
        "{said}"
    );
}

#[test]
fn a_large_folder_hides_no_change_beside_it_and_loses_no_file() {
    let world = World::new();
    world.write(".claude/settings.json", "{}");
    world.write(".claude/worktrees/a/deep/kept", "kept");
    world.fill(".claude/worktrees/a", 5000);
    let said = world.after(|| {
        fs::remove_file(world.at(".claude/worktrees/a/7")).unwrap();
        world.write(".claude/worktrees/a/deep/new", "new");
        world.write(".claude/settings.json", "evil");
        world.write(".git/hooks/post-checkout", "evil");
    });
    assert_eq!(world.text(".claude/settings.json").unwrap(), "{}");
    assert!(!world.exists(".git/hooks/post-checkout"));
    assert_eq!(
        (
            names(&world.at(".claude/worktrees/a")),
            names(&world.at(".claude/worktrees/a/deep"))
        ),
        (5001, 2)
    );
    assert!(
        said.contains("file .claude/worktrees/a/deep was changed")
            && said.contains("too many to be recorded"),
        "{said}"
    );
}

#[test]
fn a_locked_folder_hides_no_change() {
    without_capabilities(|| {
        for (locked, mode) in [
            (".zed", 0o444),
            (".zed", 0),
            (".git", 0),
            (".git/hooks", 0),
            (".vscode", 0o555),
            (".", 0),
        ] {
            let world = World::new();
            world.write(".vscode/tasks.json", "{}");
            fs::create_dir_all(world.at(".git/hooks")).unwrap();
            let (root, was) = (world.mode("."), world.mode(".git/hooks"));
            world.after(|| {
                world.write(".envrc", "evil");
                world.write(".zed/x", "evil");
                world.write(".vscode/tasks.json", "evil");
                world.write(".vscode/more.json", "evil");
                world.write(".git/hooks/post-checkout", "evil");
                world.lock(locked, mode);
            });
            assert_eq!(
                (
                    world.mode("."),
                    world.mode(".git/hooks"),
                    world.mode(".git")
                ),
                (root, was, was),
                "{locked} {mode:o}"
            );
            assert_eq!(world.text(".vscode/tasks.json").unwrap(), "{}");
            for gone in [
                ".envrc",
                ".zed",
                ".vscode/more.json",
                ".git/hooks/post-checkout",
            ] {
                assert!(!world.exists(gone), "{locked} {mode:o}: {gone}");
            }
        }
    });
}

#[test]
fn a_folder_that_was_locked_before_is_guarded_and_stays_locked() {
    without_capabilities(|| {
        let world = World::new();
        world.write(".ssh/config", "mine");
        world.write(".idea/x", "mine");
        world.lock(".ssh", 0);
        world.lock(".idea", 0o555);
        let said = world.after(|| {
            world.lock(".ssh", 0o755);
            world.write(".ssh/config", "evil");
            world.write(".ssh/new", "evil");
            world.lock(".ssh", 0);
            world.lock(".idea", 0o755);
            fs::remove_dir_all(world.at(".idea")).unwrap();
        });
        assert!(
            said.contains(".ssh/config") && !said.contains("could not"),
            "{said}"
        );
        assert_eq!((world.mode(".ssh"), world.mode(".idea")), (0, 0o555));
        world.lock(".ssh", 0o755);
        assert_eq!(
            (world.text(".ssh/config").unwrap(), names(&world.at(".ssh"))),
            ("mine".into(), 1)
        );
        assert_eq!(world.text(".idea/x").unwrap(), "mine");
        world.lock(".idea", 0o755);
    });
}

#[test]
fn a_folder_that_is_nested_too_deeply_to_be_removed_loses_its_name() {
    let world = World::new();
    let said = world.after(|| {
        world.write(&format!(".vscode/{}x", "d/".repeat(200)), "evil");
        world.write(".vscode/tasks.json", "evil");
    });
    assert!(!world.exists(".vscode"), "{said}");
    assert!(said.contains("put back: .vscode"), "{said}");
}

#[test]
fn a_root_that_cannot_be_recorded_is_reported() {
    let world = World::new();
    let said = world.guards.begin(&[world.at("none")]).end();
    assert!(
        said.len() == 1 && said[0].to_string().contains("could not be recorded"),
        "{said:?}"
    );
}
