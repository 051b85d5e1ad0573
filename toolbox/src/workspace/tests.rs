use std::fs;

use super::*;
use crate::testing::World;

fn world() -> World {
    let world = World::new();
    world.write("ws/file", "x");
    world.write("ws/deep/er/file", "x");
    world.link("ws/to-file", "file");
    world.link("ws/to-deep", "deep/er");
    world.link("ws/to-out", world.at("out"));
    world.link("ws/to-secret", "../out/secret");
    world.link("ws/dangling", world.at("out/new"));
    world.link("ws/loop", "loop");
    world.link("ws/chain", "to-out");
    world
}

#[test]
fn paths_are_resolved_to_their_real_files() {
    let world = world();
    let workspace = Roots::confined(vec![world.at("ws")], Vec::new())
        .of(&world.at("ws"))
        .unwrap();
    for (path, real) in [
        ("deep/er/file", "deep/er/file"),
        ("deep/../file", "file"),
        ("./deep/er/../er/./file", "deep/er/file"),
        ("new", "new"),
        ("new/er/file", "new/er/file"),
        ("to-file", "file"),
        ("to-deep/file", "deep/er/file"),
        ("to-deep/new", "deep/er/new"),
        ("to-deep/../new", "deep/new"),
        ("deep/..", ""),
        (&world.at("ws/file").display().to_string(), "file"),
    ] {
        assert_eq!(
            workspace.place(path).unwrap().below,
            Path::new(real),
            "{path}"
        );
    }
}

#[test]
fn no_path_leads_out_of_the_workspace() {
    let world = world();
    let workspace = Roots::confined(vec![world.at("ws")], Vec::new())
        .of(&world.at("ws"))
        .unwrap();
    for path in [
        "..",
        "../out/secret",
        "deep/../../out/secret",
        "to-out/secret",
        "to-out/new",
        "to-secret",
        "chain/secret",
        "dangling",
        "dangling/x",
        "loop",
        "loop/x",
        "new/../../out/secret",
        "/etc/passwd",
        "/",
        "/proc/self/root/etc/passwd",
        "/proc/self/cwd/../../../etc/passwd",
        "../ws-other",
    ] {
        assert!(
            workspace.place(path).is_err(),
            "{path} leads to {:?}",
            workspace.place(path)
        );
    }
}

#[test]
fn the_root_is_the_working_directory() {
    let world = world();
    let roots = |workspaces: &[&str], shared: &[&str]| {
        let all = |paths: &[&str]| paths.iter().map(|path| world.at(path)).collect();
        Roots::confined(all(workspaces), all(shared))
            .of(&world.at("ws/deep/er"))
            .unwrap()
            .roots
    };
    let real = |path: &str| world.at(path).canonicalize().unwrap();
    assert_eq!(roots(&[], &[]), [real("ws/deep/er")]);
    assert_eq!(roots(&["ws"], &[]), [real("ws/deep/er")]);
    assert_eq!(
        roots(&["ws"], &["out", "none"]),
        [real("ws/deep/er"), real("out")]
    );
    assert!(
        Roots::unconfined()
            .of(&world.at("ws"))
            .unwrap()
            .place("/etc/passwd")
            .is_ok()
    );
}

#[test]
fn a_link_in_place_of_the_directory_is_refused() {
    let world = world();
    world.link("named", world.at("ws"));
    let roots = Roots::confined(vec![world.at("named")], Vec::new());
    let real = world.at("ws/deep").canonicalize().unwrap();
    assert_eq!(roots.of(&world.at("named/deep")).unwrap().dir(), real);
    assert!(roots.of(&world.at("named")).is_ok());
    for link in ["ws/to-deep", "named/to-deep", "named/to-out"] {
        let refused = roots.of(&world.at(link)).unwrap_err().to_string();
        assert!(refused.contains("through a link"), "{link}: {refused}");
    }
}

#[test]
fn a_folder_replaced_by_a_link_is_not_followed() {
    let world = world();
    let workspace = Roots::confined(vec![world.at("ws")], Vec::new())
        .of(&world.at("ws"))
        .unwrap();
    let (inside, fresh) = (
        workspace.place("deep/secret").unwrap(),
        workspace.place("deep/new").unwrap(),
    );
    let file = workspace.place("file").unwrap();
    fs::rename(world.at("ws/deep"), world.at("ws/moved")).unwrap();
    world.link("ws/deep", world.at("out"));
    fs::remove_file(world.at("ws/file")).unwrap();
    world.link("ws/file", world.at("out/secret"));
    assert!(ParentFolder::open(&inside).is_err());
    assert!(ParentFolder::create(&fresh).is_err());
    assert!(ParentFolder::open(&file).unwrap().read().is_err());
    assert!(ParentFolder::open(&file).unwrap().write(b"x").is_err());
    assert_eq!(world.text("out/secret"), "secret");
    assert!(!world.at("out/new").exists());
}

#[test]
fn files_are_read_without_resolving_only_if_no_link_is_on_the_way() {
    let world = world();
    // The temporary folder itself may be reached through a link.
    let ws = world.at("ws").canonicalize().unwrap();
    let read = |dir: &Path, path: &str| ParentFolder::read_without_links(dir, path).is_some();
    for path in ["file", "./file", "deep/er/file", "deep/./er/file"] {
        assert!(read(&ws, path), "{path}");
    }
    assert!(read(&ws, &ws.join("deep/er/file").display().to_string()));
    assert!(read(&ws.join("deep"), "er/file"));
    for path in [
        "none",
        "none/file",
        ".",
        "deep",
        "to-file",
        "to-deep/file",
        "to-out/secret",
        "to-secret",
        "../out/secret",
        "deep/../file",
        "deep/../../out/secret",
        "/etc/hostname",
        "dangling",
        "loop",
    ] {
        assert!(!read(&ws, path), "{path}");
    }
    assert!(!read(Path::new("ws"), "file"));
    assert!(!read(&ws.join("to-out"), "secret"));
    fs::rename(ws.join("deep"), ws.join("moved")).unwrap();
    world.link("ws/deep", world.at("out"));
    assert!(!read(&ws.join("deep"), "secret"));
}
