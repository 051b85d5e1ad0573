use serde_json::json;

use super::*;
use crate::testing::World;

#[tokio::test]
async fn lines_are_skipped_and_limited() {
    let world = World::new();
    world.write("ws/a.txt", "one\ntwo\nthree\nfour");
    for (args, text) in [
        (json!({"path": "a.txt"}), "one\ntwo\nthree\nfour"),
        (json!({"path": "a.txt", "offset": 2}), "three\nfour"),
        (
            json!({"path": "a.txt", "offset": 1, "limit": 2}),
            "two\nthree\n",
        ),
        (json!({"path": "a.txt", "offset": 9}), ""),
        (json!({"path": "a.txt", "limit": 1}), "one\n"),
    ] {
        assert_eq!(
            world.run(ReadFile::new(world.files()), args.clone()).await,
            text,
            "{args}"
        );
    }
}

#[tokio::test]
async fn long_files_are_cut_and_binary_ones_only_named() {
    let world = World::new();
    world.write("ws/lines", "x\n".repeat(3000));
    world.write("ws/wide", "ä".repeat(60_000));
    world.write("ws/exact", "x\n".repeat(2000));
    world.write("ws/binary", b"\x7fELF\xff\xfe\x00");
    world.write("ws/empty", "");
    let read = async |path: &str| {
        world
            .run(ReadFile::new(world.files()), json!({"path": path}))
            .await
    };
    assert_eq!(
        read("lines").await,
        "x\n".repeat(2000) + "[output truncated]"
    );
    assert_eq!(
        read("wide").await,
        "ä".repeat(25_000) + "\n[output truncated]"
    );
    assert_eq!(read("exact").await, "x\n".repeat(2000));
    assert_eq!(read("binary").await, "[binary, 7 bytes]");
    assert_eq!(read("empty").await, "");
}

#[tokio::test]
async fn an_error_names_the_reason_why_a_file_cannot_be_read() {
    let world = World::new();
    world.write("ws/file", "x");
    nix::unistd::mkfifo(&world.at("ws/fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let read = async |path: &str| {
        world
            .run(ReadFile::new(world.files()), json!({"path": path}))
            .await
    };
    assert_eq!(
        read("none").await,
        "error: cannot read none: No such file or directory (os error 2)"
    );
    assert_eq!(
        read(".").await,
        "error: cannot read .: Is a directory (os error 21)"
    );
    assert_eq!(
        read("fifo").await,
        "error: cannot read fifo: not a regular file"
    );
    assert_eq!(
        read("file/x").await,
        "error: cannot reach file/x: Not a directory (os error 20)"
    );
    assert_eq!(
        read("../out/secret").await,
        "error: ../out/secret is outside of the workspace; paths must stay inside /ws"
    );
}

#[tokio::test]
async fn a_line_too_far_into_a_huge_file_is_refused_soon() {
    let world = World::new();
    std::fs::File::create(world.at("ws/sparse"))
        .unwrap()
        .set_len(200 << 30)
        .unwrap();
    let begun = std::time::Instant::now();
    let told = world
        .run(
            ReadFile::new(world.files()),
            json!({"path": "sparse", "offset": 100_000_000}),
        )
        .await;
    assert!(
        told.starts_with("error: line 100000001 of sparse is not within the first 256 MiB"),
        "{told}"
    );
    assert!(
        begun.elapsed() < std::time::Duration::from_secs(20),
        "{:?}",
        begun.elapsed()
    );
}
