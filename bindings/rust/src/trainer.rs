//! The training loop with callbacks.
use std::any::Any;
use std::cell::RefCell;
use std::mem::size_of;
use std::os::raw::{c_char, c_void};
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::path::Path;
use std::ptr::null;

use crate::data::{Batches, BoxError, Data};
use crate::error::{check, Error, Result};
use crate::options::Options;
use crate::session::{metrics_of, Session};
use crate::sys;
use crate::tensor::{views, Input, Outputs, Tensor};
use crate::text::{slice, string};

/// What a callback wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Go on.
    Continue,
    /// End the training after this step, with a last evaluation.
    Stop,
    /// End it after this step, without one: a resumed training goes on as if never stopped.
    Interrupt,
    /// Of [`Session::generate`]: this text is complete, and the others go on. In a training it is [`Next::Continue`].
    EndText,
}

impl Next {
    pub(crate) fn number(self) -> sys::onnx_train_next {
        match self {
            Next::Continue => sys::ONNX_TRAIN_CONTINUE,
            Next::Stop => sys::ONNX_TRAIN_STOP,
            Next::Interrupt => sys::ONNX_TRAIN_INTERRUPT,
            Next::EndText => sys::ONNX_TRAIN_END_TEXT,
        }
    }
}

/// Why a training ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopReason {
    /// The end that the options say.
    Finished,
    /// A callback gave [`Next::Interrupt`].
    Interrupted,
    /// The option "early-stop".
    EarlyStop,
    /// The option "time-limit".
    TimeLimit,
    /// A callback gave [`Next::Stop`].
    Stopped,
    /// The option "stop-at".
    Target,
}

/// A step that is done.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Step {
    /// Counted from 1.
    pub step: i64,
    /// Counted from 1.
    pub epoch: i64,
    /// Of the step.
    pub samples: i64,
    /// Of the step's samples, before the update.
    pub loss: f64,
    /// Of the step.
    pub learning_rate: f64,
    /// NaN where the model has none.
    pub accuracy: f64,
    /// The norm of all gradients.
    pub grad_norm: f64,
    /// The step's time.
    pub seconds: f64,
    /// Of a model with loss scaling; else 0.
    pub loss_scale: f64,
    /// With loss scaling, the gradients overflow, and the weights stay as they are.
    pub skipped: bool,
    /// Of the samples; 0 of a model that reads no texts.
    pub tokens: i64,
    /// What the step computes against what the machine can, about 0 to 1; NaN in the first ten seconds, of a model
    /// without products and convolutions, and of several ranks on CPUs.
    pub utilization: f64,
}

/// An evaluation that is done.
#[derive(Debug)]
#[non_exhaustive]
pub struct Evaluation<'a> {
    /// After which step.
    pub step: i64,
    /// In which epoch.
    pub epoch: i64,
    /// Over all that counts since the previous evaluation; NaN where nothing does.
    pub train_loss: f64,
    /// Names and values; none without evaluation data.
    pub metrics: Vec<(String, f64)>,
    /// The best so far, in the metric of the option "best".
    pub best: bool,
    /// What metrics say by class, as of [`Session::metric_tables`].
    pub tables: Vec<Tensor<'a>>,
}

/// What ends a call from within a callback.
pub(crate) enum Failure {
    Panic(Box<dyn Any + Send>),
    Error(BoxError),
}

/// The first failure of the callbacks of one call.
#[derive(Default)]
pub(crate) struct Failures(RefCell<Option<Failure>>);

impl Failures {
    /// What C gets for what f gives. Neither errors nor panics go further than here.
    pub(crate) fn guard(&self, f: impl FnOnce() -> std::result::Result<Next, BoxError>) -> sys::onnx_train_next {
        let failure = match catch_unwind(AssertUnwindSafe(f)) {
            Ok(Ok(next)) => return next.number(),
            Ok(Err(error)) => Failure::Error(error),
            Err(panic) => Failure::Panic(panic),
        };
        self.0.borrow_mut().get_or_insert(failure);
        sys::ONNX_TRAIN_FAIL
    }

    /// What the caller gets: a panic goes on, an error of a callback comes before that of the library.
    pub(crate) fn check(&self, status: sys::onnx_train_status) -> Result<()> {
        match self.0.take() {
            Some(Failure::Panic(panic)) => resume_unwind(panic),
            Some(Failure::Error(error)) => Err(Error::of_program(error)),
            None => check(status),
        }
    }
}

type OnStep<'a> = Box<dyn FnMut(&Step, &Session) -> Next + 'a>;
type OnEvaluation<'a> = Box<dyn FnMut(&Evaluation<'_>, &Session) -> Next + 'a>;
type OnCheckpoint<'a> = Box<dyn FnMut(&Path) -> Next + 'a>;
type OnNote<'a> = Box<dyn FnMut(&str) -> Next + 'a>;

/// Trains, evaluates or predicts with callbacks, which run on the caller's thread.
///
/// ```no_run
/// # fn f(session: &mut onnx_train::Session, data: &onnx_train::Dataset, test: &onnx_train::Dataset)
/// # -> onnx_train::Result<()> {
/// use onnx_train::{Next, Options, Trainer};
///
/// let reason = Trainer::new(session)
///     .evaluate_on(test)
///     .on_step(|step, _| if step.loss < 0.1 { Next::Stop } else { Next::Continue })
///     .on_note(|text| {
///         eprintln!("{text}");
///         Next::Continue
///     })
///     .fit(data, &Options::new().set("epochs", 4))?;
/// # Ok(())
/// # }
/// ```
pub struct Trainer<'a> {
    session: &'a mut Session,
    evaluation: Option<Data<'a>>,
    on_step: Option<OnStep<'a>>,
    on_evaluation: Option<OnEvaluation<'a>>,
    on_checkpoint: Option<OnCheckpoint<'a>>,
    on_note: Option<OnNote<'a>>,
}

impl<'a> Trainer<'a> {
    /// A trainer of this session.
    pub fn new(session: &'a mut Session) -> Trainer<'a> {
        Trainer { session, evaluation: None, on_step: None, on_evaluation: None, on_checkpoint: None, on_note: None }
    }

    /// Evaluates on these data.
    pub fn evaluate_on(mut self, data: impl Into<Data<'a>>) -> Trainer<'a> {
        self.evaluation = Some(data.into());
        self
    }

    /// Is told of each step. The session is there to be read; on a device that works asynchronously only with the option
    /// "wait-for-steps".
    pub fn on_step(mut self, f: impl FnMut(&Step, &Session) -> Next + 'a) -> Trainer<'a> {
        self.on_step = Some(Box::new(f));
        self
    }

    /// Is told of each evaluation. The session is there to be read.
    pub fn on_evaluation(mut self, f: impl FnMut(&Evaluation<'_>, &Session) -> Next + 'a) -> Trainer<'a> {
        self.on_evaluation = Some(Box::new(f));
        self
    }

    /// Is told of a checkpoint when its writing starts.
    pub fn on_checkpoint(mut self, f: impl FnMut(&Path) -> Next + 'a) -> Trainer<'a> {
        self.on_checkpoint = Some(Box::new(f));
        self
    }

    /// Is told of something unusual that the training goes on from.
    pub fn on_note(mut self, f: impl FnMut(&str) -> Next + 'a) -> Trainer<'a> {
        self.on_note = Some(Box::new(f));
        self
    }

    /// Trains until a limit is reached or a callback ends it: `onnx_train_fit`, which has the options. After a failure
    /// the session has the state of its last successful step.
    pub fn fit<'d>(mut self, data: impl Into<Data<'d>>, options: &Options) -> Result<StopReason> {
        let evaluation = self.evaluation.take();
        let mut reason = sys::ONNX_TRAIN_FINISHED;
        self.call(data.into(), evaluation, options, |session, training, evaluation, options, count, observer| {
            // SAFETY: all that the pointers refer to lives until the call returns.
            unsafe { sys::onnx_train_fit(session, training, evaluation, options, count, observer, &mut reason) }
        })?;
        Ok(match reason {
            sys::ONNX_TRAIN_FINISHED => StopReason::Finished,
            sys::ONNX_TRAIN_INTERRUPTED => StopReason::Interrupted,
            sys::ONNX_TRAIN_EARLY_STOP => StopReason::EarlyStop,
            sys::ONNX_TRAIN_TIME_LIMIT => StopReason::TimeLimit,
            sys::ONNX_TRAIN_TARGET => StopReason::Target,
            _ => StopReason::Stopped,
        })
    }

    /// Loss and metrics over all data: `onnx_train_evaluate`, which has the options. Of the callbacks, `on_note` is
    /// called.
    pub fn evaluate<'d>(mut self, data: impl Into<Data<'d>>, options: &Options) -> Result<Vec<(String, f64)>> {
        let (mut metrics, mut num_metrics) = (null(), 0);
        self.call(data.into(), None, options, |session, data, _, options, count, observer| {
            // SAFETY: as in fit.
            unsafe { sys::onnx_train_evaluate(session, data, options, count, observer, &mut metrics, &mut num_metrics) }
        })?;
        // SAFETY: valid until the next call with the session.
        Ok(unsafe { metrics_of(metrics, num_metrics) })
    }

    /// The outputs of "predict" for all samples of arrays or files, in their order: `onnx_train_predict`, which has the
    /// options. Of the callbacks, `on_note` is called.
    pub fn predict<'d>(mut self, data: impl Into<Data<'d>>, options: &Options) -> Result<Outputs<'a>> {
        let (mut outputs, mut num_outputs, mut ports, mut num_ports) = (null(), 0, null(), 0);
        let entry = b"predict\0".as_ptr().cast();
        // SAFETY: the ports live as long as the session.
        check(unsafe { sys::onnx_train_session_outputs(self.session.get(), entry, &mut ports, &mut num_ports) })?;
        self.call(data.into(), None, options, |session, data, _, options, count, observer| {
            // SAFETY: as in fit.
            unsafe { sys::onnx_train_predict(session, data, options, count, observer, &mut outputs, &mut num_outputs) }
        })?;
        // SAFETY: valid until the next call with the session, which is borrowed for 'a.
        Ok(unsafe { Outputs::new(slice(outputs, num_outputs), slice(ports, num_ports)) })
    }

    fn call<'d>(
        &mut self,
        training: Data<'d>,
        evaluation: Option<Data<'a>>,
        options: &Options,
        f: impl FnOnce(
            *mut sys::onnx_train_session,
            *const sys::onnx_train_data,
            *const sys::onnx_train_data,
            *const sys::onnx_train_option,
            usize,
            *const sys::onnx_train_observer,
        ) -> sys::onnx_train_status,
    ) -> Result<()> {
        let options = options.views()?;
        let failures = Failures::default();
        let mut training = Source::new(training, &failures);
        let mut evaluation = evaluation.map(|data| Source::new(data, &failures));
        let training = training.data();
        let evaluation = evaluation.as_mut().map(Source::data);
        let handle = self.session.get();
        let mut told = Told { trainer: self, failures: &failures };
        let observer = told.observer();
        let evaluation = evaluation.as_ref().map_or(null(), |data| data as *const _);
        let status = f(handle, &training, evaluation, options.as_ptr(), options.len(), &observer);
        failures.check(status)
    }
}

/// Data with what C sees of them.
struct Source<'s, 'f> {
    data: Data<'s>,
    views: Vec<sys::onnx_train_tensor>,
    // Of the current batch. It borrows from `data`, and ends before `data` is used again.
    batch: Vec<Input<'static>>,
    failures: &'f Failures,
}

impl<'s, 'f> Source<'s, 'f> {
    fn new(data: Data<'s>, failures: &'f Failures) -> Source<'s, 'f> {
        let views = match &data {
            Data::Arrays(arrays) => views(arrays),
            _ => Vec::new(),
        };
        Source { data, views, batch: Vec::new(), failures }
    }

    // Refers to this source, which neither moves nor ends before the call returns.
    fn data(&mut self) -> sys::onnx_train_data {
        let mut data = sys::onnx_train_data {
            size: size_of::<sys::onnx_train_data>(),
            arrays: null(),
            num_arrays: 0,
            user: (self as *mut Source<'s, 'f>).cast(),
            begin: None,
            next: None,
            batches: 0,
            dataset: null(),
        };
        match &mut self.data {
            Data::Arrays(_) => {
                data.arrays = self.views.as_ptr();
                data.num_arrays = self.views.len();
            }
            Data::Files(files) => data.dataset = files.get(),
            Data::Batches(batches) => {
                data.begin = Some(begin);
                data.next = Some(next);
                data.batches = batches.batches();
            }
        }
        data
    }

    // The program's batches, after the current one has ended.
    fn batches(&mut self) -> &mut (dyn Batches + 's) {
        self.views.clear();
        self.batch.clear();
        match &mut self.data {
            Data::Batches(batches) => *batches,
            _ => unreachable!("only batches have callbacks"),
        }
    }

    fn take_next(&mut self) -> std::result::Result<(), BoxError> {
        let batch = self.batches().next()?.unwrap_or_default();
        // SAFETY: `batches` ends what is stored here before it gives `data` to anybody.
        self.batch = unsafe { std::mem::transmute::<Vec<Input<'_>>, Vec<Input<'static>>>(batch) };
        self.views = views(&self.batch);
        Ok(())
    }
}

unsafe extern "C" fn begin(user: *mut c_void, epoch: i64) -> sys::onnx_train_next {
    let source = &mut *user.cast::<Source<'_, '_>>();
    source.failures.guard(|| source.batches().begin(epoch).map(|()| Next::Continue))
}

unsafe extern "C" fn next(
    user: *mut c_void,
    inputs: *mut *const sys::onnx_train_tensor,
    count: *mut usize,
) -> sys::onnx_train_next {
    let source = &mut *user.cast::<Source<'_, '_>>();
    source.failures.guard(|| {
        source.take_next()?;
        *inputs = source.views.as_ptr();
        *count = source.views.len();
        Ok(Next::Continue)
    })
}

/// A trainer whose callbacks are called.
struct Told<'t, 'a> {
    trainer: &'t mut Trainer<'a>,
    failures: &'t Failures,
}

impl<'t, 'a> Told<'t, 'a> {
    // Refers to this object, which neither moves nor ends before the call returns.
    fn observer(&mut self) -> sys::onnx_train_observer {
        sys::onnx_train_observer {
            size: size_of::<sys::onnx_train_observer>(),
            user: (self as *mut Told<'t, 'a>).cast(),
            on_step: self.trainer.on_step.as_ref().map(|_| on_step as _),
            on_evaluation: self.trainer.on_evaluation.as_ref().map(|_| on_evaluation as _),
            on_checkpoint: self.trainer.on_checkpoint.as_ref().map(|_| on_checkpoint as _),
            on_note: self.trainer.on_note.as_ref().map(|_| on_note as _),
        }
    }
}

unsafe extern "C" fn on_step(user: *mut c_void, step: *const sys::onnx_train_step) -> sys::onnx_train_next {
    let (told, s) = (&mut *user.cast::<Told<'_, '_>>(), &*step);
    let step = Step {
        step: s.step,
        epoch: s.epoch,
        samples: s.samples,
        loss: s.loss,
        learning_rate: s.learning_rate,
        accuracy: s.accuracy,
        grad_norm: s.grad_norm,
        seconds: s.seconds,
        loss_scale: s.loss_scale,
        skipped: s.skipped != 0,
        tokens: s.tokens,
        utilization: s.utilization,
    };
    let trainer = &mut *told.trainer;
    told.failures.guard(|| Ok(trainer.on_step.as_mut().map_or(Next::Continue, |f| f(&step, trainer.session))))
}

unsafe extern "C" fn on_evaluation(
    user: *mut c_void,
    evaluation: *const sys::onnx_train_evaluation,
) -> sys::onnx_train_next {
    let (told, e) = (&mut *user.cast::<Told<'_, '_>>(), &*evaluation);
    let trainer = &mut *told.trainer;
    told.failures.guard(|| {
        let evaluation = Evaluation {
            step: e.step,
            epoch: e.epoch,
            train_loss: e.train_loss,
            metrics: metrics_of(e.metrics, e.num_metrics),
            best: e.best != 0,
            tables: slice(e.tables, e.num_tables).iter().map(Tensor::new).collect(),
        };
        Ok(trainer.on_evaluation.as_mut().map_or(Next::Continue, |f| f(&evaluation, trainer.session)))
    })
}

unsafe extern "C" fn on_checkpoint(user: *mut c_void, path: *const c_char) -> sys::onnx_train_next {
    let told = &mut *user.cast::<Told<'_, '_>>();
    let trainer = &mut *told.trainer;
    told.failures.guard(|| {
        let path = string(path);
        Ok(trainer.on_checkpoint.as_mut().map_or(Next::Continue, |f| f(Path::new(&path))))
    })
}

unsafe extern "C" fn on_note(user: *mut c_void, text: *const c_char) -> sys::onnx_train_next {
    let told = &mut *user.cast::<Told<'_, '_>>();
    let trainer = &mut *told.trainer;
    told.failures.guard(|| {
        let text = string(text);
        Ok(trainer.on_note.as_mut().map_or(Next::Continue, |f| f(&text)))
    })
}
