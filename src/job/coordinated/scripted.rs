//! A coordinated job whose processes have GPUs, on scripted drivers: no GPU is needed, and none is tested. The
//! processes are threads, each with a driver of its own.

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use super::super::fixture::{self, TIMEOUT, WORKERS, Watches};
    use super::super::{
        ComputeDevice, CoordinatedMember, Coordination, Coordinator, Gather, GpuBuffers, MemberOptions, Parts,
    };
    use crate::cuda::{GpuMemory, Scripted};
    use crate::job::MemberRole;
    use crate::job::member::End;

    const ELEMENTS: usize = 1003;
    const BYTES: usize = 4 * ELEMENTS;
    const CLOCKS: u64 = 4;

    /// A job of which each process has a GPU.
    fn coordination() -> Coordination {
        let mut coordination = fixture::coordination(ELEMENTS, CLOCKS);
        let device = ComputeDevice::Gpu(None);
        coordination.server.as_mut().unwrap().device = device;
        coordination.worker.device = device;
        coordination
    }

    fn join(role: MemberRole, address: &str) -> CoordinatedMember {
        let checkpoint = Arc::new(AtomicBool::new(false));
        let (role_rank, rank, secret) = (None, None, None);
        let options = MemberOptions { role, role_rank, rank, secret, checkpoint, timeout: TIMEOUT };
        CoordinatedMember::join(address, options).unwrap()
    }

    fn serve(address: &str) -> Option<End> {
        let driver = Arc::new(Scripted::new());
        let (gpu, ..) = driver.open_gpu();
        let _working = driver.work_in_a_thread();
        let member = join(MemberRole::Server, address);
        let order = member.server_order().unwrap();
        assert_eq!(order.device, ComputeDevice::Gpu(None));
        member.use_gpu(&gpu, true);
        let end = member.serve(order, |_| {}, || false).unwrap().end;
        assert!(driver.launches() >= CLOCKS as usize, "its GPU has folded");
        end
    }

    /// Descends on p^2 / 2, whose gradient is p: the scripted GPU "computes" it by copying the parameters.
    fn work(address: &str) -> End {
        let driver = Arc::new(Scripted::new());
        let (gpu, raw, stream) = driver.open_gpu();
        let memory = [(); 2].map(|()| GpuMemory::allocate(&gpu, BYTES).unwrap());
        let [from, to] = [&memory[0], &memory[1]].map(GpuMemory::pointer);
        let [parameters, gradient] = memory.map(|memory| memory.whole());
        let _working = driver.work_in_a_thread();
        let member = join(MemberRole::Worker, address);
        let order = member.worker_order().unwrap();
        assert_eq!(order.device, ComputeDevice::Gpu(None));
        member.use_gpu(&gpu, false);
        let mut work = member.connect(order).unwrap();
        let mut batches = Vec::new();
        let buffers = GpuBuffers { parameters, gradient, stream };
        let compute = &mut |batch, stop: &mut dyn FnMut() -> Result<bool, crate::node::Error>| {
            batches.push(batch);
            driver.launch_copy(raw, to, from, BYTES);
            Ok((!stop()?).then_some(1.0))
        };
        let end = work.run_on_gpu(&buffers, compute, &mut |_, _| {}).unwrap();
        assert_eq!(batches, (0..CLOCKS).collect::<Vec<_>>());
        end
    }

    #[test]
    fn a_coordinated_job_trains_on_the_gpus_of_its_processes() {
        let driver = Arc::new(Scripted::new());
        let (gpu, ..) = driver.open_gpu();
        let _working = driver.work_in_a_thread();
        let mut job = Coordinator::open(coordination(), Watches::default()).unwrap();
        job.use_gpu(&gpu);
        let address = &job.hub.address().to_string();
        std::thread::scope(|scope| {
            let serving = scope.spawn(move || serve(address));
            let working: Vec<_> = (0..WORKERS).map(|_| scope.spawn(move || work(address))).collect();
            job.start().unwrap();
            job.follow().unwrap();
            let mut gather = Gather::new(job.addresses(), job.transports(), Parts::Shards, ELEMENTS);
            let reading = gather.collect(TIMEOUT, true).unwrap();
            // The step size is a half: each step halves the parameters.
            assert_eq!(reading.parameters, [0.5f32.powi(CLOCKS as i32); ELEMENTS]);
            assert_eq!(reading.versions, CLOCKS);
            assert_eq!(job.parts().0.warned, [""; 0]);
            job.leave();
            assert_eq!(serving.join().unwrap(), Some(End::Dismissed));
            for worker in working {
                assert_eq!(worker.join().unwrap(), End::Dismissed);
            }
        });
    }
}
