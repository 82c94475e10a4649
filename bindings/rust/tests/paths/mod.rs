//! Paths of the checkout, and a folder for what a test writes.
#![allow(dead_code)] // each test uses some of them
use std::path::{Path, PathBuf};

/// The root of the checkout.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

pub fn models() -> PathBuf {
    root().join("models")
}

/// Four inputs `x`, three classes.
pub fn mlp() -> PathBuf {
    root().join("tests/fixtures/mlp.onnx")
}

/// Goes with what is in it.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("onnx_train_rust_{name}_{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
