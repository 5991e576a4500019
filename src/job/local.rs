//! Computations of a worker on parameters of its own: steps between two gradients, and the steps of an optimiser.

use smallvec::SmallVec;

use crate::kernel::{self, Fold, Gradient, Optimizer, Pass, Schedule};
use crate::mem::{HostMemory, VolatileSlice};
use crate::node::{Error, check_learning_rate, check_optimizer};
use crate::table::Encoding;
use crate::transport::RegisterError;

/// Several steps of plain SGD on a worker's own copy of the parameters, which count as one gradient, as ABS has it
/// (`scheme::SchemeConfig::local_steps`).
///
/// The gradient is the change of the parameters by the steps, divided by the size of a step: the server's own step then
/// changes its parameters as the steps have changed the copy. Steps of size 0 move nothing, and their gradients are
/// added up.
///
/// A [`JobWorker`](crate::JobWorker) leaves local steps to its caller: give [`gradient`](Self::gradient) the parameters
/// and the memory that [`Step::borrow`](crate::Step::borrow) lends, and publish the step with the mean loss. To ask
/// [`JobStep::should_stop`](crate::JobStep::should_stop) in between, compute on a copy of the parameters into memory of
/// your own, and hand that to [`Step::encode`](crate::Step::encode).
///
/// ```
/// use slackline::LocalSteps;
///
/// // The loss is half the square of the one parameter: each step at a rate of 0.5 halves it.
/// let mut steps = LocalSteps::new(2, 0.5);
/// let half_square = |_step: u64, parameters: &[f32], gradient: &mut [f32]| {
///     gradient.copy_from_slice(parameters);
///     Ok::<_, std::convert::Infallible>(Some(parameters[0] * parameters[0] / 2.0))
/// };
/// let mut gradient = [0.0];
/// let loss = steps.gradient(&[4.0], &mut gradient, half_square)?;
/// assert_eq!(gradient, [(4.0 - 1.0) / 0.5]); // from 4 to 2 to 1
/// assert_eq!(loss, Some((8.0 + 2.0) / 2.0)); // the mean of both
/// # Ok::<(), std::convert::Infallible>(())
/// ```
#[derive(Clone, Debug)]
pub struct LocalSteps {
    count: u64,
    learning_rate: f32,
    own: Vec<f32>,
}

impl LocalSteps {
    /// Makes `count` steps for each gradient (at least one), at the learning rate of the server.
    pub fn new(count: u64, learning_rate: f32) -> LocalSteps {
        LocalSteps { count: count.max(1), learning_rate, own: Vec::new() }
    }

    /// Makes the steps from `parameters` and writes their gradient. Returns the mean loss of the steps.
    ///
    /// `compute` is given the number of the step from 0, the parameters to compute on and the memory for their
    /// gradient; it returns the loss, or `None` to give all steps up, in which case the result is `None` and `gradient`
    /// holds nothing of use. A single step is passed on as it is, without a copy.
    ///
    /// # Errors
    /// The errors of `compute`.
    pub fn gradient<E>(
        &mut self,
        parameters: &[f32],
        gradient: &mut [f32],
        mut compute: impl FnMut(u64, &[f32], &mut [f32]) -> Result<Option<f32>, E>,
    ) -> Result<Option<f32>, E> {
        if self.count == 1 {
            return compute(0, parameters, gradient);
        }
        // Over a size of 0 there is no quotient: then the gradients themselves are added up.
        let stays = self.learning_rate == 0.0;
        self.own.clear();
        match stays {
            true => self.own.resize(parameters.len(), 0.0),
            false => self.own.extend_from_slice(parameters),
        }
        let by = if stays { 1.0 } else { -self.learning_rate };
        let mut loss = 0.0;
        for step in 0..self.count {
            let at = if stays { parameters } else { &self.own };
            let Some(of_step) = compute(step, at, gradient)? else { return Ok(None) };
            loss += of_step / self.count as f32;
            for (value, gradient) in self.own.iter_mut().zip(&*gradient) {
                *value += by * gradient;
            }
        }
        if stays {
            gradient.copy_from_slice(&self.own);
            return Ok(Some(loss));
        }
        for ((gradient, before), after) in gradient.iter_mut().zip(parameters).zip(&self.own) {
            *gradient = (before - after) / self.learning_rate;
        }
        Ok(Some(loss))
    }
}

/// An optimiser whose state never leaves this process, for workers that move parameters of their own.
///
/// ```
/// use slackline::optim::Optimizer;
/// use slackline::internals::job::LocalOptimizer;
///
/// let mut optimizer = LocalOptimizer::new(Optimizer::Sgd { weight_decay: 0.0 }, 0.5, 2)?;
/// let mut parameters = [1.0, 2.0];
/// optimizer.step(&[2.0, -2.0], &mut parameters)?;
/// assert_eq!(parameters, [0.0, 3.0]);
/// # Ok::<(), slackline::Error>(())
/// ```
pub struct LocalOptimizer {
    optimizer: Optimizer,
    learning_rate: f32,
    schedule: Schedule,
    steps: u64,
    /// The parameters before and after, the gradient, and each state before and after, one after the other.
    memory: HostMemory,
    elements: usize,
}

impl LocalOptimizer {
    /// An optimiser of so many elements, whose states are all 0.
    ///
    /// # Errors
    /// The step size or a constant of the optimiser is out of its range, or the system has no memory for the states.
    pub fn new(optimizer: Optimizer, learning_rate: f32, elements: usize) -> Result<LocalOptimizer, Error> {
        check_optimizer(&optimizer)?;
        check_learning_rate(learning_rate)?;
        let memory = HostMemory::anonymous(4 * elements * (3 + 2 * optimizer.states()));
        let memory = memory.map_err(|source| Error::Register(RegisterError::Memory(source)))?;
        let schedule = Schedule::Constant;
        Ok(LocalOptimizer { optimizer, learning_rate, schedule, steps: 0, memory, elements })
    }

    /// The same, with a step size that falls by the number of its steps.
    #[must_use]
    pub fn scheduled(self, schedule: Schedule) -> LocalOptimizer {
        LocalOptimizer { schedule, ..self }
    }

    /// Moves `parameters` by one step along `gradient`.
    ///
    /// # Errors
    /// One of the two has another length than the optimiser was made for.
    pub fn step(&mut self, gradient: &[f32], parameters: &mut [f32]) -> Result<(), Error> {
        for elements in [gradient.len(), parameters.len()] {
            if elements != self.elements {
                return Err(Error::Length { given: elements, expected: self.elements, unit: "values" });
            }
        }
        let learning_rate = self.schedule.rate(self.learning_rate, self.steps);
        self.steps += 1;
        kernel::encode(parameters, self.part(0), Encoding::F32);
        kernel::encode(gradient, self.part(2), Encoding::F32);
        let odd = (self.steps % 2) as usize;
        let state = |state| Pass { from: self.part(3 + 2 * state + odd), to: self.part(4 + 2 * state - odd) };
        let states: SmallVec<[_; 2]> = (0..self.optimizer.states()).map(state).collect();
        let fold = Fold {
            gradients: &[Gradient { elements: self.part(2), weight: 1.0 }],
            encoding: Encoding::F32,
            optimizer: self.optimizer,
            learning_rate,
            step: self.steps,
            parameters: Pass { from: self.part(0), to: self.part(1) },
            states: &states,
            streaming: false,
        };
        fold.run()?;
        kernel::decode(self.part(1), Encoding::F32, parameters);
        Ok(())
    }

    fn part(&self, index: usize) -> VolatileSlice<'_> {
        let bytes = 4 * self.elements;
        self.memory.as_volatile().subslice(index * bytes, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The loss is half the square of the one parameter, so that the gradient is the parameter.
    #[test]
    fn local_steps_of_size_0_add_up_gradients_of_the_parameters_as_they_are() {
        let mut calls = Vec::new();
        let mut compute = |step: u64, parameters: &[f32], gradient: &mut [f32]| {
            calls.push((step, parameters[0]));
            gradient.copy_from_slice(parameters);
            Ok::<_, std::convert::Infallible>(Some(1.0))
        };
        for learning_rate in [0.0, -0.0] {
            let mut gradient = [f32::NAN];
            let Ok(loss) = LocalSteps::new(3, learning_rate).gradient(&[4.0], &mut gradient, &mut compute);
            assert_eq!((gradient, loss), ([12.0], Some(1.0)));
        }
        let mut small = |_: u64, _: &[f32], gradient: &mut [f32]| {
            gradient[0] = 0.5f32.powi(20); // lost beside 1000
            Ok::<_, std::convert::Infallible>(Some(1.0))
        };
        let mut gradient = [0.0];
        let Ok(_) = LocalSteps::new(2, 0.0).gradient(&[1000.0], &mut gradient, &mut small);
        assert_eq!(gradient, [0.5f32.powi(19)]);
        assert_eq!(calls, [(0, 4.0), (1, 4.0), (2, 4.0)].repeat(2));
    }
}
