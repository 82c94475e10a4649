//! Strings from and to C.
use std::ffi::{CStr, CString};
use std::os::raw::c_char;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::error::{Error, Result, Status};

/// # Safety
/// `text` is a string of the library, or null, which gives "".
pub(crate) unsafe fn string(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    CStr::from_ptr(text).to_string_lossy().into_owned()
}

pub(crate) fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::new(Status::Usage, format!("{text:?} has a zero byte")))
}

pub(crate) fn c_path(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| Error::new(Status::Usage, format!("the path {path:?} has a zero byte")))
}

/// # Safety
/// `items` has `count` items that live for 'a, or `count` is 0.
pub(crate) unsafe fn slice<'a, T>(items: *const T, count: usize) -> &'a [T] {
    if count == 0 {
        return &[];
    }
    std::slice::from_raw_parts(items, count)
}
