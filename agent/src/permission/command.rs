//! Commands in rules and in calls. A command is read in two ways, because a mistake must never let
//! a command run: an `allow` rule understands only the plainest commands, and `ask` and `deny` rules
//! look for their words in every part of a command.

use planck_common::permission::RuleAction;

use super::Match;

/// The characters that make a command something else than words, even in quotes. The shell gives a
/// meaning to most of them in double quotes too.
const UNUSUAL: &str = "|;&$`()<>\\{}!#~";

/// The words after which the shell itself begins a command: reserved words, and the builtins that run
/// their arguments.
const BEGINNERS: [&str; 14] = [
    "!", "if", "then", "elif", "else", "while", "until", "do", "time", "coproc", "command",
    "builtin", "exec", "eval",
];

/// A word of a command, without its quotes.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Word {
    text: String,
    /// The shell expands the word, so this text is not what the program gets.
    expands: bool,
}

impl Word {
    fn push(&mut self, letter: char, expands: bool) {
        self.text.push(letter);
        self.expands |= expands;
    }

    fn is_assignment(&self) -> bool {
        let name = self.text.split('=').next().unwrap_or_default();
        let name = name.strip_suffix('+').unwrap_or(name);
        name.len() < self.text.len()
            && !name.is_empty()
            && self.text.contains('=')
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    }
}

/// The `command` of a call.
#[derive(Debug)]
pub(super) struct ShellCommand {
    /// The words, if this is a simple command in which nothing is unusual.
    simple: Option<Vec<Word>>,
    /// Every sequence of words between the separators of the shell.
    parts: Vec<CommandPart>,
    /// Some of the command cannot be divided into words.
    hidden: bool,
}

/// Words that the shell may run as a command.
#[derive(Debug)]
struct CommandPart {
    words: Vec<Word>,
    /// The words are the text of a quoted word, which another program may run.
    quoted: bool,
}

/// The words of a rule.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CommandPattern {
    words: Vec<String>,
    /// The last word is `*`, so any words may follow.
    any_more: bool,
}

impl CommandPattern {
    /// Reads a pattern, or returns what is wrong with it and how to write it.
    pub(super) fn parse(text: &str) -> Result<Self, (&'static str, &'static str)> {
        let mut words = plain(text).ok_or((
            "not the words of a simple command",
            "write words with one space between them, without characters that the shell interprets; write a rule for each command",
        ))?;
        let any_more = words
            .pop_if(|word| word.expands && word.text == "*")
            .is_some();
        if words.iter().any(|word| word.expands) {
            return Err((
                "only the last word can be `*`, and no word can contain `*`, `?` or `[`",
                "write `*` for all words from there on, or put the word in quotes",
            ));
        }
        if !words.is_empty() && !begins_simply(&words) {
            return Err((
                "the first word names no program",
                "write the program's name first",
            ));
        }
        Ok(Self {
            words: words.into_iter().map(|word| word.text).collect(),
            any_more,
        })
    }

    /// Compares the words of a simple command. A word that the shell expands fits only as one of
    /// the further words.
    fn allows(&self, words: &[Word]) -> bool {
        let fits = |(wanted, word): (&String, &Word)| !word.expands && word.text == *wanted;
        (words.len() == self.words.len() || (self.any_more && words.len() > self.words.len()))
            && self.words.iter().zip(words).all(fits)
    }

    /// Compares the words from the start of a part of any command. Nothing is known from the first
    /// word on that the shell expands. A program may be named with its folder.
    fn begins(&self, words: &[Word]) -> Match {
        for (at, wanted) in self.words.iter().enumerate() {
            let Some(word) = words.get(at) else {
                return Match::No;
            };
            if word.expands {
                return Match::Unreadable;
            }
            let is_program = at == 0 && !wanted.contains('/');
            let name = match word.text.rsplit('/').next() {
                Some(name) if is_program => name,
                Some(_) | None => &word.text,
            };
            if name != wanted {
                return Match::No;
            }
        }
        let more = words.get(self.words.len()..).unwrap_or_default();
        if self.any_more || more.is_empty() {
            Match::Yes
        } else if more.iter().all(|word| word.expands) {
            // The words may expand to nothing.
            Match::Unreadable
        } else {
            Match::No
        }
    }
}

impl ShellCommand {
    pub(super) fn read(text: &str) -> Self {
        let mut reader = PartReader::default();
        reader.read(text, 0);
        let simple = plain(text).filter(|words| begins_simply(words));
        Self {
            simple,
            parts: reader.parts,
            hidden: reader.hidden,
        }
    }

    /// Compares the command with the pattern of a rule with this action.
    pub(super) fn matches(&self, pattern: &CommandPattern, action: RuleAction) -> Match {
        match action {
            RuleAction::Allow => Match::of(
                self.simple
                    .as_ref()
                    .is_some_and(|words| pattern.allows(words)),
            ),
            RuleAction::Ask | RuleAction::Deny => self.contains(pattern),
        }
    }

    /// Looks for the words of a rule in the whole command. The rule matches if a part of the command
    /// begins with them. If they are elsewhere, as in `sudo git push` or `sh -c "git push"`, only
    /// the program knows whether it runs them, so the result is that the command is unreadable.
    fn contains(&self, pattern: &CommandPattern) -> Match {
        if pattern.words.is_empty() {
            return Match::Yes;
        }
        let hidden = if self.hidden {
            Match::Unreadable
        } else {
            Match::No
        };
        self.parts
            .iter()
            .map(|part| part.contains(pattern))
            .fold(hidden, Match::max)
    }

    /// Returns whether this is a simple command of which the shell expands no word, so its text as
    /// the pattern of a rule matches no other command.
    pub(super) fn is_exact(&self) -> bool {
        self.simple
            .as_ref()
            .is_some_and(|words| words.iter().all(|word| !word.expands))
    }
}

impl CommandPart {
    fn contains(&self, pattern: &CommandPattern) -> Match {
        let words = after_assignments(&self.words);
        let start = match self.quoted {
            true => Match::No,
            false => self
                .beginnings()
                .map(|words| pattern.begins(words))
                .max()
                .unwrap_or(Match::No),
        };
        // Arguments are seldom commands, so one that begins with an expanded word says nothing.
        let may_begin = |words: &[Word]| {
            pattern.begins(words) != Match::No && words.first().is_some_and(|word| !word.expands)
        };
        let is_elsewhere = (usize::from(!self.quoted)..words.len())
            .filter_map(|at| words.get(at..))
            .any(may_begin);
        match is_elsewhere {
            true => start.max(Match::Unreadable),
            false => start,
        }
    }

    /// Returns the words from each place on at which the shell begins a command: the first word
    /// behind assignments, and what follows a word that begins a command there.
    fn beginnings(&self) -> impl Iterator<Item = &[Word]> {
        std::iter::successors(Some(after_assignments(&self.words)), |words| {
            let (first, rest) = words.split_first()?;
            BEGINNERS
                .contains(&first.text.as_str())
                .then(|| after_assignments(rest))
        })
    }
}

fn after_assignments(words: &[Word]) -> &[Word] {
    let assignments = words.iter().take_while(|word| word.is_assignment());
    words.get(assignments.count()..).unwrap_or_default()
}

fn is_glob(letter: char) -> bool {
    matches!(letter, '*' | '?' | '[' | ']')
}

/// Returns whether the shell takes the first word as the name of a program.
fn begins_simply(words: &[Word]) -> bool {
    words.first().is_some_and(|word| {
        !word.expands
            && !word.text.is_empty()
            && !word.text.starts_with('-')
            && !word.text.contains(['=', ' '])
    })
}

/// Divides a text into words at its spaces. Returns `None` if the text contains anything unusual: a
/// character that the shell interprets, other white space, white space at an end, or a quote that
/// does not close.
fn plain(text: &str) -> Option<Vec<Word>> {
    let is_unusual = |letter: char| {
        UNUSUAL.contains(letter) || letter.is_control() || (letter.is_whitespace() && letter != ' ')
    };
    if text.is_empty() || text.starts_with(' ') || text.ends_with(' ') || text.contains(is_unusual)
    {
        return None;
    }
    let (mut words, mut word, mut quote) = (Vec::new(), None::<Word>, None);
    for letter in text.chars() {
        match (quote, letter) {
            (Some(open), _) if open == letter => quote = None,
            (Some(_), _) => word.get_or_insert_default().push(letter, false),
            (None, ' ') => words.extend(word.take()),
            (None, '\'' | '"') => {
                word.get_or_insert_default();
                quote = Some(letter);
            }
            (None, _) => word.get_or_insert_default().push(letter, is_glob(letter)),
        }
    }
    words.extend(word);
    quote.is_none().then_some(words)
}

// Divides any command into its parts.

/// How many times quoted text inside quoted text is read.
const DEEPEST: u8 = 4;

/// The parts of a command that were found so far, and the state at this place of its text. Where the
/// reader does not follow the shell's grammar exactly, it finds more parts than the shell.
#[derive(Default)]
struct PartReader {
    parts: Vec<CommandPart>,
    /// Some of the command cannot be divided into words.
    hidden: bool,
    words: Vec<Word>,
    word: Option<Word>,
    /// The next word is the target of a redirection.
    redirects: bool,
    /// The line has a comment.
    comment: bool,
    /// The text is between backticks.
    backticks: bool,
}

impl PartReader {
    /// Adds the parts of a command, or of a text in quotes inside `depth` others.
    fn read(&mut self, text: &str, depth: u8) {
        if depth == DEEPEST {
            self.hidden = true;
            return;
        }
        let first = self.parts.len();
        self.divide(text, depth);
        let is_text = |word: &&Word| {
            word.text
                .contains(|letter: char| letter.is_whitespace() || UNUSUAL.contains(letter))
        };
        let parts = self.parts.get(first..).unwrap_or_default();
        let texts: Vec<String> = parts
            .iter()
            .flat_map(|part| &part.words)
            .filter(is_text)
            .filter(|word| word.text != text)
            .map(|word| word.text.clone())
            .collect();
        texts.iter().for_each(|text| self.read(text, depth + 1));
    }

    fn divide(&mut self, text: &str, depth: u8) {
        self.comment = false;
        self.backticks = false;
        let mut letters = text.chars().peekable();
        while let Some(letter) = letters.next() {
            match letter {
                // In a comment a backslash does not join two lines.
                '\\' if !self.comment => self.escaped(letters.next(), depth),
                '\'' => self.single(&mut letters, depth),
                '"' => self.double(&mut letters, depth),
                '<' | '>' => {
                    self.redirect(depth);
                    letters.next_if(|next| matches!(next, '&' | '|'));
                }
                '&' if letters.peek() == Some(&'>') => {}
                '#' if self.word.is_none() => {
                    self.comment = true;
                    self.push('#', false);
                }
                '\n' => {
                    self.end_part(depth);
                    self.comment = false;
                }
                '`' => self.backtick(depth),
                '|' | ';' | '&' | '(' | ')' | '\r' | '\0' => self.end_part(depth),
                _ if letter.is_whitespace() || letter.is_control() => self.end_word(depth),
                _ => self.push(letter, is_glob(letter) || "${~".contains(letter)),
            }
        }
        self.end_part(depth);
    }

    /// Begins a redirection. The number of a file descriptor in front of it is no word of the
    /// command.
    fn redirect(&mut self, depth: u8) {
        let is_number = |word: &mut Word| word.text.bytes().all(|byte| byte.is_ascii_digit());
        if self.word.take_if(is_number).is_none() {
            self.end_word(depth);
        }
        self.redirects = true;
    }

    fn push(&mut self, letter: char, expands: bool) {
        self.word.get_or_insert_default().push(letter, expands);
    }

    /// Begins or ends a command between backticks. Its output becomes words of the command around
    /// it, so the word in which it begins is expanded, as with `$(`.
    fn backtick(&mut self, depth: u8) {
        if !self.backticks {
            self.push('`', true);
        }
        self.backticks = !self.backticks;
        self.end_part(depth);
    }

    fn escaped(&mut self, letter: Option<char>, depth: u8) {
        match letter {
            Some('\n') => {}
            // Between backticks these are the backticks of a command inside the command.
            Some('`') if self.backticks => {
                self.push('`', true);
                self.end_part(depth);
            }
            Some(letter) => self.push(letter, false),
            None => self.unclosed(depth),
        }
    }

    /// Records that the command ends inside a quote. In a text, an apostrophe is no quote.
    fn unclosed(&mut self, depth: u8) {
        self.hidden |= depth == 0;
    }

    fn single(&mut self, letters: &mut impl Iterator<Item = char>, depth: u8) {
        self.word.get_or_insert_default();
        for letter in letters {
            match letter {
                '\'' => return,
                _ => self.push(letter, false),
            }
        }
        self.unclosed(depth);
    }

    fn double(&mut self, letters: &mut impl Iterator<Item = char>, depth: u8) {
        self.word.get_or_insert_default();
        while let Some(letter) = letters.next() {
            match letter {
                '"' => return,
                '\\' => match letters.next() {
                    Some('\n') => {}
                    Some(letter @ ('$' | '`' | '"' | '\\')) => self.push(letter, false),
                    Some(letter) => {
                        self.push('\\', false);
                        self.push(letter, false);
                    }
                    None => break,
                },
                _ => self.push(letter, matches!(letter, '$' | '`')),
            }
        }
        self.unclosed(depth);
    }

    fn end_word(&mut self, depth: u8) {
        let Some(mut word) = self.word.take() else {
            return;
        };
        match word.text.as_str() {
            // The shell's own words around a group begin and end a part.
            "{" | "}" => return self.end_part(depth),
            "[" | "[[" | "]" | "]]" => word.expands = false,
            _ => {}
        }
        if std::mem::take(&mut self.redirects) {
            // The target is no word of the command, but may contain another command.
            return self.add(vec![word], true);
        }
        self.words.push(word);
    }

    fn end_part(&mut self, depth: u8) {
        if self.word.is_some() {
            self.end_word(depth);
        }
        self.redirects = false;
        let words = std::mem::take(&mut self.words);
        if !words.is_empty() {
            self.add(words, depth > 0);
        }
    }

    fn add(&mut self, words: Vec<Word>, quoted: bool) {
        self.parts.push(CommandPart { words, quoted });
    }
}
