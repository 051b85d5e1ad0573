use std::{fs, os::unix::fs::PermissionsExt};

use serde_json::json;

use super::*;
use crate::testing::World;

async fn write(world: &World, path: &str, content: &str) -> String {
    world
        .run(
            WriteFile::new(world.files()),
            json!({"path": path, "content": content}),
        )
        .await
}

#[tokio::test]
async fn a_file_is_written_with_its_folders_and_keeps_its_mode() {
    let world = World::new();
    assert_eq!(
        write(&world, "a/b/run.sh", "one").await,
        "wrote 3 bytes to a/b/run.sh"
    );
    fs::set_permissions(world.at("ws/a/b/run.sh"), fs::Permissions::from_mode(0o751)).unwrap();
    write(&world, "a/b/run.sh", "two").await;
    assert_eq!(world.text("ws/a/b/run.sh"), "two");
    assert_eq!(
        fs::metadata(world.at("ws/a/b/run.sh"))
            .unwrap()
            .permissions()
            .mode()
            & 0o7777,
        0o751
    );
    assert_eq!(
        fs::read_dir(world.at("ws/a/b")).unwrap().count(),
        1,
        "no draft is left"
    );
}

#[tokio::test]
async fn a_link_inside_stays_a_link() {
    let world = World::new();
    world.write("ws/real", "old");
    world.link("ws/link", "real");
    write(&world, "link", "new").await;
    assert!(
        fs::symlink_metadata(world.at("ws/link"))
            .unwrap()
            .is_symlink()
    );
    assert_eq!(world.text("ws/real"), "new");
}

#[tokio::test]
async fn a_reader_sees_the_old_file_or_the_new_one() {
    let world = World::new();
    let (old, new) = ("a".repeat(1 << 20), "b".repeat(1 << 20));
    world.write("ws/file", &old);
    let mut held = fs::File::open(world.at("ws/file")).unwrap();
    write(&world, "file", &new).await;
    let mut seen = String::new();
    std::io::Read::read_to_string(&mut held, &mut seen).unwrap();
    assert!(seen == old, "a file that was open is not touched");
    assert!(world.text("ws/file") == new);
}

#[tokio::test]
async fn an_error_names_the_reason_and_leaves_no_file() {
    let world = World::new();
    fs::create_dir(world.at("ws/folder")).unwrap();
    assert_eq!(
        write(&world, "folder", "x").await,
        "error: cannot write folder: is a directory"
    );
    assert_eq!(
        write(&world, "../out/new", "x").await,
        "error: ../out/new is outside of the workspace; paths must stay inside /ws"
    );
    assert_eq!(fs::read_dir(world.at("out")).unwrap().count(), 1);
    assert_eq!(fs::read_dir(world.at("ws")).unwrap().count(), 1);
}
