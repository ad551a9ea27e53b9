//! How an element of a dense buffer is found from an index: symbolic strides, and the views that compose with them.

use rlx_ir::Dim;

/// A strided view of a dense row-major buffer: element `i` stands at `offset + Σ i[k]·strides[k]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Access {
    /// The sizes of the view.
    pub shape: Vec<Dim>,
    /// The distance between neighbours along each axis, in elements; 0 along axes of size 1.
    pub strides: Vec<Dim>,
    /// The position of the first element.
    pub offset: Dim,
}

fn zero() -> Dim {
    Dim::constant(0)
}

/// Row-major strides; 0 along axes of size 1.
pub fn dense_strides(shape: &[Dim]) -> Vec<Dim> {
    let mut n = Dim::constant(1);
    let mut out: Vec<Dim> = shape
        .iter()
        .rev()
        .map(|d| {
            let next = &n * d;
            let s = std::mem::replace(&mut n, next);
            if d.is(1) { zero() } else { s }
        })
        .collect();
    out.reverse();
    out
}

impl Access {
    /// A whole buffer of that shape.
    pub fn dense(shape: &[Dim]) -> Access {
        Access { shape: shape.to_vec(), strides: dense_strides(shape), offset: zero() }
    }

    /// Whether the elements stand in row-major order without gaps from the buffer's start.
    pub fn is_dense(&self) -> bool {
        self.offset.is(0) && self.strides == dense_strides(&self.shape)
    }

    /// Axis i is axis `axes[i]` of this one.
    pub fn permute(&self, axes: &[usize]) -> Access {
        let pick = |v: &[Dim]| axes.iter().filter_map(|a| v.get(*a).cloned()).collect();
        Access { shape: pick(&self.shape), strides: pick(&self.strides), offset: self.offset.clone() }
    }

    /// Repeated along new leading axes and axes of size 1.
    pub fn broadcast(&self, shape: &[Dim]) -> Access {
        let lead = shape.len().saturating_sub(self.shape.len());
        let stride = |i: usize, d: &Dim| match i.checked_sub(lead) {
            Some(own) if self.shape.get(own).is_some_and(|s| !s.is(1) || d.is(1)) => {
                self.strides.get(own).cloned().unwrap_or_else(zero)
            }
            _ => zero(),
        };
        let strides = shape.iter().enumerate().map(|(i, d)| stride(i, d)).collect();
        Access { shape: shape.to_vec(), strides, offset: self.offset.clone() }
    }

    /// From `start` on, every `step`-th, as many as `shape` says.
    pub fn slice(&self, start: &[Dim], step: &[i64], shape: &[Dim]) -> Access {
        let mut offset = self.offset.clone();
        let mut strides = Vec::with_capacity(shape.len());
        for (i, d) in shape.iter().enumerate() {
            let own = self.strides.get(i).cloned().unwrap_or_else(zero);
            if let Some(s) = start.get(i) {
                offset += s * &own;
            }
            let step = step.get(i).copied().unwrap_or(1);
            strides.push(if d.is(1) { zero() } else { own * step });
        }
        Access { shape: shape.to_vec(), strides, offset }
    }

    /// Some axes backwards.
    pub fn flip(&self, axes: &[usize]) -> Access {
        let mut out = self.clone();
        for a in axes {
            if let (Some(s), Some(d)) = (out.strides.get_mut(*a), self.shape.get(*a)) {
                // An empty axis would start before the buffer; nothing is read there.
                out.offset = &out.offset + &*s * &(d - 1);
                *s = zero() - &*s;
            }
        }
        out
    }

    /// The same elements in row-major order under another shape, if strides can say that.
    pub fn reshape(&self, shape: &[Dim]) -> Option<Access> {
        if self.shape == shape {
            return Some(self.clone());
        }
        if self.is_dense() {
            return Some(Access::dense(shape));
        }
        let old: Vec<(&Dim, &Dim)> = self.shape.iter().zip(&self.strides).filter(|(d, _)| !d.is(1)).collect();
        let mut strides = vec![zero(); shape.len()];
        let new: Vec<usize> = (0..shape.len()).filter(|i| shape.get(*i).is_some_and(|d| !d.is(1))).collect();
        let (mut i, mut j) = (0, 0);
        while i < old.len() || j < new.len() {
            // A group of old axes and a group of new axes with as many elements.
            let (from, to) = (i, j);
            let size = |j: usize| new.get(j).and_then(|k| shape.get(*k));
            let mut have = old.get(i).map(|o| o.0.clone()).unwrap_or(Dim::constant(1));
            let mut want = size(j).cloned().unwrap_or(Dim::constant(1));
            (i, j) = (i + 1, j + 1);
            while have != want {
                if want.exact_div(&have).is_some() && i < old.len() {
                    have *= old.get(i)?.0;
                    i += 1;
                } else if have.exact_div(&want).is_some() && j < new.len() {
                    want *= size(j)?;
                    j += 1;
                } else {
                    return None;
                }
            }
            let group = old.get(from..i.min(old.len()))?;
            let joined = group.windows(2).all(|w| match w {
                [(_, outer), (n, inner)] => **outer == *inner * *n,
                _ => true,
            });
            if !joined {
                return None;
            }
            let mut stride = group.last().map_or_else(zero, |g| g.1.clone());
            for k in new.get(to..j.min(new.len()))?.iter().rev() {
                if let (Some(slot), Some(d)) = (strides.get_mut(*k), shape.get(*k)) {
                    *slot = stride.clone();
                    stride *= d;
                }
            }
        }
        Some(Access { shape: shape.to_vec(), strides, offset: self.offset.clone() })
    }

    /// Whether every element of the view is the first one.
    pub fn is_splat(&self) -> bool {
        self.strides.iter().all(|s| s.is(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlx_ir::dim;

    fn dims(v: &[i64]) -> Vec<Dim> {
        v.iter().map(|d| (*d).into()).collect()
    }

    /// Every element of a view by brute force.
    fn elements(a: &Access) -> Vec<i64> {
        let n = |v: &[Dim]| v.iter().map(|d| d.as_const().unwrap()).collect::<Vec<_>>();
        let (shape, strides) = (n(&a.shape), n(&a.strides));
        let total: i64 = shape.iter().product();
        (0..total)
            .map(|mut flat| {
                let mut at = a.offset.as_const().unwrap();
                for (d, s) in shape.iter().zip(&strides).rev() {
                    at += flat % d * s;
                    flat /= d;
                }
                at
            })
            .collect()
    }

    #[test]
    fn views_compose() {
        let a = Access::dense(&dims(&[2, 3, 4])).permute(&[1, 0, 2]);
        assert_eq!(elements(&a)[..8], [0, 1, 2, 3, 12, 13, 14, 15]);
        let f = Access::dense(&dims(&[2, 3])).flip(&[1]);
        assert_eq!(elements(&f), [2, 1, 0, 5, 4, 3]);
        let s = Access::dense(&dims(&[6])).slice(&dims(&[1]), &[2], &dims(&[3]));
        assert_eq!(elements(&s), [1, 3, 5]);
        let b = Access::dense(&dims(&[3, 1])).broadcast(&dims(&[2, 3, 2]));
        assert_eq!(elements(&b), [0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2]);
    }

    #[test]
    fn reshape_keeps_the_order_or_refuses() {
        for (shape, axes, to) in [
            (vec![2, 3, 4], vec![0, 1, 2], vec![6, 4]),
            (vec![2, 3, 4], vec![1, 0, 2], vec![3, 8]),
            (vec![2, 3, 4], vec![2, 0, 1], vec![4, 6]),
            (vec![2, 3, 4], vec![2, 0, 1], vec![4, 2, 3, 1]),
            (vec![2, 3, 4], vec![0, 2, 1], vec![2, 12]),
            (vec![4, 6], vec![1, 0], vec![2, 3, 4]),
            (vec![4, 6], vec![1, 0], vec![3, 2, 2, 2]),
        ] {
            let a = Access::dense(&dims(&shape)).permute(&axes);
            if let Some(r) = a.reshape(&dims(&to)) {
                assert_eq!(elements(&r), elements(&a), "{shape:?} {axes:?} {to:?}");
            } else {
                assert!(!a.is_dense());
            }
        }
        assert!(Access::dense(&dims(&[2, 3, 4])).permute(&[1, 0, 2]).reshape(&dims(&[24])).is_none());
    }

    #[test]
    fn reshape_knows_symbols() {
        let (b, s) = (dim("b", 8), dim("s", 128));
        let heads = Access::dense(&[b.clone(), s.clone(), 384.into()])
            .reshape(&[b.clone(), s.clone(), 12.into(), 32.into()])
            .unwrap()
            .permute(&[0, 2, 1, 3]);
        assert!(!heads.is_dense());
        let back = heads.permute(&[0, 2, 1, 3]).reshape(&[&b * &s, 384.into()]).unwrap();
        assert!(back.is_dense());
        assert!(heads.reshape(&[b * s, 384.into()]).is_none());
    }
}
