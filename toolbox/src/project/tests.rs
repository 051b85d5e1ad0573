use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

use super::*;

/// The folder of a user, and a project with one file of each kind.
struct World {
    folder: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let world = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        for (name, text) in [
            ("config.toml", "[tools]\nsandbox = \"off\"\n"),
            ("tools/lint/TOOL.json", TOOL),
            ("tools/lint/run.sh", "echo fine\n"),
            (
                "teams/review/TEAM.json",
                "[{\"type\": \"a\", \"system_prompt\": \"p.md\"}]",
            ),
            ("teams/review/p.md", "Be kind."),
            (
                "skills/plan/SKILL.md",
                "---\nname: plan\ndescription: Plans.\n---\n",
            ),
            ("sessions/index.db", "whatever"),
        ] {
            world.write(name, text);
        }
        fs::create_dir_all(world.user_folder()).unwrap();
        world
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join("repo/.planck").join(name)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.at(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn user_folder(&self) -> PathBuf {
        self.folder.path().join("home/.planck")
    }

    fn ledger(&self) -> Ledger {
        Ledger::at(&self.user_folder())
    }

    fn project(&self) -> Project {
        Project::find(&self.folder.path().join("repo"), Some(&self.user_folder()))
            .unwrap()
            .unwrap()
    }

    fn trust(&self) -> Admitted {
        let project = self.project();
        project
            .trust(&self.ledger(), project.read().unwrap())
            .unwrap()
    }

    fn standing(&self) -> String {
        self.standing_for(ProjectUse::Everything)
    }

    fn standing_for(&self, uses: ProjectUse) -> String {
        match self.project().standing(Some(&self.ledger()), uses).unwrap() {
            ProjectStanding::Nothing => "nothing".into(),
            ProjectStanding::Trusted(_) => "trusted".into(),
            ProjectStanding::Offered(offered) => format!("offered: {:?}", offered.files),
            ProjectStanding::Unknown(_) => "unknown".into(),
            ProjectStanding::Changed(both) => {
                format!("{:?}", Difference::between(&both.1.files, &both.0.prints))
            }
            ProjectStanding::Untrustable(why) => why.to_string(),
        }
    }
}

const TOOL: &str = r#"{"name": "lint", "description": "x", "command": "./run.sh", "parameters": {"type": "object"}}"#;

#[test]
fn trust_is_of_what_was_read() {
    let world = World::new();
    assert_eq!(world.standing(), "unknown");
    let project = world.project();
    let read = project.read().unwrap();
    world.write("config.toml", "[tools]\nsandbox = \"auto\"\n");
    project.trust(&world.ledger(), read).unwrap();
    assert!(
        world.standing().contains("changed: [\"config.toml\"]"),
        "changed between the reading and the answer"
    );
    world.trust();
    assert_eq!(world.standing(), "trusted");
    assert!(world.ledger().remove(&project.folder).unwrap());
    assert_eq!(world.standing(), "unknown");
}

#[test]
fn whatever_executes_or_redirects_is_trusted_by_its_content() {
    for (name, text, difference) in [
        ("config.toml", "", "changed: [\"config.toml\"]"),
        (
            "tools/lint/run.sh",
            "echo evil\n",
            "changed: [\"tools/lint/run.sh\"]",
        ),
        (
            "tools/lint/lib/more.sh",
            "",
            "added: [\"tools/lint/lib/\", \"tools/lint/lib/more.sh\"]",
        ),
        (
            "tools/other/TOOL.json",
            TOOL,
            "added: [\"tools/other/\", \"tools/other/TOOL.json\"]",
        ),
        (
            "teams/review/TEAM.json",
            "[]",
            "changed: [\"teams/review/TEAM.json\"]",
        ),
    ] {
        let world = World::new();
        world.trust();
        world.write(name, text);
        assert!(
            world.standing().contains(difference),
            "{name}: {}",
            world.standing()
        );
    }
    let world = World::new();
    world.trust();
    fs::remove_file(world.at("tools/lint/run.sh")).unwrap();
    assert!(
        world.standing().contains("gone: [\"tools/lint/run.sh\"]"),
        "{}",
        world.standing()
    );
    world.write("tools/lint/run.sh", "echo fine\n");
    assert_eq!(world.standing(), "trusted");
    fs::set_permissions(
        world.at("tools/lint/run.sh"),
        fs::Permissions::from_mode(0o755),
    )
    .unwrap();
    assert!(
        world
            .standing()
            .contains("changed: [\"tools/lint/run.sh\"]"),
        "{}",
        world.standing()
    );
}

#[test]
fn texts_are_trusted_by_their_folder() {
    let world = World::new();
    world.trust();
    for name in [
        "teams/review/p.md",
        "teams/review/more.txt",
        "skills/plan/SKILL.md",
        "skills/new/SKILL.md",
        "sessions/x",
    ] {
        world.write(name, "other");
        assert_eq!(world.standing(), "trusted", "{name}");
    }
}

#[test]
fn entries_that_cannot_be_checked_are_refused() {
    type Plant = fn(&World);
    let cases: [(&str, Plant); 9] = [
        (".planck/config.toml: it is a link", |world| {
            fs::remove_file(world.at("config.toml")).unwrap();
            symlink("/etc/hostname", world.at("config.toml")).unwrap();
        }),
        (".planck/tools/lint/lib: it is a link", |world| {
            symlink("/usr/lib", world.at("tools/lint/lib")).unwrap()
        }),
        (".planck/teams/x: it is a link", |world| {
            symlink("review", world.at("teams/x")).unwrap()
        }),
        (".planck/skills: it is a link", |world| {
            fs::rename(world.at("skills"), world.at("other")).unwrap();
            symlink("other", world.at("skills")).unwrap();
        }),
        (".planck/tools/lint/hard: it has 2 names", |world| {
            fs::hard_link(world.at("sessions/index.db"), world.at("tools/lint/hard")).unwrap();
        }),
        (".planck/tools/pipe: it is a pipe", |world| {
            nix::unistd::mkfifo(&world.at("tools/pipe"), nix::sys::stat::Mode::S_IRUSR).unwrap();
        }),
        (".planck/config.toml: it is larger", |world| {
            world.write("config.toml", &"#".repeat(300_000))
        }),
        (".planck/tools/big: it is larger", |world| {
            let file = fs::File::create(world.at("tools/big")).unwrap();
            file.set_len(1 << 40).unwrap();
        }),
        (".planck/tools/lint/f4", |world| {
            (0..4200).for_each(|n| world.write(&format!("tools/lint/f{n:04}"), ""))
        }),
    ];
    for (told, plant) in cases {
        let world = World::new();
        world.trust();
        plant(&world);
        let standing = world.standing();
        assert!(
            standing.starts_with(told) || standing.contains("more than 4096 entries"),
            "{told}: {standing}"
        );
    }
    let world = World::new();
    fs::rename(world.at(""), world.folder.path().join("moved")).unwrap();
    symlink("../moved", world.folder.path().join("repo/.planck")).unwrap();
    assert!(
        world.standing().contains(".planck: it is a link"),
        "{}",
        world.standing()
    );
}

#[test]
fn a_tool_runs_only_as_it_was_trusted() {
    let world = World::new();
    let admitted = world.trust();
    admitted.check_tool("lint").unwrap();
    world.write("tools/other/run.sh", "");
    admitted.check_tool("lint").unwrap();
    world.write("tools/lint/run.sh", "echo evil\n");
    assert!(
        admitted
            .check_tool("lint")
            .unwrap_err()
            .to_string()
            .contains("tools/lint changed since")
    );
    fs::remove_dir_all(world.at("tools/lint")).unwrap();
    symlink("other", world.at("tools/lint")).unwrap();
    assert!(
        admitted
            .check_tool("lint")
            .unwrap_err()
            .to_string()
            .contains("a link")
    );
}

#[test]
fn a_source_reads_only_what_was_trusted() {
    let world = World::new();
    let admitted = world.trust();
    let [tools, teams, skills] = [SourcePart::Tools, SourcePart::Teams, SourcePart::Skills]
        .map(|part| ProjectSource::of_project(&admitted, part));
    let read = |source: &ProjectSource, name: &str| match source.read(Path::new(name), 1 << 20) {
        Ok(text) => text.unwrap_or_else(|| "nothing".into()),
        Err(why) => why.to_string(),
    };
    assert_eq!(read(&tools, "lint/TOOL.json"), TOOL);
    assert_eq!(read(&teams, "review/p.md"), "Be kind.");
    for name in [
        "tools/lint/TOOL.json",
        "teams/review/TEAM.json",
        "teams/review/p.md",
        "skills/plan/SKILL.md",
    ] {
        world.write(name, "other");
    }
    assert!(read(&tools, "lint/TOOL.json").contains("changed since the project was trusted"));
    assert!(read(&teams, "review/TEAM.json").contains("changed since the project was trusted"));
    assert_eq!(
        (read(&teams, "review/p.md"), read(&skills, "plan/SKILL.md")),
        ("other".into(), "other".into())
    );
    symlink("/etc/hostname", world.at("skills/plan/link.md")).unwrap();
    symlink("/etc", world.at("skills/etc")).unwrap();
    assert!(
        read(&skills, "plan/link.md").contains("a link")
            && read(&skills, "etc/hostname").contains("a link")
    );
    assert!(
        skills
            .folders()
            .unwrap()
            .iter()
            .any(|(name, refused)| name == "etc" && refused.is_some())
    );
}

#[test]
fn a_client_of_other_nodes_uses_only_the_configuration() {
    let world = World::new();
    world.trust();
    world.write("tools/lint/run.sh", "echo evil\n");
    assert_eq!(world.standing_for(ProjectUse::Config), "trusted");
    let standing = world
        .project()
        .standing(Some(&world.ledger()), ProjectUse::Config)
        .unwrap();
    assert!(
        matches!(standing, ProjectStanding::Trusted(admitted) if !admitted.has_folders() && admitted.config().is_some())
    );
    world.write("config.toml", "");
    assert!(
        world
            .standing_for(ProjectUse::Config)
            .contains("config.toml")
    );
    fs::remove_file(world.at("config.toml")).unwrap();
    assert_eq!(world.standing_for(ProjectUse::Config), "nothing");
}

#[test]
fn the_users_own_folder_and_an_empty_one_are_no_project() {
    let world = World::new();
    let home = world.folder.path().join("home");
    assert!(
        Project::find(&home, Some(&world.user_folder()))
            .unwrap()
            .is_none()
    );
    assert!(
        Project::find(world.folder.path(), Some(&world.user_folder()))
            .unwrap()
            .is_none()
    );
    symlink(world.user_folder(), world.folder.path().join(".planck")).unwrap();
    assert!(
        Project::find(world.folder.path(), Some(&world.user_folder()))
            .unwrap()
            .is_none()
    );
    for name in ["config.toml", "tools", "teams", "skills"] {
        let path = world.at(name);
        if path.is_dir() {
            fs::remove_dir_all(path).unwrap()
        } else {
            fs::remove_file(path).unwrap()
        }
    }
    fs::create_dir(world.at("tools")).unwrap();
    assert_eq!(world.standing(), "nothing");
}

#[test]
fn the_list_is_private_and_old_lines_trust_nothing() {
    let world = World::new();
    let (ledger, folder) = (world.ledger(), world.project().folder);
    fs::write(
        ledger.file(),
        format!("{}\n/elsewhere\nof another version\n", folder.display()),
    )
    .unwrap();
    fs::set_permissions(ledger.file(), fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(world.standing(), "unknown");
    world.trust();
    assert_eq!(world.standing(), "trusted");
    assert_eq!(
        fs::metadata(ledger.file()).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let lines = ledger.lines().unwrap();
    assert_eq!(
        lines[..2],
        [
            LedgerLine::PathOnly("/elsewhere".into()),
            LedgerLine::Unknown("of another version".into())
        ]
    );
    assert!(matches!(&lines[2..], [LedgerLine::Record(record)] if record.folder == folder));
    fs::set_permissions(ledger.file(), fs::Permissions::from_mode(0o666)).unwrap();
    assert!(
        ledger
            .lines()
            .unwrap_err()
            .to_string()
            .contains("only you can write")
    );
    fs::remove_file(ledger.file()).unwrap();
    symlink("/dev/null", ledger.file()).unwrap();
    assert!(ledger.lines().is_err());
}
