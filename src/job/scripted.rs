//! Jobs whose servers and workers have GPUs, on scripted drivers: no GPU is needed, and none is tested. The processes
//! are threads, each with a driver of its own.

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::Arc;
    use std::time::Duration;

    use crate::cuda::{GpuMemory, Scripted};
    use crate::job::env::{MeetingPoint, Placement, Source};
    use crate::job::transports::Transports;
    use crate::job::{Job, JobPlan, Served};
    use crate::kernel::Optimizer;
    use crate::node::{ServerOptions, WorkerOptions};
    use crate::scheme::SchemeConfig;
    use crate::table::{ElementType, Table};
    use crate::transport::{Address, ConnectError, Transport, TransportKind};

    const ELEMENTS: usize = 1003;
    const BYTES: usize = 4 * ELEMENTS;
    const CLOCKS: u64 = 4;
    const WORLD: u32 = 3;

    fn job(rank: u32, point: &MeetingPoint, transport: TransportKind) -> Job {
        let plan = JobPlan::servers(1).clocks(CLOCKS).timeout(Duration::from_secs(30)).transport(transport);
        let placement = Placement {
            rank,
            world: WORLD,
            local_rank: None,
            local_world: None,
            meeting_point: Some(point.clone()),
            servers: None,
            source: Source::Flags,
        };
        Job::join(plan, &placement, None).unwrap()
    }

    /// Over RDMA all of them have one scripted device, since it connects no others.
    #[cfg(feature = "verbs")]
    fn use_rdma(job: &Job, transport: TransportKind) {
        if transport == TransportKind::Verbs {
            job.member.transports.use_rdma(crate::transport::verbs::unordered::common());
        }
    }

    #[cfg(not(feature = "verbs"))]
    fn use_rdma(_: &Job, _: TransportKind) {}

    fn serve(point: &MeetingPoint, transport: TransportKind) -> Served {
        let driver = Arc::new(Scripted::new());
        let (gpu, ..) = driver.open_gpu();
        let _working = driver.work_in_a_thread();
        let job = job(0, point, transport).with_gpu(&gpu);
        use_rdma(&job, transport);
        let table = Table::flat(ELEMENTS as u64, ElementType::F32).unwrap();
        let optimizer = Optimizer::Sgd { weight_decay: 0.0 };
        let options = ServerOptions { optimizer, ..ServerOptions::new(SchemeConfig::Bsp, 2, 0.5) };
        let served = job.serve(table, &[1.0; ELEMENTS], options).unwrap();
        // What is reached by RDMA is in host memory.
        let folded = if transport == TransportKind::Verbs { 0 } else { CLOCKS as usize };
        assert!(driver.launches() >= folded && (folded > 0) == (driver.launches() > 0), "its GPU has folded");
        assert_eq!(gpu.host_bytes_copied() > 0, transport == TransportKind::Tcp);
        served
    }

    /// Descends on p^2 / 2, whose gradient is p: the scripted GPU "computes" it by copying the parameters.
    fn work(rank: u32, point: &MeetingPoint, transport: TransportKind) {
        let driver = Arc::new(Scripted::new());
        let (gpu, raw, stream) = driver.open_gpu();
        let [parameters, gradient] = [(); 2].map(|()| GpuMemory::allocate(&gpu, BYTES).unwrap());
        let _working = driver.work_in_a_thread();
        let job = job(rank, point, transport).with_gpu(&gpu);
        use_rdma(&job, transport);
        let mut worker = job.worker(WorkerOptions::new(SchemeConfig::Bsp)).unwrap();
        while let Some(mut step) = worker.next_step().unwrap() {
            step.copy_parameters_to_gpu(0, &parameters.whole(), &stream).unwrap();
            driver.launch_copy(raw, gradient.pointer(), parameters.pointer(), BYTES);
            step.publish_from_gpu(&gradient.whole(), &stream, None).unwrap();
        }
        assert_eq!(gpu.host_bytes_copied() > 0, transport != TransportKind::Shm);
    }

    fn a_job_trains_on_its_gpus(transport: TransportKind) {
        let point = &MeetingPoint::free(Ipv4Addr::LOCALHOST.into()).unwrap();
        let served = std::thread::scope(|scope| {
            let serving = scope.spawn(move || serve(point, transport));
            for rank in 1..WORLD {
                scope.spawn(move || work(rank, point, transport));
            }
            serving.join().unwrap()
        });
        // The step size is a half: each step halves the parameters.
        assert_eq!(served.parameters, [0.5f32.powi(CLOCKS as i32); ELEMENTS]);
        assert_eq!(served.status.version.get(), CLOCKS);
    }

    #[test]
    fn a_job_trains_on_its_gpus_over_shared_memory() {
        a_job_trains_on_its_gpus(TransportKind::Shm);
    }

    #[test]
    fn a_job_trains_on_its_gpus_over_tcp() {
        a_job_trains_on_its_gpus(TransportKind::Tcp);
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

    #[cfg(feature = "verbs")]
    #[test]
    fn workers_with_gpus_train_by_rdma_with_a_server_in_host_memory() {
        a_job_trains_on_its_gpus(TransportKind::Verbs);
    }

    #[test]
    fn a_server_with_a_gpu_takes_no_rdma_and_says_why() {
        let driver = Arc::new(Scripted::new());
        let (gpu, ..) = driver.open_gpu();
        let transports = Transports::new(None, None, 0);
        transports.use_gpu(&gpu, true);
        // It has a device.
        #[cfg(feature = "verbs")]
        transports.use_rdma(crate::transport::verbs::unordered::common());
        let error = transports.listen_at(&[TransportKind::Verbs]).unwrap_err().to_string();
        assert!(error.contains("on a GPU, where no RDMA device"), "{error}");
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
        transports.use_rdma(crate::transport::verbs::unordered::common());
        let Ok(Address::Several(addresses)) = transports.listen_at(&TransportKind::ALL) else {
            panic!("three addresses")
        };
        assert_eq!(addresses.len(), 3);
        // What it serves is reached over all of them, so it is in host memory.
        assert!(transports.open().gpu().is_none());
        let direct = Transports::new(None, None, 0);
        direct.use_gpu(&gpu.require_gpudirect(), false);
        direct.use_rdma(crate::transport::verbs::unordered::common());
        let error = direct.listen_at(&[TransportKind::Verbs]).unwrap_err().to_string();
        assert!(error.contains("staged by RDMA") && error.contains("require_gpudirect"), "{error}");
    }
}
