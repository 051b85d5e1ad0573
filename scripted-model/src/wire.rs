//! The wire formats: how each provider reads a request, refuses one and streams an answer.

mod anthropic;
mod azure;
mod google;
mod llama_cpp;
mod ollama;
mod openai;
mod responses;
mod tool_schema;

use serde_json::Value;

use crate::{
    frames::{FrameWriter, Frames},
    refusal::WireRefusal,
    request::ModelRequest,
    script::{Auth, ScriptedUsage, Stop},
};

/// A provider's format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProviderWire {
    Anthropic,
    OpenAi,
    Azure,
    Responses,
    Google,
    Ollama,
    LlamaCpp,
}

/// The parts of a request besides the body that a check may read.
pub struct Heading<'a> {
    pub path: &'a str,
    pub query: &'a str,
    pub headers: &'a [(String, String)],
}

/// A reply with its templates filled in and its ids set, ready to be written as a stream.
#[derive(Debug, Clone)]
pub struct PreparedReply {
    /// The number that distinguishes this answer from all others.
    pub serial: u64,
    pub model: String,
    pub parts: Vec<PreparedPart>,
    pub stop: Stop,
    pub usage: ScriptedUsage,
    pub chunk: usize,
    /// Whether the client asked for usage in the stream (OpenAI).
    pub include_usage: bool,
    /// Whether the response includes the encrypted reasoning (Responses API).
    pub wants_ciphertext: bool,
}

#[derive(Debug, Clone)]
pub enum PreparedPart {
    Text(std::sync::Arc<str>),
    Thinking(std::sync::Arc<str>),
    Redacted(std::sync::Arc<str>),
    Call {
        id: String,
        name: String,
        args: String,
    },
}

impl Heading<'_> {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }
}

impl ProviderWire {
    /// Returns the format that is served at a path, or `None` if nothing is served there.
    pub fn of_path(path: &str) -> Option<Self> {
        match path {
            "/v1/messages" => Some(Self::Anthropic),
            "/v1/chat/completions" => Some(Self::OpenAi),
            "/v1/responses" => Some(Self::Responses),
            "/api/chat" => Some(Self::Ollama),
            "/llama_cpp/v1/chat/completions" | "/llama_cpp/chat/completions" => {
                Some(Self::LlamaCpp)
            }
            _ if azure::is_served(path) => Some(Self::Azure),
            _ => google::model_of(path).map(|_| Self::Google),
        }
    }

    pub fn authorise(self, auth: &Auth, heading: &Heading<'_>) -> Result<(), WireRefusal> {
        match self {
            Self::Anthropic => anthropic::authorise(auth, heading),
            Self::Responses => responses::authorise(auth, heading),
            Self::OpenAi => openai::authorise(auth, heading),
            Self::Azure => azure::authorise(auth, heading),
            Self::Google => google::authorise(auth, heading),
            Self::Ollama => ollama::authorise(auth, heading),
            Self::LlamaCpp => llama_cpp::authorise(auth, heading),
        }
    }

    /// Checks a request of this format and reads it. Fails with the refusal if the check finds a
    /// fault.
    pub fn read(self, body: &Value, heading: &Heading<'_>) -> Result<ModelRequest, WireRefusal> {
        match self {
            Self::Anthropic => anthropic::read(body, heading),
            Self::Responses => responses::read(body),
            Self::OpenAi => openai::read(body),
            Self::Azure => azure::read(body, heading),
            Self::Google => google::read(body, heading),
            Self::Ollama => ollama::read(body),
            Self::LlamaCpp => llama_cpp::read(body),
        }
    }

    /// Returns the body of a refusal in this format.
    pub fn refuse(self, refusal: &WireRefusal) -> String {
        match self {
            Self::Anthropic => anthropic::refuse(refusal),
            Self::Responses => responses::refuse(refusal),
            Self::OpenAi => openai::refuse(refusal),
            Self::Azure => azure::refuse(refusal),
            Self::Google => google::refuse(refusal),
            Self::Ollama => ollama::refuse(refusal),
            Self::LlamaCpp => llama_cpp::refuse(refusal),
        }
    }

    pub fn write(self, speech: &PreparedReply) -> Frames {
        let mut out = FrameWriter::default();
        match self {
            Self::Anthropic => anthropic::write(speech, &mut out),
            Self::Responses => responses::write(speech, &mut out),
            Self::OpenAi => openai::write(speech, &mut out),
            Self::Azure => azure::write(speech, &mut out),
            Self::Google => google::write(speech, &mut out),
            Self::Ollama => ollama::write(speech, &mut out),
            Self::LlamaCpp => llama_cpp::write(speech, &mut out),
        }
        out.finish()
    }

    /// Returns an error event for the middle of a stream.
    pub fn error_event(self, message: &str) -> Frames {
        let mut out = FrameWriter::default();
        match self {
            Self::Anthropic => anthropic::error_event(message, &mut out),
            Self::Responses => responses::error_event(message, &mut out),
            Self::OpenAi | Self::Azure => openai::error_event(message, &mut out),
            Self::Google => google::error_event(message, &mut out),
            Self::Ollama => ollama::error_event(message, &mut out),
            Self::LlamaCpp => llama_cpp::error_event(message, &mut out),
        }
        out.finish()
    }

    pub fn content_type(self) -> &'static str {
        match self {
            Self::Anthropic | Self::Responses => "text/event-stream; charset=utf-8",
            Self::OpenAi | Self::Azure | Self::Google | Self::LlamaCpp => "text/event-stream",
            Self::Ollama => "application/x-ndjson",
        }
    }

    /// Returns a call id in the style of this provider. `thought` is the index of the thinking
    /// before the call.
    pub fn call_id(self, serial: u64, index: usize, thought: Option<usize>) -> String {
        match self {
            Self::Anthropic => format!("toolu_{serial:08x}{index:02x}"),
            Self::Responses => responses::call_id(serial, index, thought),
            Self::OpenAi | Self::Azure => openai::call_id(serial, index, thought),
            Self::Ollama => format!("call_{serial:08x}{index:02x}"),
            Self::Google => String::new(), // Google distinguishes calls by name and order
            Self::LlamaCpp => format!("{serial:030x}{index:02x}"),
        }
    }
}
