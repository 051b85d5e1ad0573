//! Requests of every kind in every wire format, checked against the types of the vendors' own SDKs,
//! which share no code with this project.

use std::path::Path;

use anyhow::{Context as _, Result};
use planck_common::{
    InputId,
    command::{Accepted, AgentStateNow, AgentVerb, SessionVerb, Started},
};
use planck_scripted_model::{Pace, Reply, Script, ScriptedCall, ScriptedPart, When};
use planck_tests::{
    caller::{agent_at, session_at},
    eventually::eventually,
    judges::Judges,
    node::Node,
    recorder::Recorder,
    world::{Backend, World},
};
use serde_json::{Value, json};

/// A grey pixel.
const PNG: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGN4DgAA6gDphpkEXgAAAABJRU5ErkJggg==";
/// The first bytes of a PDF.
const PDF: &str = "JVBERi0xLjQK";
/// The environment for servers that need a key.
const KEY: &[(&str, &str)] = &[("KEY", "key-0123456789")];
const SUMMARY: &str = "They spoke of numbers.";
/// The context window in tokens, so small that a few answers fill it.
const WINDOW: &str = "6000";

/// A wire format, and how a session is configured to use it.
struct Wire {
    name: &'static str,
    provider: &'static str,
    /// A model that thinks.
    model: &'static str,
    /// Whether the format holds a call's arguments as text, which can be invalid JSON.
    has_text_arguments: bool,
    /// Other models, each with options of a member that change its requests.
    others: &'static [(&'static str, &'static str)],
}

const SAMPLED: &str =
    r#"{"temperature": 0.5, "top_p": 0.9, "stop": ["END"], "max_output_tokens": 500, "seed": 7}"#;
const SHORT: &str = r#"{"max_output_tokens": 500}"#;
const CLAUDE_SAMPLED: &str = r#"{"stop": ["END"], "max_output_tokens": 500, "cache": "1h"}"#;
const GEMINI_SAMPLED: &str =
    r#"{"temperature": 0.5, "stop": ["END"], "thinking_budget": 0, "seed": 7}"#;
const THOUGHTFUL: &str = r#"{"thinking_budget": 4096}"#;
/// The thinking options that Planck sends to Anthropic by default. They are set explicitly because
/// the address here is not Anthropic's.
const BOUND: &str = r#"{"thinking": {"type": "adaptive", "display": "omitted", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}}"#;

const WIRES: &[Wire] = &[
    Wire {
        name: "anthropic",
        provider: "anthropic",
        model: "claude-sonnet-5-5",
        has_text_arguments: true,
        others: &[
            ("claude-opus-4-5", THOUGHTFUL),
            ("claude-opus-4-5", CLAUDE_SAMPLED),
            ("claude-haiku-5-5", BOUND),
        ],
    },
    Wire {
        name: "openai",
        provider: "openai",
        model: "gpt-5",
        has_text_arguments: true,
        others: &[("gpt-4.1", SAMPLED), ("gpt-5-mini", THOUGHTFUL)],
    },
    Wire {
        name: "chat",
        provider: "scripted",
        model: "test",
        has_text_arguments: true,
        others: &[("other", SAMPLED)],
    },
    Wire {
        name: "responses",
        provider: "answering",
        model: "gpt-6-sol",
        has_text_arguments: true,
        others: &[("gpt-6-luna", SHORT), ("gpt-6.1-sol", THOUGHTFUL)],
    },
    Wire {
        name: "google",
        provider: "google",
        model: "gemini-2.5-pro",
        has_text_arguments: false,
        others: &[
            ("gemini-3.5-flash", THOUGHTFUL),
            ("gemini-2.5-flash", GEMINI_SAMPLED),
        ],
    },
    Wire {
        name: "ollama",
        provider: "ollama",
        model: "llava",
        has_text_arguments: false,
        others: &[("qwen3", SAMPLED), ("qwen3", THOUGHTFUL)],
    },
];

fn script(wire: &Wire) -> Script {
    let read = |path: &str| ScriptedPart::Call(ScriptedCall::new("read", json!({ "path": path })));
    let broken = ScriptedCall::new("read", json!({ "path": 3 }));
    let broken = if wire.has_text_arguments {
        broken.raw("{\"path\": ")
    } else {
        broken
    };
    let parallel = Reply::new()
        .think("Which files?")
        .say("Let me look.")
        .part(read("a.txt"))
        .part(read("b.txt"));
    let wrong = Reply::new()
        .think("Again.")
        .part(ScriptedPart::Call(broken))
        .and_call("raed", json!({}))
        .part(read("../secret"));
    let slow = Reply::new()
        .think("Long.")
        .say("word ".repeat(400))
        .pace(Pace::per_second(50.0).chunk(10));
    let sleep = |mark: &str| {
        Reply::call(
            "bash",
            json!({ "command": format!("touch {mark}; sleep 100") }),
        )
    };
    let script = Script::new()
        .rule(When::any().system("summar"), SUMMARY)
        .rounds(
            When::any().user("use tools"),
            [
                parallel,
                wrong,
                Reply::call("read", json!({ "path": "a.txt" })),
                "Done.".into(),
            ],
        )
        .rule(When::any().user("count"), Reply::text("blah ".repeat(300)))
        .rule(When::any().user("talk"), slow)
        .rule(When::any().user("sleep"), sleep("sleeping"))
        .rounds(
            When::any().user("crash"),
            [sleep("crashing"), "I see.".into()],
        )
        .always(Reply::new().think("Hm.").say("Well."));
    if wire.name == "openai" {
        without_thoughts(script)
    } else {
        script
    }
}

/// Removes the thinking from a script, because OpenAI's own chat completions never show any.
fn without_thoughts(mut script: Script) -> Script {
    for reply in script.rules.iter_mut().flat_map(|rule| &mut rule.replies) {
        reply
            .parts
            .retain(|part| !matches!(part, ScriptedPart::Thinking(_)));
    }
    script
}

/// One session that uses every feature that affects the requests to the model.
struct Scene {
    world: World,
    node: Node,
    recorder: Recorder,
    session: Started,
}

impl Scene {
    async fn start(wire: &Wire) -> Result<Self> {
        let world = World::start(Backend::Sqlite, script(wire)).await?;
        std::fs::write(world.dir().join("a.txt"), "alpha")?;
        configure(&world, wire)?;
        let (node, recorder) = (world.node_with(KEY).await?, world.record().await?);
        let session = begin(
            &world,
            wire.provider,
            wire.model,
            &json!({ "thinking_budget": 1024 }),
        )
        .await?;
        Ok(Self {
            world,
            node,
            recorder,
            session,
        })
    }

    async fn prompt(&self, content: &Value) -> Result<InputId> {
        let to = session_at(&self.session.session_id, SessionVerb::Prompt);
        let accepted: Accepted = self
            .world
            .caller
            .ask(&to, &json!({ "content": content }))
            .await?;
        Ok(accepted.prompt_id)
    }

    async fn say(&self, content: &Value) -> Result<()> {
        let input = self.prompt(content).await?;
        self.recorder.answered(&input).await.map(drop)
    }

    async fn file(&self, name: &str) -> Result<()> {
        let path = self.world.dir().join(name);
        eventually(&format!("there is a file {name}"), async || {
            path.exists().then_some(())
        })
        .await
    }

    /// Waits until the running answer has some words.
    async fn speaks(&self) -> Result<()> {
        eventually("the agent speaks", async || {
            let running = self
                .world
                .caller
                .snapshot(&self.session.orchestrator)
                .await
                .ok()?
                .running?;
            running
                .parts
                .iter()
                .any(|part| part.text.contains("word word"))
                .then_some(())
        })
        .await
    }

    async fn abort(&self, input: &InputId) -> Result<()> {
        let to = agent_at(&self.session.orchestrator, AgentVerb::Abort);
        let _: AgentStateNow = self
            .world
            .caller
            .ask(&to, &json!({ "reason": "enough" }))
            .await?;
        self.recorder.answered(input).await.map(drop)
    }

    async fn is_interrupted(&self) -> Result<()> {
        let talking = self.prompt(&text("talk")).await?;
        self.speaks().await?;
        self.abort(&talking).await?;
        self.say(&text("after words")).await?;
        let sleeping = self.prompt(&text("sleep")).await?;
        self.file("sleeping").await?;
        self.abort(&sleeping).await?;
        self.say(&text("after a tool")).await
    }

    async fn is_killed(&mut self) -> Result<()> {
        let crashing = self.prompt(&text("crash")).await?;
        self.file("crashing").await?;
        self.node.kill().await?;
        self.node = self.world.node_with(KEY).await?;
        self.recorder.answered(&crashing).await?;
        self.say(&text("after the kill")).await
    }

    async fn is_summarised(&self) -> Result<()> {
        for number in 0..16 {
            self.say(&text(&format!("count {number}"))).await?;
        }
        Ok(())
    }
}

fn text(text: &str) -> Value {
    json!([{ "type": "text", "text": text }])
}

fn attachments() -> Value {
    json!([
        { "type": "text", "text": "What are these?" },
        { "type": "image", "mime": "image/png", "data": PNG },
        { "type": "image", "mime": "image/png", "url": "https://example.com/dot.png" },
        { "type": "file", "mime": "application/pdf", "name": "a.pdf", "data": PDF },
        { "type": "file", "mime": "text/plain", "name": "b.txt", "data": "YWxwaGE=" },
        { "type": "file", "mime": "application/zip", "name": "c.zip", "data": "UEsDBA==" },
    ])
}

/// Configures every provider to use the world's model, and gives the wire's model a small context
/// window.
fn configure(world: &World, wire: &Wire) -> Result<()> {
    let (url, openai) = (world.model.url(), world.model.openai_url());
    let keyed = |name: &str, url: &str| {
        format!("[providers.{name}]\nbase_url = \"{url}\"\napi_key = \"env:KEY\"\n")
    };
    let answering = keyed("answering", &openai) + "wire = \"responses\"\n";
    let others = [
        keyed("anthropic", &url),
        keyed("openai", &openai),
        keyed("google", &url),
        keyed("ollama", &url),
    ]
    .concat();
    let config = others + &answering;
    let Wire {
        provider, model, ..
    } = wire;
    let facts =
        format!("provider = \"{provider}\"\ncontext_window = {WINDOW}\nmax_output = 2000\n");
    let entries = format!("[models.entries.\"{model}\"]\n{facts}");
    let folder = world.folder().join(".planck");
    std::fs::create_dir_all(&folder)?;
    let compaction = "[compaction]\nkeep_recent = 3\n";
    Ok(std::fs::write(
        folder.join("config.toml"),
        format!("{config}{entries}{compaction}"),
    )?)
}

async fn begin(world: &World, provider: &str, model: &str, opts: &Value) -> Result<Started> {
    let tools = ["read", "write", "bash"];
    let member = json!({ "type": "agent", "provider": provider, "model_id": model, "tools": tools, "opts": opts });
    world
        .caller
        .start(&json!({ "dir": world.dir(), "members": [member] }))
        .await
}

/// Runs the whole session with one wire format, and returns what the checker prints about its
/// requests.
async fn judged(judges: &Judges, wire: &Wire) -> Result<String> {
    let mut scene = Scene::start(wire).await?;
    scene.say(&text("plain")).await?;
    scene.say(&text("use tools")).await?;
    scene.say(&attachments()).await?;
    scene.is_interrupted().await?;
    scene.is_killed().await?;
    scene.is_summarised().await?;
    for (model, opts) in wire.others {
        scene.session = begin(
            &scene.world,
            wire.provider,
            model,
            &serde_json::from_str(opts)?,
        )
        .await?;
        scene.say(&text("use tools")).await?;
        scene.say(&attachments()).await?;
    }
    let requests = scene.world.model.requests();
    let sent: Vec<String> = requests
        .iter()
        .map(|request| request.body.to_string())
        .collect();
    for mark in [
        "Which files?",
        PNG,
        "after words",
        "after a tool",
        "it may or may not have taken effect",
        "raed",
        SUMMARY,
    ] {
        // Thoughts without a signature, as Gemini and chat completions stream them, are not sent
        // back.
        let has_none = mark == "Which files?" && ["google", "openai"].contains(&wire.name);
        let is_sent = sent.iter().any(|body| body.contains(mark));
        assert!(
            is_sent != has_none,
            "{}: `{mark}` in a request: {is_sent}",
            wire.name
        );
    }
    let verdict = judges.judge(wire.name, &requests, &scene.world.folder().join("captured"))?;
    scene.world.check_model()?;
    scene.node.leave().await?;
    Ok(verdict)
}

async fn strangers_accept(name: &str) -> Result<()> {
    let Some(judges) = Judges::find() else {
        return Ok(());
    };
    let wire = WIRES
        .iter()
        .find(|wire| wire.name == name)
        .context("no such wire")?;
    let verdict = judged(&judges, wire).await?;
    let judged = verdict
        .lines()
        .find_map(|line| line.strip_prefix(&format!("judged {name}: ")));
    let judged: usize = judged.context("nothing was judged")?.parse()?;
    assert!(judged > 30, "{verdict}");
    Ok(())
}

macro_rules! over {
    ($($wire:ident)+) => {
        $(#[tokio::test(flavor = "multi_thread")]
        #[ignore = "needs the vendors' SDKs: make test-all"]
        async fn $wire() -> Result<()> {
            strangers_accept(stringify!($wire)).await
        })+
    };
}

mod strangers_accept_what_is_sent_over {
    use super::*;
    over! { anthropic openai chat responses google ollama }
}

#[test]
#[ignore = "needs the vendors' SDKs: make test-all"]
fn judges_find_each_known_fault_and_no_other() -> Result<()> {
    let Some(judges) = Judges::find() else {
        return Ok(());
    };
    let said = judges.test(&Path::new(env!("CARGO_MANIFEST_DIR")).join("judges/wrong.jsonl"))?;
    assert!(said.contains("self-test: 59 bodies"), "{said}");
    Ok(())
}
