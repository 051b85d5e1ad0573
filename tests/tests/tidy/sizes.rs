//! Limits source files to 600 lines, test files to 700 lines, functions to 60 lines and structs to
//! 12 fields. Refuses file names without a meaning, such as `utils`.

use syn::{
    ImplItemFn, ItemFn, ItemStruct, TraitItemFn,
    visit::{self, Visit},
};

use crate::{
    layers::production,
    none,
    source::{self, Source, span_lines},
};

const MOST_LINES: usize = 600;
const MOST_LINES_OF_TESTS: usize = 700;
const MOST_LINES_OF_A_FUNCTION: usize = 60;
const MOST_FIELDS: usize = 12;

/// Files and items that may be larger, and why.
const ALLOWED: &[(&str, &str)] = &[
    (
        "bench/src/measure.rs BenchLine",
        "a line that the benchmark prints: its fields are the figures",
    ),
    (
        "common/src/command.rs",
        "the commands of the protocol, types only, read as one list",
    ),
    (
        "common/src/envelope.rs Envelope",
        "the wire form of an event: its fields are the protocol's",
    ),
    (
        "common/src/message.rs Flat",
        "the wire form of a part, before it is known which kind it is",
    ),
    (
        "common/src/spec.rs AgentSpec",
        "the stored form of an agent: its fields are the protocol's",
    ),
    (
        "common/src/spec.rs Member",
        "the wire form of a team's member: its fields are the protocol's",
    ),
];

fn is_allowed(name: &str) -> bool {
    ALLOWED.iter().any(|(allowed, _)| *allowed == name)
}

pub fn files_are_small(sources: &[Source]) -> Vec<String> {
    let large = sources.iter().filter_map(|source| {
        let most = if source.is_test() {
            MOST_LINES_OF_TESTS
        } else {
            MOST_LINES
        };
        let breach = format!("{}: {} lines, at most {most}", source.path, source.lines);
        (source.lines > most && !is_allowed(&source.path)).then_some(breach)
    });
    large.collect()
}

pub fn functions_and_structs_are_small(sources: &[Source]) -> Vec<String> {
    let mut breaches = Vec::new();
    for source in production(sources) {
        let mut sizes = Sizes {
            source,
            breaches: &mut breaches,
        };
        sizes.visit_file(&source.file);
    }
    breaches
}

#[test]
fn files_are_named_for_what_they_hold() {
    const EMPTY: &[&str] = &[
        "mod", "utils", "util", "helpers", "helper", "manager", "misc",
    ];
    let breaches = source::files().into_iter().filter(|path| {
        let name = path.rsplit('/').next().unwrap_or(path);
        EMPTY
            .iter()
            .any(|empty| name.strip_suffix(".rs") == Some(empty))
    });
    none(
        breaches
            .map(|path| format!("{path}: such a name says nothing"))
            .collect(),
    );
}

#[test]
fn allowed_exceptions_exist() {
    let stale = ALLOWED.iter().filter(|(name, _)| {
        let (path, item) = name.split_once(' ').unwrap_or((name, ""));
        !std::fs::read_to_string(source::root().join(path)).is_ok_and(|text| text.contains(item))
    });
    none(
        stale
            .map(|(name, _)| format!("{name} is allowed to be large, but does not exist"))
            .collect(),
    );
}

struct Sizes<'a> {
    source: &'a Source,
    breaches: &'a mut Vec<String>,
}

impl Sizes<'_> {
    fn check(&mut self, name: &dyn std::fmt::Display, size: usize, most: usize, unit: &str) {
        let name = format!("{} {name}", self.source.path);
        if size > most && !is_allowed(&name) {
            self.breaches
                .push(format!("{name}: {size} {unit}, at most {most}"));
        }
    }

    fn function(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let lines = span_lines(signature) + span_lines(block) - 1;
        self.check(&signature.ident, lines, MOST_LINES_OF_A_FUNCTION, "lines");
    }
}

impl<'ast> Visit<'ast> for Sizes<'_> {
    fn visit_item_fn(&mut self, function: &'ast ItemFn) {
        self.function(&function.sig, &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        self.function(&function.sig, &function.block);
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast TraitItemFn) {
        if let Some(block) = &function.default {
            self.function(&function.sig, block);
        }
        visit::visit_trait_item_fn(self, function);
    }

    fn visit_item_struct(&mut self, item: &'ast ItemStruct) {
        self.check(&item.ident, item.fields.len(), MOST_FIELDS, "fields");
        visit::visit_item_struct(self, item);
    }
}
