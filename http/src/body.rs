//! Reads what a request carries: its JSON body, the arguments in its address, and the ids in its
//! path. All bounds are here.

use std::{collections::BTreeMap, time::Duration};

use axum::{
    body::Body,
    extract::{
        FromRequest, FromRequestParts, MatchedPath, Path, Query, Request, rejection::QueryRejection,
    },
    http::{HeaderMap, StatusCode, Uri, header, request::Parts},
};
use bytes::Bytes;
use planck_common::{id::is_id, json_text, similar::nearest};
use schemars::JsonSchema;
use serde::de::{DeserializeOwned, IgnoredAny};

use super::{openapi, problem::Problem};

/// The maximum size of a body in bytes.
pub const BODY: usize = 8 << 20;
/// How long a client may take to send a body.
const PATIENCE: Duration = Duration::from_secs(60);

/// How similar an unknown field of a [`WireBody`] is to a known one if it is meant to be that one.
const MISSPELT: f64 = 0.95;

/// Names that routes use for the same field. Each pair is an unknown name in a body, and the name that
/// the error suggests if the route has it.
const TWINS: [(&str, &str); 2] = [("prompt", "text"), ("text", "prompt")];

/// The JSON object in the body of a command. An empty body counts as `{}`. Unknown fields are refused,
/// because without its misspelt field a command does something else.
pub struct JsonBody<T>(pub T);

impl<T: DeserializeOwned + JsonSchema, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        read_json(request, 0.0).await.map(Self)
    }
}

/// The JSON object in a body that another project's client has written. Its unknown fields have no
/// meaning here, but a field with nearly the name of a known one is refused.
pub struct WireBody<T>(pub T);

impl<T: DeserializeOwned + JsonSchema, S: Send + Sync> FromRequest<S> for WireBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        read_json(request, MISSPELT).await.map(Self)
    }
}

/// Reads the body of a request. Refuses unknown fields that are at least as similar to a known one as
/// `similar` says, from 0 to 1.
async fn read_json<T: DeserializeOwned + JsonSchema>(
    request: Request,
    similar: f64,
) -> Result<T, Problem> {
    let (parts, body) = request.into_parts();
    let bytes = read(body).await?;
    if !bytes.is_empty() {
        require_json(&parts.headers)?;
    }
    let read = parse(&bytes)?;
    check_fields(&bytes, &openapi::fields(&T::schema_name()), similar)?;
    Ok(read)
}

fn check_fields(bytes: &[u8], known: &[&str], similar: f64) -> Result<(), Problem> {
    let fields: BTreeMap<String, IgnoredAny> = serde_json::from_slice(bytes).unwrap_or_default();
    let unknown = fields.keys().filter(|name| !known.contains(&name.as_str()));
    for name in unknown {
        let is_refused = |known: &&str| strsim::jaro_winkler(known, name) >= similar;
        if !known.iter().any(is_refused) {
            continue;
        }
        let twin = TWINS
            .iter()
            .find(|(elsewhere, here)| elsewhere == name && known.contains(here));
        let meant = twin
            .map(|(_, here)| *here)
            .or_else(|| nearest(name, known.iter().copied()));
        let name: String = name.chars().take(80).collect();
        let way_out = match meant {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => format!("known are {}", known.join(", ")),
        };
        return Err(Problem::bad_request(format!(
            "the body has the unknown field `{name}`; {way_out}"
        )));
    }
    Ok(())
}

/// Refuses a body that does not say that it is JSON. A page of another site can send such a body
/// only after the browser has asked the front, which refuses.
pub fn require_json(headers: &HeaderMap) -> Result<(), Problem> {
    let kind = headers.get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if kind.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    Err(Problem::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        format!("the body is `{kind}`; send `Content-Type: application/json`"),
    ))
}

/// Reads a body of limited size in limited time.
pub async fn read(body: Body) -> Result<Bytes, Problem> {
    let read = tokio::time::timeout(PATIENCE, axum::body::to_bytes(body, BODY)).await;
    read.map_err(|_| {
        Problem::new(
            StatusCode::REQUEST_TIMEOUT,
            format!("the body did not arrive within {} s", PATIENCE.as_secs()),
        )
    })?
    .map_err(|_| {
        Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!(
                "the body is larger than {} MiB, or it broke off",
                BODY >> 20
            ),
        )
    })
}

/// Parses the JSON object in a body. serde_json refuses bodies that are nested deeper than 128. A
/// parsed body takes much more memory than its text, so the number of its values is limited first.
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    if let Some(why) = json_text::refusal(bytes) {
        return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, why));
    }
    let is_blank = bytes.iter().all(u8::is_ascii_whitespace);
    let bytes = if is_blank { b"{}" } else { bytes };
    if bytes.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
        return Err(Problem::bad_request("the body is no JSON object"));
    }
    let mut body = serde_json::Deserializer::from_slice(bytes);
    let read = serde_path_to_error::deserialize(&mut body);
    let read = read.map_err(|error| match error.path().to_string() {
        // An unfinished body ends at no field.
        path if path == "." || path == "?" => error.into_inner().to_string(),
        path => format!("`{path}`: {}", error.into_inner()),
    });
    read.and_then(|read| body.end().map(|()| read).map_err(|error| error.to_string()))
        .map_err(|error| Problem::bad_request(format!("the body cannot be read: {error}")))
}

/// The arguments in the query of an address. Unknown parameters are refused, because without its
/// misspelt parameter a request asks for something else.
pub struct QueryArguments<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for QueryArguments<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let route = parts.extensions.get::<MatchedPath>();
        let route = route.map_or("", MatchedPath::as_str);
        let known = openapi::query(route, parts.method.as_str());
        read_query(&parts.uri, &known).map(Self)
    }
}

fn read_query<T: DeserializeOwned>(uri: &Uri, known: &[&str]) -> Result<T, Problem> {
    let unreadable = |error: QueryRejection| Problem::bad_request(error.body_text());
    let Query(given) = Query::<Vec<(String, String)>>::try_from_uri(uri).map_err(unreadable)?;
    for (name, _) in &given {
        check_parameter(name, known)?;
    }
    let Query(read) = Query::try_from_uri(uri).map_err(unreadable)?;
    Ok(read)
}

/// Refuses a parameter of a query that the route does not have.
pub fn check_parameter(name: &str, known: &[&str]) -> Result<(), Problem> {
    if known.contains(&name) {
        return Ok(());
    }
    let name: String = name.chars().take(80).collect();
    Err(Problem::bad_request(format!(
        "the query has the unknown parameter `{name}`; known are {}",
        known.join(", ")
    )))
}

/// The id or name in a path. It holds no character with a meaning in a subject.
pub struct Id(pub String);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let read = Path::<String>::from_request_parts(parts, state).await;
        let Path(text) = read.map_err(|error| Problem::bad_request(error.body_text()))?;
        id(&text)?;
        Ok(Self(text))
    }
}

/// Checks that a text from an address is an id or a name.
pub fn id(text: &str) -> Result<(), Problem> {
    if is_id(text) {
        return Ok(());
    }
    let shown: String = text.chars().take(80).collect();
    Err(Problem::bad_request(format!(
        "malformed id `{shown}`: expected 1 to 64 characters of A-Z a-z 0-9 _ -"
    )))
}

/// Returns the `Idempotency-Key` of a request, parsed as the id that the protocol uses for the same
/// purpose.
pub fn idempotency_key<T: std::str::FromStr>(headers: &HeaderMap) -> Result<Option<T>, Problem>
where
    T::Err: std::fmt::Display,
{
    let Some(key) = headers.get("idempotency-key") else {
        return Ok(None);
    };
    let key = key.to_str().unwrap_or_default();
    key.parse().map(Some).map_err(|error| {
        Problem::bad_request(format!("the `Idempotency-Key` cannot be used: {error}"))
    })
}

#[cfg(test)]
mod tests {
    use planck_common::command::{ListSessions, Start};

    use super::*;

    #[test]
    fn mistake_in_a_body_names_its_field() {
        for (body, place) in [
            (r#"{"prompt":7}"#, "`prompt`: "),
            (
                r#"{"members":[{"type":"a","tools":7}]}"#,
                "`members[0].tools`: ",
            ),
            (r#"{"prompt":"a"} {}"#, "trailing characters"),
            (r#"{"prompt":"a""#, "the body cannot be read: EOF"),
        ] {
            let problem = parse::<Start>(body.as_bytes()).unwrap_err();
            assert!(problem.detail().contains(place), "{}", problem.detail());
        }
        assert!(parse::<Start>(b" ").is_ok());
        let many = format!(
            r#"{{"metadata":{{"a":[{}0]}}}}"#,
            r#"{"":0},"#.repeat(1_100_000)
        );
        let problem = parse::<Start>(many.as_bytes()).unwrap_err();
        assert_eq!(problem.status(), StatusCode::PAYLOAD_TOO_LARGE);
    }

    #[test]
    fn unknown_parameter_of_a_query_is_refused() {
        let read = |query: &str| {
            let uri = format!("/v1/sessions{query}").parse().unwrap();
            let known = openapi::query("/v1/sessions", "GET");
            read_query::<ListSessions>(&uri, &known).map_err(|problem| problem.detail().to_owned())
        };
        assert_eq!(read("?limit=5&state=open").unwrap().limit, Some(5));
        assert_eq!(read("").unwrap().limit, None);
        assert_eq!(
            read("?state=open&limt=5").unwrap_err(),
            "the query has the unknown parameter `limt`; known are after, limit, state"
        );
    }

    #[test]
    fn unknown_field_of_a_command_is_refused_and_a_misspelt_one_of_a_wire() {
        let refused = |schema: &str, body: &str, similar| {
            check_fields(body.as_bytes(), &openapi::fields(schema), similar)
                .err()
                .map(|problem| problem.detail().to_owned())
        };
        for (schema, body, similar, told) in [
            (
                "Start",
                r#"{"permision":"careful"}"#,
                0.0,
                "`permision`; did you mean `permissions`?",
            ),
            ("Start", r#"{"xyz":1}"#, 0.0, "`xyz`; known are "),
            (
                "Start",
                r#"{"text":"a"}"#,
                0.0,
                "`text`; did you mean `prompt`?",
            ),
            (
                "Prompt",
                r#"{"prompt":"a"}"#,
                0.0,
                "`prompt`; did you mean `text`?",
            ),
            ("Because", r#"{"to":1}"#, 0.0, "`to`; known are reason"),
            (
                "UiChatRequest",
                r#"{"id":"a","permision":1}"#,
                MISSPELT,
                "did you mean `permissions`?",
            ),
            (
                "ResponseRequest",
                r#"{"modell":1}"#,
                MISSPELT,
                "did you mean `model`?",
            ),
        ] {
            let why = refused(schema, body, similar).unwrap();
            assert!(why.contains(told), "{why}");
        }
        for (schema, body, similar) in [
            ("Start", r#"{"permissions":"careful","prompt":"a"}"#, 0.0),
            ("Start", "", 0.0),
            // What assistant-ui sends besides.
            (
                "UiChatRequest",
                r#"{"id":"a","system":"b","tools":{},"metadata":{},"callSettings":{}}"#,
                MISSPELT,
            ),
            (
                "ChatCompletionRequest",
                r#"{"model":"a","max_tokens":1,"logprobs":true,"tool_choice":"auto"}"#,
                MISSPELT,
            ),
        ] {
            assert_eq!(refused(schema, body, similar), None, "{body}");
        }
    }
}
