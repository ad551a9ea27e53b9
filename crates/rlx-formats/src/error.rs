//! What goes wrong with files.

use rlx_ir::{Code, Error, Result};
use std::fmt::Display;

/// A file that cannot be read or written, or does not follow its format.
pub(crate) fn bad(why: impl Display) -> Error {
    Error::new(Code::File, why.to_string())
}

/// Says which file or tensor an error is about.
pub(crate) trait Context<T> {
    fn about(self, what: impl Display) -> Result<T>;
}

impl<T> Context<T> for Result<T> {
    fn about(self, what: impl Display) -> Result<T> {
        self.map_err(|e| Error::new(e.code(), format!("{what}: {}", e.message())))
    }
}

impl<T> Context<T> for std::io::Result<T> {
    fn about(self, what: impl Display) -> Result<T> {
        self.map_err(|e| bad(format!("{what}: {e}")))
    }
}
