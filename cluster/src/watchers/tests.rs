use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

fn nodes(count: usize) -> Vec<NodeId> {
    let id = |n| NodeId::parse(&format!("node-{n}")).unwrap();
    (0..count).map(id).collect()
}

/// Returns the peers that each of `nodes` watches.
fn sets(nodes: &[NodeId]) -> BTreeMap<&NodeId, BTreeSet<NodeId>> {
    let set = |me| {
        let watched = watched(me, nodes, nodes);
        (me, watched.into_iter().map(|(peer, _)| peer).collect())
    };
    nodes.iter().map(set).collect()
}

#[test]
fn in_a_small_cluster_all_watch_each_other() {
    for count in 1..=WATCHERS + 1 {
        let nodes = nodes(count);
        for (me, watched) in sets(&nodes) {
            let others: BTreeSet<_> = nodes.iter().filter(|node| *node != me).cloned().collect();
            assert_eq!(watched, others, "{me} of {count}");
        }
    }
}

#[test]
fn each_node_is_watched_by_a_bounded_number_and_all_agree_on_its_watchers() {
    let nodes = nodes(300);
    let mut watchers: BTreeMap<NodeId, BTreeSet<NodeId>> = BTreeMap::new();
    let mut most = 0;
    for me in &nodes {
        let watched = watched(me, &nodes, &nodes);
        most = most.max(watched.len());
        for (peer, all) in watched {
            let all: BTreeSet<_> = all.into_iter().collect();
            assert!(all.contains(me) && !all.contains(&peer), "{me} and {peer}");
            let known = watchers.entry(peer).or_insert_with(|| all.clone());
            assert_eq!(*known, all);
        }
    }
    assert_eq!(watchers.len(), nodes.len());
    assert!(watchers.values().all(|all| all.len() == WATCHERS));
    assert!(most <= 3 * WATCHERS, "one node watches {most}");
}

/// The ranks must not differ between the versions that form a cluster.
#[test]
fn ranks_are_those_of_every_version() {
    let nodes = nodes(12);
    let watched = watched(&nodes[0], &nodes, &nodes);
    let names: Vec<String> = watched.iter().map(|(peer, _)| peer.to_string()).collect();
    assert_eq!(names.join(" "), "node-3 node-6 node-8 node-9 node-10");
}

proptest! {
    #[test]
    fn change_of_one_node_moves_few_watches(count in 2_usize..60, changed in 0_usize..60) {
        let all = nodes(count);
        let changed = &all[changed % count];
        let rest: Vec<NodeId> = all.iter().filter(|node| *node != changed).cloned().collect();
        let (with, without) = (sets(&all), sets(&rest));
        for peer in &rest {
            let watchers = |sets: &BTreeMap<&NodeId, BTreeSet<NodeId>>| -> BTreeSet<NodeId> {
                let watch = |(_, set): &(&&NodeId, &BTreeSet<NodeId>)| set.contains(peer);
                sets.iter().filter(watch).map(|(me, _)| (*me).clone()).collect()
            };
            let (with, without) = (watchers(&with), watchers(&without));
            let lost: BTreeSet<_> = with.difference(&without).cloned().collect();
            prop_assert!(lost.is_empty() || lost == BTreeSet::from([changed.clone()]));
            prop_assert!(without.difference(&with).count() <= lost.len());
        }
    }

    #[test]
    fn fewer_watchers_never_drop_a_watch(count in 2_usize..60, silent in prop::collection::btree_set(0_usize..60, 0..30)) {
        let all = nodes(count);
        let me = &all[0];
        let rest: Vec<&NodeId> = all.iter().enumerate().filter(|(n, _)| !silent.contains(n)).map(|(_, node)| node).collect();
        let names = |watched: Vec<Watched>| watched.into_iter().map(|(peer, _)| peer).collect::<BTreeSet<_>>();
        let before = names(watched(me, &all, &all));
        let after = names(watched(me, rest.iter().copied(), &all));
        prop_assert!(after.is_superset(&before));
    }
}
