//! Every part of the crate once, and what it says of mistakes.
mod paths;

use std::path::Path;

use onnx_train::*;
use paths::{mlp, models, root, Folder};

fn none() -> Options {
    Options::new()
}

fn built() -> Model {
    let options = Options::new().set("loss", "cross_entropy").set("optimizer", "sgd(momentum=0.9)");
    Model::load(mlp()).unwrap().build(&options).unwrap()
}

fn session() -> Session {
    Session::new(&built(), &none()).unwrap()
}

const X: [f32; 8 * 4] = [0.5; 8 * 4];
const LABELS: [i64; 8] = [0, 1, 2, 0, 1, 2, 0, 1];

fn batch() -> [Input<'static>; 2] {
    [Input::new("x", &[8, 4], &X).unwrap(), Input::new("labels", &[8], &LABELS).unwrap()]
}

fn one_epoch() -> Options {
    Options::new().set("epochs", 1).set("batch-size", 4).set("lr", 0.1)
}

#[test]
fn errors_have_the_text_the_status_and_the_code_of_the_library() {
    let digits = Model::load(models().join("digits_cnn.onnx")).unwrap();
    let options = Options::new().set("loss", "cross_entropy").set("optimizer", "adamw");
    let training = digits.build(&options).unwrap();
    let mut session = Session::new(&training, &none()).unwrap();
    let failures = [
        ("load", Model::load("no_such_file.onnx").unwrap_err()),
        ("build", digits.build(&Options::new().set("loss", "no_such_loss")).unwrap_err()),
        ("session", Session::new(&training, &Options::new().set("speed", 1)).unwrap_err()),
        ("run", session.run("step", &[]).map(|_| ()).unwrap_err()),
    ];
    let said: Vec<String> =
        failures.iter().map(|(call, e)| format!("{call}\t{}\t{}\t{e}", e.status().number(), e.code())).collect();
    let expected = std::fs::read_to_string(root().join("bindings/errors.txt")).unwrap();
    assert_eq!(said, expected.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>());
    assert_eq!(failures[0].1.status(), Status::File);
    // What a main that returns a Result prints.
    assert_eq!(format!("{:?}", failures[0].1), failures[0].1.message());
}

#[test]
fn models_are_built_changed_and_written() {
    let (folder, forward) = (Folder::new("models"), Model::load(mlp()).unwrap());
    assert_eq!(version(), env!("CARGO_PKG_VERSION"));
    let copy = Model::from_bytes(&forward.to_bytes().unwrap()).unwrap();
    assert_eq!(&*copy.to_bytes().unwrap(), &*forward.to_bytes().unwrap());
    assert_eq!(Model::from_bytes(b"no model").unwrap_err().status(), Status::File);
    assert_eq!(Model::load(Path::new("a\0b")).unwrap_err().status(), Status::Usage);

    let training = built();
    assert!(training.metadata().iter().any(|(key, value)| key == "onnx_train.loss" && value.contains("cross_entropy")));
    assert!(training.notes().iter().all(|note| !note.what.is_empty()));
    training.export_with(&none()).unwrap().save(folder.path("inference.onnx")).unwrap();
    training.flatten("step").unwrap();
    assert_eq!(training.flatten("stp").unwrap_err().status(), Status::Usage);
    assert!(training.save_adapter(folder.path("adapter")).is_ok() || !folder.path("adapter").exists());

    let bias = Input::new("fc2.bias", &[3], &[1.0f64; 3]).unwrap();
    let changed = forward.with_weights(&[bias], true).unwrap();
    let wrong = Input::new("fc9", &[3], &[1.0f32; 3]).unwrap();
    assert_eq!(changed.with_weights(std::slice::from_ref(&wrong), true).unwrap_err().status(), Status::Data);
    changed.with_weights(&[wrong], false).unwrap();
    let trained = changed.build(&Options::new().set("loss", "cross_entropy").set("optimizer", "sgd")).unwrap();
    let into = Options::new().set("into", mlp().display());
    let note = trained.export_into(folder.path("served.onnx"), &into).unwrap();
    assert!(note.contains("trained weights in") && folder.path("served.onnx").exists(), "{note}");
    assert_eq!(trained.export_into(folder.path("none.onnx"), &none()).unwrap_err().status(), Status::Usage);

    let (chosen, note) = forward.build_for_arrays(&batch(), &none()).unwrap();
    assert!(note.starts_with("loss cross_entropy"), "{note}");
    assert!(chosen.metadata().iter().any(|(key, _)| key == "onnx_train.loss"));
    assert_eq!(forward.build_for_file("no/data.npz", &none()).unwrap_err().status(), Status::File);
    assert_eq!(forward.sizes(&batch()[..1]).unwrap(), "");
    assert_eq!(forward.build_with_loss(&forward, &none()).unwrap_err().status(), Status::Unsupported);
    let (pass, back) = forward.differentiate(&none()).unwrap();
    for each in [pass, back] {
        assert_eq!(Session::new(&each, &none()).unwrap().entries().unwrap(), ["predict"]);
    }
    forward.derivative("gradient", None, &Options::new().set("loss", "cross_entropy")).unwrap();
    let report = forward.check(&none()).unwrap();
    assert!(report.text.contains("It can be trained") && report.failure.is_empty() && report.loss == "cross_entropy");
}

#[test]
fn options_are_described_and_refused() {
    let known = Options::known("fit").unwrap();
    let epochs = known.iter().find(|option| option.name == "epochs").unwrap();
    assert!(epochs.kind == "integer" && !epochs.text.is_empty());
    for of in ["build", "forward", "session", "samples", "data", "check", "export", "generate"] {
        assert!(!Options::known(of).unwrap().is_empty(), "{of}");
    }
    assert_eq!(Options::known("nothing").unwrap_err().status(), Status::Usage);
    let options: Options = [("lr", 0.5)].into_iter().collect();
    assert_eq!(options, Options::new().set("lr", "0.5"));
    let options = Options::new().set("lr", 0.5).set("schedule", "linear").set("steps", 4).set("warmup", 2);
    assert_eq!(learning_rate(0, &options).unwrap(), 0.25);
    let (training, evaluation) = split(10, &Options::new().set("val-split", 0.2)).unwrap();
    assert_eq!((training.len(), evaluation.len()), (8, 2));
    assert!(split(0, &none()).is_err());
    assert_eq!(session().fit(&batch(), &Options::new().set("speed", 3)).unwrap_err().status(), Status::Usage);
    assert_eq!(session().fit(&batch(), &Options::new().set("ep\0chs", 3)).unwrap_err().status(), Status::Usage);
}

#[test]
fn runs_read_inputs_in_place_and_give_views() {
    let mut session = session();
    let outputs = session.run("step", &batch()).unwrap();
    let loss: f32 = outputs.scalar("loss").unwrap();
    assert!(loss > 0.0 && !outputs.is_empty() && outputs.iter().count() == outputs.len());
    assert_eq!(outputs.get("no such output").unwrap_err().status(), Status::Usage);
    assert_eq!(outputs.data::<i64>("loss").unwrap_err().status(), Status::Usage);
    let logits = session.run("predict", &batch()[..1]).unwrap().get("logits").unwrap().to_vec::<f32>().unwrap();
    assert_eq!(logits.len(), 8 * 3);
    let mut with_rate = batch().to_vec();
    with_rate.push(Input::scalar("learning_rate", 0.0f32).unwrap());
    let before = session.view::<f32>("fc2.bias").unwrap().to_vec();
    session.run("step", &with_rate).unwrap();
    assert_eq!(session.view::<f32>("fc2.bias").unwrap(), before);
    assert_eq!(Input::new("x", &[8, 5], &X).unwrap_err().status(), Status::Data);
    assert_eq!(Input::new("x", &[i64::MAX, i64::MAX], &X).unwrap_err().status(), Status::Data);
    assert_eq!(Input::with_type("x", ElementType::Float16, &[32], &X).unwrap_err().status(), Status::Usage);
    Input::with_type("x", ElementType::Bfloat16, &[2], &[0u16; 2]).unwrap();
    Input::bools("mask", &[2], &[true, false]).unwrap();
    Input::new::<f32>("none", &[0, 4], &[]).unwrap();
}

#[test]
fn states_are_seen_where_they_are() {
    let (mut session, mut other) = (session(), session());
    session.view_mut::<f32>("fc2.bias").unwrap().copy_from_slice(&[1.0, 2.0, 3.0]);
    assert_eq!(session.get_state::<f32>("fc2.bias").unwrap(), [1.0, 2.0, 3.0]);
    session.swap_state(&mut other, "fc2.bias").unwrap();
    assert_eq!(other.view::<f32>("fc2.bias").unwrap(), [1.0, 2.0, 3.0]);
    session.set_state("fc2.bias", &[4.0f32; 3]).unwrap();
    assert_eq!(session.view::<f32>("fc2.bias").unwrap(), [4.0; 3]);
    assert_eq!(session.set_state("fc2.bias", &[4.0f32; 2]).unwrap_err().status(), Status::Data);
    assert_eq!(session.view::<f64>("fc2.bias").unwrap_err().status(), Status::Usage);
    assert_eq!(session.view::<f32>("fc9").unwrap_err().status(), Status::Usage);
    assert_eq!(session.state("fc2.bias").unwrap(), (ElementType::Float32, vec![3]));
    let (address, on_host) = session.address("fc2.bias").unwrap();
    assert!(on_host && session.view::<f32>("fc2.bias").unwrap().as_ptr().cast() == address);
    // SAFETY: on the CPU the session's device is the host.
    unsafe { session.set_state_from_device("fc2.bias", [5.0f32; 3].as_ptr().cast(), 12) }.unwrap();
    assert_eq!(session.view::<f32>("fc2.bias").unwrap(), [5.0; 3]);
    let momentum = session.state_ports().unwrap().into_iter().find(|port| port.role == "momentum_buffer").unwrap();
    assert!(session.states().unwrap().contains(&momentum.of));
    session.initialize(1).unwrap();
    assert_eq!(session.load_adapter("a", "no/folder").unwrap_err().status(), Status::Usage);
    assert_eq!(session.set_adapter("a").unwrap_err().status(), Status::Usage);
}

#[test]
fn sessions_say_what_they_are() {
    let mut session = session();
    assert_eq!(session.entries().unwrap()[0], "predict");
    let inputs = session.inputs("step").unwrap();
    assert_eq!((inputs[0].name.as_str(), inputs[0].shape.as_deref()), ("x", Some(&[-1, 4][..])));
    assert!(inputs.iter().any(|port| port.role == "learning_rate" && port.has_default));
    assert!(session.outputs("evaluate").unwrap().iter().any(|port| port.role == "loss"));
    assert!(session.inputs("nothing").is_err());
    let plan = session.plan("step", &Options::new().set("batch", 4)).unwrap();
    assert!(plan.arena_bytes > 0 && plan.json.starts_with('[') && !plan.text.is_empty());
    assert_eq!((session.scale("x").unwrap(), session.sample_axis("step", "x").unwrap()), (1.0, 0));
    assert_eq!((session.device().unwrap().kind, session.ranks().unwrap()), (1, (0, 1)));
    assert!(session.generate(&[[1i64]], &none(), |_, _| Next::Continue).is_err());
    assert_eq!(session.generate_note(), "");
    assert!(session.metrics(&[]).unwrap().is_empty());
    assert!(session.metric_tables().is_ok());
}

#[test]
fn a_language_model_learns_and_writes_texts() {
    let gpt = Model::load(models().join("gpt.onnx")).unwrap();
    let mut session = Session::new(&gpt, &none()).unwrap();
    let (prompts, options) = ([vec![1i64, 2, 3], vec![4]], Options::new().set("tokens", 4).set("seed", 1));
    let end_of_the_first = |text, _| if text == 0 { Next::EndText } else { Next::Continue };
    let texts = session.generate(&prompts, &options, end_of_the_first).unwrap();
    assert_eq!((texts[0].len(), texts[1].len(), session.generate_note()), (1, 4, String::new()));

    let training = gpt.build(&Options::new().set("loss", "cross_entropy").set("optimizer", "sgd")).unwrap();
    let mut session = Session::new(&training, &none()).unwrap();
    let text: Vec<i64> = (0..129).map(|i| i % 128).collect();
    let rows = |name, from| Input::new(name, &[1, 128], &text[from..from + 128]).unwrap();
    let data = [rows("tokens", 0), rows("labels", 1)];
    let mut tokens = 0;
    Trainer::new(&mut session)
        .on_step(|step, _| {
            tokens = step.tokens;
            Next::Continue
        })
        .fit(&data, &Options::new().set("steps", 1))
        .unwrap();
    assert_eq!(tokens, 128);
}

#[test]
fn a_session_moves_to_another_thread() {
    let mut session = session();
    let trained = std::thread::spawn(move || session.fit(&batch(), &one_epoch()).map(|_| session)).join().unwrap();
    assert!(trained.unwrap().evaluate(&batch(), &none()).unwrap().iter().any(|(name, _)| name == "accuracy"));
}

/// Batches of 8 and 5 samples, or an error at the second.
struct Halves {
    x: Vec<f32>,
    labels: Vec<i64>,
    given: usize,
    epochs: Vec<i64>,
    fails: bool,
}

impl Halves {
    fn new(fails: bool) -> Halves {
        let x: Vec<f32> = (0..13 * 4).map(|i| (i * 7 % 11) as f32 / 11.0).collect();
        Halves { x, labels: (0..13).map(|i| i % 3).collect(), given: 0, epochs: Vec::new(), fails }
    }
}

impl Batches for Halves {
    fn begin(&mut self, epoch: i64) -> std::result::Result<(), BoxError> {
        self.given = 0;
        self.epochs.push(epoch);
        Ok(())
    }

    fn next(&mut self) -> std::result::Result<Option<Vec<Input<'_>>>, BoxError> {
        let rows = match self.given {
            0 => 0..8,
            1 if self.fails => return Err("the disk is gone".into()),
            1 => 8..13,
            _ => return Ok(None),
        };
        self.given += 1;
        let samples = rows.len() as i64;
        Ok(Some(vec![
            Input::new("x", &[samples, 4], &self.x[rows.start * 4..rows.end * 4])?,
            Input::new("labels", &[samples], &self.labels[rows])?,
        ]))
    }

    fn batches(&self) -> i64 {
        2
    }
}

#[test]
fn batches_of_the_program_are_trained_on() {
    let (mut session, mut data, mut steps) = (session(), Halves::new(false), Vec::new());
    let reason = Trainer::new(&mut session)
        .on_step(|step, session| {
            assert!(step.learning_rate > 0.0 && session.view::<f32>("fc2.bias").unwrap().len() == 3);
            assert!(step.tokens == 0 && step.utilization.is_nan());
            steps.push((step.step, step.epoch, step.samples));
            Next::Continue
        })
        .fit(&mut data, &Options::new().set("epochs", 2).set("lr", 0.1))
        .unwrap();
    assert_eq!(reason, StopReason::Finished);
    assert_eq!(steps, [(1, 1, 8), (2, 1, 5), (3, 2, 8), (4, 2, 5)]);
    assert_eq!(data.epochs, [0, 1]);
    let error = session.fit(&mut Halves::new(true), &one_epoch()).unwrap_err();
    assert_eq!(error.to_string(), "the disk is gone");
    assert!(std::error::Error::source(&error).is_some() && error.status() == Status::Usage);
}

#[test]
fn callbacks_end_a_training_and_their_panics_go_through() {
    let (mut session, folder) = (session(), Folder::new("callbacks"));
    let (mut evaluations, mut checkpoints, mut notes) = (0, Vec::new(), Vec::new());
    let reason = Trainer::new(&mut session)
        .evaluate_on(&batch())
        .on_evaluation(|evaluation, _| {
            assert!(evaluation.metrics.iter().any(|(name, _)| name == "loss"));
            evaluations += 1;
            Next::Stop
        })
        .on_checkpoint(|path| {
            checkpoints.push(path.to_owned());
            Next::Continue
        })
        .on_note(|text| {
            notes.push(text.to_owned());
            Next::Continue
        })
        .fit(&batch(), &Options::new().set("epochs", 5).set("out", folder.path("run").display()))
        .unwrap();
    assert_eq!((reason, evaluations), (StopReason::Stopped, 1));
    assert!(checkpoints.iter().any(|path| path.ends_with("last.onnx")));

    let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        Trainer::new(&mut session).on_step(|_, _| panic!("of a callback")).fit(&batch(), &one_epoch())
    }));
    assert_eq!(panics.unwrap_err().downcast_ref::<&str>(), Some(&"of a callback"));
    session.fit(&batch(), &one_epoch()).unwrap(); // is usable
}

#[test]
fn files_are_data() {
    let (mut session, folder) = (session(), Folder::new("files"));
    let path = folder.path("data.safetensors");
    safetensors_save(&path, &batch(), &Options::new().set("made by", "a test")).unwrap();
    let saved = Dataset::open_safetensors(&path).unwrap();
    assert_eq!(saved.metadata(), [("made by".to_owned(), "a test".to_owned())]);
    let arrays = saved.arrays().unwrap();
    let x = arrays.iter().find(|array| array.name() == "x").unwrap();
    assert_eq!((x.to_vec::<f32>().unwrap(), x.shape()), (X.to_vec(), &[8, 4][..]));
    let inputs: Result<Vec<Input<'_>>> = arrays.iter().map(Tensor::to_input).collect();
    session.run("step", &inputs.unwrap()).unwrap();

    let data = Dataset::open(&path, &mut session, None, &none()).unwrap();
    assert_eq!(data.size(4).unwrap(), (8, 2));
    session.fit(&data, &one_epoch()).unwrap();
    assert_eq!(session.predict(&data, &none()).unwrap().get("logits").unwrap().shape(), [8, 3]);
    assert!(Dataset::open_file("no/such.npz").is_err());
}
