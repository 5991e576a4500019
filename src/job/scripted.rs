//! Jobs whose servers and workers have GPUs, on scripted drivers: no GPU is needed, and none is tested. The processes
//! are threads, each with a driver of its own.

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::Arc;
    use std::time::Duration;

    use crate::cuda::{GpuError, GpuMemory, Scripted};
    use crate::job::env::{Placement, RendezvousEndpoint, Source};
    use crate::job::transports::Transports;
    use crate::job::{Job, JobPlan, JobWorker, Served};
    use crate::kernel::Optimizer;
    use crate::node::{Error, GroupOptions, ServerOptions, WorkerOptions};
    use crate::scheme::SchemeConfig;
    use crate::table::{ElementType, Table};
    #[cfg(feature = "verbs")]
    use crate::transport::verbs::unordered;
    use crate::transport::{Address, ConnectError, Transport, TransportKind};

    const ELEMENTS: usize = 1003;
    const BYTES: usize = 4 * ELEMENTS;
    const CLOCKS: u64 = 4;
    const WORLD: u32 = 3;

    fn job(rank: u32, point: &RendezvousEndpoint, transport: TransportKind) -> Job {
        join(rank, point, plan().transport(transport))
    }

    fn plan() -> JobPlan {
        JobPlan::servers(1).clocks(CLOCKS).timeout(Duration::from_secs(30))
    }

    fn join(rank: u32, point: &RendezvousEndpoint, plan: JobPlan) -> Job {
        let placement = Placement {
            rank,
            world: WORLD,
            local_rank: None,
            local_world: None,
            rendezvous: Some(point.clone()),
            servers: None,
            source: Source::Flags,
        };
        Job::join(plan, &placement, None).unwrap()
    }

    /// The way of a job's payloads.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Way {
        Shm,
        Tcp,
        #[cfg(feature = "verbs")]
        StagedRdma,
        /// The device reaches memory of the GPUs itself.
        #[cfg(feature = "verbs")]
        Rdma,
    }

    impl Way {
        fn transport(self) -> TransportKind {
            match self {
                Way::Shm => TransportKind::Shm,
                Way::Tcp => TransportKind::Tcp,
                #[cfg(feature = "verbs")]
                Way::StagedRdma | Way::Rdma => TransportKind::Verbs,
            }
        }

        /// Over RDMA all processes have one scripted device, since it connects no others.
        fn prepare(self, job: &Job) {
            match self {
                Way::Shm | Way::Tcp => _ = job,
                #[cfg(feature = "verbs")]
                Way::StagedRdma => job.member.transports.use_rdma(unordered::common()),
                #[cfg(feature = "verbs")]
                Way::Rdma => job.member.transports.use_rdma(unordered::lingering().verbs(None)),
            }
        }

        fn driver(self) -> Arc<Scripted> {
            #[cfg(feature = "verbs")]
            if self == Way::Rdma {
                let driver = Scripted::new().with_dma_bufs();
                driver.set_flush(Some(unordered::lingering().flush()));
                return Arc::new(driver);
            }
            Arc::new(Scripted::new())
        }
    }

    fn serve(point: &RendezvousEndpoint, way: Way) -> Served {
        let driver = way.driver();
        let (gpu, ..) = driver.open_gpu();
        let _working = driver.work_in_a_thread();
        let job = job(0, point, way.transport()).with_gpu(&gpu);
        way.prepare(&job);
        let table = Table::flat(ELEMENTS as u64, ElementType::F32).unwrap();
        let optimizer = Optimizer::Sgd { weight_decay: 0.0 };
        let options = ServerOptions { optimizer, ..ServerOptions::new(SchemeConfig::Bsp, 2, 0.5) };
        let served = job.serve(table, &[1.0; ELEMENTS], options).unwrap();
        #[cfg(feature = "verbs")]
        let is_on_host = way == Way::StagedRdma;
        #[cfg(not(feature = "verbs"))]
        let is_on_host = false;
        let folded = if is_on_host { 0 } else { CLOCKS as usize };
        assert!(driver.launches() >= folded && (folded > 0) == (driver.launches() > 0), "its GPU has folded");
        assert_eq!(gpu.host_bytes_copied() > 0, way == Way::Tcp);
        served
    }

    /// Descends on p^2 / 2, whose gradient is p: the scripted GPU "computes" it by copying the parameters. Returns
    /// whether all of that went without host memory.
    fn descend(job: Job, driver: &Arc<Scripted>) -> bool {
        let (gpu, raw, stream) = driver.open_gpu();
        let [parameters, gradient] = [(); 2].map(|()| GpuMemory::allocate(&gpu, BYTES).unwrap());
        let _working = driver.work_in_a_thread();
        let job = job.with_gpu(&gpu);
        let mut worker = job.worker(WorkerOptions::new(SchemeConfig::Bsp)).unwrap();
        while let Some(mut step) = worker.next_step().unwrap() {
            step.copy_parameters_to_gpu(0, &parameters.whole(), &stream).unwrap();
            driver.launch_copy(raw, gradient.pointer(), parameters.pointer(), BYTES);
            step.publish_from_gpu(&gradient.whole(), &stream, None).unwrap();
        }
        gpu.host_bytes_copied() == 0
    }

    fn work(rank: u32, point: &RendezvousEndpoint, way: Way) {
        let job = job(rank, point, way.transport());
        way.prepare(&job);
        #[cfg(feature = "verbs")]
        let is_direct = matches!(way, Way::Shm | Way::Rdma);
        #[cfg(not(feature = "verbs"))]
        let is_direct = way == Way::Shm;
        assert_eq!(descend(job, &way.driver()), is_direct);
    }

    fn a_job_trains_on_its_gpus(way: Way) {
        let point = &RendezvousEndpoint::free(Ipv4Addr::LOCALHOST.into()).unwrap();
        let served = std::thread::scope(|scope| {
            let serving = scope.spawn(move || serve(point, way));
            for rank in 1..WORLD {
                scope.spawn(move || work(rank, point, way));
            }
            serving.join().unwrap()
        });
        // The step size is a half: each step halves the parameters.
        assert_eq!(served.parameters, [0.5f32.powi(CLOCKS as i32); ELEMENTS]);
        assert_eq!(served.status.version.get(), CLOCKS);
    }

    #[test]
    fn a_job_trains_on_its_gpus_over_shared_memory() {
        a_job_trains_on_its_gpus(Way::Shm);
    }

    #[test]
    fn a_job_trains_on_its_gpus_over_tcp() {
        a_job_trains_on_its_gpus(Way::Tcp);
    }

    /// Each worker has its rank everywhere at first, and the mean of all at the end.
    fn a_job_without_servers_averages_on_its_gpus(way: Way) {
        let point = &RendezvousEndpoint::free(Ipv4Addr::LOCALHOST.into()).unwrap();
        let timeout = Duration::from_secs(30);
        let average = |rank: u32| {
            let driver = way.driver();
            let (gpu, _, stream) = driver.open_gpu();
            let weights = GpuMemory::allocate(&gpu, BYTES).unwrap();
            driver.set_bytes(weights.pointer(), &(rank as f32).to_le_bytes().repeat(ELEMENTS));
            let _working = driver.work_in_a_thread();
            let plan = JobPlan::servers(0).timeout(timeout).transport(way.transport());
            let job = join(rank, point, plan).with_gpu(&gpu);
            let mut member = job.group(ELEMENTS, GroupOptions::default()).unwrap();
            let lent = member.parameters().map(drop);
            assert!(matches!(lent, Err(Error::Gpu(GpuError::OnGpu { .. }))), "{lent:?}");
            member.copy_parameters_from_gpu(0, &weights.whole(), &stream).unwrap();
            assert_eq!(member.average(0, &[0, 1, 2], timeout).unwrap().members, 3);
            member.copy_parameters_to_gpu(0, &weights.whole(), &stream).unwrap();
            driver.finish();
            assert_eq!(driver.bytes(weights.pointer(), BYTES), 1.0_f32.to_le_bytes().repeat(ELEMENTS));
            assert_eq!(gpu.host_bytes_copied() > 0, way == Way::Tcp);
            member.leave(timeout).unwrap();
            while !job.end(timeout).unwrap() {}
        };
        std::thread::scope(|scope| {
            for rank in 0..WORLD {
                scope.spawn(move || average(rank));
            }
        });
    }

    #[test]
    fn a_job_without_servers_averages_on_its_gpus_over_shared_memory() {
        a_job_without_servers_averages_on_its_gpus(Way::Shm);
    }

    #[test]
    fn a_job_without_servers_averages_on_its_gpus_over_tcp() {
        a_job_without_servers_averages_on_its_gpus(Way::Tcp);
    }

    /// Descends as [`work`] does, on processors.
    fn compute(mut worker: JobWorker<'_>) {
        while let Some(mut step) = worker.next_step().unwrap() {
            let (parameters, gradient) = step.borrow().unwrap();
            gradient.copy_from_slice(parameters);
            step.publish(None).unwrap();
        }
    }

    #[test]
    fn workers_that_do_not_see_the_servers_gpu_reach_it_over_tcp() {
        let point = &RendezvousEndpoint::free(Ipv4Addr::LOCALHOST.into()).unwrap();
        let served = std::thread::scope(|scope| {
            let serving = scope.spawn(move || {
                let driver = Arc::new(Scripted::new().of_host(1));
                let (gpu, ..) = driver.open_gpu();
                let _working = driver.work_in_a_thread();
                let job = join(0, point, plan()).with_gpu(&gpu);
                let table = Table::flat(ELEMENTS as u64, ElementType::F32).unwrap();
                let options = ServerOptions::new(SchemeConfig::Bsp, 2, 0.5);
                let served = job.serve(table, &[1.0; ELEMENTS], options).unwrap();
                assert!(driver.launches() >= CLOCKS as usize, "its GPU has folded");
                assert!(gpu.host_bytes_copied() > 0, "payloads were staged");
                served
            });
            scope.spawn(move || {
                let job = join(1, point, plan());
                compute(job.worker(WorkerOptions::new(SchemeConfig::Bsp)).unwrap());
            });
            scope.spawn(move || {
                let (gpu, ..) = Arc::new(Scripted::new().of_host(2)).open_gpu();
                let job = join(2, point, plan()).with_gpu(&gpu);
                compute(job.worker(WorkerOptions::new(SchemeConfig::Bsp)).unwrap());
            });
            serving.join().unwrap()
        });
        assert_eq!(served.parameters, [0.5f32.powi(CLOCKS as i32); ELEMENTS]);
    }

    #[test]
    fn a_process_whose_gpu_requires_gpudirect_passes_tcp_over() {
        let (gpu, ..) = Arc::new(Scripted::new()).open_gpu();
        let transports = Transports::new(None, None, 0);
        transports.use_gpu(&gpu.require_gpudirect(), true);
        let address = transports.listen_at(&TransportKind::ALL).unwrap();
        assert!(matches!(address, Address::Abstract(_)), "{address}");
        // Where the plan has nothing else, it is the transport's error.
        let address = transports.listen_at(&[TransportKind::Tcp]).unwrap();
        let error = transports.open().listen(&address).map(drop).unwrap_err();
        assert!(matches!(error, ConnectError::Staged { operation: "listen", .. }), "{error}");
    }

    #[test]
    fn workers_with_gpus_train_through_the_proxy_of_their_host() {
        let point = &RendezvousEndpoint::free(Ipv4Addr::LOCALHOST.into()).unwrap();
        let served = std::thread::scope(|scope| {
            let serving = scope.spawn(move || {
                let job = join(0, point, plan().per_host(true));
                let table = Table::flat(ELEMENTS as u64, ElementType::F32).unwrap();
                job.serve(table, &[1.0; ELEMENTS], ServerOptions::new(SchemeConfig::Bsp, 2, 0.5)).unwrap()
            });
            for rank in 1..WORLD {
                let job = move || join(rank, point, plan().per_host(true));
                scope.spawn(move || descend(job(), &Way::Shm.driver()));
            }
            serving.join().unwrap()
        });
        assert_eq!(served.parameters, [0.5f32.powi(CLOCKS as i32); ELEMENTS]);
        assert_eq!(served.status.joined, 1, "the proxy");
    }

    #[cfg(feature = "verbs")]
    #[test]
    fn workers_with_gpus_train_by_rdma_with_a_server_in_host_memory() {
        a_job_trains_on_its_gpus(Way::StagedRdma);
    }

    #[cfg(feature = "verbs")]
    #[test]
    fn a_job_trains_on_gpus_that_rdma_devices_reach_themselves() {
        a_job_trains_on_its_gpus(Way::Rdma);
    }

    #[cfg(feature = "verbs")]
    #[test]
    fn a_server_whose_gpu_the_devices_reach_has_rdma_beside_the_others() {
        let driver = Way::Rdma.driver();
        let (gpu, ..) = driver.open_gpu();
        let transports = Transports::new(None, None, 0);
        transports.use_gpu(&gpu.require_gpudirect(), true);
        transports.use_rdma(unordered::lingering().verbs(None));
        let Ok(Address::Several(addresses)) = transports.listen_at(&TransportKind::ALL) else {
            panic!("two addresses")
        };
        // TCP would stage.
        assert!(matches!(addresses[..], [Address::Abstract(_), Address::Verbs(_)]), "{addresses:?}");
        assert!(transports.open().gpu().is_some());
    }

    #[test]
    fn a_server_with_a_gpu_takes_no_rdma_and_says_why() {
        let driver = Arc::new(Scripted::new());
        let (gpu, ..) = driver.open_gpu();
        let transports = Transports::new(None, None, 0);
        transports.use_gpu(&gpu, true);
        // It has a device.
        #[cfg(feature = "verbs")]
        transports.use_rdma(unordered::common());
        let error = transports.listen_at(&[TransportKind::Verbs]).unwrap_err().to_string();
        assert!(error.contains("which its RDMA device does not reach"), "{error}");
        let Ok(Address::Several(addresses)) = transports.listen_at(&TransportKind::ALL) else {
            panic!("two addresses")
        };
        assert_eq!(addresses.len(), 2);
        assert!(transports.open().gpu().is_some());
    }

    #[cfg(feature = "verbs")]
    #[test]
    fn a_process_that_serves_no_payloads_of_its_gpu_has_rdma_beside_the_others() {
        let (gpu, ..) = Arc::new(Scripted::new()).open_gpu();
        let transports = Transports::new(None, None, 0);
        transports.use_gpu(&gpu, false);
        transports.use_rdma(unordered::common());
        let Ok(Address::Several(addresses)) = transports.listen_at(&TransportKind::ALL) else {
            panic!("three addresses")
        };
        assert_eq!(addresses.len(), 3);
        // Peers reach its payloads over all of these transports, so they are in host memory.
        assert!(transports.open().gpu().is_none());
        let direct = Transports::new(None, None, 0);
        direct.use_gpu(&gpu.require_gpudirect(), false);
        direct.use_rdma(unordered::common());
        let error = direct.listen_at(&[TransportKind::Verbs]).unwrap_err().to_string();
        assert!(error.contains("staged by RDMA") && error.contains("require_gpudirect"), "{error}");
    }
}
