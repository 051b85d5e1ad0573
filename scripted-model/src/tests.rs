//! Tests of the server over raw HTTP: what each provider accepts and refuses, how scripts are
//! played, and which faults it can produce.

mod anthropic;
mod azure;
mod examples;
mod faults;
mod google;
mod http;
mod ollama;
mod openai;
mod responses;
mod scripts;

use serde_json::Value;

use crate::{Script, Server};
use http::{Answer, post};

/// A change that makes a valid request invalid, and a text that the refusal contains.
struct Case {
    wrong: &'static str,
    /// The place of the change in the body, as a JSON pointer, where the last key `-` appends to an
    /// array. If `put` is `Value::Null`, the value there is removed.
    at: &'static str,
    put: Value,
    says: &'static str,
}

/// Sends the valid request, which must pass, then every invalid one, which must be refused.
async fn judge(path: &str, headers: &[(&str, &str)], sound: &Value, cases: &[Case]) {
    let server = Server::start(Script::new()).await.unwrap();
    let passed = post(&server, path, headers, sound).await;
    assert_eq!(passed.status, 200, "{}", passed.body);
    assert_eq!(server.violations(), []);
    for case in cases {
        let refused = post(&server, path, headers, &spoilt(sound, case)).await;
        assert_eq!(refused.status, 400, "{}: {}", case.wrong, refused.body);
        assert!(
            refused.body.contains(case.says),
            "{}: {}",
            case.wrong,
            refused.body
        );
        let json: Value = serde_json::from_str(&refused.body).unwrap();
        assert!(
            json.get("error").is_some(),
            "{}: {}",
            case.wrong,
            refused.body
        );
    }
    assert_eq!(server.violations().len(), cases.len());
}

fn spoilt(sound: &Value, case: &Case) -> Value {
    let mut body = sound.clone();
    let (parent, key) = case.at.rsplit_once('/').unwrap();
    let parent = body
        .pointer_mut(parent)
        .unwrap_or_else(|| panic!("{}: no {}", case.wrong, case.at));
    match (parent, &case.put) {
        (Value::Array(items), Value::Null) => drop(items.remove(key.parse().unwrap())),
        (Value::Array(items), put) if key == "-" => items.push(put.clone()),
        (Value::Array(items), put) => items[key.parse::<usize>().unwrap()] = put.clone(),
        (Value::Object(fields), Value::Null) => drop(fields.remove(key)),
        (Value::Object(fields), put) => drop(fields.insert(key.to_owned(), put.clone())),
        (other, _) => panic!("{}: {other} has no parts", case.wrong),
    }
    body
}

/// Returns the JSON of every `data:` line except `[DONE]`.
fn events(answer: &Answer) -> Vec<Value> {
    let data = answer
        .body
        .lines()
        .filter_map(|line| line.strip_prefix("data: "));
    data.filter(|data| *data != "[DONE]")
        .map(|data| serde_json::from_str(data).unwrap())
        .collect()
}
