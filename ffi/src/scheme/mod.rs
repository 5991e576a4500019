//! Schemes that are written in C: see [`slackline::scheme::Scheme`].

mod action;
mod description;
mod event;
mod half;
mod ledger;
mod needs;
mod server;
mod worker;

use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slackline::scheme::{
    AnyScheme, Needs, Registry, Scheme, SchemeConfig, SchemeConfigError, ServerScheme, Start, WorkerScheme,
};

pub use action::*;
pub use description::*;
pub use event::*;
pub use needs::*;

use crate::error::{Failure, slackline_status};
use crate::handle::{call, text};
use crate::sized::sized;
use half::{Callbacks, Half, read};
use server::ServerHalf;
use worker::WorkerHalf;

/// Registers a scheme that is written in C, for as long as the process is. From then on its name, with settings in
/// parentheses where it has any, is a `scheme` in the options of servers, workers and simulations; a worker whose
/// options name no scheme knows it when a server has it. Every process of a job registers it. Servers of a scheme ask
/// it for no action before all workers have joined, and the library counts its clocks.
///
/// A scheme that fails, or asks for what cannot be (a gradient that has not come or is consumed, a worker that is not
/// in, a weight that is not finite, to compute without a copy, actions without end between two events), is
/// `SLACKLINE_STATUS_SCHEME` from the call that ran it, and from all that follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_scheme_register(scheme: *const slackline_scheme) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let foreign = unsafe { Foreign::of(&sized(scheme, "scheme")?)? };
        let mut registered = lock();
        if registered.iter().any(|other| other.name == foreign.name) {
            let name = &foreign.name;
            return Err(Failure::bad_argument(format!(
                "a scheme {name:?} is registered already: use another name"
            )));
        }
        registered.push(Arc::new(foreign));
        Ok(())
    })
}

/// The schemes that were registered.
static REGISTERED: Mutex<Vec<Arc<Foreign>>> = Mutex::new(Vec::new());

fn lock() -> MutexGuard<'static, Vec<Arc<Foreign>>> {
    // A panic cannot leave the list half changed.
    REGISTERED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The registry of all schemes that this process can make.
pub(crate) fn registry() -> Registry {
    lock().iter().fold(Registry::default(), |registry, foreign| {
        let own = Arc::clone(foreign);
        registry.with(foreign.name.as_str(), move |settings| Made::new(&own, settings).map(AnyScheme::from))
    })
}

/// The scheme of this text, with a staleness beside it unless that is `SLACKLINE_NO_STALENESS`.
pub(crate) fn named(text: &str, staleness: u64) -> Result<AnyScheme, Failure> {
    let name = text.split('(').next().unwrap_or_default();
    let is_registered = lock().iter().any(|foreign| foreign.name == name);
    if is_registered && staleness == SLACKLINE_NO_STALENESS {
        return Ok(registry().make(text)?);
    }
    if is_registered {
        let message = format!("scheme {name} takes no staleness from the options: write it in its settings");
        return Err(Failure::bad_argument(message));
    }
    if staleness == SLACKLINE_NO_STALENESS {
        return Ok(text.parse::<SchemeConfig>()?.into());
    }
    Ok(SchemeConfig::from_settings(text, &[("staleness", &staleness.to_string())])?.into())
}

/// A scheme as it was registered.
struct Foreign {
    name: String,
    context: *mut c_void,
    /// The needs by default, and the callback that says others.
    default_needs: Needs,
    needs: Option<NeedsOf>,
    server: HalfSource,
    worker: HalfSource,
}

type NeedsOf = unsafe extern "C" fn(*mut c_void, *const c_char, *mut slackline_scheme_needs) -> *const c_char;

/// The source of a half.
#[derive(Clone, Copy, Debug)]
enum HalfSource {
    Own(Callbacks),
    Base(SchemeConfig),
}

// SAFETY: `context` is only passed through to callbacks that, as the author has promised, any thread may call.
unsafe impl Send for Foreign {}
// SAFETY: as above: several threads may at once.
unsafe impl Sync for Foreign {}

impl Foreign {
    /// # Safety
    ///
    /// The texts are as for [`text`], and the callbacks do as [`slackline_scheme`] says until the process ends.
    unsafe fn of(scheme: &slackline_scheme) -> Result<Foreign, Failure> {
        // SAFETY: the caller's promise.
        let name = unsafe { text(scheme.name, "scheme->name")? };
        let refused = |reason: String| Failure::bad_argument(format!("scheme {name:?} {reason}"));
        if name.is_empty() || name.contains(['(', ')']) || name.contains(char::is_control) {
            return Err(refused("has no name: use letters, digits and dashes".into()));
        }
        if SchemeConfig::NAMES.contains(&name) {
            return Err(refused("has the name of a built-in scheme: use another".into()));
        }
        let base = match scheme.base.is_null() {
            true => None,
            // SAFETY: the caller's promise.
            false => Some(unsafe { text(scheme.base, "scheme->base")? }.parse::<SchemeConfig>()?),
        };
        if base.is_some_and(|base| !base.has_server()) {
            return Err(refused("cannot have a base without a server".into()));
        }
        let source = |half, side| match (Callbacks::of(half), base) {
            (Ok(Some(callbacks)), _) => Ok(HalfSource::Own(callbacks)),
            (Ok(None), Some(base)) => Ok(HalfSource::Base(base)),
            (Ok(None), None) => Err(refused(format!("has no {side}: set its callbacks, or a base"))),
            (Err(reason), _) => Err(refused(format!("{reason} ({side})"))),
        };
        Ok(Foreign {
            name: name.to_owned(),
            context: scheme.context,
            default_needs: base.map_or_else(Needs::default, |base| Scheme::needs(&base)),
            needs: scheme.needs,
            server: source(&scheme.server, "server")?,
            worker: source(&scheme.worker, "worker")?,
        })
    }

    fn failure(&self, reason: impl Into<String>) -> SchemeConfigError {
        SchemeConfigError::Custom { scheme: self.name.clone(), reason: reason.into() }
    }

    /// The needs under these settings.
    fn needs(&self, settings: &CStr) -> Result<Needs, SchemeConfigError> {
        let Some(needs) = self.needs else {
            return match settings.is_empty() {
                true => Ok(self.default_needs),
                false => Err(self.failure("it takes no settings: leave them out")),
            };
        };
        let mut answer = slackline_scheme_needs::of(self.default_needs);
        // SAFETY: the author's promise; the text and the answer outlive the call.
        let said = unsafe { read(needs(self.context, settings.as_ptr(), &raw mut answer)) };
        match said {
            Some(said) => Err(self.failure(said)),
            None => answer.translate().map_err(|reason| self.failure(reason)),
        }
    }
}

/// A registered scheme with its settings.
struct Made {
    foreign: Arc<Foreign>,
    settings: CString,
    needs: Needs,
}

impl Made {
    fn new(foreign: &Arc<Foreign>, settings: &str) -> Result<Made, SchemeConfigError> {
        let settings = CString::new(settings).map_err(|_| foreign.failure("its settings hold a zero"))?;
        let needs = foreign.needs(&settings)?;
        Ok(Made { foreign: Arc::clone(foreign), settings, needs })
    }

    fn half(&self, callbacks: Callbacks, start: Start) -> Half {
        // SAFETY: the author's promise, which was given when the scheme was registered.
        unsafe { Half::create(callbacks, self.foreign.context, &self.settings, start) }
    }
}

impl Scheme for Made {
    fn name(&self) -> &str {
        &self.foreign.name
    }

    fn settings(&self) -> String {
        self.settings.to_string_lossy().into_owned()
    }

    fn needs(&self) -> Needs {
        self.needs
    }

    fn server(&self, start: Start) -> Result<Box<dyn ServerScheme>, SchemeConfigError> {
        let half = match self.foreign.server {
            HalfSource::Own(callbacks) => self.half(callbacks, start),
            HalfSource::Base(base) => return Scheme::server(&base, start),
        };
        match half.failure() {
            Some(failure) => Err(self.foreign.failure(failure)),
            None => Ok(Box::new(ServerHalf::new(half, start, self.needs.weighs_updates))),
        }
    }

    fn worker(&self) -> Box<dyn WorkerScheme> {
        match self.foreign.worker {
            HalfSource::Own(callbacks) => {
                Box::new(WorkerHalf::new(self.half(callbacks, slackline_scheme_start::NONE)))
            }
            HalfSource::Base(base) => base.worker(),
        }
    }
}
