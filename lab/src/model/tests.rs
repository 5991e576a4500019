//! Claims about the models and the batches.

use super::{Batches, BatchesError, HIDDEN_DEFAULT, ModelKind, ModelSpec, ModelSpecError, Scratch, Shards};
use crate::data::random::{Purpose, Random};
use crate::data::{Dataset, Split, digits};

mod factors;
mod reference;

const KINDS: [ModelKind; 4] =
    [ModelKind::Softmax, ModelKind::Mlp, ModelKind::ConvNet, ModelKind::Factorisation];

/// Models of every kind for these data, which are images of 8 x 8 pixels or as wide.
fn specs(data: &Dataset) -> [ModelSpec; 4] {
    let spec = |kind, hidden: &[usize]| ModelSpec::new(kind, data.columns, data.classes, hidden).unwrap();
    [
        spec(ModelKind::Softmax, &[]),
        spec(ModelKind::Mlp, &[5]),
        spec(ModelKind::Mlp, &[6, 5, 4]),
        spec(ModelKind::ConvNet, &[5]),
    ]
}

/// Parameters that are special nowhere: softmax regression starts at zero.
fn drawn(spec: &ModelSpec) -> Vec<f32> {
    let mut random = Random::new(5, Purpose::Parameters, 0);
    (0..spec.parameters()).map(|_| random.symmetric()).collect()
}

/// Plain gradient descent with momentum 0.9 by one worker; gives the test accuracy.
fn train(kind: ModelKind, split: &Split, batch: usize, epochs: usize, rate: f32) -> f32 {
    let spec = ModelSpec::new(kind, split.train.columns, split.train.classes, &[HIDDEN_DEFAULT]).unwrap();
    let mut parameters = spec.initialise(2);
    let (mut velocity, mut gradient) = (vec![0.0; parameters.len()], vec![0.0; parameters.len()]);
    let mut scratch = Scratch::default();
    let mut batches = Batches::new(2, 0, 1, split.train.rows(), batch).unwrap();
    for step in 0..epochs * batches.steps_per_epoch() {
        let rows = batches.rows(step as u64);
        spec.loss_and_gradient(&parameters, &split.train, rows, &mut gradient, &mut scratch);
        for ((parameter, velocity), gradient) in parameters.iter_mut().zip(&mut velocity).zip(&gradient) {
            *velocity = 0.9 * *velocity - rate * gradient;
            *parameter += *velocity;
        }
    }
    spec.evaluate(&parameters, &split.test).accuracy.unwrap()
}

#[test]
fn serial_softmax_reaches_95_percent_on_the_digits() {
    let accuracy = train(ModelKind::Softmax, &digits(), 32, 30, 0.1);
    assert!(accuracy >= 0.95, "accuracy {accuracy}");
}

#[test]
fn serial_mlp_reaches_97_percent_on_the_digits() {
    let accuracy = train(ModelKind::Mlp, &digits(), 32, 30, 0.1);
    assert!(accuracy >= 0.97, "accuracy {accuracy}");
}

/// A small data set.
fn small() -> Dataset {
    let mut random = Random::new(3, Purpose::Split, 0);
    let (rows, columns, classes) = (11, 64, 3);
    let features = (0..rows * columns).map(|_| random.symmetric()).collect();
    Dataset { features, labels: (0..rows as u32).map(|row| row % classes).collect(), columns, classes: 3 }
}

#[test]
fn gradients_agree_with_differences_of_the_loss() {
    let data = small();
    let rows = [0, 3, 4, 4, 10];
    for spec in specs(&data) {
        let parameters = drawn(&spec);
        let mut gradient = vec![f32::NAN; parameters.len()];
        let loss = spec.loss_and_gradient(&parameters, &data, &rows, &mut gradient, &mut Scratch::default());

        let mut exact: Vec<f64> = parameters.iter().map(|value| f64::from(*value)).collect();
        let expected = reference::loss(&spec, &exact, &data, &rows);
        let most = if spec.kind() == ModelKind::ConvNet { 1e-5 } else { 1e-6 };
        assert!((f64::from(loss) - expected).abs() < most * expected, "{spec}: loss {loss}, not {expected}");
        let largest = gradient.iter().fold(0f32, |most, value| most.max(value.abs()));
        // Of convolutions every seventh weight: each takes two passes over all examples.
        let stride = if spec.kind() == ModelKind::ConvNet { 7 } else { 1 };
        for index in (0..exact.len()).step_by(stride).filter(|index| !reference::is_remembered(&spec, *index))
        {
            let step = 1e-6;
            let middle = exact[index];
            exact[index] = middle + step;
            let above = reference::loss(&spec, &exact, &data, &rows);
            exact[index] = middle - step;
            let below = reference::loss(&spec, &exact, &data, &rows);
            exact[index] = middle;
            let expected = (above - below) / (2.0 * step);
            let off = (f64::from(gradient[index]) - expected).abs() / f64::from(largest);
            assert!(off < 1e-5, "{spec}: gradient {index} is {}, not {expected}", gradient[index]);
        }
    }
}

#[test]
fn what_is_remembered_goes_towards_the_batch() {
    let (data, rows) = (small(), [0, 3, 4, 4, 10]);
    let [.., spec] = specs(&data);
    let mut parameters = spec.initialise(3);
    let mut gradient = vec![0.0; parameters.len()];
    spec.loss_and_gradient(&parameters, &data, &rows, &mut gradient, &mut Scratch::default());
    // One whole step of what is remembered is the mean and the variance of the batch, which leaves no distance.
    let remembered = |index: &usize| reference::is_remembered(&spec, *index);
    let all: Vec<usize> = (0..parameters.len()).filter(remembered).collect();
    assert_eq!(all.len(), 2 * (8 + 16));
    assert!(all.iter().all(|index| gradient[*index] != 0.0));
    all.iter().for_each(|index| parameters[*index] -= gradient[*index]);
    spec.loss_and_gradient(&parameters, &data, &rows, &mut gradient, &mut Scratch::default());
    assert!(all.iter().all(|index| gradient[*index].abs() < 1e-6));
}

#[test]
fn evaluation_agrees_with_the_loss_over_all_rows() {
    let data = digits().train; // more rows than are evaluated at a time
    let rows: Vec<usize> = (0..data.rows()).collect();
    for spec in specs(&data).into_iter().filter(|spec| spec.kind() != ModelKind::ConvNet) {
        let parameters = spec.initialise(9);
        let mut gradient = vec![0.0; parameters.len()];
        let loss = spec.loss_and_gradient(&parameters, &data, &rows, &mut gradient, &mut Scratch::default());
        let evaluation = spec.evaluate(&parameters, &data);
        assert_eq!(evaluation.loss, loss);
        assert!((0.0..0.5).contains(&evaluation.accuracy.unwrap()));
    }
}

#[test]
fn a_gradient_in_pieces_is_the_same_to_the_bit_and_can_be_given_up() {
    let data = digits().train;
    let rows: Vec<usize> = (0..32).map(|row| (row * 37) % data.rows()).collect();
    for spec in specs(&data) {
        let parameters = drawn(&spec);
        let mut scratch = Scratch::default();
        let (mut whole, mut pieces) = (vec![0.0; parameters.len()], vec![f32::NAN; parameters.len()]);
        let loss = spec.loss_and_gradient(&parameters, &data, &rows, &mut whole, &mut scratch);
        // The layers take a piece once, and each block takes it once forwards and once backwards.
        let passes = if spec.kind() == ModelKind::ConvNet { 5 } else { 1 };
        for piece in [1, 5, 8, 31, 32, 33] {
            let mut asked = 0;
            let mut unless = |stop_at: usize| {
                asked = 0;
                let stop = || {
                    asked += 1;
                    Ok::<_, ()>(asked == stop_at)
                };
                let (gradient, scratch) = (&mut pieces, &mut scratch);
                spec.loss_and_gradient_unless(&parameters, &data, &rows, gradient, scratch, piece, stop)
            };
            let count = passes * (rows.len().div_ceil(piece) - 1);
            for last in 1..=count {
                assert_eq!(unless(last), Ok(None), "{spec}: stopped at question {last}");
            }
            assert_eq!(unless(0).unwrap().map(f32::to_bits), Some(loss.to_bits()));
            assert_eq!(asked, count);
            assert!(pieces.iter().zip(&whole).all(|(a, b)| a.to_bits() == b.to_bits()), "{spec}: {piece}");
        }
    }
}

#[test]
fn an_untrained_softmax_knows_nothing() {
    let data = digits().test;
    let spec = ModelSpec::new(ModelKind::Softmax, 64, 10, &[]).unwrap();
    let evaluation = spec.evaluate(&spec.initialise(0), &data);
    assert!((evaluation.loss - 10f32.ln()).abs() < 1e-6, "loss {}", evaluation.loss);
}

#[test]
fn a_diverged_model_shows_as_nan_and_does_not_panic() {
    let data = small();
    for spec in specs(&data) {
        let parameters = vec![f32::NAN; spec.parameters()];
        let mut gradient = parameters.clone();
        let loss = spec.loss_and_gradient(&parameters, &data, &[0], &mut gradient, &mut Scratch::default());
        assert!(loss.is_nan() && spec.evaluate(&parameters, &data).loss.is_nan());
    }
}

#[test]
fn scratch_does_not_grow_after_the_first_batch() {
    let data = small();
    let spec = ModelSpec::new(ModelKind::Mlp, data.columns, data.classes, &[5]).unwrap();
    let parameters = spec.initialise(2);
    let mut gradient = vec![0.0; parameters.len()];
    let mut scratch = Scratch::default();
    let mut buffers = Vec::new();
    for rows in [&[0, 1, 2, 3][..], &[4], &[5, 6, 7, 8]] {
        spec.loss_and_gradient(&parameters, &data, rows, &mut gradient, &mut scratch);
        buffers.push(scratch.buffers());
    }
    assert!(buffers.iter().all(|later| *later == buffers[0]));
}

#[test]
fn initial_parameters_never_change_and_have_the_variance_of_he() {
    let spec = ModelSpec::new(ModelKind::Mlp, 64, 10, &[64]).unwrap();
    let parameters = spec.initialise(7);
    assert_eq!(parameters.len(), 64 * 64 + 64 + 64 * 10 + 10);
    assert_eq!(
        parameters[..3].iter().map(|value| value.to_bits()).collect::<Vec<_>>(),
        [1032556654, 1048595348, 3177235713]
    );
    let weights = &parameters[..64 * 64];
    let variance = weights.iter().map(|value| value * value).sum::<f32>() / weights.len() as f32;
    assert!((variance - 2.0 / 64.0).abs() < 0.002, "variance {variance}");
    assert_ne!(parameters, spec.initialise(8));
}

#[test]
fn tensors_lie_one_after_the_other_and_cover_the_parameters() {
    let spec = ModelSpec::new(ModelKind::ConvNet, 16, 3, &[2, 4]).unwrap();
    let tensors: Vec<_> = spec.tensors().into_iter().map(|tensor| (tensor.name, tensor.shape)).collect();
    let expected = [
        ("conv1.weight", vec![8, 1, 5, 5]),
        ("norm1.weight", vec![8]),
        ("norm1.bias", vec![8]),
        ("norm1.running_mean", vec![8]),
        ("norm1.running_var", vec![8]),
        ("conv2.weight", vec![16, 8, 5, 5]),
        ("norm2.weight", vec![16]),
        ("norm2.bias", vec![16]),
        ("norm2.running_mean", vec![16]),
        ("norm2.running_var", vec![16]),
        ("hidden1.weight", vec![2, 16]),
        ("hidden1.bias", vec![2]),
        ("hidden2.weight", vec![4, 2]),
        ("hidden2.bias", vec![4]),
        ("output.weight", vec![3, 4]),
        ("output.bias", vec![3]),
    ];
    assert_eq!(tensors, expected.map(|(name, shape)| (name.into(), shape)));
    let one = ModelSpec::new(ModelKind::Mlp, 4, 3, &[2]).unwrap();
    assert_eq!(one.tensors()[0].name, "hidden.weight");
    for spec in specs(&small()) {
        let sum: usize = spec.tensors().iter().map(super::TensorSpec::parameters).sum();
        assert_eq!(sum, spec.parameters());
    }
}

#[test]
fn impossible_models_are_refused() {
    let refused = |kind, columns, classes, hidden: &[usize]| {
        ModelSpec::new(kind, columns, classes, hidden).unwrap_err()
    };
    for (columns, classes, hidden) in [(0, 2, [1]), (1, 1, [1]), (1, 2, [0])] {
        let error = refused(ModelKind::Mlp, columns, classes, &hidden);
        assert!(matches!(error, ModelSpecError::TooSmall { .. }));
    }
    for kind in [ModelKind::Softmax, ModelKind::Mlp] {
        let error = refused(kind, usize::MAX, usize::MAX, &[usize::MAX]);
        assert!(matches!(error, ModelSpecError::TooLarge { .. }));
    }
    for columns in [1, 36, 65, 3 * 36, usize::MAX] {
        let error = refused(ModelKind::ConvNet, columns, 2, &[1]);
        assert!(matches!(error, ModelSpecError::NoImages { .. }), "{columns}");
    }
    assert!(matches!(refused(ModelKind::Mlp, 1, 2, &[1; 65]), ModelSpecError::TooDeep { .. }));
    assert!("forest".parse::<ModelKind>().is_err());
    for kind in KINDS {
        assert_eq!(kind.to_string().parse(), Ok(kind));
    }
}

#[test]
fn workers_take_together_what_one_serial_loop_takes() {
    let (rows, workers, batch) = (103, 3, 7);
    let mut serial = Batches::new(5, 0, 1, rows, workers * batch).unwrap();
    let mut parts: Vec<_> =
        (0..workers).map(|worker| Batches::new(5, worker, workers, rows, batch).unwrap()).collect();
    assert_eq!(serial.steps_per_epoch(), 4);
    for step in 0..10 {
        assert_eq!(parts[0].steps_per_epoch(), serial.steps_per_epoch());
        let together: Vec<usize> = parts.iter_mut().flat_map(|part| part.rows(step).to_vec()).collect();
        assert_eq!(together, serial.rows(step));
    }
}

#[test]
fn an_epoch_takes_no_example_twice_and_the_next_has_another_order() {
    let mut batches = Batches::new(5, 0, 1, 100, 10).unwrap();
    let epoch = |batches: &mut Batches, epoch: u64| -> Vec<usize> {
        (epoch * 10..epoch * 10 + 10).flat_map(|step| batches.rows(step).to_vec()).collect()
    };
    let (first, second) = (epoch(&mut batches, 0), epoch(&mut batches, 1));
    assert_ne!(first, second);
    // Going back gives the same again: the order depends on the epoch, not on what came before.
    assert_eq!(epoch(&mut batches, 0), first);
    for mut order in [first, second] {
        order.sort_unstable();
        assert_eq!(order, (0..100).collect::<Vec<_>>());
    }
}

#[test]
fn a_worker_with_a_shard_takes_all_of_it_in_an_epoch_and_nothing_else() {
    let labels: Vec<u32> = (0..100).map(|row| row % 10).collect();
    let sharded = |worker, batch| Batches::sharded(Shards::Sorted, 5, worker, 4, &labels, batch).unwrap();
    let dealt = Shards::Sorted.deal(&labels, 4, 5).unwrap().unwrap();
    for (worker, shard) in dealt.into_iter().enumerate() {
        let mut batches = sharded(worker, 5);
        assert_eq!(batches.steps_per_epoch(), 5);
        for epoch in 0..2 {
            let mut rows: Vec<usize> =
                (0..5).flat_map(|step| batches.rows(epoch * 5 + step).to_vec()).collect();
            assert_ne!(rows, shard, "shuffled");
            rows.sort_unstable_by_key(|row| (labels[*row], *row));
            assert_eq!(rows, shard);
        }
    }
    // Two workers whose shards are as long take them in different orders.
    let positions = |worker: usize| -> Vec<usize> {
        let dealt = Shards::Sorted.deal(&labels, 4, 5).unwrap().unwrap();
        let rows = sharded(worker, 25).rows(0).to_vec();
        rows.iter().map(|row| dealt[worker].iter().position(|own| own == row).unwrap()).collect()
    };
    assert_ne!(positions(0), positions(1));
    // A dirichlet shard may have fewer examples than a batch: then a step takes them all.
    let uneven = Shards::Dirichlet(0.3);
    let shortest =
        (0..4).map(|worker| Batches::sharded(uneven, 1, worker, 4, &labels, 25).unwrap().rows(0).len());
    assert!(shortest.min().unwrap() < 25);
}

#[test]
fn batches_that_cannot_be_are_refused() {
    let refused = |worker, workers, batch| Batches::new(0, worker, workers, 10, batch).unwrap_err();
    assert!(matches!(refused(0, 0, 1), BatchesError::Nothing { .. }));
    assert!(matches!(refused(0, 1, 0), BatchesError::Nothing { .. }));
    assert!(matches!(refused(2, 2, 1), BatchesError::NoSuchWorker { .. }));
    assert!(matches!(refused(0, 2, 6), BatchesError::TooLarge { .. }));
    assert!(matches!(refused(0, 2, usize::MAX), BatchesError::TooLarge { .. }));
}

#[test]
fn a_gpu_is_given_all_layers_one_behind_the_other_or_none() {
    for (kind, hidden) in [(ModelKind::Softmax, &[][..]), (ModelKind::Mlp, &[7]), (ModelKind::Mlp, &[7, 5])] {
        let spec = ModelSpec::new(kind, 64, 10, hidden).unwrap();
        let (mut start, mut columns) = (0, 64);
        for layer in spec.gpu_layers().unwrap() {
            assert_eq!((layer.start, layer.columns), (start, columns), "{spec}");
            (start, columns) = (start + layer.units * (columns + 1), layer.units);
        }
        assert_eq!((start, columns), (spec.parameters(), 10), "{spec}");
    }
    for (kind, hidden) in [(ModelKind::ConvNet, &[5][..]), (ModelKind::Factorisation, &[3])] {
        assert_eq!(ModelSpec::new(kind, 64, 10, hidden).unwrap().gpu_layers(), None);
    }
}
