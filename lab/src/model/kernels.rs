//! The few loops that all the time goes into, written so that the compiler turns them into vectors.
//!
//! A sum of floats may not be reordered by the compiler, so a plain dot product stays scalar. Here the
//! partial sums are spelled out: [`LANES`] of them, added up in a fixed order at the end.

/// Partial sums of a dot product: two registers of AVX, or one of AVX-512.
const LANES: usize = 16;

/// A linear layer and where it lies among the parameters: its weights, outputs x inputs, and then its
/// biases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layer {
    pub(super) start: usize,
    pub(super) outputs: usize,
    pub(super) inputs: usize,
}

impl Layer {
    /// The number of its parameters.
    pub(super) fn parameters(&self) -> usize {
        self.outputs * self.inputs + self.outputs
    }

    /// Its weights and biases.
    pub(super) fn of<'a>(&self, parameters: &'a [f32]) -> (&'a [f32], &'a [f32]) {
        parameters[self.start..][..self.parameters()].split_at(self.outputs * self.inputs)
    }

    /// The parts of `gradient` that are for its weights and biases.
    pub(super) fn of_mut<'a>(&self, gradient: &'a mut [f32]) -> (&'a mut [f32], &'a mut [f32]) {
        gradient[self.start..][..self.parameters()].split_at_mut(self.outputs * self.inputs)
    }
}

/// Examples: rows picked from a table, or all rows of it.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) values: &'a [f32],
    pub(super) columns: usize,
    pub(super) picked: Option<&'a [usize]>,
}

impl<'a> Rows<'a> {
    /// All rows of a table.
    pub(super) fn all(values: &'a [f32], columns: usize) -> Rows<'a> {
        Rows { values, columns, picked: None }
    }

    pub(super) fn get(&self, index: usize) -> &'a [f32] {
        let row = self.picked.map_or(index, |picked| picked[index]);
        &self.values[row * self.columns..][..self.columns]
    }
}

/// `outputs[e][o] = bias[o] + weight[o] . inputs[e]` for every example `e`.
pub(super) fn linear(inputs: Rows<'_>, weight: &[f32], bias: &[f32], outputs: &mut [f32]) {
    for (example, outputs) in outputs.chunks_exact_mut(bias.len()).enumerate() {
        let input = inputs.get(example);
        for ((output, weight), bias) in outputs.iter_mut().zip(weight.chunks_exact(inputs.columns)).zip(bias)
        {
            *output = bias + dot(weight, input);
        }
    }
}

/// `gradient[o] += deltas[e][o] * inputs[e]` over all examples, and likewise the bias's.
pub(super) fn linear_gradient(
    inputs: Rows<'_>,
    deltas: &[f32],
    weight_gradient: &mut [f32],
    bias_gradient: &mut [f32],
) {
    let outputs = bias_gradient.len();
    // One output at a time, so that its row of the gradient stays in the nearest cache.
    for (output, gradient) in weight_gradient.chunks_exact_mut(inputs.columns).enumerate() {
        for (example, deltas) in deltas.chunks_exact(outputs).enumerate() {
            let delta = deltas[output];
            bias_gradient[output] += delta;
            // A hidden unit that is off takes no part, and about half of them are.
            if delta != 0.0 {
                add_scaled(gradient, delta, inputs.get(example));
            }
        }
    }
}

/// `input_deltas[e] = sum over o of deltas[e][o] * weight[o]`.
pub(super) fn linear_input_deltas(deltas: &[f32], weight: &[f32], layer: Layer, input_deltas: &mut [f32]) {
    input_deltas.fill(0.0);
    let examples = deltas.chunks_exact(layer.outputs).zip(input_deltas.chunks_exact_mut(layer.inputs));
    for (deltas, input_deltas) in examples {
        for (delta, weight) in deltas.iter().zip(weight.chunks_exact(layer.inputs)) {
            add_scaled(input_deltas, *delta, weight);
        }
    }
}

/// Replaces the scores of one example by the probabilities of its classes, and returns the
/// cross-entropy of the class `label` (in nats) and the class with the highest score.
pub(super) fn softmax(scores: &mut [f32], label: usize) -> (f32, usize) {
    let (mut best, mut highest) = (0, f32::NEG_INFINITY);
    for (class, score) in scores.iter().enumerate() {
        // The lowest class wins a tie.
        if *score > highest {
            (best, highest) = (class, *score);
        }
    }
    // Taking the highest off keeps the exponentials from overflowing.
    let label_score = scores[label] - highest;
    let mut sum = 0.0;
    for score in scores.iter_mut() {
        *score = (*score - highest).exp();
        sum += *score;
    }
    scores.iter_mut().for_each(|score| *score /= sum);
    (sum.ln() - label_score, best)
}

/// The sum of the products.
pub(super) fn dot(left: &[f32], right: &[f32]) -> f32 {
    let (left, left_rest) = left.as_chunks::<LANES>();
    let (right, right_rest) = right.as_chunks::<LANES>();
    let mut sums = [0.0f32; LANES];
    for (left, right) in left.iter().zip(right) {
        for lane in 0..LANES {
            sums[lane] += left[lane] * right[lane];
        }
    }
    let rest: f32 = left_rest.iter().zip(right_rest).map(|(left, right)| left * right).sum();
    sums.iter().sum::<f32>() + rest
}

/// `sums[i] += factor * values[i]`.
pub(super) fn add_scaled(sums: &mut [f32], factor: f32, values: &[f32]) {
    for (sum, value) in sums.iter_mut().zip(values) {
        *sum += factor * value;
    }
}
