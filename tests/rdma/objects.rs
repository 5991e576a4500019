//! The objects of RDMA devices that the kernel counts.

use std::process::Command;

/// Queue pairs, completion queues, regions and domains on all devices of the host where `rdma` (of iproute2) is run.
pub(crate) fn objects(rdma: &mut Command) -> Vec<u64> {
    let output = rdma.args(["resource", "show"]).output().expect("`rdma` of iproute2");
    let text = String::from_utf8(output.stdout).unwrap();
    let words: Vec<&str> = text.split_whitespace().collect();
    let count = |kind: &str| {
        let numbers = words.windows(2).filter(|pair| pair[0] == kind);
        numbers.map(|pair| pair[1].parse::<u64>().expect("a number")).sum()
    };
    assert!(words.contains(&"qp"), "{text}");
    ["qp", "cq", "mr", "pd"].map(count).to_vec()
}
