//! Azure's addresses of OpenAI's chat completions: the current one below `/openai/v1`, and the
//! older ones that name a deployment.

use serde_json::{Value, json};

use super::{Heading, PreparedReply, Wire, openai};
use crate::{
    play::{FramePiece::Raw, FrameWriter},
    request::{ModelRequest, RefusalKind, WireRefusal},
    script::Auth,
};

const CURRENT: &str = "/openai/v1/chat/completions";

/// The prefix of deployments that do not exist.
const ABSENT: &str = "absent";

pub static WIRE: Wire = Wire {
    serves: |path| path == CURRENT || deployment(path).is_some(),
    authorise,
    read,
    refuse,
    write,
    error_event: openai::error_event,
    content_type: "text/event-stream",
    call_id: openai::call_id,
};

/// Returns the deployment that an older address names, or `None` for any other path.
fn deployment(path: &str) -> Option<&str> {
    let name = path
        .strip_prefix("/openai/deployments/")?
        .strip_suffix("/chat/completions")?;
    (!name.is_empty() && !name.contains('/')).then_some(name)
}

/// Checks the key, which Azure expects in the header `api-key`.
fn authorise(auth: &Auth, heading: &Heading<'_>) -> Result<(), WireRefusal> {
    let key = heading.header("api-key").filter(|key| !key.is_empty());
    let is_wrong = match auth {
        Auth::Off => false,
        Auth::Present => key.is_none(),
        Auth::Key(expected) => key != Some(expected),
    };
    match is_wrong {
        true => Err(WireRefusal::auth(
            401,
            "Access denied due to invalid subscription key or wrong API endpoint.",
        )),
        false => Ok(()),
    }
}

fn read(body: &Value, heading: &Heading<'_>) -> Result<ModelRequest, WireRefusal> {
    let version = heading
        .query
        .split('&')
        .find_map(|pair| pair.strip_prefix("api-version="));
    let named = deployment(heading.path);
    if named.is_some() && version.is_none_or(|version| !is_dated(version)) {
        return Err(WireRefusal {
            status: 404,
            kind: RefusalKind::NotFound,
            ..WireRefusal::invalid("Resource not found")
        });
    }
    if named.is_none() && version.is_some_and(|version| !matches!(version, "v1" | "preview")) {
        return Err(WireRefusal::invalid("API version not supported"));
    }
    let asked = openai::read(body)?;
    if named.unwrap_or(&asked.model).starts_with(ABSENT) {
        let message = "The API deployment for this resource does not exist. If you created the deployment within the last 5 \
                       minutes, please wait a moment and try again.";
        return Err(WireRefusal {
            status: 404,
            kind: RefusalKind::NotFound,
            ..WireRefusal::invalid(message)
        });
    }
    if body.get("max_tokens").is_some() {
        let message = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.";
        return Err(WireRefusal::at("max_tokens", message));
    }
    Ok(asked)
}

/// Returns whether a version is a date, optionally with the suffix `-preview`.
fn is_dated(version: &str) -> bool {
    let day = version.strip_suffix("-preview").unwrap_or(version);
    day.len() == 10
        && day.bytes().enumerate().all(|(at, byte)| {
            if matches!(at, 4 | 7) {
                byte == b'-'
            } else {
                byte.is_ascii_digit()
            }
        })
}

fn refuse(refusal: &WireRefusal) -> String {
    let code = match refusal.kind {
        RefusalKind::NotFound if refusal.message.starts_with("Resource") => "404",
        RefusalKind::NotFound => "DeploymentNotFound",
        RefusalKind::Auth => "401",
        RefusalKind::RateLimit => "429",
        RefusalKind::Invalid
        | RefusalKind::Order
        | RefusalKind::Overloaded
        | RefusalKind::Internal => {
            return openai::refuse(refusal);
        }
    };
    json!({"error": {"code": code, "message": refusal.message}}).to_string()
}

/// Writes a chunk without choices, which reports the results of the prompt filters, and then
/// OpenAI's chunks.
fn write(speech: &PreparedReply, out: &mut FrameWriter) {
    out.frame(&[Raw(
        "data: {\"choices\":[],\"created\":0,\"id\":\"\",\"model\":\"\",\"object\":\"\",\"prompt_filter_results\":[{\"prompt_index\":0,\
         \"content_filter_results\":{\"hate\":{\"filtered\":false,\"severity\":\"safe\"},\"jailbreak\":{\"filtered\":false,\
         \"detected\":false}}}]}\n\n",
    )]);
    openai::write(speech, out);
}
