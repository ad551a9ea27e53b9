//! What goes wrong with files.

use rlx_ir::{Code, Error};
use std::fmt::Display;

/// A file that cannot be read or written, or does not follow its format.
pub(crate) fn bad(why: impl Display) -> Error {
    Error::new(Code::File, why.to_string())
}

/// Says which file or tensor an error is about.
pub(crate) trait Context<T> {
    fn about(self, what: impl Display) -> rlx_ir::Result<T>;
}

impl<T, E: Message> Context<T> for Result<T, E> {
    fn about(self, what: impl Display) -> rlx_ir::Result<T> {
        self.map_err(|e| bad(format!("{what}: {}", e.message())))
    }
}

/// The words of an error, without its code.
pub(crate) trait Message {
    fn message(&self) -> String;
}

impl Message for Error {
    fn message(&self) -> String {
        Error::message(self).to_string()
    }
}

impl Message for std::io::Error {
    fn message(&self) -> String {
        self.to_string()
    }
}
