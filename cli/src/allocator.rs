//! The allocator of the programs that are shipped and measured (feature `jemalloc`).

/// The allocator of what is shipped. glibc's allocator would keep the memory of parked agents,
/// whereas jemalloc returns it to the operating system.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The options of jemalloc, which reads them from the string to which this symbol points. Freed
/// memory is returned to the operating system after one second instead of ten. The caches of the
/// threads are small, because an idle thread never empties its cache.
#[expect(
    unsafe_code,
    reason = "the linker gives jemalloc the symbol by its name; nothing else defines it"
)]
#[unsafe(export_name = "malloc_conf")]
static ALLOCATOR_OPTIONS: &[u8; 102] =
    b"background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:0,tcache_max:256,tcache_nslots_small_max:16\0";
