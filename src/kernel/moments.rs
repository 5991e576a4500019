//! The statistics that a fold can give of the gradients that it summed.

/// Second moments of `k` gradients: from [`Fold::run_measured`](super::Fold::run_measured), over the elements that it
/// folded. The moments of disjoint parts of the same gradients add up; added in the same order they give the same bits.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moments {
    /// `|sum over j of w_j * g_j|^2`.
    pub sum_norm_squared: f64,
    /// `sum over j of |g_j|^2`.
    pub each_norm_squared: f64,
    /// `k`.
    pub gradients: usize,
    /// Sum of the weights `w_j`.
    pub weights: f64,
    /// Sum of the squares of the weights.
    pub weights_squared: f64,
}

impl Moments {
    /// Of gradients of these weights, of which nothing has been summed.
    pub(crate) fn of(weights: impl Iterator<Item = f32>) -> Moments {
        weights.map(f64::from).fold(Moments::default(), |before, weight| Moments {
            gradients: before.gradients + 1,
            weights: before.weights + weight,
            weights_squared: before.weights_squared + weight * weight,
            ..before
        })
    }

    /// Takes in another part of the same gradients.
    pub fn add(&mut self, part: Moments) {
        let Moments { sum_norm_squared, each_norm_squared, .. } = *self;
        *self = Moments {
            sum_norm_squared: sum_norm_squared + part.sum_norm_squared,
            each_norm_squared: each_norm_squared + part.each_norm_squared,
            ..part
        };
    }

    /// The squared Euclidean norm of the gradients' weighted mean, and the trace of the covariance of one gradient,
    /// estimated without bias, all of them being drawn alike.
    ///
    /// With `a_j = w_j / sum of w` and the mean `m = sum of a_j * g_j` that trace is
    /// `(sum |g_j|^2 / k - |m|^2) / (1 - sum a_j^2)`, for equal weights the sample variance
    /// `sum |g_j - m|^2 / (k - 1)`. Rounding, and weights that differ, can take it below zero; it is 0 then.
    ///
    /// `None` where the gradients do not determine it: the norm if there are none or their weights add up to 0, the
    /// variance of fewer than two, and both where a gradient is not finite.
    pub fn statistics(&self) -> (Option<f64>, Option<f64>) {
        let finite = |value: f64| value.is_finite().then_some(value);
        let Some(mean) = finite(self.sum_norm_squared / (self.weights * self.weights)) else {
            return (None, None);
        };
        let spread = 1.0 - self.weights_squared / (self.weights * self.weights);
        // Two weights of which one is next to nothing are one gradient.
        let variance = (self.gradients >= 2 && spread > 1e-6)
            .then(|| (self.each_norm_squared / self.gradients as f64 - mean) / spread)
            .and_then(finite);
        (Some(mean), variance.map(|variance| variance.max(0.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::tests::{ENCODINGS, OPTIMIZERS, levels};
    use crate::kernel::{Fold, Gradient, Optimizer, Pass, decode, encode};
    use crate::mem::HostMemory;
    use crate::table::Encoding;

    /// Numbers around nothing, the same for each seed.
    fn number(seed: usize) -> f32 {
        let bits = (seed as u64).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let bits = (bits ^ bits >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((bits >> 40) as f32 / 2f32.powi(23) - 1.0) * 0.1
    }

    /// One array of so many elements per index, a page apart, each at `offset` from its page's begin.
    fn fold_at(
        memory: &HostMemory,
        (optimizer, encoding): (Optimizer, Encoding),
        (k, count, offset): (usize, usize, usize),
        check: impl Fn(&Fold<'_>, [f64; 2]),
    ) {
        let array = |index: usize, bytes| memory.as_volatile().subslice(index * 16384 + offset, bytes);
        let weights: Vec<f32> = (0..k).map(|j| 1.0 / (j + 2) as f32).collect();
        let (mut sums, mut each) = (vec![0f32; count], 0.0);
        let gradients: Vec<_> = (0..k)
            .map(|j| {
                let elements = array(6 + j, count * encoding.bytes());
                let values: Vec<f32> = (0..count).map(|at| number(at * 7 + j)).collect();
                encode(&values, elements, encoding);
                let mut values = vec![0.0; count];
                decode(elements, encoding, &mut values);
                for (sum, value) in sums.iter_mut().zip(values) {
                    each += f64::from(value) * f64::from(value);
                    *sum = if j == 0 { weights[j] * value } else { *sum + weights[j] * value };
                }
                Gradient { elements, weight: weights[j] }
            })
            .collect();
        let pass = |index| Pass { from: array(index, count * 4), to: array(index + 1, count * 4) };
        let passes = [pass(0), pass(2), pass(4)];
        let fold = Fold {
            gradients: &gradients,
            encoding,
            optimizer,
            learning_rate: 0.1,
            step: 1,
            parameters: passes[0],
            states: &passes[1..1 + optimizer.states()],
            streaming: count % 2 == 0,
        };
        let sum = sums.iter().map(|sum| f64::from(*sum) * f64::from(*sum)).sum();
        check(&fold, [sum, each]);
    }

    #[test]
    fn a_measured_fold_measures_what_a_plain_loop_in_f64_does() {
        let memory = HostMemory::anonymous(11 * 16384).unwrap();
        for (optimizer, encoding) in OPTIMIZERS.into_iter().flat_map(|o| ENCODINGS.map(|e| (o, e))) {
            for (k, count) in (0..=5).flat_map(|k| [0, 1, 31, 127, 128, 129, 1000, 4000].map(|n| (k, n))) {
                fold_at(&memory, (optimizer, encoding), (k, count, 0), |fold, [sum, each]| {
                    for level in levels() {
                        let moments = fold.run_on::<true>(level).unwrap().moments;
                        let near = |found: f64, expected: f64| (found - expected).abs() <= 1e-6 * expected;
                        assert!(near(moments.sum_norm_squared, sum), "{level:?} {moments:?} {sum} {fold:?}");
                        assert!(
                            near(moments.each_norm_squared, each),
                            "{level:?} {moments:?} {each} {fold:?}"
                        );
                        assert_eq!(moments.gradients, k);
                    }
                });
            }
        }
    }

    #[test]
    fn what_is_measured_does_not_depend_on_where_memory_lies() {
        let memory = HostMemory::anonymous(11 * 16384).unwrap();
        for level in levels() {
            let mut found = Vec::new();
            for offset in [0, 4, 60, 3] {
                let (case, shape) = ((OPTIMIZERS[0], Encoding::F32), (3, 1000, offset));
                let found = std::cell::RefCell::new(&mut found);
                fold_at(&memory, case, shape, |fold, _| {
                    found.borrow_mut().push(fold.run_on::<true>(level).unwrap().moments);
                });
            }
            assert!(found.iter().all(|moments| *moments == found[0]), "{level:?}: {found:?}");
        }
    }

    #[test]
    fn the_statistics_are_those_of_the_formulas() {
        // Two gradients, (3, 1) and (1, 1), of equal weight: the mean is (2, 1), the sample variance 2.
        let two = |weight: f64| Moments {
            sum_norm_squared: weight * weight * 20.0,
            each_norm_squared: 12.0,
            gradients: 2,
            weights: 2.0 * weight,
            weights_squared: 2.0 * weight * weight,
        };
        assert_eq!(two(0.5).statistics(), (Some(5.0), Some(2.0)));
        assert_eq!(two(0.25).statistics(), (Some(5.0), Some(2.0)), "weights need not add up to 1");
        let halves = [1.0, 3.0].map(|part| Moments {
            sum_norm_squared: part * 1.25,
            each_norm_squared: part * 3.0,
            ..two(0.5)
        });
        let mut both = Moments::default();
        both.add(halves[0]);
        both.add(halves[1]);
        assert_eq!(both, two(0.5));
        let one = Moments {
            sum_norm_squared: 4.0,
            each_norm_squared: 4.0,
            gradients: 1,
            weights: 1.0,
            weights_squared: 1.0,
        };
        assert_eq!(one.statistics(), (Some(4.0), None));
        assert_eq!(Moments { sum_norm_squared: f64::INFINITY, ..one }.statistics(), (None, None));
        assert_eq!(Moments { each_norm_squared: f64::NAN, ..two(0.5) }.statistics(), (Some(5.0), None));
    }

    #[test]
    fn the_variance_of_unequal_weights_is_unbiased() {
        // Four scalars drawn from {-1, 1} with equal probability, every one of the 16 draws: variance 1, mean 0.
        let weights = [0.4f64, 0.3, 0.2, 0.1];
        let mut sum = 0.0;
        for draw in 0..16 {
            let gradient = |j: usize| if draw >> j & 1 == 1 { 1.0 } else { -1.0 };
            let total: f64 = (0..4).map(|j| weights[j] * gradient(j)).sum();
            let moments = Moments {
                sum_norm_squared: total * total,
                each_norm_squared: 4.0,
                gradients: 4,
                weights: weights.iter().sum(),
                weights_squared: weights.iter().map(|w| w * w).sum(),
            };
            sum += moments.statistics().1.unwrap();
        }
        assert!((sum / 16.0 - 1.0).abs() < 1e-12, "{sum}");
    }
}
