//! Measures how long it takes to decode a burst of deltas, compared with only parsing the same
//! bytes, to build the request of a short and of a long conversation, and to construct an HTTP
//! client.
#![allow(
    clippy::unwrap_used,
    reason = "a bench that cannot run has nothing to say"
)]

use std::{hint::black_box, sync::Arc};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use planck_common::message::{MessageBody, MessageMetadata, MessageRole, Part};
use planck_providers::{
    ClientOptions, Llm, LlmOptions, ProviderOptions, RequestHead, client, secret::Secret,
};
use serde::de::IgnoredAny;
use serde_json::Value;

const DELTAS: usize = 2_000;
/// The number of bytes in each simulated read from the network.
const READ: usize = 16 << 10;

fn llm() -> Llm {
    let options = || ProviderOptions {
        key: Some(Secret::new("key")),
        ..ProviderOptions::default()
    };
    let providers = ["anthropic", "openai", "google"].map(|name| (name.to_owned(), options()));
    Llm::new(LlmOptions {
        providers: providers.into(),
        ..LlmOptions::default()
    })
}

/// Returns a reply with many short deltas in the wire format of a provider.
fn stream(provider: &str) -> Vec<u8> {
    let (before, delta, after) = match provider {
        "anthropic" => (
            "data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n",
            "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"some words\"}}\n\n",
            "data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"}}\n\ndata: {\"type\":\"message_stop\"}\n\n",
        ),
        "openai" => (
            "",
            "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1763780000,\"model\":\"gpt-5\",\"system_fingerprint\":null,\"choices\":[{\"index\":0,\"delta\":{\"content\":\"some words\"},\"finish_reason\":null}],\"usage\":null}\n\n",
            "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n",
        ),
        "google" => (
            "",
            "data: {\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"some words\"}],\"role\":\"model\"},\"index\":0}],\"usageMetadata\":{\"promptTokenCount\":10,\"candidatesTokenCount\":12,\"totalTokenCount\":22},\"modelVersion\":\"gemini\",\"responseId\":\"r\"}\r\n\r\n",
            "data: {\"candidates\":[{\"finishReason\":\"STOP\"}]}\r\n\r\n",
        ),
        _ => (
            "",
            "{\"model\":\"qwen3:8b\",\"created_at\":\"2026-11-22T03:00:00.123456Z\",\"message\":{\"role\":\"assistant\",\"content\":\"some words\"},\"done\":false}\n",
            "{\"message\":{\"role\":\"assistant\",\"content\":\"\"},\"done\":true,\"done_reason\":\"stop\",\"eval_count\":2}\n",
        ),
    };
    [before, &delta.repeat(DELTAS), after].concat().into_bytes()
}

/// Returns the JSON of each event in a stream, without any other decoding.
fn events(stream: &[u8]) -> impl Iterator<Item = &[u8]> {
    let lines = stream
        .split(|byte| *byte == b'\n')
        .map(|line| line.strip_prefix(b"data: ").unwrap_or(line));
    lines.filter(|line| line.first() == Some(&b'{'))
}

fn decode(criterion: &mut Criterion) {
    let llm = llm();
    for provider in ["anthropic", "openai", "google", "ollama"] {
        let stream = stream(provider);
        let mut group = criterion.benchmark_group(format!("decode/{provider}"));
        group.throughput(Throughput::Elements(DELTAS as u64));
        group.bench_function("ours", |bencher| {
            bencher.iter(|| {
                let (mut decoder, mut chunks) = (llm.decoder(provider, None).unwrap(), Vec::new());
                for read in stream.chunks(READ) {
                    decoder.feed(read, &mut chunks).unwrap();
                    black_box(std::mem::take(&mut chunks));
                }
                decoder.finish(&mut chunks).unwrap()
            });
        });
        group.bench_function("bare", |bencher| {
            bencher.iter(|| {
                events(&stream)
                    .filter(|event| serde_json::from_slice::<IgnoredAny>(event).is_ok())
                    .count()
            });
        });
        group.bench_function("values", |bencher| {
            bencher.iter(|| {
                events(&stream)
                    .filter(|event| serde_json::from_slice::<Value>(event).is_ok())
                    .count()
            });
        });
        group.finish();
    }
}

fn body(role: MessageRole, text: &str) -> MessageBody {
    MessageBody {
        role,
        custom: None,
        content: vec![Part::text(text)],
        metadata: MessageMetadata::default(),
    }
}

/// Measures building the request of a conversation whose messages were pushed before, compared with
/// only copying the bytes of the request.
fn encode(criterion: &mut Criterion) {
    let llm = llm();
    let text = "word ".repeat(100);
    for provider in ["anthropic", "openai", "google", "ollama"] {
        let model = planck_common::spec::ModelRef {
            provider: provider.into(),
            id: "m".into(),
            base_url: None,
        };
        let endpoint = llm.provider(&model).unwrap();
        let mut group = criterion.benchmark_group(format!("encode/{provider}"));
        for messages in [10, 1_000] {
            let head = RequestHead {
                model: "m".into(),
                system_prompt: Arc::from("Be brief."),
                tools: Arc::from([]),
                opts: serde_json::Map::new(),
                max_output: 4096,
            };
            let mut encoder = endpoint.encoder(head);
            for index in 0..messages {
                encoder.push(&body(
                    if index % 2 == 0 {
                        MessageRole::User
                    } else {
                        MessageRole::Assistant
                    },
                    &text,
                ));
            }
            let bytes = encoder.request(None);
            group.bench_function(format!("request of {messages}"), |bencher| {
                bencher.iter(|| encoder.request(None))
            });
            group.bench_function(format!("copy of {messages}"), |bencher| {
                bencher.iter(|| black_box(bytes.body.to_vec()))
            });
        }
        group.finish();
    }
}

/// Measures the construction of one HTTP client. Every runtime builds two of them when it starts.
fn start(criterion: &mut Criterion) {
    criterion.bench_function("client", |bencher| {
        bencher.iter(|| client(&ClientOptions::default()).unwrap())
    });
}

criterion_group!(benches, decode, encode, start);
criterion_main!(benches);
