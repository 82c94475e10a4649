//! Sessions: a training model's state on a device, and the plans that run it.
use std::mem::size_of;
use std::os::raw::c_void;
use std::path::Path;
use std::ptr::{null, null_mut, NonNull};

use crate::data::Data;
use crate::error::{check, made, Error, Result, Status};
use crate::model::Model;
use crate::options::Options;
use crate::sys;
use crate::tensor::{views, Element, ElementType, Input, Outputs, Tensor};
use crate::text::{c_path, c_string, slice, string};
use crate::trainer::{StopReason, Trainer};

/// A training model's state on a device. It moves from thread to thread, and is used by one at a time. What it gives in
/// its own memory lives until the next call that takes it as `&mut`.
///
/// ```compile_fail,E0277
/// fn is_shared<T: Sync>() {}
/// is_shared::<onnx_train::Session>(); // it is not: this does not compile
/// ```
pub struct Session(NonNull<sys::onnx_train_session>);

// SAFETY: a session belongs to one thread at a time, and to no particular one. It is not Sync.
unsafe impl Send for Session {}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: the handle is this object's own.
        unsafe { sys::onnx_train_session_free(self.0.as_ptr()) }
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Session").field(&self.entries().unwrap_or_default()).finish()
    }
}

/// An input or output of an entry point, or a state.
#[derive(Clone, Debug, PartialEq)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// What it is whatever its name is: "learning_rate", "loss", "exp_avg"; "" for the model's own data and weights.
    pub role: String,
    /// The value that it belongs to; mostly "".
    pub of: String,
    /// The type of its elements.
    pub element_type: ElementType,
    /// Its sizes, -1 for one that the model leaves open; `None`: not known.
    pub shape: Option<Vec<i64>>,
    /// Whether an input has a default, and may be left out.
    pub has_default: bool,
}

/// What a run of an entry point executes.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// What `onnx-train show --plan` prints: a line a node.
    pub text: String,
    /// What it prints with --json.
    pub json: String,
    /// Bytes of gradients and activations at their peak, workspace included; the state comes on top.
    pub arena_bytes: usize,
    /// Of that, workspace.
    pub workspace_bytes: usize,
    /// Bytes of constants.
    pub constant_bytes: usize,
}

/// Where the tensors of a session are, in the numbers of DLPack.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Device {
    /// DLDeviceType: 1 is the host, 2 is CUDA.
    pub kind: i32,
    /// Its number among the devices of its type.
    pub id: i32,
    /// On which the session's work runs: a cudaStream_t on CUDA, null where the device has none.
    pub stream: *mut c_void,
}

unsafe fn ports(items: *const sys::onnx_train_port, count: usize) -> Vec<Port> {
    let read = |port: &sys::onnx_train_port| Port {
        name: string(port.name),
        role: string(port.role),
        of: string(port.of),
        element_type: ElementType::of(port.type_),
        shape: (port.rank >= 0).then(|| slice(port.shape, port.rank as usize).to_vec()),
        has_default: !port.data.is_null(),
    };
    slice(items, count).iter().map(read).collect()
}

type PortsOf = unsafe extern "C" fn(
    *mut sys::onnx_train_session,
    *const std::os::raw::c_char,
    *mut *const sys::onnx_train_port,
    *mut usize,
) -> sys::onnx_train_status;

// SAFETY in all that follows: the handle is valid, and views of options, strings and tensors live as long as the call.
// No other thread is in the session: it is not Sync.
impl Session {
    pub(crate) fn get(&self) -> *mut sys::onnx_train_session {
        self.0.as_ptr()
    }

    /// A session of a copy of the model. Options are those of `onnx_train_session_create`: "device", "threads", ...
    pub fn new(training: &Model, options: &Options) -> Result<Session> {
        let options = options.views()?;
        made(|session| unsafe {
            sys::onnx_train_session_create(training.get(), options.as_ptr(), options.len(), session)
        })
        .map(Session)
    }

    /// Runs an entry point ("step", "evaluate", "predict", "accumulate", "apply"), and then commits its updates of the
    /// state: a run that fails leaves the state as it was. Inputs are read in place.
    pub fn run(&mut self, entry: &str, inputs: &[Input<'_>]) -> Result<Outputs<'_>> {
        let (entry, inputs) = (c_string(entry)?, views(inputs));
        let (mut described, mut num_described, mut outputs, mut count) = (null(), 0, null(), 0);
        unsafe {
            check(sys::onnx_train_session_outputs(self.get(), entry.as_ptr(), &mut described, &mut num_described))?;
            check(sys::onnx_train_session_run(
                self.get(),
                entry.as_ptr(),
                inputs.as_ptr(),
                inputs.len(),
                &mut outputs,
                &mut count,
            ))?;
            Ok(Outputs::new(slice(outputs, count), slice(described, num_described)))
        }
    }

    /// Trains on data until a limit is reached: `onnx_train_fit`, which has the options. [`Trainer`] takes evaluation
    /// data and callbacks, too.
    pub fn fit<'d>(&mut self, data: impl Into<Data<'d>>, options: &Options) -> Result<StopReason> {
        Trainer::new(self).fit(data, options)
    }

    /// Loss and metrics over all data: `onnx_train_evaluate`, which has the options.
    pub fn evaluate<'d>(&mut self, data: impl Into<Data<'d>>, options: &Options) -> Result<Vec<(String, f64)>> {
        Trainer::new(self).evaluate(data, options)
    }

    /// The outputs of "predict" for all samples of arrays or files, in their order: `onnx_train_predict`.
    pub fn predict<'d>(&mut self, data: impl Into<Data<'d>>, options: &Options) -> Result<Outputs<'_>> {
        Trainer::new(self).predict(data, options)
    }

    /// The metrics that are made of statistics, outputs of "evaluate" with the role "statistic":
    /// `onnx_train_session_metrics`.
    pub fn metrics(&mut self, statistics: &[Input<'_>]) -> Result<Vec<(String, f64)>> {
        let statistics = views(statistics);
        let (mut metrics, mut count) = (null(), 0);
        unsafe {
            check(sys::onnx_train_session_metrics(
                self.get(),
                statistics.as_ptr(),
                statistics.len(),
                &mut metrics,
                &mut count,
            ))?;
            Ok(metrics_of(metrics, count))
        }
    }

    /// What the metrics of the last evaluation say by class: doubles [C], such as "f1_per_class", and [C,C],
    /// "confusion_matrix", by label and prediction.
    pub fn metric_tables(&mut self) -> Result<Outputs<'_>> {
        let (mut tables, mut count) = (null(), 0);
        unsafe {
            check(sys::onnx_train_session_metric_tables(self.get(), &mut tables, &mut count))?;
            Ok(Outputs::new(slice(tables, count), &[]))
        }
    }

    /// What the model's preprocessing multiplies the data of an input by: `onnx_train_session_scale`.
    pub fn scale(&self, input: &str) -> Result<f64> {
        let (input, mut scale) = (c_string(input)?, 1.0);
        check(unsafe { sys::onnx_train_session_scale(self.get(), input.as_ptr(), &mut scale) })?;
        Ok(scale)
    }

    /// Along which axis an input of an entry point holds its samples.
    pub fn sample_axis(&self, entry: &str, input: &str) -> Result<usize> {
        let (entry, input, mut axis) = (c_string(entry)?, c_string(input)?, 0);
        check(unsafe { sys::onnx_train_session_sample_axis(self.get(), entry.as_ptr(), input.as_ptr(), &mut axis) })?;
        Ok(axis as usize)
    }

    /// The names of the entry points with outputs, "predict" first.
    pub fn entries(&self) -> Result<Vec<String>> {
        let (mut names, mut count) = (null(), 0);
        unsafe {
            check(sys::onnx_train_session_entries(self.get(), &mut names, &mut count))?;
            Ok(slice(names, count).iter().map(|&name| string(name)).collect())
        }
    }

    fn ports_of(&self, of: PortsOf, entry: &str) -> Result<Vec<Port>> {
        let (entry, mut items, mut count) = (c_string(entry)?, null(), 0);
        unsafe {
            check(of(self.get(), entry.as_ptr(), &mut items, &mut count))?;
            Ok(ports(items, count))
        }
    }

    /// The inputs of an entry point, those of the forward model first.
    pub fn inputs(&self, entry: &str) -> Result<Vec<Port>> {
        self.ports_of(sys::onnx_train_session_inputs, entry)
    }

    /// The outputs of an entry point.
    pub fn outputs(&self, entry: &str) -> Result<Vec<Port>> {
        self.ports_of(sys::onnx_train_session_outputs, entry)
    }

    /// The plan of an entry point. Options: "batch", "dim". Makes it if there is none for these sizes; runs nothing.
    pub fn plan(&mut self, entry: &str, options: &Options) -> Result<Plan> {
        let (entry, options) = (c_string(entry)?, options.views()?);
        let mut plan =
            sys::onnx_train_plan { text: null(), json: null(), arena_bytes: 0, workspace_bytes: 0, constant_bytes: 0 };
        unsafe {
            check(sys::onnx_train_session_plan(
                self.get(),
                entry.as_ptr(),
                options.as_ptr(),
                options.len(),
                &mut plan,
            ))?;
            Ok(Plan {
                text: string(plan.text),
                json: string(plan.json),
                arena_bytes: plan.arena_bytes,
                workspace_bytes: plan.workspace_bytes,
                constant_bytes: plan.constant_bytes,
            })
        }
    }

    /// The names of the state: weights, optimizer slots, statistics, keys.
    pub fn states(&self) -> Result<Vec<String>> {
        let (mut names, mut count) = (null(), 0);
        unsafe {
            check(sys::onnx_train_session_states(self.get(), &mut names, &mut count))?;
            Ok(slice(names, count).iter().map(|&name| string(name)).collect())
        }
    }

    /// The same with role, type and shape.
    pub fn state_ports(&self) -> Result<Vec<Port>> {
        let (mut items, mut count) = (null(), 0);
        unsafe {
            check(sys::onnx_train_session_state_ports(self.get(), &mut items, &mut count))?;
            Ok(ports(items, count))
        }
    }

    // Calls f with type and shape of a state, which are valid until the next call with the session.
    fn described<R>(&self, name: &str, f: impl FnOnce(Tensor<'_>) -> R) -> Result<R> {
        let text = c_string(name)?;
        let mut state = sys::onnx_train_tensor {
            name: null(),
            type_: 0,
            rank: 0,
            shape: null(),
            data: null_mut(),
            memory: sys::ONNX_TRAIN_HOST_MEMORY,
        };
        check(unsafe { sys::onnx_train_session_state(self.get(), text.as_ptr(), &mut state) })?;
        Ok(f(Tensor::new(&state)))
    }

    fn length_of<T: Element>(&self, name: &str) -> Result<usize> {
        let (kind, length) = self.described(name, |state| (state.element_type(), state.len()))?;
        if T::stands_for(kind) {
            return Ok(length);
        }
        Err(Error::new(Status::Usage, format!("state '{name}' has elements of {kind:?}")))
    }

    /// Type and shape of a state.
    pub fn state(&self, name: &str) -> Result<(ElementType, Vec<i64>)> {
        self.described(name, |state| (state.element_type(), state.shape().to_vec()))
    }

    /// A copy of a state. Fails unless its elements are of type T.
    pub fn get_state<T: Element>(&self, name: &str) -> Result<Vec<T>> {
        let length = self.length_of::<T>(name)?;
        let (text, mut values) = (c_string(name)?, Vec::<T>::with_capacity(length));
        unsafe {
            let bytes = length * size_of::<T>();
            check(sys::onnx_train_session_get(self.get(), text.as_ptr(), values.as_mut_ptr().cast(), bytes))?;
            values.set_len(length);
        }
        Ok(values)
    }

    /// Gives a state other values, as many as it has. Fails unless its elements are of type T.
    pub fn set_state<T: Element>(&mut self, name: &str, values: &[T]) -> Result<()> {
        self.length_of::<T>(name)?;
        let text = c_string(name)?;
        check(unsafe {
            sys::onnx_train_session_set(
                self.get(),
                text.as_ptr(),
                values.as_ptr().cast(),
                std::mem::size_of_val(values),
            )
        })
    }

    /// Sets a state from memory of the session's device: `onnx_train_session_set_from_device`.
    ///
    /// # Safety
    /// `data` is `bytes` bytes in the memory of the session's device. What writes them is complete, or the session's
    /// stream waits for it.
    pub unsafe fn set_state_from_device(&mut self, name: &str, data: *const c_void, bytes: usize) -> Result<()> {
        let text = c_string(name)?;
        check(sys::onnx_train_session_set_from_device(self.get(), text.as_ptr(), data, bytes))
    }

    /// The address of a state in the memory of the session's device, fixed as long as the session lives, and whether
    /// that is memory of the host. Null where another rank keeps the state.
    pub fn address(&self, name: &str) -> Result<(*mut c_void, bool)> {
        let (text, mut address, mut on_host) = (c_string(name)?, null_mut(), 0);
        check(unsafe { sys::onnx_train_session_address(self.get(), text.as_ptr(), &mut address, &mut on_host) })?;
        Ok((address, on_host != 0))
    }

    fn on_host<T: Element>(&self, name: &str) -> Result<(*mut T, usize)> {
        let length = self.length_of::<T>(name)?;
        match self.address(name)? {
            (address, true) if !address.is_null() => Ok((address.cast(), length)),
            _ => Err(Error::new(Status::Device, format!("state '{name}' is not in the host's memory: copy it"))),
        }
    }

    /// The values of a state where the session keeps them, without a copy. Fails unless its elements are of type T, and
    /// where the device has memory of its own.
    pub fn view<T: Element>(&self, name: &str) -> Result<&[T]> {
        self.on_host(name).map(|(address, length)| unsafe { slice(address, length) })
    }

    /// The same to be changed.
    pub fn view_mut<T: Element>(&mut self, name: &str) -> Result<&mut [T]> {
        self.on_host(name).map(|(address, length)| unsafe { std::slice::from_raw_parts_mut(address, length) })
    }

    /// Where the tensors are, and the stream on which the session's work runs.
    pub fn device(&self) -> Result<Device> {
        let mut device = sys::onnx_train_device { type_: 0, id: 0, stream: null_mut() };
        check(unsafe { sys::onnx_train_session_device(self.get(), &mut device) })?;
        Ok(Device { kind: device.type_, id: device.id, stream: device.stream })
    }

    /// This process's number among those that train together, and how many they are: (0, 1) where the session has no
    /// ranks.
    pub fn ranks(&self) -> Result<(i32, i32)> {
        let (mut rank, mut ranks) = (0, 1);
        check(unsafe { sys::onnx_train_session_ranks(self.get(), &mut rank, &mut ranks) })?;
        Ok((rank, ranks))
    }

    /// Exchanges the values of a state with those of the state of this name in another session.
    pub fn swap_state(&mut self, other: &mut Session, name: &str) -> Result<()> {
        let name = c_string(name)?;
        check(unsafe { sys::onnx_train_session_swap(self.get(), other.get(), name.as_ptr()) })
    }

    /// Reads an adapter in PEFT's format, and keeps it as `name`.
    pub fn load_adapter(&mut self, name: &str, folder: impl AsRef<Path>) -> Result<()> {
        let (name, folder) = (c_string(name)?, c_path(folder.as_ref())?);
        check(unsafe { sys::onnx_train_session_load_adapter(self.get(), name.as_ptr(), folder.as_ptr()) })
    }

    /// Gives the states the values of the adapter of this name.
    pub fn set_adapter(&mut self, name: &str) -> Result<()> {
        let name = c_string(name)?;
        check(unsafe { sys::onnx_train_session_set_adapter(self.get(), name.as_ptr()) })
    }

    /// Begins anew: `onnx_train_session_initialize`.
    pub fn initialize(&mut self, seed: u64) -> Result<()> {
        check(unsafe { sys::onnx_train_session_initialize(self.get(), seed) })
    }

    /// The training model with the present state: save it for a checkpoint, export it for inference.
    pub fn model(&self) -> Result<Model> {
        Model::of(|model| unsafe { sys::onnx_train_session_model(self.get(), model) })
    }
}

/// # Safety
/// `metrics` has `count` metrics.
pub(crate) unsafe fn metrics_of(metrics: *const sys::onnx_train_metric, count: usize) -> Vec<(String, f64)> {
    slice(metrics, count).iter().map(|metric| (string(metric.name), metric.value)).collect()
}
