//! Divides any command into its parts.

use super::{Part, UNUSUAL, Word, is_glob};

/// How many times quoted text inside quoted text is read.
const DEEPEST: u8 = 4;

/// The parts of a command that were found so far, and the state at this place of its text. Where the
/// reader does not follow the shell's grammar exactly, it finds more parts than the shell.
#[derive(Default)]
pub(super) struct PartReader {
    pub(super) parts: Vec<Part>,
    /// Some of the command cannot be divided into words.
    pub(super) hidden: bool,
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
    pub(super) fn read(&mut self, text: &str, depth: u8) {
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
        self.parts.push(Part { words, quoted });
    }
}
