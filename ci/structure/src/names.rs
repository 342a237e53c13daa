//! Names that two or more types of a crate have.

use crate::tree::Crate;
use std::collections::BTreeMap;

/// Returns each name that several types have, with the files that define them.
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
