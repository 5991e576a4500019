//! Loss, gradient and accuracy.

use std::convert::Infallible;

use super::block::Room;
use super::evaluation::Evaluation;
use super::factors::Factors;
use super::kernels::{Rows, linear, linear_gradient, linear_input_deltas, softmax};
use super::pieces::{Pieces, Stopped};
use super::spec::ModelSpec;
use crate::data::{Dataset, Entries, Examples};

/// Examples evaluated at a time, to bound the scratch space.
const EVALUATION_ROWS: usize = 256;

/// Room for what is computed on the way to a gradient. It grows to what the first batch needs; after
/// that, nothing is allocated.
#[derive(Debug, Default)]
pub struct Scratch {
    /// Of each block of convolution.
    blocks: Vec<Room>,
    /// The outputs of each linear layer, the scores last: examples x units.
    outputs: Vec<Vec<f32>>,
    /// The derivatives by these outputs before units that are off: examples x units.
    deltas: Vec<Vec<f32>>,
}

/// The examples of one of the two tasks, with what a model has for it.
enum Work<'a> {
    Classes(&'a Dataset),
    Values(&'a Factors, &'a Entries),
}

impl ModelSpec {
    /// Mean cross-entropy in nats over the examples `rows` of `data`, with its gradient by the
    /// parameters written to `gradient`. Of a factorisation it is the mean squared error, with its penalty.
    ///
    /// The gradient of a mean or a variance that batch normalisation remembers is its distance from the batch's.
    ///
    /// With parameters that are not finite, neither are the results; they are passed on as they are.
    ///
    /// # Panics
    ///
    /// If `parameters` or `gradient` is not [`parameters`](Self::parameters) long, if `data` are of another
    /// [task](super::ModelKind::task), have other columns or more classes than the model, or if `rows` is empty or
    /// names a row that is not there.
    pub fn loss_and_gradient<'a>(
        &self,
        parameters: &[f32],
        data: impl Into<Examples<'a>>,
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
    pub fn loss_and_gradient_unless<'a, E>(
        &self,
        parameters: &[f32],
        data: impl Into<Examples<'a>>,
        rows: &[usize],
        gradient: &mut [f32],
        scratch: &mut Scratch,
        piece: usize,
        stop: impl FnMut() -> Result<bool, E>,
    ) -> Result<Option<f32>, E> {
        let task = self.task(parameters, data.into());
        assert_eq!(gradient.len(), parameters.len(), "a gradient has one value for each parameter");
        assert!(!rows.is_empty(), "the mean over no examples is undefined");
        assert!(piece > 0, "a piece has at least one row");
        let mut pieces = Pieces { rows: piece, stop };
        let loss = match task {
            Work::Classes(data) => self.compute(parameters, data, rows, gradient, scratch, &mut pieces),
            Work::Values(factors, entries) => {
                factors.compute(parameters, entries, rows, gradient, &mut pieces)
            }
        };
        match loss {
            Ok(loss) => Ok(Some(loss)),
            Err(Stopped::Asked) => Ok(None),
            Err(Stopped::Failed(error)) => Err(error),
        }
    }

    fn compute<E, F: FnMut() -> Result<bool, E>>(
        &self,
        parameters: &[f32],
        data: &Dataset,
        rows: &[usize],
        gradient: &mut [f32],
        scratch: &mut Scratch,
        pieces: &mut Pieces<F>,
    ) -> Result<f32, Stopped<E>> {
        let Scratch { blocks, outputs, deltas } = self.room(scratch);
        gradient.fill(0.0);
        let images = Rows { values: &data.features, columns: data.columns, picked: Some(rows) };
        for (index, block) in self.blocks.iter().enumerate() {
            let (before, own) = blocks.split_at_mut(index);
            let inputs = before.last().map_or(images, |room| Rows::all(&room.outputs, block.inputs()));
            block.forward(parameters, inputs, rows.len(), &mut own[0], pieces)?;
        }
        // Summed in f64, so that a large batch loses nothing.
        let (mut loss, share) = (0.0f64, 1.0 / rows.len() as f32);
        for (index, piece) in rows.chunks(pieces.rows).enumerate() {
            let start = index * pieces.rows;
            pieces.before(start)?;
            let own = Rows { picked: Some(piece), ..images };
            let (inputs, input_deltas) = match blocks.last_mut() {
                None => (own, None),
                Some(Room { outputs: maps, output_deltas, .. }) => {
                    let columns = self.layers[0].inputs;
                    output_deltas.resize(maps.len(), 0.0);
                    let part = start * columns..(start + piece.len()) * columns;
                    (Rows::all(&maps[part.clone()], columns), Some(&mut output_deltas[part]))
                }
            };
            self.scores(parameters, inputs, piece.len(), outputs);
            let last = self.layers.len() - 1;
            deltas[last].clone_from(&outputs[last]);
            for (scores, row) in deltas[last].chunks_exact_mut(self.outputs()).zip(piece) {
                let label = data.labels[*row] as usize;
                loss += f64::from(softmax(scores, label).0);
                // The derivative of cross-entropy after softmax: probability less one for the true class.
                scores[label] -= 1.0;
                scores.iter_mut().for_each(|score| *score *= share);
            }
            self.add_gradient(parameters, inputs, gradient, outputs, deltas, input_deltas);
        }
        for (index, block) in self.blocks.iter().enumerate().rev() {
            let (before, own) = blocks.split_at_mut(index);
            let (inputs, input_deltas) = match before.last_mut() {
                None => (images, None),
                Some(Room { outputs, output_deltas, .. }) => {
                    output_deltas.resize(outputs.len(), 0.0);
                    (Rows::all(outputs, block.inputs()), Some(&mut output_deltas[..]))
                }
            };
            block.add_gradient(parameters, inputs, gradient, &mut own[0], input_deltas, pieces)?;
        }
        Ok((loss / rows.len() as f64) as f32)
    }

    /// Loss and accuracy over all of `data`.
    ///
    /// # Panics
    ///
    /// If `parameters` is not [`parameters`](Self::parameters) long, or if `data` are empty, of another task, or have
    /// other columns or more classes than the model.
    pub fn evaluate<'a>(&self, parameters: &[f32], data: impl Into<Examples<'a>>) -> Evaluation {
        let data = data.into();
        assert!(data.count() > 0, "the mean over no examples is undefined");
        match self.task(parameters, data) {
            Work::Classes(data) => self.evaluate_classes(parameters, data),
            Work::Values(factors, entries) => factors.evaluate(parameters, entries),
        }
    }

    fn evaluate_classes(&self, parameters: &[f32], data: &Dataset) -> Evaluation {
        let mut scratch = Scratch::default();
        let Scratch { blocks, outputs, .. } = self.room(&mut scratch);
        let (mut loss, mut correct) = (0.0f64, 0usize);
        let features = data.features.chunks(EVALUATION_ROWS * data.columns);
        for (values, labels) in features.zip(data.labels.chunks(EVALUATION_ROWS)) {
            for (index, block) in self.blocks.iter().enumerate() {
                let (before, own) = blocks.split_at_mut(index);
                let values = before.last().map_or(values, |room| &room.outputs);
                block.evaluate(parameters, Rows::all(values, block.inputs()), labels.len(), &mut own[0]);
            }
            let values = blocks.last().map_or(values, |room| &room.outputs);
            self.scores(parameters, Rows::all(values, self.layers[0].inputs), labels.len(), outputs);
            let scores =
                outputs.last_mut().into_iter().flat_map(|scores| scores.chunks_exact_mut(self.outputs()));
            for (scores, label) in scores.zip(labels) {
                let (example_loss, best) = softmax(scores, *label as usize);
                loss += f64::from(example_loss);
                correct += usize::from(best == *label as usize);
            }
        }
        let rows = data.rows() as f64;
        Evaluation { loss: (loss / rows) as f32, accuracy: Some((correct as f64 / rows) as f32) }
    }

    /// What is to be computed on these examples, which fit the model.
    fn task<'a>(&'a self, parameters: &[f32], data: Examples<'a>) -> Work<'a> {
        assert_eq!(parameters.len(), self.parameters(), "the parameters are those of a {self}");
        let (inputs, outputs) = data.shape();
        assert_eq!(inputs, self.inputs(), "the columns of the data are those of a {self}");
        assert!(outputs <= self.outputs(), "the data have {outputs} classes, for a {self}");
        match (data, &self.factors) {
            (Examples::Classes(data), None) => Work::Classes(data),
            (Examples::Values(entries), Some(factors)) => Work::Values(factors, entries),
            _ => panic!("the data are of the task of a {self}"),
        }
    }

    /// The scratch, with room for each block and each layer.
    fn room<'a>(&self, scratch: &'a mut Scratch) -> &'a mut Scratch {
        scratch.blocks.resize_with(self.blocks.len(), Room::default);
        scratch.outputs.resize_with(self.layers.len(), Vec::new);
        scratch.deltas.resize_with(self.layers.len(), Vec::new);
        scratch
    }

    /// Fills `outputs`: of hidden layers with what their units put out, of the last with the scores.
    fn scores(&self, parameters: &[f32], inputs: Rows<'_>, examples: usize, outputs: &mut [Vec<f32>]) {
        let last = self.layers.len() - 1;
        for (index, layer) in self.layers.iter().enumerate() {
            let (before, after) = outputs.split_at_mut(index);
            let inputs = before.last().map_or(inputs, |values| Rows::all(values, layer.inputs));
            after[0].resize(examples * layer.outputs, 0.0);
            let (weight, bias) = layer.of(parameters);
            linear(inputs, weight, bias, &mut after[0]);
            if index < last {
                // Written so that NaN stays NaN: a run that diverged must show it.
                after[0].iter_mut().filter(|value| **value < 0.0).for_each(|value| *value = 0.0);
            }
        }
    }

    /// Adds to `gradient` from the derivatives by the scores, which are the last of `deltas`, one example after the
    /// other; and writes the derivatives by the inputs where they are wanted.
    fn add_gradient(
        &self,
        parameters: &[f32],
        inputs: Rows<'_>,
        gradient: &mut [f32],
        outputs: &[Vec<f32>],
        deltas: &mut [Vec<f32>],
        input_deltas: Option<&mut [f32]>,
    ) {
        for (index, layer) in self.layers.iter().enumerate().skip(1).rev() {
            let (values, (lower, upper)) = (&outputs[index - 1], deltas.split_at_mut(index));
            let (weight_gradient, bias_gradient) = layer.of_mut(gradient);
            linear_gradient(Rows::all(values, layer.inputs), &upper[0], weight_gradient, bias_gradient);
            let before = &mut lower[index - 1];
            before.resize(values.len(), 0.0);
            linear_input_deltas(&upper[0], layer.of(parameters).0, *layer, before);
            // Nothing flows back through a unit that is off.
            let units = before.iter_mut().zip(values);
            units.filter(|(_, value)| **value == 0.0).for_each(|(delta, _)| *delta = 0.0);
        }
        let first = self.layers[0];
        let (weight_gradient, bias_gradient) = first.of_mut(gradient);
        linear_gradient(inputs, &deltas[0], weight_gradient, bias_gradient);
        if let Some(input_deltas) = input_deltas {
            linear_input_deltas(&deltas[0], first.of(parameters).0, first, input_deltas);
        }
    }
}

#[cfg(test)]
impl Scratch {
    /// Returns the address and the capacity of each buffer of the layers: growing would change either.
    pub(super) fn buffers(&self) -> Vec<(*const f32, usize)> {
        self.outputs.iter().chain(&self.deltas).map(|room| (room.as_ptr(), room.capacity())).collect()
    }
}
