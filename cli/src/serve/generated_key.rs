//! The key that a front without configured keys makes for the user who runs it. It is in a file of
//! the data folder, which all fronts of the user share.

use std::{
    fs::{self, File},
    io::{self, Read as _, Write as _},
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use nix::{
    fcntl::OFlag,
    sys::stat::{FileStat, Mode},
    unistd::geteuid,
};
use planck_host::regular_file::{self, NotOpened};
use uuid::Uuid;

use crate::exit::UsageError;

/// The name of the file.
const FILE: &str = "http_key";
/// How each key begins.
const BEGINNING: &str = "pk_";
/// The number of hexadecimal digits of a key.
const DIGITS: usize = 64;

/// Returns a new key of 244 random bits: those of two UUIDs, which come from the system's generator.
pub fn mint() -> String {
    let part = || Uuid::new_v4().simple();
    format!("{BEGINNING}{}{}", part(), part())
}

/// Returns the key in a data folder. The first call makes it, and of several first calls at once all
/// return the same one.
pub fn find_or_make(data: &Path) -> anyhow::Result<String> {
    if data.starts_with("~") {
        let why = "HOME is not set, so there is no folder for the front's key; set `node.data_dir` or `http.keys`";
        return Err(UsageError(why.into()).into());
    }
    if let Some(key) = find(data)? {
        return Ok(key);
    }
    make(data).map_err(|why| {
        UsageError(format!(
            "cannot write the front's key to {}: {why}; set `node.data_dir` to a folder of yours, \
             or `http.keys`",
            place(data).display()
        ))
    })?;
    let made = find(data)?.ok_or_else(|| refused(data, "it was removed at once"))?;
    Ok(made)
}

fn place(data: &Path) -> PathBuf {
    data.join(FILE)
}

fn refused(data: &Path, why: impl std::fmt::Display) -> UsageError {
    UsageError(format!(
        "{} should have the front's key, but {why}; remove it, and `planck serve` makes another \
         key, or set `http.keys`",
        place(data).display()
    ))
}

/// Reads the key of a data folder, or returns `None` if there is none.
fn find(data: &Path) -> Result<Option<String>, UsageError> {
    let folder = match File::open(data) {
        Ok(folder) => folder,
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(why) => return Err(refused(data, why)),
    };
    let opened = regular_file::open(&folder, FILE.as_ref(), OFlag::O_RDONLY, Mode::empty());
    let (file, status) = match opened {
        Ok(opened) => opened,
        Err(NotOpened::Missing) => return Ok(None),
        Err(NotOpened::Kind(kind)) => return Err(refused(data, kind.refused())),
        Err(NotOpened::Io(why)) => return Err(refused(data, why)),
    };
    check(&status).map_err(|why| refused(data, why))?;
    let mut text = String::new();
    let most = (BEGINNING.len() + DIGITS) as u64 + 2;
    let read = file.take(most).read_to_string(&mut text);
    read.map_err(|why| refused(data, why))?;
    let key = text.trim_end();
    let digits = key.strip_prefix(BEGINNING).unwrap_or_default();
    if digits.len() != DIGITS || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(refused(data, "it has no key"));
    }
    Ok(Some(key.to_owned()))
}

/// Refuses a file that another user may have written or read.
fn check(status: &FileStat) -> Result<(), String> {
    let (owner, own, mode) = (status.st_uid, geteuid(), status.st_mode & 0o777);
    if owner != own.as_raw() {
        return Err(format!("it belongs to the user {owner} instead of {own}"));
    }
    match mode & 0o077 {
        0 => Ok(()),
        _ => Err(format!("other users may use it (mode {mode:o})")),
    }
}

/// Writes a new key, unless another process has written one. The file gets its name when it is
/// complete, so no process reads a part of it.
fn make(data: &Path) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(data)?;
    let mut file = tempfile::Builder::new().prefix(FILE).tempfile_in(data)?;
    writeln!(file, "{}", mint())?;
    file.as_file().sync_all()?;
    match file.persist_noclobber(place(data)) {
        Ok(_) => Ok(()),
        Err(failed) if failed.error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(failed) => Err(failed.error),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        os::unix::fs::{PermissionsExt, symlink},
        sync::Barrier,
        thread,
    };

    use tempfile::TempDir;

    use super::*;

    fn told(data: &Path) -> String {
        find_or_make(data).unwrap_err().to_string()
    }

    #[test]
    fn key_is_made_once_and_only_its_user_reads_it() {
        let folder = TempDir::new().unwrap();
        let data = folder.path().join("deep/data");
        let key = find_or_make(&data).unwrap();
        assert_eq!(find_or_make(&data).unwrap(), key);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&place(&data)), mode(&data)), (0o600, 0o700));
        // Without the file there is a new key.
        fs::remove_file(place(&data)).unwrap();
        assert_ne!(find_or_make(&data).unwrap(), key);
        assert_eq!(fs::read_dir(&data).unwrap().count(), 1);
    }

    #[test]
    fn first_starts_at_once_agree() {
        for _ in 0..20 {
            let (folder, start) = (TempDir::new().unwrap(), Barrier::new(8));
            let keys: BTreeSet<String> = thread::scope(|scope| {
                let make = || {
                    start.wait();
                    find_or_make(folder.path()).unwrap()
                };
                let making: Vec<_> = (0..8).map(|_| scope.spawn(make)).collect();
                making.into_iter().map(|one| one.join().unwrap()).collect()
            });
            assert_eq!(keys.len(), 1);
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        }
    }

    #[test]
    fn wrong_file_is_named_with_the_way_out() {
        let folder = TempDir::new().unwrap();
        let (data, file) = (folder.path(), place(folder.path()));
        let key = find_or_make(data).unwrap();
        fs::set_permissions(&file, PermissionsExt::from_mode(0o640)).unwrap();
        let open = told(data);
        assert!(
            open.contains("mode 640") && open.contains("remove it"),
            "{open}"
        );
        assert!(open.contains(file.to_str().unwrap()), "{open}");
        for wrong in [
            "",
            "pk_",
            "secret\n",
            &format!("{key}0"),
            &"\u{e9}".repeat(67),
        ] {
            fs::remove_file(&file).unwrap();
            fs::write(&file, wrong).unwrap();
            fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
            assert!(find_or_make(data).is_err(), "{wrong}");
        }
        fs::rename(&file, data.join("other")).unwrap();
        symlink("other", &file).unwrap();
        assert!(told(data).contains("a link"), "{}", told(data));
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        assert!(told(data).contains("a folder"), "{}", told(data));
    }

    #[test]
    fn file_of_another_user_is_refused() {
        let folder = TempDir::new().unwrap();
        find_or_make(folder.path()).unwrap();
        let mut status = nix::sys::stat::stat(&place(folder.path())).unwrap();
        assert_eq!(check(&status), Ok(()));
        status.st_uid += 1;
        assert!(check(&status).unwrap_err().contains("belongs to"));
    }

    #[test]
    fn folder_that_cannot_be_written_is_named() {
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        for data in [&file, Path::new("/proc/planck")] {
            let told = told(data);
            assert!(told.contains("http.keys"), "{told}");
            assert!(told.contains(data.to_str().unwrap()), "{told}");
        }
        // Without a home, the folder would be one of the working directory.
        assert!(told(Path::new("~/.planck")).contains("HOME"));
    }
}
