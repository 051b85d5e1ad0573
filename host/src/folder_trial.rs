//! Checks whether a folder is writable, and leaves no file in it. A process that accesses a folder
//! on an offline network share can block forever, so each check has a thread of its own and a
//! deadline.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use nix::{errno::Errno, fcntl::OFlag};
use tokio::{sync::oneshot, time::timeout};

/// How long a check of a folder may take.
const DEADLINE: Duration = Duration::from_secs(5);

/// A page of zeros, which is the smallest amount of data that a database writes at once.
const PAGE: [u8; 4096] = [0; 4096];

/// Writes a page to a file in the folder and syncs the page to disk. The file has no name and
/// disappears when it is closed. If the file system does not support such files, the file has a
/// name for a short time.
pub async fn try_write(folder: impl Into<PathBuf>) -> io::Result<()> {
    let folder = folder.into();
    within(DEADLINE, move || write(&folder)).await
}

/// Returns the path itself if it exists, and otherwise the nearest path above it that exists. For a
/// relative path, the last resort is `.`.
pub async fn nearest(path: impl Into<PathBuf>) -> io::Result<PathBuf> {
    let path = path.into();
    within(DEADLINE, move || {
        let found = path
            .ancestors()
            .find(|path| fs::symlink_metadata(path).is_ok());
        // The last ancestor of a relative path is empty and stands for the current folder.
        let found = found.filter(|path| !path.as_os_str().is_empty());
        Ok(found.unwrap_or(Path::new(".")).to_owned())
    })
    .await
}

/// Runs `work` on a new thread, and fails if it takes longer than `deadline`. The thread then
/// continues until its work or the process ends.
async fn within<T: Send + 'static>(
    deadline: Duration,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (done, outcome) = oneshot::channel();
    thread::Builder::new()
        .name("folder-trial".into())
        .spawn(move || {
            let _nobody_waits = done.send(work());
        })?;
    let late = |_| {
        let what = format!(
            "it did not answer within {deadline:?}; its disk or network share may be offline"
        );
        io::Error::new(io::ErrorKind::TimedOut, what)
    };
    let outcome = timeout(deadline, outcome).await.map_err(late)?;
    outcome.map_err(|_| io::Error::other("the thread that tried it ended"))?
}

fn write(folder: &Path) -> io::Result<()> {
    let mut file = unnamed(folder)?;
    file.write_all(&PAGE)?;
    file.sync_data()
}

fn unnamed(folder: &Path) -> io::Result<File> {
    let opened = OpenOptions::new()
        .write(true)
        .mode(0o600)
        .custom_flags(OFlag::O_TMPFILE.bits())
        .open(folder);
    let has_no_such_files = |error: &io::Error| {
        [Errno::EOPNOTSUPP, Errno::EISDIR, Errno::EINVAL]
            .iter()
            .any(|errno| error.raw_os_error() == Some(*errno as i32))
    };
    match opened {
        Err(error) if has_no_such_files(&error) => named(folder),
        opened => opened,
    }
}

fn named(folder: &Path) -> io::Result<File> {
    let path = folder.join(format!(".planck-{}", uuid::Uuid::new_v4().simple()));
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)?;
    fs::remove_file(&path)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[tokio::test]
    async fn writing_leaves_nothing_in_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        try_write(folder.path()).await.unwrap();
        write(folder.path()).unwrap();
        drop(named(folder.path()).unwrap());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn folder_of_the_kernel_and_a_file_cannot_be_written() {
        assert!(try_write("/proc").await.is_err());
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(try_write(file.path()).await.is_err());
    }

    #[tokio::test]
    async fn nearest_folder_exists() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("a/b/c");
        assert_eq!(nearest(missing).await.unwrap(), folder.path());
        assert_eq!(nearest("no-such-folder/b").await.unwrap(), Path::new("."));
    }

    #[tokio::test]
    async fn folder_that_does_not_answer_is_given_up() {
        let began = Instant::now();
        let stuck = within(Duration::from_millis(50), || {
            thread::sleep(Duration::from_secs(60));
            Ok(())
        })
        .await;
        let error = stuck.unwrap_err();
        assert!(
            error.kind() == io::ErrorKind::TimedOut && error.to_string().contains("offline"),
            "{error}"
        );
        assert!(began.elapsed() < Duration::from_secs(30));
    }
}
