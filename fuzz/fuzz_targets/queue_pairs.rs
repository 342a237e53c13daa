//! Two queue pairs and any operations, compared with the model, as in the property test.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;

use testkit::model;

#[derive(Arbitrary, Debug)]
struct Run {
    setting: model::Setting,
    operations: Vec<model::Operation>,
}

fuzz_target!(|input: Run| {
    let count = input.operations.len().min(200);
    model::run(input.setting, &input.operations[..count]);
});
