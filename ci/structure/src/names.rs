//! Finds names that at least two types of a crate share.

use crate::tree::Crate;
use std::collections::BTreeMap;

/// Returns each name of several types, with the files that define them.
pub fn shared(source: &Crate) -> BTreeMap<String, Vec<String>> {
    let mut types: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for module in &source.modules {
        let file = source.files[module.file].display().to_string();
        for name in &module.types {
            types.entry(name.clone()).or_default().push(file.clone());
        }
    }
    types.retain(|_, files| files.len() > 1);
    types
}
