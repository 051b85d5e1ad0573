mod deviations;

use planck_common::message::{Custom, MediaSource, MessageRole, Part};
use serde_json::{Value, json};

use crate::{
    WireKind,
    testing::{TestEndpoint, call, head, message, result, user},
};

fn openai() -> TestEndpoint {
    TestEndpoint::by("openai")
}

fn llama_cpp() -> TestEndpoint {
    TestEndpoint::by("llama_cpp")
}

#[test]
fn recorded_streams_match_their_snapshots() {
    openai().check_streams("openai");
}

#[test]
fn a_whole_request() {
    let thinking = Part::Thinking {
        text: "hm".into(),
        signature: None,
        redacted: false,
    };
    let mut summary = user("so far");
    (summary.role, summary.custom) = (MessageRole::Custom, Some(Custom::Summary));
    let mut note = user("not for the model");
    (note.role, note.custom) = (MessageRole::Custom, Some(Custom::Other("note".into())));
    let messages = [
        summary,
        note,
        user("go"),
        message(
            MessageRole::Assistant,
            vec![
                thinking,
                call("t1", "read", json!({"path": "a"})),
                call("t2", "list", json!({})),
            ],
        ),
        message(
            MessageRole::ToolResult,
            vec![
                result("t1", "text", false),
                result("t2", "no such folder", true),
            ],
        ),
        message(MessageRole::Assistant, vec![Part::text("")]),
        message(
            MessageRole::Assistant,
            vec![Part::text("done"), Part::text(".")],
        ),
        user(""),
    ];
    let opts = json!({"temperature": 0.5, "stop": "X", "seed": 3, "max_output_tokens": 99});
    insta::assert_json_snapshot!(
        "openai_request",
        openai().request(head("gpt-5", opts.clone()), &messages)
    );
    insta::assert_json_snapshot!(
        "llama_cpp_request",
        llama_cpp().request(head("gpt-5", opts), &messages)
    );
}

#[test]
fn the_output_limit_has_the_name_that_the_server_knows() {
    let of = |preset: &str, model: &str| {
        let request = TestEndpoint::by(preset)
            .request(head(model, json!({"max_output_tokens": 7})), &[user("go")]);
        let limits = ["max_tokens", "max_completion_tokens"]
            .into_iter()
            .filter(|name| request.get(name).is_some());
        limits.collect::<Vec<_>>().join(" ")
    };
    for (preset, model, name) in [
        ("openai", "gpt-5", "max_completion_tokens"),
        ("openai", "o4-mini", "max_completion_tokens"),
        ("openai", "openai/gpt-4.1", "max_completion_tokens"),
        ("openai", "gpt-oss-120b", "max_tokens"),
        ("openai", "olmo-3", "max_tokens"),
        ("azure", "our-deployment", "max_completion_tokens"),
        ("mistral", "gpt-5", "max_tokens"),
        ("llama_cpp", "gpt-5", "max_tokens"),
    ] {
        assert_eq!(of(preset, model), name, "{preset} {model}");
    }
    assert_eq!(
        openai()
            .request(head("gpt-5", json!({})), &[user("go")])
            .get("max_completion_tokens"),
        None
    );
}

#[test]
fn attachments() {
    let data = |data: &str| MediaSource::Data(data.into());
    let parts = vec![
        Part::text("see"),
        Part::Image {
            mime: "image/png".into(),
            source: data("AAAA"),
        },
        Part::Image {
            mime: "image/png".into(),
            source: MediaSource::Url("https://x/y.png".into()),
        },
        Part::File {
            mime: "application/pdf".into(),
            name: Some("p.pdf".into()),
            source: data("AAAA"),
        },
        Part::File {
            mime: "text/plain".into(),
            name: Some("n.txt".into()),
            source: data("aGk="),
        },
        Part::File {
            mime: "application/pdf".into(),
            name: None,
            source: MediaSource::Url("https://x/y.pdf".into()),
        },
    ];
    insta::assert_json_snapshot!(
        "openai_attachments",
        openai().request(
            head("gpt-5", json!({})),
            &[message(MessageRole::User, parts)]
        )["messages"][1]
    );
}

#[test]
fn a_base_url_leads_to_the_address_of_the_api() {
    for (preset, base, expected) in [
        (
            "openai",
            "https://api.openai.com/v1",
            "https://api.openai.com/v1/chat/completions",
        ),
        (
            "openai",
            "http://127.0.0.1:8080",
            "http://127.0.0.1:8080/v1/chat/completions",
        ),
        (
            "openai",
            "https://x/api/v3?team=a",
            "https://x/api/v3/chat/completions?team=a",
        ),
        (
            "azure",
            "https://r.openai.azure.com",
            "https://r.openai.azure.com/openai/v1/chat/completions",
        ),
        (
            "azure",
            "https://r.openai.azure.com/openai/v1/",
            "https://r.openai.azure.com/openai/v1/chat/completions",
        ),
        (
            "azure",
            "https://r.openai.azure.com?api-version=2025-04-01-preview",
            "https://r.openai.azure.com/openai/deployments/a%2Fb/chat/completions?api-version=2025-04-01-preview",
        ),
        (
            "azure",
            "https://r.openai.azure.com/openai/deployments/gpt?api-version=1",
            "https://r.openai.azure.com/openai/deployments/gpt/chat/completions?api-version=1",
        ),
    ] {
        let TestEndpoint { wire, target, .. } = TestEndpoint::by(preset);
        assert_eq!(
            wire.url(&base.parse().unwrap(), "a/b", &target).as_str(),
            expected
        );
    }
}

#[test]
fn thinking_is_requested_in_the_form_of_the_server() {
    let asked = |preset: &str, budget: u64| {
        TestEndpoint::by(preset)
            .request(head("m", json!({"thinking_budget": budget})), &[user("go")])
    };
    assert_eq!(asked("openai", 1)["reasoning_effort"], "low");
    assert_eq!(asked("openai", 8_000)["reasoning_effort"], "medium");
    assert_eq!(asked("openai", 20_000)["reasoning_effort"], "high");
    assert_eq!(
        asked("llama_cpp", 0)["chat_template_kwargs"]["enable_thinking"],
        Value::Bool(false)
    );
    assert_eq!(
        asked("openrouter", 900)["reasoning"],
        json!({"max_tokens": 900})
    );
    assert_eq!(
        asked("deepseek", 900)["thinking"],
        json!({"type": "enabled"})
    );
}

fn think(text: &str, signature: Option<&str>) -> Part {
    Part::Thinking {
        text: text.into(),
        signature: signature.map(str::to_owned),
        redacted: false,
    }
}

#[test]
fn reasoning_goes_back_in_its_form_to_its_own_endpoint() {
    let details = r#"deepseek:[{"type":"reasoning.text","text":"hm"}]"#;
    let said = |spoken: TestEndpoint, thinking: Part| {
        let messages = [
            user("go"),
            message(MessageRole::Assistant, vec![thinking, Part::text("Hi")]),
        ];
        let mut said = spoken.request(head("m", json!({})), &messages)["messages"][2].clone();
        said.as_object_mut()
            .unwrap()
            .retain(|name, _| name != "role");
        said
    };
    let deepseek = || TestEndpoint::by("deepseek");
    for (signature, expected) in [
        (
            Some("deepseek:reasoning_content"),
            json!({"content": "Hi", "reasoning_content": "hm"}),
        ),
        (
            Some("deepseek:reasoning"),
            json!({"content": "Hi", "reasoning": "hm"}),
        ),
        (
            Some(details),
            json!({"content": "Hi", "reasoning_details": [{"type": "reasoning.text", "text": "hm"}]}),
        ),
        (
            Some("deepseek:list"),
            json!({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "Hi"}]}),
        ),
        (Some("other:reasoning_content"), json!({"content": "Hi"})),
        (Some("anthropic:c2ln"), json!({"content": "Hi"})),
        (None, json!({"content": "Hi"})),
    ] {
        assert_eq!(
            said(deepseek(), think("hm", signature)),
            expected,
            "{signature:?}"
        );
    }
    assert_eq!(
        said(
            TestEndpoint::by("groq"),
            think("hm", Some("groq:reasoning"))
        ),
        json!({"content": "Hi"}),
        "it refuses it"
    );
}

#[test]
fn signatures_of_gemini_go_back_with_the_parts_they_sign() {
    let signed = |sealed: &str| {
        let Part::ToolCall {
            id,
            call_id,
            name,
            args,
            invalid,
            ..
        } = call("a", "read", json!({}))
        else {
            unreachable!()
        };
        Part::ToolCall {
            id,
            call_id,
            name,
            args,
            invalid,
            signature: Some(sealed.into()),
        }
    };
    let gateway = || TestEndpoint::new(WireKind::Chat, "gateway");
    let said = |part: Part| {
        gateway().request(
            head("m", json!({})),
            &[user("go"), message(MessageRole::Assistant, vec![part])],
        )
    };
    let extra = json!({"google": {"thought_signature": "c2ln"}});
    assert_eq!(
        said(signed("gateway:c2ln"))["messages"][2]["tool_calls"][0]["extra_content"],
        extra
    );
    assert_eq!(
        said(signed("google:c2ln"))["messages"][2]["tool_calls"][0].get("extra_content"),
        None
    );
    let text = Part::Text {
        text: "Hi".into(),
        signature: Some("gateway:c2ln".into()),
    };
    assert_eq!(said(text)["messages"][2]["extra_content"], extra);
}

#[test]
fn messages_are_in_an_order_that_every_template_accepts() {
    let calls = || message(MessageRole::Assistant, vec![call("a", "read", json!({}))]);
    let results = || message(MessageRole::ToolResult, vec![result("a", "text", false)]);
    let messages = [
        user("go"),
        calls(),
        results(),
        user("stop"),
        user("and now?"),
        message(MessageRole::Assistant, vec![Part::text("Hm")]),
    ];
    let requests = TestEndpoint::by("mistral").requests(head("m", json!({})), &messages);
    let said = |request: &Value| -> Vec<String> {
        let said = |message: &Value| {
            format!(
                "{}: {}",
                message["role"].as_str().unwrap(),
                message["content"]
            )
        };
        request["messages"]
            .as_array()
            .unwrap()
            .iter()
            .skip(1)
            .map(said)
            .collect()
    };
    assert_eq!(
        said(&requests[4]),
        [
            r#"user: "go""#,
            "assistant: null",
            r#"tool: "text""#,
            r#"assistant: "(interrupted by the user)""#,
            r#"user: "stop\n\nand now?""#,
        ]
    );
    assert_eq!(said(&requests[5]).last().unwrap(), r#"user: "(go on)""#);
    let picture = message(
        MessageRole::User,
        vec![Part::Image {
            mime: "image/png".into(),
            source: MediaSource::Data("AAAA".into()),
        }],
    );
    let joined = TestEndpoint::by("mistral")
        .request(head("m", json!({})), &[user("see"), picture, user("well?")]);
    let items = joined["messages"][1]["content"].as_array().unwrap();
    assert_eq!(
        items
            .iter()
            .map(|item| item["type"].as_str().unwrap())
            .collect::<Vec<_>>(),
        ["text", "image_url", "text"]
    );
}

#[test]
fn call_ids_are_unique_and_in_the_form_of_the_server() {
    let mut messages = vec![user("go")];
    for round in 0..3 {
        let mut call = call("functions.read:0", "read", json!({}));
        let mut answer = result("functions.read:0", "text", false);
        let number = planck_common::CallId::parse(&format!("c-{round}")).unwrap();
        if let (
            Part::ToolCall { call_id, .. },
            Part::ToolResult {
                call_id: answered, ..
            },
        ) = (&mut call, &mut answer)
        {
            (*call_id, *answered) = (number.clone(), number);
        }
        messages.extend([
            message(MessageRole::Assistant, vec![call]),
            message(MessageRole::ToolResult, vec![answer]),
        ]);
    }
    for preset in ["vllm", "openai", "mistral"] {
        let request = TestEndpoint::by(preset).request(head("m", json!({})), &messages);
        let all = request["messages"].as_array().unwrap();
        let calls: Vec<&str> = all
            .iter()
            .filter_map(|message| message["tool_calls"][0]["id"].as_str())
            .collect();
        let results: Vec<&str> = all
            .iter()
            .filter_map(|message| message["tool_call_id"].as_str())
            .collect();
        assert_eq!(calls, results, "{preset}");
        assert_eq!(
            calls.iter().collect::<std::collections::HashSet<_>>().len(),
            3,
            "{preset}: {calls:?}"
        );
        let nine = calls
            .iter()
            .all(|id| id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()));
        assert_eq!(nine, preset == "mistral", "{preset}: {calls:?}");
    }
}

#[test]
fn a_demanded_call_has_the_form_that_the_server_takes() {
    let choice = |endpoint: &TestEndpoint| {
        let mut encoder = endpoint.encoder(head("m", json!({})));
        encoder.push(&user("go"));
        let request: Value = serde_json::from_slice(&encoder.request(Some("read")).body).unwrap();
        request["tool_choice"].clone()
    };
    let named = json!({"type": "function", "function": {"name": "read"}});
    for (preset, expected) in [
        ("openai", named.clone()),
        ("vllm", named),
        ("llama_cpp", "required".into()),
        ("lm_studio", "required".into()),
        ("deepseek", Value::Null),
        ("moonshot", Value::Null),
        ("zai", Value::Null),
    ] {
        assert_eq!(choice(&TestEndpoint::by(preset)), expected, "{preset}");
    }
    for (preset, expected) in [
        ("openai", json!({"type": "function", "name": "read"})),
        ("llama_cpp", "required".into()),
    ] {
        let endpoint = TestEndpoint {
            wire: WireKind::Responses.wire(),
            ..TestEndpoint::by(preset)
        };
        assert_eq!(choice(&endpoint), expected, "{preset}");
    }
}
