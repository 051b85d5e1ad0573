//! Generates session names of an adjective and a noun, and numbers agents that ask for the same
//! name. Later attempts at a session name append a random number, in case most names are taken.

use planck_common::SessionName;

const ADJECTIVES: &str = "able agile amber ample azure bold brave breezy bright brisk calm candid cheery civil clear clever cosy crisp curious daring
    deft eager early easy fair fancy fine firm fleet fluent fond frank free fresh gentle glad golden good grand green handy happy hardy
    hearty honest humble jolly keen kind lively light loyal lucid lucky lush mellow merry mild modest neat nimble noble novel open patient
    placid plain pleasant plucky polite prime proud pure quick quiet rapid ready regal robust rosy serene sharp shiny silent silver simple
    sleek smart smooth snappy snug sober solid spry stable steady still stout sunny sure swift tidy upbeat vivid warm wise witty zesty";

const NOUNS: &str = "acorn anchor apple arrow aspen badger bamboo basil beacon beaver birch bison bridge brook canyon cedar cherry cliff cloud clover
    comet coral crane creek cricket daisy dawn delta dolphin dove dune eagle echo elm ember falcon fern field finch fjord forest fox garden
    glacier grove harbor hazel heron hill holly island ivy jasmine juniper kestrel lagoon lake lantern lark laurel lily linden lotus lynx
    maple marsh meadow meteor mint moon moss nectar oak ocean olive orchid otter owl pearl pebble pine planet plum pond poplar prairie quartz
    rain raven reed reef river robin rowan sage seal shore sky sparrow spring spruce star stone stream summit swan thistle tide tiger trail
    tulip valley violet walnut wave willow wren zephyr";

/// How many generated names are tried before creation of the session fails.
pub const TRIES: u32 = 40;

/// Generates a session name. The first `attempt` is 0. From attempt 3 on, the name ends with a
/// random number of at most 2 digits, and each further attempt allows 2 digits more, up to 16.
pub fn make_up(attempt: u32) -> SessionName {
    let name = format!("{}-{}{}", pick(ADJECTIVES), pick(NOUNS), number(attempt));
    SessionName::parse(&name).unwrap_or_else(|_too_long| make_up(0))
}

fn number(attempt: u32) -> String {
    match attempt.checked_sub(3) {
        None => String::new(),
        Some(more) => format!(
            "-{}",
            fastrand::u64(1..100_u64.saturating_pow(more.min(7) + 1))
        ),
    }
}

fn pick(words: &str) -> &str {
    let count = words.split_whitespace().count();
    words
        .split_whitespace()
        .nth(fastrand::usize(..count.max(1)))
        .unwrap_or_default()
}

/// Returns the name of the `n`-th agent that asks for `name`: the first gets `name` itself, and
/// later ones get the suffix `-n`. A name with a suffix has at most 64 characters.
pub fn nth(name: &str, n: u32) -> String {
    if n <= 1 {
        return name.to_owned();
    }
    let end = format!("-{n}");
    name.chars()
        .take(64 - end.len())
        .chain(end.chars())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn there_are_ten_thousand_plain_names() {
        for words in [ADJECTIVES, NOUNS] {
            let all: Vec<_> = words.split_whitespace().collect();
            assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
            assert!(all.len() >= 100);
        }
    }

    #[test]
    fn later_tries_have_numbers() {
        for attempt in 0..40 {
            let name = make_up(attempt);
            assert_eq!(
                name.split('-').count(),
                if attempt < 3 { 2 } else { 3 },
                "{name}"
            );
        }
    }

    #[test]
    fn a_second_agent_of_a_name_gets_a_number() {
        assert_eq!(
            [nth("coder", 1), nth("coder", 2), nth(&"ä".repeat(64), 12)],
            [
                "coder".into(),
                "coder-2".into(),
                format!("{}-12", "ä".repeat(61))
            ]
        );
    }
}
