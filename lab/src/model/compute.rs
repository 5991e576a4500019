//! Loss, gradient and accuracy.

use std::convert::Infallible;

use super::ModelSpec;
use super::kernels::{Rows, linear, linear_gradient, linear_input_deltas, softmax};
use crate::data::Dataset;

/// Examples evaluated at a time, to bound the scratch space.
const EVALUATION_ROWS: usize = 256;

/// Room for what is computed on the way to a gradient. It grows to what the first batch needs; after
/// that, nothing is allocated.
#[derive(Debug, Default)]
pub struct Scratch {
    /// Scores, then probabilities, then derivatives by the scores: examples x classes.
    scores: Vec<f32>,
    /// The hidden layer's outputs: examples x hidden units.
    hidden: Vec<f32>,
    /// Derivatives by the hidden layer's inputs: examples x hidden units.
    hidden_deltas: Vec<f32>,
}

/// The quality of a model on a data set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// Mean cross-entropy per example, in nats.
    pub loss: f32,
    /// Part of the examples whose class is given the highest probability, 0 to 1.
    pub accuracy: f32,
}

impl ModelSpec {
    /// Mean cross-entropy in nats over the examples `rows` of `data`, with its gradient by the
    /// parameters written to `gradient`.
    ///
    /// With parameters that are not finite, neither are the results; they are passed on as they are.
    ///
    /// # Panics
    ///
    /// If `parameters` or `gradient` is not [`parameters`](Self::parameters) long, if `data` has other
    /// columns or more classes than the model, or if `rows` is empty or names a row that is not there.
    pub fn loss_and_gradient(
        &self,
        parameters: &[f32],
        data: &Dataset,
        rows: &[usize],
        gradient: &mut [f32],
        scratch: &mut Scratch,
    ) -> f32 {
        let all = rows.len().max(1);
        let never = || Ok::<_, Infallible>(false);
        match self.loss_and_gradient_unless(parameters, data, rows, gradient, scratch, all, never) {
            Ok(loss) => loss.unwrap_or(f32::NAN),
            Err(never) => match never {},
        }
    }

    /// As [`loss_and_gradient`](Self::loss_and_gradient), to the bit, `piece` rows at a time: between two pieces it
    /// asks `stop`, and gives up (`None`, with a gradient of no use) once that says true.
    ///
    /// # Errors
    ///
    /// Whatever `stop` fails with.
    ///
    /// # Panics
    ///
    /// As [`loss_and_gradient`](Self::loss_and_gradient), and if `piece` is 0.
    #[allow(clippy::too_many_arguments)] // those of `loss_and_gradient`, and when to stop
    pub fn loss_and_gradient_unless<E>(
        &self,
        parameters: &[f32],
        data: &Dataset,
        rows: &[usize],
        gradient: &mut [f32],
        scratch: &mut Scratch,
        piece: usize,
        mut stop: impl FnMut() -> Result<bool, E>,
    ) -> Result<Option<f32>, E> {
        self.check(parameters, data);
        assert_eq!(gradient.len(), parameters.len(), "a gradient has one value for each parameter");
        assert!(!rows.is_empty(), "the mean over no examples is undefined");

        // Summed in f64, so that a large batch loses nothing.
        let mut loss = 0.0f64;
        let share = 1.0 / rows.len() as f32;
        gradient.fill(0.0);
        for (index, rows) in rows.chunks(piece).enumerate() {
            if index > 0 && stop()? {
                return Ok(None);
            }
            let inputs = Rows { values: &data.features, columns: data.columns, picked: Some(rows) };
            self.scores(parameters, inputs, rows.len(), scratch);
            for (scores, row) in scratch.scores.chunks_exact_mut(self.classes).zip(rows) {
                let label = data.labels[*row] as usize;
                loss += f64::from(softmax(scores, label).0);
                // The derivative of cross-entropy after softmax: probability less one for the true class.
                scores[label] -= 1.0;
                scores.iter_mut().for_each(|score| *score *= share);
            }
            self.add_gradient(parameters, inputs, gradient, scratch);
        }
        Ok(Some((loss / rows.len() as f64) as f32))
    }

    /// Loss and accuracy over all of `data`.
    ///
    /// # Panics
    ///
    /// If `parameters` is not [`parameters`](Self::parameters) long, or if `data` is empty or has other
    /// columns or more classes than the model.
    pub fn evaluate(&self, parameters: &[f32], data: &Dataset) -> Evaluation {
        self.check(parameters, data);
        assert!(!data.labels.is_empty(), "the mean over no examples is undefined");

        let mut scratch = Scratch::default();
        let (mut loss, mut correct) = (0.0f64, 0usize);
        let features = data.features.chunks(EVALUATION_ROWS * data.columns);
        for (values, labels) in features.zip(data.labels.chunks(EVALUATION_ROWS)) {
            let inputs = Rows { values, columns: data.columns, picked: None };
            self.scores(parameters, inputs, labels.len(), &mut scratch);
            for (scores, label) in scratch.scores.chunks_exact_mut(self.classes).zip(labels) {
                let (example_loss, best) = softmax(scores, *label as usize);
                loss += f64::from(example_loss);
                correct += usize::from(best == *label as usize);
            }
        }
        let rows = data.rows() as f64;
        Evaluation { loss: (loss / rows) as f32, accuracy: (correct as f64 / rows) as f32 }
    }

    fn check(&self, parameters: &[f32], data: &Dataset) {
        assert_eq!(parameters.len(), self.parameters(), "the parameters are those of a {self}");
        assert_eq!(data.columns, self.columns, "the columns of the data are those of a {self}");
        assert!(data.classes <= self.classes, "the data have {} classes, for a {self}", data.classes);
    }

    /// Fills `scratch.scores`, and `scratch.hidden` if there is such a layer.
    fn scores(&self, parameters: &[f32], inputs: Rows<'_>, examples: usize, scratch: &mut Scratch) {
        let Scratch { scores, hidden, .. } = scratch;
        let mut output_inputs = inputs;
        if let Some(layer) = self.hidden_layer() {
            hidden.resize(examples * layer.outputs, 0.0);
            let (weight, bias) = layer.of(parameters);
            linear(inputs, weight, bias, hidden);
            // Written so that NaN stays NaN: a run that diverged must show it.
            hidden.iter_mut().filter(|value| **value < 0.0).for_each(|value| *value = 0.0);
            output_inputs = Rows { values: hidden, columns: layer.outputs, picked: None };
        }
        scores.resize(examples * self.classes, 0.0);
        let (weight, bias) = self.output_layer().of(parameters);
        linear(output_inputs, weight, bias, scores);
    }

    /// Adds to `gradient` from the derivatives by the scores in `scratch.scores`, one example after the other.
    fn add_gradient(
        &self,
        parameters: &[f32],
        inputs: Rows<'_>,
        gradient: &mut [f32],
        scratch: &mut Scratch,
    ) {
        let Scratch { scores: deltas, hidden, hidden_deltas } = scratch;
        let output_layer = self.output_layer();
        let (weight_gradient, bias_gradient) = output_layer.of_mut(gradient);
        let Some(layer) = self.hidden_layer() else {
            return linear_gradient(inputs, deltas, weight_gradient, bias_gradient);
        };
        let hidden_rows = Rows { values: hidden, columns: layer.outputs, picked: None };
        linear_gradient(hidden_rows, deltas, weight_gradient, bias_gradient);

        hidden_deltas.resize(hidden.len(), 0.0);
        linear_input_deltas(deltas, output_layer.of(parameters).0, output_layer, hidden_deltas);
        // Nothing flows back through a unit that is off.
        let units = hidden_deltas.iter_mut().zip(hidden.iter());
        units.filter(|(_, value)| **value == 0.0).for_each(|(delta, _)| *delta = 0.0);
        let (weight_gradient, bias_gradient) = layer.of_mut(gradient);
        linear_gradient(inputs, hidden_deltas, weight_gradient, bias_gradient);
    }
}

#[cfg(test)]
impl Scratch {
    /// Returns the address and the capacity of each buffer: growing would change either.
    pub(super) fn buffers(&self) -> [(*const f32, usize); 3] {
        [&self.scores, &self.hidden, &self.hidden_deltas].map(|room| (room.as_ptr(), room.capacity()))
    }
}
