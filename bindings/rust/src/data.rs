//! Data of a training: arrays, files, batches of the program.
use std::path::Path;
use std::ptr::{null, null_mut, NonNull};

use crate::error::{check, made, Result};
use crate::options::Options;
use crate::session::Session;
use crate::sys;
use crate::tensor::{views, Input, Tensor};
use crate::text::{c_path, c_string, slice, string};

/// The error of a program's own data.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Batches that the program makes.
pub trait Batches {
    /// Starts an epoch, counted from 0.
    fn begin(&mut self, _epoch: i64) -> std::result::Result<(), BoxError> {
        Ok(())
    }

    /// The inputs of the next batch, which are read until this is called again; `None`: the epoch is over. Their first
    /// dimension is the number of samples, which may change from batch to batch.
    fn next(&mut self) -> std::result::Result<Option<Vec<Input<'_>>>, BoxError>;

    /// How many an epoch has, for schedules that need an end; 0: not known.
    fn batches(&self) -> i64 {
        0
    }
}

/// Data of a training, an evaluation or a prediction.
pub enum Data<'d> {
    /// Arrays with one sample per row, which the library shuffles and cuts into batches.
    Arrays(&'d [Input<'d>]),
    /// Files; they are cut into batches as arrays are.
    Files(&'d Dataset),
    /// Batches of the program.
    Batches(&'d mut (dyn Batches + 'd)),
}

impl<'d> From<&'d [Input<'d>]> for Data<'d> {
    fn from(arrays: &'d [Input<'d>]) -> Data<'d> {
        Data::Arrays(arrays)
    }
}

impl<'d, const N: usize> From<&'d [Input<'d>; N]> for Data<'d> {
    fn from(arrays: &'d [Input<'d>; N]) -> Data<'d> {
        Data::Arrays(arrays)
    }
}

impl<'d> From<&'d Dataset> for Data<'d> {
    fn from(files: &'d Dataset) -> Data<'d> {
        Data::Files(files)
    }
}

impl<'d, B: Batches> From<&'d mut B> for Data<'d> {
    fn from(batches: &'d mut B) -> Data<'d> {
        Data::Batches(batches)
    }
}

/// Data files: what the command's --data takes. It does not change, and may outlive the session that it was opened for.
pub struct Dataset(NonNull<sys::onnx_train_dataset>);

// SAFETY: "any number of threads may read it", and nothing else is done to one.
unsafe impl Send for Dataset {}
unsafe impl Sync for Dataset {}

impl Drop for Dataset {
    fn drop(&mut self) {
        // SAFETY: the handle is this object's own.
        unsafe { sys::onnx_train_dataset_free(self.0.as_ptr()) }
    }
}

impl std::fmt::Debug for Dataset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Dataset").field(&self.arrays().unwrap_or_default()).finish()
    }
}

// SAFETY in all that follows: handles are valid, and views of options, strings and tensors live as long as the call.
impl Dataset {
    pub(crate) fn get(&self) -> *const sys::onnx_train_dataset {
        self.0.as_ptr()
    }

    fn of(make: impl FnOnce(*mut *mut sys::onnx_train_dataset) -> sys::onnx_train_status) -> Result<Dataset> {
        made(make).map(Dataset)
    }

    /// The arrays at `path` that an entry point of the session takes, checked; `None`: that which trains, or "predict"
    /// where there is none. Files are mapped: do not change them in place while the dataset lives. Options are those of
    /// `onnx_train_dataset_open_with`.
    pub fn open(
        path: impl AsRef<Path>,
        session: &mut Session,
        entry: Option<&str>,
        options: &Options,
    ) -> Result<Dataset> {
        let (path, entry, options) = (c_path(path.as_ref())?, entry.map(c_string).transpose()?, options.views()?);
        let entry = entry.as_ref().map_or(null(), |entry| entry.as_ptr());
        Dataset::of(|dataset| unsafe {
            sys::onnx_train_dataset_open_with(
                path.as_ptr(),
                session.get(),
                entry,
                options.as_ptr(),
                options.len(),
                dataset,
            )
        })
    }

    /// All arrays of a file that names them: .npz, .npy.
    pub fn open_file(path: impl AsRef<Path>) -> Result<Dataset> {
        let path = c_path(path.as_ref())?;
        Dataset::of(|dataset| unsafe { sys::onnx_train_dataset_open(path.as_ptr(), null_mut(), null(), dataset) })
    }

    /// The tensors of a safetensors file and, by [`Dataset::metadata`], its texts; there are no samples.
    pub fn open_safetensors(path: impl AsRef<Path>) -> Result<Dataset> {
        let path = c_path(path.as_ref())?;
        Dataset::of(|dataset| unsafe { sys::onnx_train_safetensors_open(path.as_ptr(), dataset) })
    }

    /// The arrays in the element types of the file, views of it where that is possible.
    pub fn arrays(&self) -> Result<Vec<Tensor<'_>>> {
        let (mut arrays, mut count) = (null(), 0);
        unsafe {
            check(sys::onnx_train_dataset_arrays(self.get(), &mut arrays, &mut count))?;
            Ok(slice(arrays, count).iter().map(Tensor::new).collect())
        }
    }

    /// The number of samples, and that of an epoch's batches of `batch_size` samples; 0: the size that a training takes
    /// without the option "batch-size".
    pub fn size(&self, batch_size: i64) -> Result<(i64, i64)> {
        let (mut samples, mut batches) = (0, 0);
        check(unsafe { sys::onnx_train_dataset_size(self.get(), batch_size, &mut samples, &mut batches) })?;
        Ok((samples, batches))
    }

    /// What the file says of its arrays: keys and values.
    pub fn metadata(&self) -> Vec<(String, String)> {
        let mut key = null();
        (0..)
            .map_while(|i| unsafe {
                let value = sys::onnx_train_dataset_metadata(self.get(), i, &mut key);
                (!value.is_null()).then(|| (string(key), string(value)))
            })
            .collect()
    }
}

/// Writes tensors and texts by name to a safetensors file, atomically.
pub fn safetensors_save(path: impl AsRef<Path>, tensors: &[Input<'_>], texts: &Options) -> Result<()> {
    let (path, tensors, texts) = (c_path(path.as_ref())?, views(tensors), texts.views()?);
    check(unsafe {
        sys::onnx_train_safetensors_save(path.as_ptr(), tensors.as_ptr(), tensors.len(), texts.as_ptr(), texts.len())
    })
}

/// The rows of `samples` samples on which a training with these options trains, and those on which it evaluates:
/// `onnx_train_split`.
pub fn split(samples: usize, options: &Options) -> Result<(Vec<i64>, Vec<i64>)> {
    let options = options.views()?;
    let (mut training, mut evaluation) = (vec![0i64; samples.max(1)], vec![0i64; samples.max(1)]);
    let (mut num_training, mut num_evaluation) = (0, 0);
    check(unsafe {
        sys::onnx_train_split(
            samples as i64,
            options.as_ptr(),
            options.len(),
            training.as_mut_ptr(),
            &mut num_training,
            evaluation.as_mut_ptr(),
            &mut num_evaluation,
        )
    })?;
    training.truncate(num_training);
    evaluation.truncate(num_evaluation);
    Ok((training, evaluation))
}
