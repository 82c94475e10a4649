//! Trains ONNX models: a forward model becomes a training model, a session runs it.
//!
//! ```no_run
//! use onnx_train::{Dataset, Model, Options, Session};
//!
//! # fn main() -> onnx_train::Result<()> {
//! let build = Options::new().set("loss", "cross_entropy").set("optimizer", "adamw");
//! let training = Model::load("models/digits_cnn.onnx")?.build(&build)?;
//! let mut session = Session::new(&training, &Options::new())?;
//! let data = Dataset::open("models/data/digits_train.npz", &mut session, None, &Options::new())?;
//! session.fit(&data, &Options::new().set("epochs", 4).set("lr", 0.003))?;
//! session.model()?.export()?.save("digits.onnx")?;
//! # Ok(())
//! # }
//! ```
//!
//! It is a layer over the C interface, `onnx_train.h`, which has all contracts and the options. What borrows says how
//! long memory lives: an [`Outputs`] ends with the next call that changes its [`Session`], a view of a weight with the
//! borrow of the session. A [`Model`] and a [`Dataset`] may be read by any number of threads, a [`Session`] moves from
//! thread to thread and is used by one at a time. Panics of callbacks go through: the training ends, the library
//! returns, and the panic goes on.
#![warn(missing_docs)]

mod data;
mod error;
mod generate;
mod model;
mod options;
mod session;
mod tensor;
mod text;
mod trainer;

#[allow(missing_docs)]
#[rustfmt::skip]
pub mod sys;

pub use data::{safetensors_save, split, Batches, BoxError, Data, Dataset};
pub use error::{Error, Result, Status};
pub use model::{Bytes, Finding, Model, Report};
pub use options::{learning_rate, version, OptionDescription, Options};
pub use session::{Device, Plan, Port, Session};
pub use tensor::{Element, ElementType, Input, Outputs, Tensor};
pub use trainer::{Evaluation, Next, Step, StopReason, Trainer};

// A handle that several threads may read; a session is one that moves, and is not shared.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    const fn moved<T: Send>() {}
    shared::<Model>();
    shared::<Dataset>();
    shared::<Bytes>();
    shared::<Error>();
    moved::<Session>();
};
