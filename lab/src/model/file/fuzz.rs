//! Files that are no models.

use std::path::Path;

use super::{ModelKind, ModelSpec, parse, serialise};

/// Reads whatever `bytes` are as a model, and checks that it is written as it was read.
pub(crate) fn fuzz_file(bytes: &[u8]) {
    let Ok((spec, parameters)) = parse(Path::new("x"), bytes) else { return };
    assert_eq!(parameters.len(), spec.parameters());
    assert!(parameters.iter().all(|value| value.is_finite()));
    let written = serialise(&spec, &parameters);
    let again = parse(Path::new("x"), &written).expect("what was written can be read");
    assert_eq!(again, (spec, parameters));
}

/// A model of each kind.
pub(crate) fn file_samples() -> Vec<Vec<u8>> {
    let file = |kind, hidden: &[usize]| {
        let columns = if kind == ModelKind::ConvNet { 16 } else { 2 };
        let spec = ModelSpec::new(kind, columns, 2, hidden).expect("a small model");
        serialise(&spec, &vec![0.5; spec.parameters()])
    };
    vec![
        file(ModelKind::Softmax, &[]),
        file(ModelKind::Mlp, &[1, 2]),
        file(ModelKind::ConvNet, &[1]),
        file(ModelKind::Factorisation, &[3]),
    ]
}
