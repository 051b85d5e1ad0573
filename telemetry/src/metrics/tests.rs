use super::{families::FAMILIES, *};

fn metrics() -> Metrics {
    Metrics::new(Resource::builder_empty().build(), None)
}

#[test]
fn every_family_is_there_from_the_start() {
    let metrics = metrics();
    // Nodes of other tests may record in this process, so these metrics have instruments of their
    // own.
    let _counted = Meters::new(&metrics.provider.meter("planck"), vitals::Gauges::default);
    let text = metrics.text();
    for family in FAMILIES {
        assert!(
            text.contains(&format!("# TYPE {} {}\n", family.name, family.kind.name())),
            "no {}",
            family.name
        );
    }
    insta::assert_snapshot!(text);
}

#[test]
fn recorded_events_appear_in_the_text() {
    let metrics = metrics();
    let meters = metrics.meters();
    meters.turn_ended("completed", Duration::from_millis(70));
    meters.turn_ended("completed", Duration::from_secs(4000));
    meters.tool_called(Some("say \"hi\"\\\n"), true, Duration::from_secs(1));
    let usage = planck_common::usage::Usage {
        input_tokens: 10,
        output_tokens: 3,
        cost_usd: 0.25,
        ..Default::default()
    };
    let call = ModelCall {
        provider: "anthropic",
        model: "m",
        error: None,
        took: Duration::from_secs(2),
        first_token: Some(Duration::from_millis(40)),
        usage: Some(&usage),
    };
    meters.model_called(call);
    meters.model_called(ModelCall {
        error: Some("transient"),
        first_token: None,
        usage: None,
        ..call
    });
    let text = metrics.text();
    for line in [
        "planck_turns_total{outcome=\"completed\"} 2",
        "planck_turns_total{outcome=\"error\"} 0",
        "planck_turn_duration_seconds_bucket{le=\"0.05\"} 0",
        "planck_turn_duration_seconds_bucket{le=\"0.1\"} 1",
        "planck_turn_duration_seconds_bucket{le=\"3600\"} 1",
        "planck_turn_duration_seconds_bucket{le=\"+Inf\"} 2",
        "planck_turn_duration_seconds_sum 4000.07",
        "planck_turn_duration_seconds_count 2",
        "planck_tool_calls_total{outcome=\"error\",tool=\"say \\\"hi\\\"\\\\\\n\"} 1",
        "planck_model_requests_total{model=\"m\",outcome=\"ok\",provider=\"anthropic\"} 1",
        "planck_model_requests_total{model=\"m\",outcome=\"transient\",provider=\"anthropic\"} 1",
        "planck_tokens_total{kind=\"input\",model=\"m\",provider=\"anthropic\"} 10",
        "planck_cost_usd_total{model=\"m\",provider=\"anthropic\"} 0.25",
        "planck_time_to_first_token_seconds_count 1",
    ] {
        assert!(
            text.lines().any(|told| told == line),
            "no {line} in\n{text}"
        );
    }
    assert!(!text.contains("gen_ai"), "those are for collectors only");
}
