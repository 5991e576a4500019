//! `slackline train` as a user meets it: the program is run, and judged by its exit code, its output and its files.

use std::fs::File;
use std::io::{BufRead, BufReader, read_to_string};
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use slackline::RendezvousEndpoint;
use slackline_lab::data;
use slackline_lab::model::{self, Batches, ModelKind, ModelSpec, Scratch};
use tempfile::TempDir;

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slackline"));
    command.arg("train").args(arguments).env_remove("RUST_LOG");
    command
}

fn run(arguments: &[&str]) -> Output {
    command(arguments).output().expect("the program starts")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("messages are text")
}

/// Runs to the end and gives the JSON of stdout, which holds nothing else.
fn train(arguments: &[&str]) -> Value {
    let output = run(&[arguments, &["--json", "-"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).expect("stdout is one JSON value")
}

/// Runs what must be refused; gives what stderr says.
fn refused(code: i32, arguments: &[&str]) -> String {
    let output = run(arguments);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
    assert!(output.stdout.is_empty(), "{arguments:?}: stdout is for results");
    text
}

/// Asserts that arguments that cannot be used are refused in one line of what is wrong and one of what to do.
fn misused(arguments: &[&str], error: &str, help: &str) {
    let text = refused(2, arguments);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{arguments:?}: {text}");
    assert!(lines[0].starts_with("error: ") && lines[0].contains(error), "{arguments:?}: {text}");
    assert!(lines[1].starts_with("help: ") && lines[1].contains(help), "{arguments:?}: {text}");
}

fn write(folder: &TempDir, name: &str, content: impl AsRef<[u8]>) -> String {
    let path = folder.path().join(name);
    std::fs::write(&path, content).unwrap();
    path.to_str().unwrap().to_owned()
}

fn names(folder: &Path) -> Vec<PathBuf> {
    let mut names: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    names
}

#[test]
fn a_scheme_that_real_servers_cannot_run_is_refused() {
    misused(
        &["--scheme", "vap(strength=published)"],
        "real servers keep no updates",
        "--strength weak or strong",
    );
}

#[test]
fn without_options_it_learns_the_digits() {
    let output = run(&[]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    let accuracy = text.lines().find_map(|line| line.strip_prefix("accuracy ")).expect("it tells");
    let accuracy: f64 = accuracy.split(' ').next().unwrap().parse().unwrap();
    assert!(accuracy >= 95.0, "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
}

#[test]
fn every_scheme_learns_the_digits_and_keeps_its_bound() {
    for scheme in ["bsp", "asp", "ssp", "essp"] {
        let json = train(&["--scheme", scheme, "--seed", "7"]);
        assert_eq!(json["scheme"], scheme);
        assert!(json["final_accuracy"].as_f64().unwrap() >= 0.95, "{json}");
        assert!(json["final_loss"].as_f64().unwrap() < 0.5 && json["wall_s"].as_f64().unwrap() > 0.0);
        let workers = json["workers"].as_array().unwrap();
        assert_eq!(workers.len(), 2);
        for worker in workers {
            let clocks = worker["clocks"].as_u64().unwrap();
            let histogram: Vec<u64> = worker["staleness_histogram"]
                .as_array()
                .unwrap()
                .iter()
                .map(|n| n.as_u64().unwrap())
                .collect();
            assert_eq!(histogram.iter().sum::<u64>(), clocks);
            if let Some(bound) = json["staleness"].as_u64() {
                assert!(histogram.len() as u64 <= bound + 1, "{json}");
            }
            assert!(worker["compute_s"].as_f64().unwrap() > 0.0 && worker["wait_s"].as_f64().unwrap() > 0.0);
            let bytes = 4 * json["parameters"].as_u64().unwrap() * clocks;
            assert_eq!(worker["bytes_published"].as_u64().unwrap(), bytes);
            assert!(worker["bytes_pulled"].is_u64() && worker["pull_retries"].is_u64());
            assert_eq!(worker["evicted"], false);
        }
    }
}

#[test]
fn every_scheme_learns_over_tcp_on_one_host_too() {
    for scheme in ["bsp", "asp", "ssp", "essp"] {
        let json = train(&["--scheme", scheme, "--seed", "7", "--transport", "tcp", "--servers", "2"]);
        assert!(json["final_accuracy"].as_f64().unwrap() >= 0.95, "{json}");
        assert_eq!((&json["transport"], &json["evicted"]), (&"tcp".into(), &0.into()), "{json}");
    }
}

/// The loop that one worker under BSP must equal bit for bit.
fn serial(
    spec: &ModelSpec,
    mut parameters: Vec<f32>,
    seed: u64,
    batch: usize,
    epochs: u64,
    rate: impl Fn(u64) -> f32,
) -> Vec<f32> {
    let split = data::digits();
    let (mut velocity, mut gradient) = (vec![0.0f32; parameters.len()], vec![0.0; parameters.len()]);
    let mut scratch = Scratch::default();
    let mut batches = Batches::new(seed, 0, 1, split.train.rows(), batch).unwrap();
    for step in 0..epochs * batches.steps_per_epoch() as u64 {
        spec.loss_and_gradient(&parameters, &split.train, batches.rows(step), &mut gradient, &mut scratch);
        for ((p, m), g) in parameters.iter_mut().zip(&mut velocity).zip(&gradient) {
            *m = 0.9 * *m + *g;
            *p -= rate(step) * *m;
        }
    }
    parameters
}

#[test]
fn one_worker_under_bsp_gives_bit_for_bit_what_a_serial_loop_gives() {
    let folder = TempDir::new().unwrap();
    let (saved, expected) = (folder.path().join("saved"), folder.path().join("expected"));
    for (kind, hidden, servers) in [
        (ModelKind::Softmax, &[][..], "1"),
        (ModelKind::Mlp, &[64], "1"),
        (ModelKind::Mlp, &[32, 16, 8], "3"),
        (ModelKind::ConvNet, &[20], "2"),
    ] {
        let name = kind.to_string();
        let units = hidden.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        let options = ["--workers", "1", "--scheme", "bsp", "--model", &name, "--servers", servers];
        let widths = ["--hidden", &units];
        let widths = if hidden.is_empty() { &[][..] } else { &widths };
        let training = ["--epochs", "3", "--batch", "50", "--learning-rate", "0.05", "--seed", "11"];
        train(&[&options[..], widths, &training, &["--save", saved.to_str().unwrap()]].concat());
        let spec = ModelSpec::new(kind, 64, 10, hidden).unwrap();
        model::save(&expected, &spec, &serial(&spec, spec.initialise(11), 11, 50, 3, |_| 0.05)).unwrap();
        assert!(std::fs::read(&saved).unwrap() == std::fs::read(&expected).unwrap(), "{name}");
    }
}

#[test]
fn a_schedule_is_that_of_a_serial_loop_bit_for_bit() {
    let folder = TempDir::new().unwrap();
    let (saved, expected) = (folder.path().join("saved"), folder.path().join("expected"));
    let options = ["--workers", "1", "--scheme", "bsp", "--epochs", "2", "--batch", "50", "--seed", "11"];
    let schedule = ["--learning-rate", "0.05", "--schedule", "steps(20, 0.5)", "--servers", "2"];
    let json = train(&[&options[..], &schedule, &["--save", saved.to_str().unwrap()]].concat());
    assert_eq!(json["schedule"], "steps(20, 0.5)");
    let spec = ModelSpec::new(ModelKind::Mlp, 64, 10, &[64]).unwrap();
    let rate = |step: u64| 0.05 * 0.5f32.powi((step / 20) as i32);
    model::save(&expected, &spec, &serial(&spec, spec.initialise(11), 11, 50, 2, rate)).unwrap();
    assert!(std::fs::read(&saved).unwrap() == std::fs::read(&expected).unwrap());
}

#[test]
fn a_saved_model_is_taken_up_again_where_it_was() {
    let folder = TempDir::new().unwrap();
    let (first, second) = (folder.path().join("first"), folder.path().join("second"));
    let (first, second) = (first.to_str().unwrap(), second.to_str().unwrap());
    let options = ["--workers", "1", "--scheme", "bsp", "--epochs", "2", "--batch", "50"];
    let options = [&options[..], &["--learning-rate", "0.1"]].concat();
    train(&[&options[..], &["--hidden", "17", "--save", first]].concat());
    // Neither the model nor its width need to be said again.
    let json = train(&[&options[..], &["--load", first, "--save", second, "--seed", "5"]].concat());
    assert_eq!((&json["model"], &json["hidden"]), (&json!("mlp"), &json!([17])));
    assert_eq!(json["saved"], second);
    let spec = ModelSpec::new(ModelKind::Mlp, 64, 10, &[17]).unwrap();
    let expected = serial(&spec, model::load(first).unwrap().1, 5, 50, 2, |_| 0.1);
    assert!(model::load(second).unwrap().1 == expected);
    // Saving over what was loaded is what a user does who goes on and on.
    train(&[&options[..], &["--load", second, "--save", second]].concat());
}

/// Of two workers a sum is twice the mean, exactly: all numbers are halved and doubled by their exponents.
#[test]
fn gradients_that_add_up_are_those_of_twice_the_step_size_bit_for_bit() {
    let run = |own: &[&str], rate: &str| {
        let options = ["--scheme", "bsp", "--optimizer", "sgd", "--epochs", "3", "--learning-rate", rate];
        train(&[&options[..], own].concat())
    };
    let (sum, mean) = (run(&["--additive"], "0.125"), run(&[], "0.25"));
    assert_eq!((&sum["additive"], &mean["additive"]), (&json!(true), &json!(false)));
    assert_eq!(sum["final_loss"], mean["final_loss"]);
    assert_ne!(sum["final_loss"], run(&[], "0.125")["final_loss"]);
}

/// Two workers that see five digits each learn all ten together; each for itself knows half of them.
#[test]
fn workers_learn_from_shards_that_are_sorted_or_drawn() {
    for (shards, seed) in [("sorted", "1"), ("dirichlet(0.5)", "1")] {
        let options =
            ["--scheme", "bsp", "--optimizer", "sgd", "--epochs", "20", "--shards", shards, "--seed", seed];
        let json = train(&options);
        assert_eq!(json["shards"], shards);
        assert!(json["final_accuracy"].as_f64().unwrap() >= 0.9, "{shards}: {json}");
    }
    let text = refused(2, &["--shards", "even"]);
    assert!(
        text.contains("`even` says not how to deal out examples; write iid, sorted or dirichlet(A)"),
        "{text}"
    );
    misused(
        &["--shards", "dirichlet(0.01)", "--workers", "40", "--batch", "8"],
        "leaves none for worker",
        "seed",
    );
}

#[test]
fn training_learns_in_half_precision_by_several_servers_and_any_optimizer() {
    for options in [
        &["--encoding", "bf16", "--servers", "2", "--optimizer", "adam"][..],
        &["--encoding", "f16", "--servers", "3", "--optimizer", "adamw", "--threads", "2"],
        &["--optimizer", "sgd", "--workers", "3", "--model", "softmax", "--scheme", "essp"],
    ] {
        let json = train(options);
        assert!(json["final_accuracy"].as_f64().unwrap() >= 0.9, "{options:?}: {json}");
    }
}

#[test]
fn what_a_server_measures_and_waits_for_is_told() {
    for (options, k, bound, variance) in [
        (&["--scheme", "abs(k=2, staleness=4, rule=fixed)"][..], Some(2), Some(4), false),
        (&["--scheme", "abs(k=2, staleness=4, rule=fixed)", "--moments"], Some(2), Some(4), true),
        (&["--scheme", "bsp", "--moments"], None, None, true),
    ] {
        // Long enough for a server to tell how it is getting on.
        let short = ["--epochs", "2", "--jitter", "constant(0.02)", "--model", "softmax"];
        let json = train(&[options, &short].concat());
        let status = &json["server_status"][0];
        assert_eq!((status["waits_for"].as_u64(), status["staleness_bound"].as_u64()), (k, bound), "{json}");
        assert_eq!(status["variance"].as_f64().is_some_and(|variance| variance > 0.0), variance, "{json}");
    }
}

#[test]
fn a_straggler_is_slower_and_the_others_wait_for_it() {
    // A second and a tenth of one: few steps, to which a busy machine may add much.
    let slow = ["--jitter", "constant(0.1)", "--straggler", "1=10", "--batch", "256"];
    let options = [&["--scheme", "bsp", "--epochs", "1"][..], &slow].concat();
    let json = train(&options);
    let of = |worker: usize, what: &str| json["workers"][worker][what].as_f64().unwrap();
    assert!(of(1, "compute_s") > 3.0 * of(0, "compute_s"), "{json}");
    assert!(of(0, "wait_s") > of(1, "wait_s"), "{json}");
}

#[test]
fn json_goes_to_a_file_and_the_table_to_stdout() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("run.json");
    let output = run(&["--epochs", "1", "--json", path.to_str().unwrap()]);
    assert!(output.status.success());
    assert!(String::from_utf8(output.stdout).unwrap().contains("staleness"));
    let json: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(json["epochs"], 1);
    assert_eq!(names(folder.path()), [path], "nothing else is left there");
}

#[test]
fn a_run_whose_stderr_cannot_be_written_ends_as_any_other() {
    let unheard = |arguments: &[&str]| {
        let full = File::options().write(true).open("/dev/full").unwrap();
        command(arguments).stderr(full).output().unwrap()
    };
    let output = unheard(&["--epochs", "1", "--json", "-"]);
    assert!(output.status.success(), "{output:?}");
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["epochs"], 1);
    assert_eq!(unheard(&["--epochs", "0"]).status.code(), Some(2));
}

#[test]
fn a_model_that_cannot_be_saved_keeps_no_other_result_back() {
    let folder = TempDir::new().unwrap();
    let (models, json) = (folder.path().join("models"), folder.path().join("run.json"));
    std::fs::create_dir(&models).unwrap();
    let (model, meet) = (models.join("model"), RendezvousEndpoint::free(Ipv4Addr::LOCALHOST.into()).unwrap());
    let (save, json_file, meet) = (model.to_str().unwrap(), json.to_str().unwrap(), meet.to_string());
    let job = ["--coordinate", "--workers", "1", "--epochs", "1", "--rendezvous", &meet];
    let mut run = command(&[&job[..], &["--json", json_file, "--save", save]].concat());
    let mut run = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(run.stderr.take().unwrap());
    // It has found that it can write both, and waits for its members.
    said.read_line(&mut String::new()).unwrap();
    std::fs::remove_dir(&models).unwrap();
    let members = ["serve", "work"].map(|role| {
        let mut member = Command::new(env!("CARGO_BIN_EXE_slackline"));
        member.args([role, "--rendezvous", &meet]).stderr(Stdio::null()).spawn().unwrap()
    });
    let text = read_to_string(said).unwrap();
    let output = run.wait_with_output().unwrap();
    members.into_iter().for_each(|mut member| assert!(member.wait().unwrap().success()));
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("error: --save ") && text.contains("model"), "{text}");
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("staleness") && table.ends_with("\nnot saved\n"), "{table}");
    let json: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_eq!(json.get("saved"), Some(&Value::Null));
    assert_eq!(json["epochs"], 1);
}

#[test]
fn other_data_is_trained_on() {
    let folder = TempDir::new().unwrap();
    let mut csv = String::from("x,y,label\n");
    for row in 0..200 {
        let (x, y) = (row % 20, row / 20);
        csv.push_str(&format!("{x},{y},{}\n", if x > 2 * y { 7 } else { 3 }));
    }
    let data = write(&folder, "points.csv", csv);
    // In lock step: how far so few steps get must not hang on who was faster.
    let json =
        train(&["--data", &data, "--scheme", "bsp", "--batch", "8", "--hidden", "16", "--epochs", "100"]);
    assert_eq!((json["train_examples"].as_u64(), json["test_examples"].as_u64()), (Some(160), Some(40)));
    assert!(json["final_accuracy"].as_f64().unwrap() > 0.8, "{json}");
}

#[test]
fn options_that_cannot_be_are_refused_with_a_remedy() {
    misused(&["--workers", "0"], "--workers cannot be 0", "1 to 255");
    misused(&["--workers", "256"], "--workers cannot be 256", "1 to 255");
    misused(&["--servers", "0"], "--servers cannot be 0", "1 to 64");
    misused(
        &["--servers", "60", "--model", "softmax"],
        "--servers: cannot cut 2600 bytes into 60",
        "1 to 41",
    );
    misused(&["--threads", "0"], "--threads cannot be 0", "1 to 1024");
    misused(&["--epochs", "0"], "--epochs cannot be 0", "1 or more");
    misused(&["--batch", "0"], "--batch cannot be 0", "1 or more");
    misused(&["--batch", "719"], "2 workers with batches of 719", "smaller batch");
    for (options, error, help) in [
        (&["--scheme", "dbw", "--k", "3"][..], "--k: k of dbw cannot be 3 with 2 workers", "at most as many"),
        (&["--scheme", "ds-sync", "--damping", "inverse"], "--damping: ds-sync has no server", "leave"),
        (
            &["--optimizer", "sgd", "--read-my-writes", "--damping", "inverse"],
            "--read-my-writes: with --damping",
            "leave out one",
        ),
        (&["--scheme", "k-sync", "--additive"], "--additive: k-sync leaves gradients out", "use bsp"),
        (&["--scheme", "vap", "--optimizer", "sgd", "--additive"], "--additive: vap", "use bsp"),
        (&["--scheme", "ds-sync", "--additive"], "--additive: ds-sync has no server", "leave --additive out"),
        (&["--secret-file", "/no/such/secret"], "/no/such/secret: No such", "umask 077 &&"),
        (&["--scheme", "ds-sync", "--workers", "6"], "--group: group of ds-sync cannot be 2 with 6", "power"),
        (&["--scheme", "ds-sync", "--servers", "1"], "--servers 1: ds-sync has none", "leave --servers out"),
        (&["--scheme", "ds-sync", "--restarts", "1"], "--restarts: ds-sync has no server", "leave"),
        (&["--scheme", "ds-sync", "--moments"], "--moments: ds-sync has no server", "leave"),
        (&["--scheme", "ds-sync", "--non-finite", "drop"], "--non-finite: ds-sync has no server", "leave"),
        (&["--scheme", "ds-sync", "--encoding", "bf16"], "--encoding: ds-sync has no server", "leave"),
        (&["--scheme", "ds-sync", "--read-my-writes", "--optimizer", "sgd"], "--read-my-writes", "leave"),
        (&["--scheme", "k-async", "--read-my-writes", "--optimizer", "sgd"], "under k-async what", "use bsp"),
        (&["--scheme", "delay", "--read-my-writes", "--optimizer", "sgd"], "--read-my-writes", "use bsp"),
        (&["--scheme", "ssp", "--read-my-writes"], "--read-my-writes", "--optimizer sgd"),
        (&["--scheme", "ds-sync", "--idle", "sleep"], "--idle: ds-sync has no server", "leave"),
        (&["--scheme", "abs", "--local-steps", "3"], "--local-steps 3", "--optimizer sgd"),
        (&["--scheme", "dbw", "--delivery", "pigeon"], "--delivery: delivery of dbw cannot be", "interrupt"),
        (&["--jitter", "normal(1)"], "--jitter: no distribution of times is written", "constant(SECONDS)"),
        (&["--jitter", "trace:/no/such/file"], "--jitter: cannot read the trace /no/such/file", "number"),
        (&["--target-accuracy", "1.5"], "--target-accuracy cannot be 1.5", "such as 0.95"),
    ] {
        misused(options, error, help);
    }
    misused(&["--scheme", "bsp", "--staleness", "2"], "bsp takes no staleness", "ssp or essp");
    misused(&["--scheme", "asp", "--staleness", "0"], "asp takes no staleness", "ssp or essp");
    for rate in ["nan", "inf", "0", "-0.1", "1e-60"] {
        misused(&["--learning-rate", rate], "--learning-rate cannot be", "above 0");
    }
    let unknown = refused(2, &["--schedule", "linear(3)"]);
    assert!(
        unknown.contains("no schedule of step sizes is written \"linear(3)\": write constant"),
        "{unknown}"
    );
    let published = ["--scheme", "dbw(choice=published)", "--optimizer", "adam"];
    misused(&published, "--optimizer adam: dbw(choice=published)", "--optimizer sgd");
    misused(
        &["--scheme", "dbw", "--optimizer", "adamw"],
        "--optimizer adamw: dbw",
        "--optimizer sgd or momentum",
    );
    let falling = ["--schedule", "inverse-root", "--optimizer", "sgd"];
    let with = |more: &[&'static str]| [&falling[..], more].concat();
    misused(
        &with(&["--read-my-writes"]),
        "--schedule inverse-root(1): with --read-my-writes",
        "leave out one",
    );
    misused(&with(&["--scheme", "k-sync(2, local-steps=2)"]), "--schedule inverse-root(1)", "--local-steps");
    for timeout in ["nan", "inf", "0", "-1", "1e300"] {
        misused(&["--timeout", timeout], "--timeout cannot be", "seconds");
    }
    misused(&["--straggler", "2=4"], "there is no worker 2", "0 to 1");
    misused(&["--straggler", "1=0.5"], "factor cannot be 0.5", "1 (full speed)");
    misused(&["--straggler", "1=nan"], "factor cannot be NaN", "1 (full speed)");
    misused(&["--straggler", "1=2", "--straggler", "1=3"], "was given a factor before", "one per worker");
    misused(&["--model", "softmax", "--hidden", "3"], "softmax has no hidden units", "--model mlp");
    misused(&["--hidden", "0"], "0 hidden units", "one unit in each hidden layer");
    misused(&["--hidden", "99999999999"], "more than the 268435456 parameters", "fewer");
}

#[test]
fn unknown_words_are_refused_with_the_known_ones() {
    for (option, word, known) in [
        ("--scheme", "forest", "bsp, asp, ssp, essp"),
        ("--model", "forest", "softmax, mlp"),
        ("--optimizer", "lion", "sgd, momentum, adam, adamw"),
        ("--encoding", "f8", "f32, bf16, f16"),
        ("--transport", "pigeon", "shm"),
    ] {
        let text = refused(2, &[option, word]);
        assert!(text.starts_with("error: ") && text.contains(word) && text.contains(known), "{text}");
    }
    assert!(refused(2, &["--straggler", "1"]).contains("WORKER=FACTOR"));
    assert!(refused(2, &["--workers", "-3"]).contains("--workers"));
    assert!(refused(2, &["--worker", "3"]).contains("--workers"), "it guesses what was meant");
}

#[test]
fn data_that_cannot_be_used_is_refused_with_its_location() {
    let folder = TempDir::new().unwrap();
    misused(&["--data", "/no/such/file"], "/no/such/file: no such file", "check the path");
    misused(&["--data", folder.path().to_str().unwrap()], "not a regular file", "CSV");
    let file = write(&folder, "bad.csv", "1,2,0\n1,2,1\n1,x,0\n");
    misused(&["--data", &file], "bad.csv:3: `x` is not a number", "every value");
    let file = write(&folder, "short.csv", "1,2,0\n1,1\n");
    misused(&["--data", &file], "short.csv:2: 2 values where line 1 has 3", "same number");
    let file = write(&folder, "empty.csv", "");
    misused(&["--data", &file], "holds no examples", "one example a line");
    let file =
        write(&folder, "train-images-idx3-ubyte", b"\0\0\x08\x03\0\0\0\x02\0\0\0\x02\0\0\0\x02\x01\x02");
    misused(&["--data", &file], "18 bytes where its header promises 24", "fetch it again");
    let file = write(&folder, "picture.png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR");
    misused(&["--data", &file], "not text", "expected CSV");
}

#[test]
fn models_that_cannot_be_used_are_refused() {
    let folder = TempDir::new().unwrap();
    misused(&["--load", "/no/such/model"], "no such file", "check the path");
    let spec = ModelSpec::new(ModelKind::Mlp, 64, 10, &[5]).unwrap();
    let path = folder.path().join("five");
    model::save(&path, &spec, &spec.initialise(1)).unwrap();
    let five = path.to_str().unwrap();
    let text = refused(2, &["--load", five, "--hidden", "6"]);
    assert!(text.contains("5 hidden units") && text.contains("6 hidden units"), "both shapes: {text}");
    let text = refused(2, &["--load", five, "--model", "softmax"]);
    assert!(text.contains("mlp of 64 columns") && text.contains("softmax of 64 columns"), "{text}");
    let bytes = std::fs::read(&path).unwrap();
    let cut = write(&folder, "cut", &bytes[..bytes.len() - 9]);
    misused(&["--load", &cut], "cut short or damaged", "copy it again");
    let rubbish = write(&folder, "rubbish", "these are no tensors");
    misused(&["--load", &rubbish], "not a safetensors file", "check the path");
}

#[test]
fn outputs_that_cannot_be_written_are_found_out_before_training() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().to_str().unwrap();
    // So many epochs would take hours: a run that comes back at once has not trained.
    for option in ["--save", "--json"] {
        let train = ["--epochs", "1000000", option];
        misused(
            &[&train[..], &["/no/such/folder/x"]].concat(),
            "there is no folder /no/such/folder",
            "mkdir",
        );
        misused(&[&train[..], &[path]].concat(), "is a folder", "add a file name");
        misused(&[&train[..], &["/dev/null"]].concat(), "not a regular file", "name a file");
        misused(&[&train[..], &["/proc/x"]].concat(), "cannot be written to", "another folder");
    }
    let data = write(&folder, "d.csv", "1,0\n2,1\n");
    misused(&["--data", &data, "--save", &data], "--data names the same file", "another name");
    let both = format!("{path}/both");
    misused(&["--save", &both, "--json", &both], "--save names the same file", "another name");
    assert_eq!(names(folder.path()), [PathBuf::from(&data)]);
}

#[test]
fn a_run_that_fails_leaves_the_saved_model_as_it_was() {
    let folder = TempDir::new().unwrap();
    let model = write(&folder, "model.safetensors", "precious");
    let text = refused(1, &["--learning-rate", "1e30", "--epochs", "3", "--save", &model]);
    assert!(text.contains("error: the run diverged") && text.contains("help: use a smaller --learning-rate"));
    assert_eq!(std::fs::read(&model).unwrap(), b"precious");
    assert_eq!(names(folder.path()), [PathBuf::from(&model)]);
}

#[test]
fn a_run_that_takes_too_long_ends_with_the_reason() {
    let text = refused(1, &["--timeout", "0.001"]);
    // Either the coordinator or a worker says it: the one that waits first.
    assert!(text.contains("waited 1ms for ") || text.contains("did not end within "), "{text}");
    assert!(
        text.contains("help: use a longer --timeout") || text.contains("the timeout too short"),
        "{text}"
    );
}

#[test]
fn memory_that_cannot_be_had_is_an_error_before_anything_is_taken() {
    // Well over a terabyte for all of them together.
    let text = refused(1, &["--hidden", "3500000", "--workers", "255", "--batch", "5"]);
    assert!(text.contains("needs about") && text.contains("help: use fewer workers"), "{text}");
    // Gradients that are kept, and an inbox from each worker at each other.
    let kept = ["--optimizer", "sgd", "--scheme", "ssp(100000000)", "--read-my-writes"];
    for options in
        [&kept[..], &["--scheme", "ssp(18446744073709551615)", "--optimizer", "sgd", "--read-my-writes"]]
    {
        let text = refused(1, options);
        assert!(text.contains("needs about") && text.contains("help: use less staleness"), "{text}");
    }
    let group = ["--scheme", "ds-sync", "--hidden", "100000", "--workers", "128", "--batch", "5"];
    assert!(refused(1, &group).contains("needs about"));
    // Where the processes may be on other hosts, this one's memory says nothing of theirs.
    let free = RendezvousEndpoint::free(Ipv4Addr::LOCALHOST.into()).unwrap().to_string();
    let elsewhere = ["--coordinate", "--rendezvous", &free, "--timeout", "0.2"];
    let text = refused(1, &[&group[..], &elsewhere].concat());
    assert!(text.contains("waited ") && !text.contains("needs about"), "{text}");
    let limited =
        format!("ulimit -v 500000; exec {} train --hidden 1000000", env!("CARGO_BIN_EXE_slackline"));
    let output = Command::new("sh").args(["-c", &limited]).output().unwrap();
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("the system refuses") && text.contains("ulimit -v"), "{text}");
}

#[test]
fn a_secret_file_that_others_can_read_is_refused_and_a_good_one_is_used() {
    let folder = TempDir::new().unwrap();
    let file = write(&folder, "secret", "a secret that is long enough for anybody");
    let mode = |mode| std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
    mode(0o644);
    misused(&["--secret-file", &file], "has mode 644", "chmod 600");
    mode(0o600);
    assert_eq!(train(&["--epochs", "1", "--secret-file", &file])["evicted"], 0);
}

#[test]
fn a_run_over_encrypted_tcp_learns_what_one_in_the_clear_does() {
    let options = ["--scheme", "bsp", "--seed", "7", "--transport", "tcp", "--servers", "2", "--epochs", "2"];
    let encrypted = train(&[&options[..], &["--encrypt"]].concat());
    assert_eq!(encrypted["final_accuracy"], train(&options)["final_accuracy"]);
    assert_eq!((&encrypted["transport"], &encrypted["evicted"]), (&"tcp".into(), &0.into()), "{encrypted}");
}

#[test]
fn processes_that_sleep_while_they_wait_learn_what_those_that_poll_do() {
    let options = ["--scheme", "bsp", "--seed", "7", "--transport", "shm", "--servers", "2", "--epochs", "2"];
    let asleep = train(&[&options[..], &["--idle", "sleep"]].concat());
    assert_eq!(asleep["final_loss"], train(&options)["final_loss"], "bit for bit");
    assert_eq!(asleep["evicted"], 0, "{asleep}");
}

#[test]
fn encryption_that_cannot_be_had_is_refused_with_a_remedy() {
    let coordinate = ["--coordinate", "--rendezvous", "127.0.0.1:21000", "--encrypt"];
    misused(&coordinate, "tcp data cannot be encrypted without a secret", "SLACKLINE_SECRET_FILE");
    let output = command(&["--epochs", "1"]).env("SLACKLINE_TCP_ENCRYPT", "maybe").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("SLACKLINE_TCP_ENCRYPT is `maybe`"), "{}", stderr(&output));
    let text = refused(1, &["--transport", "verbs", "--encrypt", "--epochs", "1"]);
    assert!(text.contains("RDMA cannot be encrypted") && text.contains("IPsec or MACsec"), "{text}");
}

#[test]
fn a_run_over_tcp_that_goes_well_warns_of_nothing() {
    let options = ["--transport", "tcp", "--servers", "2", "--epochs", "1", "--model", "softmax"];
    let output = command(&options).env("RUST_LOG", "warn").output().unwrap();
    assert!(output.status.success() && !stderr(&output).contains("WARN"), "{}", stderr(&output));
}

#[test]
fn help_tells_of_everything() {
    let output = run(&["--help"]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    // Wherever lines are broken.
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in
        ["Examples:", "Exit codes:", "--straggler <WORKER=FACTOR>", "[default: 3]", "Scheme:", "Output:"]
    {
        assert!(words.contains(part), "{part}: {text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
}

#[test]
fn every_rank_of_a_launcher_trains_where_there_is_no_server() {
    let meet = RendezvousEndpoint::free(Ipv4Addr::LOCALHOST.into()).unwrap().to_string();
    let start = |rank: &str| {
        let ranks = ["--rank", rank, "--world-size", "2", "--rendezvous", &meet];
        let options = ["--scheme", "ds-sync", "--epochs", "3", "--model", "softmax", "--json", "-"];
        let mut command = command(&[&ranks[..], &options].concat());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts")
    };
    let (other, first) = (start("1"), start("0"));
    let (first, other) = (first.wait_with_output().unwrap(), other.wait_with_output().unwrap());
    assert!(first.status.success() && other.status.success(), "{}{}", stderr(&first), stderr(&other));
    let json: Value = serde_json::from_slice(&first.stdout).expect("stdout is one JSON value");
    assert_eq!((json["workers"].as_array().map(Vec::len), &json["evicted"]), (Some(2), &0.into()), "{json}");
    assert!(other.stdout.is_empty());
}

#[test]
fn a_process_that_is_not_told_where_to_meet_says_what_to_tell() {
    for role in ["serve", "work"] {
        let output = Command::new(env!("CARGO_BIN_EXE_slackline")).arg(role).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let text = stderr(&output);
        assert!(text.contains("nothing says where to meet") && text.contains("--rendezvous"), "{text}");
        let output = Command::new(env!("CARGO_BIN_EXE_slackline"))
            .args([role, "--rendezvous", "127.0.0.1:9", "--timeout", "0.3"])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1));
        let text = stderr(&output);
        assert!(text.contains("could not join at 127.0.0.1:9 within 300ms"), "{text}");
        assert!(text.contains("is rank 0 running"), "{text}");
    }
}
