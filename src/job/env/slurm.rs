//! The two little languages of Slurm's variables.

/// The longest name that is taken for a host (RFC 1035).
const HOST_MAX: usize = 255;

/// The first host of a list such as `node[003-010,12],login1` or `rack[1-2]n[01-04]`; none if it is no such list.
pub(super) fn first_host(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list;
    loop {
        let end = rest.find(['[', ',', ']']).unwrap_or(rest.len());
        host.push_str(&rest[..end]);
        match rest[end..].chars().next() {
            None | Some(',') => break,
            Some('[') => {
                let (ranges, after) = rest[end + 1..].split_once(']')?;
                let first = ranges.split([',', '-']).next()?;
                if first.is_empty() || !ranges.chars().all(|c| c.is_ascii_digit() || c == '-' || c == ',') {
                    return None;
                }
                // The zeros in front are part of the name.
                host.push_str(first);
                rest = after;
            }
            Some(_) => return None,
        }
    }
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
    (!host.is_empty() && host.len() <= HOST_MAX && host.chars().all(is_name)).then_some(host)
}

/// Returns the number of tasks that the node with this number has, by a list such as `2(x3),1`.
pub(super) fn tasks_of_node(list: &str, node: u32) -> Option<u32> {
    let mut before: u32 = 0;
    for part in list.split(',') {
        let (tasks, nodes) = match part.split_once("(x") {
            Some((tasks, nodes)) => (tasks, nodes.strip_suffix(')')?.parse().ok()?),
            None => (part, 1),
        };
        before = before.checked_add(nodes)?;
        if node < before {
            return tasks.parse().ok();
        }
    }
    None
}
