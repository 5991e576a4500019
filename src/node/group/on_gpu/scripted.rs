//! Members whose parameters are on a GPU, over the scripted driver: no GPU is needed, and none is tested. Each has a
//! driver of its own, as processes have.

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::super::heartbeat::GroupHeartbeat;
    use super::super::super::{Absence, Averaged, GroupError, GroupListener, GroupMember, GroupOptions};
    use super::super::WINDOW;
    use crate::cuda::{
        GpuError, GpuMemory, GpuStream, ILLEGAL_ADDRESS, MAX_GRADIENTS, NOT_PERMITTED, OUT_OF_MEMORY,
        Scripted, UNKNOWN, Working,
    };
    use crate::node::of_gpu::{OfGpu, over_each_transport, over_gpudirect, over_rdma};
    use crate::node::{Error, now};
    use crate::time::Duration;
    use crate::transport::shm::Shm;
    use crate::transport::{Address, Transport};

    const PATIENCE: Duration = Duration::from_secs(30);
    const ROUNDS: u64 = 3;
    /// Odd, and of several windows for each member.
    const ELEMENTS: usize = 1003;

    /// A member's process: its driver, and memory of the caller's there.
    struct Side {
        driver: Arc<Scripted>,
        raw: usize,
        stream: GpuStream,
        weights: GpuMemory,
    }

    impl Side {
        fn new<T: OfGpu>(elements: usize) -> (Side, T) {
            let driver = T::driver();
            let (gpu, raw, stream) = driver.open_gpu();
            let weights = GpuMemory::allocate(&gpu, 4 * elements).unwrap();
            let transport = T::with(&gpu);
            (Side { driver, raw, stream, weights }, transport)
        }

        /// A kernel of the caller's leaves these values in its memory, and the parameters are copied from there.
        fn set<T: Transport>(&self, member: &mut GroupMember<T>, values: &[f32]) -> Result<(), Error> {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            let made = self.driver.memory(bytes.len());
            self.driver.set_bytes(made, &bytes);
            self.driver.launch_copy(self.raw, self.weights.pointer(), made, bytes.len());
            // In two pieces, as a trainer copies its tensors.
            let cut = bytes.len() / 8 * 4;
            for (begin, end) in [(0, cut), (cut, bytes.len())].into_iter().filter(|(begin, end)| begin < end)
            {
                let piece = self.weights.slice(begin, end - begin).unwrap();
                member.copy_parameters_from_gpu(begin as u64, &piece, &self.stream)?;
            }
            Ok(())
        }

        /// The parameters as a kernel of the caller's sees them behind a copy.
        fn get<T: Transport>(&self, member: &mut GroupMember<T>) -> Result<Vec<f32>, Error> {
            let bytes = self.weights.bytes();
            member.copy_parameters_to_gpu(0, &self.weights.whole(), &self.stream)?;
            let seen = self.driver.memory(bytes);
            self.driver.launch_copy(self.raw, seen, self.weights.pointer(), bytes);
            self.driver.finish();
            let bytes = self.driver.bytes(seen, bytes);
            Ok(bytes.as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value)).collect())
        }
    }

    /// A member, on a GPU or on processors.
    struct Process<T: Transport> {
        member: GroupMember<T>,
        side: Option<Side>,
    }

    impl<T: OfGpu> Process<T> {
        fn work(&self) -> Option<Working> {
            self.side.as_ref().map(|side| side.driver.work_in_a_thread())
        }

        fn set(&mut self, values: &[f32]) -> Result<(), Error> {
            match &self.side {
                Some(side) => side.set(&mut self.member, values),
                None => {
                    self.member.parameters_mut()?.copy_from_slice(values);
                    Ok(())
                }
            }
        }

        fn get(&mut self) -> Result<Vec<f32>, Error> {
            match &self.side {
                Some(side) => side.get(&mut self.member),
                None => Ok(self.member.parameters()?.to_vec()),
            }
        }

        /// Lets its GPU do all permitted work, and takes one turn.
        fn turn(&mut self) -> Result<Option<Averaged>, Error> {
            if let Some(side) = &self.side {
                side.driver.finish();
            }
            self.member.poll(now())
        }

        /// Ends it at once, as a process that is killed, and waits until its driver has all back but so much.
        fn close(self, left: usize) {
            let Process { member, side } = self;
            drop(member);
            let Some(Side { driver, stream, weights, .. }) = side else { return };
            driver.finish();
            drop((stream, weights));
            let deadline = now() + PATIENCE;
            // Threads of the transport release it later.
            while driver.open() > left {
                assert!(now() < deadline, "{} are left over", driver.open());
                std::thread::yield_now();
            }
            assert!(left > 0 || driver.left_current() == 0);
        }
    }

    fn options() -> GroupOptions {
        // No test has a member die of a slow machine.
        GroupOptions { lease: Duration::from_secs(600), ..GroupOptions::default() }
    }

    /// Members that have met: `true` for one on a GPU.
    fn meet<T: OfGpu>(on_gpus: &[bool], elements: usize, options: GroupOptions) -> Vec<Process<T>> {
        let listen = |(rank, on_gpu): (usize, &bool)| {
            let side = on_gpu.then(|| Side::new::<T>(elements));
            let (side, transport) = side.map_or_else(|| (None, T::without()), |(side, of)| (Some(side), of));
            let members = on_gpus.len();
            let _working = side.as_ref().map(|side| side.driver.work_in_a_thread());
            let listener = GroupMember::listen(transport, &T::address(), rank, members, elements, options);
            (side, listener.unwrap())
        };
        let listening: Vec<_> = on_gpus.iter().enumerate().map(listen).collect();
        let addresses: Vec<_> = listening.iter().map(|(_, listener)| listener.address()).collect();
        std::thread::scope(|scope| {
            let connect = |(side, listener): (Option<Side>, GroupListener<T>)| {
                let addresses = &addresses;
                scope.spawn(move || {
                    let working = side.as_ref().map(|side| side.driver.work_in_a_thread());
                    let member = listener.connect(addresses, PATIENCE).unwrap();
                    drop(working);
                    Process { member, side }
                })
            };
            let meeting: Vec<_> = listening.into_iter().map(connect).collect();
            meeting.into_iter().map(|process| process.join().unwrap()).collect()
        })
    }

    /// Numbers of all sizes, of which the sums round, overflow and vanish.
    fn values(rank: usize, round: u64, elements: usize) -> Vec<f32> {
        let value = |index: usize| match (index + round as usize) % 11 {
            0 => -0.0,
            1 => f32::MAX,
            2 if rank == 0 => f32::INFINITY,
            3 => f32::from_bits(1 + (rank * 7 + index) as u32),
            4 => f32::MIN_POSITIVE * (1.0 + rank as f32),
            5 if rank == 1 => f32::NEG_INFINITY,
            6 => {
                if rank.is_multiple_of(2) {
                    1.0
                } else {
                    -1.0
                }
            }
            _ => ((rank * 31 + index * 7) as f32 * 0.37 + round as f32).sin() * 1e3,
        };
        (0..elements).map(value).collect()
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    /// The parameters of each member after all rounds, each of which begins with a step from the last mean.
    fn train<T: OfGpu>(on_gpus: &[bool], elements: usize) -> Vec<Vec<u32>> {
        let processes = meet::<T>(on_gpus, elements, options());
        let group: Vec<usize> = (0..on_gpus.len()).collect();
        let (processes, seen): (Vec<_>, Vec<_>) = std::thread::scope(|scope| {
            let run = |(rank, mut process): (usize, Process<T>)| {
                let group = &group;
                scope.spawn(move || {
                    let working = process.work();
                    let mut seen = Vec::new();
                    for round in 0..ROUNDS {
                        process.set(&values(rank, round, elements)).unwrap();
                        let averaged = process.member.average(round, group, PATIENCE).unwrap();
                        assert_eq!((averaged.members, averaged.skipped), (group.len(), false));
                        seen.extend(bits(&process.get().unwrap()));
                    }
                    // The mean of means, which nothing has touched in between.
                    process.member.average(ROUNDS, group, PATIENCE).unwrap();
                    seen.extend(bits(&process.get().unwrap()));
                    drop(working);
                    (process, seen)
                })
            };
            let running: Vec<_> = processes.into_iter().enumerate().map(run).collect();
            running.into_iter().map(|running| running.join().unwrap()).unzip()
        });
        for process in processes {
            if let Some(side) = &process.side {
                let is_staged = side.stream.gpu().host_bytes_copied() > 0;
                assert_eq!(is_staged, T::IS_STAGED && T::SERVES_FROM_GPU);
            }
            process.close(0);
        }
        seen
    }

    fn a_group_on_gpus_has_the_bits_of_one_on_processors<T: OfGpu>() {
        // Fewer elements than members, one line, odd numbers of windows.
        for elements in [1, 3, 17, 3 * WINDOW + 5, ELEMENTS] {
            for on_gpus in [&[true, true, true][..], &[false, true, false], &[true, true]] {
                let seen = train::<T>(on_gpus, elements);
                let expected = train::<T>(&vec![false; on_gpus.len()], elements);
                assert!(seen == expected, "other bits than processors make of {elements}, {on_gpus:?}");
            }
        }
    }

    /// The mean of the first parameters of these members, as processors compute it.
    fn mean(ranks: &[usize]) -> Vec<u32> {
        let of: Vec<_> = ranks.iter().map(|rank| values(*rank, 0, ELEMENTS)).collect();
        let sum = |index: usize| of[1..].iter().fold(of[0][index], |sum, values| sum + values[index]);
        (0..ELEMENTS).map(|index| (sum(index) / ranks.len() as f32).to_bits()).collect()
    }

    /// Members that have begun round 0, each with parameters of its own.
    fn begun<T: OfGpu>(on_gpus: &[bool], options: GroupOptions) -> Vec<Process<T>> {
        let mut processes = meet::<T>(on_gpus, ELEMENTS, options);
        let group: Vec<usize> = (0..processes.len()).collect();
        for (rank, process) in processes.iter_mut().enumerate() {
            process.set(&values(rank, 0, ELEMENTS)).unwrap();
            process.member.start_average(0, &group).unwrap();
        }
        processes
    }

    /// Turns them until all have ended the round.
    fn end<T: OfGpu>(processes: &mut [Process<T>]) -> Vec<Averaged> {
        let mut ended = vec![None; processes.len()];
        let deadline = now() + PATIENCE;
        while ended.contains(&None) {
            assert!(now() < deadline, "the round does not end: {ended:?}");
            for (process, ended) in processes.iter_mut().zip(&mut ended) {
                *ended = ended.or(process.turn().unwrap());
            }
        }
        ended.into_iter().flatten().collect()
    }

    /// Asserts that each of `processes`, which have these ranks, has the mean of all, the mean of these, or its old
    /// parameters.
    fn expect_means<T: OfGpu>(
        processes: &mut [Process<T>],
        ranks: &[usize],
        all: &[usize],
        ended: &[Averaged],
    ) {
        for ((process, rank), averaged) in processes.iter_mut().zip(ranks).zip(ended) {
            let seen = bits(&process.get().unwrap());
            let expected = match averaged {
                Averaged { skipped: true, .. } => mean(&[*rank]),
                Averaged { members, .. } if *members == all.len() => mean(all),
                Averaged { members, .. } => {
                    assert_eq!(*members, ranks.len());
                    mean(ranks)
                }
            };
            assert!(seen == expected, "member {rank} has other bits after {averaged:?}");
        }
    }

    #[test]
    fn parameters_are_sent_once_the_gpu_has_them_and_not_before() {
        let mut processes = begun::<Shm>(&[true, false], options());
        for _ in 0..100 {
            assert_eq!(processes[0].member.poll(now()).unwrap(), None);
        }
        assert_eq!(processes[0].member.statistics().bytes, 0, "the GPU has copied nothing");
        let ended = end(&mut processes);
        expect_means(&mut processes, &[0, 1], &[0, 1], &ended);
    }

    #[test]
    fn a_mean_is_sent_once_the_gpu_has_made_it_and_not_before() {
        let mut processes = begun::<Shm>(&[true, false], options());
        // Its summand, which it sends after it has begun, is written by its GPU.
        for _ in 0..4 {
            processes[0].turn().unwrap();
        }
        let sent = processes[0].member.statistics().bytes;
        assert!(sent > 0);
        for _ in 0..4 {
            processes[1].turn().unwrap();
        }
        for _ in 0..100 {
            assert_eq!(processes[0].member.poll(now()).unwrap(), None);
            assert_eq!(processes[1].member.poll(now()).unwrap(), None);
        }
        assert_eq!(processes[0].member.statistics().bytes, sent, "the GPU has averaged nothing");
        let ended = end(&mut processes);
        expect_means(&mut processes, &[0, 1], &[0, 1], &ended);
    }

    #[test]
    fn what_is_written_over_while_a_gpu_copies_it_is_in_no_mean() {
        let mut processes = begun::<Shm>(&[true, false], options());
        for _ in 0..4 {
            processes[0].turn().unwrap();
        }
        processes[1].turn().unwrap();
        // Its GPU is to copy a part of the other member, and the other member gives the round up.
        assert_eq!(processes[0].member.poll(now()).unwrap(), None);
        processes[1].member.abandon().unwrap();
        processes[1].set(&values(1, 1, ELEMENTS)).unwrap();
        processes[1].member.start_average(1, &[0, 1]).unwrap();
        processes[1].turn().unwrap();
        let deadline = now() + PATIENCE;
        let ended = loop {
            assert!(now() < deadline, "the round does not end");
            if let Some(ended) = processes[0].turn().unwrap() {
                break ended;
            }
        };
        assert!(ended.skipped, "{ended:?}");
        assert_eq!(bits(&processes[0].get().unwrap()), mean(&[0]));
        // The next round averages the parameters that are there then.
        processes[0].member.start_average(1, &[0, 1]).unwrap();
        let ended = end(&mut processes);
        assert!(ended.iter().all(|averaged| averaged.members == 2), "{ended:?}");
        assert_eq!(bits(&processes[0].get().unwrap()), bits(&processes[1].get().unwrap()));
    }

    #[test]
    fn parameters_that_are_on_their_way_are_not_replaced() {
        let mut processes = begun::<Shm>(&[true, false], options());
        processes[0].turn().unwrap();
        // Its part is to be copied to the other member.
        processes[0].member.abandon().unwrap();
        let error = processes[0].set(&values(0, 1, ELEMENTS)).unwrap_err();
        assert!(matches!(error, Error::InFlight { .. }), "{error}");
        // The news that the round is over come behind it.
        for _ in 0..4 {
            processes[0].turn().unwrap();
        }
        processes[0].set(&values(0, 1, ELEMENTS)).unwrap();
    }

    fn a_member_that_is_killed_in_an_average_is_left_out_by_gpus<T: OfGpu>() {
        for turns in 0..20 {
            let mut processes = begun::<T>(&[true, true, false], options());
            for _ in 0..turns {
                for process in &mut processes {
                    process.turn().unwrap();
                }
            }
            // It may have ended the round before.
            let of_last_round = |process: &Process<T>| process.member.statistics().rounds > 0;
            if processes.iter().any(of_last_round) {
                processes.into_iter().for_each(|process| process.close(0));
                continue;
            }
            processes.remove(1).close(0);
            let ended = end(&mut processes);
            expect_means(&mut processes, &[0, 2], &[0, 1, 2], &ended);
            processes.into_iter().for_each(|process| process.close(0));
        }
    }

    #[test]
    fn a_member_on_a_gpu_that_falls_silent_is_left_out_and_cut_off() {
        let mut processes = begun::<Shm>(&[true, true, false], GroupOptions::default());
        for process in &mut processes {
            process.turn().unwrap();
        }
        // Its heart beats for no other member any more, and it does nothing.
        let mut silent = processes.remove(1);
        let heart = GroupHeartbeat::new(&silent.member.runtime, silent.member.lease).unwrap();
        silent.member.heartbeat = heart;
        let ended = end(&mut processes);
        let is_silent = |process: &Process<Shm>| process.member.absence(1) == Some(&Absence::Silent);
        assert!(processes.iter().any(is_silent));
        expect_means(&mut processes, &[0, 2], &[0, 1, 2], &ended);
        let deadline = now() + PATIENCE;
        let error = loop {
            assert!(now() < deadline, "it does not hear that it is left out");
            if let Err(error) = silent.turn() {
                break error;
            }
        };
        assert!(matches!(error, Error::Group(GroupError::CutOff { rank: 1 })), "{error}");
        processes.into_iter().chain([silent]).for_each(|process| process.close(0));
    }

    fn a_gpu_that_fails_ends_no_member_but_its_own<T: OfGpu>() {
        for fail in Scripted::FAILURES {
            let mut failures = 0;
            loop {
                let mut processes = meet::<T>(&[false, true, false], ELEMENTS, options());
                let driver = processes[1].side.as_ref().unwrap().driver.clone();
                fail(&driver, failures, NOT_PERMITTED);
                for rank in [0, 2] {
                    processes[rank].set(&values(rank, 0, ELEMENTS)).unwrap();
                    processes[rank].member.start_average(0, &[0, 1, 2]).unwrap();
                }
                let mut told = 0;
                let mut retried = |outcome: Result<(), Error>| {
                    told += usize::from(outcome.is_err());
                    outcome.is_ok()
                };
                while !retried(processes[1].set(&values(1, 0, ELEMENTS))) {}
                // An average that has begun forms later.
                retried(processes[1].member.start_average(0, &[0, 1, 2]));
                let mut ended = [None; 3];
                let deadline = now() + PATIENCE;
                while processes[1].member.ended.is_none() && ended[1].is_none() {
                    assert!(now() < deadline, "call {failures}: the round does not end");
                    for rank in [0, 2] {
                        ended[rank] = ended[rank].or(processes[rank].turn().unwrap());
                    }
                    let turned = processes[1].turn();
                    ended[1] = turned.as_ref().ok().copied().flatten();
                    retried(turned.map(drop));
                }
                if processes[1].member.ended.is_some() {
                    let error = processes[1].turn().unwrap_err();
                    assert!(matches!(error, Error::Group(GroupError::NotCopied { .. })), "{error}");
                } else {
                    while !retried(processes[1].get().map(|seen| {
                        assert!(bits(&seen) == mean(&[0, 1, 2]), "call {failures}: other bits");
                    })) {}
                }
                let has_failed = driver.has_failed();
                // A call that was not made so far is not to fail later.
                driver.fail(u32::MAX, NOT_PERMITTED);
                processes.remove(1).close(usize::from(has_failed));
                // The others have all of them, or end without that one; none of the two is taken for dead.
                let deadline = now() + PATIENCE;
                while ended[0].is_none() || ended[2].is_none() {
                    assert!(now() < deadline, "call {failures}: the others do not end the round");
                    for (process, rank) in processes.iter_mut().zip([0, 2]) {
                        ended[rank] = ended[rank].or(process.turn().unwrap());
                    }
                }
                let ended = [ended[0].unwrap(), ended[2].unwrap()];
                expect_means(&mut processes, &[0, 2], &[0, 1, 2], &ended);
                assert_eq!((processes[0].member.absence(2), processes[1].member.absence(0)), (None, None));
                if !has_failed {
                    assert!(failures > 20 && told == 0, "{failures} calls, {told} errors");
                    break;
                }
                failures += 1;
            }
        }
    }

    fn after_a_fault_of_a_members_gpu_the_others_go_on<T: OfGpu>() {
        let mut processes = begun::<T>(&[false, true, true], options());
        processes[1].turn().unwrap();
        processes[1].side.as_ref().unwrap().driver.fault(ILLEGAL_ADDRESS);
        let deadline = now() + PATIENCE;
        let error = loop {
            assert!(now() < deadline, "its fault is not told");
            if let Err(error) = processes[1].member.poll(now()) {
                break error;
            }
        };
        let is_told = matches!(
            error,
            Error::Gpu(GpuError::Faulted { .. }) | Error::Group(GroupError::NotCopied { .. })
        );
        assert!(is_told, "{error}");
        drop(processes.remove(1));
        let ended = end(&mut processes);
        expect_means(&mut processes, &[0, 2], &[0, 1, 2], &ended);
    }

    /// Members in host memory, the first of which a GPU copies from and to.
    fn in_host_memory() -> (Side, Vec<Process<Shm>>) {
        let (side, _) = Side::new::<Shm>(ELEMENTS);
        (side, meet::<Shm>(&[false, false], ELEMENTS, options()))
    }

    #[test]
    fn host_parameters_are_free_again_once_a_gpu_has_copied_them() {
        let (side, mut processes) = in_host_memory();
        let member = &mut processes[0].member;
        side.set(member, &values(0, 0, ELEMENTS)).unwrap();
        assert!(matches!(member.parameters_mut(), Err(Error::InFlight { .. })));
        side.driver.finish();
        assert_eq!(bits(member.parameters_mut().unwrap()), bits(&values(0, 0, ELEMENTS)));
        side.get(member).unwrap();
        assert!(member.parameters().is_ok() && member.parameters_mut().is_ok());
    }

    /// In whichever order the driver does the work of streams that no event orders.
    #[test]
    fn copies_of_a_gpu_to_host_parameters_and_from_there_are_in_order() {
        for round in 0..8 {
            let (side, mut processes) = in_host_memory();
            let member = &mut processes[0].member;
            let (old, new) = (values(0, round, ELEMENTS), values(1, round + 1, ELEMENTS));
            side.set(member, &old).unwrap();
            assert_eq!(bits(&side.get(member).unwrap()), bits(&old), "it copied what was there before");

            // A copy on another stream comes behind the copy on this stream, which has much work before it.
            let (raw, stream) = side.driver.stream_of_caller(side.stream.gpu());
            let weights = GpuMemory::allocate(side.stream.gpu(), 4 * ELEMENTS).unwrap();
            let other = Side { driver: side.driver.clone(), raw, stream, weights };
            let busy = side.driver.memory(4);
            (0..100).for_each(|_| side.driver.launch_fill(side.raw, busy, 4, 0));
            member.copy_parameters_to_gpu(0, &side.weights.whole(), &side.stream).unwrap();
            other.set(member, &new).unwrap();
            side.driver.finish();
            let seen = side.driver.bytes(side.weights.pointer(), 4 * ELEMENTS);
            let seen = seen.as_chunks::<4>().0.iter().map(|value| u32::from_le_bytes(*value));
            assert!(seen.eq(bits(&old)), "it copied a mixture");
            assert_eq!(bits(member.parameters().unwrap()), bits(&new));
        }
    }

    #[test]
    fn host_parameters_that_a_gpu_has_not_copied_for_a_fault_are_never_averaged() {
        let (side, mut processes) = in_host_memory();
        let member = &mut processes[0].member;
        side.set(member, &values(0, 0, ELEMENTS)).unwrap();
        side.driver.fault(ILLEGAL_ADDRESS);
        for _ in 0..2 {
            let error = member.average(0, &[0, 1], Duration::from_millis(100)).unwrap_err();
            assert!(matches!(error, Error::Gpu(GpuError::Faulted { .. })), "{error}");
            assert!(member.parameters().is_err() && member.parameters_mut().is_err());
        }
        assert_eq!(member.statistics().bytes, 0);
    }

    fn an_average_that_no_gpu_makes_says_so_and_goes_on_later<T: OfGpu>() {
        let mut processes = meet::<T>(&[true, false], ELEMENTS, options());
        let (mut other, mut own) = (processes.pop().unwrap(), processes.pop().unwrap());
        let driver = own.side.as_ref().unwrap().driver.clone();
        std::thread::scope(|scope| {
            let others = scope.spawn(move || {
                other.set(&values(1, 0, ELEMENTS)).unwrap();
                other.member.average(0, &[0, 1], PATIENCE).unwrap();
                let mean = bits(&other.get().unwrap());
                // The connection is there until both have ended the round.
                other.member.average(1, &[0, 1], PATIENCE).unwrap();
                mean
            });
            own.set(&values(0, 0, ELEMENTS)).unwrap();
            // Long enough for the member to ask the driver meanwhile, on a busy machine, too.
            let waited = Duration::from_secs(1);
            let late = own.member.average(0, &[0, 1], waited).unwrap_err();
            assert!(matches!(late, Error::Gpu(GpuError::NotCopied { cause: None, .. })), "{late}");
            driver.set_unanswered(Some(UNKNOWN));
            let late = own.member.average(0, &[0, 1], waited).unwrap_err();
            assert!(late.to_string().contains("CUDA error 999"), "{late}");
            driver.set_unanswered(None);
            let working = driver.work_in_a_thread();
            assert_eq!(own.member.average(0, &[0, 1], PATIENCE).unwrap().members, 2);
            let seen = bits(&own.get().unwrap());
            own.member.average(1, &[0, 1], PATIENCE).unwrap();
            drop(working);
            assert!(seen == mean(&[0, 1]) && others.join().unwrap() == seen);
        });
    }

    #[test]
    fn a_member_whose_gpu_is_full_says_so_before_it_listens() {
        let (side, transport) = Side::new::<Shm>(ELEMENTS);
        let _working = side.driver.work_in_a_thread();
        let listen = |transport| {
            let (address, options) = (Address::random(), options());
            GroupMember::listen(transport, &address, 0, 2, ELEMENTS, options)
                .map(|listener| listener.address())
        };
        side.driver.fail(0, OUT_OF_MEMORY);
        let error = listen(transport.clone()).unwrap_err();
        assert!(matches!(error, Error::Gpu(GpuError::OutOfMemory { .. })), "{error}");
        listen(transport).unwrap();
    }

    #[test]
    fn what_a_group_on_a_gpu_lacks_is_refused_by_name() {
        let (side, transport) = Side::new::<Shm>(ELEMENTS);
        let listen = |members, options| {
            let listened =
                GroupMember::listen(transport.clone(), &Address::random(), 0, members, ELEMENTS, options);
            listened.map(drop)
        };
        let checksums = GroupOptions { checksums: true, ..options() };
        let error = listen(2, checksums).unwrap_err();
        assert!(matches!(error, Error::Gpu(GpuError::OnGpu { .. })), "{error}");
        let error = listen(MAX_GRADIENTS + 1, options()).unwrap_err();
        assert!(matches!(error, Error::Option { option: "members", .. }), "{error}");

        let mut processes = meet::<Shm>(&[true, false], ELEMENTS, options());
        for error in [
            processes[0].member.parameters().map(drop).unwrap_err(),
            processes[0].member.parameters_mut().map(drop).unwrap_err(),
        ] {
            assert!(matches!(error, Error::Gpu(GpuError::OnGpu { .. })), "{error}");
        }
        let Process { member, side: own } = &mut processes[0];
        let own = own.as_ref().unwrap();
        let whole = own.weights.whole();
        let beyond = |error: Error| assert!(matches!(error, Error::Bounds(_)), "{error}");
        beyond(member.copy_parameters_to_gpu(4, &whole, &own.stream).unwrap_err());
        beyond(member.copy_parameters_from_gpu(u64::MAX, &whole, &own.stream).unwrap_err());
        // Memory and stream of another driver's GPU, which is another device.
        let others = Arc::new(Scripted::new().of_another_device());
        let (other, _, stream) = others.open_gpu();
        let memory = GpuMemory::allocate(&other, 4).unwrap().whole();
        let elsewhere = |error: Error| {
            assert!(matches!(error, Error::Gpu(GpuError::OtherDevice { .. })), "{error}");
        };
        elsewhere(member.copy_parameters_to_gpu(0, &memory, &stream).unwrap_err());
        elsewhere(member.copy_parameters_from_gpu(0, &memory, &stream).unwrap_err());
        member.start_average(0, &[0, 1]).unwrap();
        let out_of_turn = |error: Error| assert!(matches!(error, Error::OutOfTurn { .. }), "{error}");
        out_of_turn(member.copy_parameters_to_gpu(0, &whole, &own.stream).unwrap_err());
        out_of_turn(member.copy_parameters_from_gpu(0, &whole, &own.stream).unwrap_err());
        drop(side);
    }

    over_each_transport! {
        a_group_on_gpus_has_the_bits_of_one_on_processors,
        a_member_that_is_killed_in_an_average_is_left_out_by_gpus,
        a_gpu_that_fails_ends_no_member_but_its_own,
        after_a_fault_of_a_members_gpu_the_others_go_on,
        an_average_that_no_gpu_makes_says_so_and_goes_on_later,
    }

    over_rdma! {
        a_group_on_gpus_has_the_bits_of_one_on_processors,
    }

    over_gpudirect! {
        a_group_on_gpus_has_the_bits_of_one_on_processors,
    }
}
