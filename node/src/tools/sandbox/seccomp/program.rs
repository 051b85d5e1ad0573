//! Assembles a filter of system calls into the kernel's classic BPF.
//!
//! The number of a call is found by binary search. When a filter is installed the kernel compiles
//! it, and runs it for every number there is to learn which calls are always allowed: with one
//! comparison after the other that took a quarter of a millisecond for each process.

use std::collections::BTreeMap;

use nix::libc::{self, c_long};
use seccompiler::{BpfProgram, sock_filter};

/// Why there is no program.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unassembled {
    #[error("Planck does not know the system calls of {0}")]
    Architecture(&'static str),
    #[error("the number of a call is not one: {0}")]
    Number(c_long),
    #[error("a jump is longer than {} instructions", u8::MAX)]
    Jump,
}

/// What becomes of a call.
#[derive(Debug, Clone)]
pub(super) enum Rule {
    /// It fails with "operation not permitted".
    Refused,
    /// It fails as on a kernel that does not have it.
    Unknown,
    /// It fails with "operation not permitted" if one of these applies.
    RefusedIf(Vec<Check>),
}

/// Something about the lower 32 bits of an argument.
#[derive(Debug, Clone)]
pub(super) enum Check {
    /// One of these bits is set.
    AnyBit { argument: u8, bits: u32 },
    /// Those of the bits that are in the mask make one of these values.
    OneOf {
        argument: u8,
        mask: u32,
        values: Vec<u32>,
    },
    /// It is none of these values.
    NoneOf { argument: u8, values: Vec<u32> },
}

/// Rules for calls by their numbers. A call without a rule is allowed.
#[derive(Debug, Default)]
pub(super) struct Filter(BTreeMap<c_long, Rule>);

/// On x86-64 the numbers from here on are the calls of the x32 interface, under the same
/// architecture.
const X32: u32 = 0x4000_0000;

const KILL: u32 = libc::SECCOMP_RET_KILL_PROCESS;
const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;

/// Where `struct seccomp_data` has the number, the architecture and the arguments.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;

const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const RETURN: u16 = 0x06;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_IF_AT_LEAST: u16 = 0x35;
const JUMP_IF_ANY_BIT: u16 = 0x45;

impl Filter {
    /// Replaces the rule that the call has.
    pub fn add(&mut self, call: c_long, rule: Rule) {
        self.0.insert(call, rule);
    }

    /// The program for an architecture, by the name that Rust has for it. Any other one's calls
    /// kill their process.
    pub fn assemble(&self, architecture: &'static str) -> Result<BpfProgram, Unassembled> {
        let mut code = Assembler::default();
        let (kill, allow) = (code.end(KILL), code.end(ALLOW));
        let refuse = code.end(libc::SECCOMP_RET_ERRNO | libc::EPERM.unsigned_abs());
        let unknown = code.end(libc::SECCOMP_RET_ERRNO | libc::ENOSYS.unsigned_abs());
        let mut ranges = Ranges::new(allow);
        for (call, rule) in &self.0 {
            let number = u32::try_from(*call).map_err(|_| Unassembled::Number(*call))?;
            let target = match rule {
                Rule::Refused => refuse,
                Rule::Unknown => unknown,
                Rule::RefusedIf(checks) => code.checks(checks, refuse, allow)?,
            };
            ranges.exempt(number, target);
        }
        if architecture == "x86_64" {
            ranges.continue_with(X32, unknown);
        }
        let search = code.search(&ranges.0)?;
        let search = code.load_for(NUMBER, search)?;
        let is_own = code.jump(JUMP_IF_EQUAL, audit_number(architecture)?, search, kill)?;
        code.load_for(ARCHITECTURE, is_own)?;
        Ok(code.finish())
    }
}

fn audit_number(architecture: &'static str) -> Result<u32, Unassembled> {
    match architecture {
        "x86_64" => Ok(0xc000_003e),
        "aarch64" => Ok(0xc000_00b7),
        "riscv64" => Ok(0xc000_00f3),
        other => Err(Unassembled::Architecture(other)),
    }
}

/// An instruction, as the number of instructions from it to the end of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Label(usize);

/// Where calls go from each number on, in ascending order; the first entry is for 0.
struct Ranges(Vec<(u32, Label)>);

impl Ranges {
    fn new(usual: Label) -> Self {
        Self(vec![(0, usual)])
    }

    /// Sends one number elsewhere, which is higher than all before.
    fn exempt(&mut self, number: u32, target: Label) {
        let usual = self.0.first().map_or(target, |(_, usual)| *usual);
        self.continue_with(number, target);
        self.continue_with(number + 1, usual);
    }

    fn continue_with(&mut self, from: u32, target: Label) {
        if self.0.len() > 1 && self.0.last().is_some_and(|(last, _)| *last == from) {
            self.0.pop();
        }
        if self.0.last().is_none_or(|(_, last)| *last != target) {
            self.0.push((from, target));
        }
    }
}

/// Holds a program from its end on: jumps go forward only, so that what they lead to is there
/// before them.
#[derive(Debug, Default)]
struct Assembler(Vec<sock_filter>);

impl Assembler {
    fn finish(mut self) -> BpfProgram {
        self.0.reverse();
        self.0
    }

    fn put(&mut self, code: u16, k: u32, jt: u8, jf: u8) -> Label {
        self.0.push(sock_filter { code, jt, jf, k });
        Label(self.0.len())
    }

    fn end(&mut self, result: u32) -> Label {
        self.put(RETURN, result, 0, 0)
    }

    fn jump(
        &mut self,
        code: u16,
        k: u32,
        then: Label,
        otherwise: Label,
    ) -> Result<Label, Unassembled> {
        let (then, otherwise) = (self.distance(then)?, self.distance(otherwise)?);
        Ok(self.put(code, k, then, otherwise))
    }

    /// From the instruction that is put next.
    fn distance(&self, target: Label) -> Result<u8, Unassembled> {
        u8::try_from(self.0.len() - target.0).map_err(|_| Unassembled::Jump)
    }

    /// Loads a word before the instruction that was put last.
    fn load_for(&mut self, offset: u32, next: Label) -> Result<Label, Unassembled> {
        // A load cannot jump.
        if next != Label(self.0.len()) {
            return Err(Unassembled::Jump);
        }
        Ok(self.put(LOAD, offset, 0, 0))
    }

    fn search(&mut self, ranges: &[(u32, Label)]) -> Result<Label, Unassembled> {
        let (low, high) = ranges.split_at(ranges.len() / 2);
        match (low, high) {
            ([], [(_, target)]) => Ok(*target),
            (_, [(from, _), ..]) => {
                let above = self.search(high)?;
                let below = self.search(low)?;
                self.jump(JUMP_IF_AT_LEAST, *from, above, below)
            }
            (_, []) => Err(Unassembled::Jump),
        }
    }

    fn checks(
        &mut self,
        checks: &[Check],
        refuse: Label,
        allow: Label,
    ) -> Result<Label, Unassembled> {
        checks
            .iter()
            .rev()
            .try_fold(allow, |next, check| self.check(check, refuse, next))
    }

    fn check(&mut self, check: &Check, refuse: Label, next: Label) -> Result<Label, Unassembled> {
        let (argument, mask, test) = match check {
            Check::AnyBit { argument, bits } => (
                argument,
                u32::MAX,
                self.jump(JUMP_IF_ANY_BIT, *bits, refuse, next)?,
            ),
            Check::OneOf {
                argument,
                mask,
                values,
            } => (argument, *mask, self.any_of(values, refuse, next)?),
            Check::NoneOf { argument, values } => {
                (argument, u32::MAX, self.any_of(values, next, refuse)?)
            }
        };
        let test = if mask == u32::MAX {
            test
        } else {
            self.put(AND, mask, 0, 0)
        };
        self.load_for(ARGUMENTS + 8 * u32::from(*argument), test)
    }

    fn any_of(
        &mut self,
        values: &[u32],
        then: Label,
        otherwise: Label,
    ) -> Result<Label, Unassembled> {
        values.iter().rev().try_fold(otherwise, |otherwise, value| {
            self.jump(JUMP_IF_EQUAL, *value, then, otherwise)
        })
    }
}
