//! The kernels that `cuda/train.cuh` has for the models, compiled for the CPU, give the gradients of the models here.

#[path = "../../tests/kernels/device.rs"]
mod device;

use device::{Block, Buffer, Device};
use slackline_lab::data::{Dataset, digits};
use slackline_lab::model::{ModelKind, ModelSpec, Scratch};

/// Relative to the largest magnitude of a gradient, and of a loss.
const TOLERANCE: f32 = 1e-5;

/// Any grid will do.
const LAUNCH: (u32, u32) = (3, 64);

/// Takes the batch through the kernels in the order that `cuda/train.cuh` states.
struct Model<'a> {
    device: &'a mut Device,
    data: &'a Dataset,
    rows: &'a [usize],
}

/// A layer: where its parameters begin, how many units it has, for how many columns.
#[derive(Clone, Copy)]
struct Layer {
    start: usize,
    units: usize,
    columns: usize,
}

impl Layer {
    fn parameters<'a>(&self, all: &'a [f32]) -> &'a [f32] {
        &all[self.start..][..self.units * (self.columns + 1)]
    }
}

impl Model<'_> {
    /// Launches a kernel on a layer. `inputs`: those of the examples in order; of the data, if there are none.
    fn launch(
        &mut self,
        kernel: &str,
        (layer, relu): (Layer, bool),
        (inputs, parameters): (Option<&[f32]>, &[f32]),
        (outputs, results): (&[f32], usize),
    ) -> [Vec<f32>; 2] {
        let mut block = Block::new(56);
        let rows = self.rows.iter().flat_map(|row| (*row as u64).to_le_bytes()).collect();
        let mut buffers = [
            buffer(inputs.unwrap_or(&self.data.features)),
            Buffer { shift: 0, bytes: rows },
            buffer(layer.parameters(parameters)),
            buffer(outputs),
            buffer(&vec![f32::NAN; results]),
        ];
        let with_rows = |index: &usize| *index != 1 || inputs.is_none();
        (0..5).filter(with_rows).for_each(|index| block.put_address(index * 8, index));
        let numbers = [self.rows.len(), layer.columns, layer.units, usize::from(relu)];
        for (index, number) in numbers.into_iter().enumerate() {
            block.put(40 + index * 4, u32::try_from(number).unwrap().to_le_bytes());
        }
        self.device.launch(kernel, LAUNCH, &mut buffers, &block).unwrap();
        [3, 4].map(|index| floats(&buffers[index]))
    }

    fn linear(&mut self, layer: (Layer, bool), inputs: Option<&[f32]>, parameters: &[f32]) -> Vec<f32> {
        let outputs = vec![f32::NAN; self.rows.len() * layer.0.units];
        let [outputs, _] = self.launch("slackline_train_linear", layer, (inputs, parameters), (&outputs, 0));
        outputs
    }

    /// The losses of the examples, and the derivatives of their mean by the scores.
    fn softmax(&mut self, scores: &[f32], classes: usize) -> (Vec<f32>, Vec<f32>) {
        let words = |words: &mut dyn Iterator<Item = u32>| Buffer {
            shift: 0,
            bytes: words.flat_map(u32::to_le_bytes).collect(),
        };
        let rows = self.rows.iter().flat_map(|row| (*row as u64).to_le_bytes()).collect();
        let mut buffers = [
            buffer(scores),
            words(&mut self.data.labels.iter().copied()),
            Buffer { shift: 0, bytes: rows },
            buffer(&vec![f32::NAN; self.rows.len()]),
        ];
        let mut block = Block::new(48);
        (0..4).for_each(|index| block.put_address(index * 8, index));
        block.put(32, u32::try_from(self.rows.len()).unwrap().to_le_bytes());
        block.put(36, u32::try_from(classes).unwrap().to_le_bytes());
        block.put(40, (1.0 / self.rows.len() as f32).to_le_bytes());
        self.device.launch("slackline_train_softmax", LAUNCH, &mut buffers, &block).unwrap();
        (floats(&buffers[3]), floats(&buffers[0]))
    }

    fn loss_and_gradient(&mut self, spec: &ModelSpec, parameters: &[f32]) -> (f32, Vec<f32>) {
        let units = spec.hidden().first().copied().unwrap_or(0);
        let hidden = Layer { start: 0, units, columns: spec.inputs() };
        let is_mlp = spec.kind() == ModelKind::Mlp;
        let output = match is_mlp {
            true => {
                Layer { start: hidden.parameters(parameters).len(), units: spec.outputs(), columns: units }
            }
            false => Layer { start: 0, units: spec.outputs(), columns: spec.inputs() },
        };
        let values = is_mlp.then(|| self.linear((hidden, true), None, parameters));
        let scores = self.linear((output, false), values.as_deref(), parameters);
        let (losses, deltas) = self.softmax(&scores, spec.outputs());
        let loss = losses.iter().map(|loss| f64::from(*loss)).sum::<f64>() / losses.len() as f64;

        let inputs = (values.as_deref(), parameters);
        let of_output = (&deltas[..], output.parameters(parameters).len());
        let [_, gradient] = self.launch("slackline_train_gradient", (output, false), inputs, of_output);
        if !is_mlp {
            return (loss as f32, gradient);
        }
        let of_inputs = (&deltas[..], self.rows.len() * units);
        let [_, deltas] = self.launch("slackline_train_deltas", (output, false), inputs, of_inputs);
        let of_hidden = (&deltas[..], hidden.parameters(parameters).len());
        let [_, first] =
            self.launch("slackline_train_gradient", (hidden, false), (None, parameters), of_hidden);
        (loss as f32, [first, gradient].concat())
    }
}

fn buffer(values: &[f32]) -> Buffer {
    Buffer { shift: 0, bytes: values.iter().flat_map(|value| value.to_le_bytes()).collect() }
}

fn floats(buffer: &Buffer) -> Vec<f32> {
    buffer.bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// How far loss and gradient are from those of the CPU, relative to the largest magnitude.
fn error(device: &mut Device, kind: ModelKind, hidden: usize, batch: usize) -> f32 {
    let data = digits().train;
    let spec = ModelSpec::new(kind, data.columns, data.classes, &[hidden]).unwrap();
    let rows: Vec<usize> = (0..batch).map(|example| example * 37 % data.rows()).collect();
    let mut parameters = spec.initialise(5);
    // Softmax regression starts at zero, where all examples are alike.
    parameters.iter_mut().enumerate().for_each(|(at, value)| *value += (at as f32).sin() * 0.1);
    let mut gradient = vec![0.0; parameters.len()];
    let loss = spec.loss_and_gradient(&parameters, &data, &rows, &mut gradient, &mut Scratch::default());
    let mut model = Model { device, data: &data, rows: &rows };
    let (our_loss, ours) = model.loss_and_gradient(&spec, &parameters);
    assert_eq!(ours.len(), gradient.len());
    let largest = gradient.iter().fold(0f32, |most, value| most.max(value.abs()));
    let differences = ours.iter().zip(&gradient).map(|(ours, theirs)| (ours - theirs).abs() / largest);
    // `max` passes over NaN.
    differences.fold(
        (our_loss - loss).abs() / loss,
        |most, next| if next > most || next.is_nan() { next } else { most },
    )
}

#[test]
fn gradients_of_the_kernels_agree_with_those_of_the_models() {
    let mut device = Device::new();
    for (kind, hidden) in [(ModelKind::Softmax, 0), (ModelKind::Mlp, 7), (ModelKind::Mlp, 64)] {
        for batch in [1, 5, 32, 129] {
            let error = error(&mut device, kind, hidden, batch);
            assert!(error <= TOLERANCE, "{kind} with {hidden} units, {batch} examples: {error:e}");
        }
    }
}

#[test]
fn a_kernel_of_the_models_that_is_altered_is_noticed() {
    let alterations = [
        ("train-on", "[i] == 0.0f ? 0.0f : sum", "[i] == 0.0f ? sum : sum"),
        ("train-class", "c == label ? 1.0f", "c == label ? 0.999f"),
    ];
    for (name, from, to) in alterations {
        let mut device = Device::altered(name, ("train.cuh", from, to), false);
        let error = error(&mut device, ModelKind::Mlp, 64, 32);
        assert!(error > TOLERANCE, "{name}: {error:e}");
    }
}
