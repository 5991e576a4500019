//! The loss in f64, with plain loops that share nothing with the code under test.

use crate::data::Dataset;
use crate::model::{ModelKind, ModelSpec};

/// Whether this parameter is a mean or a variance that batch normalisation remembers.
pub(super) fn is_remembered(spec: &ModelSpec, index: usize) -> bool {
    let mut end = 0;
    let tensor = spec.tensors().into_iter().find(|tensor| {
        end += tensor.parameters();
        index < end
    });
    tensor.is_some_and(|tensor| tensor.name.contains("running"))
}

/// The mean loss over these rows, where batch normalisation takes means and variances of the batch.
pub(super) fn loss(spec: &ModelSpec, parameters: &[f64], data: &Dataset, rows: &[usize]) -> f64 {
    let to_f64 = |row: &usize| data.row(*row).iter().map(|value| f64::from(*value)).collect();
    let mut values: Vec<Vec<f64>> = rows.iter().map(to_f64).collect();
    let mut rest = parameters;
    if spec.kind() == ModelKind::ConvNet {
        let side = data.columns.isqrt();
        values = block(&values, &mut rest, 1, side, 8);
        values = block(&values, &mut rest, 8, side / 2, 16);
    }
    for (index, units) in spec.hidden().iter().copied().chain([spec.outputs()]).enumerate() {
        let weights = take(&mut rest, units * values[0].len());
        let bias = take(&mut rest, units);
        let unit = |input: &[f64], unit: usize| {
            let sum = (0..input.len()).map(|at| weights[unit * input.len() + at] * input[at]).sum::<f64>()
                + bias[unit];
            if index < spec.hidden().len() { sum.max(0.0) } else { sum }
        };
        values = values.iter().map(|input| (0..units).map(|at| unit(input, at)).collect()).collect();
    }
    assert!(rest.is_empty());
    let losses = values.iter().zip(rows).map(|(scores, row)| {
        let sum: f64 = scores.iter().map(|score| score.exp()).sum();
        sum.ln() - scores[data.labels[*row] as usize]
    });
    losses.sum::<f64>() / rows.len() as f64
}

fn take<'a>(rest: &mut &'a [f64], count: usize) -> &'a [f64] {
    let (part, after) = rest.split_at(count);
    *rest = after;
    part
}

fn block(
    images: &[Vec<f64>],
    rest: &mut &[f64],
    planes: usize,
    side: usize,
    channels: usize,
) -> Vec<Vec<f64>> {
    let weights = take(rest, channels * planes * 25);
    let [factor, shift, ..] = [(); 4].map(|()| take(rest, channels));
    let pixel = |image: &[f64], plane: usize, y: isize, x: isize| {
        let inside = (0..side as isize).contains(&y) && (0..side as isize).contains(&x);
        if inside { image[(plane * side + y as usize) * side + x as usize] } else { 0.0 }
    };
    let mut outputs = vec![Vec::new(); images.len()];
    for channel in 0..channels {
        let at = |image: &[f64], y: usize, x: usize| {
            let mut sum = 0.0;
            for (index, weight) in weights[channel * planes * 25..][..planes * 25].iter().enumerate() {
                let (down, right) = ((index / 5 % 5) as isize - 2, (index % 5) as isize - 2);
                sum += weight * pixel(image, index / 25, y as isize + down, x as isize + right);
            }
            sum
        };
        let map = |image: &Vec<f64>| -> Vec<f64> {
            (0..side * side).map(|index| at(image, index / side, index % side)).collect()
        };
        let maps: Vec<Vec<f64>> = images.iter().map(map).collect();
        let count = (maps.len() * side * side) as f64;
        let mean = maps.iter().flatten().sum::<f64>() / count;
        let variance = maps.iter().flatten().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
        for (map, output) in maps.iter().zip(&mut outputs) {
            for index in 0..side * side / 4 {
                let (y, x) = (index / (side / 2) * 2, index % (side / 2) * 2);
                let square = [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(down, right)| {
                    let normal = (map[(y + down) * side + x + right] - mean) / (variance + 1e-5).sqrt();
                    (factor[channel] * normal + shift[channel]).max(0.0)
                });
                output.push(square.into_iter().fold(0.0, f64::max));
            }
        }
    }
    outputs
}
