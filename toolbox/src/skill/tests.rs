use serde_json::json;

use super::*;
use crate::testing::World;

fn world() -> World {
    let world = World::new();
    world.write(
        "one/review/SKILL.md",
        "---\nname: review\ndescription: Reviews code.\n---\n\nRead it twice.\n",
    );
    world.write("one/review/resources/rubric.md", "");
    world.write("one/bad/SKILL.md", "---\nname: bad\n---\n");
    world.write("one/empty/notes.txt", "");
    world.write(
        "two/again/SKILL.md",
        "---\nname: review\ndescription: Another.\n---\n",
    );
    world.write(
        "two/plan/SKILL.md",
        "---\nname: plan\ndescription: Plans work.\n---\nThink first.\n",
    );
    world
}

fn plain(world: &World, text: &str) -> String {
    text.replace(
        &format!("{}/", world.at("").canonicalize().unwrap().display()),
        "/",
    )
}

#[test]
fn bad_skills_are_skipped_with_file_line_and_remedy() {
    let world = world();
    let (skills, problems) =
        Skills::load(&["one", "two", "none"].map(|dir| ProjectSource::named(&world.at(dir))));
    assert_eq!(skills.names().collect::<Vec<_>>(), ["plan", "review"]);
    assert_eq!(skills.find("review").unwrap().description, "Reviews code.");
    let told: Vec<String> = problems
        .iter()
        .map(|problem| plain(&world, &problem.to_string()))
        .collect();
    insta::assert_snapshot!(told.join("\n"), @r"
        /one/bad/SKILL.md, line 1: the header has no `description`; add `description: …`
        /one/empty holds no SKILL.md; add one, or move the folder out of the skills folder
        /two/again/SKILL.md: there is a skill `review` already, in /one/review/SKILL.md; rename one of them
        ");
}

#[test]
fn a_prompt_lists_the_skills() {
    let world = world();
    let (all, _) = Skills::load(&["one", "two"].map(|dir| ProjectSource::named(&world.at(dir))));
    let (skills, unknown) = all.only(["review", "plan", "reviw"]);
    let entries: Vec<String> = skills.iter().map(Skill::entry).collect();
    insta::assert_snapshot!(plain(&world, &entries.join("\n")), @r"
        - plan: Plans work.
          file: /two/plan/SKILL.md
        - review: Reviews code.
          file: /one/review/SKILL.md
          resources: /one/review/resources
        ");
    assert_eq!(
        unknown.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["there is no skill `reviw`; did you mean `review`?"]
    );
}

#[tokio::test]
async fn an_agent_loads_and_lists_its_own_skills() {
    let world = world();
    let (all, _) = Skills::load(&["one", "two"].map(|dir| ProjectSource::named(&world.at(dir))));
    let (skills, _) = all.only(["review"]);
    let [load, list] = tools(&skills);
    let run = async |tool: &Arc<dyn crate::Tool>, args| {
        let outcome = tool.run(world.call(&args)).await;
        if outcome.is_error() {
            format!("error: {}", plain(&world, &outcome.text))
        } else {
            plain(&world, &outcome.text)
        }
    };
    assert_eq!(
        run(&load, json!({"name": "review"})).await,
        "Read it twice.\n"
    );
    assert_eq!(
        run(&load, json!({"name": "plan"})).await,
        "error: there is no skill `plan`"
    );
    let listed: serde_json::Value = serde_json::from_str(&run(&list, json!({})).await).unwrap();
    let review = json!({
        "name": "review", "description": "Reviews code.",
        "file": "/one/review/SKILL.md", "resources": "/one/review/resources",
    });
    assert_eq!(listed, json!([review]));
    std::fs::remove_file(world.at("one/review/SKILL.md")).unwrap();
    assert!(run(&load, json!({"name": "review"})).await.starts_with(
        "error: cannot read skill `review` from /one/review/SKILL.md: entity not found"
    ));
}

#[test]
fn a_header_has_a_name_and_a_description() {
    let text =
        "---\nname: review\ndescription: >\n  Reviews\n  code.\nlicense: MIT\n---\n\nDo it.\n";
    assert_eq!(
        parse_header(text, None),
        Ok(Header {
            name: "review".into(),
            description: "Reviews code.".into()
        })
    );
    assert_eq!(body(text), "Do it.\n");
    assert_eq!(
        parse_header(&text.replace('\n', "\r\n"), None).map(|header| header.name),
        Ok("review".into())
    );
}

#[test]
fn a_mistake_is_reported_with_its_line() {
    let told = |text: &str| {
        let bad = parse_header(text, None).unwrap_err();
        format!("{}: {bad}", bad.line())
    };
    insta::assert_snapshot!(told("# Review\n"), @"1: the file does not begin with `---`; begin it with `---`, `name: …`, `description: …`, `---`");
    insta::assert_snapshot!(told("---\nname: review\n"), @"2: the header is not closed; end it with a line of `---`");
    insta::assert_snapshot!(told("---\nname: review\n---\n"), @"1: the header has no `description`; add `description: …`");
    insta::assert_snapshot!(told("---\ndescription: x\n---\n"), @"1: the header has no `name`; add `name: …`");
    insta::assert_snapshot!(told("---\ndescription: x\nname: code review\n---\n"), @"3: `code review` cannot name a skill; use 1 to 64 of A-Z a-z 0-9 _ -");
    insta::assert_snapshot!(told("---\nname: review\ndescription: a: b\n---\n"), @"3: the header cannot be read: mapping values are not allowed in this context; its values are texts, and one with a colon in it needs quotes");
    insta::assert_snapshot!(told("---\nname: [review]\ndescription: b\n---\n"), @"2: the header cannot be read: expected string scalar; its values are texts, and one with a colon in it needs quotes");
}
