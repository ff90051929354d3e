use crate::sys;
use std::ffi::{CStr, CString};
use std::fmt;
use std::os::raw::c_char;

/// A status that is not `MEMOPT_OK`, with the library's message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    status: sys::memopt_status,
    message: String,
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error of a callback's own: a region's call returns it unchanged.
    pub fn new(message: impl Into<String>) -> Self {
        Error { status: sys::MEMOPT_STATUS_USER, message: message.into() }
    }

    pub(crate) fn invalid(message: String) -> Self {
        Error { status: sys::MEMOPT_INVALID_ARGUMENT, message }
    }

    /// One of the constants `MEMOPT_…`.
    pub fn status(&self) -> sys::memopt_status {
        self.status
    }

    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", text(unsafe { sys::memopt_status_name(self.status) }), self.message)
    }
}

impl std::error::Error for Error {}

fn text(pointer: *const c_char) -> String {
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

/// The result of a call that has just returned on this thread.
pub(crate) fn check(status: sys::memopt_status) -> Result<()> {
    if status == sys::MEMOPT_OK {
        return Ok(());
    }
    Err(Error { status, message: text(unsafe { sys::memopt_last_error() }) })
}

pub(crate) fn c_string(what: &str, value: &str) -> Result<CString> {
    CString::new(value).map_err(|_| Error::invalid(format!("{}: {:?} has a NUL byte in it", what, value)))
}
