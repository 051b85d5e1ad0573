//! Tests of baselines: which changes they show, in folders as git and users have them.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt as _, symlink},
    process::Command,
};

use super::{super::root::KNOWN, *};

struct Root(tempfile::TempDir);

impl Root {
    /// Creates a root with a repository.
    fn new() -> Self {
        let root = Self(tempfile::tempdir().unwrap());
        root.git(".", &["init", "-q"]);
        root
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        fs::create_dir_all(self.at(path).parent().unwrap()).unwrap();
        fs::write(self.at(path), text).unwrap();
    }

    fn git(&self, dir: &str, args: &[&str]) {
        let who = ["-c", "user.name=a", "-c", "user.email=a@b"];
        let allowed = ["-c", "protocol.file.allow=always"];
        let done = Command::new("git")
            .args(who.iter().chain(&allowed).chain(args))
            .current_dir(self.at(dir))
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .output()
            .unwrap();
        assert!(done.status.success(), "git {args:?}: {done:?}");
    }

    fn taken(&self) -> Baseline {
        Baseline::take(self.0.path()).unwrap().0
    }

    /// Returns the changes that `act` makes, as texts.
    fn changed_by(&self, act: impl FnOnce()) -> Vec<String> {
        let before = self.taken();
        act();
        let changes = self.taken().changes_since(&before);
        let shown = changes
            .into_iter()
            .map(|(path, kind)| format!("{kind:?} {}", path.display()));
        shown.collect()
    }
}

#[test]
fn every_kind_of_change_is_found() {
    let root = Root::new();
    let config = root.at(".git/config");
    let length = fs::read(&config).unwrap().len();
    assert_eq!(root.changed_by(|| {}), [""; 0]);
    // The same size and, set back, the same time of modification.
    let modified = fs::metadata(&config).unwrap().modified().unwrap();
    let back = || {
        fs::write(&config, "#".repeat(length)).unwrap();
        let file = fs::File::options().write(true).open(&config).unwrap();
        file.set_modified(modified).unwrap();
    };
    assert_eq!(root.changed_by(back), ["Changed .git/config"]);
    let hook = root.at(".git/hooks/pre-commit");
    let written = || fs::write(&hook, "x").unwrap();
    assert_eq!(root.changed_by(written), ["Changed .git/hooks"]);
    let executable = || fs::set_permissions(&hook, Permissions::from_mode(0o755)).unwrap();
    assert_eq!(root.changed_by(executable), ["Changed .git/hooks"]);
    let linked = || symlink("/elsewhere", root.at(".envrc")).unwrap();
    assert_eq!(root.changed_by(linked), ["Added .envrc"]);
    let removed = || fs::remove_file(root.at(".envrc")).unwrap();
    assert_eq!(root.changed_by(removed), ["Removed .envrc"]);
    let nested = || root.write(".cargo/config.toml", "[build]");
    assert_eq!(root.changed_by(nested), ["Added .cargo/config.toml"]);
    let ended = || root.write("All.Code-Workspace", "{}");
    assert_eq!(root.changed_by(ended), ["Added All.Code-Workspace"]);
    // A folder that another one or a link replaces.
    let replaced = || {
        fs::rename(root.at(".git/hooks"), root.at("hooks")).unwrap();
        symlink("../hooks", root.at(".git/hooks")).unwrap();
    };
    assert_eq!(root.changed_by(replaced), ["Changed .git/hooks"]);
    let moved = || {
        fs::rename(root.at(".git"), root.at("git")).unwrap();
        symlink("git", root.at(".git")).unwrap();
    };
    let changes = ["Changed .git", "Removed .git/config", "Removed .git/hooks"];
    assert_eq!(root.changed_by(moved), changes);
}

#[test]
fn everyday_work_with_git_changes_nothing() {
    let root = Root::new();
    root.write("other/file", "text");
    root.git("other", &["init", "-q"]);
    root.git("other", &["add", "."]);
    root.git("other", &["commit", "-qm", "x"]);
    let work = || {
        root.write("file", "text");
        root.git(".", &["add", "file"]);
        root.git(".", &["commit", "-qm", "x"]);
        root.git(".", &["branch", "topic"]);
        root.git(".", &["checkout", "-q", "topic"]);
        root.git(".", &["stash", "list"]);
        root.git(".", &["worktree", "add", "-q", "tree"]);
        // An embedded repository whose settings name no program.
        root.git(".", &["add", "other"]);
        root.git(".", &["commit", "-qm", "y"]);
        root.git(".", &["tag", "v1"]);
        root.write(".git/hooks/update.sample", "echo");
    };
    assert_eq!(root.changed_by(work), [""; 0]);
}

#[test]
fn repositories_that_git_would_enter_from_the_root_are_found() {
    let root = Root::new();
    root.write("sub/file", "text");
    root.git("sub", &["init", "-q"]);
    root.git("sub", &["add", "."]);
    root.git("sub", &["commit", "-qm", "x"]);
    root.git("sub", &["config", "core.fsmonitor", "touch PWNED; false"]);
    for version in ["2", "3", "4"] {
        let added = || {
            root.git(".", &["add", "sub"]);
            root.git(".", &["update-index", "--index-version", version]);
        };
        assert_eq!(root.changed_by(added), ["Added sub/.git/config"]);
        root.git(".", &["rm", "-q", "-f", "--cached", "sub"]);
    }
    root.git(".", &["add", "sub"]);
    let split = || root.git(".", &["update-index", "--split-index"]);
    let changes = ["Added .git/index", "Removed sub/.git/config"];
    assert_eq!(root.changed_by(split), changes);
    root.git(".", &["update-index", "--no-split-index"]);
    let elsewhere = || {
        fs::rename(root.at("sub/.git"), root.at("git")).unwrap();
        root.write("sub/.git", "gitdir: ../git\n");
    };
    let changes = ["Added sub/.git", "Removed sub/.git/config"];
    assert_eq!(root.changed_by(elsewhere), changes);
}

#[test]
fn submodules_and_worktrees_are_compared_inside_of_git() {
    let root = Root::new();
    root.git(".", &["init", "-q", "outside"]);
    root.write("outside/file", "text");
    root.git("outside", &["add", "."]);
    root.git("outside", &["commit", "-qm", "x"]);
    let added = || root.git(".", &["submodule", "--quiet", "add", "./outside", "module"]);
    root.git(
        ".",
        &["remote", "add", "origin", root.0.path().to_str().unwrap()],
    );
    assert_eq!(
        root.changed_by(added)[..2],
        ["Changed .git/config", "Added .gitmodules"]
    );
    let fsmonitor = || root.git("module", &["config", "core.fsmonitor", "touch PWNED"]);
    assert_eq!(
        root.changed_by(fsmonitor),
        ["Added .git/modules/module/config"]
    );
    root.git(".", &["commit", "-qm", "x"]);
    root.git(".", &["worktree", "add", "-q", "tree"]);
    let common = || root.write(".git/worktrees/tree/commondir", "../../../evil\n");
    assert_eq!(
        root.changed_by(common),
        ["Added .git/worktrees/tree/commondir"]
    );
}

#[test]
fn bare_repository_in_a_root_is_found() {
    let root = Root(tempfile::tempdir().unwrap());
    root.write("config/settings.toml", "x");
    let build = || root.write("config/more.toml", "x");
    assert_eq!(root.changed_by(build), [""; 0]);
    fs::remove_dir_all(root.at("config")).unwrap();
    let bare = || root.git(".", &["init", "-q", "--bare", "."]);
    assert_eq!(
        root.changed_by(bare),
        ["Added HEAD", "Added config", "Added hooks"]
    );
}

#[test]
fn what_cannot_be_compared_counts_as_changed() {
    let root = Root::new();
    fs::create_dir(root.at(".vscode")).unwrap();
    for file in 0..=MOST_ENTRIES {
        fs::write(root.at(&format!(".vscode/{file}")), "").unwrap();
    }
    assert_eq!(root.changed_by(|| {}), ["Changed .vscode"]);
    let stored = serde_json::to_string(&root.taken()).unwrap();
    assert_eq!(
        serde_json::from_str::<Baseline>(&stored).unwrap(),
        root.taken()
    );
}

/// Writes other content of the same size into a file, and sets its old time of modification.
fn forge(path: &Path) {
    let old = fs::metadata(path).unwrap();
    let text = fs::read_to_string(path).unwrap();
    fs::write(path, text.replace('o', "0")).unwrap();
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_modified(old.modified().unwrap()).unwrap();
}

/// Writes into a file through a shared mapping, and sets its old time of modification.
fn map(path: &Path) {
    let script = "import mmap, os, sys
old = os.stat(sys.argv[1])
with open(sys.argv[1], 'r+b') as file, mmap.mmap(file.fileno(), 0) as mapped:
    mapped[0:1] = b'E'
os.utime(sys.argv[1], ns=(old.st_atime_ns, old.st_mtime_ns))";
    let done = Command::new("python3")
        .args(["-c", script])
        .arg(path)
        .status();
    assert!(done.unwrap().success());
}

#[test]
fn every_change_contradicts_what_an_earlier_look_saw() {
    type Act = fn(&Root);
    let acts: &[(&str, Act)] = &[
        ("a new name", |root| root.write(".envrc", "x")),
        ("a new name below", |root| {
            root.write(".cargo/config.toml", "x")
        }),
        ("a name with an end", |root| {
            root.write("a.code-workspace", "x")
        }),
        ("a forged time", |root| forge(&root.at(".git/config"))),
        ("a write through a mapping", |root| {
            map(&root.at(".vscode/a/tasks.json"));
        }),
        ("a forged time deep inside", |root| {
            forge(&root.at(".vscode/a/tasks.json"))
        }),
        ("a new hook", |root| {
            root.write(".git/hooks/post-merge", "x")
        }),
        ("rights", |root| {
            fs::set_permissions(root.at(".vscode"), Permissions::from_mode(0o700)).unwrap();
        }),
        ("a removed file", |root| {
            fs::remove_file(root.at(".vscode/a/tasks.json")).unwrap()
        }),
        ("another folder", |root| {
            fs::rename(root.at(".git"), root.at("git")).unwrap();
            root.git(".", &["init", "-q"]);
        }),
        ("a link in place of a folder", |root| {
            fs::rename(root.at(".vscode"), root.at("code")).unwrap();
            symlink("code", root.at(".vscode")).unwrap();
        }),
        ("a linked repository", |root| {
            let id = "0123456789012345678901234567890123456789";
            root.git("sub", &["init", "-q"]);
            root.git(
                ".",
                &["update-index", "--add", "--cacheinfo", "160000", id, "sub"],
            );
        }),
        ("a repository of a submodule", |root| {
            root.write(".git/modules/m/HEAD", "x")
        }),
        ("a worktree", |root| {
            root.write(".git/worktrees/w/config.worktree", "x")
        }),
        ("a bare repository", |root| root.write("HEAD", "x")),
    ];
    let file_system = nix::sys::statfs::statfs(&std::env::temp_dir()).unwrap();
    let is_known = KNOWN.contains(&file_system.filesystem_type());
    let roots: Vec<Root> = acts.iter().map(|_| Root::new()).collect();
    for root in &roots {
        root.write(".vscode/a/tasks.json", "echo one");
        root.write(".cargo/registry", "x");
        root.write("sub/file", "x");
        let (_, seen) = Baseline::take(root.0.path()).unwrap();
        assert!(seen.is_none(), "a quick change could leave the same times");
    }
    if !is_known {
        eprintln!("skipped: on this file system every look is repeated");
        return;
    }
    let worked = Root::new();
    worked.write("src/main.rs", "fn main() {}");
    std::thread::sleep(std::time::Duration::from_secs(4));
    for ((what, act), root) in acts.iter().zip(&roots) {
        let (_, seen) = Baseline::take(root.0.path()).unwrap();
        let seen = seen.expect("nothing has changed for a while");
        assert!(seen.is_unchanged(root.0.path()), "{what}");
        act(root);
        assert!(!seen.is_unchanged(root.0.path()), "{what}");
    }
    // Work in folders that are not protected costs no new look.
    let (_, seen) = Baseline::take(worked.0.path()).unwrap();
    let root = worked;
    root.write("src/main.rs", "fn main() { work() }");
    root.write("src/lib.rs", "");
    assert!(seen.unwrap().is_unchanged(root.0.path()));
}
