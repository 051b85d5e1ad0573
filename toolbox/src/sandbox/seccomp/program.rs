//! Compiles a filter of system calls into classic BPF for the kernel.
//!
//! The filter finds the number of a call by binary search. When a filter is installed, the kernel
//! runs it for every number to learn which calls are always allowed. With a linear search,
//! installing the filter took a quarter of a millisecond for each process.

use std::collections::BTreeMap;

use nix::libc::{self, c_long};
use seccompiler::{BpfProgram, sock_filter};

/// The reason why a filter cannot be compiled.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unassembled {
    #[error("Planck does not know the system calls of {0}")]
    Architecture(&'static str),
    #[error("the number of a call is not one: {0}")]
    Number(c_long),
    #[error("a jump is longer than {} instructions", u8::MAX)]
    Jump,
}

/// The effect of the filter on a call.
#[derive(Debug, Clone)]
pub(super) enum SyscallRule {
    /// The call fails with "operation not permitted".
    Refused,
    /// The call fails as if the kernel did not have it.
    Unknown,
    /// The call fails with "operation not permitted" if one of these checks matches.
    RefusedIf(Vec<Check>),
}

/// A condition on the lower 32 bits of a call's argument.
#[derive(Debug, Clone)]
pub(super) enum Check {
    /// At least one of these bits is set.
    AnyBit { argument: u8, bits: u32 },
    /// The bits under the mask have one of these values.
    OneOf {
        argument: u8,
        mask: u32,
        values: Vec<u32>,
    },
    /// The argument has none of these values.
    NoneOf { argument: u8, values: Vec<u32> },
}

/// The rules of a filter by system call number. A call without a rule is allowed.
#[derive(Debug)]
pub(super) struct Filter {
    rules: BTreeMap<c_long, SyscallRule>,
    newest: u32,
}

const KILL: u32 = libc::SECCOMP_RET_KILL_PROCESS;
const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;

/// The offsets in bytes of the call number, the architecture and the arguments in `struct
/// seccomp_data`.
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
    /// Creates a filter for the calls up to this number. Calls with higher numbers fail as if the
    /// kernel did not have them. Those of the x32 interface on x86-64 are among them, which have the
    /// same architecture value.
    pub fn up_to(newest: u32) -> Self {
        Self {
            rules: BTreeMap::new(),
            newest,
        }
    }

    /// Sets the rule of a call, and replaces an earlier rule of the same call.
    pub fn add(&mut self, call: c_long, rule: SyscallRule) {
        self.rules.insert(call, rule);
    }

    /// Compiles the filter for an architecture, which is named as in `std::env::consts::ARCH`.
    /// Calls of any other architecture kill their process.
    pub fn assemble(&self, architecture: &'static str) -> Result<BpfProgram, Unassembled> {
        let mut code = Assembler::default();
        let (kill, allow) = (code.end(KILL), code.end(ALLOW));
        let refuse = code.end(libc::SECCOMP_RET_ERRNO | libc::EPERM.unsigned_abs());
        let unknown = code.end(libc::SECCOMP_RET_ERRNO | libc::ENOSYS.unsigned_abs());
        let mut ranges = Ranges::new(allow);
        for (call, rule) in &self.rules {
            let number = u32::try_from(*call).map_err(|_| Unassembled::Number(*call))?;
            let target = match rule {
                SyscallRule::Refused => refuse,
                SyscallRule::Unknown => unknown,
                SyscallRule::RefusedIf(checks) => code.checks(checks, refuse, allow)?,
            };
            ranges.exempt(number, target);
        }
        ranges.continue_with(self.newest + 1, unknown);
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

/// The position of an instruction: the number of instructions from it to the end of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Label(usize);

/// A map from ranges of call numbers to jump targets. Each entry holds the first number of its
/// range. The entries are in ascending order, and the first entry is for 0.
struct Ranges(Vec<(u32, Label)>);

impl Ranges {
    fn new(usual: Label) -> Self {
        Self(vec![(0, usual)])
    }

    /// Gives one system call number another target. The number must be higher than those that were
    /// passed to earlier calls of this function.
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

/// A builder that adds the instructions of a program from its end to its start. Jumps only go
/// forward, so the target of a jump must already exist.
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

    /// Returns the distance to `target` for a jump in the instruction that is added next.
    fn distance(&self, target: Label) -> Result<u8, Unassembled> {
        u8::try_from(self.0.len() - target.0).map_err(|_| Unassembled::Jump)
    }

    /// Adds an instruction that loads a word for `next`, the instruction that was added last.
    fn load_for(&mut self, offset: u32, next: Label) -> Result<Label, Unassembled> {
        // A load cannot jump, so it must be placed directly before `next`.
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
