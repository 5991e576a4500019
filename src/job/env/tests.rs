//! Every launcher as it was seen, alone, within another, and halved.

use std::collections::HashMap;

use super::*;
use crate::diagnostic::Diagnostic;

/// Finds the placement of a process whose environment holds `variables`: `NAME=value`, separated by blanks.
fn with(flags: &LaunchFlags, variables: &str) -> Result<Option<Placement>, LaunchError> {
    let variables: HashMap<_, _> =
        variables.split_whitespace().filter_map(|one| one.split_once('=')).collect();
    placement(flags, |name| variables.get(name).map(|value| value.to_string()))
}

fn placed(variables: &str) -> Placement {
    with(&LaunchFlags::default(), variables).unwrap().unwrap_or_else(|| panic!("not placed: {variables}"))
}

fn refused(variables: &str) -> String {
    with(&LaunchFlags::default(), variables).expect_err(variables).to_string()
}

fn summary(placement: &Placement) -> String {
    let Placement { rank, world, local_rank, local_world, rendezvous, source, .. } = placement;
    let number = |number: &Option<u32>| number.map_or("?".into(), |number| number.to_string());
    let meet = rendezvous.as_ref().map_or("nowhere".into(), ToString::to_string);
    format!("{source}: {rank}/{world}, here {}/{}, {meet}", number(local_rank), number(local_world))
}

/// As torchrun sets them.
const TORCHRUN: &str = "RANK=1 WORLD_SIZE=3 LOCAL_RANK=1 LOCAL_WORLD_SIZE=3 MASTER_ADDR=node0 MASTER_PORT=29500 \
    TORCHELASTIC_RUN_ID=none";

/// As Slurm 22.05 sets them in a step.
const SRUN: &str = "SLURM_PROCID=1 SLURM_LOCALID=1 SLURM_NODEID=0 SLURM_NTASKS=2 SLURM_STEP_NUM_TASKS=2 \
    SLURM_STEP_NUM_NODES=1 SLURM_STEP_TASKS_PER_NODE=2 SLURM_STEP_NODELIST=node1 SLURM_JOB_NODELIST=node1 \
    SLURM_JOB_ID=7 \
    SLURM_STEP_ID=3";

/// As Slurm 22.05 sets them in a batch script of `sbatch -n 3`: a rank, but no step.
const SBATCH: &str = "SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_NTASKS=3 SLURM_TASKS_PER_NODE=3 \
    SLURM_JOB_NODELIST=node1 SLURM_JOB_ID=3";

/// As Open MPI 4.1 sets them.
const MPIRUN: &str = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 \
    OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_MCA_ess_base_jobid=205586433 PMIX_NAMESPACE=205586433 PMIX_RANK=1";

/// The variables as MPICH 4.0's Hydra sets them, and those of `environment`.
const HYDRA: &str = "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 PMI_FD=8 HYDI_CONTROL_FD=7 \
    HYDRA_CONTROL_PORT=node1:39979";

#[test]
fn nobody_says_anything_and_nothing_is_placed() {
    for variables in
        ["", SBATCH, "MASTER_ADDR=a MASTER_PORT=1", "SLURM_JOB_ID=4 SLURM_NTASKS=2", "RANK= WORLD_SIZE="]
    {
        assert_eq!(with(&LaunchFlags::default(), variables), Ok(None), "{variables}");
    }
}

#[test]
fn every_launcher_gives_its_processes_their_ranks() {
    let cases = [
        (TORCHRUN, "torchrun: 1/3, here 1/3, 127.0.0.1:21308"),
        (SRUN, "Slurm (srun): 1/2, here 1/2, 127.0.0.1:20595"),
        (MPIRUN, "Open MPI (mpirun): 1/2, here 1/2, 127.0.0.1:"),
        (HYDRA, "PMI (Hydra): 1/2, here 1/2, 127.0.0.1:"),
        ("PMIX_RANK=1 PMIX_NAMESPACE=a SLURM_NTASKS=2 SLURM_JOB_NODELIST=n[4-5]", "PMIx: 1/2, here ?/?, n4:"),
    ];
    for (variables, expected) in cases {
        let summary = summary(&placed(variables));
        assert!(summary.starts_with(expected), "{summary} instead of {expected}");
    }
}

#[test]
fn processes_on_several_hosts_meet_on_the_first() {
    let torchrun = TORCHRUN.replace("LOCAL_WORLD_SIZE=3", "LOCAL_WORLD_SIZE=1");
    assert_eq!(summary(&placed(&torchrun)), "torchrun: 1/3, here 1/1, node0:21308");
    let srun = "SLURM_PROCID=2 SLURM_LOCALID=0 SLURM_NODEID=1 SLURM_STEP_NUM_TASKS=5 SLURM_STEP_NUM_NODES=3 \
        SLURM_STEP_TASKS_PER_NODE=2(x2),1 SLURM_STEP_NODELIST=login1,node[003-010] SLURM_JOB_ID=1 SLURM_STEP_ID=0";
    assert_eq!(summary(&placed(srun)), "Slurm (srun): 2/5, here 0/2, login1:20496");
    let mpirun = MPIRUN.replace("LOCAL_SIZE=2", "LOCAL_SIZE=1");
    assert!(refused(&mpirun).contains("set --rendezvous or SLACKLINE_RENDEZVOUS to HOST:PORT of rank 0"));
    let within = format!("{mpirun} SLURM_JOB_NODELIST=n[08,3]");
    assert_eq!(placed(&within).rendezvous.unwrap().host, "n08");
    let ours = format!("{mpirun} SLACKLINE_RENDEZVOUS=[fd00::1]:99");
    assert_eq!(placed(&ours).rendezvous.unwrap().to_string(), "[fd00::1]:99");
}

#[test]
fn all_ranks_derive_one_rendezvous_and_two_jobs_derive_two() {
    for job in [TORCHRUN, SRUN, MPIRUN, HYDRA] {
        let first = job.replace("RANK=1", "RANK=0").replace("PROCID=1", "PROCID=0").replace("ID=1", "ID=0");
        let (first, second) = (placed(&first), placed(job));
        assert_ne!(first.rank, second.rank);
        assert_eq!(first.rendezvous, second.rendezvous);
        let port = second.rendezvous.clone().unwrap().port;
        assert!(PORTS.contains(&port), "{port}");
        let other = job.replace("29500", "29501").replace("STEP_ID=3", "STEP_ID=4");
        let other = other.replace("205586433", "49610753").replace("39979", "39980");
        assert_ne!(placed(&other).rendezvous, second.rendezvous, "{job}");
        let named = |job: &str, id: &str| placed(&format!("{job} SLACKLINE_JOB_ID={id}")).rendezvous;
        assert_eq!(named(job, "a"), named(&other, "a"));
        assert_ne!(named(job, "a"), named(job, "b"));
    }
}

#[test]
fn the_inner_launcher_wins_over_slurm() {
    let srun = SRUN.replace("SLURM_STEP_NUM_TASKS=2", "SLURM_STEP_NUM_TASKS=4");
    for (inner, source) in [
        (TORCHRUN, Source::Torchrun),
        (MPIRUN, Source::OpenMpi),
        (HYDRA, Source::Pmi),
        (MPIRUN, Source::OpenMpi),
    ] {
        for outer in [SBATCH, SRUN, &srun] {
            let both = placed(&format!("{outer} {inner}"));
            assert_eq!((both.source, Some(both.world)), (source, both.local_world));
        }
    }
}

#[test]
fn slurm_that_speaks_pmi_or_pmix_is_still_slurm() {
    for more in ["PMI_RANK=1 PMI_SIZE=2 PMI_FD=11 PMI_JOBID=7.3", "PMIX_RANK=1 PMIX_NAMESPACE=slurm.pmix.7.3"]
    {
        assert_eq!(placed(&format!("{SRUN} {more}")), placed(SRUN));
    }
}

#[test]
fn the_shells_of_slurm_are_no_steps() {
    for step in ["4294967290", "4294967291", "4294967292"] {
        let shell = SRUN.replace("STEP_ID=3", &format!("STEP_ID={step}"));
        assert_eq!(with(&LaunchFlags::default(), &shell), Ok(None));
    }
}

#[test]
fn whoever_started_one_process_says_nothing_about_another_job() {
    let pty = "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_ID=0 SLURM_JOB_ID=2";
    assert_eq!(summary(&placed(pty)), "Slurm (srun): 0/1, here ?/?, nowhere");
    assert_eq!(placed(&format!("{pty} {MPIRUN}")).source, Source::OpenMpi);
    let one = "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1";
    assert_eq!(placed(&format!("{one} {TORCHRUN}")).source, Source::Torchrun);
    let by_hand = format!("{pty} SLACKLINE_RANK=1 SLACKLINE_WORLD_SIZE=2 SLACKLINE_RENDEZVOUS=a:1");
    assert_eq!(summary(&placed(&by_hand)), "flags: 1/2, here ?/?, a:1");
}

#[test]
fn two_launchers_that_disagree_are_named_with_their_values() {
    let both = refused(&format!("{TORCHRUN} {MPIRUN}"));
    assert!(
        both.starts_with("torchrun says rank 1 of 3, and Open MPI (mpirun) says rank 1 of 2; "),
        "{both}"
    );
    let both = refused(&format!("{MPIRUN} {}", HYDRA.replace("PMI_RANK=1", "PMI_RANK=0")));
    assert!(
        both.starts_with("Open MPI (mpirun) says rank 1 of 2, and PMI (Hydra) says rank 0 of 2; "),
        "{both}"
    );
    // Launchers that agree contradict none.
    let agrees = format!("{TORCHRUN} {}", MPIRUN.replace("SIZE=2", "SIZE=3"));
    assert_eq!(placed(&agrees).source, Source::Torchrun);
}

#[test]
fn flags_alone_give_a_rank_and_must_agree_with_a_launcher() {
    let rendezvous = Some("node1:9000".to_owned());
    let flags = LaunchFlags { rank: Some(1), world_size: Some(3), local_rank: Some(0), rendezvous };
    let placement = with(&flags, "").unwrap().unwrap();
    assert_eq!(summary(&placement), "flags: 1/3, here 0/?, node1:9000");
    // A flag stands above its variable.
    assert_eq!(with(&flags, "SLACKLINE_RANK=2 SLACKLINE_RENDEZVOUS=x:1").unwrap().unwrap(), placement);
    assert_eq!(
        with(&flags, TORCHRUN).unwrap_err().to_string().split("; ").next().unwrap(),
        "--local-rank 0 contradicts LOCAL_RANK=1, which torchrun says"
    );
    let flags = LaunchFlags { rank: Some(0), ..LaunchFlags::default() };
    let error = with(&flags, SRUN).unwrap_err().to_string();
    assert!(error.starts_with("--rank 0 contradicts SLURM_PROCID=1, which Slurm (srun) says; "), "{error}");
    let error = refused(&format!("{MPIRUN} SLACKLINE_WORLD_SIZE=4"));
    assert!(
        error.starts_with("SLACKLINE_WORLD_SIZE=4 contradicts OMPI_COMM_WORLD_SIZE=2, which Open"),
        "{error}"
    );
    let agrees = format!("{HYDRA} SLACKLINE_RANK=1 SLACKLINE_WORLD_SIZE=2");
    assert_eq!(placed(&agrees), placed(HYDRA));
}

#[test]
fn a_rendezvous_alone_gives_no_rank_and_is_still_told() {
    let flags = LaunchFlags { rendezvous: Some("[::1]:7".into()), ..LaunchFlags::default() };
    assert_eq!(with(&flags, ""), Ok(None));
    let point = flags.rendezvous(|_| None).unwrap().unwrap();
    assert_eq!((point.host.as_str(), point.port), ("::1", 7));
    assert_eq!(point.to_string(), "[::1]:7");
}

#[test]
fn pmix_takes_the_size_from_a_flag() {
    assert!(refused("PMIX_RANK=1 PMIX_NAMESPACE=a").contains("set --world-size"));
    // The size of a Slurm step is not the size of a job that was started within it.
    assert!(refused(&format!("{} PMIX_RANK=0", SRUN)).contains("set --world-size"));
    let told = "PMIX_RANK=1 PMIX_NAMESPACE=a SLACKLINE_WORLD_SIZE=2 SLACKLINE_RENDEZVOUS=a:1";
    assert_eq!(summary(&placed(told)), "PMIx: 1/2, here ?/?, a:1");
}

#[test]
fn a_pod_of_an_indexed_job_takes_its_index_for_a_rank_beside_a_size() {
    let pod = "JOB_COMPLETION_INDEX=2 SLACKLINE_WORLD_SIZE=4 SLACKLINE_RENDEZVOUS=job-0.svc:21000";
    assert_eq!(summary(&placed(pod)), "Kubernetes (indexed Job): 2/4, here ?/?, job-0.svc:21000");
    assert!(refused(&pod.replace("INDEX=2", "INDEX=4")).contains("ranks count from 0"));
    assert!(refused(pod.split(" SLACKLINE_RENDEZVOUS").next().unwrap()).contains("--rendezvous"));
    // Without a size the pod may run anything, and a launcher within it or a rank that is told wins.
    assert_eq!(with(&LaunchFlags::default(), "JOB_COMPLETION_INDEX=2"), Ok(None));
    let torchrun = "JOB_COMPLETION_INDEX=1 RANK=5 WORLD_SIZE=8 MASTER_ADDR=a MASTER_PORT=29500";
    assert!(summary(&placed(torchrun)).starts_with("torchrun: 5/8"));
    assert!(summary(&placed(&format!("{pod} SLACKLINE_RANK=1"))).starts_with("flags: 1/4"));
}

/// As BytePS and MXNet set them for the second of three workers beside two servers.
const DMLC: &str = "DMLC_ROLE=worker DMLC_WORKER_ID=1 DMLC_NUM_WORKER=3 DMLC_NUM_SERVER=2 \
    DMLC_PS_ROOT_URI=node1 DMLC_PS_ROOT_PORT=9091";

#[test]
fn processes_of_ps_lite_are_placed_with_servers_first() {
    let worker = placed(DMLC);
    assert_eq!(summary(&worker), "ps-lite (DMLC_ROLE): 3/5, here ?/?, node1:9091");
    assert_eq!(worker.servers, Some(2));
    let server = placed(&DMLC.replace("ROLE=worker", "ROLE=server").replace("WORKER_ID", "SERVER_ID"));
    assert_eq!(summary(&server), "ps-lite (DMLC_ROLE): 1/5, here ?/?, node1:9091");
    // The trackers of dmlc-core number all processes, workers first.
    assert_eq!(placed(&DMLC.replace("WORKER_ID", "TASK_ID")), worker);
    let task = "DMLC_ROLE=server DMLC_TASK_ID=2 DMLC_NUM_WORKER=2 DMLC_NUM_SERVER=1 DMLC_PS_ROOT_URI=a \
        DMLC_PS_ROOT_PORT=1";
    assert_eq!((placed(task).rank, placed(task).world), (0, 3));
    // Where the servers have numbers of their own.
    assert_eq!(placed(&task.replace("TASK_ID=2", "TASK_ID=0")).rank, 0);
    // The only one of its role needs no number.
    let alone = DMLC.replace("DMLC_WORKER_ID=1 DMLC_NUM_WORKER=3", "DMLC_NUM_WORKER=1");
    assert_eq!((placed(&alone).rank, placed(&alone).world), (2, 3));
    assert_eq!(placed(&format!("{DMLC} SLACKLINE_RENDEZVOUS=a:1")).rendezvous.unwrap().port, 1);
}

#[test]
fn what_ps_lite_says_and_a_job_does_not_have_is_refused_by_name() {
    let cases = [
        (DMLC.replace("ROLE=worker", "ROLE=scheduler"), "DMLC_ROLE=scheduler", "start no scheduler"),
        (DMLC.replace("ROLE=worker", "ROLE=joint"), "DMLC_ROLE=joint", "set DMLC_ROLE to one of the two"),
        (format!("{DMLC} BYTEPS_LOCAL_SIZE=8"), "BYTEPS_LOCAL_SIZE=8", "set it to 1"),
        (DMLC.replace("DMLC_WORKER_ID=1", ""), "DMLC_ROLE=worker", "set DMLC_WORKER_ID"),
        (DMLC.replace("DMLC_NUM_SERVER=2", ""), "DMLC_ROLE=worker", "set DMLC_NUM_SERVER"),
        (DMLC.replace("_ID=1", "_ID=3"), "DMLC_WORKER_ID=3", "ranks count from 0"),
        (DMLC.replace("WORKER_ID=1", "TASK_ID=3"), "DMLC_TASK_ID=3", "ranks count from 0"),
        (
            DMLC.replace("ROLE=worker DMLC_WORKER_ID=1", "ROLE=server DMLC_TASK_ID=5"),
            "DMLC_TASK_ID=5",
            "ranks count from 0",
        ),
        (DMLC.replace("URI=node1", "URI="), "ps-lite (DMLC_ROLE)", "set DMLC_PS_ROOT_URI"),
        (DMLC.replace("PORT=9091", "PORT=x"), "DMLC_PS_ROOT_URI node1:x", "the port is no number"),
        (format!("{DMLC} SLACKLINE_RANK=1"), "SLACKLINE_RANK=1", "the rank of DMLC_ROLE=3"),
        (format!("{DMLC} {TORCHRUN}"), "torchrun says rank 1 of 3", "ps-lite (DMLC_ROLE) says rank 3 of 5"),
    ];
    for (variables, what, remedy) in cases {
        let error = refused(&variables);
        assert!(error.contains(what) && error.contains(remedy), "{variables}: {error}");
    }
}

#[test]
fn halves_are_refused_with_the_other_half_named() {
    let cases = [
        ("RANK=0", "RANK=0", "set WORLD_SIZE"),
        ("WORLD_SIZE=2", "WORLD_SIZE=2", "set RANK"),
        ("SLURM_STEP_ID=0 SLURM_PROCID=0", "SLURM_PROCID=0", "set SLURM_STEP_NUM_TASKS"),
        ("OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_RANK=0", "set OMPI_COMM_WORLD_SIZE"),
        ("PMI_SIZE=2", "PMI_SIZE=2", "set PMI_RANK"),
        ("SLACKLINE_RANK=2", "SLACKLINE_RANK=2", "set --world-size (SLACKLINE_WORLD_SIZE)"),
        ("SLACKLINE_WORLD_SIZE=2", "SLACKLINE_WORLD_SIZE=2", "set --rank (SLACKLINE_RANK)"),
        (
            "SLACKLINE_RANK=0 SLACKLINE_WORLD_SIZE=2",
            "nothing from flags says where rank 0 is",
            "set --rendezvous",
        ),
        ("RANK=0 WORLD_SIZE=2", "from torchrun", "set MASTER_ADDR and MASTER_PORT"),
        ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=a", "from torchrun", "set MASTER_ADDR and MASTER_PORT"),
        (
            "PMI_RANK=0 PMI_SIZE=2 MPI_LOCALNRANKS=2",
            "nothing from PMI (Hydra) says what sets this job apart",
            "set SLACKLINE_JOB_ID",
        ),
    ];
    for (variables, what, remedy) in cases {
        let error = refused(variables);
        assert!(error.contains(what) && error.contains(remedy), "{variables}: {error}");
    }
}

#[test]
fn what_is_no_number_or_no_rank_is_refused() {
    for variables in
        ["RANK=x WORLD_SIZE=2", "RANK=-1 WORLD_SIZE=2", "RANK=0 WORLD_SIZE=4294967296", "PMIX_RANK=1.0"]
    {
        assert!(refused(variables).contains("is no whole number"), "{variables}");
    }
    assert!(refused("RANK=2 WORLD_SIZE=2").starts_with("RANK=2 is not below WORLD_SIZE=2; "));
    assert!(refused("RANK=0 WORLD_SIZE=0").starts_with("WORLD_SIZE=0 leaves no rank"));
    assert!(refused("SLACKLINE_RANK=3 SLACKLINE_WORLD_SIZE=2").contains("is not below"));
    assert!(refused(&SRUN.replace("STEP_ID=3", "STEP_ID=three")).contains("SLURM_STEP_ID=three"));
}

#[test]
fn what_is_no_rendezvous_is_refused() {
    for (point, reason) in [
        ("node1", "no port"),
        ("node1:0", "port 0"),
        ("node1:65536", "up to 65535"),
        ("node1:x", "up to 65535"),
        (":99", "no host"),
        ("::1:99", "needs brackets"),
        ("[fe80::1]:99", "on one link alone"),
        ("[fe80::1%eth0]:99", "on one link alone"),
        ("[node1]:99", "no IPv6 address between"),
        ("no/de:99", "no name of a host"),
    ] {
        let error = refused(&format!("SLACKLINE_RENDEZVOUS={point}"));
        assert!(error.contains(reason) && error.contains("SLACKLINE_RENDEZVOUS"), "{point}: {error}");
    }
}

#[test]
fn the_text_of_a_refused_rendezvous_ends_in_the_remedy() {
    let error = "node1".parse::<RendezvousEndpoint>().unwrap_err();
    let remedy = error.remedy().expect("there is one");
    assert_eq!(error.to_string(), format!("there is no port; {remedy}"));
    assert!(refused("SLACKLINE_RENDEZVOUS=node1").ends_with(&*remedy), "a launch says the same");
}

#[test]
fn the_first_host_of_a_list_is_found_with_its_zeros() {
    for (list, first) in [
        ("node[003-010,12],login1", "node003"),
        ("login1,node[003-010]", "login1"),
        ("rack[1-2]n[01-04]-ib", "rack1n01-ib"),
        ("node1", "node1"),
        ("a.b-c_1", "a.b-c_1"),
    ] {
        assert_eq!(slurm::first_host(list).as_deref(), Some(first), "{list}");
    }
    for list in ["", ",a", "node[", "node[]", "node[a-b]", "node]", "(null)", "no de"] {
        assert_eq!(slurm::first_host(list), None, "{list}");
    }
    let srun = SRUN.replace("SLURM_STEP_NUM_NODES=1", "").replace("PER_NODE=2", "PER_NODE=1(x2)");
    assert!(refused(&srun.replace("LIST=node1", "LIST=n[")).contains("SLURM_STEP_NODELIST=n[ is no list"));
}

#[test]
fn tasks_are_counted_node_by_node() {
    let list = "2(x3),1,4(x2)";
    let tasks: Vec<_> = (0..7).map(|node| slurm::tasks_of_node(list, node)).collect();
    assert_eq!(tasks, [Some(2), Some(2), Some(2), Some(1), Some(4), Some(4), None]);
    for broken in ["", "x", "2(x", "2(xy)", "2(x4294967296)"] {
        assert_eq!(slurm::tasks_of_node(broken, 0), None, "{broken}");
    }
}

proptest::proptest! {
    #[test]
    fn no_list_and_no_address_makes_it_panic(text in "[a-z0-9\\[\\],:()x.-]{0,24}") {
        slurm::first_host(&text);
        slurm::tasks_of_node(&text, 1);
        let _ = text.parse::<RendezvousEndpoint>();
    }
}
