//! Breaks lines of prose between words, so that a terminal does not break them within one.

use std::ops::Range;

use textwrap::{WordSeparator, core::Word, wrap_algorithms::wrap_first_fit};

/// Returns the parts of a line that become lines of their own. The first one may be `first` columns
/// wide, and the others `rest`. The blanks at which the line is broken are in none of them.
///
/// A word that is wider than a line stays whole: the terminal breaks it, and it can still be copied
/// as one word. Addresses, paths, and sentences of scripts without blanks are such words.
pub fn lines(line: &str, first: usize, rest: usize) -> Vec<Range<usize>> {
    let words: Vec<Word<'_>> = WordSeparator::AsciiSpace.find_words(line).collect();
    let widths = [first, rest].map(|width| u16::try_from(width.max(1)).unwrap_or(u16::MAX).into());
    let mut start = 0;
    let parts = wrap_first_fit(&words, &widths).into_iter().map(|part| {
        let length = |word: &Word<'_>| word.word.len() + word.whitespace.len();
        let length: usize = part.iter().map(length).sum();
        let blanks = part.last().map_or(0, |word| word.whitespace.len());
        let range = start..start + length - blanks;
        start += length;
        range
    });
    parts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_at_blanks_only() {
        for (text, first, rest, expected) in [
            ("one two three", 20, 20, &["one two three"][..]),
            ("one two three", 7, 7, &["one two", "three"]),
            ("one two three", 3, 9, &["one", "two three"]),
            ("one  two", 5, 5, &["one", "two"]),
            ("  one two", 6, 6, &["  one", "two"]),
            (
                "see https://example.org/a/b now",
                10,
                10,
                &["see", "https://example.org/a/b", "now"],
            ),
            ("größer 日本 x", 11, 11, &["größer 日本", "x"]),
            ("one ", 10, 10, &["one"]),
            ("", 10, 10, &[""]),
        ] {
            let parts = lines(text, first, rest);
            let parts: Vec<&str> = parts.into_iter().map(|part| &text[part]).collect();
            assert_eq!(parts, expected, "{text:?}");
        }
    }
}
