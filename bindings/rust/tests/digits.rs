//! The example learns digits, and an interrupted training goes on to the bit where it stopped.
#[path = "../examples/digits.rs"]
mod digits;
mod paths;

use onnx_train::{Model, StopReason};
use paths::{models, Folder};

#[test]
fn a_resumed_training_equals_one_that_was_not_interrupted_to_the_bit() {
    let (models, folder) = (models(), Folder::new("digits"));
    let mut whole = digits::new_session(&models).unwrap();
    assert_eq!(digits::fit(&mut whole, &models, &folder.path("whole"), None).unwrap(), StopReason::Finished);

    let mut first = digits::new_session(&models).unwrap();
    let run = folder.path("run");
    assert_eq!(digits::fit(&mut first, &models, &run, Some(60)).unwrap(), StopReason::Interrupted);
    drop(first);
    let mut second = digits::new_session(&models).unwrap();
    assert_eq!(digits::fit(&mut second, &models, &run, None).unwrap(), StopReason::Finished);

    let states = whole.states().unwrap();
    assert!(states.len() > 20);
    let bits = |session: &onnx_train::Session, name: &str| match session.view::<f32>(name) {
        Ok(values) => values.iter().map(|value| u64::from(value.to_bits())).collect::<Vec<_>>(),
        Err(_) => session.view::<i64>(name).unwrap().iter().map(|&value| value as u64).collect(),
    };
    for name in &states {
        assert_eq!(bits(&whole, name), bits(&second, name), "{name}");
    }

    let exported = folder.path("digits.onnx");
    second.model().unwrap().export().unwrap().save(&exported).unwrap();
    let accuracy = digits::accuracy(&Model::load(&exported).unwrap(), &models).unwrap();
    assert!(accuracy > 0.95, "{accuracy}");
}
