//! Learns digits: builds a training model, trains it, stops in the middle, goes on in another session, exports, predicts.
//!
//!     cargo run --example digits -- ../../models OUT
use std::path::Path;

use onnx_train::{Dataset, Model, Next, Options, Result, Session, StopReason, Trainer};

/// A session of digits_cnn.onnx with loss and optimizer.
pub fn new_session(models: &Path) -> Result<Session> {
    let build = Options::new().set("loss", "cross_entropy").set("optimizer", "adamw");
    let training = Model::load(models.join("digits_cnn.onnx"))?.build(&build)?;
    Session::new(&training, &Options::new())
}

/// Trains for three epochs, with checkpoints in `run`, from where a run of that folder was interrupted, if there is one;
/// at most until step `last`.
pub fn fit(session: &mut Session, models: &Path, run: &Path, last: Option<i64>) -> Result<StopReason> {
    let data = Dataset::open(models.join("data/digits_train.npz"), session, None, &Options::new())?;
    let test = Dataset::open(models.join("data/digits_test.npz"), session, Some("evaluate"), &Options::new())?;
    let options = Options::new()
        .set("epochs", 3)
        .set("batch-size", 32)
        .set("lr", 0.003)
        .set("schedule", "cosine")
        .set("out", run.display())
        .set("resume", true);
    Trainer::new(session)
        .evaluate_on(&test)
        .on_step(|step, _| if Some(step.step) == last { Next::Interrupt } else { Next::Continue })
        .fit(&data, &options)
}

/// The share of digits of the test data that an inference model tells right.
pub fn accuracy(model: &Model, models: &Path) -> Result<f64> {
    let labels = Dataset::open_file(models.join("data/digits_test.npz"))?;
    let labels = labels.arrays()?.iter().find(|array| array.name() == "labels").expect("labels").to_vec::<i64>()?;
    let mut session = Session::new(model, &Options::new())?;
    let test = Dataset::open(models.join("data/digits_test.npz"), &mut session, None, &Options::new())?;
    let outputs = session.predict(&test, &Options::new())?;
    let logits = outputs.get("logits")?;
    let classes = logits.shape()[1] as usize;
    let is_right = |(row, &label): (&[f32], &i64)| row.iter().all(|&logit| logit <= row[label as usize]);
    let right = logits.data::<f32>()?.chunks(classes).zip(&labels).filter(|&pair| is_right(pair)).count();
    Ok(right as f64 / labels.len() as f64)
}

#[allow(dead_code)] // in the test
fn main() -> Result<()> {
    let paths: Vec<_> = std::env::args().skip(1).collect();
    let [models, out] = match &paths[..] {
        [models, out] => [Path::new(models), Path::new(out)],
        _ => panic!("usage: digits MODELS OUT"),
    };
    let run = out.join("run");
    println!("first session: {:?}", fit(&mut new_session(models)?, models, &run, Some(60))?);
    let mut session = new_session(models)?;
    println!("second session: {:?}", fit(&mut session, models, &run, None)?);
    let exported = session.model()?.export()?;
    exported.save(out.join("digits.onnx"))?;
    println!("accuracy: {:.3}", accuracy(&Model::load(out.join("digits.onnx"))?, models)?);
    Ok(())
}
