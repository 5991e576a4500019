//! A coordinated job whose processes have GPUs, on scripted drivers: no GPU is needed, and none is tested. The
//! processes are threads, each with a driver of its own.

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::process::Command;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use super::super::{
        Caller, ComputeDevice, CoordinatedMember, Coordination, Coordinator, CoordinatorError, Gather,
        GpuBuffers, MemberOptions, Members, Parts, ServerOrder, Wish, WorkerOrder,
    };
    use crate::cuda::{GpuMemory, Scripted};
    use crate::job::member::End;
    use crate::job::{ErrorReport, JobPlan, MemberRole, Role};
    use crate::kernel::{Optimizer, Schedule};
    use crate::node::NonFinite;
    use crate::scheme::{Damping, SchemeConfig};
    use crate::table::{ElementType, Encoding, Table};
    use crate::transport::TransportKind;

    const ELEMENTS: usize = 1003;
    const BYTES: usize = 4 * ELEMENTS;
    const CLOCKS: u64 = 4;
    const WORKERS: usize = 2;
    const TIMEOUT: Duration = Duration::from_secs(30);

    /// Its processes are started by others: the threads of a test.
    struct Watches;

    impl Caller for Watches {
        type Error = CoordinatorError;

        fn explain(&mut self, error: CoordinatorError) -> CoordinatorError {
            error
        }

        fn command(&mut self, _: Role, _: SocketAddr) -> Result<Option<Command>, ErrorReport> {
            Ok(None)
        }

        fn tell(&mut self, _: &str) {}

        fn warn(&mut self, line: &str) {
            panic!("{line}");
        }

        fn turn(&mut self, _: &Members<'_>) -> Result<Wish, CoordinatorError> {
            Ok(Wish::GoOn)
        }
    }

    fn coordination(scheme: SchemeConfig) -> Coordination {
        let plan = JobPlan::servers(1).clocks(CLOCKS).timeout(TIMEOUT);
        let (listen, device) = (vec![TransportKind::Shm], ComputeDevice::Gpu(None));
        let table = Table::flat(ELEMENTS as u64, ElementType::F32).unwrap();
        let lease = Duration::from_secs(3);
        let server = ServerOrder {
            plan: plan.clone(),
            listen,
            device,
            table,
            shard: 0,
            scheme,
            damping: Damping::None,
            additive: false,
            workers: WORKERS,
            peers: 8,
            optimizer: Optimizer::Sgd { weight_decay: 0.0 },
            learning_rate: 0.5,
            schedule: Schedule::Constant,
            threads: 1,
            sleeps: false,
            checksums: false,
            checkpoint: None,
            moments: false,
            non_finite: NonFinite::Allow,
            lease,
            gradients: None,
        };
        let worker = WorkerOrder {
            plan,
            workers: WORKERS,
            worker: 0,
            device,
            scheme,
            encoding: Encoding::F32,
            sleeps: false,
            checksums: false,
            learning_rate: 0.5,
            lease,
            own_step: None,
            group: None,
            program: String::new(),
        };
        Coordination {
            listen: (Ipv4Addr::LOCALHOST, 0).into(),
            secret: None,
            server: Some(server),
            worker,
            programs: vec![String::new(); WORKERS],
            initial: vec![1.0; ELEMENTS].into(),
            restarts: 0,
            strict_checkpoints: false,
            awaits_others: false,
        }
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
        let mut job = Coordinator::open(coordination(SchemeConfig::Bsp), Watches).unwrap();
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
            job.leave();
            assert_eq!(serving.join().unwrap(), Some(End::Dismissed));
            for worker in working {
                assert_eq!(worker.join().unwrap(), End::Dismissed);
            }
        });
    }
}
