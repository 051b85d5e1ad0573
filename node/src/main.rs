//! The `planck` binary.

use std::process::ExitCode;

/// Gives back to the system what agents that left memory held, which glibc's does not.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// jemalloc reads its options from the string that this symbol points to. What is freed goes back
/// to the system within a second, not ten, so that an agent that left memory has left it. A thread
/// keeps only a little of what it freed for itself, since one that has nothing to do keeps it for
/// ever.
#[expect(
    unsafe_code,
    reason = "the linker gives jemalloc the symbol by its name; nothing else defines it"
)]
#[unsafe(export_name = "malloc_conf")]
static ALLOCATOR_OPTIONS: &[u8; 102] =
    b"background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:0,tcache_max:256,tcache_nslots_small_max:16\0";

fn main() -> ExitCode {
    planck_node::main()
}
