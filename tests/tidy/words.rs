//! Code as words: what the rules on code read.

/// A name, a number, `::` or one other sign, and the line that it stands on.
#[derive(Clone, Debug)]
pub(super) struct Word {
    pub(super) line: usize,
    pub(super) text: String,
}

/// Cuts code into words, leaving out comments, strings, characters and lifetimes.
pub(super) fn words(text: &str) -> Vec<Word> {
    let chars: Vec<char> = text.chars().collect();
    let (mut words, mut at, mut line) = (Vec::new(), 0, 1);
    while at < chars.len() {
        let (end, text) = word(&chars, at);
        if let Some(text) = text {
            words.push(Word { line, text });
        }
        line += chars[at..end].iter().filter(|c| **c == '\n').count();
        at = end;
    }
    words
}

/// Reads the piece that begins at `at`: where it ends, and its text if it is code.
fn word(chars: &[char], at: usize) -> (usize, Option<String>) {
    let peek = |offset: usize| chars.get(at + offset).copied().unwrap_or('\n');
    let is_name = |c: &char| c.is_alphanumeric() || *c == '_';
    match (chars[at], peek(1)) {
        ('/', '/') => (at + chars[at..].iter().take_while(|c| **c != '\n').count(), None),
        ('/', '*') => (block_comment(chars, at), None),
        ('"', _) => (string(chars, at), None),
        ('\'', '\\') => (at + 3 + chars[at + 3..].iter().take_while(|c| **c != '\'').count() + 1, None),
        ('\'', _) if peek(2) == '\'' => (at + 3, None),
        ('\'', _) => (at + 1 + chars[at + 1..].iter().take_while(|c| is_name(c)).count(), None),
        (':', ':') => (at + 2, Some("::".into())),
        (c, _) if is_name(&c) => {
            let name: String = chars[at..].iter().take_while(|c| is_name(c)).collect();
            let end = at + name.chars().count();
            let hashes = chars[end..].iter().take_while(|c| **c == '#').count();
            let quoted = chars.get(end + hashes) == Some(&'"');
            match name.as_str() {
                "r" | "br" | "cr" if quoted => (raw_string(chars, end + hashes, hashes), None),
                // A raw name: `r#type` is no keyword.
                "r" if hashes == 1 => (end + 1, None),
                "b" | "c" if hashes == 0 && quoted => (end, None),
                _ => (end, Some(name)),
            }
        }
        (c, _) if c.is_whitespace() => (at + 1, None),
        (c, _) => (at + 1, Some(c.into())),
    }
}

fn block_comment(chars: &[char], mut at: usize) -> usize {
    let mut depth = 0;
    while at + 1 < chars.len() {
        match (chars[at], chars[at + 1]) {
            ('/', '*') => (depth, at) = (depth + 1, at + 2),
            ('*', '/') => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    chars.len()
}

fn string(chars: &[char], open: usize) -> usize {
    let mut at = open + 1;
    while at < chars.len() {
        match chars[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    chars.len()
}

fn raw_string(chars: &[char], open: usize, hashes: usize) -> usize {
    let closes = |at: usize| {
        chars[at] == '"' && chars[at + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes
    };
    (open + 1..chars.len()).find(|at| closes(*at)).map_or(chars.len(), |at| at + 1 + hashes)
}
