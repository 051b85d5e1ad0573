//! Other clients that ask for answers in a shape, over a real connection. `tools/install` fetches them.

use tokio::process::Command;

use super::{
    judges::{node, play, python},
    *,
};

/// The scenes of a client, and the replies of the model in each of them. Of the answers, `right`
/// satisfies the schema and the client, `hot` only the schema, and `wrong` neither. `right:TOOL` is a
/// call of a tool of the client with such arguments.
type Scenes = &'static [(&'static str, &'static str)];

const PYDANTIC_AI: Scenes = &[
    ("native, chat", "right prose prose right"),
    ("repaired", "wrong right wrong right hot right"),
    ("never right", "wrong wrong wrong wrong wrong wrong"),
    ("with a tool", "right:station right"),
    ("native, responses", "right prose prose right"),
    ("repaired", "wrong right wrong right hot right"),
    ("never right", "wrong wrong wrong wrong wrong wrong"),
    ("with a tool", "right:station right"),
    ("tool, chat", "right:final_result prose right:final_result"),
    (
        "repaired",
        "wrong:final_result right:final_result hot:final_result right:final_result",
    ),
    ("prose", "prose right:final_result"),
    ("never right", "hot:final_result hot:final_result"),
    (
        "tool, responses",
        "right:final_result prose right:final_result",
    ),
    (
        "repaired",
        "wrong:final_result right:final_result hot:final_result right:final_result",
    ),
    ("prose", "prose right:final_result"),
    ("never right", "hot:final_result hot:final_result"),
    ("prompted, chat", "right wrong right wrong wrong"),
    ("prompted, responses", "right wrong right wrong wrong"),
    ("prompted, plain", "json"),
];

const INSTRUCTOR: Scenes = &[
    ("JSON schema", "right wrong right wrong wrong wrong right"),
    ("JSON", "right wrong right wrong wrong"),
    ("tools", "right:Weather wrong:Weather right:Weather"),
    ("repaired by the client", "hot:Weather right:Weather"),
    ("never right", "hot:Weather hot:Weather"),
    ("tools of responses", "right:Weather right right"),
];

const AI_SDK: Scenes = &[
    ("chat", "right prose right wrong right"),
    ("never right", "wrong wrong wrong wrong wrong wrong"),
    ("with a tool, and a list", "right:station right list"),
    ("responses", "right prose right wrong right"),
    ("never right", "wrong wrong wrong wrong wrong wrong"),
    ("with a tool, and a list", "right:station right list"),
    ("compatible", "right prose right wrong right"),
    ("never right", "wrong wrong wrong wrong wrong wrong"),
    ("with a tool, and a list", "right:station right list"),
    ("compatible without schemas", "right wrong"),
];

fn model(scenes: Scenes) -> ScriptedModel {
    let replies = scenes.iter().flat_map(|(_, replies)| replies.split(' '));
    // The AI SDK tries again if a stream fails within 50 ms, in which no model answers.
    let model = ScriptedModel::new().pace(Duration::from_millis(15));
    replies.fold(model, |model, reply| {
        let (reply, tool) = reply.split_once(':').unwrap_or((reply, "submit_output"));
        let right = || json!({"city": "Rome", "degrees": 21});
        let args = match reply {
            "prose" => return model.text("It is warm."),
            "json" => return model.text(right().to_string()),
            "right" => right(),
            "hot" => json!({"city": "Rome", "degrees": 99}),
            "list" => json!({"elements": [right()]}),
            _ => json!({"city": "Rome"}),
        };
        model.call(tool, args)
    })
}

/// Plays the scenes with a client, if it is there.
async fn gets_shapes(judge: Option<Command>, client: &str, scenes: Scenes) {
    if let Some(judge) = judge {
        play(judge, client, [model(scenes)]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Pydantic AI: make test-all"]
async fn pydantic_ai_gets_answers_in_its_shapes() {
    let judge = python("pydantic_ai", "shapes.py");
    gets_shapes(judge, "pydantic_ai", PYDANTIC_AI).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Instructor: make test-all"]
async fn instructor_gets_answers_in_its_shapes() {
    let judge = python("instructor", "shapes.py");
    gets_shapes(judge, "instructor", INSTRUCTOR).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the AI SDK: make test-all"]
async fn ai_sdk_gets_answers_in_its_shapes() {
    let judge = node(".tools/ui", "@ai-sdk/openai", "shapes.mjs");
    gets_shapes(judge, "ai_sdk", AI_SDK).await;
}
