//! A perceptron with any number of hidden layers: for studies of what depth does, not for files.

use super::compute::Evaluation;
use super::kernels::{Layer, Rows, linear, linear_gradient, linear_input_deltas, softmax};
use crate::data::Dataset;
use crate::data::random::{Purpose, Random};

/// A perceptron with hidden layers of one width, each of rectified linear units.
///
/// Its parameters lie in one flat slice: layer by layer, each its weights (outputs x inputs) and then its biases.
#[derive(Clone, Debug)]
pub struct Tower {
    layers: Vec<Layer>,
    /// The outputs of each layer, and then the derivatives by them: examples x outputs.
    outputs: Vec<Vec<f32>>,
    deltas: Vec<Vec<f32>>,
}

impl Tower {
    /// For examples of `columns` values and `classes` classes, with `depth` hidden layers of `width` units.
    pub fn new(columns: usize, classes: usize, depth: usize, width: usize) -> Tower {
        let mut layers: Vec<Layer> = Vec::with_capacity(depth + 1);
        for index in 0..=depth {
            let start = layers.last().map_or(0, |layer| layer.start + layer.parameters());
            let inputs = if index == 0 { columns } else { width };
            let outputs = if index == depth { classes } else { width };
            layers.push(Layer { start, outputs, inputs });
        }
        let rooms = vec![Vec::new(); layers.len()];
        Tower { layers, outputs: rooms.clone(), deltas: rooms }
    }

    /// The number of parameters.
    pub fn parameters(&self) -> usize {
        self.layers.last().map_or(0, |layer| layer.start + layer.parameters())
    }

    /// Parameters to start from: weights uniform with the variance 2 / inputs (He et al., 2015), biases zero.
    pub fn initialise(&self, seed: u64) -> Vec<f32> {
        let mut parameters = vec![0.0; self.parameters()];
        let mut random = Random::new(seed, Purpose::Parameters, 0);
        for layer in &self.layers {
            let bound = (6.0 / layer.inputs as f32).sqrt();
            let weights = &mut parameters[layer.start..][..layer.outputs * layer.inputs];
            weights.iter_mut().for_each(|weight| *weight = bound * random.symmetric());
        }
        parameters
    }

    /// Mean cross-entropy in nats over the examples `rows` of `data`, with its gradient written to `gradient`.
    ///
    /// # Panics
    ///
    /// If lengths, columns or classes are not those of the perceptron, or `rows` is empty or out of range.
    pub fn loss_and_gradient(
        &mut self,
        parameters: &[f32],
        data: &Dataset,
        rows: &[usize],
        gradient: &mut [f32],
    ) -> f32 {
        let inputs = Rows { values: &data.features, columns: data.columns, picked: Some(rows) };
        self.forward(parameters, inputs, rows.len());
        let last = self.layers.len() - 1;
        let (mut loss, share) = (0.0f64, 1.0 / rows.len() as f32);
        self.deltas[last].clone_from(&self.outputs[last]);
        for (scores, row) in self.deltas[last].chunks_exact_mut(self.layers[last].outputs).zip(rows) {
            let label = data.labels[*row] as usize;
            loss += f64::from(softmax(scores, label).0);
            scores[label] -= 1.0;
            scores.iter_mut().for_each(|score| *score *= share);
        }
        gradient.fill(0.0);
        for index in (0..=last).rev() {
            let layer = self.layers[index];
            let (weight_gradient, bias_gradient) = layer.of_mut(gradient);
            let Some(before) = index.checked_sub(1) else {
                linear_gradient(inputs, &self.deltas[0], weight_gradient, bias_gradient);
                break;
            };
            let hidden = Rows { values: &self.outputs[before], columns: layer.inputs, picked: None };
            linear_gradient(hidden, &self.deltas[index], weight_gradient, bias_gradient);
            let (lower, upper) = self.deltas.split_at_mut(index);
            lower[before].resize(self.outputs[before].len(), 0.0);
            linear_input_deltas(&upper[0], layer.of(parameters).0, layer, &mut lower[before]);
            // Nothing flows back through a unit that is off.
            let units = lower[before].iter_mut().zip(&self.outputs[before]);
            units.filter(|(_, value)| **value == 0.0).for_each(|(delta, _)| *delta = 0.0);
        }
        (loss / rows.len() as f64) as f32
    }

    /// Loss and accuracy over all of `data`.
    ///
    /// # Panics
    ///
    /// If lengths, columns or classes are not those of the perceptron.
    pub fn evaluate(&mut self, parameters: &[f32], data: &Dataset) -> Evaluation {
        let inputs = Rows { values: &data.features, columns: data.columns, picked: None };
        self.forward(parameters, inputs, data.rows());
        let last = self.layers.len() - 1;
        let (mut loss, mut correct) = (0.0f64, 0usize);
        for (scores, label) in
            self.outputs[last].chunks_exact_mut(self.layers[last].outputs).zip(&data.labels)
        {
            let (example_loss, best) = softmax(scores, *label as usize);
            loss += f64::from(example_loss);
            correct += usize::from(best == *label as usize);
        }
        let rows = data.rows() as f64;
        Evaluation { loss: (loss / rows) as f32, accuracy: (correct as f64 / rows) as f32 }
    }

    /// Fills `outputs`: of the last layer the scores, of the others what their units put out.
    fn forward(&mut self, parameters: &[f32], inputs: Rows<'_>, examples: usize) {
        let last = self.layers.len() - 1;
        for (index, layer) in self.layers.iter().enumerate() {
            let (before, after) = self.outputs.split_at_mut(index);
            let inputs = match before.last() {
                Some(values) => Rows { values, columns: layer.inputs, picked: None },
                None => inputs,
            };
            after[0].resize(examples * layer.outputs, 0.0);
            let (weight, bias) = layer.of(parameters);
            linear(inputs, weight, bias, &mut after[0]);
            if index < last {
                // Written so that NaN stays NaN: a run that diverged must show it.
                after[0].iter_mut().filter(|value| **value < 0.0).for_each(|value| *value = 0.0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::digits;
    use crate::model::{ModelKind, ModelSpec, Scratch};

    #[test]
    fn with_one_hidden_layer_it_is_the_perceptron_bit_for_bit() {
        let (split, rows) = (digits(), (0..40).collect::<Vec<_>>());
        let spec = ModelSpec::new(ModelKind::Mlp, 64, 10, 24).unwrap();
        let mut tower = Tower::new(64, 10, 1, 24);
        let parameters = tower.initialise(3);
        assert_eq!(parameters, spec.initialise(3));
        let (mut one, mut other) = (vec![0.0; parameters.len()], vec![1.0; parameters.len()]);
        let loss = tower.loss_and_gradient(&parameters, &split.train, &rows, &mut one);
        let scratch = &mut Scratch::default();
        assert_eq!(loss, spec.loss_and_gradient(&parameters, &split.train, &rows, &mut other, scratch));
        assert_eq!(one, other);
        assert_eq!(tower.evaluate(&parameters, &split.test), spec.evaluate(&parameters, &split.test));
    }

    #[test]
    fn the_gradient_of_a_deep_one_is_the_slope_of_its_loss() {
        let (split, rows) = (digits(), (0..16).collect::<Vec<_>>());
        let mut tower = Tower::new(64, 10, 3, 8);
        let parameters = tower.initialise(5);
        let mut gradient = vec![0.0; parameters.len()];
        tower.loss_and_gradient(&parameters, &split.train, &rows, &mut gradient);
        // Along the gradient itself, where the slope is largest and rounding matters least.
        let norm = gradient.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
        let mut at = |distance: f64| {
            let moved: Vec<f32> = parameters
                .iter()
                .zip(&gradient)
                .map(|(p, g)| (f64::from(*p) + distance * f64::from(*g) / norm) as f32)
                .collect();
            f64::from(tower.loss_and_gradient(&moved, &split.train, &rows, &mut vec![0.0; moved.len()]))
        };
        let slope = (at(1e-3) - at(-1e-3)) / 2e-3;
        assert!((slope / norm - 1.0).abs() < 0.01, "{slope} for {norm}");
    }
}
