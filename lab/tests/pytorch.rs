//! The models compute what PyTorch computes. `pytorch.py` beside this file wrote what is expected.

use std::collections::BTreeMap;

use safetensors::SafeTensors;
use slackline_lab::data::{Dataset, Entries, Examples};
use slackline_lab::model::{ModelKind, ModelSpec, Scratch};

/// Relative to the largest magnitude of a tensor; of losses to themselves.
const TOLERANCE: f64 = 1e-5;

/// The momentum with which PyTorch remembers means and variances.
const MOMENTUM: f32 = 0.1;

/// The tensors of one model, by name.
struct Case(BTreeMap<String, Vec<f32>>);

impl Case {
    fn read(name: &str) -> Case {
        let file =
            SafeTensors::deserialize(include_bytes!("pytorch.safetensors")).expect("the file of PyTorch");
        let own = file.tensors().into_iter().filter_map(|(tensor, view)| {
            let values = view.data().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
            Some((tensor.strip_prefix(name)?.strip_prefix('/')?.to_owned(), values.collect()))
        });
        Case(own.collect())
    }

    fn get(&self, name: &str) -> &[f32] {
        self.0.get(name).unwrap_or_else(|| panic!("no tensor {name}"))
    }
}

/// How far `ours` is from `theirs`, as a part of the largest of theirs.
fn away(ours: &[f32], theirs: &[f32]) -> f64 {
    assert_eq!(ours.len(), theirs.len());
    let largest = theirs.iter().fold(0.0f64, |most, value| most.max(f64::from(value.abs())));
    let differences = ours.iter().zip(theirs).map(|(a, b)| (f64::from(*a) - f64::from(*b)).abs() / largest);
    // `max` passes over NaN.
    differences.fold(0.0, |most, next| if next > most || next.is_nan() { next } else { most })
}

fn agrees(name: &str, kind: ModelKind, hidden: &[usize]) {
    let case = Case::read(name);
    let labels: Vec<u32> = case.get("labels").iter().map(|label| *label as u32).collect();
    let columns = case.get("features").len() / labels.len();
    let last = if kind == ModelKind::Softmax { "linear.bias" } else { "output.bias" };
    let classes = case.get(&format!("parameters/{last}")).len();
    let data = Dataset { features: case.get("features").to_vec(), labels, columns, classes };
    let spec = ModelSpec::new(kind, columns, classes, hidden).expect("a model");
    let remembered = agrees_on(name, &case, &spec, Examples::Classes(&data));
    assert_eq!(remembered, if kind == ModelKind::ConvNet { 4 } else { 0 });
}

/// Compares loss, evaluation and gradient. Returns the number of tensors that batch normalisation remembers.
fn agrees_on(name: &str, case: &Case, spec: &ModelSpec, data: Examples<'_>) -> usize {
    let tensors = spec.tensors();
    let parameters: Vec<f32> =
        tensors.iter().flat_map(|own| case.get(&format!("parameters/{}", own.name))).copied().collect();

    let rows: Vec<usize> = (0..data.count()).collect();
    let mut gradient = vec![f32::NAN; parameters.len()];
    let loss = spec.loss_and_gradient(&parameters, data, &rows, &mut gradient, &mut Scratch::default());
    let evaluated = spec.evaluate(&parameters, data).loss;
    for (what, ours, theirs) in [("loss", loss, "loss"), ("evaluation", evaluated, "evaluation")] {
        let away = away(&[ours], case.get(theirs));
        assert!(away <= TOLERANCE, "{name}: {what} is off by {away:e}");
    }
    let (mut at, mut remembered) = (0, 0);
    for tensor in tensors {
        let range = at..at + tensor.parameters();
        at = range.end;
        let (ours, kept) = (&gradient[range.clone()], &parameters[range]);
        let away = match case.0.get(&format!("remembered/{}", tensor.name)) {
            None => away(ours, case.get(&format!("gradient/{}", tensor.name))),
            Some(theirs) => {
                remembered += 1;
                let ours: Vec<f32> = kept.iter().zip(ours).map(|(kept, own)| kept - MOMENTUM * own).collect();
                away(&ours, theirs)
            }
        };
        assert!(away <= TOLERANCE, "{name}: {} is off by {away:e}", tensor.name);
    }
    assert_eq!(at, parameters.len());
    remembered
}

#[test]
fn softmax_regression_agrees_with_pytorch() {
    agrees("softmax", ModelKind::Softmax, &[]);
}

#[test]
fn perceptrons_of_any_depth_agree_with_pytorch() {
    agrees("mlp", ModelKind::Mlp, &[7]);
    agrees("mlp-deep", ModelKind::Mlp, &[9, 8, 6]);
}

#[test]
fn convolutions_with_batch_normalisation_agree_with_pytorch() {
    agrees("convnet", ModelKind::ConvNet, &[12]);
    agrees("convnet-colour", ModelKind::ConvNet, &[6, 5]);
}

#[test]
fn the_factors_of_a_matrix_agree_with_pytorch() {
    let case = Case::read("factorisation");
    let numbers = |name: &str| case.get(name).iter().map(|number| *number as u32).collect();
    let [rows, columns, rank, penalty] = *case.get("shape") else { panic!("four numbers") };
    let (rows, columns) = (rows as usize, columns as usize);
    let values = case.get("values").to_vec();
    let entries =
        Entries { rows, columns, row_numbers: numbers("rows"), column_numbers: numbers("columns"), values };
    let spec = ModelSpec::new(ModelKind::Factorisation, rows, columns, &[rank as usize]).expect("a model");
    agrees_on("factorisation", &case, &spec.with_penalty(penalty), Examples::Values(&entries));
}
