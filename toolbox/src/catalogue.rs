//! The catalogue of a node's tools by name: the built-in tools, those from files, those of
//! sidecars, and those with which agents work together. It builds the toolboxes of agents.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError, RwLock},
};

use planck_agent::search::TOOL_SEARCH;
use planck_common::similar::nearest;

use super::{Tool, schema::CompiledSchema, toolbox::Toolbox};

/// A tool with its compiled schema.
pub struct ToolEntry {
    pub(super) tool: Arc<dyn Tool>,
    pub(super) schema: Arc<CompiledSchema>,
}

impl ToolEntry {
    /// Creates the entry of a tool. Fails if its name or its schema is invalid.
    pub fn new(tool: Arc<dyn Tool>) -> Result<Arc<Self>, BadTool> {
        Self::with(tool, &mut KnownSchemas::new())
    }

    /// Like [`new`](Self::new), with the schemas that are compiled already.
    fn with(tool: Arc<dyn Tool>, known: &mut KnownSchemas) -> Result<Arc<Self>, BadTool> {
        let spec = tool.spec();
        if !planck_common::id::is_id(&spec.name) {
            return Err(BadTool::Name(spec.name.clone()));
        }
        let text = spec.parameters.get();
        let schema = match known.get(text) {
            Some(schema) => Arc::clone(schema),
            None => {
                let compiled = CompiledSchema::compile(text).map_err(|why| BadTool::Schema {
                    name: spec.name.clone(),
                    why,
                })?;
                let schema = Arc::new(compiled);
                known.insert(text.to_owned(), Arc::clone(&schema));
                schema
            }
        };
        Ok(Arc::new(Self { tool, schema }))
    }

    pub fn name(&self) -> &str {
        &self.tool.spec().name
    }
}

/// Compiled schemas by their text.
type KnownSchemas = HashMap<String, Arc<CompiledSchema>>;

/// The reason why a tool is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadTool {
    #[error("`{0}` cannot name a tool: expected 1 to 64 of A-Z a-z 0-9 _ -")]
    Name(String),
    #[error("tool `{name}`: the schema of its parameters is wrong: {why}")]
    Schema { name: String, why: String },
    #[error("there is a tool `{0}` already")]
    Taken(String),
}

/// The error for a name that belongs to no tool or skill.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no {kind} `{name}`{}", nearest.as_ref().map(|near| format!("; did you mean `{near}`?")).unwrap_or_default())]
pub struct Unknown {
    pub kind: &'static str,
    pub name: String,
    pub nearest: Option<String>,
}

impl Unknown {
    /// Creates the error. `there_are` lists the existing names. The most similar one becomes the
    /// suggestion if it is similar enough.
    pub fn of<'a>(
        kind: &'static str,
        name: &str,
        there_are: impl Iterator<Item = &'a str>,
    ) -> Self {
        Self {
            kind,
            name: name.into(),
            nearest: nearest(name, there_are).map(str::to_owned),
        }
    }
}

/// The maximum number of toolboxes that are cached.
const MOST_TOOLBOXES: usize = 256;

/// The catalogue of a node. Clones share the same tools.
#[derive(Clone, Default)]
pub struct ToolCatalogue(Arc<CatalogueInner>);

#[derive(Default)]
struct CatalogueInner {
    tools: RwLock<CataloguedTools>,
    /// The cached toolboxes. A key is the number of tools that are listed and the requested names,
    /// joined with spaces. Agents that request the same names share one toolbox. Changing the tools
    /// of the catalogue clears the cache.
    toolboxes: Mutex<HashMap<String, Toolbox>>,
}

#[derive(Default)]
struct CataloguedTools {
    /// The node's own tools.
    own: BTreeMap<String, Arc<ToolEntry>>,
    /// The tools of sidecars, by the names that team specs may use. If several tools share a name,
    /// the name selects all of them.
    offered: BTreeMap<String, Vec<Arc<ToolEntry>>>,
}

impl ToolCatalogue {
    /// Adds a tool of the node. Fails if the node already has a tool of that name, or if the name
    /// or the schema is invalid.
    pub fn add(&self, tool: Arc<dyn Tool>) -> Result<(), BadTool> {
        let entry = ToolEntry::new(tool)?;
        let is_other_search = entry.name() == TOOL_SEARCH && !entry.tool.spec().is_searched;
        if is_other_search {
            return Err(BadTool::Taken(TOOL_SEARCH.into()));
        }
        let mut tools = self.0.tools.write().unwrap_or_else(PoisonError::into_inner);
        self.toolboxes().clear();
        match tools.own.entry(entry.name().to_owned()) {
            std::collections::btree_map::Entry::Occupied(taken) => {
                Err(BadTool::Taken(taken.key().clone()))
            }
            std::collections::btree_map::Entry::Vacant(free) => {
                free.insert(entry);
                Ok(())
            }
        }
    }

    /// Removes a tool of the node and returns whether it existed. Toolboxes that agents already
    /// have keep the tool.
    pub fn remove(&self, name: &str) -> bool {
        let mut tools = self.0.tools.write().unwrap_or_else(PoisonError::into_inner);
        self.toolboxes().clear();
        tools.own.remove(name).is_some()
    }

    /// Replaces all tools of sidecars. Returns the reasons why tools were refused.
    pub fn offer(&self, offers: BTreeMap<String, Vec<Arc<dyn Tool>>>) -> Vec<BadTool> {
        let mut bad = Vec::new();
        // All tools are offered again when one has changed, and each has several names.
        let mut known = self.read().offered_schemas();
        let mut entry = |tool| {
            let entry = ToolEntry::with(tool, &mut known);
            entry.map_err(|why| bad.push(why)).ok()
        };
        let offered = offers
            .into_iter()
            .map(|(name, tools)| (name, tools.into_iter().filter_map(&mut entry).collect()))
            .collect();
        let mut tools = self.0.tools.write().unwrap_or_else(PoisonError::into_inner);
        self.toolboxes().clear();
        tools.offered = offered;
        bad
    }

    /// Returns whether the node itself has a tool of this name.
    pub fn is_own(&self, name: &str) -> bool {
        self.read().own.contains_key(canonical(name))
    }

    /// Returns the names of all tools: first the node's own, then those of sidecars.
    pub fn names(&self) -> Vec<String> {
        self.read().names().map(Into::into).collect()
    }

    pub fn contains(&self, name: &str) -> bool {
        !self.read().find(canonical(name)).is_empty()
    }

    /// Returns a toolbox of the tools with these names, from the cache if possible. If it has more
    /// than `listed` tools, it also has `tool_search` for those that do not come with the node. Also
    /// returns an error for each name that belongs to no tool.
    pub fn toolbox<'a>(
        &self,
        names: impl IntoIterator<Item = &'a str>,
        listed: usize,
    ) -> (Toolbox, Vec<Unknown>) {
        let names: Vec<&str> = names.into_iter().collect();
        let key = format!("{listed} {}", names.join(" "));
        // The read lock is held until the toolbox is in the cache. Otherwise a change of the tools
        // could clear the cache before the outdated toolbox is inserted.
        let tools = self.read();
        let mut toolboxes = self.toolboxes();
        if let Some(known) = toolboxes.get(&key) {
            return (known.clone(), Vec::new());
        }
        let (toolbox, unknown) = gather(&tools, &names);
        let toolbox = toolbox.with_search(listed);
        if unknown.is_empty() {
            if toolboxes.len() >= MOST_TOOLBOXES {
                toolboxes.clear();
            }
            toolboxes.insert(key, toolbox.clone());
        }
        (toolbox, unknown)
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, CataloguedTools> {
        self.0.tools.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn toolboxes(&self) -> std::sync::MutexGuard<'_, HashMap<String, Toolbox>> {
        self.0
            .toolboxes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl CataloguedTools {
    fn offered_schemas(&self) -> KnownSchemas {
        let offered = self.offered.values().flatten();
        let schema = |entry: &Arc<ToolEntry>| {
            let text = entry.tool.spec().parameters.get().to_owned();
            (text, Arc::clone(&entry.schema))
        };
        offered.map(schema).collect()
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.own
            .keys()
            .chain(self.offered.keys())
            .map(String::as_str)
    }

    fn find(&self, name: &str) -> &[Arc<ToolEntry>] {
        let own = self.own.get(name).map(std::slice::from_ref);
        own.or_else(|| self.offered.get(name).map(Vec::as_slice))
            .unwrap_or_default()
    }
}

fn gather(tools: &CataloguedTools, names: &[&str]) -> (Toolbox, Vec<Unknown>) {
    let (mut found, mut unknown) = (Vec::new(), Vec::new());
    for name in names {
        match tools.find(canonical(name)) {
            [] => unknown.push(Unknown::of("tool", name, tools.names())),
            entries => found.extend(entries.iter().cloned()),
        }
    }
    (Toolbox::of(found), unknown)
}

/// Returns the current name of a tool. Older templates use former names.
pub fn canonical(name: &str) -> &str {
    match name {
        "call_agent" => "ask_agent",
        "send_agent" => "delegate_task",
        "respond_agent" => "send_response",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{edit::EditFile, files::spec, read::ReadFile, testing::World, write::WriteFile};

    fn catalogue() -> ToolCatalogue {
        let files = World::new().files();
        let catalogue = ToolCatalogue::default();
        catalogue
            .add(Arc::new(WriteFile::new(files.clone())))
            .unwrap();
        catalogue
            .add(Arc::new(ReadFile::new(files.clone())))
            .unwrap();
        catalogue.add(Arc::new(EditFile::new(files))).unwrap();
        catalogue
    }

    #[test]
    fn a_toolbox_has_the_tools_of_the_names() {
        let (toolbox, unknown) = catalogue().toolbox(["write", "raed", "edit", "write", "fly"], 40);
        assert_eq!(toolbox.names().collect::<Vec<_>>(), ["edit", "write"]);
        assert_eq!(
            toolbox
                .specs()
                .iter()
                .map(|spec| &*spec.name)
                .collect::<Vec<_>>(),
            ["edit", "write"]
        );
        let told: Vec<String> = unknown.iter().map(ToString::to_string).collect();
        assert_eq!(
            told,
            [
                "there is no tool `raed`; did you mean `read`?",
                "there is no tool `fly`"
            ]
        );
    }

    #[test]
    fn a_name_is_taken_once_and_free_after_removal() {
        let catalogue = catalogue();
        let again = || Arc::new(ReadFile::new(World::new().files()));
        assert_eq!(catalogue.add(again()), Err(BadTool::Taken("read".into())));
        let (toolbox, _) = catalogue.toolbox(["read"], 40);
        assert!(
            Arc::ptr_eq(&toolbox.specs(), &catalogue.toolbox(["read"], 40).0.specs()),
            "the same names share a toolbox"
        );
        assert!(catalogue.remove("read"));
        assert_eq!(
            catalogue.toolbox(["read"], 40).1.len(),
            1,
            "a tool that is gone is in no new toolbox"
        );
        assert!(!catalogue.contains("read"));
        assert_eq!(
            toolbox.names().collect::<Vec<_>>(),
            ["read"],
            "a toolbox keeps what it has"
        );
        assert_eq!(catalogue.add(again()), Ok(()));
    }

    #[test]
    fn a_schema_is_compiled_again_only_if_it_has_changed() {
        let catalogue = ToolCatalogue::default();
        let offered = || {
            let files = World::new().files();
            let tools: [Arc<dyn Tool>; 2] = [
                Arc::new(ReadFile::new(files.clone())),
                Arc::new(WriteFile::new(files)),
            ];
            tools
        };
        let offer = |named: [(&str, usize); 2]| {
            let tools = named.map(|(name, at)| (name.to_owned(), vec![offered()[at].clone()]));
            assert_eq!(catalogue.offer(tools.into()), []);
            let schema = |name: &str| catalogue.read().offered[name][0].schema.clone();
            named.map(|(name, _)| schema(name))
        };
        let [first, other_name] = offer([("a", 0), ("b", 0)]);
        assert!(Arc::ptr_eq(&first, &other_name));
        let [again, changed] = offer([("a", 0), ("b", 1)]);
        assert!(Arc::ptr_eq(&first, &again) && !Arc::ptr_eq(&first, &changed));
    }

    #[test]
    fn a_tool_of_the_agent_precedes_the_nodes() {
        struct Own(planck_agent::model::ToolSpec);
        #[async_trait::async_trait]
        impl Tool for Own {
            fn spec(&self) -> &planck_agent::model::ToolSpec {
                &self.0
            }
            async fn run(&self, _: crate::Invocation) -> crate::ToolOutcome {
                crate::ToolOutcome::ok("")
            }
        }
        let own = |name: &str, parameters| -> Arc<dyn Tool> {
            Arc::new(Own(spec(name, "own", Default::default(), &parameters)))
        };
        let (toolbox, _) = catalogue().toolbox(["read", "edit"], 40);
        let mixed = toolbox
            .with([own("read", json!({"type": "object"}))])
            .unwrap();
        assert_eq!(
            mixed
                .specs()
                .iter()
                .map(|spec| spec.description == "own")
                .collect::<Vec<_>>(),
            [false, true]
        );
        assert!(matches!(
            toolbox.with([own("a.b", json!({"type": "object"}))]),
            Err(BadTool::Name(_))
        ));
        assert!(matches!(
            toolbox.with([own("ab", json!({"type": "array"}))]),
            Err(BadTool::Schema { .. })
        ));
    }
}
