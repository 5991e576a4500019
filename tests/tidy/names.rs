//! The rule on the length of names: a test is named as a claim, which a reader takes in at one look.
//!
//! It holds for every function, since macros make tests of functions that have no `#[test]` themselves.

/// Most characters of a function's name.
const CHARACTERS_MAX: usize = 72;

/// The functions with longer names, each as `file:line: complaint`.
pub(super) fn too_long(file: &str, text: &str) -> Vec<String> {
    let words = super::words(text);
    let mut offences = Vec::new();
    for pair in words.windows(2).filter(|pair| pair[0].text == "fn") {
        let (name, line) = (pair[1].text.as_str(), pair[1].line);
        let characters = name.chars().count();
        if characters > CHARACTERS_MAX {
            let most = format!("the most is {CHARACTERS_MAX}: say the same in fewer words");
            offences.push(format!("{file}:{line}: `{name}` has {characters} characters; {most}"));
        }
    }
    offences
}

mod the_check {
    use super::*;

    /// A name of so many characters, of which none is one byte long.
    fn name(characters: usize) -> String {
        "é".repeat(characters)
    }

    #[test]
    fn allows_seventy_two_characters_and_no_more() {
        let (good, bad) = (name(72), name(73));
        assert_eq!(too_long("x.rs", &format!("#[test]\nfn {good}() {{}}")), [""; 0]);
        let complaint =
            format!("x.rs:2: `{bad}` has 73 characters; the most is 72: say the same in fewer words");
        assert_eq!(too_long("x.rs", &format!("#[test]\nfn {bad}() {{}}")), [complaint]);
    }

    #[test]
    fn sees_every_function_and_nothing_else() {
        let long = name(73);
        for text in [
            format!("#[test] #[ignore = \"slow\"] fn {long}() {{}}"),
            format!("pub(crate) fn {long}<F: Fixture>() {{}}"),
            format!("mod m {{ async fn {long}() {{}} }}"),
            format!("proptest! {{ #[test] fn {long}(x in 0..4) {{}} }}"),
            format!("fn // why\n{long}() {{}}"),
            format!("fn r#{long}() {{}}"),
        ] {
            assert_eq!(too_long("x.rs", &text).len(), 1, "{text}");
        }
        for text in [
            format!("// fn {long}() {{}}\nconst S: &str = \"fn {long}() {{}}\";"),
            format!("fn f() {{ {long}(); }}"),
            format!("macro_rules! m {{ () => {{ fn $claim() {{ {long}() }} }} }}"),
            format!("type F = fn({long});"),
        ] {
            assert_eq!(too_long("x.rs", &text), [""; 0], "{text}");
        }
    }
}
