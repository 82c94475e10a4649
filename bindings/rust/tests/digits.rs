//! The example learns digits, and an interrupted training goes on to the bit where it stopped.
#[path = "../examples/digits.rs"]
mod digits;
mod paths;

use onnx_train::{ElementType, Model, Session, StopReason};
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
    // Of a weight, a number of steps, the key of random numbers.
    let bits = |session: &Session, name: &str| match session.state(name).unwrap().0 {
        ElementType::Float32 => session.view::<f32>(name).unwrap().iter().map(|x| u64::from(x.to_bits())).collect(),
        ElementType::Int64 => session.view::<i64>(name).unwrap().iter().map(|&x| x as u64).collect(),
        _ => session.view::<u64>(name).unwrap().to_vec(),
    };
    for name in &states {
        assert_eq!(bits(&whole, name), bits(&second, name), "{name}");
    }

    let exported = folder.path("digits.onnx");
    second.model().unwrap().export().unwrap().save(&exported).unwrap();
    let accuracy = digits::accuracy(&Model::load(&exported).unwrap(), &models).unwrap();
    assert!(accuracy > 0.95, "{accuracy}");
}
