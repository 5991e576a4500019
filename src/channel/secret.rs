//! The secret of a job.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fmt;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};
use snow::params::DHChoice;
use snow::resolvers::{CryptoResolver, DefaultResolver};

use crate::diagnostic::{Diagnostic, remedy_of};

/// Shorter secrets can be found by trying, even random ones. So can longer secrets that a person chose: the key is one
/// SHA-256 of the text, and a recorded greeting is enough to try secrets against.
const BYTES_MIN: usize = 16;
const BYTES_MAX: usize = 4096;

/// The environment variables that hold a secret, and the demand for encryption.
const TEXT: &str = "SLACKLINE_SECRET";
const ENCRYPT: &str = "SLACKLINE_TCP_ENCRYPT";

/// How the text of a reader's secret begins. Two keys in hexadecimal digits follow.
const READING: &str = "slackline-reading-1:";

/// The secret that all processes of a job know, and no other process, and whether it is to protect their data, too.
/// `Debug` does not show its value.
///
/// Processes that only read get a secret of their own, which is made from the job's:
///
/// ```
/// use slackline::Secret;
/// let secret = Secret::random()?;
/// let readers = secret.reading(); // `readers.expose()` goes into the file that they get
/// assert_ne!(readers, secret);
/// assert_eq!(Secret::from_text(readers.expose(), "a file")?, readers);
/// # Ok::<(), slackline::SecretError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    text: Arc<str>,
    opens: Opens,
    encrypts: bool,
}

/// The rights that a secret gives.
#[derive(Clone, PartialEq, Eq)]
enum Opens {
    /// Everything.
    All { key: [u8; 32] },
    /// Reading of owners that know the private key of `owner`, which is made of the job's secret.
    Reading { key: [u8; 32], owner: [u8; 32] },
}

/// The keys of one handshake.
pub(super) struct HandshakeKeys {
    /// The key that both sides know.
    pub(super) shared: [u8; 32],
    /// Between an owner and a reader: the owner's public key for the reader, its private key for the owner.
    pub(super) of_owner: Option<[u8; 32]>,
}

/// A secret that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// The file cannot be read.
    #[error(
        "cannot read the secret file {}: {source}; {}", .path.display(), remedy_of(self)
    )]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error that the system reported.
        source: std::io::Error,
    },
    /// Others can read or change the file.
    #[error(
        "the secret file {} has mode {mode:o} and belongs to user {owner}; {}", .path.display(), remedy_of(self)
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
        /// Its owner.
        owner: u32,
    },
    /// Too short, too long or no text.
    #[error("the secret from {origin} has {bytes} bytes; {}", remedy_of(self))]
    Unusable {
        /// The source of the secret, such as a file or an environment variable.
        origin: String,
        /// Its length.
        bytes: usize,
    },
    /// Control characters in it. It could not be handed on: an environment variable holds no NUL, for example.
    #[error("the secret from {origin} holds control characters; {}", remedy_of(self))]
    Control {
        /// The source of the secret, such as a file or an environment variable.
        origin: String,
    },
    /// A reader's secret that was changed.
    #[error("the reader's secret from {origin} is damaged; {}", remedy_of(self))]
    Damaged {
        /// The source of the secret, such as a file or an environment variable.
        origin: String,
    },
    /// An environment variable that holds something else than text.
    #[error("the secret in {variable} is no UTF-8 text; {}", remedy_of(self))]
    NotText {
        /// The variable.
        variable: &'static str,
    },
    /// Encryption is demanded, and there is no secret.
    #[error(
        "tcp data cannot be encrypted without a secret, since any process could be the other side; {}",
        remedy_of(self)
    )]
    NoneToEncrypt,
    /// The variable that demands encryption holds something else than a switch.
    #[error("SLACKLINE_TCP_ENCRYPT is `{value}`, which says neither yes nor no; {}", remedy_of(self))]
    Unclear {
        /// Its value.
        value: String,
    },
    /// No random numbers are to be had.
    #[error("cannot make a secret: the system gives no random numbers: {0}")]
    NoRandom(String),
}

impl Diagnostic for SecretError {
    fn operation(&self) -> &'static str {
        "reading the secret"
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        Some(match self {
            SecretError::Unreadable { .. } => {
                "make one with: (umask 077 && head -c 32 /dev/urandom | base64 > FILE)".into()
            }
            SecretError::Exposed { .. } => "make it yours and of mode 600 (chmod 600)".into(),
            SecretError::Unusable { .. } => format!(
                "use {BYTES_MIN} to {BYTES_MAX} bytes of text, and random ones (head -c 32 /dev/urandom | base64): a \
                 chosen phrase can be tried out by a process that records a connection"
            )
            .into(),
            SecretError::Control { .. } => {
                "use text, best of random bytes (head -c 32 /dev/urandom | base64)".into()
            }
            SecretError::Damaged { .. } => "make it of the job's secret again (`Secret::reading`)".into(),
            SecretError::NotText { .. } => {
                "use text, or name a file of mode 600 in SLACKLINE_SECRET_FILE".into()
            }
            SecretError::NoneToEncrypt => {
                "give all processes of the job one secret, a file of mode 600 (SLACKLINE_SECRET_FILE)".into()
            }
            SecretError::Unclear { .. } => "use 1 or 0".into(),
            SecretError::NoRandom(_) => return None,
        })
    }
}

impl Secret {
    /// From text that is hard to guess, best from [`random`](Self::random), 16 to 4096 bytes; blanks around it do not
    /// count, and control characters are refused, but for tabs and line ends. `origin` says where it came from if it
    /// cannot be used.
    ///
    /// # Errors
    /// The text is shorter than 16 bytes or longer than 4096 ([`SecretError::Unusable`]); it has control characters
    /// ([`SecretError::Control`]); it begins as a secret of readers does and is none ([`SecretError::Damaged`]).
    pub fn from_text(text: &str, origin: &str) -> Result<Secret, SecretError> {
        let text = text.trim();
        if !(BYTES_MIN..=BYTES_MAX).contains(&text.len()) {
            return Err(SecretError::Unusable { origin: origin.to_owned(), bytes: text.len() });
        }
        if text.contains(|c: char| c.is_control() && !c.is_whitespace()) {
            return Err(SecretError::Control { origin: origin.to_owned() });
        }
        let opens = match text.strip_prefix(READING) {
            None => Opens::All { key: hash(b"slackline secret\0", text.as_bytes()) },
            Some(keys) => {
                let keys =
                    keys.split_at_checked(64).and_then(|(key, owner)| Some((digits(key)?, digits(owner)?)));
                let (key, owner) = keys.ok_or_else(|| SecretError::Damaged { origin: origin.to_owned() })?;
                Opens::Reading { key, owner }
            }
        };
        Ok(Secret { text: text.into(), opens, encrypts: false })
    }

    /// The secret for processes that only read, made of the job's. It lets them connect to publishers and servers over
    /// TCP and RDMA as readers, and as nothing else: they publish nothing, serve nothing, are no workers and no members
    /// of a job, and cannot pass for a publisher to other readers. It does not tell the job's secret.
    pub fn reading(&self) -> Secret {
        let Opens::All { key } = &self.opens else { return self.clone() };
        let (shared, private) = (reading_key(key), owner_key(key));
        let text = format!("{READING}{}{}", hexadecimal(&shared), hexadecimal(&public_key(&private)));
        let opens = Opens::Reading { key: shared, owner: public_key(&private) };
        Secret { text: text.into(), opens, encrypts: self.encrypts }
    }

    /// True if it opens reading alone.
    pub(crate) fn is_reading(&self) -> bool {
        matches!(self.opens, Opens::Reading { .. })
    }

    /// The keys of a handshake in which a reader `reads`, or any other one; `None` if this secret does not open it.
    pub(super) fn keys(&self, reads: bool, is_client: bool) -> Option<HandshakeKeys> {
        let (shared, of_owner) = match (&self.opens, reads, is_client) {
            (Opens::All { key }, false, _) => (*key, None),
            (Opens::All { key }, true, false) => (reading_key(key), Some(owner_key(key))),
            (Opens::Reading { key, owner }, true, true) => (*key, Some(*owner)),
            _ => return None,
        };
        Some(HandshakeKeys { shared, of_owner })
    }

    /// The same secret, with the demand that data is encrypted and authenticated, too, and not the handshakes alone. A
    /// transport that is opened with it refuses peers that do not encrypt. RDMA cannot encrypt and does not open;
    /// shared memory never leaves its host and stays as it is.
    pub fn encrypting(self) -> Secret {
        Secret { encrypts: true, ..self }
    }

    /// True if data is to be encrypted.
    #[doc(hidden)]
    pub fn encrypts(&self) -> bool {
        self.encrypts
    }

    /// The secret of a process, with the demand for encryption if `demanded` is true or `SLACKLINE_TCP_ENCRYPT` is 1.
    #[doc(hidden)]
    pub fn demanding(secret: Option<Secret>, demanded: bool) -> Result<Option<Secret>, SecretError> {
        match (secret, demanded || is_on(std::env::var_os(ENCRYPT).as_deref())?) {
            (None, true) => Err(SecretError::NoneToEncrypt),
            (secret, false) => Ok(secret),
            (Some(secret), true) => Ok(Some(secret.encrypting())),
        }
    }

    /// Reads the secret from a file that belongs to this user (or root) and that no other user can read or change.
    ///
    /// # Errors
    /// The file cannot be opened or read as text ([`SecretError::Unreadable`]); it belongs to another user, or other
    /// users have a right to it ([`SecretError::Exposed`]); the errors of [`from_text`](Self::from_text).
    pub fn from_file(path: &Path) -> Result<Secret, SecretError> {
        let unreadable = |source| SecretError::Unreadable { path: path.to_owned(), source };
        let file = std::fs::File::open(path).map_err(unreadable)?;
        let metadata = file.metadata().map_err(unreadable)?;
        let (mode, owner) = (metadata.mode() & 0o7777, metadata.uid());
        let user = rustix::process::geteuid().as_raw();
        if mode & 0o077 != 0 || (owner != user && owner != 0) {
            return Err(SecretError::Exposed { path: path.to_owned(), mode, owner });
        }
        let mut text = String::new();
        file.take(BYTES_MAX as u64 + 2).read_to_string(&mut text).map_err(unreadable)?;
        Secret::from_text(&text, &path.display().to_string())
    }

    /// From the environment: the file that `SLACKLINE_SECRET_FILE` names, or the text in `SLACKLINE_SECRET`; none where
    /// neither is set. With `SLACKLINE_TCP_ENCRYPT=1` the secret [encrypts](Self::encrypting).
    ///
    /// # Errors
    /// The errors of [`from_file`](Self::from_file) and of [`from_text`](Self::from_text); `SLACKLINE_SECRET` is not
    /// UTF-8 ([`SecretError::NotText`]); `SLACKLINE_TCP_ENCRYPT` is neither 1 nor 0 ([`SecretError::Unclear`]), or is
    /// 1 without a secret ([`SecretError::NoneToEncrypt`]).
    pub fn from_environment() -> Result<Option<Secret>, SecretError> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let secret = match (variable("SLACKLINE_SECRET_FILE"), variable(TEXT)) {
            (Some(file), _) => Some(Secret::from_file(Path::new(&file))?),
            (None, Some(text)) => {
                let text = text.to_str().ok_or(SecretError::NotText { variable: TEXT })?;
                Some(Secret::from_text(text, TEXT)?)
            }
            (None, None) => None,
        };
        Secret::demanding(secret, false)
    }

    /// Returns the environment variables by which a child process finds the same secret, if `SLACKLINE_SECRET_FILE` is
    /// not set there. Hand them to your own child processes and to no other process.
    #[doc(hidden)]
    pub fn variables(&self) -> [(&'static str, &str); 2] {
        [(TEXT, &self.text), (ENCRYPT, if self.encrypts { "1" } else { "0" })]
    }

    /// Makes a random secret, which no other process knows.
    #[doc(hidden)]
    pub fn random() -> Result<Secret, SecretError> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(|error| SecretError::NoRandom(error.to_string()))?;
        Secret::from_text(&hexadecimal(&bytes), "the random source")
    }

    /// Returns the text. Hand the job's secret to its own processes and to no other one, and a reader's to readers.
    pub fn expose(&self) -> &str {
        &self.text
    }
}

fn hash(begin: &[u8], rest: &[u8]) -> [u8; 32] {
    Sha256::new().chain_update(begin).chain_update(rest).finalize().into()
}

fn reading_key(key: &[u8; 32]) -> [u8; 32] {
    hash(b"slackline reading\0", key)
}

/// The private key by which owners prove to readers that they know the job's secret.
fn owner_key(key: &[u8; 32]) -> [u8; 32] {
    hash(b"slackline owner\0", key)
}

fn public_key(private: &[u8; 32]) -> [u8; 32] {
    let mut keys = DefaultResolver.resolve_dh(&DHChoice::Curve25519).expect("the library is built with it");
    keys.set(private);
    let mut public = [0; 32];
    public.copy_from_slice(keys.pubkey());
    public
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads a key of 64 hexadecimal digits.
fn digits(text: &str) -> Option<[u8; 32]> {
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
    let digit = |digit: u8| char::from(digit).to_digit(16);
    let bytes = pairs.iter().map(|[high, low]| Some((digit(*high)? << 4 | digit(*low)?) as u8));
    bytes.collect::<Option<Vec<u8>>>()?.try_into().ok()
}

/// Reads a switch.
fn is_on(value: Option<&OsStr>) -> Result<bool, SecretError> {
    match value.map(OsStr::to_string_lossy).as_deref() {
        None | Some("" | "0") => Ok(false),
        Some("1") => Ok(true),
        Some(value) => Err(SecretError::Unclear { value: value.into() }),
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_secret_shows_itself_nowhere() {
        let secret = Secret::from_text("correct horse battery", "a test").unwrap();
        assert_eq!(format!("{secret:?}"), "Secret(..)");
        assert_eq!(secret, Secret::from_text(" correct horse battery\n", "a test").unwrap());
        assert_ne!(Secret::random().unwrap(), Secret::random().unwrap());
    }

    #[test]
    fn a_readers_secret_does_not_open_what_the_jobs_opens() {
        let job = Secret::from_text("correct horse battery", "a test").unwrap().encrypting();
        let reader = job.reading();
        assert!(reader.encrypts() && reader.reading() == reader && reader != job);
        assert_eq!(reader.text.len(), READING.len() + 128);
        let [all, asks, owns] = [(false, true), (true, true), (true, false)]
            .map(|(reads, is_client)| (job.keys(reads, is_client), reader.keys(reads, is_client)));
        assert!(matches!((&all.0, &all.1, &asks.0, &owns.1), (Some(_), None, None, None)));
        let (Some(theirs), Some(ours)) = (asks.1, owns.0) else { panic!("a reader and its owner have keys") };
        assert_eq!(theirs.shared, ours.shared);
        assert_eq!(theirs.of_owner.unwrap(), public_key(&ours.of_owner.unwrap()));
        assert_ne!((all.0.unwrap().shared, theirs.of_owner), (theirs.shared, ours.of_owner));
        let text = reader.expose();
        for damaged in [&text[..text.len() - 1], &format!("{text}0"), &text.replacen(':', ":g", 1)] {
            let error = Secret::from_text(damaged, "a test").unwrap_err();
            assert!(matches!(error, SecretError::Damaged { .. }), "{error}");
        }
    }

    /// Alice's keys in RFC 7748, section 6.1.
    #[test]
    fn public_keys_are_those_of_x25519() {
        let private = digits("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a");
        let public = digits("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a");
        assert_eq!(private.map(|private| public_key(&private)), public);
    }

    #[test]
    fn encryption_without_a_secret_and_a_switch_that_is_none_are_refused() {
        let error = Secret::demanding(None, true).unwrap_err();
        assert!(error.to_string().contains("SLACKLINE_SECRET_FILE"), "{error}");
        assert!(Secret::demanding(None, false).unwrap().is_none());
        let secret = Secret::demanding(Some(Secret::random().unwrap()), true).unwrap().unwrap();
        assert!(secret.encrypts() && secret.variables()[1] == ("SLACKLINE_TCP_ENCRYPT", "1"));
        for (value, on) in [(None, false), (Some(""), false), (Some("0"), false), (Some("1"), true)] {
            assert_eq!(is_on(value.map(OsStr::new)).ok(), Some(on), "{value:?}");
        }
        let error = is_on(Some(OsStr::new("maybe"))).unwrap_err().to_string();
        assert!(error.contains("SLACKLINE_TCP_ENCRYPT is `maybe`"), "{error}");
    }

    #[test]
    fn a_secret_that_can_be_guessed_is_refused() {
        for text in ["", "short", "   fifteen bytes"] {
            assert!(
                matches!(Secret::from_text(text, "a test"), Err(SecretError::Unusable { .. })),
                "{text:?}"
            );
            let error = Secret::from_text(text, "a test").unwrap_err().to_string();
            assert!(error.contains("/dev/urandom"), "{error}");
        }
        assert!(Secret::from_text(&"x".repeat(5000), "a test").is_err());
    }

    #[test]
    fn a_secret_that_no_environment_variable_holds_is_refused() {
        for text in ["a\0bcdefghijklmnopqrst", "colours \x1b[31m in a file"] {
            let error = Secret::from_text(text, "a test").unwrap_err();
            assert!(matches!(error, SecretError::Control { .. }), "{error}");
        }
        assert!(Secret::from_text("what base64 wraps\nafter 76 characters", "a test").is_ok());
    }

    #[test]
    fn a_file_that_others_can_read_is_refused_and_one_of_ones_own_is_taken() {
        let path = std::env::temp_dir().join(format!("slackline-secret-{}", std::process::id()));
        std::fs::write(&path, "a secret of many bytes\n").unwrap();
        for (mode, good) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false), (0o620, false)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let secret = Secret::from_file(&path);
            assert_eq!(secret.is_ok(), good, "{mode:o}: {secret:?}");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(Secret::from_file(&path), Err(SecretError::Unreadable { .. })));
    }
}
