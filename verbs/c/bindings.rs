//! For the build scripts of both C libraries: takes the structures of the C interface from the installed headers, so that they are laid
//! out as every program was compiled with.

use bindgen::Builder;
use std::path::PathBuf;
use std::process::exit;

fn fail(why: &str) -> ! {
    eprintln!("error: {why}");
    exit(1);
}

/// Writes `OUT_DIR/<name>.rs` with what `choose` takes of `header`, which is in Debian's `package`.
pub fn generate(name: &str, header: &str, package: &str, choose: impl FnOnce(Builder) -> Builder) {
    if std::panic::catch_unwind(bindgen::clang_version).is_err() {
        fail(
            "bindgen finds no libclang.\nremedy: apt-get install libclang-dev, or set LIBCLANG_PATH to its directory",
        );
    }
    let builder = Builder::default()
        .header_contents(&format!("{name}.h"), &format!("#include <{header}>\n"))
        .layout_tests(false)
        .derive_default(true)
        .generate_comments(false)
        .prepend_enum_name(false);
    let bindings = choose(builder).generate().unwrap_or_else(|error| {
        fail(&format!("bindgen can't read {header}: {error}\nremedy: apt-get install {package}"))
    });
    let out = std::env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let out = PathBuf::from(out).join(format!("{name}.rs"));
    if let Err(error) = bindings.write_to_file(&out) {
        fail(&format!("can't write {}: {error}", out.display()));
    }
}
