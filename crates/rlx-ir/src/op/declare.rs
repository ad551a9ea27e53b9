//! The macro that turns the declarations in an op file into the table.

/// Declares ops. See ARCHITECTURE.md, "Adding an op".
///
/// ```text
/// ops! {
///     /// Documentation: semantics first.
///     name: Attrs(x: Float, y: opt Float, zs: many Any) { eps: f64 = 1e-6 } -> y;
///     constraints = ["…"];
///     infer = |c, a| …;                 // &Infer, &Attrs -> Result<Vec<Type>>
///     body = |c, a| …;                  // &Cx, &Attrs -> Result<Vec<Var>>   (or eval = |e, a| …, or scalar = …)
///     step = |c, a| …;                  // &Infer, Attrs -> Result<Step>      (a primitive, or a tuned kernel)
///     vjp = |c, a| …;                   // &VjpCx, &Attrs -> Result<Grads>
///     vmap = |c, a| …;                  // &VmapCx, &Attrs -> Result<Vec<Var>>
///     onnx = [same("…"), rule("…", 13, |c| …)];   // see `onnx`
///     samples = |s| …;                  // &mut Samples
///     tolerance = tol(1e-6, 1e-3, 1e-2);
/// }
/// ```
/// Attributes in `{…}` are positional arguments of the builder's method; in `with {…}` the method takes the
/// struct, which has a `Default`.
/// Results: `y` (one), `(a, b)` (several), `[ys]` (as many as the shape rule says), `{y}` (no method is made).
#[macro_export]
macro_rules! ops {
    ($(
        $(#[doc = $doc:literal])+
        $name:ident : $A:ident ( $($o:ident : $($c:ident)+),* $(,)? )
        $({ $($an:ident : $at:ty $(= $ad:expr)?),* $(,)? })?
        $(with { $($bn:ident : $bt:ty = $bd:expr),* $(,)? })?
        -> $res:tt ;
        $($key:ident = $value:expr ;)*
    )*) => {
        /// The ops of this file, in order.
        pub static OPS: &[&$crate::op::OpDef] = &[$($A::DEF),*];

        $(
            #[doc = concat!("Attributes of `", stringify!($name), "`.")]
            #[derive(Clone, Debug, PartialEq)]
            #[allow(missing_docs)]
            pub struct $A { $($(pub $an: $at,)*)? $($(pub $bn: $bt,)*)? }

            impl $crate::attr::Attributes for $A {
                const SPECS: &'static [$crate::attr::AttrSpec] = &[
                    $($($crate::ops!(@attr $an: $at $(= $ad)?),)*)? $($($crate::ops!(@attr $bn: $bt = $bd),)*)?
                ];
                #[allow(unused_mut)]
                fn to_values(&self) -> Vec<$crate::attr::AttrValue> {
                    vec![
                        $($($crate::attr::AttrType::to_value(&self.$an),)*)?
                        $($($crate::attr::AttrType::to_value(&self.$bn),)*)?
                    ]
                }
                #[allow(unused_mut, unused_variables)]
                fn from_values(v: &[$crate::attr::AttrValue]) -> Option<$A> {
                    let mut v = v.iter();
                    Some($A {
                        $($($an: $crate::attr::AttrType::from_value(v.next()?)?,)*)?
                        $($($bn: $crate::attr::AttrType::from_value(v.next()?)?,)*)?
                    })
                }
            }

            $(impl Default for $A {
                fn default() -> $A { $A { $($bn: $bd),* } }
            })?

            impl $A {
                /// The declaration of the op.
                pub const DEF: &'static $crate::op::OpDef = {
                    static DEF: $crate::op::OpDef = {
                        #[allow(unused_mut)]
                        let mut d = $crate::op::OpDef::new(
                            stringify!($name),
                            concat!($($doc, "\n"),+),
                            file!(),
                            &[$($crate::ops!(@operand $o: $($c)+)),*],
                            <$A as $crate::attr::Attributes>::SPECS,
                            $crate::ops!(@results $res),
                        );
                        $($crate::ops!(@field d $A $key $value);)*
                        d
                    };
                    &DEF
                };
            }

            $crate::ops!(@method [$($doc)+] $name $A ($($o: $($c)+),*)
                [$($($an: $at),*)?] $([with $($bn)*])? -> $res);
        )*
    };

    (@attr $n:ident : $t:ty) => { $crate::attr::AttrSpec {
        name: stringify!($n), kind: <$t as $crate::attr::AttrType>::KIND,
        optional: <$t as $crate::attr::AttrType>::OPTIONAL, default: None } };
    (@attr $n:ident : $t:ty = $d:expr) => { $crate::attr::AttrSpec {
        name: stringify!($n), kind: <$t as $crate::attr::AttrType>::KIND,
        optional: <$t as $crate::attr::AttrType>::OPTIONAL,
        default: Some(|| { let d: $t = $d; $crate::attr::AttrType::to_value(&d) }) } };

    (@operand $o:ident : $c:ident) => { $crate::ops!(@operand $o $c One) };
    (@operand $o:ident : opt $c:ident) => { $crate::ops!(@operand $o $c Optional) };
    (@operand $o:ident : many $c:ident) => { $crate::ops!(@operand $o $c Many) };
    (@operand $o:ident $c:ident $arity:ident) => { $crate::op::OperandSpec {
        name: stringify!($o), class: $crate::dtype::Class::$c, arity: $crate::op::Arity::$arity } };

    (@results ($($r:ident),*)) => { &[$(stringify!($r)),*] };
    (@results [$r:ident]) => { &[stringify!($r)] };
    (@results {$($r:ident),*}) => { &[$(stringify!($r)),*] };
    (@results $r:ident) => { &[stringify!($r)] };

    (@field $d:ident $A:ident constraints $v:expr) => { $d.constraints = &$v };
    (@field $d:ident $A:ident regions $v:expr) => { $d.regions = &$v };
    (@field $d:ident $A:ident onnx $v:expr) => { $d.onnx = const { &$v } };
    (@field $d:ident $A:ident tolerance $v:expr) => { $d.tol = $v };
    (@field $d:ident $A:ident samples $v:expr) => { $d.samples = $v };
    (@field $d:ident $A:ident meaning $v:expr) => { $d.meaning = $v };
    (@field $d:ident $A:ident reads $v:expr) => { $d.reads = Some($v) };
    (@field $d:ident $A:ident prune $v:expr) => { $d.prune = Some($v) };
    (@field $d:ident $A:ident scalar $v:expr) => {
        $d.meaning = $crate::op::Meaning::Scalar($v);
        $d.infer = |c| c.elementwise();
        $d.vmap = $crate::op::Vmap::Elementwise;
    };
    (@field $d:ident $A:ident infer $v:expr) => {
        $d.infer = |c| {
            let f: fn(&$crate::op::Infer<'_>, &$A) -> $crate::Result<Vec<$crate::Type>> = $v;
            f(c, &$crate::func::read_attrs(c.def, c.attrs)?)
        }
    };
    (@field $d:ident $A:ident body $v:expr) => {
        $d.vjp = $crate::op::Vjp::Through;
        $d.vmap = $crate::op::Vmap::Through;
        $d.meaning = $crate::op::Meaning::Body(|c| {
            let f: for<'g> fn(&$crate::op::Cx<'g>, &$A) -> $crate::Result<Vec<$crate::Var<'g>>> = $v;
            f(c, &$crate::func::read_attrs(c.def, &c.attrs)?)
        })
    };
    // A body that treats every element alike: shapes broadcast, and batching does too.
    (@field $d:ident $A:ident each $v:expr) => {
        $d.infer = |c| c.elementwise();
        $crate::ops!(@field $d $A body $v);
        $d.vmap = $crate::op::Vmap::Elementwise;
    };
    (@field $d:ident $A:ident eval $v:expr) => {
        $d.meaning = $crate::op::Meaning::Primitive(|e| {
            let f: fn(&$crate::oracle::Eval<'_>, &$A) -> $crate::Result<Vec<$crate::oracle::Arr>> = $v;
            f(e, &$crate::func::read_attrs(e.def(), e.attrs())?)
        })
    };
    (@field $d:ident $A:ident step $v:expr) => {
        $d.step = Some(|c| {
            let f: fn(&$crate::op::Infer<'_>, $A) -> $crate::Result<$crate::op::Step> = $v;
            f(c, $crate::func::read_attrs(c.def, c.attrs)?)
        })
    };
    (@field $d:ident $A:ident collective $v:expr) => {
        $d.meaning = $crate::op::Meaning::Collective(|e, ranks| {
            let f: fn(&[$crate::oracle::Arr], &$A) -> $crate::Result<Vec<$crate::oracle::Arr>> = $v;
            f(ranks, &$crate::func::read_attrs(e.def(), e.attrs())?)
        })
    };
    (@field $d:ident $A:ident vjp $v:expr) => {
        $d.vjp = $crate::op::Vjp::Rule(|c| {
            let f: for<'g> fn(&$crate::op::VjpCx<'g>, &$A) -> $crate::Result<$crate::op::Grads<'g>> = $v;
            f(c, &$crate::func::read_attrs(c.def, &c.attrs)?)
        })
    };
    (@field $d:ident $A:ident vmap $v:expr) => {
        $d.vmap = $crate::op::Vmap::Rule(|c| {
            let f: for<'g> fn(&$crate::op::VmapCx<'g>, &$A) -> $crate::Result<Vec<$crate::Var<'g>>> = $v;
            f(c, &$crate::func::read_attrs(c.def, &c.attrs)?)
        })
    };

    // No method.
    (@method [$($doc:literal)+] $name:ident $A:ident ($($o:tt)*) $a:tt $([with $($b:ident)*])? -> {$($r:ident),*}) => {};
    // Methods of the graph: no operands, or any number of them.
    (@method [$($doc:literal)+] $name:ident $A:ident () [$($an:ident : $at:ty),*] -> $res:tt) => {
        impl $crate::graph::Graph {
            $(#[doc = $doc])+ #[track_caller]
            // Formulas in the docs have indices and shapes in brackets, which are no links.
            #[allow(rustdoc::broken_intra_doc_links)]
            pub fn $name<'g>(&'g self, $($an: impl Into<$at>),*) -> $crate::ops!(@return 'g $res) {
                let attrs = $A { $($an: $an.into()),* };
                $crate::ops!(@finish (self.call_op($A::DEF, &attrs, Vec::new())) $res)
            }
        }
    };
    (@method [$($doc:literal)+] $name:ident $A:ident () [] [with $($b:ident)*] -> $res:tt) => {
        impl $crate::graph::Graph {
            $(#[doc = $doc])+ #[track_caller]
            // Formulas in the docs have indices and shapes in brackets, which are no links.
            #[allow(rustdoc::broken_intra_doc_links)]
            pub fn $name<'g>(&'g self, attrs: $A) -> $crate::ops!(@return 'g $res) {
                $crate::ops!(@finish (self.call_op($A::DEF, &attrs, Vec::new())) $res)
            }
        }
    };
    (@method [$($doc:literal)+] $name:ident $A:ident ($xs:ident : many $c:ident) [$($an:ident : $at:ty),*] -> $res:tt) => {
        impl $crate::graph::Graph {
            $(#[doc = $doc])+ #[track_caller]
            // Formulas in the docs have indices and shapes in brackets, which are no links.
            #[allow(rustdoc::broken_intra_doc_links)]
            pub fn $name<'g>(&'g self, $xs: &[$crate::Var<'g>], $($an: impl Into<$at>),*) -> $crate::ops!(@return 'g $res) {
                let attrs = $A { $($an: $an.into()),* };
                let operands = $xs.iter().copied().map(Some).collect();
                $crate::ops!(@finish (self.call_op($A::DEF, &attrs, operands)) $res)
            }
        }
    };
    // Methods of the first operand.
    (@method [$($doc:literal)+] $name:ident $A:ident ($x:ident : $xc:ident $(, $o:ident : $($c:ident)+)*)
        [$($an:ident : $at:ty),*] -> $res:tt) => {
        impl<'g> $crate::graph::Var<'g> {
            $(#[doc = $doc])+ #[track_caller]
            // Formulas in the docs have indices and shapes in brackets, which are no links.
            #[allow(rustdoc::broken_intra_doc_links)]
            #[allow(clippy::too_many_arguments, clippy::should_implement_trait)]
            pub fn $name(self, $($o: impl $crate::graph::Operand<'g>,)* $($an: impl Into<$at>),*) -> $crate::ops!(@return 'g $res) {
                let attrs = $A { $($an: $an.into()),* };
                #[allow(unused_mut)]
                let mut operands = vec![Some(self)];
                $($crate::graph::Operand::push($o, self, &mut operands);)*
                $crate::ops!(@finish (self.graph().call_op($A::DEF, &attrs, operands)) $res)
            }
        }
    };
    (@method [$($doc:literal)+] $name:ident $A:ident ($x:ident : $xc:ident $(, $o:ident : $($c:ident)+)*)
        [] [with $($b:ident)*] -> $res:tt) => {
        impl<'g> $crate::graph::Var<'g> {
            $(#[doc = $doc])+ #[track_caller]
            // Formulas in the docs have indices and shapes in brackets, which are no links.
            #[allow(rustdoc::broken_intra_doc_links)]
            #[allow(clippy::too_many_arguments)]
            pub fn $name(self, $($o: impl $crate::graph::Operand<'g>,)* attrs: $A) -> $crate::ops!(@return 'g $res) {
                #[allow(unused_mut)]
                let mut operands = vec![Some(self)];
                $($crate::graph::Operand::push($o, self, &mut operands);)*
                $crate::ops!(@finish (self.graph().call_op($A::DEF, &attrs, operands)) $res)
            }
        }
    };

    (@return $g:lifetime ($($r:ident),*)) => { [$crate::Var<$g>; <[()]>::len(&[$($crate::ops!(@unit $r)),*])] };
    (@return $g:lifetime [$r:ident]) => { Vec<$crate::Var<$g>> };
    (@return $g:lifetime $r:ident) => { $crate::Var<$g> };
    (@unit $r:ident) => { () };
    (@finish $call:tt ($($r:ident),*)) => { $crate::graph::several($call) };
    (@finish $call:tt [$r:ident]) => { $call.1 };
    (@finish $call:tt $r:ident) => {{ let [y] = $crate::graph::several($call); y }};
}
