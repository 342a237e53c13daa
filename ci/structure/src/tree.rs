//! The modules of a crate: the names that each module defines and imports, and the paths in its code.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, Token, UseTree};

/// The modules and files of a crate, without its tests.
pub struct Crate {
    pub files: Vec<PathBuf>,
    /// The modules; the first is the root.
    pub modules: Vec<Module>,
}

pub struct Module {
    /// The file of the module, as an index of [`Crate::files`].
    pub file: usize,
    pub parent: Option<usize>,
    pub names: BTreeMap<String, Name>,
    /// The paths of glob imports.
    globs: Vec<Vec<String>>,
    /// The paths in the code, including those of private imports.
    pub mentions: Vec<Vec<String>>,
    /// The names of structs, enums, unions, traits and type aliases.
    pub types: Vec<String>,
}

/// The meaning of a name in a module.
pub enum Name {
    /// A child module, as an index of [`Crate::modules`].
    Module(usize),
    /// An item that the module defines.
    Item,
    /// An import with its path.
    Import(Vec<String>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    Module(usize),
    /// An item of the module with this index.
    Item(usize),
}

/// The limit on imports through which a path is resolved. More imports are a cycle.
const LONGEST_CHAIN: usize = 16;

/// Returns the possible root files of a crate: in the folder `path`, or `path` itself.
pub fn roots(path: &Path) -> [PathBuf; 4] {
    let [library, program, flat] = ["src/lib.rs", "src/main.rs", "lib.rs"].map(|name| path.join(name));
    [library, program, flat, path.to_owned()]
}

impl Crate {
    /// Reads the crate whose root file is `root` or in the folder `root`.
    ///
    /// # Errors
    /// Returns an error if a file of the crate is missing or cannot be parsed.
    pub fn read(root: &Path) -> Result<Self, String> {
        let file = roots(root).into_iter().find(|file| file.is_file());
        let file = file.ok_or_else(|| format!("{}: no root of a crate", root.display()))?;
        let folder = file.parent().unwrap_or(root).to_owned();
        let mut tree = Self { files: Vec::new(), modules: Vec::new() };
        tree.read_file(file, None, &folder)?;
        Ok(tree)
    }

    /// Returns the file that defines the target of `path` as seen from `module`; `None` if the target is a module or in another crate.
    pub fn defining_file(&self, module: usize, path: &[String]) -> Option<usize> {
        match self.resolve(module, path, LONGEST_CHAIN)? {
            Target::Module(_) => None,
            Target::Item(module) => Some(self.modules[module].file),
        }
    }

    fn resolve(&self, module: usize, path: &[String], chain: usize) -> Option<Target> {
        let (first, rest) = path.split_first()?;
        let start = match first.as_str() {
            "crate" => Target::Module(0),
            "self" => Target::Module(module),
            "super" => Target::Module(self.modules[module].parent?),
            name => self.look_up(module, name, chain)?,
        };
        rest.iter().try_fold(start, |target, name| match target {
            Target::Module(module) if name == "super" => Some(Target::Module(self.modules[module].parent?)),
            Target::Module(module) => self.look_up(module, name, chain),
            // A variant or an associated item belongs to its type.
            Target::Item(_) => Some(target),
        })
    }

    fn look_up(&self, module: usize, name: &str, chain: usize) -> Option<Target> {
        let chain = chain.checked_sub(1)?;
        match self.modules[module].names.get(name) {
            Some(Name::Module(child)) => Some(Target::Module(*child)),
            Some(Name::Item) => Some(Target::Item(module)),
            Some(Name::Import(path)) if path.len() == 1 && path[0] == name => None,
            Some(Name::Import(path)) => self.resolve(module, path, chain),
            None => self.modules[module].globs.iter().find_map(|glob| {
                match self.resolve(module, glob, chain)? {
                    Target::Module(other) if other != module => self.look_up(other, name, chain),
                    Target::Module(_) | Target::Item(_) => None,
                }
            }),
        }
    }

    /// Reads a file as a module. `folder` contains the files of its children.
    fn read_file(&mut self, file: PathBuf, parent: Option<usize>, folder: &Path) -> Result<usize, String> {
        let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
        let text = std::fs::read_to_string(&file).map_err(|error| failed(&error))?;
        let parsed = syn::parse_file(&text).map_err(|error| failed(&error))?;
        self.files.push(file);
        self.read_module(self.files.len() - 1, parent, folder, &parsed.items)
    }

    fn read_module(
        &mut self,
        file: usize,
        parent: Option<usize>,
        folder: &Path,
        items: &[Item],
    ) -> Result<usize, String> {
        let index = self.modules.len();
        let (names, globs, mentions, types) = Default::default();
        self.modules.push(Module { file, parent, names, globs, mentions, types });
        for item in items.iter().filter(|item| !is_test(attributes_of(item))) {
            if let Item::Mod(child) = item {
                let name = child.ident.to_string();
                let below = folder.join(&name);
                let module = match &child.content {
                    Some((_, items)) => self.read_module(file, Some(index), &below, items)?,
                    None => {
                        let flat = folder.join(format!("{name}.rs"));
                        let usual = if flat.is_file() { flat } else { below.join("mod.rs") };
                        let named = path_of(&child.attrs);
                        // Skips a file of another crate, which the limit on `#[path]` counts.
                        if named.as_ref().is_some_and(|path| path.starts_with("..")) {
                            continue;
                        }
                        let named = named.map(|path| self.files[file].with_file_name(path));
                        self.read_file(named.unwrap_or(usual), Some(index), &below)?
                    }
                };
                self.modules[index].names.insert(name, Name::Module(module));
            } else {
                self.modules[index].read_item(item);
            }
        }
        Ok(index)
    }
}

impl Module {
    fn read_item(&mut self, item: &Item) {
        let (name, is_type) = match item {
            Item::Struct(item) => (&item.ident, true),
            Item::Enum(item) => (&item.ident, true),
            Item::Union(item) => (&item.ident, true),
            Item::Trait(item) => (&item.ident, true),
            Item::Type(item) => (&item.ident, true),
            Item::Const(item) => (&item.ident, false),
            Item::Static(item) => (&item.ident, false),
            Item::Fn(item) => (&item.sig.ident, false),
            Item::Use(item) => {
                let is_private = matches!(item.vis, syn::Visibility::Inherited);
                return self.read_import(&item.tree, &mut Vec::new(), is_private);
            }
            // Implementations and macro calls define no names.
            _ => return self.visit_item(item),
        };
        self.names.insert(name.to_string(), Name::Item);
        if is_type {
            self.types.push(name.to_string());
        }
        self.visit_item(item);
    }

    fn read_import(&mut self, tree: &UseTree, path: &mut Vec<String>, is_private: bool) {
        let mut import = |name: String, path: Vec<String>| {
            if is_private {
                self.mentions.push(path.clone());
            }
            self.names.insert(name, Name::Import(path));
        };
        match tree {
            UseTree::Path(tree) => {
                path.push(tree.ident.to_string());
                self.read_import(&tree.tree, path, is_private);
                path.pop();
            }
            UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.read_import(tree, path, is_private));
            }
            UseTree::Glob(_) => self.globs.push(path.clone()),
            UseTree::Name(tree) if tree.ident == "self" => {
                if let Some(name) = path.last() {
                    import(name.clone(), path.clone());
                }
            }
            UseTree::Name(tree) => import(tree.ident.to_string(), joined(path, &tree.ident)),
            UseTree::Rename(tree) => import(tree.rename.to_string(), joined(path, &tree.ident)),
        }
    }
}

fn joined(path: &[String], name: &syn::Ident) -> Vec<String> {
    path.iter().cloned().chain([name.to_string()]).collect()
}

impl Visit<'_> for Module {
    fn visit_path(&mut self, path: &syn::Path) {
        self.mentions.push(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_attribute(&mut self, _: &Attribute) {}
}

fn attributes_of(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Returns the path in `#[path = "..."]`. If several exist, each for one architecture, returns the last.
fn path_of(attributes: &[Attribute]) -> Option<String> {
    let literal = |expression: &syn::Expr| match expression {
        syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(path), .. }) => Some(path.value()),
        _ => None,
    };
    attributes.iter().rev().find_map(|attribute| match &attribute.meta {
        syn::Meta::NameValue(meta) if meta.path.is_ident("path") => literal(&meta.value),
        syn::Meta::List(meta) if meta.path.is_ident("cfg_attr") => {
            let metas = meta.parse_args_with(Punctuated::<syn::Meta, Token![,]>::parse_terminated).ok()?;
            metas.iter().find_map(|meta| match meta {
                syn::Meta::NameValue(meta) if meta.path.is_ident("path") => literal(&meta.value),
                _ => None,
            })
        }
        _ => None,
    })
}

/// Returns true if the attributes restrict an item to tests, loom or fuzz targets.
fn is_test(attributes: &[Attribute]) -> bool {
    let words = ["test", "fuzzing", "loom"];
    attributes.iter().filter(|attribute| attribute.path().is_ident("cfg")).any(|attribute| {
        let mut is_test = false;
        // A condition that is not a list contains none of the words.
        let _ = attribute.parse_nested_meta(|meta| {
            is_test |= words.iter().any(|word| meta.path.is_ident(word));
            if meta.path.is_ident("any") {
                return meta.parse_nested_meta(|meta| {
                    is_test |= words.iter().any(|word| meta.path.is_ident(word));
                    Ok(())
                });
            }
            Ok(())
        });
        is_test
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, files: &[(&str, &str)]) -> Crate {
        let folder = std::env::temp_dir().join(format!("ferroce-structure-{name}-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("src/parts")).unwrap();
        for (file, text) in files {
            std::fs::write(folder.join("src").join(file), text).unwrap();
        }
        let source = Crate::read(&folder);
        std::fs::remove_dir_all(&folder).unwrap();
        source.unwrap()
    }

    fn used_by(source: &Crate, file: &str) -> Vec<String> {
        let name = |index: usize| source.files[index].file_name().unwrap().to_string_lossy().into_owned();
        let modules = source.modules.iter().enumerate().filter(|(_, module)| name(module.file) == file);
        let mut used: Vec<_> = modules
            .flat_map(|(index, module)| module.mentions.iter().map(move |path| (index, path)))
            .filter_map(|(index, path)| source.defining_file(index, path))
            .map(name)
            .filter(|used| used != file)
            .collect();
        used.sort();
        used.dedup();
        used
    }

    #[test]
    fn an_import_through_a_re_export_leads_to_the_file_of_the_definition() {
        let source = read(
            "exports",
            &[
                ("lib.rs", "mod parts; pub use parts::Wheel; mod car;"),
                ("parts/mod.rs", "mod wheel; pub use wheel::*;"),
                ("parts/wheel.rs", "pub struct Wheel; pub fn turn() {}"),
                ("car.rs", "use crate::Wheel; fn drive(_: Wheel) { crate::parts::turn() }"),
            ],
        );
        assert_eq!(used_by(&source, "car.rs"), ["wheel.rs"]);
        assert!(used_by(&source, "lib.rs").is_empty());
        assert!(used_by(&source, "mod.rs").is_empty());
    }

    #[test]
    fn the_imports_of_tests_are_not_counted() {
        let source = read(
            "tests",
            &[
                ("lib.rs", "mod car; mod wheel;"),
                ("wheel.rs", "pub struct Wheel;"),
                ("car.rs", "pub struct Car; #[cfg(test)] mod tests { use crate::wheel::Wheel; struct Car; }"),
            ],
        );
        assert!(used_by(&source, "car.rs").is_empty());
        assert_eq!(crate::names::shared(&source).len(), 0);
    }
}
