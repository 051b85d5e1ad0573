//! Helpers for the tests of all wire formats: recorded streams, which are decoded with splits at
//! many positions, and conversations to encode.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use planck_common::{
    CallId,
    event::ToolEffect,
    message::{MessageBody, MessageMetadata, MessageRole, Part},
};
use serde_json::{Value, json, value::to_raw_value};

use super::{
    Encoder, RequestHead,
    catalogue::{ModelFacts, UNKNOWN},
    preset::Preset,
    wire::{WireFormat, WireKind, WireTarget},
};
use planck_agent::model::{Chunk, Failure, Finish, ToolSpec};

type Decoded = (Vec<Chunk>, Result<Finish, Failure>);

/// A wire format, and the endpoint that it is tested with.
pub struct TestEndpoint {
    pub wire: &'static dyn WireFormat,
    pub entry: ModelFacts,
    pub target: WireTarget,
}

impl TestEndpoint {
    /// Returns an endpoint of an unknown server that uses this wire format.
    pub fn new(kind: WireKind, label: &str) -> Self {
        let target = WireTarget {
            label: label.to_owned(),
            ..WireTarget::default()
        };
        Self {
            wire: kind.wire(),
            entry: UNKNOWN,
            target,
        }
    }

    /// Returns the endpoint of a preset at the vendor's own address.
    pub fn by(preset: &str) -> Self {
        let preset = Preset::find(preset).unwrap();
        let target = WireTarget {
            label: preset.name.to_owned(),
            is_vendor: true,
            quirks: preset.quirks,
        };
        Self {
            wire: preset.wire.wire(),
            entry: UNKNOWN,
            target,
        }
    }

    pub fn decode<'a>(&self, pieces: impl IntoIterator<Item = &'a [u8]>) -> Decoded {
        let (mut decoder, mut chunks) = (self.wire.decoder(&self.target), Vec::new());
        for piece in pieces {
            if let Err(failure) = decoder.feed(piece, &mut chunks) {
                return (chunks, Err(failure));
            }
        }
        let end = decoder.finish(&mut chunks);
        (chunks, end)
    }

    /// Decodes a stream whole, byte by byte, and split in two, and asserts that the results are
    /// equal. Decoders get whole events from the layer that finds them, and that layer is tested
    /// with a split at every position (`frames/tests.rs`). So a few splits suffice here: those around
    /// the ends of lines, and some at random.
    pub fn decoded(&self, stream: &[u8]) -> Decoded {
        let whole = self.decode([stream]);
        assert_eq!(self.decode(stream.chunks(1)), whole, "byte by byte");
        let mut random = fastrand::Rng::with_seed(7);
        let ends = (0..stream.len()).filter(|at| stream[*at] == b'\n');
        let cuts: Vec<usize> = ends
            .flat_map(|at| [at, at + 1])
            .chain((0..32).map(|_| random.usize(0..=stream.len())))
            .collect();
        for cut in cuts {
            let (one, two) = stream.split_at(cut);
            assert_eq!(self.decode([one, two]), whole, "cut at {cut}");
        }
        whole
    }

    fn transcript(&self, stream: &[u8]) -> String {
        let (chunks, end) = self.decoded(stream);
        let mut text = String::new();
        for chunk in &chunks {
            writeln!(text, "{chunk:?}").unwrap();
        }
        writeln!(text, "{end:?}").unwrap();
        text
    }

    /// Compares every recorded stream in the folder of a wire format with its snapshot.
    pub fn check_streams(&self, wire: &str) {
        let folder = streams(wire);
        let mut files: Vec<_> = std::fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|kind| kind != "snap"))
            .collect();
        files.sort();
        assert!(files.len() >= 7, "{files:?}");
        for file in files {
            let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
            let told = self.transcript(&std::fs::read(&file).unwrap());
            insta::with_settings!({ snapshot_path => &folder, prepend_module_to_snapshot => false }, {
                insta::assert_snapshot!(name, told);
            });
        }
    }

    pub fn encoder(&self, head: RequestHead) -> Box<dyn Encoder> {
        self.wire.encoder(head, &self.entry, &self.target)
    }

    /// Returns, as JSON, the request that would be sent after each message.
    pub fn requests(&self, head: RequestHead, messages: &[MessageBody]) -> Vec<Value> {
        let mut encoder = self.encoder(head);
        let mut request = |message| {
            encoder.push(message);
            serde_json::from_slice(&encoder.request(None).body).unwrap()
        };
        messages.iter().map(&mut request).collect()
    }

    /// Returns the request after the last message.
    pub fn request(&self, head: RequestHead, messages: &[MessageBody]) -> Value {
        self.requests(head, messages).pop().unwrap()
    }
}

/// Returns the folder with the recorded streams of a wire format.
pub fn streams(wire: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("src")
        .join(wire)
        .join("streams")
}

pub fn head(model: &str, opts: Value) -> RequestHead {
    let Value::Object(opts) = opts else {
        panic!("opts are an object")
    };
    let tool = |name: &str, parameters: Value| ToolSpec {
        name: name.into(),
        description: format!("Does {name}"),
        parameters: to_raw_value(&parameters).unwrap().into(),
        effect: ToolEffect::Pure,
        sidecar: None,
        wait: None,
        is_searched: false,
    };
    let path = json!({"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"], "additionalProperties": false});
    let tools = [
        tool("list", json!({"type": "object", "properties": {}})),
        tool("read", path),
    ];
    RequestHead {
        model: model.into(),
        system_prompt: "Be brief.".into(),
        tools: Arc::new(tools),
        opts,
        max_output: 4096,
    }
}

pub fn message(role: MessageRole, content: Vec<Part>) -> MessageBody {
    MessageBody {
        role,
        custom: None,
        content,
        metadata: MessageMetadata::default(),
    }
}

pub fn user(text: &str) -> MessageBody {
    message(MessageRole::User, vec![Part::text(text)])
}

pub fn call(id: &str, name: &str, args: Value) -> Part {
    let args = to_raw_value(&args).unwrap();
    Part::ToolCall {
        id: id.into(),
        call_id: call_id(id),
        name: name.into(),
        args,
        invalid: None,
        signature: None,
    }
}

pub fn result(id: &str, text: &str, error: bool) -> Part {
    Part::ToolResult {
        id: id.into(),
        call_id: call_id(id),
        text: text.into(),
        error,
    }
}

fn call_id(id: &str) -> CallId {
    let legal: String = id.chars().filter(char::is_ascii_alphanumeric).collect();
    CallId::parse(&format!("c-{legal}")).unwrap()
}

/// Joins the chunks of a reply into parts, as the agent does.
pub fn folded(chunks: &[Chunk]) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    let mut args: Vec<String> = Vec::new();
    for chunk in chunks {
        let at = match chunk {
            Chunk::Text { part, .. }
            | Chunk::Thinking { part, .. }
            | Chunk::Signature { part, .. } => *part,
            Chunk::Redacted { part, .. } | Chunk::Call { part, .. } | Chunk::Args { part, .. } => {
                *part
            }
        };
        assert!(at <= parts.len(), "parts are numbered in order: {chunks:?}");
        if at == parts.len() {
            parts.push(begun(chunk));
            args.push(String::new());
        }
        grow(&mut parts[at], &mut args[at], chunk);
    }
    for (part, json) in parts.iter_mut().zip(args) {
        if let Part::ToolCall { args, .. } = part {
            *args = serde_json::value::RawValue::from_string(json).unwrap();
        }
    }
    parts
}

fn begun(chunk: &Chunk) -> Part {
    match chunk {
        Chunk::Text { .. } => Part::text(""),
        Chunk::Thinking { .. } | Chunk::Redacted { .. } => Part::Thinking {
            text: String::new(),
            signature: None,
            redacted: matches!(chunk, Chunk::Redacted { .. }),
        },
        Chunk::Call { id, name, .. } => call(id, name, json!({})),
        Chunk::Signature { .. } | Chunk::Args { .. } => panic!("a part begins with {chunk:?}"),
    }
}

fn grow(part: &mut Part, args: &mut String, chunk: &Chunk) {
    match (part, chunk) {
        (Part::Text { text, .. }, Chunk::Text { text: more, .. }) => text.push_str(more),
        (Part::Thinking { text, .. }, Chunk::Thinking { text: more, .. }) => text.push_str(more),
        (Part::Thinking { signature, .. }, Chunk::Redacted { data, .. }) => {
            *signature = Some(data.clone())
        }
        (
            Part::ToolCall { id, name, .. },
            Chunk::Call {
                id: late_id,
                name: late_name,
                ..
            },
        ) => {
            id.clone_from(late_id);
            name.clone_from(late_name);
        }
        (Part::ToolCall { .. }, Chunk::Args { json, .. }) => args.push_str(json),
        (
            Part::Text { signature, .. }
            | Part::Thinking { signature, .. }
            | Part::ToolCall { signature, .. },
            Chunk::Signature {
                signature: token, ..
            },
        ) => *signature = Some(token.clone()),
        (part, chunk) => panic!("{chunk:?} in {part:?}"),
    }
}
