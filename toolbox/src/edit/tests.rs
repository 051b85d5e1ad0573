use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::{
    Runner,
    testing::{World, toolbox},
};

async fn edit(world: &World, old: &str, new: &str) -> String {
    world
        .run(
            EditFile::new(world.files()),
            json!({"path": "f", "old_string": old, "new_string": new}),
        )
        .await
}

#[tokio::test]
async fn exactly_one_place_is_replaced() {
    let world = World::new();
    for (before, old, new, after) in [
        ("one two three", "two", "2", "one 2 three"),
        ("one", "one", "", ""),
        ("a\nb\n", "a\nb", "c", "c\n"),
        ("é è", "è", "e", "é e"),
    ] {
        world.write("ws/f", before);
        assert_eq!(edit(&world, old, new).await, "edited f");
        assert_eq!(world.text("ws/f"), after);
    }
}

#[tokio::test]
async fn another_number_of_matches_is_an_error_and_changes_nothing() {
    let world = World::new();
    for (content, old, new, told) in [
        (
            "one",
            "two",
            "2",
            "error: cannot edit f: old_string was not found",
        ),
        (
            "a\r\nb",
            "a\nb",
            "c",
            "error: cannot edit f: old_string was not found; the file's lines end with \\r\\n",
        ),
        (
            "xx",
            "x",
            "y",
            "error: cannot edit f: old_string was found 2 times; give more of what is around it",
        ),
        (
            "aaa",
            "aa",
            "b",
            "error: cannot edit f: old_string was found 2 times; give more of what is around it",
        ),
        (
            "one",
            "one",
            "one",
            "error: cannot edit f: old_string and new_string are the same",
        ),
    ] {
        world.write("ws/f", content);
        assert_eq!(edit(&world, old, new).await, told);
        assert_eq!(world.text("ws/f"), content);
    }
    assert_eq!(
        edit(&world, "", "y").await.lines().next(),
        Some("error: `edit` was not run, its arguments do not fit:")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn edits_of_one_file_in_one_round_are_serialised() {
    let world = World::new();
    let words: Vec<String> = (0..40).map(|n| format!("<{n}>")).collect();
    world.write("ws/f", words.concat());
    let (runner, toolbox) = (Runner::default(), toolbox(EditFile::new(world.files())));
    let edits = words.iter().map(|word| {
        let call = world.call(&json!({"path": "f", "old_string": word, "new_string": "."}));
        let (runner, toolbox) = (runner.clone(), toolbox.clone());
        tokio::spawn(async move { runner.run(&toolbox, "edit", call).await })
    });
    for edit in futures_util::future::join_all(edits).await {
        assert!(!edit.unwrap().is_error());
    }
    assert_eq!(world.text("ws/f"), ".".repeat(40));
    assert_eq!(Arc::strong_count(&toolbox.specs()), 2);
}
