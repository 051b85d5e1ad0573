//! JSON-RPC 2.0 over lines: each line is one message.

use std::io;

use serde::{Deserialize, Deserializer, Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _};

/// The maximum size of a line, which is one message, in bytes.
pub const LONGEST_LINE: usize = 8 << 20;

/// The error of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RpcError {
    pub code: i32,
    pub message: String,
}

impl RpcError {
    pub const NOT_JSON: i32 = -32700;
    pub const NO_REQUEST: i32 = -32600;
    pub const UNKNOWN_METHOD: i32 = -32601;
    pub const BAD_PARAMS: i32 = -32602;
    pub const INTERNAL: i32 = -32603;
    pub const NOT_FOUND: i32 = -32002;

    pub fn new(code: i32, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    pub fn bad_params(message: impl Into<String>) -> Self {
        Self::new(Self::BAD_PARAMS, message)
    }
}

/// The id of a request. JSON-RPC discourages `null`, and the protocol allows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum RequestId {
    Null,
    Number(i64),
    Text(String),
}

/// A message of the client.
#[derive(Debug)]
pub enum Incoming {
    Request {
        id: RequestId,
        method: String,
        params: Params,
    },
    Notification {
        method: String,
        params: Params,
    },
    /// The answer to a request of this command.
    Response {
        id: RequestId,
        result: Result<Box<RawValue>, RpcError>,
    },
}

/// The parameters of a request, which are read when its method is known.
#[derive(Debug, Default)]
pub struct Params(Option<Box<RawValue>>);

impl Params {
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, RpcError> {
        let json = self.0.as_deref().map_or("{}", RawValue::get);
        serde_json::from_str(json)
            .map_err(|why| RpcError::bad_params(format!("malformed params: {why}")))
    }
}

#[derive(Deserialize)]
struct AnyMessage {
    jsonrpc: String,
    #[serde(default, deserialize_with = "present")]
    id: Option<RequestId>,
    method: Option<String>,
    params: Option<Box<RawValue>>,
    #[serde(default, deserialize_with = "present")]
    result: Option<Box<RawValue>>,
    error: Option<RpcError>,
}

/// Reads a field that is present, even if it is `null`.
fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

impl Incoming {
    /// Parses a line. The error has the id of the request, as far as it is known.
    pub fn parse(line: &[u8]) -> Result<Self, (RequestId, RpcError)> {
        let refuse = |id, code, why: String| Err((id, RpcError::new(code, why)));
        let json: &RawValue = match serde_json::from_slice(line) {
            Ok(json) => json,
            Err(why) => {
                return refuse(
                    RequestId::Null,
                    RpcError::NOT_JSON,
                    format!("a line is no JSON: {why}"),
                );
            }
        };
        let message: AnyMessage = match serde_json::from_str(json.get()) {
            Ok(message) => message,
            Err(why) => {
                return refuse(
                    RequestId::Null,
                    RpcError::NO_REQUEST,
                    format!("a line is no message of JSON-RPC 2.0: {why}"),
                );
            }
        };
        if message.jsonrpc != "2.0" {
            let why = format!("`jsonrpc` is `{}`; expected `2.0`", message.jsonrpc);
            return refuse(
                message.id.unwrap_or(RequestId::Null),
                RpcError::NO_REQUEST,
                why,
            );
        }
        let params = Params(message.params);
        match (message.method, message.id, message.result, message.error) {
            (Some(method), Some(id), None, None) => Ok(Self::Request { id, method, params }),
            (Some(method), None, None, None) => Ok(Self::Notification { method, params }),
            (None, Some(id), Some(result), None) => Ok(Self::Response {
                id,
                result: Ok(result),
            }),
            (None, Some(id), None, Some(error)) => Ok(Self::Response {
                id,
                result: Err(error),
            }),
            (_, id, _, _) => refuse(
                id.unwrap_or(RequestId::Null),
                RpcError::NO_REQUEST,
                "a message is neither a request nor a notification nor an answer".into(),
            ),
        }
    }
}

/// A message to the client.
#[derive(Debug, Serialize)]
pub struct Outgoing<T> {
    jsonrpc: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<RequestId>,
    #[serde(flatten)]
    body: Body<T>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Body<T> {
    Call { method: &'static str, params: T },
    Done { result: T },
    Failed { error: RpcError },
}

impl<T: Serialize> Outgoing<T> {
    pub fn request(id: i64, method: &'static str, params: T) -> Self {
        Self::new(Some(RequestId::Number(id)), Body::Call { method, params })
    }

    pub fn notification(method: &'static str, params: T) -> Self {
        Self::new(None, Body::Call { method, params })
    }

    pub fn answer(id: RequestId, answer: Result<T, RpcError>) -> Self {
        let body = match answer {
            Ok(result) => Body::Done { result },
            Err(error) => Body::Failed { error },
        };
        Self::new(Some(id), body)
    }

    fn new(id: Option<RequestId>, body: Body<T>) -> Self {
        Self {
            jsonrpc: "2.0",
            id,
            body,
        }
    }

    /// Returns the message as a line.
    pub fn line(&self) -> serde_json::Result<String> {
        Ok(serde_json::to_string(self)? + "\n")
    }
}

/// Reads the next line, or `None` at the end. A line that is too long is skipped, and is an error in
/// the inner result.
pub async fn next_line<R: AsyncBufRead + Unpin>(
    input: &mut R,
) -> io::Result<Option<Result<Vec<u8>, RpcError>>> {
    let (mut line, mut is_long) = (Vec::new(), false);
    loop {
        let read = input.fill_buf().await?;
        if read.is_empty() && line.is_empty() && !is_long {
            return Ok(None);
        }
        let end = read.iter().position(|byte| *byte == b'\n');
        let part = read.get(..end.unwrap_or(read.len())).unwrap_or_default();
        is_long |= line.len() + part.len() > LONGEST_LINE;
        match is_long {
            true => line = Vec::new(),
            false => line.extend_from_slice(part),
        }
        let is_end = end.is_some() || read.is_empty();
        let taken = end.map_or(read.len(), |end| end + 1);
        input.consume(taken);
        if is_end && is_long {
            let why = format!("a message has more than {} MiB", LONGEST_LINE >> 20);
            return Ok(Some(Err(RpcError::new(RpcError::NO_REQUEST, why))));
        }
        if is_end {
            return Ok(Some(Ok(line)));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tokio::io::BufReader;

    use super::*;

    fn refusal(line: &str) -> (RequestId, i32) {
        let (id, error) = Incoming::parse(line.as_bytes()).unwrap_err();
        (id, error.code)
    }

    #[test]
    fn lines_are_requests_notifications_and_answers() {
        let parse = |line: &str| Incoming::parse(line.as_bytes()).unwrap();
        let request = parse(r#"{"jsonrpc":"2.0","id":7,"method":"a","params":{"cwd":"/"}}"#);
        let Incoming::Request { id, params, .. } = request else {
            panic!("{request:?}");
        };
        assert_eq!(id, RequestId::Number(7));
        assert_eq!(params.read::<Value>().unwrap(), json!({"cwd": "/"}));
        let null = parse(r#"{"jsonrpc":"2.0","id":null,"method":"a"}"#);
        assert!(matches!(null, Incoming::Request { .. }), "{null:?}");
        let notice = parse(r#"{"jsonrpc":"2.0","method":"a"}"#);
        assert!(matches!(notice, Incoming::Notification { .. }));
        let answer = parse(r#"{"jsonrpc":"2.0","id":"x","result":null}"#);
        assert!(matches!(answer, Incoming::Response { result: Ok(_), .. }));
        let failed = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no"}}"#;
        assert!(matches!(
            parse(failed),
            Incoming::Response { result: Err(_), .. }
        ));
    }

    #[test]
    fn broken_lines_have_the_codes_of_json_rpc() {
        for line in ["", "{", "[{]", "{\"a\":1}}", "\u{0}"] {
            assert_eq!(
                refusal(line),
                (RequestId::Null, RpcError::NOT_JSON),
                "{line:?}"
            );
        }
        for line in ["1", "[]", "{}", r#"{"jsonrpc":"2.0","id":{},"method":"a"}"#] {
            assert_eq!(
                refusal(line),
                (RequestId::Null, RpcError::NO_REQUEST),
                "{line:?}"
            );
        }
        for line in [
            r#"{"jsonrpc":"1.0","id":7,"method":"a"}"#,
            r#"{"jsonrpc":"2.0","id":7}"#,
            r#"{"jsonrpc":"2.0","id":7,"method":"a","result":1}"#,
        ] {
            assert_eq!(
                refusal(line),
                (RequestId::Number(7), RpcError::NO_REQUEST),
                "{line:?}"
            );
        }
    }

    #[tokio::test]
    async fn line_that_is_too_long_is_skipped() {
        let long = "x".repeat(LONGEST_LINE + 1);
        let longest = "y".repeat(LONGEST_LINE);
        let text = format!("a\n{long}\nb\n{longest}\n\nend");
        let mut input = BufReader::new(text.as_bytes());
        let mut found = Vec::new();
        while let Some(line) = next_line(&mut input).await.unwrap() {
            let line = line.map(|line| (line.len(), line.first().copied()));
            found.push(line.map_err(|error| error.code));
        }
        let expected = [
            Ok((1, Some(b'a'))),
            Err(RpcError::NO_REQUEST),
            Ok((1, Some(b'b'))),
            Ok((LONGEST_LINE, Some(b'y'))),
            Ok((0, None)),
            Ok((3, Some(b'e'))),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn answers_have_a_result_or_an_error() {
        let line = |message: Outgoing<Value>| message.line().unwrap();
        let (one, two) = (RequestId::Number(1), RequestId::Text("2".into()));
        let done = line(Outgoing::answer(one, Ok(Value::Null)));
        assert_eq!(done, "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":null}\n");
        let error = RpcError::new(RpcError::NOT_FOUND, "no");
        let failed = line(Outgoing::answer(two, Err(error)));
        let expected =
            "{\"jsonrpc\":\"2.0\",\"id\":\"2\",\"error\":{\"code\":-32002,\"message\":\"no\"}}\n";
        assert_eq!(failed, expected);
        let call = line(Outgoing::notification("m", Value::Null));
        assert_eq!(
            call,
            "{\"jsonrpc\":\"2.0\",\"method\":\"m\",\"params\":null}\n"
        );
    }
}
