//! Models: forward models, training models, checkpoints; each is one ONNX model.
use std::ops::Deref;
use std::os::raw::c_char;
use std::path::Path;
use std::ptr::{null, null_mut, NonNull};

use crate::error::{check, made, Result};
use crate::options::Options;
use crate::sys;
use crate::tensor::{views, Input};
use crate::text::{c_path, c_string, slice, string};

/// A forward model, a training model or a checkpoint. It does not change.
pub struct Model(NonNull<sys::onnx_train_model>);

// SAFETY: "a model may be read by any number of threads at once", and nothing else is done to one.
unsafe impl Send for Model {}
unsafe impl Sync for Model {}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: the handle is this object's own.
        unsafe { sys::onnx_train_model_free(self.0.as_ptr()) }
    }
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.metadata()).finish()
    }
}

// SAFETY in all that follows: handles are valid, and views of options, strings and tensors live as long as the call.
impl Model {
    pub(crate) fn get(&self) -> *const sys::onnx_train_model {
        self.0.as_ptr()
    }

    pub(crate) fn of(make: impl FnOnce(*mut *mut sys::onnx_train_model) -> sys::onnx_train_status) -> Result<Model> {
        made(make).map(Model)
    }

    /// Reads an .onnx file; its large tensors are mapped, so the file must not be changed in place while the model
    /// lives.
    pub fn load(path: impl AsRef<Path>) -> Result<Model> {
        let path = c_path(path.as_ref())?;
        Model::of(|model| unsafe { sys::onnx_train_model_load(path.as_ptr(), model) })
    }

    /// The same from memory, which is copied. The model must hold all its data.
    pub fn from_bytes(data: &[u8]) -> Result<Model> {
        Model::of(|model| unsafe { sys::onnx_train_model_from_bytes(data.as_ptr().cast(), data.len(), model) })
    }

    /// Writes the model atomically: an existing file is complete and old, or complete and new.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = c_path(path.as_ref())?;
        check(unsafe { sys::onnx_train_model_save(self.get(), path.as_ptr()) })
    }

    /// The serialized model, at most 2 GiB, in the library's memory.
    pub fn to_bytes(&self) -> Result<Bytes> {
        let (mut data, mut length) = (null_mut(), 0);
        check(unsafe { sys::onnx_train_model_to_bytes(self.get(), &mut data, &mut length) })?;
        Ok(Bytes { data: data.cast(), length })
    }

    /// Keys and values: "onnx_train.loss", "onnx_train.optimizer" and others.
    pub fn metadata(&self) -> Vec<(String, String)> {
        let mut key: *const c_char = null();
        (0..)
            .map_while(|i| unsafe {
                let value = sys::onnx_train_model_metadata(self.get(), i, &mut key);
                (!value.is_null()).then(|| (string(key), string(value)))
            })
            .collect()
    }

    /// A training model: loss, gradients, optimizer and their state. Options are those of `onnx-train build`.
    pub fn build(&self, options: &Options) -> Result<Model> {
        let options = options.views()?;
        Model::of(|model| unsafe { sys::onnx_train_model_build(self.get(), options.as_ptr(), options.len(), model) })
    }

    /// The same with a loss that is a model: `onnx_train_model_build_with_loss`.
    pub fn build_with_loss(&self, loss: &Model, options: &Options) -> Result<Model> {
        let options = options.views()?;
        Model::of(|model| unsafe {
            sys::onnx_train_model_build_with_loss(self.get(), loss.get(), options.as_ptr(), options.len(), model)
        })
    }

    /// The same for the data of a file, which choose the loss where `options` have none: what has been chosen, and why, is
    /// the text.
    pub fn build_for_file(&self, path: impl AsRef<Path>, options: &Options) -> Result<(Model, String)> {
        let path = c_path(path.as_ref())?;
        self.build_for_data(path.as_ptr(), &[], options)
    }

    /// The same for arrays.
    pub fn build_for_arrays(&self, arrays: &[Input<'_>], options: &Options) -> Result<(Model, String)> {
        self.build_for_data(null(), arrays, options)
    }

    fn build_for_data(&self, path: *const c_char, arrays: &[Input<'_>], options: &Options) -> Result<(Model, String)> {
        let (arrays, options) = (views(arrays), options.views()?);
        let mut note: *const c_char = null();
        let model = Model::of(|model| unsafe {
            sys::onnx_train_model_build_for_data(
                self.get(),
                path,
                arrays.as_ptr(),
                arrays.len(),
                options.as_ptr(),
                options.len(),
                model,
                &mut note,
            )
        })?;
        Ok((model, unsafe { string(note) }))
    }

    /// The sizes that the model leaves open and the arrays have, for the option "dim"; "" where there are none.
    pub fn sizes(&self, arrays: &[Input<'_>]) -> Result<String> {
        let arrays = views(arrays);
        let mut sizes: *const c_char = null();
        check(unsafe { sys::onnx_train_model_sizes(self.get(), arrays.as_ptr(), arrays.len(), &mut sizes) })?;
        Ok(unsafe { string(sizes) })
    }

    /// The inference model alone: no training entry points, no state but the weights.
    pub fn export(&self) -> Result<Model> {
        Model::of(|model| unsafe { sys::onnx_train_model_export(self.get(), model) })
    }

    /// The same with options of `onnx-train export`.
    pub fn export_with(&self, options: &Options) -> Result<Model> {
        let options = options.views()?;
        Model::of(|model| unsafe {
            sys::onnx_train_model_export_with(self.get(), options.as_ptr(), options.len(), model)
        })
    }

    /// Writes the model or the folder of the option "into" with trained weights to `path`:
    /// `onnx_train_model_export_into`. What was written, guessed or left out is the text, in lines.
    pub fn export_into(&self, path: impl AsRef<Path>, options: &Options) -> Result<String> {
        let (path, options) = (c_path(path.as_ref())?, options.views()?);
        let mut note: *const c_char = null();
        check(unsafe {
            sys::onnx_train_model_export_into(self.get(), options.as_ptr(), options.len(), path.as_ptr(), &mut note)
        })?;
        Ok(unsafe { string(note) })
    }

    /// Writes the adapters of a training model into a folder as PEFT has them, or a file NAME.onnx_adapter.
    pub fn save_adapter(&self, folder: impl AsRef<Path>) -> Result<()> {
        let folder = c_path(folder.as_ref())?;
        check(unsafe { sys::onnx_train_model_save_adapter(self.get(), folder.as_ptr()) })
    }

    /// One entry point as a plain ONNX model: each state is an input, its next value an output.
    pub fn flatten(&self, entry: &str) -> Result<Model> {
        let entry = c_string(entry)?;
        Model::of(|model| unsafe { sys::onnx_train_model_flatten(self.get(), entry.as_ptr(), model) })
    }

    /// The forward and the backward pass as two models: `onnx_train_model_differentiate`.
    pub fn differentiate(&self, options: &Options) -> Result<(Model, Model)> {
        let options = options.views()?;
        let mut backward = null_mut();
        let forward = Model::of(|forward| unsafe {
            sys::onnx_train_model_differentiate(self.get(), options.as_ptr(), options.len(), forward, &mut backward)
        })?;
        let backward = Model::of(|model| {
            unsafe { *model = backward };
            sys::ONNX_TRAIN_OK
        })?;
        Ok((forward, backward))
    }

    /// A derivative ("gradient", "vjp", "jvp", "hvp", "outputs") as a model: `onnx_train_model_derivative`.
    pub fn derivative(&self, kind: &str, loss: Option<&Model>, options: &Options) -> Result<Model> {
        let (kind, options) = (c_string(kind)?, options.views()?);
        let loss = loss.map_or(null(), Model::get);
        Model::of(|model| unsafe {
            sys::onnx_train_model_derivative(self.get(), kind.as_ptr(), loss, options.as_ptr(), options.len(), model)
        })
    }

    /// A copy with other weights, by the names of initializers. A name that the model does not have is an error if
    /// `strict`, else left out.
    pub fn with_weights(&self, tensors: &[Input<'_>], strict: bool) -> Result<Model> {
        let tensors = views(tensors);
        Model::of(|model| unsafe {
            sys::onnx_train_model_with_weights(self.get(), tensors.as_ptr(), tensors.len(), strict.into(), model)
        })
    }

    /// What was guessed, left out or changed when this training model was built.
    pub fn notes(&self) -> Vec<Finding> {
        let mut notes = null();
        unsafe {
            let count = sys::onnx_train_model_notes(self.get(), &mut notes);
            findings(notes, count)
        }
    }

    /// Whether a forward model can be trained, and everything that is in the way. Options are those of
    /// `onnx-train check`.
    pub fn check(&self, options: &Options) -> Result<Report> {
        let options = options.views()?;
        let report =
            made(|report| unsafe { sys::onnx_train_model_check(self.get(), options.as_ptr(), options.len(), report) })?
                .as_ptr();
        let (mut obstacles, mut others) = (null(), null());
        unsafe {
            let read = Report {
                text: string(sys::onnx_train_report_text(report)),
                loss: string(sys::onnx_train_report_loss(report)),
                failure: string(sys::onnx_train_report_failure(report)),
                obstacles: {
                    let count = sys::onnx_train_report_obstacles(report, &mut obstacles);
                    findings(obstacles, count)
                },
                findings: {
                    let count = sys::onnx_train_report_findings(report, &mut others);
                    findings(others, count)
                },
            };
            sys::onnx_train_report_free(report);
            Ok(read)
        }
    }
}

unsafe fn findings(items: *const sys::onnx_train_finding, count: usize) -> Vec<Finding> {
    let read = |item: &sys::onnx_train_finding| Finding {
        subject: string(item.subject),
        what: string(item.what),
        advice: string(item.advice),
    };
    slice(items, count).iter().map(read).collect()
}

/// What was found in a model: an obstacle to its training, or something worth knowing.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// A node, a weight, a part of the work.
    pub subject: String,
    /// What of it.
    pub what: String,
    /// What to do; may be "".
    pub advice: String,
}

/// Whether a forward model can be trained.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// What the command prints.
    pub text: String,
    /// The expression of the loss that the model was tried with.
    pub loss: String,
    /// Why the model cannot be trained, in one line; "" when it can.
    pub failure: String,
    /// What is in the way of training.
    pub obstacles: Vec<Finding>,
    /// What is worth knowing besides.
    pub findings: Vec<Finding>,
}

/// A serialized model in the library's memory.
pub struct Bytes {
    data: *mut u8,
    length: usize,
}

// SAFETY: bytes that nobody writes to.
unsafe impl Send for Bytes {}
unsafe impl Sync for Bytes {}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the library has given so many bytes, which are this object's own.
        unsafe { slice(self.data, self.length) }
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { sys::onnx_train_free(self.data.cast()) }
    }
}
