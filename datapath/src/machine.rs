//! What this machine has, and what it lacks.

use std::path::Path;

/// Bytes of hugepages, of all sizes, that nobody uses.
#[must_use]
pub fn free_hugepage_bytes() -> u64 {
    hugepage_bytes("free_hugepages")
}

fn hugepage_bytes(which: &str) -> u64 {
    let Ok(sizes) = std::fs::read_dir("/sys/kernel/mm/hugepages") else { return 0 };
    sizes.flatten().filter_map(|size| bytes_of_size(&size.path(), which)).sum()
}

/// `hugepages-2048kB/free_hugepages` in bytes.
fn bytes_of_size(directory: &Path, which: &str) -> Option<u64> {
    let kib: u64 =
        directory.file_name()?.to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
    let pages: u64 = std::fs::read_to_string(directory.join(which)).ok()?.trim().parse().ok()?;
    Some(pages * kib * 1024)
}

/// The cores that this thread may run on, by number.
#[must_use]
pub fn allowed_cores() -> Vec<usize> {
    core_affinity::get_core_ids().unwrap_or_default().into_iter().map(|core| core.id).collect()
}
