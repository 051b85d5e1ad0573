//! The folders that contain tools, teams and skills: those of the user, and those of a project that
//! the user trusts.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    path::{Path, PathBuf},
    sync::Arc,
};

use planck_host::regular_file::{EntryKind, FileContent, FileRefused, OpenFolder};

use super::{
    CONFIG, FOLDER, SERVERS, SKILL_FOLDERS,
    snapshot::{Print, Snapshot, Untrustable, scan_tool},
};

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

// The part of a project that the user trusts, with the snapshot that was compared with the trusted
// state.

/// The reason why a file of a trusted project is not what the user trusted.
#[derive(Debug, thiserror::Error)]
pub enum AlteredFile {
    #[error("{name} changed since the project was trusted; run `planck trust {}`, then start planck again", folder.display())]
    Changed { name: String, folder: PathBuf },
    #[error(transparent)]
    Untrustable(#[from] Untrustable),
}

/// The trusted part of a project. Clones share it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admitted(Arc<AdmittedInner>);

#[derive(Debug, PartialEq, Eq)]
struct AdmittedInner {
    folder: PathBuf,
    config: Option<String>,
    has_folders: bool,
    prints: BTreeMap<String, Print>,
    /// The identities of the trusted files for other programs, by their path below the folder.
    offered: BTreeMap<String, Print>,
    /// The text of the MCP servers for other programs.
    servers: Option<String>,
}

impl Admitted {
    pub(super) fn new(
        folder: &Path,
        snapshot: Snapshot,
        offered: BTreeMap<String, Print>,
        has_folders: bool,
    ) -> Self {
        let Snapshot {
            config,
            prints,
            servers,
            ..
        } = snapshot;
        let servers = servers.filter(|_| offered.contains_key(SERVERS));
        Self(Arc::new(AdmittedInner {
            folder: folder.into(),
            config,
            has_folders,
            prints,
            offered,
            servers: servers.map(|servers| servers.text),
        }))
    }

    /// Returns whether tools, teams and skills of the project are used. If not, only the
    /// configuration is used.
    pub fn has_folders(&self) -> bool {
        self.0.has_folders
    }

    /// Returns the project's folder.
    pub fn folder(&self) -> &Path {
        &self.0.folder
    }

    /// Returns the path and the text of the project's configuration, or `None` if it has none. The
    /// text is the one that was hashed.
    pub fn config(&self) -> Option<(PathBuf, &str)> {
        let file = self.0.folder.join(FOLDER).join(CONFIG);
        self.0.config.as_deref().map(|text| (file, text))
    }

    /// Returns the path and the text of the project's MCP servers for other programs, or `None` if it
    /// has none that are trusted. The text is the one that was hashed.
    pub fn servers(&self) -> Option<(PathBuf, &str)> {
        let file = self.0.folder.join(SERVERS);
        self.0.servers.as_deref().map(|text| (file, text))
    }

    /// Fails if a file differs from what was trusted or is not among the trusted files. `name` is
    /// relative to `.planck/`.
    pub(super) fn check(&self, name: &str, content: &FileContent) -> Result<(), AlteredFile> {
        match self.0.prints.get(name) {
            Some(print) if *print == Print::of(content) => Ok(()),
            Some(_) | None => Err(self.changed(name)),
        }
    }

    /// Returns the names of the skills for other programs in a folder of
    /// [`SKILL_FOLDERS`](super::SKILL_FOLDERS).
    pub(super) fn offered(&self, folder: &Path) -> Vec<String> {
        let names = self.0.offered.keys().filter_map(|file| {
            let below = Path::new(file).strip_prefix(folder).ok()?;
            Some(below.parent()?.to_str()?.to_owned())
        });
        names.collect()
    }

    /// Fails if the file of a skill for other programs is not what the user trusted. `file` is
    /// relative to the project's folder.
    pub(super) fn check_offered(
        &self,
        file: &Path,
        content: &FileContent,
    ) -> Result<(), AlteredFile> {
        let name = file.display().to_string();
        match self.0.offered.get(&name) {
            Some(print) if *print == Print::of(content) => Ok(()),
            Some(_) | None => Err(AlteredFile::Changed {
                name,
                folder: self.0.folder.clone(),
            }),
        }
    }

    /// Fails if anything in the folder `tools/<tool>` has changed since it was trusted or cannot be
    /// read. This function reads files, so it may block.
    ///
    /// The check does not exclude every change: the program is started by its path afterwards.
    /// Another program of this user that runs outside of the sandbox can replace the tool's program
    /// between the check and the start.
    pub fn check_tool(&self, tool: &str) -> Result<(), AlteredFile> {
        let name = format!("tools/{tool}");
        let refused = |why: FileRefused| Untrustable::new(FOLDER, why);
        let folder = OpenFolder::open(&self.0.folder).map_err(refused)?;
        let planck = folder
            .folder(OsStr::new(FOLDER))
            .map_err(refused)?
            .ok_or_else(|| self.changed(&name))?;
        let found = scan_tool(&planck, &name)?;
        let below = format!("{name}/");
        let trusted = self
            .0
            .prints
            .iter()
            .filter(|(known, _)| known.starts_with(&below));
        if trusted.eq(found.iter()) {
            Ok(())
        } else {
            Err(self.changed(&name))
        }
    }

    fn changed(&self, name: &str) -> AlteredFile {
        AlteredFile::Changed {
            name: format!("{FOLDER}/{name}"),
            folder: self.0.folder.clone(),
        }
    }
}
