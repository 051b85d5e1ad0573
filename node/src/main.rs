//! The `planck` binary.

use std::process::ExitCode;

/// Returns the memory of agents that left memory to the system, which glibc's allocator does not
/// do.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The options of jemalloc, which reads them from the string that this symbol points to. Freed
/// memory is returned to the system within one second instead of ten. A thread caches only little
/// freed memory, because an idle thread would keep it forever.
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
