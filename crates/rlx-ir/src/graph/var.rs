//! What a handle knows of its value.

use super::{POISON, Scope, Var, is_name};
use crate::Graph;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{Code, Error};
use crate::func::{Def, ValueId, ValueInfo};
use crate::types::{Shape, Type};

impl<'g> Var<'g> {
    /// The graph that the value belongs to.
    pub fn graph(self) -> &'g Graph {
        self.graph
    }
    /// The id in that graph.
    pub fn id(self) -> ValueId {
        self.id
    }
    /// Whether it stands for an error.
    pub fn is_poison(self) -> bool {
        self.id == POISON
    }

    /// Reads what is known of the value; `None` for a poisoned handle and for a value of a region that is finished.
    fn info<T>(self, f: impl FnOnce(&Scope, &ValueInfo) -> T) -> Option<T> {
        let scopes = self.graph.scopes.borrow();
        let scope = scopes.iter().rev().find(|s| s.id == self.scope)?;
        scope.values.get(self.id.0 as usize).map(|info| f(scope, info))
    }

    /// The type; an empty `f32` for a poisoned handle.
    pub fn ty(self) -> Type {
        self.info(|_, i| i.ty.clone()).unwrap_or_else(|| Type::new(DType::F32, Shape::new()))
    }
    /// The sizes of the axes.
    pub fn shape(self) -> Shape {
        self.ty().shape
    }
    /// The element type.
    pub fn dtype(self) -> DType {
        self.ty().dtype
    }
    /// The number of axes.
    pub fn rank(self) -> usize {
        self.ty().shape.len()
    }
    /// The size of an axis, which may count from the end; 1 if there is none.
    pub fn dim(self, axis: i64) -> Dim {
        let shape = self.shape();
        let i = crate::types::resolve_axis(axis, shape.len()).ok();
        i.and_then(|i| shape.get(i).cloned()).unwrap_or(Dim::constant(1))
    }

    /// Names the value, for printing and for errors. A name that is taken gets a number.
    #[track_caller]
    pub fn named(self, name: &str) -> Var<'g> {
        if !is_name(name) {
            return self.graph.fail(Error::new(Code::Name, format!("{name:?} is not a name")));
        }
        self.set_name(|s| Some(s.take_name(name)));
        self
    }

    pub(super) fn name_if_free(self, name: &str) {
        self.set_name(|s| (!s.names.contains_key(name)).then(|| s.take_name(name)));
    }

    /// Names a value that is no port and has no name yet.
    fn set_name(self, name: impl FnOnce(&mut Scope) -> Option<String>) {
        let mut scopes = self.graph.scopes.borrow_mut();
        let Some(scope) = scopes.iter_mut().rev().find(|s| s.id == self.scope) else { return };
        let at = self.id.0 as usize;
        if scope.values.get(at).is_some_and(|v| v.name.is_none() && matches!(v.def, Def::Node(..))) {
            let name = name(scope);
            scope.values.get_mut(at).into_iter().for_each(|v| v.name = name.clone());
        }
    }

    /// Marks a port as one whose gradient training wants, or not. Only floats have gradients.
    #[track_caller]
    pub fn set_diff(self, diff: bool) -> Var<'g> {
        if self.is_poison() {
            return self;
        }
        let (Some(Def::Port(i)), dtype) = (self.info(|_, v| v.def), self.dtype()) else {
            return self.graph.fail(Error::new(Code::Gradient, "only inputs and params are marked"));
        };
        if diff && !dtype.is_float() {
            let message = format!("{dtype} cannot be differentiated");
            return self.graph.fail(Error::new(Code::Gradient, message));
        }
        let mut scopes = self.graph.scopes.borrow_mut();
        let port = scopes.first_mut().and_then(|s| s.ports.get_mut(i as usize));
        port.into_iter().for_each(|p| p.diff = diff);
        self
    }

    /// The name of the port that the value is.
    pub fn port_name(self) -> Option<String> {
        let port = |s: &Scope, v: &ValueInfo| match v.def {
            Def::Port(i) => s.ports.get(i as usize).map(|p| p.name.clone()),
            Def::Node(..) => None,
        };
        self.info(port).flatten()
    }

    /// A constant without axes, of this value's dtype.
    #[track_caller]
    pub fn scalar(self, x: f64) -> Var<'g> {
        self.graph.scalar(self.dtype(), x)
    }
}
