use planck_common::Timestamp;
use proptest::prelude::*;
use serde_json::json;

use super::*;

fn node(id: &str, agents: u32) -> NodeInfo {
    NodeInfo {
        id: NodeId::parse(id).unwrap(),
        name: id.into(),
        state: NodeState::Alive,
        version: String::new(),
        labels: Map::new(),
        capacity: 100,
        agents,
        running: 0,
        workspaces: vec!["code".into()],
        providers: vec!["openai".into()],
        started_at: Timestamp::now(),
        silent_ms: 0,
    }
}

fn wanted() -> NodeNeeds {
    NodeNeeds {
        workspace: "code".into(),
        provider: Some("openai".into()),
        labels: Map::new(),
        only: None,
    }
}

fn labels(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

/// Returns a generator of pseudorandom numbers, which are the same in each run.
fn dice(mut state: u64) -> impl FnMut(usize) -> usize {
    move |below| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap() % below
    }
}

#[test]
fn a_refusal_names_what_no_node_has() {
    let gpu = NodeInfo {
        labels: labels(json!({ "gpu": "true" })),
        ..node("gpu", 0)
    };
    let nodes = [node("plain", 3), gpu.clone()];
    let said = |nodes: &[NodeInfo], wanted: NodeNeeds| {
        choose(nodes, &wanted, dice(1)).unwrap_err().to_string()
    };
    assert_eq!(
        said(
            &nodes,
            NodeNeeds {
                workspace: "docs".into(),
                ..wanted()
            }
        ),
        "no node has workspace `docs`"
    );
    let google = NodeNeeds {
        provider: Some("google".into()),
        ..wanted()
    };
    assert_eq!(
        said(&nodes, google),
        "no node with workspace `code` has provider `google`"
    );
    let tpu = NodeNeeds {
        labels: labels(json!({ "tpu": true })),
        ..wanted()
    };
    assert_eq!(
        said(&nodes, tpu.clone()),
        r#"no node with labels {"tpu":true}"#
    );
    assert_eq!(
        said(
            &[NodeInfo {
                agents: 100,
                ..node("a", 0)
            }],
            wanted()
        ),
        "all nodes that fit are full"
    );
    let leaving = NodeInfo {
        state: NodeState::Draining,
        ..node("a", 0)
    };
    assert_eq!(
        said(&[leaving], wanted()),
        "all nodes that fit are leaving or have lost NATS"
    );
    let near = NodeNeeds {
        only: Some(node("plain", 0).id),
        ..tpu
    };
    assert_eq!(
        said(&nodes, near),
        r#"the orchestrator's node cannot host it: no node with labels {"tpu":true}"#
    );
    let wants_gpu = NodeNeeds {
        labels: labels(json!({ "gpu": true })),
        ..wanted()
    };
    let chosen = choose(&nodes, &wants_gpu, dice(1)).unwrap();
    assert_eq!(chosen.id, gpu.id);
    assert!(choose(&[], &wanted(), dice(1)).is_err());
}

#[test]
fn near_is_that_node_however_loaded() {
    let nodes = [node("a", 99), node("b", 0), node("c", 0)];
    let near = NodeNeeds {
        only: Some(node("a", 0).id),
        ..wanted()
    };
    assert_eq!(choose(&nodes, &near, dice(3)).unwrap().id, node("a", 0).id);
}

#[test]
fn many_placements_are_in_balance() {
    for count in [2, 3, 10, 50] {
        let mut nodes: Vec<NodeInfo> = (0..count)
            .map(|n| NodeInfo {
                capacity: 10_000,
                ..node(&format!("n{n}"), 0)
            })
            .collect();
        let mut random = dice(count);
        for _ in 0..count * 100 {
            let chosen = choose(&nodes, &wanted(), &mut random).unwrap().id.clone();
            nodes
                .iter_mut()
                .find(|node| node.id == chosen)
                .unwrap()
                .agents += 1;
        }
        let agents = nodes.iter().map(|node| node.agents);
        let (most, least) = (agents.clone().max().unwrap(), agents.min().unwrap());
        assert!(
            most - least <= 10,
            "{count} nodes: from {least} to {most} instead of 100 each"
        );
    }
}

#[test]
fn a_larger_node_takes_more() {
    let mut nodes = [
        node("small", 0),
        NodeInfo {
            capacity: 300,
            ..node("large", 0)
        },
    ];
    let mut random = dice(5);
    for _ in 0..200 {
        let chosen = choose(&nodes, &wanted(), &mut random).unwrap().id.clone();
        nodes
            .iter_mut()
            .find(|node| node.id == chosen)
            .unwrap()
            .agents += 1;
    }
    assert!(
        (145..=155).contains(&nodes[1].agents),
        "{}",
        nodes[1].agents
    );
}

fn any_node() -> impl Strategy<Value = NodeInfo> {
    let (some, few) = (0..3_u8, 0..4_u32);
    (
        some.clone(),
        some.clone(),
        some,
        few.clone(),
        few,
        any::<bool>(),
    )
        .prop_map(
            |(label, workspace, provider, capacity, agents, takes)| NodeInfo {
                id: NodeId::mint(),
                state: if takes {
                    NodeState::Suspect
                } else {
                    NodeState::Suspended
                },
                labels: labels(json!({ "zone": label })),
                workspaces: vec![format!("w{workspace}")],
                providers: vec![format!("p{provider}")],
                capacity,
                ..node("any", agents)
            },
        )
}

proptest! {
    #[test]
    fn never_an_unfit_node_and_never_none_while_one_fits(nodes in prop::collection::vec(any_node(), 0..12), seed: u64) {
        let wanted = NodeNeeds {
            workspace: "w1".into(),
            provider: Some("p1".into()),
            labels: labels(json!({ "zone": "1" })),
            only: None,
        };
        let fits = |node: &NodeInfo| {
            node.workspaces == ["w1"] && node.providers == ["p1"] && node.labels["zone"] == 1 && node.state == NodeState::Suspect && node.agents < node.capacity
        };
        match choose(&nodes, &wanted, dice(seed)) {
            Ok(chosen) => prop_assert!(fits(chosen)),
            Err(_) => prop_assert!(!nodes.iter().any(fits)),
        }
    }
}
