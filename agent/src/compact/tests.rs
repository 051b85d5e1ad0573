use planck_common::{
    CallId,
    message::{MessageMetadata, MessageRole, Part, text_of},
};

use super::*;

const RULES: Rules = Rules {
    ratio: 0.8,
    keep_recent: 3,
};

/// Builds a context from letters: `u`ser, `a`ssistant, `c`all, `r`esult, `R` a huge result, `s`ummary.
fn context(letters: &str) -> Vec<Line> {
    let lines = letters.chars().enumerate().map(|(at, letter)| {
        let id = if letter == 's' { 1_000 } else { at as Seq + 1 };
        Line::new(id, Arc::new(body(letter)))
    });
    lines.collect()
}

fn body(letter: char) -> MessageBody {
    let call_id = CallId::parse("c").unwrap();
    let result = |text: String| Part::ToolResult {
        id: "c".into(),
        call_id: call_id.clone(),
        text,
        error: false,
    };
    let (role, custom, part) = match letter {
        'u' => (MessageRole::User, None, Part::text("please ".repeat(20))),
        'a' => (MessageRole::Assistant, None, Part::text("well ".repeat(20))),
        'c' => {
            let (id, call_id, name) = ("c".into(), call_id.clone(), "read".into());
            let args = serde_json::value::RawValue::from_string(r#"{"path":"a"}"#.into()).unwrap();
            (
                MessageRole::Assistant,
                None,
                Part::ToolCall {
                    id,
                    call_id,
                    name,
                    args,
                    invalid: None,
                    signature: None,
                },
            )
        }
        'r' => (MessageRole::ToolResult, None, result("found ".repeat(20))),
        'R' => (
            MessageRole::ToolResult,
            None,
            result("found ".repeat(10_000)),
        ),
        's' => (
            MessageRole::Custom,
            Some(Custom::Summary),
            Part::text("earlier"),
        ),
        other => panic!("{other}"),
    };
    MessageBody {
        role,
        custom,
        content: vec![part],
        metadata: MessageMetadata::default(),
    }
}

fn material(letters: &str) -> Material {
    let lines = context(letters);
    let tokens = lines.iter().map(|line| line.tokens).sum();
    let cut = Cut::find(&lines, &RULES, 4_000).unwrap();
    Material {
        lines,
        fixed: 0,
        tokens,
        context_window: 5_000,
        cut,
    }
}

#[test]
fn cut_keeps_latest_messages_and_calls_with_their_results() {
    let cases = [
        ("uauauaua", Some((5, None))),
        ("ucrcrcru", Some((5, None))),
        ("ucrcrcr", Some((3, None))),
        ("uau", None),
        ("cru", None),
        ("suau", None),
        ("suaua", Some((2, None))),
        ("ucR", Some((0, Some(8_000)))),
        ("sucR", Some((1, Some(8_000)))),
        ("uauaucR", Some((4, Some(8_000)))),
        ("", None),
    ];
    for (letters, expected) in cases {
        let cut = Cut::find(&context(letters), &RULES, 4_000).map(|cut| (cut.at, cut.results));
        assert_eq!(cut, expected, "{letters}");
    }
}

#[test]
fn answer_is_used_only_if_it_is_sound() {
    let material = material("ucrcrcrua");
    let cases = [
        ("  ", 7, Err(SummaryFault::Empty)),
        ("short", 99, Err(SummaryFault::UnknownMessage(99))),
        ("short", 1, Err(SummaryFault::UnknownMessage(1))),
        ("short", 5, Err(SummaryFault::Splits(5))),
        (
            &"long ".repeat(10_000),
            6,
            Err(SummaryFault::NotSmaller {
                before: 207,
                after: 12_597,
            }),
        ),
        ("short", 6, Ok(())),
        ("short", 4, Ok(())),
    ];
    for (summary, keep_from, expected) in cases {
        let checked = material.check(summary, keep_from).map(|_| ());
        match (checked, expected) {
            (Err(SummaryFault::NotSmaller { .. }), Err(SummaryFault::NotSmaller { .. })) => {}
            (checked, expected) => assert_eq!(checked, expected, "{keep_from}"),
        }
    }
}

#[test]
fn latest_input_is_quoted_if_the_cut_removes_it() {
    let text = |letters| {
        let material = material(letters);
        text_of(
            &material
                .check("so far", material.keep_from())
                .unwrap()
                .content,
        )
    };
    assert!(text("ucrcrcrcr").ends_with("please "));
    assert_eq!(text("uauauaua"), "so far");
}

#[test]
fn quote_is_kept_by_the_next_summary() {
    let mut material = material("scrcrcrcr");
    let mut summary = (*material.lines[0].body).clone();
    summary.content.push(Part::text("latest: please"));
    material.lines[0].body = Arc::new(summary);
    let content = material
        .check("so far", material.keep_from())
        .unwrap()
        .content;
    assert_eq!(text_of(&content), "so farlatest: please");
}

#[test]
fn request_to_the_summariser_is_bounded() {
    let material = material("uaucRcRcRcRcRcRcrcr");
    let request = material.request();
    assert!(
        request.user.chars().count() < 10_500,
        "{}",
        request.user.chars().count()
    );
    insta::assert_snapshot!(super::written(&material.lines[3]), @r#"
    <message from="agent">
    calls read with {"path":"a"}
    </message>
    "#);
}

#[test]
fn results_are_shortened_in_the_middle() {
    let shorter = shorten(&body('R'), 2_000).unwrap();
    let Part::ToolResult { text, .. } = &shorter.content[0] else {
        panic!()
    };
    assert!(
        text.starts_with("found ")
            && text.ends_with("found ")
            && text.contains("58000 characters cut"),
        "{text}"
    );
    assert!(shorten(&shorter, 2_100).is_none());
}
