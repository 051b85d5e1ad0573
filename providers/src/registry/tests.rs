use super::*;
use crate::ModelOptions;
use crate::secret::Secret;
use planck_agent::model::RetryRules;

fn model(provider: &str, base_url: Option<&str>) -> ModelRef {
    ModelRef {
        provider: provider.into(),
        id: "m".into(),
        base_url: base_url.map(str::to_owned),
    }
}

fn llm(provider: &str, options: ProviderOptions) -> Llm {
    Llm::new(LlmOptions {
        providers: [(provider.to_owned(), options)].into(),
        ..LlmOptions::default()
    })
}

fn with_key() -> ProviderOptions {
    ProviderOptions {
        key: Some(Secret::new("0123456789")),
        ..ProviderOptions::default()
    }
}

fn error(llm: &Llm, model: &ModelRef) -> String {
    llm.provider(model).err().unwrap().to_string()
}

#[test]
fn an_error_names_what_is_missing() {
    let llm = Llm::new(LlmOptions::default());
    let unknown = error(&llm, &model("gpt", None));
    assert!(
        unknown.starts_with("unknown provider `gpt`; known are anthropic, azure, deepseek,"),
        "{unknown}"
    );
    assert_eq!(
        error(&llm, &model("openai", None)),
        "provider `openai` has no key; set OPENAI_API_KEY or `providers.openai.api_key`"
    );
    assert_eq!(
        error(&llm, &model("scripted", None)),
        "provider `scripted` needs a base_url: nothing is assumed"
    );
    assert!(
        error(&llm, &model("ollama", Some("ftp://x"))).contains("`ftp://x` is no http address")
    );
    assert!(error(&llm, &model("ollama", Some("http://"))).contains("base_url"));
    for local in [
        model("ollama", None),
        model("llama_cpp", Some("127.0.0.1:1")),
        model("openai", Some("http://127.0.0.1:1/v1")),
    ] {
        assert!(llm.provider(&local).is_ok(), "{local:?}");
    }
}

#[test]
fn a_key_is_sent_only_to_the_addresses_it_was_given_for() {
    let trusted = ProviderOptions {
        trusted_urls: vec!["https://proxy.example/v1".into()],
        ..with_key()
    };
    let moved = ProviderOptions {
        base_url: Some("http://127.0.0.1:9/v1".into()),
        ..with_key()
    };
    for (options, base, expected) in [
        (with_key(), "https://api.openai.com/v1", true),
        (with_key(), "https://evil.example/v1", false),
        (with_key(), "http://api.openai.com/v1", false),
        (trusted, "https://proxy.example/v2", true),
        (moved.clone(), "http://127.0.0.1:9/v1", true),
        (moved, "https://api.openai.com/v1", false),
    ] {
        let llm = llm("openai", options);
        let known = llm.known("openai").unwrap();
        assert_eq!(
            known.is_configured(&base.parse().unwrap()),
            expected,
            "{base}"
        );
    }
}

#[test]
fn requests_to_one_address_share_their_limits() {
    let llm = llm("openai", with_key());
    let here = llm.provider(&model("openai", None)).unwrap();
    assert!(Arc::ptr_eq(
        &here,
        &llm.provider(&model("openai", Some("https://api.openai.com/v1/")))
            .unwrap()
    ));
    assert!(!Arc::ptr_eq(
        &here,
        &llm.provider(&model("openai", Some("http://127.0.0.1:1")))
            .unwrap()
    ));
}

#[test]
fn providers_with_a_key_and_local_ones_are_available() {
    assert_eq!(
        Llm::new(LlmOptions::default()).available(),
        ["llama_cpp", "ollama"]
    );
    assert_eq!(
        llm("google", with_key()).available(),
        ["google", "llama_cpp", "ollama"]
    );
    let scripted = ProviderOptions {
        base_url: Some("http://127.0.0.1:1".into()),
        ..ProviderOptions::default()
    };
    assert_eq!(
        llm("scripted", scripted).available(),
        ["llama_cpp", "ollama", "scripted"]
    );
}

#[test]
fn an_unknown_model_has_a_cautious_card_and_a_warning() {
    let mine = ModelOptions {
        provider: "ollama".into(),
        model: "mine".into(),
        context_window: Some(9),
        ..ModelOptions::default()
    };
    let llm = Llm::new(LlmOptions {
        models: vec![mine],
        ..LlmOptions::default()
    });
    let of = |id: &str| ModelRef {
        provider: "ollama".into(),
        id: id.into(),
        base_url: None,
    };
    assert_eq!(
        (
            llm.card(&of("mine:8b")).context_window,
            llm.warning(&of("mine:8b"))
        ),
        (9, None)
    );
    assert_eq!(
        llm.card(&of("other")),
        crate::catalogue::UNKNOWN.card(RetryRules::default())
    );
    assert!(
        llm.warning(&of("other"))
            .unwrap()
            .contains("`ollama:other` is not in the catalogue")
    );
    assert!(llm.list().models.iter().any(|row| row.id == "ollama:mine"));
    assert!(
        llm.list()
            .models
            .is_sorted_by_key(|row| (row.provider.clone(), row.model.clone()))
    );
}

#[test]
fn headers_that_cannot_be_sent_are_named() {
    let bad = ProviderOptions {
        headers: vec![("a b".into(), Secret::new("c"))],
        ..with_key()
    };
    assert!(error(&llm("openai", bad), &model("openai", None)).contains("`a b` is no header"));
}

#[test]
fn an_endpoint_with_any_name_needs_a_wire_or_a_preset() {
    let named = |options: ProviderOptions| llm("mine", options);
    let at = |options: ProviderOptions| ProviderOptions {
        base_url: Some("https://gateway.example/x".into()),
        ..options
    };
    let by_wire = named(at(ProviderOptions {
        wire: Some(WireKind::Anthropic),
        ..ProviderOptions::default()
    }));
    assert_eq!(
        by_wire.provider(&model("mine", None)).unwrap().name(),
        "mine"
    );
    assert!(by_wire.available().contains(&"mine".to_owned()));
    let by_preset = named(at(ProviderOptions {
        preset: Some("openrouter".into()),
        ..ProviderOptions::default()
    }));
    let known = by_preset.known("mine").unwrap();
    assert_eq!(
        (known.preset.name, known.options.base_url.as_deref()),
        ("openrouter", Some("https://gateway.example/x"))
    );
    assert!(
        error(&named(at(ProviderOptions::default())), &model("mine", None))
            .contains("unknown provider `mine`")
    );
    let nowhere = named(ProviderOptions {
        wire: Some(WireKind::Chat),
        ..ProviderOptions::default()
    });
    assert_eq!(
        error(&nowhere, &model("mine", None)),
        "provider `mine` needs a base_url: nothing is assumed"
    );
}

#[test]
fn tokens_of_another_address_bear_its_name() {
    let llm = llm("openai", with_key());
    let label = |base: &str| {
        llm.known("openai")
            .unwrap()
            .target(&base.parse().unwrap())
            .label
    };
    assert_eq!(label("https://api.openai.com/v1"), "openai");
    assert_eq!(label("http://127.0.0.1:8080/v1"), "openai@127.0.0.1:8080");
    assert_eq!(
        label("http://user:password@127.0.0.1:8080/v1"),
        "openai@127.0.0.1:8080"
    );
}
