//! Replaces a file as a whole.

use std::{
    fs::Permissions,
    io::{self, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::Path,
};

/// Writes a file, or replaces it. A reader sees the former content or the new one, never a part, also
/// after the machine has failed.
///
/// # Errors
/// Returns an error if the file cannot be written. Then the former content stays.
pub fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut new = tempfile::Builder::new()
        .permissions(Permissions::from_mode(mode))
        .tempfile_in(folder)?;
    new.write_all(content)?;
    new.as_file().sync_all()?;
    new.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_is_replaced_or_stays() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        for content in ["one", "two"] {
            replace(&file, content.as_bytes(), 0o600).unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), content);
        }
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(replace(&folder.path().join("none/file"), b"", 0o600).is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
