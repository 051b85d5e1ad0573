//! The decoders of what a server sends, for the fuzzer under `fuzz/`.

use std::collections::BTreeSet;

use planck_common::{id::is_id, wait::WaitDecision};
use planck_sidecar::ToolAnswer;
use rmcp::{
    RoleClient,
    model::{CallToolResult, ElicitRequestParams, InputRequiredResult, ListToolsResult},
    service::RxJsonRpcMessage,
};

use crate::{
    elicitation::{Asked, Form, Inputs},
    offer::{LONGEST_DESCRIPTION, MOST_BYTES, Offer},
    outcome,
    pins::PinnedTools,
    server::ToolRules,
};

/// Decodes the bytes as a message of a server, as its list of tools, as the result of a call, and as
/// the questions that it asks during a call.
///
/// # Panics
/// Panics if a decoder has a defect.
pub fn message(bytes: &[u8]) {
    let _message = serde_json::from_slice::<RxJsonRpcMessage<RoleClient>>(bytes);
    if let Ok(result) = serde_json::from_slice::<CallToolResult>(bytes) {
        let _said = outcome::said(result);
    }
    if let Ok(request) = serde_json::from_slice::<ElicitRequestParams>(bytes)
        && let Some(form) = Form::of(request)
    {
        answer(Asked::Held(form));
    }
    if let Ok(wanted) = serde_json::from_slice::<InputRequiredResult>(bytes) {
        let mut inputs = Inputs::of(wanted);
        while let Ok(Some(form)) = inputs.next_form(true) {
            let Some(Asked::Again(form, mut asked)) = answer(Asked::Again(form, inputs)) else {
                return;
            };
            asked.answered(&form.result(&yes(None)));
            inputs = asked;
        }
    }
    let Ok(list) = serde_json::from_slice::<ListToolsResult>(bytes) else {
        return;
    };
    let pinned = PinnedTools {
        version: String::new(),
        tools: list.tools.clone(),
    };
    let rules = ToolRules::default();
    let offer = Offer::of("1.0.0", list.tools.clone(), &rules, None);
    let again = Offer::of("1.0.0", list.tools, &rules, Some(&pinned));
    assert!(again.tools.len() <= offer.tools.len(), "a pin adds a tool");
    let names: BTreeSet<&str> = offer.tools.iter().map(|tool| &*tool.name).collect();
    assert_eq!(names.len(), offer.tools.len(), "two tools have one name");
    assert!(names.iter().all(|name| is_id(name)), "{names:?}");
    let described = offer.tools.iter().map(|tool| tool.description.len());
    // A hidden character takes more bytes when it is shown.
    assert!(described.sum::<usize>() <= 10 * MOST_BYTES.max(LONGEST_DESCRIPTION));
}

/// Asks a question, and returns what the answer says about it.
fn answer(asked: Asked) -> Option<Asked> {
    let question = asked.question();
    let asked = Asked::of(&yes(question.state));
    assert!(asked.is_ok(), "{asked:?}");
    asked.ok()
}

fn yes(state: Option<serde_json::Value>) -> ToolAnswer {
    ToolAnswer {
        decision: WaitDecision::Answer,
        value: Some("yes".into()),
        reason: None,
        state,
    }
}
