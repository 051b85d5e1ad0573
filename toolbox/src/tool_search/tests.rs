use serde_json::json;

use super::*;
use crate::{
    testing::{World, toolbox},
    tool_search::rank,
};

fn tool(name: &str, sidecar: Option<&str>, description: &str, parameters: &Value) -> ToolSpec {
    ToolSpec {
        sidecar: sidecar.map(Into::into),
        is_searched: true,
        ..spec(name, description, ToolEffect::Mutating, parameters)
    }
}

/// Returns tools as servers of the MCP project describe them.
fn tools() -> Vec<ToolSpec> {
    let none = json!({"type": "object"});
    let of = |properties: Value| json!({"type": "object", "properties": properties});
    let issue = of(json!({
        "owner": {"type": "string", "description": "Repository owner"},
        "title": {"type": "string", "description": "Issue title"},
    }));
    vec![
        tool(
            "create_issue",
            Some("github"),
            "Create a new issue in a repository",
            &issue,
        ),
        tool(
            "list_issues",
            Some("github"),
            "List the issues of a repository",
            &issue,
        ),
        tool(
            "get_file_contents",
            Some("github"),
            "Get the contents of a file in a repository",
            &none,
        ),
        tool(
            "mergePullRequest",
            Some("github"),
            "Merge a pull request in a repository",
            &none,
        ),
        tool(
            "browser_click",
            Some("playwright"),
            "Perform click on a web page",
            &of(json!({
                "options": {"type": "object", "properties": {"doubleClick": {"type": "boolean"}}},
            })),
        ),
        tool(
            "weather",
            None,
            "Says what the weather is at a place",
            &of(json!({
                "place": {"type": "string", "description": "A town, such as Oslo"},
            })),
        ),
    ]
}

fn found(query: &str) -> Vec<String> {
    let tools = tools();
    let ranked = rank(query, &tools.iter().collect::<Vec<_>>());
    ranked.into_iter().map(|tool| tool.name.clone()).collect()
}

#[test]
fn the_best_tool_is_the_first() {
    for (query, best) in [
        ("create an issue", "create_issue"),
        ("LIST issues", "list_issues"),
        ("open issues in a repository", "list_issues"),
        ("merge pull requests", "mergePullRequest"),
        ("mergePullRequest", "mergePullRequest"),
        ("merge_pull_request", "mergePullRequest"),
        ("file", "get_file_contents"),
        ("read files of a repository", "get_file_contents"),
        ("double click", "browser_click"),
        ("playwright", "browser_click"),
        ("oslo", "weather"),
        ("towns", "weather"),
    ] {
        let found = found(query);
        assert_eq!(
            found.first().map(String::as_str),
            Some(best),
            "{query}: {found:?}"
        );
    }
}

#[test]
fn a_rare_word_counts_more_than_a_common_one() {
    // Four of the six tools have "repository".
    let found = found("repository click");
    assert_eq!(
        found.first().map(String::as_str),
        Some("browser_click"),
        "{found:?}"
    );
    assert_eq!(found.len(), 5, "{found:?}");
}

#[test]
fn an_exact_name_wins_over_tools_with_more_of_the_words() {
    let none = json!({"type": "object"});
    let tools = [
        tool("search", None, "Does it", &none),
        tool(
            "search_everything",
            None,
            "Search: search the search of a search",
            &none,
        ),
    ];
    let ranked = rank("search", &tools.iter().collect::<Vec<_>>());
    assert_eq!(ranked[0].name, "search");
}

#[test]
fn nothing_is_found_without_a_common_word() {
    for query in ["xyzzy", "", "?!", "cr", "—"] {
        assert_eq!(found(query), Vec::<String>::new(), "{query}");
    }
}

#[test]
fn words_end_at_signs_and_humps() {
    for (text, wanted) in [
        (
            "get_file-contents.v2",
            vec!["get", "file", "contents", "v2"],
        ),
        ("mergePullRequest", vec!["merge", "pull", "request"]),
        ("The URLs of IDs", vec!["the", "urls", "of", "ids"]),
        ("Größe über Æther", vec!["größe", "über", "æther"]),
        ("", vec![]),
    ] {
        assert_eq!(words(text), wanted);
    }
}

/// A tool with this specification.
struct Described(ToolSpec);

#[async_trait]
impl Tool for Described {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn run(&self, _: Invocation) -> ToolOutcome {
        ToolOutcome::ok("")
    }
}

fn entry(spec: ToolSpec) -> Arc<ToolEntry> {
    ToolEntry::new(Arc::new(Described(spec))).unwrap()
}

fn search() -> ToolSearch {
    ToolSearch::new(tools().into_iter().map(entry).collect())
}

#[tokio::test]
async fn a_result_is_small_and_says_what_was_found() {
    let world = World::new();
    let told = world
        .run(search(), json!({"query": "issue", "limit": 1}))
        .await;
    assert_eq!(
        told,
        r#"{"name":"create_issue","description":"Create a new issue in a repository"}"#
    );
    assert_eq!(
        world
            .run(search(), json!({"query": "repository click weather"}))
            .await
            .lines()
            .count(),
        5
    );
    let told = world
        .run(search(), json!({"query": "a", "limit": 21}))
        .await;
    assert!(
        told.starts_with("error:") && told.contains("limit"),
        "{told}"
    );
    let long = tool(
        "long",
        None,
        &"ä\n ".repeat(1_000),
        &json!({"type": "object"}),
    );
    let told = world
        .run(
            ToolSearch::new([entry(long)].into()),
            json!({"query": "long"}),
        )
        .await;
    assert_eq!(
        told.chars().count(),
        r#"{"name":"long","description":"…"}"#.chars().count() + SHOWN
    );
}

#[tokio::test]
async fn a_search_without_a_result_says_how_to_search_again() {
    let world = World::new();
    assert_eq!(
        world.run(search(), json!({"query": "xyzzy"})).await,
        "no tool has a word of \"xyzzy\"; search for other words, for example what the tool acts on, or for a sidecar; \
         the sidecars are `github` (4), `playwright` (1), none (1)"
    );
}

#[test]
fn the_description_names_a_bounded_number_of_sidecars() {
    let tools = (0..30).map(|at| {
        tool(
            &format!("t{at}"),
            Some(&format!("s{at}")),
            "Does it",
            &json!({"type": "object"}),
        )
    });
    let description = &ToolSearch::new(tools.map(entry).collect()).spec.description;
    let begin = "You have 30 more tools, which are not listed until you find them. Their sidecars are `s0` (1), ";
    assert!(description.contains(begin), "{description}");
    assert!(
        description.contains(", 10 others (10). Call"),
        "{description}"
    );
}

#[test]
fn only_a_toolbox_with_many_tools_is_searched() {
    let many = || {
        let own = toolbox(Described(spec(
            "own",
            "",
            ToolEffect::Pure,
            &json!({"type": "object"}),
        )));
        own.with(
            tools()
                .into_iter()
                .map(|spec| Arc::new(Described(spec)) as Arc<dyn Tool>),
        )
        .unwrap()
    };
    assert!(
        !many().with_search(7).has(TOOL_SEARCH),
        "seven tools are listed"
    );
    let searched = many().with_search(6);
    let names: Vec<&str> = searched.names().collect();
    assert_eq!((names.len(), searched.has(TOOL_SEARCH)), (8, true));
    let of_own = |name: &str| {
        let spec = spec(name, "", ToolEffect::Pure, &json!({"type": "object"}));
        Arc::new(Described(spec)) as Arc<dyn Tool>
    };
    let own = toolbox(Described(spec(
        "own",
        "",
        ToolEffect::Pure,
        &json!({"type": "object"}),
    )));
    let own = own.with([of_own("a"), of_own("b")]).unwrap();
    assert!(!own.with_search(0).has(TOOL_SEARCH), "no tool is searched");
}

#[test]
fn a_tool_with_the_name_of_the_search_is_replaced() {
    let other = tool(
        TOOL_SEARCH,
        Some("index"),
        "Searches an index",
        &json!({"type": "object"}),
    );
    let kept = toolbox(Described(other.clone()));
    assert_eq!(
        kept.with_search(1).specs()[0].sidecar.as_deref(),
        Some("index")
    );
    let more = toolbox(Described(other)).with(
        tools()
            .into_iter()
            .map(|spec| Arc::new(Described(spec)) as Arc<dyn Tool>),
    );
    let searched = more.unwrap().with_search(1);
    let spec = searched
        .specs()
        .iter()
        .find(|spec| spec.name == TOOL_SEARCH)
        .cloned();
    assert_eq!(
        spec.map(|spec| (spec.is_searched, spec.sidecar)),
        Some((false, None))
    );
}
