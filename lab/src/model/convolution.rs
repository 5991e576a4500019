//! Convolution of one image by squares of weights, padded with zeros so that its maps are as large as the image.
//!
//! The image is laid out as patches: a row for each weight of a square, with the value that this weight meets at each
//! pixel. Then a map is a weighted sum of rows, and both are long enough to be vectors.

use super::kernels::{add_scaled, dot};

/// The side of a square of weights.
pub(super) const KERNEL: usize = 5;

/// The shape of an image: planes of squares, one after the other, row by row.
#[derive(Clone, Copy)]
pub(super) struct Image {
    pub(super) planes: usize,
    pub(super) side: usize,
}

impl Image {
    pub(super) fn pixels(self) -> usize {
        self.side * self.side
    }

    /// Weights of one map.
    pub(super) fn fan_in(self) -> usize {
        self.planes * KERNEL * KERNEL
    }

    /// For each row of the patches, and each line of it, the part that lies in the image: where it begins in the
    /// patches and in the image, and its length.
    fn overlaps(self) -> impl Iterator<Item = (usize, usize, usize)> {
        let side = self.side as isize;
        (0..self.fan_in()).flat_map(move |row| {
            let (plane, down, right) = (row / (KERNEL * KERNEL), row / KERNEL % KERNEL, row % KERNEL);
            let (down, right) = (down as isize - KERNEL as isize / 2, right as isize - KERNEL as isize / 2);
            let (from, until) = ((-right).clamp(0, side), (side - right).clamp(0, side));
            let lines = (-down).clamp(0, side)..(side - down).clamp(0, side);
            lines.filter(move |_| from < until).map(move |line| {
                let patch = row as isize * side * side + line * side + from;
                let image = (plane as isize * side + line + down) * side + from + right;
                (patch as usize, image as usize, (until - from) as usize)
            })
        })
    }

    /// Lays an image out as patches, fan-in x pixels.
    fn patches(self, image: &[f32], patches: &mut Vec<f32>) {
        patches.clear();
        patches.resize(self.fan_in() * self.pixels(), 0.0);
        for (patch, pixel, length) in self.overlaps() {
            patches[patch..][..length].copy_from_slice(&image[pixel..][..length]);
        }
    }

    /// Writes to `maps` the weighted sums at each pixel. `weight` is maps x fan-in.
    pub(super) fn convolve(self, image: &[f32], weight: &[f32], maps: &mut [f32], patches: &mut Vec<f32>) {
        self.patches(image, patches);
        maps.fill(0.0);
        for (map, weight) in maps.chunks_exact_mut(self.pixels()).zip(weight.chunks_exact(self.fan_in())) {
            for (weight, row) in weight.iter().zip(patches.chunks_exact(self.pixels())) {
                add_scaled(map, *weight, row);
            }
        }
    }

    /// Adds to `gradient` what the derivatives by the maps make of it.
    pub(super) fn add_gradient(
        self,
        image: &[f32],
        deltas: &[f32],
        gradient: &mut [f32],
        patches: &mut Vec<f32>,
    ) {
        self.patches(image, patches);
        for (delta, gradient) in
            deltas.chunks_exact(self.pixels()).zip(gradient.chunks_exact_mut(self.fan_in()))
        {
            for (gradient, row) in gradient.iter_mut().zip(patches.chunks_exact(self.pixels())) {
                *gradient += dot(delta, row);
            }
        }
    }

    /// Writes to `image` the derivatives by its pixels.
    pub(super) fn image_deltas(
        self,
        deltas: &[f32],
        weight: &[f32],
        image: &mut [f32],
        patches: &mut Vec<f32>,
    ) {
        patches.clear();
        patches.resize(self.fan_in() * self.pixels(), 0.0);
        for (delta, weight) in deltas.chunks_exact(self.pixels()).zip(weight.chunks_exact(self.fan_in())) {
            for (weight, row) in weight.iter().zip(patches.chunks_exact_mut(self.pixels())) {
                add_scaled(row, *weight, delta);
            }
        }
        image.fill(0.0);
        for (patch, pixel, length) in self.overlaps() {
            let sums = image[pixel..][..length].iter_mut().zip(&patches[patch..][..length]);
            sums.for_each(|(sum, value)| *sum += value);
        }
    }
}
