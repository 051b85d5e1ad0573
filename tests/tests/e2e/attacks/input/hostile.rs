//! A server in the place of a model server. It answers every request with bytes that the test
//! chooses. The answer may be endless.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use anyhow::Result;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
    time::{Duration, sleep},
};

/// The server's answer to every request.
#[derive(Clone)]
pub enum Behaviour {
    /// A stream that never ends: `first`, then the same bytes again and again, with a pause in
    /// between.
    Endless {
        kind: &'static str,
        first: String,
        then: String,
        pause: Duration,
    },
    /// One complete response.
    Whole {
        status: u16,
        kind: &'static str,
        body: String,
    },
}

pub struct Hostile {
    pub url: String,
    asked: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Hostile {
    pub async fn start(behaviour: Behaviour) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let asked = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&asked);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                counter.fetch_add(1, Ordering::Relaxed);
                let behaviour = behaviour.clone();
                tokio::spawn(async move { drop(answer(stream, behaviour).await) });
            }
        });
        Ok(Self { url, asked, task })
    }

    /// Returns how many connections were accepted.
    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(mut stream: TcpStream, behaviour: Behaviour) -> std::io::Result<()> {
    let mut request = vec![0; 1 << 16];
    // The beginning of the request is enough to answer it. The rest is read and discarded while the
    // answer is sent.
    let _read = stream.read(&mut request).await?;
    let (mut reader, mut writer) = stream.into_split();
    tokio::spawn(async move { tokio::io::copy(&mut reader, &mut tokio::io::sink()).await });
    match behaviour {
        Behaviour::Whole { status, kind, body } => {
            let head = format!(
                "HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            );
            writer.write_all(head.as_bytes()).await
        }
        Behaviour::Endless {
            kind,
            first,
            then,
            pause,
        } => {
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\nconnection: close\r\n\r\n{first}"
            );
            writer.write_all(head.as_bytes()).await?;
            loop {
                writer.write_all(then.as_bytes()).await?;
                sleep(pause).await;
            }
        }
    }
}
