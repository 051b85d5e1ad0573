use std::time::Duration;

use planck_common::subject::Prefix;
use planck_toolbox::spec;
use serde_json::json;

use super::*;
use crate::sidecar::discovery::DefaultTimeouts;

const SCHEMA: &str = r#"{"type":"object"}"#;

fn instance(sidecar: &str, id: &str, version: &str, tools: &[(&str, &str)]) -> SidecarInstance {
    let endpoints: Vec<_> = tools
        .iter()
        .map(|(name, description)| {
            let metadata =
                json!({"kind": "tool", "description": description, "parameters": SCHEMA});
            json!({"name": name, "subject": format!("tool.{sidecar}.{name}"), "metadata": metadata})
        })
        .collect();
    let info = json!({"name": sidecar, "id": id, "version": version, "metadata": {"planck": "1"}, "endpoints": endpoints});
    SidecarInstance::read(
        info.to_string().as_bytes(),
        &Prefix::default(),
        DefaultTimeouts::default(),
    )
    .unwrap()
}

fn one(id: &str) -> SidecarInstance {
    instance("calculator", id, "1.0.0", &[("add", "adds")])
}

fn counts(directory: &Directory) -> Vec<(String, u32)> {
    directory
        .rows()
        .into_iter()
        .map(|row| (row.name, row.instances))
        .collect()
}

#[test]
fn three_misses_or_a_goodbye_remove_an_instance() {
    let mut directory = Directory::default();
    directory.swept(vec![one("a"), one("b")]);
    assert_eq!(counts(&directory), [("calculator".into(), 2)]);
    for left in [2, 2, 1] {
        directory.swept(vec![one("a")]);
        assert_eq!(counts(&directory), [("calculator".into(), left)]);
    }
    let calculator = SidecarId::parse("calculator").unwrap();
    directory.left(&calculator, "a");
    assert_eq!(counts(&directory), []);
    directory.swept(vec![one("a")]);
    assert_eq!(
        counts(&directory),
        [],
        "it answers while it ends what runs, and takes no more calls"
    );
    directory.update(vec![one("c")]);
    assert_eq!(counts(&directory), [("calculator".into(), 1)]);
}

#[test]
fn only_allowed_sidecars_are_listed() {
    let mut directory = Directory::allowing(Some(vec!["other".into()]));
    directory.swept(vec![one("a"), instance("other", "b", "1.0.0", &[])]);
    assert_eq!(counts(&directory), [("other".into(), 1)]);
}

#[test]
fn the_newest_instance_describes_a_tool() {
    let mut directory = Directory::default();
    let old = instance("s", "z", "1.0.0", &[("add", "old"), ("gone", "old")]);
    directory.swept(vec![old, instance("s", "a", "1.1.0", &[("add", "new")])]);
    let offers = directory.offers().into_values().next().unwrap();
    let described: Vec<_> = offers
        .iter()
        .map(|offer| match &offer.kind {
            OfferKind::Tool(tool) => (offer.name.as_str(), tool.description.as_str()),
            OfferKind::Compactor => panic!(),
        })
        .collect();
    assert_eq!(described, [("add", "new"), ("gone", "old")]);
}

#[test]
fn broken_offers_are_ignored_and_reported() {
    let endpoint = |name: &str, subject: &str, metadata| json!({"name": name, "subject": subject, "metadata": metadata});
    let whole = |extra: (&str, &str)| {
        let mut metadata = json!({"kind": "tool", "description": "d", "parameters": SCHEMA});
        metadata[extra.0] = extra.1.into();
        metadata
    };
    let within = r#"{"type":"object","properties":{"x":{"type":"array","items":{"type":"object","properties":{},"required":["y"]}}}}"#;
    let large = format!(
        r#"{{"type":"object","description":"{}"}}"#,
        "x".repeat(1 << 16)
    );
    let doubling = (0..20).map(|at| {
        let next = json!({ "$ref": format!("#/$defs/{}", at + 1) });
        (at.to_string(), json!({ "anyOf": [next.clone(), next] }))
    });
    let mut doubling: serde_json::Map<_, _> = doubling.collect();
    doubling.insert("20".into(), json!({"type": "integer"}));
    let doubling = json!({"type": "object", "$ref": "#/$defs/0", "$defs": doubling}).to_string();
    let info = json!({"name": "s", "id": "a", "version": "1.0.0", "metadata": {"planck": "1"}, "endpoints": [
        endpoint("a", "tool.s.a", whole(("kind", "tol"))),
        endpoint("b", "tool.other.b", whole(("kind", "tool"))),
        endpoint("c", "tool.s.c", whole(("parameters", "{"))),
        endpoint("d", "tool.s.d", whole(("effect", "harmless"))),
        endpoint("e", "tool.s.e", whole(("timeout_ms", "soon"))),
        endpoint("f", "tool.s.f", whole(("description", " "))),
        endpoint("g", "compact.s.g", json!({"kind": "compactor", "timeout_ms": "5"})),
        endpoint("h", "tool.s.h", json!(null)),
        endpoint("i", "tool.s.i", whole(("effect", "pure"))),
        endpoint("j", "tool.s.j", whole(("parameters", r#"{"type":"object","required":["x"]}"#))),
        endpoint("k", "tool.s.k", whole(("parameters", within))),
        endpoint("l", "tool.s.l", whole(("parameters", &large))),
        endpoint("m", "tool.s.m", whole(("parameters", &doubling))),
    ]});
    let read = |prefix: &str| {
        SidecarInstance::read(
            info.to_string().as_bytes(),
            &Prefix::parse(prefix).unwrap(),
            DefaultTimeouts::default(),
        )
    };
    let instance = read("").unwrap();
    assert_eq!(
        instance
            .offers
            .iter()
            .map(|offer| offer.name.as_str())
            .collect::<Vec<_>>(),
        ["g", "i"]
    );
    insta::assert_snapshot!(instance.faults.join("\n"), @r#"
    sidecar `s`: `a` is left out: its `kind` is `tol`, not `tool` or `compactor`
    sidecar `s`: `b` is left out: its subject is `tool.other.b`, not `tool.s.<name>`
    sidecar `s`: `c` is left out: its `parameters` are wrong: not JSON: EOF while parsing an object at line 1 column 1
    sidecar `s`: `d` is left out: its `effect` is `harmless`, not `pure`, `idempotent` or `mutating`
    sidecar `s`: `e` is left out: its `timeout_ms` is `soon`, not a number of milliseconds
    sidecar `s`: `f` is left out: it has no `description`
    sidecar `s`: `h` is left out: its `kind` is ``, not `tool` or `compactor`
    sidecar `s`: `j` is left out: its `parameters` require `x`, which is none of their `properties`; describe it there, or take it out of `required`
    sidecar `s`: `k` is left out: its `parameters` require `y`, which is none of their `properties`; describe it there, or take it out of `required`
    sidecar `s`: `l` is left out: its `parameters` are wrong: it has 65570 bytes, over the limit of 65536; describe less
    sidecar `s`: `m` is left out: its `parameters` are wrong: it has more than 10000 parts once each `$ref` is replaced by what it names; refer to fewer parts, or less often
    "#);
    assert!(read("eu").is_none(), "it is another cluster's");
}

#[test]
fn versions_are_compared_number_by_number() {
    let ascending = [
        "dev",
        "v2",
        "1.9.0",
        "1.10.0-rc.1",
        "1.10.0",
        "1.10.1",
        "2.0.0",
    ];
    for pair in ascending.windows(2) {
        assert_eq!(
            compare_versions(pair[0], pair[1]),
            Ordering::Less,
            "{pair:?}"
        );
    }
    let mut directory = Directory::default();
    directory.swept(vec![
        instance("calculator", "a", "1.9.0", &[("add", "the old one")]),
        instance("calculator", "b", "1.10.0", &[("add", "the new one")]),
    ]);
    let offers = directory.offers();
    let offer = &offers[&SidecarId::parse("calculator").unwrap()][0];
    assert!(
        matches!(&offer.kind, OfferKind::Tool(tool) if tool.description == "the new one"),
        "{offer:?}"
    );
    assert_eq!(directory.rows()[0].version, "1.10.0");
}

#[test]
fn effect_of_a_tool_gets_no_weaker() {
    let described = |id: &str, version: &str, effect: &str| {
        let metadata =
            json!({"kind": "tool", "description": "adds", "parameters": SCHEMA, "effect": effect});
        let endpoint = json!({"name": "add", "subject": "tool.s.add", "metadata": metadata});
        let info = json!({"name": "s", "id": id, "version": version, "metadata": {"planck": "1"}, "endpoints": [endpoint]});
        let (prefix, patience) = Default::default();
        SidecarInstance::read(info.to_string().as_bytes(), &prefix, patience).unwrap()
    };
    let effect = |directory: &Directory| {
        let offers = directory.offers().into_values().next().unwrap();
        match &offers.first().unwrap().kind {
            OfferKind::Tool(tool) => tool.effect,
            OfferKind::Compactor => panic!(),
        }
    };
    let mut directory = Directory::default();
    directory.update(vec![described("a", "1.0.0", "pure")]);
    assert_eq!(effect(&directory), ToolEffect::Pure);
    directory.update(vec![described("b", "0.9.0", "mutating")]);
    assert_eq!(
        effect(&directory),
        ToolEffect::Mutating,
        "of an older version"
    );
    directory.left(&SidecarId::parse("s").unwrap(), "b");
    assert_eq!(effect(&directory), ToolEffect::Mutating, "it is remembered");
    let faults: Vec<_> = directory.faults().collect();
    assert!(
        faults
            .iter()
            .any(|fault| fault.contains("counts as `mutating`")),
        "{faults:?}"
    );
}

fn offer(name: &str) -> SidecarOffer {
    let tool = spec(
        name,
        "does it",
        Default::default(),
        &serde_json::json!({"type": "object"}),
    );
    SidecarOffer {
        name: name.into(),
        subject: String::new(),
        timeout: Duration::from_secs(1),
        kind: OfferKind::Tool(tool),
    }
}

fn names(offers: &[(&str, &[&str])]) -> (Vec<(String, Vec<String>)>, usize) {
    let offers = offers.iter().map(|(sidecar, tools)| {
        (
            SidecarId::parse(sidecar).unwrap(),
            tools.iter().map(|tool| offer(tool)).collect(),
        )
    });
    let assigned = assign_names(&offers.collect(), |name| name == "read");
    let shown = |tools: Vec<NamedTool>| tools.into_iter().map(|tool| tool.name).collect();
    (
        assigned
            .tools
            .into_iter()
            .map(|(name, tools)| (name, shown(tools)))
            .collect(),
        assigned.warnings.len(),
    )
}

fn same(names: &[(&str, &[&str])]) -> Vec<(String, Vec<String>)> {
    names
        .iter()
        .map(|(name, tools)| {
            (
                (*name).into(),
                tools.iter().map(|tool| (*tool).into()).collect(),
            )
        })
        .collect()
}

#[test]
fn a_unique_name_is_available_next_to_the_qualified_one() {
    assert_eq!(
        names(&[("a", &["add"])]),
        (
            same(&[
                ("a__*", &["a__add"]),
                ("a__add", &["a__add"]),
                ("add", &["add"])
            ]),
            0
        )
    );
}

#[test]
fn a_shared_name_stands_for_all_its_tools() {
    let expected = same(&[
        ("a__*", &["a__add"]),
        ("a__add", &["a__add"]),
        ("add", &["a__add", "b__add"]),
        ("b__*", &["b__add"]),
        ("b__add", &["b__add"]),
    ]);
    assert_eq!(names(&[("a", &["add"]), ("b", &["add"])]), (expected, 1));
}

#[test]
fn a_tool_of_the_node_keeps_its_name() {
    assert_eq!(
        names(&[("a", &["read"])]),
        (
            same(&[("a__*", &["a__read"]), ("a__read", &["a__read"])]),
            1
        )
    );
}

#[test]
fn a_name_too_long_to_be_qualified_is_available_unqualified_only() {
    let long = "x".repeat(60);
    assert_eq!(
        names(&[("abcd", &[&long])]),
        (same(&[(&long, &[&long])]), 0)
    );
}
