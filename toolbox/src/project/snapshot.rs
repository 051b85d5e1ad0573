//! The contents of a project's `.planck/`, and of its skills and MCP servers for other programs, at one
//! time, and how they are read.

use std::{collections::BTreeMap, ffi::OsStr, fmt, path::Path};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use planck_host::regular_file::{EntryKind, FileContent, FileRefused, OpenFolder};

use super::CONFIG;
use crate::skill::{self, FILE};

/// The identity of a file or folder. The identity of a file consists of whether the file is
/// executable and the SHA-256 of its content.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Print(String);

impl Print {
    pub(super) fn of(content: &FileContent) -> Self {
        let kind = if content.is_executable {
            "program"
        } else {
            "file"
        };
        let digest = Sha256::digest(&content.bytes);
        Self(digest.iter().fold(format!("{kind} "), |text, byte| {
            text + &format!("{byte:02x}")
        }))
    }

    pub(super) fn of_folder() -> Self {
        Self("folder".into())
    }

    pub fn is_folder(&self) -> bool {
        self.0 == "folder"
    }
}

impl fmt::Debug for Print {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The contents of `.planck/` from one reading. The contents that a user sees and those that are
/// recorded as trusted come from the same reading.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The identities of all entries that are trusted by their content, by their path below
    /// `.planck/`.
    pub prints: BTreeMap<String, Print>,
    /// The text of `config.toml`.
    pub config: Option<String>,
    /// The texts of every TOOL.json and TEAM.json, which are shown to the user.
    pub texts: BTreeMap<String, String>,
    /// The names of the entries below `skills/` that are not regular files.
    pub skills: Vec<String>,
    /// The names of the prompt files below `teams/`.
    pub prompts: Vec<String>,
    /// The skills for other programs, by the path of their file below the project's folder.
    pub offered: BTreeMap<String, OfferedSkill>,
    /// The file with the MCP servers for other programs.
    pub servers: Option<OfferedServers>,
    /// What cannot be used of the files for other programs, with the reasons.
    pub left_out: Vec<String>,
}

impl Snapshot {
    /// Returns whether `.planck/` contains nothing that could have an effect.
    pub fn is_empty(&self) -> bool {
        self.skills.is_empty() && self.prompts.is_empty() && self.files().next().is_none()
    }

    /// Returns whether the folder contains a `config.toml` with this text and nothing else that has
    /// an effect.
    pub fn is_only(&self, config: &str) -> bool {
        self.config.as_deref() == Some(config)
            && self.files().eq([CONFIG])
            && self.skills.is_empty()
            && self.prompts.is_empty()
    }

    /// Returns this snapshot without the files for other programs.
    pub fn without_offered(self) -> Self {
        Self {
            offered: BTreeMap::new(),
            servers: None,
            ..self
        }
    }

    /// Returns the names of the files that are trusted by their content.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        self.prints
            .iter()
            .filter(|(_, print)| !print.is_folder())
            .map(|(name, _)| name.as_str())
    }

    /// Returns a short summary of the contents, such as `config.toml, 2 tools, 1 skill`.
    pub fn summary(&self) -> String {
        let count = |file: &str| {
            self.texts
                .keys()
                .filter(|name| name.ends_with(&format!("/{file}")))
                .count()
        };
        let counted = |number: usize, what: &str| match number {
            0 => None,
            1 => Some(format!("1 {what}")),
            number => Some(format!("{number} {what}s")),
        };
        let config = self.config.as_ref().map(|_| CONFIG.to_owned());
        let known = [
            config,
            counted(count("TOOL.json"), "tool"),
            counted(count("TEAM.json"), "team"),
            counted(self.skills.len(), "skill"),
        ];
        let known: Vec<String> = known.into_iter().flatten().collect();
        match known.is_empty() {
            true => counted(self.files().count() + self.prompts.len(), "file").unwrap_or_default(),
            false => known.join(", "),
        }
    }
}

// Reads the files in a project's `.planck/` that are trusted by their content, and lists prompts
// and skills, within limits. The scan fails if a limit is exceeded, or if the configuration or
// anything in `tools/` or `teams/` cannot be trusted by its content, such as a link.

/// The maximum size of the configuration in bytes.
const MOST_CONFIG: u64 = 256 * 1024;
/// The maximum size of any other file in bytes.
const MOST_FILE: u64 = 8 * 1024 * 1024;
/// The maximum size in bytes of all files together, without the configuration.
const MOST_BYTES: u64 = 32 * 1024 * 1024;
/// The maximum number of entries that are trusted by their content, of prompts, and of entries in
/// one folder.
const MOST_ENTRIES: usize = 4096;
/// The maximum depth of nested folders.
const MOST_DEPTH: usize = 16;

/// An entry of `.planck/` that cannot be trusted by its content.
#[derive(Debug, thiserror::Error)]
#[error("{name}: {why}")]
pub struct Untrustable {
    /// The name of the entry. It is relative to the project's folder if
    /// [`Project::read`](super::Project::read) returned it, and otherwise to `.planck/`.
    pub name: String,
    pub why: FileRefused,
}

impl Untrustable {
    pub(super) fn new(name: impl Into<String>, why: FileRefused) -> Self {
        Self {
            name: name.into(),
            why,
        }
    }
}

/// Reads the configuration, the tools and the teams, and lists the skills and prompts.
pub(super) fn scan(planck: &OpenFolder) -> Result<Snapshot, Untrustable> {
    let mut walk = ProjectScan::default();
    walk.config(planck)?;
    for name in ["tools", "teams"] {
        if let Some(folder) = walk.folder(planck, name, name)? {
            walk.all(&folder, name, 1)?;
        }
    }
    let ProjectScan { mut snapshot, .. } = walk;
    if let Some(skills) = open(planck, "skills", "skills")? {
        let entries = skills
            .entries(MOST_ENTRIES)
            .map_err(|why| Untrustable::new("skills", why))?;
        snapshot.skills = entries
            .into_iter()
            .filter(|(_, kind)| *kind != EntryKind::File)
            .map(|(name, _)| name)
            .collect();
    }
    Ok(snapshot)
}

/// Reads one tool's folder below `tools/`. `name` is relative to `.planck/`. The result is empty if
/// the folder does not exist.
pub(super) fn scan_tool(
    planck: &OpenFolder,
    name: &str,
) -> Result<BTreeMap<String, Print>, Untrustable> {
    let mut walk = ProjectScan::default();
    let opened = planck
        .folder_below(name.as_ref())
        .map_err(|why| Untrustable::new(name, why))?;
    if let Some(folder) = opened {
        walk.put_folder(name)?;
        walk.all(&folder, name, 2)?;
    }
    Ok(walk.snapshot.prints)
}

fn open(above: &OpenFolder, name: &str, at: &str) -> Result<Option<OpenFolder>, Untrustable> {
    above
        .folder(OsStr::new(name))
        .map_err(|why| Untrustable::new(at, why))
}

#[derive(Default)]
struct ProjectScan {
    snapshot: Snapshot,
    bytes: u64,
}

impl ProjectScan {
    fn config(&mut self, planck: &OpenFolder) -> Result<(), Untrustable> {
        let refused = |why| Untrustable::new(CONFIG, why);
        if let Some(content) = planck
            .file(OsStr::new(CONFIG), MOST_CONFIG)
            .map_err(refused)?
        {
            self.put(CONFIG.into(), Print::of(&content))?;
            self.snapshot.config = Some(content.text().map_err(refused)?);
        }
        Ok(())
    }

    fn folder(
        &mut self,
        above: &OpenFolder,
        name: &str,
        at: &str,
    ) -> Result<Option<OpenFolder>, Untrustable> {
        let folder = open(above, name, at)?;
        if folder.is_some() {
            self.put_folder(at)?;
        }
        Ok(folder)
    }

    fn put_folder(&mut self, at: &str) -> Result<(), Untrustable> {
        self.put(format!("{at}/"), Print::of_folder())
    }

    fn put(&mut self, name: String, print: Print) -> Result<(), Untrustable> {
        if self.snapshot.prints.len() >= MOST_ENTRIES {
            return Err(Untrustable::new(name, FileRefused::TooMany(MOST_ENTRIES)));
        }
        self.snapshot.prints.insert(name, print);
        Ok(())
    }

    /// Reads a folder with everything in it: all files below `tools/`, and every `TEAM.json` below
    /// `teams/`. Of the other files below `teams/`, those with the ending `.md` or `.txt` are
    /// listed as prompts.
    fn all(&mut self, folder: &OpenFolder, at: &str, depth: usize) -> Result<(), Untrustable> {
        if depth > MOST_DEPTH {
            return Err(Untrustable::new(at, FileRefused::TooMany(MOST_DEPTH)));
        }
        let entries = folder
            .entries(MOST_ENTRIES)
            .map_err(|why| Untrustable::new(at, why))?;
        for (name, kind) in entries {
            let below = format!("{at}/{name}");
            match kind {
                EntryKind::Folder => {
                    if let Some(folder) = self.folder(folder, &name, &below)? {
                        self.all(&folder, &below, depth + 1)?;
                    }
                }
                EntryKind::File if at.starts_with("tools") || name == "TEAM.json" => {
                    self.file(folder, &name, below)?
                }
                EntryKind::File => self.prompt(&name, below)?,
                EntryKind::Link | EntryKind::Other(_) => {
                    return Err(Untrustable::new(below, kind.refused()));
                }
            }
        }
        Ok(())
    }

    fn file(&mut self, folder: &OpenFolder, name: &str, below: String) -> Result<(), Untrustable> {
        let most = MOST_FILE.min(MOST_BYTES - self.bytes);
        let content = folder
            .file(OsStr::new(name), most)
            .map_err(|why| Untrustable::new(below.clone(), why))?;
        let Some(content) = content else {
            return Ok(());
        };
        self.bytes += content.bytes.len() as u64;
        self.put(below.clone(), Print::of(&content))?;
        if matches!(name, "TOOL.json" | "TEAM.json") {
            let text = content
                .text()
                .map_err(|why| Untrustable::new(below.clone(), why))?;
            self.snapshot.texts.insert(below, text);
        }
        Ok(())
    }

    fn prompt(&mut self, name: &str, below: String) -> Result<(), Untrustable> {
        if self.snapshot.prompts.len() >= MOST_ENTRIES {
            return Err(Untrustable::new(below, FileRefused::TooMany(MOST_ENTRIES)));
        }
        if [".md", ".txt"].iter().any(|end| name.ends_with(end)) {
            self.snapshot.prompts.push(below);
        }
        Ok(())
    }
}

// The skills and MCP servers that a repository has for other programs. They have an effect only as the
// user trusted them, each file by its content. A file that is new or has changed is left out, and the
// rest of the project works on, because such files come and change with every `git pull`.

/// The folders of skills that other programs read, relative to the project's folder. Of two skills
/// with the same name, the one in the first of these folders is used.
pub const SKILL_FOLDERS: [&str; 2] = [".agents/skills", ".claude/skills"];

/// The name of the file of MCP servers that other programs read, in the project's folder.
pub const SERVERS: &str = ".mcp.json";

/// The maximum size of that file in bytes.
const MOST_SERVERS: u64 = 1 << 20;

/// The maximum number of entries in one of the folders of skills.
const MOST_IN_FOLDER: usize = 256;
/// The maximum size in bytes of all files together.
const MOST_SKILL_BYTES: u64 = 8 * 1024 * 1024;

/// A skill for other programs, as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfferedSkill {
    pub(super) print: Print,
    pub name: String,
    pub description: String,
}

/// The MCP servers for other programs, as their file was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfferedServers {
    print: Print,
    pub text: String,
}

/// Reads the skills and the MCP servers into the snapshot. What cannot be used is listed with the
/// reason.
pub(super) fn scan_offered(project: &OpenFolder, snapshot: &mut Snapshot) {
    match read_servers(project) {
        Ok(servers) => snapshot.servers = servers,
        Err(why) => snapshot.left_out.push(format!("{SERVERS}: {why}")),
    }
    let mut left = MOST_SKILL_BYTES;
    for at in SKILL_FOLDERS {
        if let Err(why) = scan_folder(project, at, snapshot, &mut left) {
            snapshot.left_out.push(format!("{at}: {why}"));
        }
    }
}

fn read_servers(project: &OpenFolder) -> Result<Option<OfferedServers>, FileRefused> {
    let Some(content) = project.file(OsStr::new(SERVERS), MOST_SERVERS)? else {
        return Ok(None);
    };
    Ok(Some(OfferedServers {
        print: Print::of(&content),
        text: content.text()?,
    }))
}

fn scan_folder(
    project: &OpenFolder,
    at: &str,
    snapshot: &mut Snapshot,
    left: &mut u64,
) -> Result<(), FileRefused> {
    let Some(folder) = project.folder_below(Path::new(at))? else {
        return Ok(());
    };
    for (name, kind) in folder.entries(MOST_IN_FOLDER)? {
        let read = match kind {
            EntryKind::File => continue,
            EntryKind::Folder => read(&folder, &name, left),
            EntryKind::Link | EntryKind::Other(_) => Err(kind.refused().to_string()),
        };
        let file = format!("{at}/{name}/{FILE}");
        match read {
            Ok(None) => {}
            Ok(Some(skill)) => drop(snapshot.offered.insert(file, skill)),
            Err(why) => snapshot.left_out.push(format!("{file}: {why}")),
        }
    }
    Ok(())
}

fn read(above: &OpenFolder, name: &str, left: &mut u64) -> Result<Option<OfferedSkill>, String> {
    let text = |why: FileRefused| why.to_string();
    let Some(folder) = above.folder(OsStr::new(name)).map_err(text)? else {
        return Ok(None);
    };
    let most = skill::LARGEST.min(*left);
    let Some(content) = folder.file(OsStr::new(FILE), most).map_err(text)? else {
        return Ok(None);
    };
    *left -= content.bytes.len() as u64;
    let print = Print::of(&content);
    let (name, description) = skill::described(&content.text().map_err(text)?, Some(name))
        .map_err(|bad| format!("line {}: {bad}", bad.line()))?;
    Ok(Some(OfferedSkill {
        print,
        name,
        description,
    }))
}

impl Snapshot {
    /// Returns the identities of the files for other programs, by their path below the project's
    /// folder.
    pub(super) fn offered_prints(&self) -> BTreeMap<String, Print> {
        let skills = self.offered.iter();
        let skills = skills.map(|(file, skill)| (file.clone(), skill.print.clone()));
        let servers = self.servers.iter();
        let servers = servers.map(|servers| (SERVERS.to_owned(), servers.print.clone()));
        skills.chain(servers).collect()
    }

    /// Returns the identities of the files for other programs that are as the user trusted them.
    pub(super) fn unchanged(&self, trusted: &BTreeMap<String, Print>) -> BTreeMap<String, Print> {
        let mut prints = self.offered_prints();
        prints.retain(|file, print| trusted.get(file) == Some(print));
        prints
    }

    /// Returns the paths of the files for other programs that are new or have changed.
    pub fn pending(&self, trusted: &BTreeMap<String, Print>) -> Vec<String> {
        let mut prints = self.offered_prints();
        prints.retain(|file, print| trusted.get(file) != Some(print));
        prints.into_keys().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::symlink,
        path::{Path, PathBuf},
    };

    use crate::{
        project::{
            Admitted, Ledger, Project, ProjectSource, ProjectStanding, ProjectUse, SourcePart,
        },
        skill::Skills,
    };

    struct World(tempfile::TempDir);

    impl World {
        fn new() -> Self {
            let world = Self(tempfile::tempdir().unwrap());
            fs::create_dir_all(world.at("home/.planck")).unwrap();
            world.skill(".claude/skills/plan", "plan", "Plans.");
            world.skill(".agents/skills/review", "review", "Reviews.");
            world
        }

        fn at(&self, path: &str) -> PathBuf {
            self.0.path().join(path)
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.at("repo").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn skill(&self, folder: &str, name: &str, description: &str) {
            let text = format!("---\nname: {name}\ndescription: {description}\n---\nDo it.\n");
            self.write(&format!("{folder}/SKILL.md"), &text);
        }

        fn project(&self) -> Project {
            Project::find(&self.at("repo"), Some(&self.at("home/.planck")))
                .unwrap()
                .unwrap()
        }

        fn ledger(&self) -> Ledger {
            Ledger::at(&self.at("home/.planck"))
        }

        fn trust(&self) {
            let project = self.project();
            let read = project.read().unwrap();
            project.trust(&self.ledger(), read).unwrap();
        }

        /// Returns what is trusted, and the paths of the skills that have no effect.
        fn standing(&self) -> (Option<Admitted>, Vec<String>) {
            let project = self.project();
            match project
                .standing(Some(&self.ledger()), ProjectUse::Everything)
                .unwrap()
            {
                ProjectStanding::Trusted(admitted) => (Some(admitted), Vec::new()),
                ProjectStanding::Offered(offered) => (offered.admitted, offered.files),
                other @ (ProjectStanding::Nothing
                | ProjectStanding::Unknown(_)
                | ProjectStanding::Changed(_)
                | ProjectStanding::Untrustable(_)) => panic!("{other:?}"),
            }
        }

        fn left_out(&self) -> String {
            self.project().read().unwrap().left_out.join("\n")
        }
    }

    fn sources(admitted: &Admitted) -> Vec<ProjectSource> {
        std::iter::once(ProjectSource::of_project(admitted, SourcePart::Skills))
            .chain(ProjectSource::offered(admitted))
            .collect()
    }

    fn names(admitted: Option<&Admitted>) -> Vec<String> {
        let sources = admitted.map(sources).unwrap_or_default();
        let (skills, problems) = Skills::load(&sources);
        assert!(problems.is_empty(), "{problems:?}");
        skills.names().map(Into::into).collect()
    }

    #[test]
    fn each_skill_has_an_effect_only_as_it_was_trusted() {
        let world = World::new();
        let (plan, review) = (
            ".claude/skills/plan/SKILL.md",
            ".agents/skills/review/SKILL.md",
        );
        let (admitted, pending) = world.standing();
        assert_eq!(
            (names(admitted.as_ref()).len(), pending),
            (0, vec![review.into(), plan.into()])
        );
        world.trust();
        let (admitted, pending) = world.standing();
        assert_eq!(names(admitted.as_ref()), ["plan", "review"]);
        assert!(pending.is_empty());

        world.skill(".claude/skills/plan", "plan", "Other.");
        world.skill(".claude/skills/new", "new", "New.");
        let told = Skills::load(&sources(&admitted.unwrap())).1;
        assert!(
            told.len() == 1 && told[0].to_string().contains("plan/SKILL.md changed since"),
            "what this process was told to admit: {told:?}"
        );
        let (admitted, pending) = world.standing();
        assert_eq!(names(admitted.as_ref()), ["review"]);
        assert_eq!(pending, [".claude/skills/new/SKILL.md", plan]);
        assert!(world.ledger().remove(&world.project().folder).unwrap());
        assert_eq!(world.standing().1.len(), 3);
    }

    #[test]
    fn servers_have_an_effect_only_as_they_were_trusted() {
        let world = World::new();
        world.trust();
        let of = |admitted: Option<Admitted>| {
            let admitted = admitted.unwrap();
            admitted.servers().map(|(_, text)| text.to_owned())
        };
        world.write(".mcp.json", "one");
        let (admitted, pending) = world.standing();
        assert_eq!((of(admitted), pending), (None, vec![".mcp.json".into()]));
        world.trust();
        let (admitted, pending) = world.standing();
        assert_eq!((of(admitted), pending), (Some("one".into()), vec![]));
        let of_client = || {
            let project = world.project();
            let standing = project.standing(Some(&world.ledger()), ProjectUse::Config);
            match standing.unwrap() {
                ProjectStanding::Trusted(admitted) => of(Some(admitted)),
                ProjectStanding::Nothing => None,
                other @ (ProjectStanding::Offered(_)
                | ProjectStanding::Unknown(_)
                | ProjectStanding::Changed(_)
                | ProjectStanding::Untrustable(_)) => panic!("{other:?}"),
            }
        };
        assert_eq!(of_client(), Some("one".into()));
        world.write(".mcp.json", "two");
        let (admitted, pending) = world.standing();
        assert_eq!((of(admitted), pending), (None, vec![".mcp.json".into()]));
        assert_eq!(of_client(), None);

        let file = world.at("repo/.mcp.json");
        fs::remove_file(&file).unwrap();
        symlink("/etc/hostname", &file).unwrap();
        assert!(world.left_out().starts_with(".mcp.json: it is a link"));
        fs::remove_file(&file).unwrap();
        world.write(".mcp.json", &" ".repeat((1 << 20) + 1));
        assert!(world.left_out().starts_with(".mcp.json: it is larger"));
        for folder in [".agents", ".claude"] {
            fs::remove_dir_all(world.at("repo").join(folder)).unwrap();
        }
        let found = Project::find(&world.at("repo"), None).unwrap();
        assert!(found.is_some(), "the file alone makes a project");
    }

    #[test]
    fn rest_of_the_project_does_not_depend_on_these_skills() {
        let world = World::new();
        world.write(".planck/config.toml", "[tools]\n");
        let standing = || {
            let project = world.project();
            project.standing(Some(&world.ledger()), ProjectUse::Everything)
        };
        assert!(matches!(standing().unwrap(), ProjectStanding::Unknown(_)));
        world.trust();
        world.skill(".agents/skills/review", "review", "Other.");
        let (admitted, _) = world.standing();
        let admitted = admitted.unwrap();
        assert!(admitted.config().is_some());
        assert_eq!(names(Some(&admitted)), ["plan"]);
        world.write(".planck/config.toml", "");
        assert!(matches!(standing().unwrap(), ProjectStanding::Changed(_)));
    }

    #[test]
    fn first_folder_with_a_name_is_used_and_the_users_own_before_all() {
        let world = World::new();
        for folder in [".planck/skills", ".agents/skills", ".claude/skills"] {
            world.skill(&format!("{folder}/a"), "a", folder);
        }
        for folder in [".agents/skills", ".claude/skills"] {
            world.skill(&format!("{folder}/b"), "b", folder);
            world.skill(&format!("{folder}/own"), "own", folder);
        }
        world.skill("../home/.planck/skills/own", "own", "mine");
        world.trust();
        let mut sources = sources(&world.standing().0.unwrap());
        sources.insert(0, ProjectSource::named(&world.at("home/.planck/skills")));
        let (skills, problems) = Skills::load(&sources);
        let described = |name: &str| skills.find(name).unwrap().description.clone();
        assert_eq!(
            ["a", "b", "own"].map(described),
            [".planck/skills", ".agents/skills", "mine"]
        );
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(
            problems
                .iter()
                .all(|why| why.to_string().contains("there is a skill `own` already"))
        );
    }

    #[test]
    fn fields_of_other_programs_are_ignored() {
        let world = World::new();
        world.write(
            ".claude/skills/deploy/SKILL.md",
            "---\ndescription: Deploys.\nallowed-tools: Bash(*), Write\nmodel: opus\nhooks:\n  Stop:\n    - command: evil\n\
             license: MIT\nmetadata: {version: 1}\n---\n",
        );
        let read = world.project().read().unwrap();
        let skill = &read.offered[".claude/skills/deploy/SKILL.md"];
        assert_eq!((&*skill.name, &*skill.description), ("deploy", "Deploys."));
        assert!(read.left_out.is_empty(), "{:?}", read.left_out);
    }

    #[test]
    fn what_cannot_be_trusted_is_left_out() {
        type Plant = fn(&World);
        let cases: [(&str, Plant); 7] = [
            (".claude/skills/x/SKILL.md: it is a link", |world| {
                let at = world.at("repo/.claude/skills/x");
                fs::create_dir(&at).unwrap();
                symlink("/etc/hostname", at.join("SKILL.md")).unwrap();
            }),
            (".claude/skills/x/SKILL.md: it is a link", |world| {
                symlink("/etc", world.at("repo/.claude/skills/x")).unwrap();
            }),
            (".agents/skills: it is a link", |world| {
                fs::rename(world.at("repo/.agents"), world.at("moved")).unwrap();
                fs::create_dir(world.at("repo/.agents")).unwrap();
                symlink("../../moved/skills", world.at("repo/.agents/skills")).unwrap();
            }),
            (".claude/skills/x/SKILL.md: it is larger", |world| {
                world.skill(".claude/skills/x", "x", &"y".repeat(10 << 20));
            }),
            (".claude/skills/x/SKILL.md: it has 2 names", |world| {
                world.write("secret", "---\nname: x\ndescription: y\n---\n");
                fs::create_dir(world.at("repo/.claude/skills/x")).unwrap();
                fs::hard_link(
                    world.at("repo/secret"),
                    world.at("repo/.claude/skills/x/SKILL.md"),
                )
                .unwrap();
            }),
            (".claude/skills: the folder holds more than 256", |world| {
                (0..10_000).for_each(|number| {
                    fs::create_dir(world.at(&format!("repo/.claude/skills/{number}"))).unwrap();
                });
            }),
            (
                ".claude/skills/x/SKILL.md: line 2: `../x` cannot",
                |world| {
                    world.skill(".claude/skills/x", "../x", "y");
                },
            ),
        ];
        for (told, plant) in cases {
            let world = World::new();
            plant(&world);
            let left_out = world.left_out();
            assert!(left_out.starts_with(told), "{told}: {left_out}");
            assert!(!world.standing().1.is_empty(), "the others are offered");
        }
        let world = World::new();
        for number in 0..12 {
            world.skill(
                &format!(".claude/skills/{number}"),
                "x",
                &"y".repeat(1_000_000),
            );
        }
        assert!(world.left_out().contains("larger than"), "all together");
    }

    #[test]
    fn skills_in_the_users_home_are_no_project() {
        let world = World::new();
        fs::create_dir_all(world.at("home/.claude/skills")).unwrap();
        let find = |home: &Path, own: &str| Project::find(home, Some(&world.at(own))).unwrap();
        assert!(find(&world.at("home"), "home/.planck").is_none());
        fs::remove_dir(world.at("home/.planck")).unwrap();
        assert!(find(&world.at("home"), "home/.planck").is_none());
        assert!(find(&world.at("home"), "other/.planck").is_some());
    }
}
