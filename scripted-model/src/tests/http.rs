//! A minimal HTTP/1.1 client.

use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::Server;

/// A response as it arrived.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    /// The body without chunk sizes.
    pub body: String,
    /// Whether the last chunk arrived. Always true for a body without chunks.
    pub whole: bool,
}

/// Sends a request on a connection of its own, and returns the response. Reads until the server
/// closes the connection.
pub async fn post(server: &Server, path: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
    let mut stream = open(server, path, headers, body).await;
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes).await; // a reset also ends the response
    parse(&bytes)
}

/// Sends a request and leaves the answer unread.
pub async fn open(
    server: &Server,
    path: &str,
    headers: &[(&str, &str)],
    body: &Value,
) -> TcpStream {
    let body = body.to_string();
    let mut head = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"
    );
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(&format!("content-length: {}\r\n\r\n{body}", body.len()));
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

fn parse(bytes: &[u8]) -> Answer {
    let text = String::from_utf8_lossy(bytes);
    let (head, rest) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok())
        .unwrap_or(0);
    let (body, whole) = if head.contains("transfer-encoding: chunked") {
        unchunk(rest)
    } else {
        (rest.to_owned(), true)
    };
    Answer {
        status,
        head: head.to_owned(),
        body,
        whole,
    }
}

fn unchunk(mut rest: &str) -> (String, bool) {
    let mut body = String::new();
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            return (body, true);
        }
        let Some(chunk) = after.get(..size) else {
            return (body, false);
        };
        body.push_str(chunk);
        rest = after.get(size + 2..).unwrap_or("");
    }
    (body, false)
}
