//! The Rust sources of the workspace, parsed.

use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::{
    Attribute, Item, LitStr, Macro, UseTree,
    spanned::Spanned,
    visit::{self, Visit},
};

const SKIPPED: &[&str] = &[
    "target",
    ".git",
    ".tools",
    ".planck",
    "node_modules",
    "__pycache__",
];

/// A Rust file.
pub struct Source {
    /// The path from the root of the workspace.
    pub path: String,
    /// The number of lines outside of `#[cfg(test)]` modules.
    pub lines: usize,
    /// The parsed file without `#[cfg(test)]` items.
    pub file: syn::File,
    /// The files, without their extension, that this file declares by `#[cfg(test)] mod name;`.
    test_modules: Vec<String>,
    is_test: bool,
}

/// The names that a file uses.
#[derive(Default)]
pub struct Names {
    /// Every path of two words or more, its words joined by `::`.
    pub paths: Vec<String>,
    pub texts: Vec<String>,
    /// Every macro and function that is called by a path, and every path that is imported.
    pub calls: Vec<String>,
}

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_owned()
}

/// Returns the path of every file below the root, relative to the root, except in skipped folders.
pub fn files() -> Vec<String> {
    let (mut found, mut folders) = (Vec::new(), vec![root()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() && !SKIPPED.contains(&name.as_str()) {
                folders.push(path);
            } else if path.is_file() {
                found.push(
                    path.strip_prefix(root())
                        .unwrap()
                        .to_str()
                        .unwrap()
                        .to_owned(),
                );
            }
        }
    }
    found.sort();
    found
}

pub fn all() -> Vec<Source> {
    let mut sources: Vec<Source> = files()
        .into_iter()
        .filter(|path| path.ends_with(".rs"))
        .map(Source::parse)
        .collect();
    let modules: Vec<String> = sources
        .iter()
        .flat_map(|source| source.test_modules.clone())
        .collect();
    for source in &mut sources {
        let stem = source.path.trim_end_matches(".rs");
        source.is_test |= modules
            .iter()
            .any(|module| stem == module || stem.starts_with(&format!("{module}/")));
    }
    sources
}

impl Source {
    fn parse(path: String) -> Self {
        let text = std::fs::read_to_string(root().join(&path)).unwrap();
        let mut file =
            syn::parse_file(&text).unwrap_or_else(|error| panic!("cannot parse {path}: {error}"));
        let tests: usize = file
            .items
            .iter()
            .filter(|item| is_test_item(item))
            .map(span_lines)
            .sum();
        let test_modules = file
            .items
            .iter()
            .filter(|item| is_test_item(item))
            .filter_map(|item| elsewhere(&path, item))
            .collect();
        file.items.retain(|item| !is_test_item(item));
        let is_test = path.starts_with("tests/");
        Self {
            lines: text.lines().count() - tests,
            path,
            file,
            test_modules,
            is_test,
        }
    }

    /// Returns whether the whole file is test code.
    pub fn is_test(&self) -> bool {
        self.is_test
    }

    pub fn names(&self) -> Names {
        let mut names = Names::default();
        names.visit_file(&self.file);
        names
    }
}

/// Returns the path, without its extension, of the file of a module that is declared as `mod
/// name;`. Returns `None` for any other item.
fn elsewhere(path: &str, item: &Item) -> Option<String> {
    let Item::Mod(module) = item else { return None };
    let (folder, name) = path.rsplit_once('/')?;
    let folder = match name {
        "lib.rs" | "main.rs" => folder,
        _ => path.trim_end_matches(".rs"),
    };
    module
        .content
        .is_none()
        .then(|| format!("{folder}/{}", module.ident))
}

pub fn span_lines(spanned: &impl Spanned) -> usize {
    let span = spanned.span();
    span.end().line + 1 - span.start().line
}

fn is_test_item(item: &Item) -> bool {
    struct Attributes(bool);
    impl<'ast> Visit<'ast> for Attributes {
        fn visit_attribute(&mut self, attribute: &'ast Attribute) {
            self.0 |= is_cfg_test(attribute);
        }
        fn visit_item(&mut self, _: &'ast Item) {} // nested items have attributes of their own
    }
    let mut found = Attributes(false);
    visit::visit_item(&mut found, item);
    found.0
}

fn is_cfg_test(attribute: &Attribute) -> bool {
    let words = |list: &syn::MetaList| list.tokens.to_string().contains("test");
    attribute.path().is_ident("cfg") && attribute.meta.require_list().is_ok_and(words)
}

impl<'ast> Visit<'ast> for Names {
    fn visit_attribute(&mut self, _: &'ast Attribute) {}

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let known = self.paths.len();
        self.tree("", &item.tree);
        self.calls.extend(self.paths.iter().skip(known).cloned());
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.paths.push(words(path));
        visit::visit_path(self, path);
    }

    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        if let syn::Expr::Path(function) = &*call.func {
            self.calls.push(words(&function.path));
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_lit_str(&mut self, text: &'ast LitStr) {
        self.texts.push(text.value());
    }

    fn visit_macro(&mut self, called: &'ast Macro) {
        self.calls.push(words(&called.path));
        self.tokens(called.tokens.clone());
        visit::visit_macro(self, called);
    }
}

fn words(path: &syn::Path) -> String {
    path.segments
        .iter()
        .map(|segment| segment.ident.to_string())
        .collect::<Vec<_>>()
        .join("::")
}

impl Names {
    fn tree(&mut self, before: &str, tree: &UseTree) {
        match tree {
            UseTree::Path(path) => self.tree(&format!("{before}{}::", path.ident), &path.tree),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.tree(before, tree)),
            UseTree::Name(name) => self.paths.push(format!("{before}{}", name.ident)),
            UseTree::Rename(name) => self.paths.push(format!("{before}{}", name.ident)),
            UseTree::Glob(_) => self.paths.push(format!("{before}*")),
        }
    }

    /// Collects the texts and paths of a macro from its tokens, because macros are not parsed.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path = String::new();
        for token in tokens {
            match token {
                TokenTree::Ident(word) => path.push_str(&word.to_string()),
                TokenTree::Punct(mark) if mark.as_char() == ':' => path.push(':'),
                TokenTree::Punct(_) => self.paths.push(std::mem::take(&mut path)),
                TokenTree::Group(group) => {
                    self.paths.push(std::mem::take(&mut path));
                    self.tokens(group.stream());
                }
                TokenTree::Literal(literal) => {
                    self.paths.push(std::mem::take(&mut path));
                    self.texts.extend(
                        syn::parse_str::<LitStr>(&literal.to_string())
                            .ok()
                            .map(|text| text.value()),
                    );
                }
            }
        }
        self.paths.push(path);
    }
}
