//! Steps of a worker that computes on a GPU.

use super::Sources;
use super::publish::PUBLISHING;
use super::step::IN_PLACE;
use super::{Step, Worker};
use crate::cuda::{GpuError, GpuSlice, GpuStream, HostBytes};
use crate::mem::OutOfBounds;
use crate::node::Error;
use crate::node::runtime::complete;
use crate::param::GradientSource;
use crate::time::Duration;
use crate::transport::{Endpoint, Transport};

/// A scheme or a way of reading needs the bytes of a gradient.
pub(super) const NEEDS_BYTES: GpuError =
    GpuError::OnGpu { operation: "measure a gradient, or add it to the worker's own copy" };

/// Checksums are computed by processors.
const NEEDS_CHECKSUM: GpuError = GpuError::OnGpu { operation: "compute the checksum of a gradient" };

impl<T: Transport> Worker<T> {
    /// The error that GPUs have not completed the copies of the step after so long.
    #[doc(hidden)]
    pub fn not_copied(&self, waited: Duration) -> Error {
        self.copies.late(waited)
    }

    /// The error of a publish that has ended at its deadline, which names GPUs of this process if nothing else holds it
    /// up.
    #[doc(hidden)]
    pub fn name_copies(&self, ended: Error, waited: Duration) -> Error {
        let copies = || self.parts.iter().find_map(|part| part.link.endpoint.awaited_copies());
        match ended {
            Error::Deadline { .. } => copies().map_or(ended, |copies| copies.late(waited).into()),
            ended => ended,
        }
    }
}

impl<T: Transport> Step<'_, T> {
    /// Has the GPU of `into` copy the parameters there, from the byte `offset` of the table on, behind the work that
    /// `stream` has now. Later work of `stream` waits for the copy. It returns at once; the parameters of the next step
    /// replace these only once the copy is done.
    ///
    /// # Errors
    /// The worker reads in place; there are not so many bytes; the memory is on another GPU; the stream captures a
    /// graph; the driver refuses the copy.
    pub fn copy_parameters_to_gpu(
        &mut self,
        offset: u64,
        into: &GpuSlice,
        stream: &GpuStream,
    ) -> Result<(), Error> {
        let worker = &mut *self.worker;
        let region = worker.parameters.as_mut().ok_or(IN_PLACE)?.share();
        let (len, available) = (into.bytes() as u64, worker.table.bytes());
        if offset.checked_add(len).is_none_or(|end| end > available) {
            return Err(OutOfBounds { offset, len, available }.into());
        }
        let copies = worker.copies.tickets();
        Ok(stream.copy_from_host(HostBytes::Region(region), offset as usize, into, copies)?)
    }

    /// Has the GPU copy `from` into the gradient, from the byte `offset` on of the whole gradient in the worker's
    /// encoding, behind the work that `stream` has now, and does not wait for it. The stream does not wait either: the
    /// memory that is copied from must stay as it is until [`publish`](Self::publish) has returned. That waits for the
    /// copy, and abandons the step if it is not done by its timeout ([`GpuError::NotCopied`](crate::cuda::GpuError)).
    ///
    /// # Errors
    /// The bytes do not fit the gradient; the memory is on another GPU; the stream captures a graph; the driver refuses
    /// the copy.
    pub fn copy_gradient_from_gpu(
        &mut self,
        offset: u64,
        from: &GpuSlice,
        stream: &GpuStream,
    ) -> Result<(), Error> {
        let worker = &mut *self.worker;
        let available = worker.gradient_bytes();
        let buffer = worker.gradient_buffer()?;
        let into = usize::try_from(offset).ok().map(|offset| buffer.slice(offset, from.bytes()));
        let into = into.unwrap_or(Err(OutOfBounds { offset, len: from.bytes() as u64, available }))?;
        Ok(stream.copy_to_host(from, &into, worker.copies.tickets())?)
    }

    /// Has the GPU round the f32 gradient of the whole table that is in `from` to the worker's encoding, into the
    /// gradient, as [`encode`](Self::encode) does from host memory. For the rest it is as
    /// [`copy_gradient_from_gpu`](Self::copy_gradient_from_gpu). The first conversion on a GPU loads the library's
    /// kernels, which the driver may have to compile: that can take seconds.
    ///
    /// # Errors
    /// `from` has another length, or is not aligned to 4 bytes; as
    /// [`copy_gradient_from_gpu`](Self::copy_gradient_from_gpu).
    pub fn encode_gradient_from_gpu(&mut self, from: &GpuSlice, stream: &GpuStream) -> Result<(), Error> {
        let worker = &mut *self.worker;
        let (given, expected) = (from.bytes(), worker.table.bytes() as usize);
        if given != expected {
            return Err(Error::Length { given, expected, unit: "bytes" });
        }
        let (bytes, encoding) = (worker.gradient_bytes() as usize, worker.options.encoding);
        let into = worker.gradient_buffer()?.slice(0, bytes)?;
        Ok(stream.encode_to_host(from, &into, encoding, worker.copies.tickets())?)
    }

    /// Checks that the whole gradient has so many bytes.
    #[doc(hidden)]
    pub fn expect_gradient(&self, given: usize) -> Result<(), Error> {
        let expected = self.worker.gradient_bytes() as usize;
        if given == expected { Ok(()) } else { Err(Error::Length { given, expected, unit: "bytes" }) }
    }

    /// True once GPUs have completed all copies of this step. It does not wait.
    ///
    /// # Errors
    /// Work of this process on a GPU failed; its copies are over and were not made.
    #[doc(hidden)]
    pub fn is_copied(&mut self) -> Result<bool, Error> {
        self.worker.copies.are_done()
    }

    /// Publishes the gradient that is in `from`, the whole of it in the worker's encoding, straight out of memory of
    /// the GPU, behind the work that `stream` has now. It waits, at most `timeout`, until the servers have been told;
    /// the memory may change then. After an [`Error::Deadline`], or the [`GpuError::NotCopied`](crate::cuda::GpuError)
    /// that names the work that this process's GPU waits for, the gradient is still on its way, and the next
    /// [`Worker::step`] finishes it. An [`Error::Deadline`] of the wait for a gradient that was published [in the
    /// background](Self::publish_in_background) abandons this step, as for [`publish`](Self::publish). The stream
    /// does not wait. Only over a transport with the GPU ([`Shm::with_gpu`](crate::Shm::with_gpu), `Tcp::with_gpu`,
    /// `Verbs::with_gpu`).
    ///
    /// # Errors
    /// `from` has another length; the scheme needs the gradient's magnitude, or the worker adds its own gradients to
    /// its copy; its gradients are to carry checksums; the memory is on another GPU than the stream or the transport;
    /// the stream captures a graph; the transport or the driver refuses the copy; as [`publish`](Self::publish).
    pub fn publish_from_gpu(
        self,
        from: &GpuSlice,
        stream: &GpuStream,
        loss: Option<f32>,
        timeout: Duration,
    ) -> Result<(), Error> {
        self.expect_gradient(from.bytes())?;
        let worker = &mut *self.worker;
        if worker.options.checksums {
            return Err(NEEDS_CHECKSUM.into());
        }
        let deadline = worker.runtime.now() + timeout;
        complete(worker.finish_outgoing(timeout))?;
        stream.hold_copies_of(from, worker.transport.gpu())?;
        let width = worker.options.encoding.bytes();
        let slice = |part: &super::Part<T>| from.slice(part.begin / 4 * width, part.bytes / 4 * width);
        let sources: Result<Sources, OutOfBounds> =
            worker.parts.iter().map(|part| slice(part).map(GradientSource::Gpu)).collect();
        worker.start_sources(sources?, loss)?;
        worker.count_published();
        let published = complete(worker.finish_publish(PUBLISHING, deadline - worker.runtime.now()));
        published.map_err(|ended| worker.name_copies(ended, timeout))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    use super::*;
    use crate::cuda::{GpuError, GpuMemory, Scripted, UNKNOWN};
    use crate::kernel::Optimizer;
    use crate::node::of_gpu::{OfGpu, over_each_transport};
    use crate::node::worker::WorkerPhase;
    use crate::node::{Server, ServerOptions, Worker, WorkerOptions};
    use crate::scheme::{SchemeConfig, WorkerEvent};
    use crate::table::{ElementType, Table};
    use crate::time::Duration;
    use crate::transport::shm::Shm;
    use crate::transport::tcp::Tcp;
    use crate::transport::{Address, Transport};

    const PATIENCE: Duration = Duration::from_secs(60);
    const ELEMENTS: usize = 300;
    const BYTES: usize = 4 * ELEMENTS;
    const STEPS: u64 = 5;

    /// Trains under BSP on the loss p^2 / 2, whose gradient is p, with parameters that are 1 at first and a step size
    /// of a half: in step t they are 2^-t. The scripted GPU "computes" a gradient by copying the parameters.
    fn the_gpu_sees_each_steps_parameters_and_the_server_its_gradients<T: Transport + Send>(
        transport: fn() -> T,
        address: Address,
    ) {
        let table = Table::flat(ELEMENTS as u64, ElementType::F32).unwrap();
        let optimizer = Optimizer::Sgd { weight_decay: 0.0 };
        let options = ServerOptions { optimizer, ..ServerOptions::new(SchemeConfig::Bsp, 1, 0.5) };
        let mut server = Server::new(transport(), &address, table, &[1.0; ELEMENTS], options).unwrap();
        let address = server.address();
        std::thread::scope(|scope| {
            let serving =
                scope.spawn(move || server.drive(|server| server.status().version.get() >= STEPS, PATIENCE));
            let driver = Arc::new(Scripted::new());
            let (gpu, raw, stream) = driver.open_gpu();
            let allocate = || GpuMemory::allocate(&gpu, BYTES).unwrap();
            let (parameters, gradient) = (allocate(), allocate());
            let options = WorkerOptions::new(SchemeConfig::Bsp);
            let mut worker = Worker::connect(transport(), &[address], options, PATIENCE).unwrap();
            let _working = driver.work_in_a_thread();
            for number in 0..STEPS {
                let mut step = worker.step(PATIENCE).unwrap();
                step.copy_parameters_to_gpu(0, &parameters.whole(), &stream).unwrap();
                driver.launch_copy(raw, gradient.pointer(), parameters.pointer(), BYTES);
                step.copy_gradient_from_gpu(0, &gradient.whole(), &stream).unwrap();
                step.publish(None, PATIENCE).unwrap();
                let expected = 0.5_f32.powi(number as i32).to_le_bytes().repeat(ELEMENTS);
                assert_eq!(driver.bytes(gradient.pointer(), BYTES), expected, "step {number}");
            }
            assert!(serving.join().unwrap().unwrap(), "the server has folded all gradients");
        });
    }

    #[test]
    fn over_shared_memory_the_gpu_sees_parameters_and_the_server_gradients() {
        the_gpu_sees_each_steps_parameters_and_the_server_its_gradients(Shm::new, Address::random());
    }

    #[test]
    fn over_tcp_the_gpu_sees_parameters_and_the_server_gradients() {
        let address: Address = "127.0.0.1:0".parse().unwrap();
        the_gpu_sees_each_steps_parameters_and_the_server_its_gradients(Tcp::new, address);
    }

    #[test]
    fn a_step_whose_gradient_is_not_copied_in_time_is_abandoned_and_told() {
        let table = Table::flat(ELEMENTS as u64, ElementType::F32).unwrap();
        let options = ServerOptions::new(SchemeConfig::Bsp, 1, 0.5);
        let mut server =
            Server::new(Shm::new(), &Address::random(), table, &[1.0; ELEMENTS], options).unwrap();
        let address = server.address();
        std::thread::scope(|scope| {
            let serving =
                scope.spawn(move || server.drive(|server| server.status().version.get() >= 1, PATIENCE));
            let driver = Arc::new(Scripted::new());
            let (gpu, _, stream) = driver.open_gpu();
            let gradient = GpuMemory::allocate(&gpu, BYTES).unwrap();
            let options = WorkerOptions::new(SchemeConfig::Bsp);
            let mut worker = Worker::connect(Shm::new(), &[address], options, PATIENCE).unwrap();
            let mut step = worker.step(PATIENCE).unwrap();
            assert!(step.is_copied().unwrap(), "nothing was asked for");
            step.copy_gradient_from_gpu(0, &gradient.whole(), &stream).unwrap();
            assert!(!step.is_copied().unwrap(), "the GPU has not begun");
            driver.set_unanswered(Some(UNKNOWN));
            // Long enough for the worker to ask the driver meanwhile, on a busy machine, too.
            let waited = Duration::from_secs(1);
            let late = step.publish(None, waited).unwrap_err();
            assert!(matches!(late, Error::Gpu(GpuError::NotCopied { cause: Some(_), .. })), "{late}");
            assert!(late.to_string().contains("CUDA error 999"), "{late}");
            assert_eq!(worker.not_copied(waited).to_string(), late.to_string());
            driver.set_unanswered(None);
            driver.finish();
            // The same clock begins again.
            let step = worker.step(PATIENCE).unwrap();
            assert_eq!(step.view().clock.get(), 0);
            step.publish(None, PATIENCE).unwrap();
            assert!(serving.join().unwrap().unwrap());
        });
    }

    fn a_publish_that_no_gpu_copies_says_so_and_the_next_step_finishes_it<T: OfGpu>() {
        let table = Table::flat(ELEMENTS as u64, ElementType::F32).unwrap();
        let options = ServerOptions::new(SchemeConfig::Bsp, 1, 0.5);
        let mut server = Server::new(T::without(), &T::address(), table, &[1.0; ELEMENTS], options).unwrap();
        let address = server.address();
        std::thread::scope(|scope| {
            // The server is there until the worker has read the next parameters.
            let serving = scope.spawn(|| server.drive(|server| server.status().version.get() >= 1, PATIENCE));
            let driver = T::driver();
            let (gpu, _, stream) = driver.open_gpu();
            let gradient = GpuMemory::allocate(&gpu, BYTES).unwrap();
            let making = driver.work_in_a_thread();
            let options = WorkerOptions::new(SchemeConfig::Bsp);
            let mut worker = Worker::connect(T::with(&gpu), &[address], options, PATIENCE).unwrap();
            let step = worker.step(PATIENCE).unwrap();
            drop(making);
            driver.set_unanswered(Some(UNKNOWN));
            // Long enough for the worker to ask the driver meanwhile, on a busy machine, too.
            let waited = Duration::from_secs(1);
            let late = step.publish_from_gpu(&gradient.whole(), &stream, None, waited).unwrap_err();
            assert!(matches!(late, Error::Gpu(GpuError::NotCopied { cause: Some(_), .. })), "{late}");
            assert!(late.to_string().contains("CUDA error 999"), "{late}");
            assert!(worker.is_publishing());
            driver.set_unanswered(None);
            let _working = driver.work_in_a_thread();
            worker.step(PATIENCE).unwrap().suspend();
            assert!(serving.join().unwrap().unwrap());
        });
    }

    over_each_transport! {
        a_publish_that_no_gpu_copies_says_so_and_the_next_step_finishes_it,
    }

    #[test]
    fn what_a_gpu_has_copied_is_the_callers_again() {
        let table = Table::flat(ELEMENTS as u64, ElementType::F32).unwrap();
        let options = ServerOptions::new(SchemeConfig::Asp, 1, 0.5);
        let mut server =
            Server::new(Shm::new(), &Address::random(), table, &[1.0; ELEMENTS], options).unwrap();
        let address = server.address();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| server.drive(|_| is_over.load(Relaxed), PATIENCE));
            let driver = Arc::new(Scripted::new());
            let (gpu, _, stream) = driver.open_gpu();
            let [parameters, gradient] = [(); 2].map(|()| GpuMemory::allocate(&gpu, BYTES).unwrap());
            let options = WorkerOptions::new(SchemeConfig::Asp);
            let mut worker = Worker::connect(Shm::new(), &[address], options, PATIENCE).unwrap();
            let mut step = worker.step(PATIENCE).unwrap();
            step.copy_parameters_to_gpu(0, &parameters.whole(), &stream).unwrap();
            step.copy_gradient_from_gpu(0, &gradient.whole(), &stream).unwrap();
            let in_flight = |error: Error| matches!(error, Error::InFlight { .. });
            assert!(
                step.parameters().is_err_and(in_flight)
                    && step.encode(&[0.0; ELEMENTS]).is_err_and(in_flight)
            );
            driver.finish();
            assert_eq!(step.parameters().unwrap(), [1.0; ELEMENTS]);
            step.copy_gradient_from_gpu(0, &gradient.whole(), &stream).unwrap();
            driver.finish();
            step.encode(&[0.0; ELEMENTS]).unwrap();
            step.publish(None, PATIENCE).unwrap();
            is_over.store(true, Relaxed);
        });
    }

    #[test]
    fn parameters_that_a_gpu_copies_are_not_replaced() {
        let table = Table::flat(ELEMENTS as u64, ElementType::F32).unwrap();
        let options = ServerOptions::new(SchemeConfig::Asp, 1, 0.5);
        let mut server =
            Server::new(Shm::new(), &Address::random(), table, &[1.0; ELEMENTS], options).unwrap();
        let address = server.address();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| server.drive(|_| is_over.load(Relaxed), PATIENCE));
            let driver = Arc::new(Scripted::new());
            let (gpu, _, stream) = driver.open_gpu();
            let parameters = GpuMemory::allocate(&gpu, BYTES).unwrap();
            let options = WorkerOptions::new(SchemeConfig::Asp);
            let mut worker = Worker::connect(Shm::new(), &[address], options, PATIENCE).unwrap();
            let mut step = worker.step(PATIENCE).unwrap();
            step.copy_parameters_to_gpu(0, &parameters.whole(), &stream).unwrap();
            step.suspend();
            // A server asks for newer parameters, as DBW's does.
            worker.scheme.handle_event(worker.runtime.now(), WorkerEvent::Interrupted);
            worker.phase = WorkerPhase::Deciding;
            for _ in 0..100 {
                worker.poll(worker.runtime.now()).unwrap();
                assert_eq!(worker.phase, WorkerPhase::Deciding, "the GPU still copies");
            }
            driver.finish();
            worker.step(PATIENCE).unwrap().publish(None, PATIENCE).unwrap();
            is_over.store(true, Relaxed);
        });
    }
}
