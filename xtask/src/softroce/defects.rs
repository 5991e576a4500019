//! The known defects of the kernel's rxe: `defects.txt`.

use super::runs::RUNS;

/// One line of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Defect {
    pub(super) run: String,
    pub(super) check: String,
    kernels: Kernels,
    pub(super) reason: String,
}

/// From the first on, and before the second.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kernels {
    from: Vec<u32>,
    before: Option<Vec<u32>>,
}

impl Kernels {
    fn parse(text: &str) -> Option<Kernels> {
        let (from, before) = text.split_once("..")?;
        let side = |text: &str| text.split('.').map(|part| part.parse().ok()).collect::<Option<Vec<u32>>>();
        let from = if from.is_empty() { Vec::new() } else { side(from)? };
        let before = if before.is_empty() { None } else { Some(side(before)?) };
        before.as_ref().is_none_or(|before| from < *before).then_some(Kernels { from, before })
    }

    fn contain(&self, kernel: &str) -> bool {
        let kernel = version(kernel);
        self.from <= kernel && self.before.as_ref().is_none_or(|before| kernel < *before)
    }
}

/// The numbers that a kernel's release begins with: 6, 1, 0 of `6.1.0-56-amd64`.
fn version(release: &str) -> Vec<u32> {
    let numbers = release.split(|c: char| !c.is_ascii_digit() && c != '.').next().unwrap_or_default();
    numbers.split('.').map_while(|part| part.parse().ok()).collect()
}

/// The defects of this kernel.
///
/// # Errors
/// Names the line that is not understood, names no run, or stands there twice.
pub(super) fn of(kernel: &str, text: &str) -> Result<Vec<Defect>, String> {
    let mut found: Vec<Defect> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = |what: &str| format!("defects.txt:{}: {what}: {line}", number + 1);
        let mut words = line.splitn(4, ' ');
        let (Some(run), Some(check), Some(kernels), Some(reason)) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(wrong("not RUN CHECK KERNELS REASON"));
        };
        if !RUNS.iter().any(|entry| entry.name == run) {
            return Err(wrong("there is no such run"));
        }
        let kernels = Kernels::parse(kernels).ok_or_else(|| wrong("no range of kernels, as 6.1..6.5"))?;
        let is_here = kernels.contain(kernel);
        let defect = Defect { run: run.into(), check: check.into(), kernels, reason: reason.into() };
        if !is_here {
            continue;
        }
        if found.iter().any(|other| other.run == defect.run && other.check == defect.check) {
            return Err(wrong("this check has another line for this kernel"));
        }
        found.push(defect);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNEL: &str = "6.1.0-56-amd64";

    fn contains(range: &str, kernel: &str) -> bool {
        Kernels::parse(range).unwrap().contain(kernel)
    }

    #[test]
    fn a_range_has_its_begin_and_not_its_end() {
        assert_eq!(version(KERNEL), [6, 1, 0]);
        assert_eq!(version("6.12.57+deb13-amd64"), [6, 12, 57]);
        assert!(contains("6.1..6.5", KERNEL) && contains("6.1..", KERNEL) && contains("..6.2", KERNEL));
        assert!(contains("6.1..6.12", "6.11.9") && !contains("6.1..6.12", "6.12.0-1-amd64"));
        assert!(!contains("6.2..", KERNEL) && !contains("..6.1", KERNEL));
        assert!(contains("..", KERNEL), "every kernel");
        for wrong in ["6.1", "6.5..6.1", "6.1..6.1", "6.x..", "all", "6.1...6.2"] {
            assert_eq!(Kernels::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_list_says_what_is_wrong_with_it() {
        let line = "perftest a::claim 6.1..6.5 reads memory again";
        let list = of(KERNEL, &format!("# a comment\n\n{line}\n")).unwrap();
        assert_eq!((list[0].check.as_str(), list[0].reason.as_str()), ("a::claim", "reads memory again"));
        assert_eq!(of("6.5.0", line), Ok(Vec::new()));
        for wrong in ["perftest a 6.1..", "no-such-run a 6.1.. why", "perftest a 6.1 why"] {
            assert!(of(KERNEL, wrong).is_err(), "{wrong}");
        }
        assert!(of(KERNEL, &format!("{line}\n{line}")).is_err());
        assert!(of(KERNEL, "perftest a 6.1..6.5 why\nperftest a 6.5.. why").is_ok());
    }

    #[test]
    fn the_list_of_the_project_is_understood() {
        of(KERNEL, include_str!("defects.txt")).unwrap();
    }
}
