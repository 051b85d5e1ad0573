use super::*;
use crate::testing::streams;
use planck_agent::model::FailureKind;

fn events(mut frames: impl FrameSplitter, pieces: &[&[u8]]) -> Result<Vec<String>, Failure> {
    let mut events = Vec::new();
    let mut each = |event: &[u8]| {
        events.push(String::from_utf8(event.to_vec()).unwrap());
        Ok(())
    };
    for piece in pieces {
        frames.feed(piece, &mut each)?;
    }
    frames.finish(&mut each)?;
    Ok(events)
}

#[test]
fn server_sent_events_are_split_wherever_the_network_splits_them() {
    for (stream, expected) in [
        ("data: a\n\ndata: b\n\n", vec!["a", "b"]),
        ("data: a\r\n\r\n", vec!["a"]),
        ("data:a\ndata: b\ndata:  c\n\n", vec!["a\nb\n c"]),
        (
            ": hello\n\nevent: x\nid: 1\ndata: a\nretry: 3\n\n",
            vec!["a"],
        ),
        ("\n\n\ndata\ndata: \n\ndatax: a\n\n", vec![]),
        ("\u{feff}data: a\n\n", vec!["a"]),
        (" \n{\"a\":\n\n1}\n", vec!["{\"a\":\n\n1}"]),
        ("\u{feff}[{\"a\":1},\n{}]", vec!["{\"a\":1}", "{}"]),
        ("data: no end", vec!["no end"]),
        ("garbage\n\n<html>\n", vec![]),
    ] {
        assert_eq!(
            events(Sse::default(), &[stream.as_bytes()]).unwrap(),
            expected,
            "{stream:?}"
        );
        let bytes: Vec<&[u8]> = stream.as_bytes().chunks(1).collect();
        assert_eq!(
            events(Sse::default(), &bytes).unwrap(),
            expected,
            "{stream:?} byte by byte"
        );
    }
}

/// Streams of all wire formats, of both kinds of frames, with a byte order mark, with keep-alives,
/// and with a document in place of a stream.
#[test]
fn recorded_streams_are_split_alike_at_every_position() {
    fn check<F: FrameSplitter + Default>(wire: &str, name: &str) {
        let stream = std::fs::read(streams(wire).join(name)).unwrap();
        let whole = events(F::default(), &[&stream]).unwrap();
        assert!(!whole.is_empty(), "{wire}/{name}");
        for cut in 0..=stream.len() {
            let (one, two) = stream.split_at(cut);
            let split = events(F::default(), &[one, two]).unwrap();
            assert_eq!(split, whole, "{wire}/{name} cut at {cut}");
        }
    }
    for (wire, name) in [
        ("anthropic", "calls.sse"),
        ("google", "calls.sse"),
        ("openai", "calls.sse"),
        ("openai", "quirk_bom.sse"),
        ("openai", "quirk_document.sse"),
        ("openai", "quirk_heartbeats.sse"),
        ("responses", "interleaved.sse"),
    ] {
        check::<Sse>(wire, name);
    }
    check::<Ndjson>("ollama", "calls.ndjson");
}

#[test]
fn lines_of_json_are_split_wherever_the_network_splits_them() {
    let pieces: [&[u8]; 3] = [b"{\"a\":", b"1}\r\n\n{}\n", b"3"];
    assert_eq!(
        events(Ndjson::default(), &pieces).unwrap(),
        ["{\"a\":1}", "{}", "3"]
    );
}

#[test]
fn last_line_of_json_that_is_blank_is_ignored() {
    for end in [" ", "\r", " \r", "\t"] {
        let pieces: [&[u8]; 2] = [b"{}\n", end.as_bytes()];
        assert_eq!(
            events(Ndjson::default(), &pieces).unwrap(),
            ["{}"],
            "{end:?}"
        );
    }
}

#[test]
fn an_event_longer_than_the_limit_is_refused() {
    let endless = |pieces: &[&[u8]]| events(Sse::with_limit(8), pieces).unwrap_err().kind;
    assert_eq!(endless(&[b"data: 123456789"]), FailureKind::Transient);
    assert_eq!(
        endless(&[b"data", b": 12", b"345678"]),
        FailureKind::Transient
    );
    assert_eq!(
        endless(&[b"data:1234\n", b"data:1234\n", b"data:1234\n"]),
        FailureKind::Transient
    );
    assert_eq!(
        events(Sse::with_limit(8), &[b"data:123\n\n", b"data:456\n\n"]).unwrap(),
        ["123", "456"]
    );
    assert_eq!(
        events(Ndjson::with_limit(4), &[b"123", b"45"])
            .unwrap_err()
            .kind,
        FailureKind::Transient
    );
}
