//! Schemes as values that nodes and simulations run, from this crate or from outside of it.

use core::any::Any;
use core::fmt;
use core::ops::Deref;
use std::sync::Arc;

use super::{SchemeConfig, SchemeConfigError, ServerScheme, Strength, WorkerScheme};
use crate::clock::{Clock, Version};

/// A scheme with its settings: makes both halves, and names their needs for the nodes that run them.
///
/// [`SchemeConfig`] holds the built-in ones. A scheme that is written outside of this crate runs under a real
/// [`Server`](crate::node::Server) and in a `sim::Cluster` like them. Its name and settings travel to
/// the workers as text, and a worker makes it again by the [`Registry`] in its options.
pub trait Scheme: Any + Send + Sync {
    /// The name, without settings; no built-in scheme has it. It is not empty and holds no parentheses.
    fn name(&self) -> &str;

    /// The settings as text, without parentheses. Peers run the same scheme if their names and settings are equal.
    fn settings(&self) -> String {
        String::new()
    }

    /// The needs and promises of the scheme.
    fn needs(&self) -> Needs {
        Needs::default()
    }

    /// The server's half.
    ///
    /// # Errors
    /// The settings do not go with the number of workers, or cannot be. A server that is given this scheme fails with
    /// it when it begins.
    fn server(&self, start: Start) -> Result<Box<dyn ServerScheme>, SchemeConfigError>;

    /// The worker's half.
    fn worker(&self) -> Box<dyn WorkerScheme>;
}

/// The state with which a server's half begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// Workers of the job: nothing is applied before so many different ones have joined.
    pub workers: usize,
    /// The smallest clock begins here.
    pub clock: Clock,
    /// The version that workers find.
    pub newest: Version,
}

/// The needs of a scheme towards the nodes that run it, and its promises. By default it needs and promises nothing, and
/// has two slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// See [`SchemeConfig::staleness`]: the simulator holds the scheme to it.
    pub staleness: Option<u64>,
    /// See [`SchemeConfig::slots`]; at least 1.
    pub slots: u16,
    /// See [`SchemeConfig::pushes`].
    pub pushes: bool,
    /// See [`SchemeConfig::interrupts`].
    pub interrupts: bool,
    /// Workers wait until their own gradients are consumed: they are to look for
    /// [`WorkerEvent::Consumed`](super::WorkerEvent::Consumed).
    pub waits_for_own: bool,
    /// See [`SchemeConfig::reports_reads`].
    pub reports_reads: bool,
    /// See [`SchemeConfig::measures_magnitude`].
    pub measures_magnitude: bool,
    /// See [`SchemeConfig::measures_moments`].
    pub measures_moments: bool,
    /// The server's half asks for [`ServerAction::Weigh`](super::ServerAction::Weigh). A simulated cluster answers; a
    /// real server keeps no updates, and refuses the scheme.
    pub weighs_updates: bool,
    /// See [`SchemeConfig::folds_all_in_order`]: the simulator holds the scheme to it.
    pub folds_all_in_order: bool,
    /// See [`SchemeConfig::counts_versions`].
    pub counts_versions: bool,
}

impl Default for Needs {
    fn default() -> Needs {
        Needs {
            staleness: None,
            slots: 2,
            pushes: false,
            interrupts: false,
            waits_for_own: false,
            reports_reads: false,
            measures_magnitude: false,
            measures_moments: false,
            weighs_updates: false,
            folds_all_in_order: false,
            counts_versions: false,
        }
    }
}

impl Scheme for SchemeConfig {
    fn name(&self) -> &str {
        SchemeConfig::name(self)
    }

    fn settings(&self) -> String {
        let text = self.to_string();
        let inside = text.strip_prefix(SchemeConfig::name(self)).unwrap_or_default();
        inside.trim_start_matches('(').trim_end_matches(')').to_owned()
    }

    fn needs(&self) -> Needs {
        Needs {
            staleness: self.staleness(),
            slots: self.slots(),
            pushes: self.pushes(),
            interrupts: self.interrupts(),
            waits_for_own: matches!(self, SchemeConfig::Abs { .. } | SchemeConfig::Vap { .. }),
            reports_reads: self.reports_reads(),
            measures_magnitude: self.measures_magnitude(),
            measures_moments: self.measures_moments(),
            weighs_updates: matches!(self, SchemeConfig::Vap { strength: Strength::Published, .. }),
            folds_all_in_order: self.folds_all_in_order(),
            counts_versions: self.counts_versions(),
        }
    }

    fn server(&self, start: Start) -> Result<Box<dyn ServerScheme>, SchemeConfigError> {
        self.server_at(start.workers, start.clock, start.newest)
    }

    fn worker(&self) -> Box<dyn WorkerScheme> {
        SchemeConfig::worker(self)
    }
}

/// A shared [`Scheme`]. As text it is the name, or the name with the settings in parentheses; two are equal if their
/// texts are.
#[derive(Clone)]
pub struct AnyScheme(Arc<dyn Scheme>);

impl AnyScheme {
    /// Most bytes of the text.
    #[doc(hidden)]
    pub const TEXT_MAX: usize = 256;

    /// The built-in scheme, if it is one.
    #[doc(hidden)]
    pub fn built_in(&self) -> Option<SchemeConfig> {
        (&*self.0 as &dyn Any).downcast_ref().copied()
    }

    /// Returns the fault of its settings, if it cannot run.
    pub(crate) fn check(&self) -> Result<(), SchemeConfigError> {
        let text = self.to_string();
        if !is_text(&text) {
            let most = Self::TEXT_MAX;
            let reason = format!("name and settings must be 1 to {most} bytes without control codes");
            return Err(self.failure(reason));
        }
        // The settings begin at the first parenthesis.
        if self.name().is_empty() || self.name().contains(['(', ')']) {
            return Err(self.failure("a name cannot be empty, nor hold parentheses: use another".into()));
        }
        if self.built_in().is_none() && SchemeConfig::NAMES.contains(&self.name()) {
            return Err(self.failure("this is the name of a built-in scheme: use another".into()));
        }
        if !(1..=SchemeConfig::SLOTS_MAX).contains(&self.needs().slots) {
            let most = SchemeConfig::SLOTS_MAX;
            return Err(self.failure(format!("each worker needs 1 to {most} slots")));
        }
        Ok(())
    }

    /// The error of this scheme where it cannot be made, or cannot go on.
    pub(crate) fn failure(&self, reason: String) -> SchemeConfigError {
        SchemeConfigError::Custom { scheme: self.name().to_owned(), reason }
    }
}

/// True if this can be the text of a scheme.
pub(crate) fn is_text(text: &str) -> bool {
    (1..=AnyScheme::TEXT_MAX).contains(&text.len()) && !text.contains(char::is_control)
}

impl<S: Scheme> From<S> for AnyScheme {
    fn from(scheme: S) -> AnyScheme {
        AnyScheme(Arc::new(scheme))
    }
}

impl Deref for AnyScheme {
    type Target = dyn Scheme;

    fn deref(&self) -> &dyn Scheme {
        &*self.0
    }
}

impl fmt::Display for AnyScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self.settings() {
            settings if settings.is_empty() => Ok(()),
            settings => write!(f, "({settings})"),
        }
    }
}

impl fmt::Debug for AnyScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl PartialEq for AnyScheme {
    fn eq(&self, other: &AnyScheme) -> bool {
        self.name() == other.name() && self.settings() == other.settings()
    }
}

/// Makes a scheme of its settings.
type Make = dyn Fn(&str) -> Result<AnyScheme, SchemeConfigError> + Send + Sync;

/// The schemes that a process can make from their names: the built-in ones, which are all by default, and added ones.
/// Two registries are equal if their names are.
#[derive(Clone, Default)]
pub struct Registry {
    added: Vec<(String, Arc<Make>)>,
}

impl Registry {
    /// Adds a scheme, which `make` makes of its settings.
    pub fn with(
        mut self,
        name: impl Into<String>,
        make: impl Fn(&str) -> Result<AnyScheme, SchemeConfigError> + Send + Sync + 'static,
    ) -> Registry {
        self.added.push((name.into(), Arc::new(make)));
        self
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.added.iter().map(|(name, _)| name.as_str())
    }

    /// Makes the scheme of this text, which may have come from a server. An unknown name is
    /// [`SchemeConfigError::Unregistered`].
    #[doc(hidden)]
    pub fn make(&self, text: &str) -> Result<AnyScheme, SchemeConfigError> {
        let malformed = || SchemeConfigError::Malformed { text: text.to_owned() };
        let (name, settings) = match text.split_once('(') {
            None => (text, ""),
            Some((name, rest)) => (name, rest.strip_suffix(')').ok_or_else(malformed)?),
        };
        if let Some((_, make)) = self.added.iter().find(|(added, _)| added == name) {
            return make(settings);
        }
        if !SchemeConfig::NAMES.contains(&name) {
            return Err(SchemeConfigError::Unregistered { name: name.to_owned() });
        }
        let config: SchemeConfig = text.parse()?;
        if !config.has_server() {
            return Err(SchemeConfigError::NoServer { scheme: config.name() });
        }
        // How many workers there are is the server's business.
        config.check(usize::from(u16::MAX))?;
        Ok(config.into())
    }
}

impl PartialEq for Registry {
    fn eq(&self, other: &Registry) -> bool {
        self.names().eq(other.names())
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}
