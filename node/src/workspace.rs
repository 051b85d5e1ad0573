//! Workspaces: named root folders, each on one or more nodes. An absolute path without a workspace
//! belongs to the workspace `local:<host>`.

use std::{
    collections::BTreeMap,
    path::{Component, Path, PathBuf},
};

use planck_common::{
    reply::{Refusal, excerpt},
    spec::LOCAL,
};

/// The workspaces that exist on this node.
#[derive(Debug, Clone)]
pub struct Workspaces {
    named: BTreeMap<String, PathBuf>,
    local: String,
    takes_paths: bool,
    announces_local: bool,
}

/// A working directory for agents, and the root folder that their tools must not leave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkspaceDir {
    pub dir: PathBuf,
    pub root: PathBuf,
}

/// The name of a workspace, and a directory as it is stored in the session's record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChosenWorkspace {
    pub workspace: String,
    pub dir: String,
}

impl Workspaces {
    pub fn new(named: BTreeMap<String, PathBuf>, host: &str) -> Self {
        Self {
            named,
            local: format!("{LOCAL}{host}"),
            takes_paths: true,
            announces_local: true,
        }
    }

    /// Makes this node announce no workspace for the paths of its own machine. In a cluster, a
    /// request that names such a path is then passed on to another node. Otherwise it is refused.
    pub fn only_named(self) -> Self {
        Self {
            announces_local: false,
            ..self
        }
    }

    /// Makes this node refuse requests that name a path on its machine instead of a workspace.
    pub fn without_paths(self) -> Self {
        Self {
            takes_paths: false,
            ..self
        }
    }

    /// Returns the names of the workspaces that the node announces to its cluster.
    pub fn names(&self) -> Vec<String> {
        self.named
            .keys()
            .cloned()
            .chain(self.announces_local.then(|| self.local.clone()))
            .collect()
    }

    /// Returns the workspace of a request. That is the workspace that the request names, or
    /// `local:<host>` for an absolute path, or else the only named workspace of this node. A
    /// workspace that the request names may not exist on this node. Fails if the node accepts no
    /// paths and the request names one, or if there is no workspace to choose.
    pub fn meant(&self, workspace: Option<&str>, dir: Option<&str>) -> Result<String, Refusal> {
        let is_path = dir.is_some_and(|dir| Path::new(dir).is_absolute());
        match workspace {
            Some(name) if name.starts_with(LOCAL) && !self.takes_paths => Err(self.no_paths()),
            Some(name) => Ok(name.to_owned()),
            None if is_path && !self.takes_paths => Err(self.no_paths()),
            None if is_path => Ok(self.local.clone()),
            None => match self.named.keys().next() {
                Some(first) if self.named.len() == 1 => Ok(first.clone()),
                Some(_) | None if self.takes_paths => Err(Refusal::bad_request(format!(
                    "name a workspace ({}) or give `dir` as an absolute path",
                    self.names().join(", ")
                ))),
                Some(_) | None => Err(Refusal::bad_request(format!(
                    "name a workspace ({})",
                    self.shown()
                ))),
            },
        }
    }

    fn no_paths(&self) -> Refusal {
        Refusal::bad_request(format!(
            "this node works in its workspaces only ({}), not in absolute paths that come over NATS: name a `workspace`, and \
             `dir` relative to it (`planck run --workspace NAME --dir DIR`); or set `node.absolute_dirs = true` on the nodes",
            self.shown()
        ))
    }

    /// Returns the names of the workspaces for an error message.
    fn shown(&self) -> String {
        let names: Vec<&str> = self.named.keys().map(String::as_str).collect();
        if names.is_empty() {
            "it has none; `[workspaces]` of its configuration names some".into()
        } else {
            names.join(", ")
        }
    }

    /// Chooses the workspace of a request, and checks that its directory exists on this node.
    pub fn choose(
        &self,
        workspace: Option<&str>,
        dir: Option<&str>,
    ) -> Result<ChosenWorkspace, Refusal> {
        let workspace = self.meant(workspace, dir)?;
        if !self.names().contains(&workspace) {
            return Err(Refusal::not_found(self.unknown(&workspace)));
        }
        let dir = dir.unwrap_or_default();
        let place = self.place(&workspace, dir)?;
        if !place.dir.is_dir() {
            return Err(Refusal::bad_request(format!(
                "{} is no directory on this node",
                place.dir.display()
            )));
        }
        let resolved = resolved(&workspace, &place).ok_or_else(|| {
            Refusal::bad_request(format!(
                "`dir` {dir} leads out of workspace {workspace} through a link"
            ))
        })?;
        Ok(ChosenWorkspace {
            workspace,
            dir: resolved,
        })
    }

    /// Returns the path on this node of a directory in a workspace, and the root that tools must
    /// not leave. In `local:<host>`, that root is the directory itself.
    pub fn place(&self, workspace: &str, dir: &str) -> Result<WorkspaceDir, Refusal> {
        if workspace == self.local {
            let dir = PathBuf::from(dir);
            return match dir.is_absolute() {
                true => Ok(WorkspaceDir {
                    root: dir.clone(),
                    dir,
                }),
                false => Err(Refusal::bad_request(format!(
                    "`dir` in workspace {workspace} is an absolute path"
                ))),
            };
        }
        let Some(root) = self.named.get(workspace) else {
            return Err(Refusal::unavailable(self.unknown(workspace)));
        };
        if !stays_inside(Path::new(dir)) {
            return Err(Refusal::bad_request(format!(
                "`dir` {dir} leaves workspace {workspace}"
            )));
        }
        Ok(WorkspaceDir {
            dir: root.join(dir),
            root: root.clone(),
        })
    }

    fn unknown(&self, workspace: &str) -> String {
        format!(
            "no node has workspace `{}`; this one has {}",
            excerpt(workspace),
            self.names().join(", ")
        )
    }
}

/// Returns the folder above which nothing about a session is read: the root of a named workspace. A
/// path of the machine has none.
pub fn within<'a>(workspace: &str, root: &'a Path) -> Option<&'a Path> {
    (!workspace.starts_with(LOCAL)).then_some(root)
}

/// Returns the directory without links, which the session's record keeps. If a link takes the place
/// of the directory later, the node sees that the two differ. Returns `None` if the directory is
/// outside of its workspace.
fn resolved(workspace: &str, place: &WorkspaceDir) -> Option<String> {
    let dir = place.dir.canonicalize().ok()?;
    let below = match within(workspace, &place.root) {
        Some(root) => dir.strip_prefix(root.canonicalize().ok()?).ok()?,
        None => &dir,
    };
    Some(below.to_str()?.to_owned())
}

fn stays_inside(dir: &Path) -> bool {
    dir.components().all(|part| match part {
        Component::Normal(_) | Component::CurDir => true,
        Component::Prefix(_) | Component::RootDir | Component::ParentDir => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workspaces(names: &[&str]) -> Workspaces {
        let named = names
            .iter()
            .map(|name| ((*name).to_owned(), std::env::temp_dir()));
        Workspaces::new(named.collect(), "box")
    }

    #[test]
    fn a_request_means_a_named_workspace_or_an_absolute_path() {
        let temp = std::env::temp_dir().display().to_string();
        let chosen = |workspace: &str, dir: &str| ChosenWorkspace {
            workspace: workspace.into(),
            dir: dir.into(),
        };
        let one = workspaces(&["code"]);
        assert_eq!(one.choose(None, None), Ok(chosen("code", "")));
        assert_eq!(
            one.choose(None, Some(&temp)),
            Ok(chosen("local:box", &temp))
        );
        assert_eq!(one.choose(Some("code"), Some(".")), Ok(chosen("code", "")));
    }

    #[test]
    fn paths_are_refused_if_only_workspaces_are_allowed() {
        let one = workspaces(&["code"]).without_paths();
        assert_eq!(one.meant(None, None), Ok("code".into()));
        assert_eq!(one.meant(Some("code"), Some("src")), Ok("code".into()));
        for (workspace, dir) in [
            (None, Some("/")),
            (Some("local:box"), Some("/etc")),
            (Some("local:other"), None),
        ] {
            let refusal = one.meant(workspace, dir).unwrap_err();
            assert!(
                refusal.message.contains("workspaces only (code)")
                    && refusal.message.contains("--workspace"),
                "{refusal}"
            );
        }
        let place = one.choose(Some("code"), Some("/etc")).unwrap_err();
        assert!(place.message.contains("leaves workspace code"), "{place}");
        assert!(
            one.place("local:box", "/tmp").is_ok(),
            "a session of before goes on where it was"
        );
    }

    #[test]
    fn no_link_leads_a_session_out_of_its_workspace() {
        let top = tempfile::tempdir().unwrap();
        for folder in ["shared/project", "elsewhere"] {
            std::fs::create_dir_all(top.path().join(folder)).unwrap();
        }
        let shared = top.path().join("shared");
        for (link, target) in [("esc", "../elsewhere"), ("own", "project")] {
            std::os::unix::fs::symlink(target, shared.join(link)).unwrap();
        }
        let named = [("shared".to_owned(), shared)];
        let workspaces = Workspaces::new(named.into(), "box");
        let choose = |dir| workspaces.choose(Some("shared"), Some(dir));
        let refusal = choose("esc").unwrap_err();
        assert!(refusal.message.contains("through a link"), "{refusal}");
        assert!(choose("own").is_ok() && choose("project").is_ok() && choose("").is_ok());
    }

    #[test]
    fn a_refusal_names_the_reason() {
        let two = workspaces(&["a", "b"]);
        for (workspace, dir, said) in [
            (None, None, "name a workspace (a, b, local:box)"),
            (Some("c"), None, "no node has workspace `c`"),
            (Some("a"), Some("../x"), "leaves workspace a"),
            (Some("a"), Some("/etc"), "leaves workspace a"),
            (Some("a"), Some("not-there"), "is no directory"),
            (Some("local:box"), Some("x"), "absolute path"),
        ] {
            let refusal = two.choose(workspace, dir).unwrap_err();
            assert!(refusal.message.contains(said), "{refusal}");
        }
    }
}
