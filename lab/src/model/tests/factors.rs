//! Claims about the factorisation of a matrix.

use crate::data::random::{Purpose, Random};
use crate::data::{Entries, Examples, Task, TaskKind};
use crate::model::{Batches, ModelKind, ModelSpec, ModelSpecError, Scratch};

fn spec(rows: usize, columns: usize, rank: usize) -> ModelSpec {
    ModelSpec::new(ModelKind::Factorisation, rows, columns, &[rank]).unwrap()
}

/// A few entries of a matrix of 5 x 4, one of them twice.
fn small() -> Entries {
    Entries {
        rows: 5,
        columns: 4,
        row_numbers: vec![0, 0, 2, 4, 4, 2, 1],
        column_numbers: vec![0, 3, 1, 1, 2, 1, 0],
        values: vec![1.5, -0.5, 2.0, 0.25, -3.0, 2.5, 0.0],
    }
}

fn drawn(spec: &ModelSpec) -> Vec<f32> {
    let mut random = Random::new(5, Purpose::Parameters, 0);
    (0..spec.parameters()).map(|_| random.symmetric()).collect()
}

/// The loss in f64, by the definition.
fn loss(spec: &ModelSpec, parameters: &[f64], entries: &Entries, picked: &[usize]) -> f64 {
    let rank = spec.hidden()[0];
    let factor = |number: usize| &parameters[number * rank..(number + 1) * rank];
    let losses = picked.iter().map(|index| {
        let left = factor(entries.row_numbers[*index] as usize);
        let right = factor(entries.rows + entries.column_numbers[*index] as usize);
        let product: f64 = left.iter().zip(right).map(|(one, other)| one * other).sum();
        let squares: f64 = left.iter().chain(right).map(|value| value * value).sum();
        (product - f64::from(entries.values[*index])).powi(2) + f64::from(spec.penalty()) * squares
    });
    losses.sum::<f64>() / picked.len() as f64
}

#[test]
fn gradients_of_factors_agree_with_differences_of_the_loss() {
    let (entries, picked) = (small(), [0, 2, 3, 3, 5]);
    for penalty in [0.0, 0.125] {
        let spec = spec(5, 4, 3).with_penalty(penalty);
        let parameters = drawn(&spec);
        let mut gradient = vec![f32::NAN; parameters.len()];
        let scratch = &mut Scratch::default();
        let ours = spec.loss_and_gradient(&parameters, &entries, &picked, &mut gradient, scratch);
        let mut exact: Vec<f64> = parameters.iter().map(|value| f64::from(*value)).collect();
        let expected = loss(&spec, &exact, &entries, &picked);
        assert!((f64::from(ours) - expected).abs() < 1e-6 * expected, "loss {ours}, not {expected}");
        let largest = gradient.iter().fold(0f32, |most, value| most.max(value.abs()));
        for index in 0..exact.len() {
            let (middle, step) = (exact[index], 1e-6);
            let mut at = |value| {
                exact[index] = value;
                loss(&spec, &exact, &entries, &picked)
            };
            let expected = (at(middle + step) - at(middle - step)) / (2.0 * step);
            at(middle);
            let off = (f64::from(gradient[index]) - expected).abs() / f64::from(largest);
            assert!(off < 1e-5, "gradient {index} is {}, not {expected}", gradient[index]);
        }
    }
}

#[test]
fn factors_in_pieces_are_the_same_to_the_bit_and_can_be_given_up() {
    let (entries, spec) = (small(), spec(5, 4, 3).with_penalty(0.5));
    let (parameters, rows) = (drawn(&spec), [6, 5, 4, 3, 2, 1, 0]);
    let mut scratch = Scratch::default();
    let (mut whole, mut pieces) = (vec![0.0; parameters.len()], vec![f32::NAN; parameters.len()]);
    let loss = spec.loss_and_gradient(&parameters, &entries, &rows, &mut whole, &mut scratch);
    for (piece, questions) in [(1, 6), (3, 2), (7, 0), (9, 0)] {
        for last in 0..=questions {
            let mut asked = 0;
            let stop = || {
                asked += 1;
                Ok::<_, ()>(asked == last)
            };
            let (gradient, scratch) = (&mut pieces, &mut scratch);
            let given =
                spec.loss_and_gradient_unless(&parameters, &entries, &rows, gradient, scratch, piece, stop);
            assert_eq!(given, Ok((last == 0).then_some(loss)), "{piece} at a time, stopped at {last}");
            assert_eq!(asked, if last == 0 { questions } else { last });
            assert!(last > 0 || pieces == whole);
        }
    }
}

/// The matrix that comes with the program has four equal singular values, and its entries a mean square of 1. Of all
/// matrices of rank r the best one misses them by 1 - r/4 (Eckart and Young, 1936), and one of rank 4 by nothing.
#[test]
fn factors_of_the_whole_rank_find_the_matrix_and_smaller_ones_cannot() {
    let Task { train, test } = Task::load(TaskKind::Values, None).unwrap();
    let all = |of: &dyn Fn(Examples<'_>) -> f64| (of(train.examples()) + of(test.examples())) / 2.0;
    let square = |examples: Examples<'_>| match examples {
        Examples::Values(Entries { values, .. }) => {
            values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>() / values.len() as f64
        }
        Examples::Classes(_) => f64::NAN,
    };
    assert_eq!((train.examples().count(), test.examples().count()), (1200, 1200));
    assert!((all(&square) - 1.0).abs() < 1e-6, "the mean square is {}", all(&square));
    for rank in [1, 2, 3, 4] {
        let spec = spec(60, 40, rank);
        let (mut parameters, mut scratch) = (spec.initialise(1), Scratch::default());
        let mut gradient = vec![0.0; parameters.len()];
        let mut batches = Batches::new(1, 0, 1, 1200, 64).unwrap();
        for step in 0..3000 {
            let rows = batches.rows(step);
            spec.loss_and_gradient(&parameters, &train, rows, &mut gradient, &mut scratch);
            parameters.iter_mut().zip(&gradient).for_each(|(value, slope)| *value -= 2.0 * slope);
        }
        let error = all(&|examples| f64::from(spec.evaluate(&parameters, examples).loss));
        let least = 1.0 - rank as f64 / 4.0;
        assert!(error > least - 1e-6, "rank {rank}: {error}, less than {least}");
        assert!(rank < 4 || error < 1e-6, "rank {rank}: {error}");
        assert_eq!(spec.evaluate(&parameters, &test).accuracy, None);
    }
}

/// The penalty alone: both factors of an entry fall by the same part, 2 * step size * penalty.
#[test]
fn a_penalty_shrinks_the_factors_of_known_entries_alone() {
    let entries =
        Entries { rows: 2, columns: 2, row_numbers: vec![1], column_numbers: vec![0], values: vec![0.75] };
    let spec = spec(2, 2, 1).with_penalty(0.25);
    // 1.5 * 0.5 is the entry.
    let (parameters, mut gradient) = ([3.0, 1.5, 0.5, 7.0], [f32::NAN; 4]);
    let loss = spec.loss_and_gradient(&parameters, &entries, &[0], &mut gradient, &mut Scratch::default());
    assert_eq!(gradient, [0.0, 2.0 * 0.25 * 1.5, 2.0 * 0.25 * 0.5, 0.0]);
    assert_eq!((loss, spec.evaluate(&parameters, &entries).loss), (0.25 * (2.25 + 0.25), 0.0));
}

#[test]
fn factors_have_the_tensors_of_two_embeddings_and_begin_small() {
    let spec = spec(60, 40, 4);
    let tensors: Vec<_> = spec.tensors().into_iter().map(|tensor| (tensor.name, tensor.shape)).collect();
    assert_eq!(tensors, [("rows.weight".into(), vec![60, 4]), ("columns.weight".into(), vec![40, 4])]);
    let parameters = spec.initialise(3);
    assert_eq!((parameters.len(), spec.parameters()), (400, 400));
    // The variance of 0.3^2 / 4, of which that of 400 draws is off by a twentieth.
    let variance = parameters.iter().map(|value| value * value).sum::<f32>() / 400.0;
    assert!((variance / 0.0225 - 1.0).abs() < 0.2, "variance {variance}");
    assert_ne!(parameters, spec.initialise(4));
    assert_eq!(spec.to_string(), "factorisation of a 60 x 40 matrix, rank 4");
}

#[test]
fn diverged_factors_show_as_nan_and_impossible_ones_are_refused() {
    let (entries, spec) = (small(), spec(5, 4, 3));
    let mut gradient = vec![f32::NAN; spec.parameters()];
    let parameters = gradient.clone();
    let loss = spec.loss_and_gradient(&parameters, &entries, &[0], &mut gradient, &mut Scratch::default());
    assert!(loss.is_nan() && spec.evaluate(&parameters, &entries).loss.is_nan());
    for (rows, columns, hidden) in [
        (0, 1, &[1][..]),
        (1, 0, &[1]),
        (1, 1, &[0]),
        (1, 1, &[]),
        (1, 1, &[1, 1]),
        (1, 1, &[1 << 28]),
        (usize::MAX, 1, &[1]),
        (1 << 40, 1, &[1 << 40]),
    ] {
        let error = ModelSpec::new(ModelKind::Factorisation, rows, columns, hidden).unwrap_err();
        assert!(matches!(error, ModelSpecError::NoFactors { .. }), "{error}");
    }
}
