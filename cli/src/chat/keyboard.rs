//! Reads the user's prompts, with a line editor on a terminal and line by line otherwise. The
//! editor completes file names and keeps the history of a project's chats.

use std::{
    borrow::Cow,
    cell::Cell,
    fs::{DirBuilder, File, OpenOptions},
    io::{self, BufRead as _, IsTerminal as _, Read as _, Seek as _, SeekFrom, Write as _, stdin},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use nix::sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};
use planck_host::{
    regular_file::{EntryKind, OpenFolder},
    terminal::{Drawing, clean, clean_line},
    whole_file,
};
use rustyline::{
    ColorMode, Config, Context, Helper,
    completion::{Completer, Pair},
    error::ReadlineError,
    highlight::{CmdKind, Highlighter},
    hint::Hinter,
    history::DefaultHistory,
    validate::{ValidationContext, ValidationResult, Validator},
};
use tokio::sync::mpsc;

use super::slash::SlashCommand;
use crate::{
    ask::{MARK_NO_PASTES, MARK_PASTES, TypeAhead},
    output::{Stream, draw, say, warn},
    render::{Style, style::Paint},
};

const PROMPT: &str = "› ";

/// Reads a line that begins with a text.
type ReadLine = dyn FnMut(&str) -> Option<String>;

/// The source of prompts. Its thread reads a line only on request and never two at once, because a
/// read from a terminal cannot be cancelled. The thread is never joined, because it may block in a
/// read until the process ends.
pub struct Keyboard {
    /// Requests a line, which begins with this text.
    ask: std::sync::mpsc::Sender<String>,
    typed: mpsc::Receiver<Option<String>>,
    pub has_editor: bool,
    /// The terminal's settings when the chat began, or `None` if there is no editor or the settings
    /// cannot be read.
    before: Option<Termios>,
    /// What was typed and read from the terminal already.
    type_ahead: TypeAhead,
}

/// The paths from which the line editor takes its history and its completions.
pub struct EditorSources {
    /// The file with the lines of earlier chats, or `None` if the history is not stored.
    pub history: Option<PathBuf>,
    /// The directory that relative paths after `@` start from.
    pub dir: PathBuf,
    /// The models that `/model` completes.
    pub models: Vec<String>,
}

impl Keyboard {
    pub fn start(sources: EditorSources) -> anyhow::Result<Self> {
        let has_editor = stdin().is_terminal() && Style::of_stdout().in_place;
        let (ask, asked) = std::sync::mpsc::channel::<String>();
        let (send, typed) = mpsc::channel(1);
        let read = move || {
            let mut next: Box<ReadLine> = match has_editor {
                true => {
                    let history = History::open(sources.history);
                    let mut editor = Editor::new(sources.dir, sources.models, history);
                    Box::new(move |begin| editor.line(PROMPT, begin))
                }
                false => Box::new(line),
            };
            while let Ok(begin) = asked.recv()
                && send.blocking_send(next(&begin)).is_ok()
            {}
        };
        std::thread::Builder::new()
            .name("keyboard".into())
            .spawn(read)?;
        Ok(Self {
            ask,
            typed,
            has_editor,
            before: has_editor.then(|| tcgetattr(stdin()).ok()).flatten(),
            type_ahead: TypeAhead::default(),
        })
    }

    /// Puts back what was typed and read from the terminal during a turn.
    pub fn put_back(&mut self, typed: TypeAhead) {
        self.type_ahead.append(typed);
    }

    /// Returns the next prompt, or `None` at the end of the input or when the user leaves.
    pub async fn next(&mut self) -> io::Result<Option<String>> {
        let line = self.type_ahead.line();
        // The editor draws the prompt itself.
        if line.is_some() || !self.has_editor && Stream::Out.is_terminal() && stdin().is_terminal()
        {
            draw(&Style::of_stdout().paint(Paint::Strong, PROMPT))?;
        }
        if let Some(line) = line {
            say(&format!("{line}\n"))?;
            return Ok(Some(line));
        }
        if self.type_ahead.is_over() {
            return Ok(None);
        }
        let _ends_with_the_process = self.ask.send(self.type_ahead.unfinished_line());
        Ok(self.typed.recv().await.flatten())
    }

    /// Turns bracketed paste on, by which the editor recognises pasted text and which it uses only
    /// while it reads a line, and turns the terminal's echo off until the returned guard is
    /// dropped. Text that is typed meanwhile stays in the terminal's input, where the editor reads
    /// it later. Returns `None` if there is no editor.
    pub fn hush(&self) -> io::Result<Option<NoEcho>> {
        let Some(before) = &self.before else {
            return Ok(None);
        };
        let mut silent = before.clone();
        silent
            .local_flags
            .remove(LocalFlags::ECHO | LocalFlags::ICANON);
        // Without this flag, an interrupt would discard the lines that were typed before it.
        silent.local_flags.insert(LocalFlags::NOFLSH);
        tcsetattr(stdin(), SetArg::TCSADRAIN, &silent)?;
        draw(&Drawing::control(MARK_PASTES))?;
        Ok(Some(NoEcho(before.clone())))
    }
}

impl Drop for Keyboard {
    fn drop(&mut self) {
        // A signal may end the chat while the editor reads a line and has changed the terminal's
        // settings.
        if let Some(before) = &self.before {
            let _ended = tcsetattr(stdin(), SetArg::TCSADRAIN, before);
            let _closed = draw(&Drawing::control(MARK_NO_PASTES));
        }
    }
}

/// The guard that [`Keyboard::hush`] returns. Until the guard is dropped, the terminal does not
/// echo, but interrupts still work. Dropping the guard restores the previous settings.
pub struct NoEcho(Termios);

impl Drop for NoEcho {
    fn drop(&mut self) {
        let _ended = tcsetattr(stdin(), SetArg::TCSADRAIN, &self.0);
    }
}

/// Reads a line from standard input, after the text with which it begins. Returns `None` at the end
/// of the input, or if it cannot be read.
fn line(begin: &str) -> Option<String> {
    let mut line = begin.to_owned();
    let read = stdin().lock().read_line(&mut line).ok()?;
    (read > 0).then(|| line.trim_end_matches(['\r', '\n']).to_owned())
}

struct Editor {
    editor: rustyline::Result<rustyline::Editor<EditorHelper, DefaultHistory>>,
    history: History,
}

impl Editor {
    fn new(dir: PathBuf, models: Vec<String>, history: History) -> Self {
        let helper = EditorHelper {
            dir,
            models,
            has_text: Cell::new(false),
        };
        Self {
            editor: editor(helper, &history),
            history,
        }
    }

    /// Reads a prompt, which begins with `begin` and may have several lines, and adds it to the
    /// history. Returns `None` when the user leaves, or after a warning if the terminal cannot be
    /// used.
    fn line(&mut self, prompt: &str, begin: &str) -> Option<String> {
        let editor = match &mut self.editor {
            Ok(editor) => editor,
            Err(error) => {
                warn(&format!(
                    "planck: cannot edit lines on this terminal: {error}; try TERM=dumb"
                ));
                return None;
            }
        };
        let (mut begin, mut is_second) = (begin, false);
        let typed = loop {
            let begin = std::mem::take(&mut begin);
            match editor.readline_with_initial(prompt, (begin, "")) {
                // An interrupt discards the typed text. On an empty line, the second interrupt in a
                // row ends the chat.
                Err(ReadlineError::Interrupted)
                    if editor.helper().is_some_and(|aid| aid.has_text.take()) =>
                {
                    is_second = false;
                }
                Err(ReadlineError::Interrupted) if !is_second => {
                    is_second = true;
                    warn("press Ctrl-C again to leave");
                }
                typed => break typed,
            }
        };
        match typed {
            Ok(text) => {
                if !text.trim().is_empty()
                    && editor.add_history_entry(text.as_str()).unwrap_or(false)
                {
                    self.history.add(&text);
                }
                Some(text)
            }
            Err(ReadlineError::Interrupted | ReadlineError::Eof) => None,
            Err(error) => {
                warn(&format!("planck: cannot read from the terminal: {error}"));
                None
            }
        }
    }
}

fn editor(
    helper: EditorHelper,
    history: &History,
) -> rustyline::Result<rustyline::Editor<EditorHelper, DefaultHistory>> {
    let config = Config::builder()
        .completion_type(rustyline::CompletionType::List)
        .max_history_size(LINES)?
        .bracketed_paste(true)
        // The highlighter draws no colours but replaces control characters. Without this setting,
        // `NO_COLOR` would turn the highlighter off.
        .color_mode(ColorMode::Forced)
        .build();
    let mut editor =
        rustyline::Editor::with_history(config.clone(), DefaultHistory::with_config(&config))?;
    editor.set_helper(Some(helper));
    for entry in history.entries() {
        editor.add_history_entry(entry.as_str())?;
    }
    Ok(editor)
}

struct EditorHelper {
    /// The directory that relative paths after `@` start from.
    dir: PathBuf,
    /// The models that `/model` completes.
    models: Vec<String>,
    /// Whether there was text in the line when it was last drawn.
    has_text: Cell<bool>,
}

impl Helper for EditorHelper {}

impl Hinter for EditorHelper {
    type Hint = String;
}

impl Completer for EditorHelper {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        pos: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let typed = line.get(..pos).unwrap_or(line);
        if let Some(word) = typed.strip_prefix("/model ") {
            let names = self.models.iter().filter(|name| name.starts_with(word));
            return Ok((typed.len() - word.len(), names.cloned().map(pair).collect()));
        }
        if let Some(word) = typed
            .strip_prefix('/')
            .filter(|word| !word.contains(char::is_whitespace))
        {
            let names = SlashCommand::NAMES
                .iter()
                .filter(|name| name.starts_with(word));
            return Ok((0, names.map(|name| pair(format!("/{name}"))).collect()));
        }
        let (start, names) = matching_files(&self.dir, typed);
        Ok((start, names.into_iter().map(pair).collect()))
    }
}

fn pair(text: String) -> Pair {
    Pair {
        display: text.clone(),
        replacement: text,
    }
}

impl Highlighter for EditorHelper {
    /// Replaces control characters in the line. The editor would write them unchanged, and pasted
    /// text or the history may contain some.
    fn highlight<'l>(&self, line: &'l str, _: usize) -> Cow<'l, str> {
        self.has_text.set(!line.is_empty());
        clean(line)
    }

    /// Requests that the whole line is redrawn. Otherwise the editor would write a typed character
    /// without calling [`Self::highlight`].
    fn highlight_char(&self, _: &str, _: usize, _: CmdKind) -> bool {
        true
    }
}

impl Validator for EditorHelper {
    /// Accepts a line unless it ends with a backslash, after which the prompt continues on the next
    /// line.
    fn validate(&self, context: &mut ValidationContext) -> rustyline::Result<ValidationResult> {
        Ok(match context.input().ends_with('\\') {
            true => ValidationResult::Incomplete,
            false => ValidationResult::Valid(None),
        })
    }
}

/// The maximum number of entries of a folder. Names in a larger folder are not completed.
const MOST_ENTRIES: usize = 2_000;
/// The maximum number of names that are offered.
const OFFERED: usize = 200;

/// Returns the position of the last word in the typed text, and the words that can replace it.
/// There are none for a word that does not begin with `@`. A name with blanks is in quotes.
fn matching_files(dir: &Path, typed: &str) -> (usize, Vec<String>) {
    let quoted = typed.rfind("@\"").filter(|at| {
        let is_first = typed
            .get(..*at)
            .is_some_and(|before| before.is_empty() || before.ends_with(char::is_whitespace));
        is_first && typed.get(at + 2..).is_some_and(|rest| !rest.contains('"'))
    });
    if let Some(start) = quoted {
        let path = typed.get(start + 2..).unwrap_or_default();
        return (start, names(dir, path, true).unwrap_or_default());
    }
    let word = typed.rsplit(char::is_whitespace).next().unwrap_or(typed);
    let start = typed.len() - word.len();
    match word.strip_prefix('@') {
        Some(path) => (start, names(dir, path, false).unwrap_or_default()),
        None => (start, Vec::new()),
    }
}

fn names(dir: &Path, path: &str, is_quoted: bool) -> Option<Vec<String>> {
    let (folder, begun) = path
        .rsplit_once('/')
        .map_or(("", path), |(folder, begun)| (folder, begun));
    let above = if path.starts_with('/') {
        PathBuf::from(format!("/{folder}"))
    } else {
        dir.join(folder)
    };
    let entries = OpenFolder::open(&above).ok()?.entries(MOST_ENTRIES).ok()?;
    let folder = path.strip_suffix(begun).unwrap_or_default();
    let fits = |(name, kind): (String, EntryKind)| {
        let is_meant =
            name.starts_with(begun) && (begun.starts_with('.') || !name.starts_with('.'));
        // A name with control characters could look like a different name in the list.
        let is_plain = !name.contains('"') && clean_line(&name) == name;
        let (end, closing) = match kind {
            EntryKind::Folder => ("/", ""),
            EntryKind::File => ("", "\""),
            EntryKind::Link | EntryKind::Other(_) => return None,
        };
        let word = match is_quoted || name.contains(char::is_whitespace) {
            true => format!("@\"{folder}{name}{end}{closing}"),
            false => format!("@{folder}{name}{end}"),
        };
        (is_meant && is_plain).then_some(word)
    };
    let mut names: Vec<String> = entries.into_iter().filter_map(fits).take(OFFERED).collect();
    names.sort();
    Some(names)
}

/// The maximum number of entries that are loaded.
const LINES: usize = 1_000;
/// The size in bytes above which the file is cut to its newest entries. Before they are encoded as
/// JSON, these take at most half of this size.
const MOST_BYTES: u64 = 1024 * 1024;
/// The maximum size in bytes of a stored entry.
const LONGEST: usize = 16 * 1024;

struct History {
    /// The file, or `None` if the history is not stored.
    file: Option<PathBuf>,
    entries: Vec<String>,
}

impl History {
    /// Reads the stored entries, and cuts the file if it is too long. If that fails, prints a
    /// warning and returns a history that is not stored.
    fn open(file: Option<PathBuf>) -> Self {
        let Some(path) = file else {
            return Self {
                file: None,
                entries: Vec::new(),
            };
        };
        match load(&path) {
            Ok(entries) => Self {
                file: Some(path),
                entries,
            },
            Err(why) => {
                warn(&format!(
                    "planck: warning: cannot read the history {}: {why}; this chat keeps none",
                    path.display()
                ));
                Self {
                    file: None,
                    entries: Vec::new(),
                }
            }
        }
    }

    /// Returns the entries, oldest first.
    fn entries(&self) -> &[String] {
        &self.entries
    }

    /// Appends an entry to the file, unless the entry has more than [`LONGEST`] bytes. If the file
    /// cannot be written, prints a warning and stores no further entries.
    fn add(&mut self, entry: &str) {
        let Some(path) = self.file.as_ref().filter(|_| entry.len() <= LONGEST) else {
            return;
        };
        if let Err(why) = append(path, entry) {
            warn(&format!(
                "planck: warning: cannot write the history {}: {why}; this chat keeps none",
                path.display()
            ));
            self.file = None;
        }
    }
}

fn load(path: &Path) -> io::Result<Vec<String>> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(why) => return Err(why),
    };
    // The file may be longer than [`MOST_BYTES`], because chats append to it without cutting it.
    // Its newest entries are at its end.
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(2 * MOST_BYTES)))?;
    let mut text = Vec::new();
    file.take(2 * MOST_BYTES).read_to_end(&mut text)?;
    let parsed = text
        .split(|byte| *byte == b'\n')
        .filter_map(|line| serde_json::from_slice(line).ok());
    let mut entries: Vec<String> = parsed.collect();
    entries.drain(..entries.len().saturating_sub(LINES));
    if text.len() as u64 > MOST_BYTES {
        let mut left = usize::try_from(MOST_BYTES / 2).unwrap_or(usize::MAX);
        let fit = entries.iter().rev().take_while(|entry| {
            left = left.saturating_sub(entry.len());
            left > 0
        });
        let fit = fit.count();
        entries.drain(..entries.len() - fit);
        replace(path, &entries)?;
    }
    Ok(entries)
}

fn replace(path: &Path, entries: &[String]) -> io::Result<()> {
    let lines = entries
        .iter()
        .map(|entry| as_line(entry))
        .collect::<io::Result<String>>()?;
    whole_file::replace(path, lines.as_bytes(), 0o600)
}

fn append(path: &Path, entry: &str) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)?;
    }
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path)?
        .write_all(as_line(entry)?.as_bytes())
}

fn as_line(entry: &str) -> io::Result<String> {
    Ok(serde_json::to_string(entry)? + "\n")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn files_are_offered_and_hostile_names_are_not() {
        let folder = tempfile::tempdir().unwrap();
        for name in [
            "main.rs",
            "make.sh",
            ".hidden",
            "two words",
            "m\u{1b}[2Jx",
            "m\u{202e}x",
        ] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        std::fs::create_dir(folder.path().join("more")).unwrap();
        std::fs::write(folder.path().join("more/deep.txt"), "").unwrap();
        let offered = |typed| matching_files(folder.path(), typed);
        assert_eq!(
            offered("see @m"),
            (
                4,
                vec!["@main.rs".into(), "@make.sh".into(), "@more/".into()]
            )
        );
        assert_eq!(offered("@t"), (0, vec!["@\"two words\"".into()]));
        assert_eq!(offered("a @\"two w"), (2, vec!["@\"two words\"".into()]));
        assert_eq!(offered("@\"mo"), (0, vec!["@\"more/".into()]));
        assert_eq!(offered("@\"two words\" m"), (13, Vec::new()));
        assert_eq!(offered("@more/d"), (0, vec!["@more/deep.txt".into()]));
        assert_eq!(offered("@.h"), (0, vec!["@.hidden".into()]));
        assert_eq!(offered("mail me@m"), (5, Vec::new()));
        assert_eq!(offered("@gone/x"), (0, Vec::new()));
    }

    #[test]
    fn newest_entries_of_a_long_file_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history");
        let entry = |n: u64| format!("{n} {}", "x".repeat(10_000));
        let count = 4 * MOST_BYTES / 10_000;
        let lines: String = (0..count).map(|n| as_line(&entry(n)).unwrap()).collect();
        std::fs::write(&path, lines).unwrap();
        for _ in 0..2 {
            let history = History::open(Some(path.clone()));
            assert_eq!(history.entries().last(), Some(&entry(count - 1)));
        }
        assert!(path.metadata().unwrap().size() <= MOST_BYTES);
    }

    #[test]
    fn entries_of_several_lines_are_restored_and_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("project/history");
        let mut history = History::open(Some(path.clone()));
        for entry in ["one", "two\nlines \\ \"quoted\"", &"long".repeat(LONGEST)] {
            history.add(entry);
        }
        assert_eq!(
            History::open(Some(path.clone())).entries(),
            ["one", "two\nlines \\ \"quoted\""]
        );
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_history_that_is_too_long_is_cut_to_its_newest_entries() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history");
        let mut history = History::open(Some(path.clone()));
        for number in 0..150 {
            history.add(&format!("{number} {}", "x".repeat(10_000)));
        }
        let entries = History::open(Some(path.clone())).entries;
        assert!(
            entries
                .last()
                .is_some_and(|entry| entry.starts_with("149 "))
                && entries.len() < 60,
            "{}",
            entries.len()
        );
        assert!(
            fs::metadata(&path).unwrap().len() < MOST_BYTES,
            "the file is cut too"
        );
    }
}
