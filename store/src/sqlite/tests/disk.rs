//! Tests of full disks and of folders without write permission, which need a small file system of
//! their own, and of a damaged file.

use std::{
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use planck_common::NodeId;

use super::{SqliteOptions, SqliteStore};
use crate::{
    Created, SessionRecords as _, StoreError,
    conformance::team::{Team, message, new_session},
};
use planck_agent::Entry;

/// A file system of 3 MiB. The tests skip themselves if this user may not mount one.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mounted = mount(folder.path(), "size=3m");
        if !mounted {
            eprintln!("SKIPPED: this user cannot mount a small file system");
        }
        mounted.then_some(Self(folder))
    }

    /// Remounts with other options. Connections close on their own threads, so the function tries
    /// again for up to ten seconds until no file is open.
    async fn mount_again(&self, how: &str) {
        let until = Instant::now() + Duration::from_secs(10);
        let options = format!("remount,{how}");
        while !Command::new("mount")
            .args(["-o", &options])
            .arg(self.0.path())
            .status()
            .unwrap()
            .success()
        {
            assert!(Instant::now() < until, "cannot mount it again with {how}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount")
            .arg("--lazy")
            .arg(self.0.path())
            .status();
    }
}

fn mount(path: &Path, options: &str) -> bool {
    let done = Command::new("mount")
        .args(["-t", "tmpfs", "-o", options, "tmpfs"])
        .arg(path)
        .output();
    done.is_ok_and(|output| output.status.success())
}

async fn start(path: &Path) -> Team {
    let node = NodeId::mint();
    let store = SqliteStore::open(SqliteOptions::new(path), &node)
        .await
        .unwrap();
    let new = new_session(1);
    let agents = vec![new.agents[0].id.clone()];
    let Created::New(record, _) = store.create(new, &node).await.unwrap() else {
        panic!("known")
    };
    Team {
        store: std::sync::Arc::new(store),
        node,
        session: record.id,
        agents,
    }
}

#[tokio::test]
async fn a_full_disk_is_reported_and_harms_nothing() {
    let Some(disk) = SmallDisk::mount() else {
        return;
    };
    let team = start(disk.0.path()).await;
    let large: Vec<Entry> = vec![message(&"x".repeat(100_000))];
    let (mut prev, mut why) = (0, None);
    while why.is_none() {
        match team
            .store
            .append(
                &team.session,
                &team.node,
                &[team.batch(0, prev, large.clone())],
            )
            .await
        {
            Ok(_) => prev += 1,
            Err(error) => why = Some(error),
        }
    }
    let Some(StoreError::Full(why)) = why else {
        panic!("{why:?}")
    };
    assert!(
        why.contains("the disk is full") && why.contains(disk.0.path().to_str().unwrap()),
        "{why}"
    );
    assert!(prev > 5);
    assert_eq!(team.store.head(&team.session).await.unwrap(), prev);

    disk.mount_again("size=9m").await;
    team.write(team.batch(0, prev, large)).await;
}

#[tokio::test]
async fn a_folder_without_write_permission_is_reported() {
    let Some(disk) = SmallDisk::mount() else {
        return;
    };
    let folder = disk.0.path().join("sessions");
    drop(start(&folder).await);
    disk.mount_again("ro").await;
    for path in [folder, disk.0.path().join("new")] {
        let refused = SqliteStore::open(SqliteOptions::new(&path), &NodeId::mint()).await;
        let Err(StoreError::Broken(why)) = refused else {
            panic!("{refused:?}")
        };
        assert!(
            why.contains(path.to_str().unwrap()) && why.contains("user"),
            "{why}"
        );
    }
}

#[tokio::test]
async fn a_damaged_session_leaves_the_others_alone() {
    let folder = super::Folder::new();
    let (damaged, sound) = (start(folder.path()).await, start(folder.path()).await);
    let record = damaged
        .store
        .session(&damaged.session)
        .await
        .unwrap()
        .unwrap();
    let path = folder
        .path()
        .join(format!("{}_{}.db", record.id, record.name));
    let (session, node) = (damaged.session.clone(), damaged.node.clone());
    drop(damaged);
    // The journals are removed as well. Connections close on their own threads, so a journal may
    // still be there, and SQLite would repair the file with it.
    for part in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{part}", path.display()));
    }
    std::fs::write(&path, [7; 9000]).unwrap();
    let Err(StoreError::Broken(why)) = sound.store.session(&session).await else {
        panic!("not broken")
    };
    assert!(
        why.contains(path.to_str().unwrap()) && why.contains("damaged"),
        "{why}"
    );
    assert_eq!(
        sound
            .store
            .sweep(std::slice::from_ref(&sound.node))
            .await
            .unwrap(),
        []
    );
    assert_eq!(sound.store.sweep(&[node]).await.unwrap().len(), 1);
}
