//! Tests of connection reuse and of concurrent requests.

use super::*;

#[tokio::test]
async fn connections_are_reused() {
    for name in PROVIDERS {
        let server = Server::start(
            Script::new().always(Reply::text("one two three").and_call("list", json!({}))),
        )
        .await
        .unwrap();
        let (provider, client) = (
            llm(&server, Times::default())
                .provider(&model(&server, name))
                .unwrap(),
            http(),
        );
        let messages = [user("go")];
        for _ in 0..20 {
            ask(&client, &*provider, head("m", json!({})), &messages)
                .await
                .unwrap();
        }
        assert_eq!(server.connections(), 1, "{name}");
        for _ in 0..4 {
            let asked = (0..50).map(|_| ask(&client, &*provider, head("m", json!({})), &messages));
            assert!(
                futures_util::future::join_all(asked)
                    .await
                    .iter()
                    .all(Result::is_ok),
                "{name}"
            );
        }
        // While a connection is being returned to the pool, another request cannot reuse it and
        // opens a new one, which is then kept too. On a loaded machine that happens more often: at
        // a load of 14, one request in five opened a connection.
        assert!(
            server.connections() <= 110,
            "{name}: {} for 220 requests",
            server.connections()
        );
    }
}

#[tokio::test]
async fn no_more_requests_run_at_once_than_configured() {
    let server = Server::start(
        Script::new().always(Reply::text("a b c").pace(Pace::per_second(100.0).chunk(2))),
    )
    .await
    .unwrap();
    let model = model(&server, "openai");
    let options = ProviderOptions {
        base_url: model.base_url.clone(),
        max_concurrent: Some(3),
        key: Some(Secret::new(KEY)),
        ..ProviderOptions::default()
    };
    let llm = Llm::new(LlmOptions {
        providers: [("openai".to_owned(), options)].into(),
        ..LlmOptions::default()
    });
    let (provider, client, messages) = (llm.provider(&model).unwrap(), http(), [user("go")]);
    let asked = (0..12).map(|_| ask(&client, &*provider, head("m", json!({})), &messages));
    assert!(
        futures_util::future::join_all(asked)
            .await
            .iter()
            .all(Result::is_ok)
    );
    assert_eq!(server.most_streams(), 3);
}

#[tokio::test]
async fn a_dropped_stream_closes_its_request() {
    let server = Server::start(
        Script::new()
            .always(Reply::text("a b c d e f").with_fault(ScriptedFault::Hang { after: 2 })),
    )
    .await
    .unwrap();
    let provider = llm(&server, Times::default())
        .provider(&model(&server, "openai"))
        .unwrap();
    let mut encoder = provider.encoder(head("m", json!({})));
    encoder.push(&user("go"));
    let client = http();
    let mut stream = provider.stream(&client, "m", encoder.request(None));
    assert!(matches!(
        stream.next().await,
        Some(Ok(ReplyProgress::Chunks(_)))
    ));
    assert_eq!(server.streams(), 1);
    drop(stream);
    timeout(Duration::from_secs(5), async {
        while server.streams() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("the server sees the request end");
}
