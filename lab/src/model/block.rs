//! A block of a ConvNet: convolution, batch normalisation, rectified linear units, the largest of each 2 x 2 pixels.
//!
//! Batch normalisation (Ioffe and Szegedy, 2015) takes mean and variance of each map over the batch while it trains,
//! and those that it has remembered when it is evaluated. The remembered ones are parameters like all others, so that
//! every scheme averages them as it averages those: their gradient is their distance from the batch's. A step of plain
//! SGD with step size r is then the running average that frameworks keep with momentum r.

use super::convolution::{Image, KERNEL};
use super::kernels::Rows;
use super::pieces::{Pieces, Stopped};
use super::tensor::TensorSpec;

/// Maps of the two blocks.
pub(super) const CHANNELS: [usize; 2] = [8, 16];

/// Added to a variance before its root is taken.
const EPSILON: f32 = 1e-5;

/// A block, and where its parameters begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) start: usize,
    /// Planes of the image that comes in.
    pub(super) planes: usize,
    pub(super) side: usize,
    /// Maps that go out, with half the side.
    pub(super) channels: usize,
}

/// The parameters of a block, or their gradients: the squares of weights; of each map the factor and the shift after
/// normalisation, and the mean and the variance that are remembered.
pub(super) struct Own<T> {
    pub(super) weight: T,
    pub(super) factor: T,
    pub(super) shift: T,
    pub(super) mean: T,
    pub(super) variance: T,
}

/// Room for what a block computes on the way.
#[derive(Debug, Default)]
pub(super) struct Room {
    patches: Vec<f32>,
    /// The maps, normalised: examples x maps x pixels.
    maps: Vec<f32>,
    /// The derivatives by the maps.
    deltas: Vec<f32>,
    /// Of each map: the mean and the unbiased variance over the batch, and the factor of normalisation.
    mean: Vec<f32>,
    variance: Vec<f32>,
    scale: Vec<f32>,
    /// For each output the index of the largest pixel among all maps.
    largest: Vec<usize>,
    /// Examples x maps x a quarter of the pixels.
    pub(super) outputs: Vec<f32>,
    /// The derivatives by the outputs.
    pub(super) output_deltas: Vec<f32>,
}

impl Block {
    fn image(&self) -> Image {
        Image { planes: self.planes, side: self.side }
    }

    /// Values that come in for each example.
    pub(super) fn inputs(&self) -> usize {
        self.planes * self.image().pixels()
    }

    /// Values that go out for each example.
    pub(super) fn outputs(&self) -> usize {
        self.channels * self.image().pixels() / 4
    }

    /// Weights of one map.
    pub(super) fn fan_in(&self) -> usize {
        self.image().fan_in()
    }

    pub(super) fn parameters(&self) -> usize {
        self.channels * (self.fan_in() + 4)
    }

    /// Its tensors, named as frameworks name them; `number` counts blocks from 1.
    pub(super) fn tensors(&self, number: usize) -> Vec<TensorSpec> {
        let weight = vec![self.channels, self.planes, KERNEL, KERNEL];
        let norm = ["weight", "bias", "running_mean", "running_var"];
        let norm = norm.map(|part| TensorSpec::new(format!("norm{number}.{part}"), [self.channels]));
        [TensorSpec::new(format!("conv{number}.weight"), weight)].into_iter().chain(norm).collect()
    }

    fn of<'a>(&self, parameters: &'a [f32]) -> Own<&'a [f32]> {
        let own = &parameters[self.start..][..self.parameters()];
        let (weight, own) = own.split_at(self.channels * self.fan_in());
        let part = |index: usize| &own[index * self.channels..][..self.channels];
        Own { weight, factor: part(0), shift: part(1), mean: part(2), variance: part(3) }
    }

    pub(super) fn of_mut<'a>(&self, parameters: &'a mut [f32]) -> Own<&'a mut [f32]> {
        let own = &mut parameters[self.start..][..self.parameters()];
        let (weight, own) = own.split_at_mut(self.channels * self.fan_in());
        let (factor, own) = own.split_at_mut(self.channels);
        let (shift, own) = own.split_at_mut(self.channels);
        let (mean, variance) = own.split_at_mut(self.channels);
        Own { weight, factor, shift, mean, variance }
    }

    /// Fills `room.outputs`, normalised by the batch's own mean and variance, and remembers what `add_gradient` needs.
    pub(super) fn forward<E, F: FnMut() -> Result<bool, E>>(
        &self,
        parameters: &[f32],
        inputs: Rows<'_>,
        examples: usize,
        room: &mut Room,
        pieces: &mut Pieces<F>,
    ) -> Result<(), Stopped<E>> {
        self.prepare(examples, room);
        for example in 0..examples {
            pieces.before(example)?;
            self.convolve(parameters, inputs.get(example), example, room);
        }
        let count = (examples * self.image().pixels()) as f64;
        for channel in 0..self.channels {
            let mean = self.values(&room.maps, channel).map(f64::from).sum::<f64>() / count;
            let squares = self.values(&room.maps, channel).map(|value| (f64::from(value) - mean).powi(2));
            let squares = squares.sum::<f64>();
            room.mean[channel] = mean as f32;
            room.variance[channel] = (squares / (count - 1.0)) as f32;
            room.scale[channel] = 1.0 / ((squares / count) as f32 + EPSILON).sqrt();
        }
        self.normalise_and_pool(parameters, room);
        Ok(())
    }

    /// Fills `room.outputs`, normalised by the mean and the variance that are remembered.
    pub(super) fn evaluate(&self, parameters: &[f32], inputs: Rows<'_>, examples: usize, room: &mut Room) {
        self.prepare(examples, room);
        (0..examples).for_each(|example| self.convolve(parameters, inputs.get(example), example, room));
        let own = self.of(parameters);
        room.mean.copy_from_slice(own.mean);
        // Momentum may carry a variance below zero for a while.
        let above_zero = |variance: f32| if variance < 0.0 { 0.0 } else { variance };
        for (scale, variance) in room.scale.iter_mut().zip(own.variance) {
            *scale = 1.0 / (above_zero(*variance) + EPSILON).sqrt();
        }
        self.normalise_and_pool(parameters, room);
    }

    fn prepare(&self, examples: usize, room: &mut Room) {
        room.maps.resize(examples * self.channels * self.image().pixels(), 0.0);
        for part in [&mut room.mean, &mut room.variance, &mut room.scale] {
            part.resize(self.channels, 0.0);
        }
    }

    /// Fills the maps of one example.
    fn convolve(&self, parameters: &[f32], image: &[f32], example: usize, room: &mut Room) {
        let length = self.channels * self.image().pixels();
        let maps = &mut room.maps[example * length..][..length];
        self.image().convolve(image, self.of(parameters).weight, maps, &mut room.patches);
    }

    /// The values of one map, of all examples.
    fn values<'a>(&self, maps: &'a [f32], channel: usize) -> impl Iterator<Item = f32> + 'a {
        let pixels = self.image().pixels();
        maps.chunks_exact(pixels).skip(channel).step_by(self.channels).flatten().copied()
    }

    fn normalise_and_pool(&self, parameters: &[f32], room: &mut Room) {
        let Own { factor, shift, .. } = self.of(parameters);
        let (side, pixels) = (self.side, self.image().pixels());
        room.outputs.clear();
        room.largest.clear();
        // The first pixel of each square, of which the others are one to the right, one down, and both.
        let corners =
            || (0..side).step_by(2).flat_map(|line| (0..side).step_by(2).map(move |at| line * side + at));
        for (index, map) in room.maps.chunks_exact_mut(pixels).enumerate() {
            let channel = index % self.channels;
            let (mean, scale) = (room.mean[channel], room.scale[channel]);
            map.iter_mut().for_each(|value| *value = (*value - mean) * scale);
            for first in corners() {
                let (mut pixel, mut largest) = (first, f32::NEG_INFINITY);
                for at in [first, first + 1, first + side, first + side + 1] {
                    let value = factor[channel] * map[at] + shift[channel];
                    // NaN stays NaN: a run that diverged must show it.
                    if value > largest || value.is_nan() {
                        (pixel, largest) = (at, value);
                    }
                }
                room.outputs.push(if largest < 0.0 { 0.0 } else { largest });
                room.largest.push(index * pixels + pixel);
            }
        }
    }

    /// Adds to `gradient` from `room.output_deltas`, and writes the derivatives by the inputs to `input_deltas` where
    /// they are wanted: examples x inputs.
    pub(super) fn add_gradient<E, F: FnMut() -> Result<bool, E>>(
        &self,
        parameters: &[f32],
        inputs: Rows<'_>,
        gradient: &mut [f32],
        room: &mut Room,
        mut input_deltas: Option<&mut [f32]>,
        pieces: &mut Pieces<F>,
    ) -> Result<(), Stopped<E>> {
        let (own, gradient) = (self.of(parameters), self.of_mut(gradient));
        room.deltas.clear();
        room.deltas.resize(room.maps.len(), 0.0);
        for ((pixel, output), delta) in room.largest.iter().zip(&room.outputs).zip(&room.output_deltas) {
            // Nothing flows back through a unit that is off.
            room.deltas[*pixel] = if *output == 0.0 { 0.0 } else { *delta };
        }
        for channel in 0..self.channels {
            let (shift, factor) = self.through_norm(own.factor[channel], channel, room);
            gradient.shift[channel] += shift;
            gradient.factor[channel] += factor;
            gradient.mean[channel] = own.mean[channel] - room.mean[channel];
            gradient.variance[channel] = own.variance[channel] - room.variance[channel];
        }
        let length = self.channels * self.image().pixels();
        for (example, deltas) in room.deltas.chunks_exact(length).enumerate() {
            pieces.before(example)?;
            self.image().add_gradient(inputs.get(example), deltas, gradient.weight, &mut room.patches);
            if let Some(input_deltas) = &mut input_deltas {
                let image = &mut input_deltas[example * self.inputs()..][..self.inputs()];
                self.image().image_deltas(deltas, own.weight, image, &mut room.patches);
            }
        }
        Ok(())
    }

    /// Takes the derivatives of a map from behind the normalisation to before it. Returns those by shift and factor.
    ///
    /// With x normalised over n values, the derivative before it is scale * factor * (d - mean(d) - x * mean(d x)).
    fn through_norm(&self, factor: f32, channel: usize, room: &mut Room) -> (f32, f32) {
        let (pixels, channels) = (self.image().pixels(), self.channels);
        let pairs = self.values(&room.deltas, channel).zip(self.values(&room.maps, channel));
        let (mut sum, mut product, mut count) = (0.0f64, 0.0f64, 0.0f64);
        for (delta, value) in pairs {
            sum += f64::from(delta);
            product += f64::from(delta) * f64::from(value);
            count += 1.0;
        }
        let (mean, slope) = ((sum / count) as f32, (product / count) as f32);
        let scale = room.scale[channel] * factor;
        let maps = room.maps.chunks_exact(pixels).skip(channel).step_by(channels);
        let deltas = room.deltas.chunks_exact_mut(pixels).skip(channel).step_by(channels);
        for (delta, value) in deltas.flatten().zip(maps.flatten()) {
            *delta = scale * (*delta - mean - value * slope);
        }
        (sum as f32, product as f32)
    }
}
