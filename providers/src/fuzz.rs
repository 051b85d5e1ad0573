//! A fuzz target for the streams of providers: a stream must decode to the same answer however the
//! network splits it.

use super::{
    decode::Decoder,
    wire::{WireKind, WireTarget},
};
use planck_agent::model::{Chunk, Failure, Finish};

/// Decodes a stream whole and in two pieces, and compares the answers. The first byte of the input
/// chooses the wire format, the second the position of the split.
pub fn stream(bytes: &[u8]) {
    let [wire, cut, stream @ ..] = bytes else {
        return;
    };
    let kind = match wire % 5 {
        0 => WireKind::Anthropic,
        1 => WireKind::Google,
        2 => WireKind::Ollama,
        3 => WireKind::Responses,
        _ => WireKind::Chat,
    };
    let decoder = || kind.wire().decoder(&WireTarget::default());
    let whole = decoded(decoder(), &[stream]);
    let (one, two) = stream.split_at(stream.len() * usize::from(*cut) / 255);
    assert_eq!(
        decoded(decoder(), &[one, two]),
        whole,
        "the answer depends on where the network cuts the stream"
    );
}

fn decoded(
    mut decoder: Box<dyn Decoder>,
    pieces: &[&[u8]],
) -> (Vec<Chunk>, Result<Finish, Failure>) {
    let mut chunks = Vec::new();
    for piece in pieces {
        if let Err(failure) = decoder.feed(piece, &mut chunks) {
            return (chunks, Err(failure));
        }
    }
    let end = decoder.finish(&mut chunks);
    (chunks, end)
}
