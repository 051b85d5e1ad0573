mod evasions;

use std::{
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt, symlink},
};

use tempfile::TempDir;

use super::*;

struct World {
    root: TempDir,
    /// The folder that receives the changed versions of files.
    data: TempDir,
    guards: Guards,
}

impl World {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let data = tempfile::tempdir().unwrap();
        let guards = Guards::new(UndoneChanges::in_folder(data.path().join("undone")));
        let world = Self { root, data, guards };
        world.write(".git/config", "[core]\n");
        world.write(".git/HEAD", "ref: refs/heads/main\n");
        world.write(".git/hooks/pre-commit.sample", "sample");
        world.write(".planck/config.toml", "[tools]\n");
        world
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    fn write(&self, path: &str, content: &str) {
        fs::create_dir_all(self.at(path).parent().unwrap()).unwrap();
        fs::write(self.at(path), content).unwrap();
    }

    fn text(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.at(path)).ok()
    }

    fn begin(&self) -> Guard {
        self.guards.begin(&[self.root.path().to_owned()])
    }

    /// Runs `deed` during a guarded call and returns the guard's report.
    fn after(&self, deed: impl FnOnce()) -> String {
        let guard = self.begin();
        deed();
        let said = guard
            .end()
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("\n");
        assert!(
            self.guards.roots.lock().unwrap().is_empty(),
            "a root is forgotten when no call runs in it"
        );
        said
    }
}

#[test]
fn ordinary_work_is_left_alone() {
    let world = World::new();
    let said = world.after(|| {
        world.write("src/main.rs", "fn main() {}");
        world.write(".git/HEAD", "ref: refs/heads/other\n");
        world.write(".git/objects/ab/cdef", "x");
        world.write(".git/hooks/post-update.sample", "sample");
        world.write(".planck/sessions/index.db", "x");
    });
    assert_eq!(said, "");
    assert_eq!(world.text("src/main.rs").unwrap(), "fn main() {}");
    assert_eq!(world.text(".git/HEAD").unwrap(), "ref: refs/heads/other\n");
}

#[test]
fn every_kind_of_change_is_put_back() {
    let world = World::new();
    world.write(".vscode/settings.json", "{}");
    world.write(".git/hooks/old", "old");
    symlink("elsewhere", world.at(".zshrc")).unwrap();
    let said = world.after(|| {
        world.write(".git/hooks/post-checkout", "evil");
        world.write(".git/config", "[core]\nfsmonitor = evil\n");
        fs::set_permissions(world.at(".git/hooks/old"), Permissions::from_mode(0o777)).unwrap();
        fs::remove_dir_all(world.at(".vscode")).unwrap();
        fs::remove_file(world.at(".zshrc")).unwrap();
        world.write(".zshrc", "evil");
        world.write(".envrc", "evil");
        world.write(".idea/deep/er/x", "evil");
        symlink("/etc", world.at(".claude")).unwrap();
    });
    assert!(
        said.contains("put back")
            && said.contains(".git/hooks/post-checkout")
            && said.contains(".git/config")
            && !said.contains("could not"),
        "{said}"
    );
    assert_eq!(world.text(".git/config").unwrap(), "[core]\n");
    assert_eq!(world.text(".vscode/settings.json").unwrap(), "{}");
    assert_eq!(
        fs::read_link(world.at(".zshrc")).unwrap(),
        Path::new("elsewhere")
    );
    assert_eq!(
        fs::metadata(world.at(".git/hooks/old"))
            .unwrap()
            .permissions()
            .mode()
            & 0o111,
        0
    );
    for gone in [".git/hooks/post-checkout", ".envrc", ".idea", ".claude"] {
        assert!(fs::symlink_metadata(world.at(gone)).is_err(), "{gone}");
    }
    assert!(Path::new("/etc/passwd").exists());
    let kept = said
        .split("the changed versions are in ")
        .nth(1)
        .unwrap()
        .split(']')
        .next()
        .unwrap();
    assert_eq!(
        fs::read_to_string(Path::new(kept).join(".git/config")).unwrap(),
        "[core]\nfsmonitor = evil\n"
    );
    assert!(Path::new(kept).starts_with(world.data.path()), "{kept}");
}

#[test]
fn a_hard_link_into_a_protected_file_does_not_change_it() {
    let world = World::new();
    world.after(|| {
        fs::hard_link(world.at(".git/config"), world.at("alias")).unwrap();
        fs::write(world.at("alias"), "evil").unwrap();
    });
    assert_eq!(world.text(".git/config").unwrap(), "[core]\n");
    fs::write(world.at("alias"), "later").unwrap();
    assert_eq!(
        world.text(".git/config").unwrap(),
        "[core]\n",
        "the alias is another file now"
    );
}

#[test]
fn a_repository_that_was_moved_is_moved_back() {
    let world = World::new();
    for impostor in ["folder", "file", "link", "none"] {
        let said = world.after(|| {
            fs::rename(world.at(".git"), world.at("moved")).unwrap();
            world.write("moved/hooks/pre-push", "evil");
            match impostor {
                "folder" => world.write(".git/hooks/pre-push", "evil"),
                "file" => world.write(".git", "gitdir: moved"),
                "link" => symlink("moved", world.at(".git")).unwrap(),
                _ => {}
            }
        });
        assert!(said.contains("put back: .git"), "{impostor}: {said}");
        assert_eq!(
            world.text(".git/HEAD").as_deref(),
            Some("ref: refs/heads/main\n"),
            "{impostor}"
        );
        assert!(
            world.text(".git/hooks/pre-push").is_none() && !world.at("moved").exists(),
            "{impostor}"
        );
    }
}

#[test]
fn a_deleted_repository_is_reported_and_its_settings_are_restored() {
    let world = World::new();
    let said = world.after(|| {
        fs::remove_dir_all(world.at(".git")).unwrap();
        world.write(".git/config", "evil");
        world.write(".git/hooks/pre-push", "evil");
    });
    assert!(
        said.contains("could not be put back: it was deleted"),
        "{said}"
    );
    assert_eq!(
        (
            world.text(".git/config").as_deref(),
            world.text(".git/hooks/pre-push")
        ),
        (Some("[core]\n"), None)
    );
}

#[test]
fn settings_of_a_repository_that_a_file_replaced_are_reported() {
    let world = World::new();
    let said = world.after(|| {
        fs::remove_dir_all(world.at(".git")).unwrap();
        world.write(".git", "gitdir: elsewhere");
    });
    assert!(said.contains("file .git/config was changed"), "{said}");
    assert!(!world.at(".git").exists());
}

#[test]
fn a_folder_replaced_by_a_link_is_not_followed() {
    let world = World::new();
    let outside = tempfile::tempdir().unwrap();
    fs::create_dir(outside.path().join("hooks")).unwrap();
    fs::write(outside.path().join("hooks/kept"), "kept").unwrap();
    world.after(|| {
        fs::remove_dir_all(world.at(".git/hooks")).unwrap();
        symlink(outside.path().join("hooks"), world.at(".git/hooks")).unwrap();
        fs::remove_dir_all(world.at(".planck")).unwrap();
        symlink(outside.path(), world.at(".planck")).unwrap();
    });
    assert_eq!(world.text(".planck/config.toml").unwrap(), "[tools]\n");
    assert!(fs::symlink_metadata(world.at(".planck")).unwrap().is_dir());
    let left: Vec<_> = fs::read_dir(outside.path())
        .unwrap()
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    assert_eq!(
        (
            left.len(),
            fs::read_to_string(outside.path().join("hooks/kept")).unwrap()
        ),
        (1, "kept".to_owned())
    );
}

#[test]
fn concurrent_calls_share_one_record() {
    let world = World::new();
    let first = world.begin();
    world.write(".git/hooks/pre-push", "evil");
    let second = world.begin();
    assert_eq!(first.end().len(), 1);
    assert!(world.text(".git/hooks/pre-push").is_none());
    world.write(".envrc", "evil");
    assert_eq!(
        second.end().len(),
        1,
        "the second call does not bring back what the first had changed"
    );
    assert!(world.text(".git/hooks/pre-push").is_none() && world.text(".envrc").is_none());
}

#[test]
fn a_dropped_guard_compares_too() {
    let world = World::new();
    let guard = world.begin();
    world.write(".envrc", "evil");
    drop(guard);
    assert!(world.text(".envrc").is_none());
}

#[test]
fn a_change_of_a_file_that_is_too_large_is_reported() {
    let world = World::new();
    fs::write(world.at(".planck/big"), vec![b'x'; 9 << 20]).unwrap();
    let said = world.after(|| fs::write(world.at(".planck/big"), "small").unwrap());
    assert!(
        said.contains(".planck/big") && said.contains("could not be put back: it is too large"),
        "{said}"
    );
}
