use proptest::prelude::*;

use super::*;

#[test]
fn characters_that_a_terminal_would_obey_become_visible() {
    for (text, cleaned) in [
        ("plain\ttext\n", "plain\ttext\n"),
        ("\x1b]52;c;cm0gLXJm\x07", "␛]52;c;cm0gLXJm␇"),
        ("\x1b[2J\x1b[31mred", "␛[2J␛[31mred"),
        ("\u{9b}2J\u{9d}0;t\u{9c}", "\\u{9b}2J\\u{9d}0;t\\u{9c}"),
        ("a\rb\r\nc\x08\x7f\0", "a␍b\nc␈␡␀"),
        (
            "admin\u{202e}txt.exe\u{2066}\u{2069}\u{200f}\u{61c}",
            "admin\\u{202e}txt.exe\\u{2066}\\u{2069}\\u{200f}\\u{61c}",
        ),
        (
            "pay\u{200b}pal\u{feff}\u{ad}\u{e0041}",
            "pay\\u{200b}pal\\u{feff}\\u{ad}\\u{e0041}",
        ),
        ("a\u{2028}b\u{85}", "a\\u{2028}b\\u{85}"),
    ] {
        assert_eq!(clean(text), cleaned, "{text:?}");
    }
}

#[test]
fn scripts_and_emoji_are_unchanged() {
    for text in ["Grüße, 世界", "👨‍👩‍👧", "❤️‍🔥", "1️⃣", "می‌خواهم", "עברית", "क्‍ष"]
    {
        assert_eq!(clean(text), text);
    }
}

#[test]
fn joiners_and_selectors_carry_no_hidden_text() {
    assert_eq!(clean("a\u{200d}b1\u{200d}2"), "a\\u{200d}b1\\u{200d}2");
    assert_eq!(
        clean("😀\u{fe01}\u{fe02}\u{fe03}"),
        "😀\u{fe01}\\u{fe02}\\u{fe03}"
    );
    assert_eq!(
        clean("世\u{200c}\u{200d}\u{200c}"),
        "世\u{200c}\\u{200d}\\u{200c}"
    );
    assert_eq!(clean("😀\u{e0100}"), "😀\\u{e0100}");
}

#[test]
fn a_cell_stays_on_its_line() {
    assert_eq!(clean_line("1.0\nalive\tnode\r\n"), "1.0␊alive␉node␍␊");
}

#[test]
fn json_keeps_its_meaning() {
    let value =
        serde_json::json!({"a\u{9b}": "\u{202e}\u{1b}[0m\u{7f}\u{e0041} é 世", "b": ["\n", 1]});
    let text = serde_json::to_string_pretty(&value).unwrap();
    let cleaned = clean_json(&text);
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&cleaned).unwrap(),
        value
    );
    assert!(
        cleaned.contains(r"\u009b")
            && cleaned.contains(r"\u202e")
            && cleaned.contains(r"\udb40\udc41"),
        "{cleaned}"
    );
    assert!(cleaned.contains("é 世"));
    assert_eq!(clean_json("no json \x1b[2J"), "no json \\u001b[2J");
}

#[test]
fn a_log_line_keeps_only_the_formatters_colours() {
    assert_eq!(
        log::clean_log("\x1b[2m12:00\x1b[0m \x1b[31mERROR\x1b[0m x"),
        "\x1b[2m12:00\x1b[0m \x1b[31mERROR\x1b[0m x"
    );
    assert_eq!(
        log::clean_log("a\x1b[2Jb\x1b]52;c;x\x07\x1b[mc\x1b"),
        "a␛[2Jb␛]52;c;x␇\x1b[mc␛"
    );
    assert_eq!(log::clean_log("\x1b[1;3\u{202e}m"), "␛[1;3\\u{202e}m");
}

#[test]
fn drawn_text_holds_no_foreign_sequence() {
    let drawn = Drawing::control("\x1b[1m") + "\x1b[2Jname\u{202e}" + Drawing::control("\x1b[0m");
    assert_eq!(drawn.as_str(), "\x1b[1m␛[2Jname\\u{202e}\x1b[0m");
}

proptest! {
    #[test]
    fn nothing_hidden_is_left(text in any::<String>()) {
        let cleaned = clean(&text);
        prop_assert!(cleaned.chars().all(|c| !c.is_control() || matches!(c, '\n' | '\t')));
        let bidi = |c: char| matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' | '\u{61c}');
        prop_assert!(!cleaned.contains(bidi));
        prop_assert_eq!(clean(&cleaned), cleaned.as_ref());
        prop_assert!(!clean_line(&text).contains(['\n', '\t']));
        prop_assert!(clean_json(&text).chars().all(|c| !c.is_control() || matches!(c, '\n' | '\t')));
    }

    #[test]
    fn any_json_keeps_its_meaning(text in any::<String>(), key in any::<String>()) {
        let value = serde_json::json!({ key: text });
        let cleaned = clean_json(&value.to_string()).into_owned();
        prop_assert_eq!(serde_json::from_str::<serde_json::Value>(&cleaned).unwrap(), value);
    }
}
