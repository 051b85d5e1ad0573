//! A fuzz target for the files that people and repositories write: tools, skills, teams and
//! configuration.

#![allow(clippy::expect_used, reason = "a target that cannot start has failed")]

use std::{fs, path::Path, sync::OnceLock};

use tempfile::TempDir;

use crate::{
    config::{self, Sources},
    team::{self, TemplateFile},
};
use planck_toolbox::external;
use planck_toolbox::project::ProjectSource;
use planck_toolbox::skill::Skills;

/// Writes a file and loads it. The first byte chooses the kind of the file, and the other bytes are
/// its content.
pub(super) fn file(bytes: &[u8]) {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| TempDir::new().expect("there is room for a file"));
    let [kind, content @ ..] = bytes else { return };
    let (below, load): (&str, fn(&Path)) = match kind % 4 {
        0 => ("tools/one/TOOL.json", |folder| {
            drop(external::names(&[ProjectSource::named(
                &folder.join("tools"),
            )]))
        }),
        1 => ("skills/one/SKILL.md", |folder| {
            drop(Skills::load(&[ProjectSource::named(
                &folder.join("skills"),
            )]))
        }),
        2 => ("teams/one/TEAM.json", |folder| {
            drop(team::load(&TemplateFile::typed(&folder.join("teams/one"))))
        }),
        _ => ("config.toml", |folder| {
            let file = Some(folder.join("config.toml"));
            drop(config::load(&Sources {
                folder: folder.into(),
                file,
                ..Sources::default()
            }));
        }),
    };
    let path = folder.path().join(below);
    let written = fs::create_dir_all(path.parent().unwrap_or(folder.path()))
        .and_then(|()| fs::write(&path, content));
    written.expect("there is room for a file");
    load(folder.path());
}
