//! `cargo xtask book`: the pages of `docs/` and of the root as a book, made by mdBook, without a dead link.
//!
//! mdBook takes one folder. The pages, and the programs that they link to, are copied into one; links between `docs/`
//! and the root lead to the copies.

use crate::Command;
use crate::cmd::Cmd;
use crate::failure::Failure;
use crate::needs::{self, Need};
use crate::site::Site;
use crate::steps::{Feature, Step};
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

pub(crate) const COMMAND: Command = Command {
    name: "book",
    arguments: "[--check]",
    about: "the documentation as a book in target/book; --check: without drawings, which need npm to be fetched",
    run,
};

/// The pages at the root that the book has, in the order of the last chapter; the first one begins the book.
const ROOT_PAGES: &[&str] = &["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"];

/// The folders at the root that pages link to.
const LINKED: &[&str] = &["examples", "ffi/examples"];

/// The version of Mermaid, which draws the diagrams of the pages in the reader's browser.
const MERMAID: &str = "mermaid@11.17.2";

/// Turns the blocks of code that mdBook makes of diagrams into what Mermaid looks for.
const DRAW: &str = "for (const code of document.querySelectorAll('code.language-mermaid')) {\n  \
                    const drawing = document.createElement('pre');\n  drawing.className = 'mermaid';\n  \
                    drawing.textContent = code.textContent;\n  code.parentElement.replaceWith(drawing);\n}\n\
                    mermaid.initialize({ startOnLoad: true, theme: 'neutral' });\n";

/// The step of `cargo xtask test`.
pub(crate) fn step() -> Step {
    Step {
        name: "book",
        about: "the pages make a book without a dead link",
        needs: Vec::new(),
        feature: Some(Feature::Installed(Need::MdBook)),
        commands: vec![Cmd::new("cargo", &["xtask", "book", "--check"])],
    }
}

fn run(site: &Site, arguments: &[String]) -> Result<(), Failure> {
    let check = match arguments {
        [] => false,
        [argument] if argument == "--check" => true,
        _ => return Err(Failure::Usage("`book` takes no argument but --check".into())),
    };
    needs::ensure(site, &[Need::MdBook])?;
    let (source, book) = (site.target.join("book-source"), site.target.join("book"));
    let failed = |error: io::Error| Failure::Missing {
        what: format!("cannot copy the pages to {}: {error}", source.display()),
        remedy: "look at its permissions and the space left".into(),
    };
    gather(&site.root, &source).map_err(failed)?;
    if !check {
        fetch_mermaid(site, &source)?;
    }
    let (from, to) = (source.to_string_lossy(), book.to_string_lossy());
    let mdbook = needs::python_program(site, "mdbook");
    Cmd::new(&mdbook.to_string_lossy(), &["build", &from, "--dest-dir", &to]).run(site)?;
    let dead = dead_links(&book).map_err(failed)?;
    if !dead.is_empty() {
        let what = format!("dead links in the book:\n  {}", dead.join("\n  "));
        return Err(Failure::Check { what, status: format!("{} dead links", dead.len()) });
    }
    println!("the book: {}", book.join("index.html").display());
    Ok(())
}

/// Copies book.toml, the pages and what they link to into the folder, which it empties first.
fn gather(root: &Path, source: &Path) -> io::Result<()> {
    match fs::remove_dir_all(source) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let pages = source.join("docs");
    copy_folder(&root.join("docs"), &pages)?;
    for folder in LINKED {
        copy_folder(&root.join(folder), &pages.join(folder))?;
    }
    for entry in fs::read_dir(&pages)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "md") {
            let text = fs::read_to_string(&path)?.replace("](../", "](");
            fs::write(&path, with_root_pages(&path, text))?;
        }
    }
    for name in ROOT_PAGES {
        let text = fs::read_to_string(root.join(name))?;
        fs::write(pages.join(name), text.replace("](docs/", "]("))?;
    }
    fs::copy(root.join("book.toml"), source.join("book.toml"))?;
    Ok(())
}

/// The table of contents with the pages of the root, or the text of another page as it is.
fn with_root_pages(path: &Path, text: String) -> String {
    if !path.ends_with("SUMMARY.md") {
        return text;
    }
    let title = |name: &&str| format!("- [{}]({name})\n", name.trim_end_matches(".md"));
    let last: String = ROOT_PAGES[1..].iter().map(title).collect();
    let text = text.replacen("# Summary\n", &format!("# Summary\n\n[Slackline]({})\n", ROOT_PAGES[0]), 1);
    text.replacen("\n---\n", &format!("\n# The project\n\n{last}\n---\n"), 1)
}

fn copy_folder(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name()))?;
        match path.is_dir() {
            true => copy_folder(&path, &to.join(name))?,
            false => drop(fs::copy(&path, to.join(name))?),
        }
    }
    Ok(())
}

/// Fetches the program that draws diagrams, once, and has each page of the book load it.
fn fetch_mermaid(site: &Site, source: &Path) -> Result<(), Failure> {
    let folder = site.target.join("tools/mermaid");
    let script = format!(
        "mkdir -p '{0}' && cd '{0}' && \
         {{ [ -e package/dist/mermaid.min.js ] || tar xzf \"$(npm pack --silent {MERMAID})\"; }}",
        folder.display()
    );
    Cmd::new("sh", &["-c", &script]).run(site)?;
    let add = || {
        fs::copy(folder.join("package/dist/mermaid.min.js"), source.join("mermaid.min.js"))?;
        fs::write(source.join("draw.js"), DRAW)?;
        let settings = fs::read_to_string(source.join("book.toml"))?;
        let scripts = "\n[output.html]\nadditional-js = [\"mermaid.min.js\", \"draw.js\"]\n";
        fs::write(source.join("book.toml"), settings + scripts)
    };
    add().map_err(|error: io::Error| Failure::Missing {
        what: format!("{MERMAID} has no file dist/mermaid.min.js: {error}"),
        remedy: "name another version in xtask/src/book.rs".into(),
    })
}

/// Returns the links of the book's pages that lead to no file or to no heading.
fn dead_links(book: &Path) -> io::Result<Vec<String>> {
    let mut dead = Vec::new();
    for entry in fs::read_dir(book)? {
        let page = entry?.path();
        // The page for printing has all others in it, with the same links.
        let is_page = page.extension().is_some_and(|extension| extension == "html");
        if !is_page || page.ends_with("print.html") || page.ends_with("404.html") {
            continue;
        }
        let text = fs::read_to_string(&page)?;
        let name = page.file_name().unwrap_or_default().to_string_lossy().into_owned();
        dead.extend(
            links(&text).filter_map(|link| fault(&page, &text, link)).map(|why| format!("{name}: {why}")),
        );
    }
    dead.sort();
    Ok(dead)
}

/// The targets of links and pictures that are no addresses of the web.
fn links(html: &str) -> impl Iterator<Item = &str> {
    let attributes = html.split("href=\"").skip(1).chain(html.split("src=\"").skip(1));
    let targets = attributes.filter_map(|rest| rest.split_once('"')).map(|(target, _)| target);
    targets.filter(|target| !target.contains(':') && !target.is_empty())
}

fn fault(page: &Path, text: &str, link: &str) -> Option<String> {
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let path = if file.is_empty() { page.to_path_buf() } else { plain(&page.parent()?.join(file)) };
    if !path.exists() {
        return Some(format!("there is no file {link}"));
    }
    let other =
        if file.is_empty() { text.to_string() } else { fs::read_to_string(&path).unwrap_or_default() };
    let is_there = anchor.is_empty() || other.contains(&format!("id=\"{anchor}\""));
    (!is_there).then(|| format!("there is no heading {link}"))
}

/// The path without `..`, which must not lead past a folder that does not exist.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => drop(plain.pop()),
            other => plain.push(other),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_no_file_and_to_no_heading_are_dead() {
        let folder = std::env::temp_dir().join(format!("slackline-book-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("a.html"), "<h1 id=\"one\"></h1><a href=\"b.html#two\"><a href=\"#one\">")
            .unwrap();
        fs::write(folder.join("b.html"), "<a href=\"c.html\"><a href=\"https://x\"><img src=\"d.svg\">")
            .unwrap();
        let dead = dead_links(&folder).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        let expected = ["a.html: there is no heading b.html#two", "b.html: there is no file c.html"];
        assert_eq!(dead[..2], expected);
        assert_eq!(dead[2..], ["b.html: there is no file d.svg"]);
    }

    #[test]
    fn the_table_of_contents_has_the_pages_of_the_root() {
        let text = "# Summary\n\n- [A](a.md)\n\n---\n\n[G](g.md)\n".to_string();
        let text = with_root_pages(Path::new("docs/SUMMARY.md"), text);
        assert!(text.starts_with("# Summary\n\n[Slackline](README.md)\n"), "{text}");
        assert!(text.contains("- [SECURITY](SECURITY.md)\n"), "{text}");
    }
}
