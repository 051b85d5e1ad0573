//! The folders that contain tools, teams and skills: those of the user, and those of a project that
//! the user trusts.

use std::path::{Path, PathBuf};

use super::{
    FOLDER, SKILL_FOLDERS,
    admitted::{Admitted, AlteredFile},
};
use planck_host::regular_file::{EntryKind, FileRefused, OpenFolder};

/// The maximum number of entries in one folder. A larger folder is refused.
const MOST: usize = 4096;

/// The kind of descriptions that a folder contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourcePart {
    Tools,
    Teams,
    Skills,
}

impl SourcePart {
    pub fn name(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Teams => "teams",
            Self::Skills => "skills",
        }
    }
}

/// The reason why a file in a folder of tools, teams or skills cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum NotRead {
    #[error(transparent)]
    Refused(#[from] FileRefused),
    #[error(transparent)]
    Altered(#[from] AlteredFile),
}

/// Two descriptions with the same name, of which one is in the project. Neither of them is used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there are two {kind}s `{name}`, {} and the project's {}", own.display(), project.display())]
pub struct NameClash {
    pub kind: &'static str,
    pub name: String,
    pub own: PathBuf,
    pub project: PathBuf,
}

/// One folder of tools, teams or skills. No link below it is followed. If the folder belongs to a
/// project, files that are trusted by their content and have changed since they were trusted are
/// refused.
#[derive(Debug, Clone)]
pub struct ProjectSource {
    /// The folder that the user or the configuration names, or the project's folder. Its path may
    /// contain links.
    base: PathBuf,
    /// The rest of the path, below `base`. Links in it are refused.
    below: PathBuf,
    project: Option<(Admitted, SourcePart)>,
    /// Whether the folder contains skills for other programs.
    is_offered: bool,
}

impl ProjectSource {
    /// Returns a folder that the user or the configuration names.
    pub fn named(dir: &Path) -> Self {
        let base = dir
            .canonicalize()
            .or_else(|_| std::path::absolute(dir))
            .unwrap_or_else(|_| dir.into());
        Self {
            base,
            below: PathBuf::new(),
            project: None,
            is_offered: false,
        }
    }

    /// Returns the folder of a trusted project that contains this part.
    pub fn of_project(admitted: &Admitted, part: SourcePart) -> Self {
        Self {
            base: admitted.folder().into(),
            below: Path::new(FOLDER).join(part.name()),
            project: Some((admitted.clone(), part)),
            is_offered: false,
        }
    }

    /// Returns the folders with the project's skills for other programs, of which only the trusted
    /// ones are visible.
    pub fn offered(admitted: &Admitted) -> impl Iterator<Item = Self> {
        SKILL_FOLDERS.into_iter().map(|folder| Self {
            base: admitted.folder().into(),
            below: folder.into(),
            project: Some((admitted.clone(), SourcePart::Skills)),
            is_offered: true,
        })
    }

    /// Returns whether the folder contains skills for other programs.
    pub fn is_offered(&self) -> bool {
        self.is_offered
    }

    pub fn project(&self) -> Option<&Admitted> {
        self.project.as_ref().map(|(admitted, _)| admitted)
    }

    /// Returns the path of a file in the folder.
    pub fn path(&self, below: &Path) -> PathBuf {
        self.dir().join(below)
    }

    /// Returns the path of the folder.
    pub fn dir(&self) -> PathBuf {
        if self.below.as_os_str().is_empty() {
            self.base.clone()
        } else {
            self.base.join(&self.below)
        }
    }

    fn open(&self) -> Result<Option<OpenFolder>, FileRefused> {
        let base = match OpenFolder::open(&self.base) {
            Err(FileRefused::Io(why)) if why.kind() == std::io::ErrorKind::NotFound => {
                return Ok(None);
            }
            base => base?,
        };
        base.folder_below(&self.below)
    }

    /// Returns the sorted names of the subfolders. An entry that is neither a folder nor a file,
    /// such as a link, is included with the reason why it is refused. If the folder does not exist,
    /// the list is empty.
    pub fn folders(&self) -> Result<Vec<(String, Option<FileRefused>)>, FileRefused> {
        if let Some((admitted, _)) = self.project.as_ref().filter(|_| self.is_offered) {
            let names = admitted.offered(&self.below).into_iter();
            return Ok(names.map(|name| (name, None)).collect());
        }
        let Some(folder) = self.open()? else {
            return Ok(Vec::new());
        };
        let entries = folder
            .entries(MOST)?
            .into_iter()
            .filter(|(_, kind)| *kind != EntryKind::File);
        Ok(entries
            .map(|(name, kind)| (name, (kind != EntryKind::Folder).then(|| kind.refused())))
            .collect())
    }

    /// Returns whether an entry with this path exists. An entry that would be refused, and a folder
    /// that cannot be read, count as existing.
    pub fn has(&self, below: &Path) -> bool {
        let above = below.parent().unwrap_or(Path::new(""));
        let found = self
            .open()
            .and_then(|folder| folder.map_or(Ok(None), |folder| folder.folder_below(above)));
        let kind = |folder: OpenFolder| {
            below
                .file_name()
                .and_then(|name| folder.kind(name).ok().flatten())
        };
        match found {
            Ok(folder) => folder.and_then(kind).is_some(),
            Err(_) => true,
        }
    }

    /// Returns whether a folder with this path exists and can be reached without links.
    pub fn has_folder(&self, below: &Path) -> bool {
        matches!(
            self.open()
                .map(|folder| folder.map(|folder| folder.folder_below(below))),
            Ok(Some(Ok(Some(_))))
        )
    }

    /// Returns the text of a file, or `None` if it does not exist. Fails if the file cannot be read
    /// or has more than `most` bytes, or if it is trusted by its content and has changed since.
    pub fn read(&self, below: &Path, most: u64) -> Result<Option<String>, NotRead> {
        let Some(folder) = self.open()? else {
            return Ok(None);
        };
        let Some(content) = folder.file_below(below, most)? else {
            return Ok(None);
        };
        if let Some((admitted, part)) = &self.project {
            let by_content = match part {
                SourcePart::Tools => true,
                SourcePart::Teams => below.file_name().is_some_and(|name| name == "TEAM.json"),
                SourcePart::Skills => false,
            };
            if self.is_offered {
                admitted.check_offered(&self.below.join(below), &content)?;
            } else if by_content {
                admitted.check(&format!("{}/{}", part.name(), below.display()), &content)?;
            }
        }
        Ok(Some(content.text()?))
    }
}
