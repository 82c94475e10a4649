//! Where libonnx_train.so is: ONNX_TRAIN_LIB_DIR, what pkg-config says, or the build tree of the checkout.
use std::path::{Path, PathBuf};
use std::process::Command;

fn installed() -> Option<PathBuf> {
    let asked = Command::new("pkg-config").args(["--variable=libdir", "onnx_train"]).output().ok()?;
    let folder = String::from_utf8(asked.stdout).ok()?;
    (asked.status.success() && !folder.trim().is_empty()).then(|| PathBuf::from(folder.trim()))
}

fn built() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../build");
    folder.canonicalize().unwrap_or(folder)
}

fn main() {
    println!("cargo:rerun-if-env-changed=ONNX_TRAIN_LIB_DIR");
    println!("cargo:rerun-if-env-changed=PKG_CONFIG_PATH");
    println!("cargo:rerun-if-changed=build.rs");
    let given = std::env::var_os("ONNX_TRAIN_LIB_DIR").filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let folder = given.or_else(installed).unwrap_or_else(built);
    if !folder.join("libonnx_train.so").exists() {
        let says = "has no libonnx_train.so: set ONNX_TRAIN_LIB_DIR to its folder, or install it for pkg-config";
        eprintln!("{} {says}", folder.display());
        std::process::exit(1);
    }
    println!("cargo:rustc-link-search=native={}", folder.display());
    println!("cargo:rustc-link-lib=dylib=onnx_train");
    // Of this package's tests and examples; build scripts of packages that use it see DEP_ONNX_TRAIN_LIB_DIR.
    println!("cargo:rustc-link-arg=-Wl,-rpath,{}", folder.display());
    println!("cargo:lib_dir={}", folder.display());
}
