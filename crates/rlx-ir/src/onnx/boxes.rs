//! Boxes on images.

use super::Call;
use crate::error::{Code, Error, Result};
use crate::graph::Var;
use crate::tensor::Tensor;

/// A box by its edges. Computed in `f32`, as others do: thresholds are often met exactly.
#[derive(Clone, Copy)]
struct Area {
    x: (f32, f32),
    y: (f32, f32),
}

impl Area {
    fn new(b: [f32; 4], by_centre: bool) -> Area {
        let sorted = |a: f32, b: f32| (a.min(b), a.max(b));
        match (b, by_centre) {
            ([x, y, w, h], true) => Area { x: (x - w / 2.0, x + w / 2.0), y: (y - h / 2.0, y + h / 2.0) },
            ([y1, x1, y2, x2], false) => Area { x: sorted(x1, x2), y: sorted(y1, y2) },
        }
    }

    fn size(self) -> f32 {
        (self.x.1 - self.x.0) * (self.y.1 - self.y.0)
    }

    /// Whether the common part is more than this part of both together.
    fn overlaps(self, other: Area, limit: f32) -> bool {
        let common = Area {
            x: (self.x.0.max(other.x.0), self.x.1.min(other.x.1)),
            y: (self.y.0.max(other.y.0), self.y.1.min(other.y.1)),
        };
        if common.x.1 <= common.x.0 || common.y.1 <= common.y.0 {
            return false;
        }
        let (a, b, both) = (self.size(), other.size(), common.size());
        a > 0.0 && b > 0.0 && both / (a + b - both) > limit
    }
}

/// Boxes by falling score, without those that overlap a better one: which image, class and box. How many there are depends on
/// data, so the operands must be known.
pub(crate) fn non_max_suppression<'g>(c: &Call<'g, '_>) -> Result<Vec<Var<'g>>> {
    let (boxes, scores) = (c.known(0)?, c.known(1)?);
    let number = |i: usize| match c.opt(i) {
        None => Ok(None),
        Some(_) => c.const_floats(i).map(|v| v.first().copied()),
    };
    let most = number(2)?.unwrap_or(0.0).max(0.0) as usize;
    let (limit, least) = (number(3)?.unwrap_or(0.0) as f32, number(4)?.map(|s| s as f32));
    let by_centre = c.flag("center_point_box", false)?;
    let (&[_, count, 4], &[batch, classes, n]) = (boxes.shape(), scores.shape()) else {
        return Err(Error::new(
            Code::Rank,
            "boxes must be [images, boxes, 4], scores [images, classes, boxes]",
        ));
    };
    let sizes = || c.cannot("boxes that depend on sizes");
    let (boxes, scores) = (boxes.floats().ok_or_else(sizes)?, scores.floats().ok_or_else(sizes)?);
    let areas: Vec<Area> = boxes
        .chunks_exact(4)
        .filter_map(|b| <[f64; 4]>::try_from(b).ok())
        .map(|b| Area::new(b.map(|x| x as f32), by_centre))
        .collect();
    if n != count || areas.len() != batch * count {
        return Err(Error::new(Code::Dim, "boxes and scores do not agree"));
    }
    let mut chosen: Vec<i64> = Vec::new();
    for (k, scores) in scores.chunks_exact(n.max(1)).enumerate().take(batch * classes) {
        let image = k / classes.max(1);
        let own = areas.get(image * n..(image + 1) * n).unwrap_or_default();
        let mut order: Vec<(f32, usize, Area)> =
            scores.iter().zip(own).enumerate().map(|(i, (s, a))| (*s as f32, i, *a)).collect();
        order.retain(|(s, ..)| least.is_none_or(|least| *s > least));
        order.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut kept: Vec<Area> = Vec::new();
        for (_, i, area) in order {
            if kept.len() < most && !kept.iter().any(|k| area.overlaps(*k, limit)) {
                kept.push(area);
                chosen.extend([image as i64, (k % classes.max(1)) as i64, i as i64]);
            }
        }
    }
    Ok(vec![c.g.constant(Tensor::new(&[chosen.len() / 3, 3], &chosen)?)])
}
