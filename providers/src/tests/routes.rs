//! Tests of how requests reach a server: kept connections that turn out to be closed, proxies,
//! certificate authorities, headers and queries.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
};

use planck_common::message::text_of;
use serde_json::json;

use super::{KEY, ask, http};
use crate::secret::Secret;
use crate::{
    Llm, LlmOptions, ProviderOptions, Proxy, Route, WireKind,
    testing::{head, user},
};
use planck_agent::model::{FailureKind, RetryRules};

const STREAM: &str = concat!(
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"fine\"},\"finish_reason\":\"stop\"}]}\n\n",
    "data: [DONE]\n\n"
);

/// A simple HTTP server with one thread for each connection.
struct HandWrittenServer {
    at: SocketAddr,
    connections: Arc<AtomicUsize>,
    heads: Arc<Mutex<Vec<String>>>,
}

impl HandWrittenServer {
    /// Starts the server. `serve` handles a connection. Its second argument is the number of the
    /// connection, counted from 0. The server records the head of every request that `serve` reads.
    fn start(serve: impl Fn(&mut Connection, usize) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let (connections, heads) = (
            Arc::new(AtomicUsize::new(0)),
            Arc::new(Mutex::new(Vec::new())),
        );
        let (count, said, serve) = (
            Arc::clone(&connections),
            Arc::clone(&heads),
            Arc::new(serve),
        );
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let number = count.fetch_add(1, SeqCst);
                let (serve, heads) = (Arc::clone(&serve), Arc::clone(&said));
                thread::spawn(move || {
                    serve(
                        &mut Connection {
                            stream: Box::new(stream),
                            heads,
                        },
                        number,
                    )
                });
            }
        });
        Self {
            at,
            connections,
            heads,
        }
    }

    fn heads(&self) -> String {
        self.heads.lock().unwrap().join("\n")
    }
}

trait Stream: std::io::Read + std::io::Write {}
impl<T: std::io::Read + std::io::Write> Stream for T {}

struct Connection {
    stream: Box<dyn Stream>,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Connection {
    /// Reads one request. Returns `false` if the connection was closed.
    fn read(&mut self) -> bool {
        let (mut seen, mut byte) = (Vec::new(), [0]);
        while !seen.ends_with(b"\r\n\r\n") {
            match self.stream.read(&mut byte) {
                Ok(1) => seen.push(byte[0]),
                Ok(_) | Err(_) => return false,
            }
        }
        let text = String::from_utf8(seen).unwrap();
        let length = text.lines().find_map(|line| {
            line.to_lowercase()
                .strip_prefix("content-length: ")?
                .parse()
                .ok()
        });
        self.heads.lock().unwrap().push(text);
        self.stream
            .read_exact(&mut vec![0; length.unwrap_or(0)])
            .is_ok()
    }

    fn answer(&mut self) {
        self.send(STREAM);
    }

    fn send(&mut self, stream: &str) {
        let length = stream.len();
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {length}\r\n\r\n"
        );
        self.stream
            .write_all(format!("{head}{stream}").as_bytes())
            .unwrap();
        self.stream.flush().unwrap();
    }
}

fn at(base_url: String, options: ProviderOptions) -> Llm {
    let options = ProviderOptions {
        wire: Some(WireKind::Chat),
        base_url: Some(base_url),
        key: Some(Secret::new(KEY)),
        ..options
    };
    let options = ProviderOptions {
        retry: RetryRules::default(),
        ..options
    };
    Llm::new(LlmOptions {
        providers: [("mine".to_owned(), options)].into(),
        ..LlmOptions::default()
    })
}

async fn answer_of(llm: &Llm) -> Result<String, planck_agent::model::Failure> {
    let model = planck_common::spec::ModelRef {
        provider: "mine".into(),
        id: "m".into(),
        base_url: None,
    };
    let provider = llm.provider(&model).unwrap();
    let (body, _) = ask(&http(), &*provider, head("m", json!({})), &[user("go")]).await?;
    Ok(text_of(&body.content))
}

#[tokio::test]
async fn a_closed_kept_connection_is_replaced() {
    // The first two connections answer one request and close as soon as they have read the second
    // request.
    let server = HandWrittenServer::start(|connection, number| {
        let answers = if number < 2 { 1 } else { usize::MAX };
        for _ in 0..answers {
            if !connection.read() {
                return;
            }
            connection.answer();
        }
        connection.read();
    });
    let llm = at(format!("http://{}", server.at), ProviderOptions::default());
    let model = planck_common::spec::ModelRef {
        provider: "mine".into(),
        id: "m".into(),
        base_url: None,
    };
    let (provider, clients) = (llm.provider(&model).unwrap(), http());
    for _ in 0..6 {
        let (body, _) = ask(&clients, &*provider, head("m", json!({})), &[user("go")])
            .await
            .unwrap();
        assert_eq!(text_of(&body.content), "fine");
    }
    assert_eq!(server.connections.load(SeqCst), 3);
}

#[tokio::test]
async fn a_closed_new_connection_is_a_failure() {
    let server = HandWrittenServer::start(|connection, _| {
        connection.read();
    });
    let failure = answer_of(&at(
        format!("http://{}", server.at),
        ProviderOptions::default(),
    ))
    .await
    .unwrap_err();
    assert_eq!(failure.kind, FailureKind::Transient, "{failure}");
    assert_eq!(
        server.connections.load(SeqCst),
        1,
        "it is for the agent to try again"
    );
}

#[tokio::test]
async fn queries_and_headers_of_the_configuration_are_sent() {
    let server = HandWrittenServer::start(|connection, _| {
        connection.read();
        connection.answer();
    });
    let headers = vec![
        ("x-team".to_owned(), Secret::new("blue")),
        ("User-Agent".to_owned(), Secret::new("ours")),
    ];
    let llm = at(
        format!("http://{}/v1?api-version=7", server.at),
        ProviderOptions {
            headers,
            ..ProviderOptions::default()
        },
    );
    assert_eq!(answer_of(&llm).await.unwrap(), "fine");
    let heads = server.heads();
    assert!(
        heads.starts_with("POST /v1/chat/completions?api-version=7 HTTP/1.1"),
        "{heads}"
    );
    assert!(
        heads.contains("x-team: blue\r\n") && heads.contains("user-agent: ours\r\n"),
        "{heads}"
    );
}

#[tokio::test]
async fn a_proxy_is_used_for_hosts_beyond_loopback_only() {
    let server = || {
        HandWrittenServer::start(|connection, _| {
            connection.read();
            connection.answer();
        })
    };
    let proxy = server();
    let url = Secret::new(format!("http://me:word@{}", proxy.at));
    let route = |except: &str| Route {
        proxy: Some(Proxy {
            https: Some(url.clone()),
            http: Some(url.clone()),
            except: except.into(),
        }),
        ca: None,
    };
    let by = |base: String, except: &str| {
        at(
            base,
            ProviderOptions {
                route: route(except),
                ..ProviderOptions::default()
            },
        )
    };
    assert_eq!(
        answer_of(&by("http://model.invalid/v1".into(), ""))
            .await
            .unwrap(),
        "fine"
    );
    let heads = proxy.heads();
    assert!(
        heads.starts_with("POST http://model.invalid/v1/chat/completions HTTP/1.1"),
        "{heads}"
    );
    assert!(
        heads.contains("proxy-authorization: Basic bWU6d29yZA=="),
        "{heads}"
    );
    assert!(
        answer_of(&by("http://model.invalid/v1".into(), ".invalid"))
            .await
            .is_err(),
        "NO_PROXY counts"
    );
    let here = server();
    assert_eq!(
        answer_of(&by(format!("http://{}/v1", here.at), ""))
            .await
            .unwrap(),
        "fine"
    );
    assert_eq!(
        (
            proxy.connections.load(SeqCst),
            here.connections.load(SeqCst)
        ),
        (1, 1)
    );
}

#[tokio::test]
async fn a_dead_proxy_is_named() {
    let dead = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let proxy = Some(Secret::new(format!("http://me:word@{dead}")));
    let route = Route {
        proxy: Some(Proxy {
            https: proxy.clone(),
            http: proxy,
            except: "here.invalid".into(),
        }),
        ca: None,
    };
    for (base, is_proxied) in [
        ("http://model.invalid/v1", true),
        ("https://model.invalid/v1", true),
        ("http://here.invalid/v1", false),
    ] {
        let options = ProviderOptions {
            route: route.clone(),
            ..ProviderOptions::default()
        };
        let failure = answer_of(&at(base.into(), options)).await.unwrap_err();
        let expected = format!(
            "mine: cannot connect to {base}/chat/completions through the proxy http://{dead}: "
        );
        assert_eq!(
            failure.message.starts_with(&expected),
            is_proxied,
            "{failure}"
        );
        assert!(!failure.message.contains("word"), "{failure}");
    }
}

#[tokio::test]
async fn what_cannot_be_read_names_the_server() {
    const GARBAGE: &str = "data: {\"choices\": 7}\n\n";
    let server = HandWrittenServer::start(|connection, _| {
        connection.read();
        connection.send(GARBAGE);
    });
    let base = format!("http://me:word@{}/v1?secret=word", server.at);
    let failure = answer_of(&at(base, ProviderOptions::default()))
        .await
        .unwrap_err();
    let address = format!("(from http://{}/v1/chat/completions)", server.at);
    assert_eq!(failure.kind, FailureKind::Refused, "{failure}");
    assert!(
        failure
            .message
            .starts_with("mine: an event of the stream cannot be read")
            && failure.message.ends_with(&address),
        "{failure}"
    );
    assert!(!failure.message.contains("word"), "{failure}");
}

#[tokio::test]
async fn an_authority_of_the_configuration_is_trusted() {
    let issued = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let ca = folder.path().join("ca.pem");
    std::fs::write(&ca, issued.cert.pem()).unwrap();
    let key =
        rustls::pki_types::PrivateKeyDer::try_from(issued.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap();
    let config = Arc::new(
        config
            .with_no_client_auth()
            .with_single_cert(vec![issued.cert.der().clone()], key)
            .unwrap(),
    );
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let session = rustls::ServerConnection::new(Arc::clone(&config)).unwrap();
            let stream: rustls::StreamOwned<_, TcpStream> =
                rustls::StreamOwned::new(session, stream);
            let mut connection = Connection {
                stream: Box::new(stream),
                heads: Arc::default(),
            };
            if connection.read() {
                connection.answer();
            }
        }
    });
    let by = |ca: Option<std::path::PathBuf>| {
        let route = Route { proxy: None, ca };
        at(
            format!("https://localhost:{port}/v1"),
            ProviderOptions {
                route,
                ..ProviderOptions::default()
            },
        )
    };
    let refused = answer_of(&by(None)).await.unwrap_err();
    assert!(refused.message.contains("certificate"), "{refused}");
    assert_eq!(answer_of(&by(Some(ca))).await.unwrap(), "fine");
    let missing = answer_of(&by(Some(folder.path().join("none.pem"))))
        .await
        .unwrap_err();
    assert!(
        missing.message.contains("none.pem") && missing.kind == FailureKind::Refused,
        "{missing}"
    );
}
