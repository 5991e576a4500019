//! The optimisers' formulas, written once for every width of vector.
//!
//! Constants that a formula derives from others (`1 - b1`, `rate / (1 - b1^t)`, ...) are computed in f64 from the f32
//! that were given and rounded to f32 once.

use super::AdamParameters;
#[cfg(all(feature = "cuda", not(loom)))]
use super::Optimizer;
use super::lanes::Lanes;

/// One optimiser's step, its constants at hand.
pub(super) trait Rule: Copy {
    /// Arrays of state.
    const STATES: usize;

    /// From the summed gradient, the parameter and its states to the new parameter; the states are changed in place.
    ///
    /// # Safety
    /// As for [`Lanes`].
    unsafe fn step<V: Lanes>(self, gradient: V, parameter: V, states: &mut [V; 2]) -> V;
}

#[derive(Clone, Copy)]
pub(super) struct Sgd {
    pub(super) rate: f32,
    pub(super) decay: f32,
}

impl Rule for Sgd {
    const STATES: usize = 0;

    #[inline(always)]
    unsafe fn step<V: Lanes>(self, gradient: V, parameter: V, _: &mut [V; 2]) -> V {
        // SAFETY: arithmetic alone; the caller has the vectors.
        unsafe {
            let gradient = gradient.add(V::splat(self.decay).mul(parameter));
            parameter.sub(V::splat(self.rate).mul(gradient))
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Momentum {
    pub(super) rate: f32,
    pub(super) momentum: f32,
    pub(super) decay: f32,
}

impl Rule for Momentum {
    const STATES: usize = 1;

    #[inline(always)]
    unsafe fn step<V: Lanes>(self, gradient: V, parameter: V, states: &mut [V; 2]) -> V {
        // SAFETY: arithmetic alone; the caller has the vectors.
        unsafe {
            let gradient = gradient.add(V::splat(self.decay).mul(parameter));
            states[0] = V::splat(self.momentum).mul(states[0]).add(gradient);
            parameter.sub(V::splat(self.rate).mul(states[0]))
        }
    }
}

/// Adam, and with `DECOUPLED` AdamW.
#[derive(Clone, Copy)]
pub(super) struct Adam<const DECOUPLED: bool> {
    beta1: f32,
    one_less_beta1: f32,
    beta2: f32,
    one_less_beta2: f32,
    /// `rate / (1 - b1^t)`.
    step_size: f32,
    /// `sqrt(1 - b2^t)`.
    correction: f32,
    epsilon: f32,
    /// The decay; if decoupled, `rate * decay`.
    decay: f32,
}

impl<const DECOUPLED: bool> Adam<DECOUPLED> {
    pub(super) fn new(parameters: AdamParameters, rate: f32, step: u64) -> Self {
        let AdamParameters { beta1, beta2, epsilon, weight_decay } = parameters;
        let (b1, b2, rate) = (f64::from(beta1), f64::from(beta2), f64::from(rate));
        Adam {
            beta1,
            one_less_beta1: (1.0 - b1) as f32,
            beta2,
            one_less_beta2: (1.0 - b2) as f32,
            step_size: (rate / (1.0 - power(b1, step))) as f32,
            correction: (1.0 - power(b2, step)).sqrt() as f32,
            epsilon,
            decay: if DECOUPLED { (rate * f64::from(weight_decay)) as f32 } else { weight_decay },
        }
    }
}

/// By squaring, the lowest bit of the exponent first: the same bits wherever it runs, as libm's `pow` is not.
fn power(base: f64, mut exponent: u64) -> f64 {
    let (mut result, mut square) = (1.0, base);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result *= square;
        }
        square *= square;
        exponent >>= 1;
    }
    result
}

impl<const DECOUPLED: bool> Rule for Adam<DECOUPLED> {
    const STATES: usize = 2;

    #[inline(always)]
    unsafe fn step<V: Lanes>(self, gradient: V, parameter: V, states: &mut [V; 2]) -> V {
        // SAFETY: arithmetic alone; the caller has the vectors.
        unsafe {
            let decayed = V::splat(self.decay).mul(parameter);
            let (gradient, parameter) = if DECOUPLED {
                (gradient, parameter.sub(decayed))
            } else {
                (gradient.add(decayed), parameter)
            };
            let first = V::splat(self.one_less_beta1).mul(gradient);
            let second = V::splat(self.one_less_beta2).mul(gradient).mul(gradient);
            let [m, v] = states;
            *m = V::splat(self.beta1).mul(*m).add(first);
            *v = V::splat(self.beta2).mul(*v).add(second);
            let denominator = v.sqrt().div(V::splat(self.correction)).add(V::splat(self.epsilon));
            parameter.sub(V::splat(self.step_size).mul(m.div(denominator)))
        }
    }
}

/// The constants of an optimiser's step as its formulas take them, each rounded to f32 once, for the kernels of a GPU.
/// Constants that the rule does not have are 0.
#[cfg(all(feature = "cuda", not(loom)))]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RuleConstants {
    pub(crate) rate: f32,
    /// Of AdamW `rate * decay`.
    pub(crate) decay: f32,
    pub(crate) momentum: f32,
    pub(crate) beta1: f32,
    pub(crate) one_less_beta1: f32,
    pub(crate) beta2: f32,
    pub(crate) one_less_beta2: f32,
    pub(crate) step_size: f32,
    pub(crate) correction: f32,
    pub(crate) epsilon: f32,
}

#[cfg(all(feature = "cuda", not(loom)))]
impl RuleConstants {
    /// The constants of step number `step`, the first being 1.
    pub(crate) fn of(optimizer: &Optimizer, rate: f32, step: u64) -> RuleConstants {
        let none = RuleConstants { rate, ..RuleConstants::default() };
        match *optimizer {
            Optimizer::Sgd { weight_decay: decay } => RuleConstants { decay, ..none },
            Optimizer::Momentum { momentum, weight_decay: decay } => {
                RuleConstants { decay, momentum, ..none }
            }
            Optimizer::Adam(adam) => none.with(Adam::<false>::new(adam, rate, step)),
            Optimizer::AdamW(adam) => none.with(Adam::<true>::new(adam, rate, step)),
        }
    }

    fn with<const DECOUPLED: bool>(self, adam: Adam<DECOUPLED>) -> RuleConstants {
        let Adam { beta1, one_less_beta1, beta2, one_less_beta2, step_size, correction, epsilon, decay } =
            adam;
        RuleConstants {
            decay,
            beta1,
            one_less_beta1,
            beta2,
            one_less_beta2,
            step_size,
            correction,
            epsilon,
            ..self
        }
    }
}
