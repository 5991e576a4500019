//! Claims about model files.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use proptest::prelude::*;
use safetensors::tensor::{Dtype, TensorView};

use super::{ModelFileError, fuzz, load, load_for, parse, save, serialise};
use crate::model::{ModelKind, ModelSpec};

fn spec(kind: ModelKind) -> ModelSpec {
    ModelSpec::new(kind, if kind == ModelKind::ConvNet { 16 } else { 4 }, 3, &[2]).unwrap()
}

/// Parameters that are all different.
fn parameters(spec: &ModelSpec) -> Vec<f32> {
    (0..spec.parameters()).map(|index| index as f32 - 0.5).collect()
}

/// The message for a file of these bytes.
fn refusal(bytes: &[u8]) -> String {
    parse(Path::new("m"), bytes).unwrap_err().to_string()
}

/// A file of one tensor and this metadata entry.
fn crafted(entry: Option<&str>, name: &str, kind: Dtype, shape: &[usize]) -> Vec<u8> {
    let data = vec![0; shape.iter().product::<usize>() * kind.bitsize() / 8];
    let view = TensorView::new(kind, shape.to_vec(), &data).unwrap();
    let metadata = entry.map(|entry| HashMap::from([("slackline".to_owned(), entry.to_owned())]));
    safetensors::serialize([(name, view)], metadata).unwrap()
}

#[test]
fn what_is_saved_is_loaded_and_equal_models_are_equal_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.safetensors");
    for kind in [ModelKind::Softmax, ModelKind::Mlp, ModelKind::ConvNet, ModelKind::Factorisation] {
        let spec = spec(kind);
        // The second round replaces the file of the first.
        save(&path, &spec, &parameters(&spec)).unwrap();
        assert_eq!(load(&path).unwrap(), (spec.clone(), parameters(&spec)));
        assert_eq!(load_for(&path, &spec).unwrap(), parameters(&spec));
        // The penalty is one of training.
        assert_eq!(load_for(&path, &spec.clone().with_penalty(0.5)).unwrap(), parameters(&spec));
        assert_eq!(fs::read(&path).unwrap(), serialise(&spec, &parameters(&spec)));
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing but the model is left");
}

#[test]
fn a_model_that_cannot_be_written_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let spec = spec(ModelKind::Softmax);
    // A folder stands where the model should go, so the rename fails after the write.
    let path = folder.path().join("m");
    fs::create_dir(&path).unwrap();
    let error = save(&path, &spec, &parameters(&spec)).unwrap_err();
    assert!(matches!(error, ModelFileError::Write { .. }));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    let error = save(folder.path().join("none/m"), &spec, &parameters(&spec)).unwrap_err();
    assert!(matches!(error, ModelFileError::Write { .. }));
    assert!(matches!(save("..", &spec, &parameters(&spec)), Err(ModelFileError::NoName { .. })));
}

#[test]
fn a_model_of_another_shape_is_refused_with_both_shapes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m");
    let found = spec(ModelKind::Mlp);
    save(&path, &found, &parameters(&found)).unwrap();
    let error = load_for(&path, &spec(ModelKind::Softmax)).unwrap_err().to_string();
    let expected = "holds a mlp of 4 columns, 2 hidden units and 3 classes, \
                    where a softmax of 4 columns and 3 classes is needed";
    assert!(error.contains(expected), "{error}");
}

#[test]
fn a_missing_file_and_a_folder_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    assert!(matches!(load(folder.path().join("none")), Err(ModelFileError::Missing { .. })));
    assert!(matches!(load(folder.path()), Err(ModelFileError::NotAFile { .. })));
}

#[test]
fn a_file_cut_short_anywhere_is_called_damaged() {
    let spec = spec(ModelKind::Mlp);
    let bytes = serialise(&spec, &parameters(&spec));
    for length in 0..bytes.len() {
        let error = parse(Path::new("m"), &bytes[..length]).unwrap_err();
        assert!(matches!(error, ModelFileError::Damaged { .. }), "{length} bytes: {error}");
    }
}

#[test]
fn refusals_name_the_cause_and_the_remedy() {
    let header = r#"{"version":2,"kind":"softmax","columns":4,"classes":3,"hidden":[]}"#;
    let good = |entry| crafted(Some(entry), "linear.weight", Dtype::F32, &[3, 4]);
    let cases = [
        (b"label,a,b\n1,2,3\n".to_vec(), "m: not a safetensors file: "),
        (
            crafted(None, "linear.weight", Dtype::F32, &[3, 4]),
            "m: a safetensors file without the `slackline`",
        ),
        (good("{}"), "m: its `slackline` metadata cannot be read: missing field"),
        (good(&header.replace("softmax", "forest")), "m: its `slackline` metadata cannot be read: unknown"),
        (
            good(&header.replace(":2,", ":1,").replace("[]", "0")),
            "m: of version 1, and this program reads version 2",
        ),
        (good(&header.replace(":4,", ":0,")), "m: no model has 0 columns"),
        (good(&header.replace("softmax", "factorisation")), "m: a 4 x 3 matrix has no factors of rank no"),
        (
            good(&header.replace(":4,", ":18446744073709551615,")),
            "m: a model of 18446744073709551615 columns",
        ),
        (good(header), "m: has no tensor `linear.bias`"),
        (
            crafted(Some(header), "linear.weight", Dtype::F64, &[3, 4]),
            "m: tensor `linear.weight` is of type F64; convert it to F32",
        ),
        (
            crafted(Some(header), "linear.weight", Dtype::F32, &[4, 3]),
            "m: tensor `linear.weight` has the shape [4, 3] where [3, 4] follows",
        ),
        (
            serialise(&spec(ModelKind::Softmax), &[f32::INFINITY; 15]),
            "m: tensor `linear.weight` holds a value that is not finite",
        ),
    ];
    for (bytes, expected) in cases {
        let message = refusal(&bytes);
        assert!(message.starts_with(expected), "{message}\nwhere this was expected:\n{expected}");
    }
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        fuzz::fuzz_file(&bytes);
    }

    #[test]
    fn damaged_samples_never_panic(at: prop::sample::Index, with in any::<[u8; 2]>()) {
        for mut bytes in fuzz::file_samples() {
            fuzz::fuzz_file(&bytes);
            let at = at.index(bytes.len());
            bytes.splice(at..=at, with);
            fuzz::fuzz_file(&bytes);
        }
    }

    #[test]
    fn damaged_files_never_panic(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let spec = spec(ModelKind::Mlp);
        let mut bytes = serialise(&spec, &parameters(&spec));
        for (index, byte) in damage {
            let index = index.index(bytes.len());
            bytes[index] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok((spec, parameters)) = parse(Path::new("m"), &bytes) {
            prop_assert_eq!(spec.parameters(), parameters.len());
        }
    }
}
