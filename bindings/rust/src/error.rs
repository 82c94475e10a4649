//! Failures of the library, as it says them.
use std::fmt;
use std::ptr::{null_mut, NonNull};

use crate::sys;
use crate::text::string;

/// What kind of failure it is: `onnx_train_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Status {
    /// An argument that is wrong whatever the model holds; an error of a callback.
    Usage,
    /// A file cannot be read or written, or does not hold what it should.
    File,
    /// The model, or what is asked of it, is not supported.
    Unsupported,
    /// Inputs of a run: names, types, shapes, numbers out of range.
    Data,
    /// There is not enough memory.
    Memory,
    /// A device is not there, or failed.
    Device,
    /// A bug of the library.
    Internal,
}

impl Status {
    /// The number that C has for it.
    pub fn number(self) -> i32 {
        match self {
            Status::Usage => sys::ONNX_TRAIN_USAGE,
            Status::File => sys::ONNX_TRAIN_FILE,
            Status::Unsupported => sys::ONNX_TRAIN_UNSUPPORTED,
            Status::Data => sys::ONNX_TRAIN_DATA,
            Status::Memory => sys::ONNX_TRAIN_MEMORY,
            Status::Device => sys::ONNX_TRAIN_DEVICE,
            Status::Internal => sys::ONNX_TRAIN_INTERNAL,
        }
    }

    fn of(number: sys::onnx_train_status) -> Status {
        match number {
            sys::ONNX_TRAIN_USAGE => Status::Usage,
            sys::ONNX_TRAIN_FILE => Status::File,
            sys::ONNX_TRAIN_UNSUPPORTED => Status::Unsupported,
            sys::ONNX_TRAIN_DATA => Status::Data,
            sys::ONNX_TRAIN_MEMORY => Status::Memory,
            sys::ONNX_TRAIN_DEVICE => Status::Device,
            _ => Status::Internal,
        }
    }
}

/// One line that names the node, tensor or file, what was found, and what to do. It is also what `Debug` prints, and so what
/// a `main` that returns a `Result` says.
pub struct Error {
    status: Status,
    code: String,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// What calls of the library give.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(status: Status, message: impl Into<String>) -> Error {
        Error { status, code: String::new(), message: message.into(), source: None }
    }

    /// The error of a callback: the text is its own, and it is the source.
    pub(crate) fn of_program(source: Box<dyn std::error::Error + Send + Sync>) -> Error {
        Error { status: Status::Usage, code: String::new(), message: source.to_string(), source: Some(source) }
    }

    /// Its kind.
    pub fn status(&self) -> Status {
        self.status
    }

    /// "OT1001", which stays the same from version to version; "" for a failure that has none.
    pub fn code(&self) -> &str {
        &self.code
    }

    /// The line that the command prints.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| &**source as _)
    }
}

/// The last failure of this thread, unless `status` is that of a success.
pub(crate) fn check(status: sys::onnx_train_status) -> Result<()> {
    if status == sys::ONNX_TRAIN_OK {
        return Ok(());
    }
    // SAFETY: both are strings, valid until this thread's next failure.
    let (message, code) = unsafe { (string(sys::onnx_train_last_error()), string(sys::onnx_train_last_error_code())) };
    Err(Error { status: Status::of(status), code, message, source: None })
}

/// The handle that `make` writes.
pub(crate) fn made<T>(make: impl FnOnce(*mut *mut T) -> sys::onnx_train_status) -> Result<NonNull<T>> {
    let mut handle = null_mut();
    check(make(&mut handle))?;
    NonNull::new(handle).ok_or_else(|| Error::new(Status::Internal, "the library gave no handle"))
}
