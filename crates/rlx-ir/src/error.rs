//! The one error type: a stable code, the op, the operands' types, the axis at fault and the caller's line.

use crate::dim::Dim;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

/// The result of everything fallible in RLX.
pub type Result<T, E = Error> = std::result::Result<T, E>;

macro_rules! codes {
    ($($(#[doc = $doc:literal])* $name:ident = $code:literal,)*) => {
        /// A stable error code. Each has a page of its own under `docs/errors/`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Code { $($(#[doc = $doc])* $name,)* }

        impl Code {
            /// Every code, in order.
            pub const ALL: &'static [Code] = &[$(Code::$name,)*];

            /// The code as printed and as its page is named: `E0101`.
            pub fn id(self) -> &'static str { match self { $(Code::$name => $code,)* } }

            /// What the code means, in a line.
            pub fn summary(self) -> &'static str { match self { $(Code::$name => concat!($($doc),*).trim_ascii(),)* } }
        }
    };
}

codes! {
    /// An operand has the wrong number of axes.
    Rank = "E0100",
    /// Two dimensions that must be equal are not, or cannot be proven equal.
    Dim = "E0101",
    /// An operand has a dtype that the op does not take.
    DType = "E0102",
    /// An axis does not exist, or is named twice.
    Axis = "E0103",
    /// Shapes do not broadcast together.
    Broadcast = "E0104",
    /// A rank, a dimension or a product of dimensions is too large, or a size breaks a constraint.
    Size = "E0105",
    /// An attribute is missing, of the wrong kind, or has a value that the op does not take.
    Attribute = "E0106",
    /// An op got too few or too many operands.
    Operands = "E0107",
    /// A reshape does not keep the number of elements.
    Reshape = "E0108",
    /// One symbol is used with two different bounds.
    Symbol = "E0109",
    /// The regions of a control-flow op do not fit its operands.
    Region = "E0110",
    /// A value of one graph is used in another.
    Foreign = "E0111",
    /// A name is taken, or is not a name.
    Name = "E0112",
    /// The text of a graph does not follow the grammar.
    Syntax = "E0200",
    /// A name is used that nothing defines.
    Undefined = "E0201",
    /// No op of that name exists.
    UnknownOp = "E0202",
    /// A type written in the text is not the type that was inferred.
    Annotation = "E0203",
    /// Something is nested too deeply.
    Nesting = "E0204",
    /// The graph breaks an invariant of the verifier.
    Verify = "E0300",
    /// An input that the graph needs was not given.
    MissingInput = "E0400",
    /// An input has the wrong dtype, shape or length, or is unknown.
    BadInput = "E0401",
    /// A symbol has no value, or one outside its bound.
    Unbound = "E0402",
    /// An evaluation would need more memory or steps than its limit.
    Limit = "E0403",
    /// A gradient is asked for that does not exist.
    Gradient = "E0500",
    /// A transform names an input or output that the graph does not have.
    UnknownName = "E0501",
    /// A batching transform got an axis or size that does not fit.
    Vmap = "E0502",
    /// A packed tensor does not fit its quantisation scheme.
    Quant = "E0600",
    /// The device cannot run part of the graph, or has not the memory for it.
    Device = "E0700",
    /// A file cannot be read or written, does not follow its format, or holds what RLX has not.
    File = "E0800",
    /// A model uses an op, or an op in a way, that RLX does not have.
    Unsupported = "E0801",
    /// A shape in a model depends on data.
    Undetermined = "E0802",
}

/// Where a node came from: the caller's line of Rust, or a place in a text.
#[derive(Clone, Debug, Default)]
pub enum Loc {
    /// Not known.
    #[default]
    Unknown,
    /// A line of Rust.
    Rust(&'static Location<'static>),
    /// A line and column (from 1) of a text, and the text's name.
    Text {
        /// The file or other name of the text.
        file: Arc<str>,
        /// Line, from 1.
        line: u32,
        /// Column in characters, from 1.
        column: u32,
    },
}

impl Loc {
    /// The line that calls the function which calls this.
    #[track_caller]
    pub fn caller() -> Loc {
        Loc::Rust(Location::caller())
    }
}

/// Where a node came from is not part of what it means.
impl PartialEq for Loc {
    fn eq(&self, _: &Loc) -> bool {
        true
    }
}

impl fmt::Display for Loc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Loc::Unknown => f.write_str("unknown place"),
            Loc::Rust(l) => write!(f, "{}:{}:{}", l.file(), l.line(), l.column()),
            Loc::Text { file, line, column } => write!(f, "{file}:{line}:{column}"),
        }
    }
}

/// What went wrong, where, and with which shapes.
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    code: Code,
    op: Option<String>,
    constraint: Option<(usize, &'static str)>,
    message: String,
    operands: Vec<(String, String)>,
    operand: Option<String>,
    axis: Option<usize>,
    sizes: Option<(Dim, Dim)>,
    inputs: Vec<String>,
    loc: Loc,
    snippet: Option<String>,
}

impl Error {
    /// An error with a code and a message.
    pub fn new(code: Code, message: impl Into<String>) -> Error {
        Error(Box::new(Inner {
            code,
            op: None,
            constraint: None,
            message: message.into(),
            operands: Vec::new(),
            operand: None,
            axis: None,
            sizes: None,
            inputs: Vec::new(),
            loc: Loc::Unknown,
            snippet: None,
        }))
    }

    /// Says in which op it happened; the first word stands.
    pub fn in_op(mut self, op: &str) -> Error {
        self.0.op.get_or_insert_with(|| op.to_string());
        self
    }

    /// Lists the operands (name, type) of the op.
    pub fn with_operands(mut self, operands: impl IntoIterator<Item = (String, String)>) -> Error {
        if self.0.operands.is_empty() {
            self.0.operands = operands.into_iter().collect();
        }
        self
    }

    /// Names the operand at fault.
    pub fn operand(mut self, name: impl Into<String>) -> Error {
        self.0.operand = Some(name.into());
        self
    }

    /// Names the axis at fault, of the operand at fault.
    pub fn axis(mut self, axis: usize) -> Error {
        self.0.axis = Some(axis);
        self
    }

    /// Says which two sizes ought to be equal.
    pub fn sizes(mut self, a: &Dim, b: &Dim) -> Error {
        self.0.sizes = Some((a.clone(), b.clone()));
        self
    }

    /// Names the inputs whose values are asked for.
    pub fn with_inputs(mut self, inputs: Vec<String>) -> Error {
        self.0.inputs = inputs;
        self
    }

    /// Says which numbered constraint of the op is broken.
    pub fn constraint(mut self, number: usize, text: &'static str) -> Error {
        self.0.constraint = Some((number, text));
        self
    }

    /// Says where; the first known place stands.
    pub fn at(mut self, loc: Loc) -> Error {
        if matches!(self.0.loc, Loc::Unknown) {
            self.0.loc = loc;
        }
        self
    }

    /// Adds the line of text at fault, with a caret under it.
    pub fn snippet(mut self, snippet: impl Into<String>) -> Error {
        self.0.snippet.get_or_insert_with(|| snippet.into());
        self
    }

    /// The stable code.
    pub fn code(&self) -> Code {
        self.0.code
    }
    /// The message alone, without place and operands.
    pub fn message(&self) -> &str {
        &self.0.message
    }
    /// The op in which it happened.
    pub fn op(&self) -> Option<&str> {
        self.0.op.as_deref()
    }
    /// The operand at fault.
    pub fn bad_operand(&self) -> Option<&str> {
        self.0.operand.as_deref()
    }
    /// The axis at fault.
    pub fn bad_axis(&self) -> Option<usize> {
        self.0.axis
    }
    /// The two sizes that ought to be equal.
    pub fn bad_sizes(&self) -> Option<(&Dim, &Dim)> {
        self.0.sizes.as_ref().map(|(a, b)| (a, b))
    }
    /// The inputs whose values are asked for.
    pub fn inputs(&self) -> &[String] {
        &self.0.inputs
    }
    /// The number of the op's constraint that is broken.
    pub fn bad_constraint(&self) -> Option<usize> {
        self.0.constraint.map(|(n, _)| n)
    }
    /// Where the node at fault was written.
    pub fn loc(&self) -> &Loc {
        &self.0.loc
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let e = &*self.0;
        write!(f, "{}", e.code.id())?;
        if let Some(op) = &e.op {
            write!(f, " in {op}")?;
        }
        write!(f, ": {}", e.message)?;
        match (&e.operand, e.axis) {
            (Some(o), Some(a)) => write!(f, " (axis {a} of {o})")?,
            (Some(o), None) => write!(f, " (operand {o})")?,
            (None, Some(a)) => write!(f, " (axis {a})")?,
            (None, None) => {}
        }
        if let Some((n, text)) = e.constraint {
            write!(f, "; C{n}: {text}")?;
        }
        if !e.operands.is_empty() {
            f.write_str("; operands:")?;
            for (i, (name, ty)) in e.operands.iter().enumerate() {
                write!(f, "{} {name}: {ty}", if i == 0 { "" } else { "," })?;
            }
        }
        if !matches!(e.loc, Loc::Unknown) {
            write!(f, "; at {}", e.loc)?;
        }
        if let Some(s) = &e.snippet {
            write!(f, "\n{s}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {}
