//! The steps that have passed on the tree as it is, for `cargo xtask test --again` to skip.
//!
//! A tree is named as git names trees: by what its files hold, those that are not committed and those that git does not
//! follow yet among them, those that it ignores not. The compiler is part of the name, since a new one may find more.

use crate::cmd::Cmd;
use crate::site::Site;
use std::fs;
use std::path::PathBuf;

/// A record in the target folder: a line with the name of a tree for each step that passed on it.
#[derive(Debug)]
pub(crate) struct Passed {
    file: PathBuf,
    /// Steps that passed on the tree of `key`.
    steps: Vec<String>,
    key: Option<String>,
}

impl Passed {
    /// Reads what has passed on this tree.
    pub(crate) fn read(site: &Site) -> Passed {
        let (file, key) = (site.target.join("xtask-passed"), key(site));
        let text = fs::read_to_string(&file).unwrap_or_default();
        let lines = text.lines().filter_map(|line| line.rsplit_once(' '));
        let steps = lines.filter(|(tree, _)| Some(*tree) == key.as_deref()).map(|(_, step)| step.to_string());
        Passed { steps: steps.collect(), file, key }
    }

    /// Returns true if git could name the tree.
    pub(crate) fn knows_the_tree(&self) -> bool {
        self.key.is_some()
    }

    /// Returns true if the step has passed on this tree.
    pub(crate) fn has(&self, step: &str) -> bool {
        self.steps.iter().any(|passed| passed == step)
    }

    /// Records that the step has passed, unless the tree was changed since the record was read.
    pub(crate) fn add(&mut self, site: &Site, step: &str) {
        let Some(tree) = key(site).filter(|key| Some(key) == self.key.as_ref()) else { return };
        if !self.has(step) {
            self.steps.push(step.into());
        }
        let lines: String = self.steps.iter().map(|step| format!("{tree} {step}\n")).collect();
        // Without the record, the step runs again: nothing is lost but time.
        let _ = fs::write(&self.file, lines);
    }
}

/// The name of the tree, and the compiler; none where git has no answer.
fn key(site: &Site) -> Option<String> {
    let own = site.target.join("xtask-tree");
    fs::create_dir_all(own.join("objects")).ok()?;
    // An index and objects of their own: the user's are not touched.
    let git = |arguments: &[&str]| {
        let git = Cmd::new("git", arguments).env("GIT_INDEX_FILE", &own.join("index").to_string_lossy());
        git.env("GIT_OBJECT_DIRECTORY", &own.join("objects").to_string_lossy()).output(site)
    };
    git(&["add", "--all"])?;
    let tree = git(&["write-tree"])?;
    let compiler = Cmd::new("rustc", &["--version"]).output(site)?;
    Some(format!("{} {}", tree.trim(), compiler.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn git(folder: &Path, arguments: &[&str]) {
        let git = std::process::Command::new("git").args(arguments).current_dir(folder).output().unwrap();
        assert!(git.status.success(), "{}", String::from_utf8_lossy(&git.stderr));
    }

    /// A repository with one file, in a folder of its own.
    fn repository(name: &str) -> Site {
        let root = std::env::temp_dir().join(format!("xtask-{name}-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        git(&root, &["init", "--quiet"]);
        fs::write(root.join(".gitignore"), "target\n").unwrap();
        fs::write(root.join("code"), "1").unwrap();
        Site { target: root.join("target"), root, host: String::new(), nightly: false }
    }

    #[test]
    fn a_step_has_passed_until_any_file_changes() {
        let site = repository("changes");
        Passed::read(&site).add(&site, "fmt");
        let mut passed = Passed::read(&site);
        passed.add(&site, "clippy");
        let both = |passed: &Passed| passed.has("fmt") && passed.has("clippy");
        assert!(both(&Passed::read(&site)) && !Passed::read(&site).has("test"));

        // A file that git ignores changes nothing; one that it has never seen does, until it is gone.
        fs::write(site.target.join("built"), "x").unwrap();
        assert!(both(&Passed::read(&site)));
        fs::write(site.root.join("new"), "x").unwrap();
        assert!(!Passed::read(&site).has("fmt"));
        fs::remove_file(site.root.join("new")).unwrap();
        assert!(both(&Passed::read(&site)));
        fs::write(site.root.join("code"), "2").unwrap();
        assert!(!Passed::read(&site).has("fmt"));
        fs::remove_dir_all(&site.root).unwrap();
    }

    #[test]
    fn a_step_on_a_tree_that_was_changed_meanwhile_is_not_recorded() {
        let site = repository("meanwhile");
        let mut passed = Passed::read(&site);
        fs::write(site.root.join("code"), "2").unwrap();
        passed.add(&site, "fmt");
        assert!(!Passed::read(&site).has("fmt"));
        fs::write(site.root.join("code"), "1").unwrap();
        assert!(!Passed::read(&site).has("fmt"));
        fs::remove_dir_all(&site.root).unwrap();
    }

    #[test]
    fn the_users_index_and_objects_are_left_alone() {
        let site = repository("alone");
        Passed::read(&site).add(&site, "fmt");
        assert!(!site.root.join(".git/index").exists());
        let objects = fs::read_dir(site.root.join(".git/objects")).unwrap();
        let names: Vec<_> = objects.map(|entry| entry.unwrap().file_name()).collect();
        assert!(names.iter().all(|name| name == "info" || name == "pack"), "{names:?}");
        fs::remove_dir_all(&site.root).unwrap();
    }
}
