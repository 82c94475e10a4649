//! Options by the names of the command, and what is not of a model or a session.
use std::ffi::CString;
use std::fmt::Display;

use crate::error::{check, Error, Result, Status};
use crate::sys;
use crate::text::{c_string, string};

/// Options by the names that the command `onnx-train` has, without the dashes before them. The library says which there
/// are ([`Options::known`]), and refuses others.
///
/// ```
/// # use onnx_train::Options;
/// let options = Options::new().set("epochs", 4).set("lr", 3e-3).set("no-shuffle", true);
/// assert_eq!(options.to_string(), "epochs=4 lr=0.003 no-shuffle=true");
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options(Vec<(String, String)>);

impl Options {
    /// No options.
    pub fn new() -> Options {
        Options::default()
    }

    /// Adds an option. One that takes a list may be given several times, or once with commas.
    pub fn set(mut self, name: impl Into<String>, value: impl Display) -> Options {
        self.0.push((name.into(), value.to_string()));
        self
    }

    /// The options of "build", "forward", "session", "fit", "samples", "data", "check", "export" or "generate".
    pub fn known(of: &str) -> Result<Vec<OptionDescription>> {
        let of = c_string(of)?;
        // SAFETY: a constant string, or null.
        let lines = unsafe { sys::onnx_train_options(of.as_ptr()) };
        if lines.is_null() {
            return Err(Error::new(Status::Usage, format!("no options are known of {of:?}")));
        }
        let part = |line: &str, i| line.split('\t').nth(i).unwrap_or("").to_owned();
        let read = |line: &str| OptionDescription {
            name: part(line, 0),
            kind: part(line, 1),
            value: part(line, 2),
            text: part(line, 3),
        };
        // SAFETY: as above.
        Ok(unsafe { string(lines) }.lines().map(read).collect())
    }

    pub(crate) fn views(&self) -> Result<OptionViews> {
        let texts: Result<Vec<_>> =
            self.0.iter().map(|(name, value)| Ok((c_string(name)?, c_string(value)?))).collect();
        let texts = texts?;
        let views =
            texts.iter().map(|(name, value)| sys::onnx_train_option { name: name.as_ptr(), value: value.as_ptr() });
        Ok(OptionViews { views: views.collect(), _texts: texts })
    }
}

impl<N: Into<String>, V: Display> FromIterator<(N, V)> for Options {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(options: I) -> Options {
        options.into_iter().fold(Options::new(), |options, (name, value)| options.set(name, value))
    }
}

impl Display for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, (name, value)) in self.0.iter().enumerate() {
            write!(f, "{}{name}={value}", if i == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}

/// An option that the library knows.
#[derive(Clone, Debug, PartialEq)]
pub struct OptionDescription {
    /// As [`Options::set`] takes it.
    pub name: String,
    /// "bool", "integer", "number", "text" or "list"; "|auto" where the word auto is a value, too.
    pub kind: String,
    /// What its value is.
    pub value: String,
    /// What it does, as the command says it.
    pub text: String,
}

/// What C sees of options, as long as this lives.
pub(crate) struct OptionViews {
    views: Vec<sys::onnx_train_option>,
    _texts: Vec<(CString, CString)>,
}

impl OptionViews {
    pub(crate) fn as_ptr(&self) -> *const sys::onnx_train_option {
        self.views.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.views.len()
    }
}

/// The version of the library, "0.1.0".
pub fn version() -> String {
    // SAFETY: a constant string.
    unsafe { string(sys::onnx_train_version()) }
}

/// The learning rate of a step, counted from 0: `onnx_train_learning_rate`.
pub fn learning_rate(step: i64, options: &Options) -> Result<f64> {
    let options = options.views()?;
    let mut rate = 0.0;
    // SAFETY: the views live as long as the call.
    check(unsafe { sys::onnx_train_learning_rate(options.as_ptr(), options.len(), step, &mut rate) })?;
    Ok(rate)
}
