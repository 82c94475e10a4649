//! Makes sessions that train for a step, see weights and fail, so that a tool can look for leaks: `sessions MODEL COUNT`.
use onnx_train::{Input, Model, Next, Options, Result, Session, Trainer};

/// One session of MODEL, tests/fixtures/mlp.onnx, from its file to its end.
pub fn use_a_session(model: &str) -> Result<()> {
    let forward = Model::load(model)?;
    let training = forward.build(&Options::new().set("loss", "cross_entropy").set("optimizer", "adamw"))?;
    let mut session = Session::new(&training, &Options::new())?;
    let (x, labels) = ([0.5f32; 8 * 4], [1i64; 8]);
    let data = [Input::new("x", &[8, 4], &x)?, Input::new("labels", &[8], &labels)?];
    let loss: f32 = session.run("step", &data)?.scalar("loss")?;
    assert!(loss.is_finite());
    assert!(session.run("step", &[]).is_err());
    let weight = session.states()?.remove(0);
    session.view_mut::<f32>(&weight)?[0] += 1.0;
    Trainer::new(&mut session)
        .on_step(|_, _| Next::Continue)
        .fit(&data, &Options::new().set("epochs", 1).set("batch-size", 4))?;
    session.model()?.export()?.to_bytes()?;
    assert!(forward.check(&Options::new())?.obstacles.is_empty());
    Ok(())
}

#[allow(dead_code)] // in the test
fn main() -> Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    for _ in 0..arguments[1].parse().expect("a number") {
        use_a_session(&arguments[0])?;
    }
    Ok(())
}
