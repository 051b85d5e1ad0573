use planck_common::{
    event::ToolEffect,
    permission::{Permissions, RuleAction},
};
use proptest::prelude::*;
use serde_json::json;

use super::{call, rule};
use crate::permission::{CallFacts, Match, judge, matches};

fn compare(action: &str, pattern: &str, command: &str) -> Match {
    let args = json!({"command": command}).to_string();
    matches(
        &rule(json!({"command": pattern, "action": action})),
        &call("bash", &args),
    )
}

#[test]
fn an_allow_rule_matches_a_simple_command() {
    for (pattern, command) in [
        ("ls", "ls"),
        ("git status", "git status"),
        ("git status", "git   status"),
        ("git *", "git"),
        ("git *", "git push --force origin main"),
        ("git *", "git log HEAD^ --format=%h"),
        ("git *", "git commit -m 'one two'"),
        ("git *", "git commit -m \"it's done\""),
        ("git *", "git add *.md"),
        ("git commit -m 'one two' *", "git commit -m \"one two\" a"),
        ("git push", "'git' \"pu\"sh"),
        ("ls '*'", "ls \"*\""),
        ("*", "make -j8 all"),
        ("cat *", "cat übung.md"),
    ] {
        assert_eq!(compare("allow", pattern, command), Match::Yes, "{command}");
    }
}

#[test]
fn an_allow_rule_matches_no_other_command() {
    for (pattern, command) in [
        ("git push", "git push origin"),
        ("git push *", "git"),
        ("git push *", "git pull"),
        ("git push *", "git 'push origin'"),
        ("git push *", "gitpush"),
        ("git push *", "Git push"),
        ("git push *", "/tmp/git push"),
        ("ls '*'", "ls *"),
        ("ls '*'", "ls a b"),
        ("ls a", "ls [a]"),
        ("ls a b", "ls ? b"),
    ] {
        assert_eq!(compare("allow", pattern, command), Match::No, "{command}");
    }
    for command in [
        "",
        " ",
        " ls",
        "ls ",
        "ls\ta",
        "ls\n",
        "ls\nrm a",
        "ls\rrm a",
        "ls\u{0}a",
        "ls\u{a0}a",
        "ls\u{2003}a",
        "ls\u{85}a",
        "ls\u{2028}rm",
        "ls; rm a",
        "ls && rm a",
        "ls || rm a",
        "ls | sh",
        "ls & rm a",
        "ls &",
        "ls > a",
        "ls < a",
        "ls 2>&1",
        "ls $A",
        "ls ${A}",
        "ls $(rm a)",
        "ls \"$(rm a)\"",
        "ls `rm a`",
        "ls \"`rm a`\"",
        "ls 'a;b'",
        "ls \"a",
        "ls 'a",
        "ls a\\",
        "ls \\; rm",
        "l\\s",
        "l? a",
        "/bin/l* a",
        "[ -f a ]",
        "A=b ls",
        "A+=b ls",
        "(ls)",
        "{ ls; }",
        "ls {a,b}",
        "! ls",
        "ls !a",
        "ls # a",
        "# ls",
        "ls ~",
        "~/ls",
        "\"\"",
        "'' ls",
        "-c ls",
        "'a b' c",
        "f() { rm a; }",
        "ls <(rm a)",
        "ls $'a'",
    ] {
        assert_eq!(compare("allow", "*", command), Match::No, "{command:?}");
    }
}

#[test]
fn a_strict_rule_matches_every_part_of_a_command() {
    for command in [
        "git push",
        "git push origin main",
        " git push",
        "git\tpush",
        "g\"i\"t 'push'",
        "g\\it push",
        "git \\\n push",
        "/usr/bin/git push",
        "x && git push",
        "x&&git push",
        "x || git push",
        "x; git push",
        "x | git push",
        "x & git push",
        "x\ngit push",
        "x\r\ngit push\r\n",
        "(git push)",
        "{ git push; }",
        "echo $(git push)",
        "echo `git push`",
        "A=b C=d git push",
        "git push > log 2>&1",
        "git >log push",
        "git 2>&1 push",
        "git &>log push",
        "<a git push",
        "git push $X",
        "git push 'unclosed",
        "cat <(git push)",
        "[ -f a ] && git push",
        "a # it\\\ngit push",
        "if git push; then x; fi",
        "if x; then git push; fi",
        "if x; then y; elif git push; then z; else git push; fi",
        "while git push; do x; done",
        "for i in a b; do A=b git push; done",
        "! git push",
        "! time git push",
        "time git push",
        "command git push",
        "eval git push",
        "x && exec /usr/bin/git push",
        "case a in a) git push;; esac",
    ] {
        for action in ["ask", "deny"] {
            let found = compare(action, "git push *", command);
            assert_eq!(found, Match::Yes, "{action} {command:?}");
        }
    }
    assert_eq!(compare("deny", "*", "anything; at all"), Match::Yes);
    assert_eq!(compare("deny", "*", ""), Match::Yes);
}

#[test]
fn a_strict_rule_asks_about_a_command_that_may_contain_its_words() {
    for command in [
        "sudo git push",
        "env A=b git push",
        "for i in git; do $i push; done",
        "while $X push; do a; done",
        "eval $X push",
        "git `true` push",
        "`echo git` push",
        "gi`true`t push",
        "git`true` push",
        "echo `echo \\`git push\\``",
        "xargs git push",
        "sh -c 'git push'",
        "sh -c \"x; git push\"",
        "sh -c \"sh -c 'git push'\"",
        "echo \"$(git push)\"",
        "grep 'git push' docs",
        "# git push",
        "$GIT push",
        "\"$GIT\" push",
        "git $VERB",
        "! git push$X",
        "sh -c \"git $X\"",
        "gi? push",
        "~/git push",
        "{git,push}",
        "$(which git) push",
        "x 'unclosed",
        "x \\",
    ] {
        for action in ["ask", "deny"] {
            let found = compare(action, "git push *", command);
            assert_eq!(found, Match::Unreadable, "{action} {command:?}");
        }
    }
    assert_eq!(
        compare("deny", "git push", "git push $X"),
        Match::Unreadable
    );
    assert_eq!(
        compare("deny", "git push", "git push `x`"),
        Match::Unreadable
    );
    assert_eq!(compare("deny", "time *", "time git push"), Match::Yes);
}

#[test]
fn a_strict_rule_does_not_match_a_command_without_its_words() {
    for command in [
        "",
        "ls",
        "git",
        "git status && make",
        "git pull; push",
        "echo $HOME",
        "echo \"$HOME\" > \"$OUT\"",
        "cat > $OUT",
        "for f in *.md; do echo \"$f\"; done",
        "[ -f a ] && make",
        "[[ -f a ]] || make",
        "git commit -m \"it's done; push later\"",
        "echo 'a $b c'",
        "git -C . push",
        "echo `date` > log",
        "if make; then echo `date`; fi",
    ] {
        for action in ["ask", "deny"] {
            let found = compare(action, "git push *", command);
            assert_eq!(found, Match::No, "{action} {command:?}");
        }
    }
    assert_eq!(compare("deny", "git push", "git push a"), Match::No);
}

#[test]
fn an_allow_rule_about_a_command_holds_in_the_working_directory_only() {
    for (cwd, allow) in [
        (json!(null), Match::Yes),
        (json!("."), Match::Yes),
        (json!(super::DIR), Match::Yes),
        (json!("sub"), Match::No),
        (json!(["."]), Match::No),
    ] {
        let args = json!({"command": "make", "cwd": cwd}).to_string();
        let about = |action| rule(json!({"command": "make", "action": action}));
        assert_eq!(
            matches(&about("allow"), &call("bash", &args)),
            allow,
            "{args}"
        );
        assert_eq!(
            matches(&about("deny"), &call("bash", &args)),
            Match::Yes,
            "{args}"
        );
    }
}

/// Returns texts in which the shell runs something else, or which look as if it did.
fn commands() -> impl Strategy<Value = String> {
    let pieces = prop::sample::select(vec![
        "git", "push", "ls", "*", " ", " ", "'", "\"", "\\", "a", "=", "-", "é", "$", "`", ";",
        "&", "|", "(", ")", "<", ">", "\n", "\r", "\t", "\0", "{", "}", "!", "#", "~", "[", "?",
        "\u{a0}", "\u{2028}", "A=b", "$(", "${", "&&", "\\\n",
    ]);
    prop::collection::vec(pieces, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn no_command_with_a_shell_separator_is_allowed(command in commands(), any in any::<String>()) {
        let patterns = ["*", "git *", "git push", "ls *", "a"];
        for text in [command.clone(), format!("git {any}"), format!("{command}{any}")] {
            let is_compound = text.contains(|letter: char| {
                "|;&$`()<>\\{}!#~\n\r\0".contains(letter)
                    || (letter.is_whitespace() && letter != ' ')
            });
            for pattern in patterns {
                let found = compare("allow", pattern, &text);
                prop_assert!(found == Match::No || !is_compound, "{pattern}: {text:?}");
            }
        }
    }

    #[test]
    fn a_command_that_is_allowed_is_seen_by_a_strict_rule(command in commands()) {
        for pattern in ["*", "git *", "git push", "ls *", "a"] {
            if compare("allow", pattern, &command) == Match::Yes {
                prop_assert_eq!(compare("deny", pattern, &command), Match::Yes, "{:?}", command);
            }
        }
    }

    #[test]
    fn a_denied_command_does_not_run_before_or_after_a_separator(
        before in "[a-z]{1,5}( [a-z]{1,5}){0,2}",
        separator in prop::sample::select(vec![";", "&&", "||", "|", "&", "\n", " ; "]),
        after in "( [a-z]{1,5}){0,2}",
    ) {
        for command in [
            format!("{before}{separator}git push{after}"),
            format!("git push{after}{separator}{before}"),
        ] {
            let args = json!({"command": command}).to_string();
            let layer = Permissions {
                rules: vec![rule(json!({"command": "git push *", "action": "deny"}))],
                ..Permissions::default()
            };
            let facts = CallFacts { effect: ToolEffect::Mutating, ..call("bash", &args) };
            prop_assert_eq!(judge(&[layer], &facts).action, RuleAction::Deny, "{}", command);
        }
    }
}
