//! A scheme bound to a shape: packs and unpacks piece by piece into memory that the caller has, so that pieces can be shared
//! out among threads. A piece comes out the same whoever does it, and whatever is done before or beside it.
//!
//! To unpack is one step. To pack takes three: the peak of all values, where the tensor has a global scale; then the scales
//! of all groups; then the codes, which are relative to the scales as they are stored.

use super::columns::{ColumnCodec, Geometry, part_of_global, tamed_peak};
use super::ggml::BlockCodec;
use super::table::Layout;
use super::{Decode, Plane, QuantError, Scheme, product};
use std::ops::Range;

/// Elements of a piece: whole blocks of every ggml kind, and whole bytes of nibbles.
const PIECE: usize = 1 << 14;

/// A scheme bound to a shape.
pub struct Codec {
    name: &'static str,
    kind: Kind,
    planes: Vec<Plane>,
    len: usize,
}

enum Kind {
    Columns(&'static ColumnCodec, Geometry),
    Rows(&'static BlockCodec, usize),
}

impl Scheme {
    /// The scheme bound to a shape.
    pub fn codec(self, shape: &[usize]) -> Result<Codec, QuantError> {
        let row = self.checked_row()?;
        let planes = self.planes(shape)?;
        let kind = match &row.layout {
            Layout::Columns(codec) => Kind::Columns(codec, Geometry::new(shape, self.block)?),
            Layout::Rows(codec) => Kind::Rows(codec, self.block as usize),
        };
        Ok(Codec { name: row.name, kind, planes, len: product(shape)? })
    }
}

impl Codec {
    /// The buffers, codes or blocks first.
    pub fn planes(&self) -> &[Plane] {
        &self.planes
    }

    /// The number of pieces that elements come in.
    pub fn pieces(&self) -> usize {
        self.len.div_ceil(PIECE)
    }

    /// The elements of a piece.
    pub fn piece(&self, i: usize) -> Range<usize> {
        let first = i.saturating_mul(PIECE).min(self.len);
        first..first.saturating_add(PIECE).min(self.len)
    }

    /// The bytes of a piece in the first plane.
    pub fn piece_bytes(&self, i: usize) -> Range<usize> {
        let Range { start, end } = self.piece(i);
        match &self.kind {
            Kind::Rows(codec, block) => start / block * codec.bytes..end / block * codec.bytes,
            Kind::Columns(codec, _) if codec.has_nibbles() => start / 2..end.div_ceil(2),
            Kind::Columns(..) => start..end,
        }
    }

    /// Whether all scales are relative to one of the whole tensor, in the last plane.
    pub fn has_global(&self) -> bool {
        matches!(&self.kind, Kind::Columns(codec, _) if codec.has_global())
    }

    /// The number of pieces that scales in planes of their own come in.
    pub fn scale_pieces(&self) -> usize {
        self.groups().div_ceil(self.groups_a_piece())
    }

    /// The bytes of a piece of scales in the plane of the scales, and in that of the zero points, which may be none.
    pub fn scale_bytes(&self, i: usize) -> [Range<usize>; 2] {
        let Range { start, end } = self.scale_piece(i);
        self.group_bytes().map(|bytes| start * bytes..end * bytes)
    }

    fn scale_piece(&self, i: usize) -> Range<usize> {
        let first = i.saturating_mul(self.groups_a_piece()).min(self.groups());
        first..first.saturating_add(self.groups_a_piece()).min(self.groups())
    }

    /// Groups with scales in planes of their own.
    fn groups(&self) -> usize {
        match (&self.kind, self.len) {
            (_, 0) | (Kind::Rows(..), _) => 0,
            (Kind::Columns(codec, geometry), _) => codec.groups(geometry),
        }
    }

    fn groups_a_piece(&self) -> usize {
        match &self.kind {
            Kind::Rows(..) => 1,
            Kind::Columns(_, geometry) => (PIECE / geometry.block()).max(1),
        }
    }

    fn group_bytes(&self) -> [usize; 2] {
        let size = |name: &str| self.planes.iter().find(|p| p.name == name).map_or(0, |p| p.elem.size());
        [size("scale"), size("zero")]
    }

    fn check_plane(&self, at: usize, expected: usize, got: usize) -> Result<(), QuantError> {
        let plane = self.planes.get(at).map_or("", |p| p.name);
        let wrong = QuantError::PlaneLength { scheme: self.name, plane, expected, got };
        if expected == got { Ok(()) } else { Err(wrong) }
    }

    /// Planes from number `skip` on are as long as they must be.
    fn check_planes(&self, skip: usize, planes: &[&[u8]]) -> Result<(), QuantError> {
        let expected = self.planes.len();
        if expected != skip + planes.len() {
            return Err(QuantError::PlaneCount { scheme: self.name, expected, got: skip + planes.len() });
        }
        let mut all = self.planes.iter().enumerate().skip(skip).zip(planes);
        all.try_for_each(|((at, spec), plane)| self.check_plane(at, spec.bytes, plane.len()))
    }

    fn check_values(expected: usize, got: usize) -> Result<(), QuantError> {
        if expected == got { Ok(()) } else { Err(QuantError::ValueCount { expected, got }) }
    }

    /// Unpacks a piece from all planes.
    pub fn decode(
        &self,
        i: usize,
        planes: &[&[u8]],
        mode: Decode,
        out: &mut [f32],
    ) -> Result<(), QuantError> {
        self.check_planes(0, planes)?;
        Codec::check_values(self.piece(i).len(), out.len())?;
        match &self.kind {
            Kind::Columns(codec, geometry) => codec.decode(geometry, planes, mode, self.piece(i).start, out),
            Kind::Rows(codec, block) => {
                let blocks = planes.first().and_then(|p| p.get(self.piece_bytes(i))).unwrap_or_default();
                codec.decode_all(*block, blocks, out);
            }
        }
        Ok(())
    }

    /// The largest magnitude of some values. What the whole tensor has is the largest of those of its parts.
    pub fn peak(values: &[f32]) -> f32 {
        tamed_peak(values)
    }

    /// The global scale for the largest magnitude of all values; 1 for schemes without one.
    pub fn global(&self, peak: f32) -> f32 {
        if self.has_global() { part_of_global(peak) } else { 1.0 }
    }

    /// Chooses a piece of scales, and writes the bytes of it. `values` are those of the whole tensor.
    pub fn encode_scales(
        &self,
        i: usize,
        values: &[f32],
        global: f32,
        scale: &mut [u8],
        zero: &mut [u8],
    ) -> Result<(), QuantError> {
        Codec::check_values(self.len, values.len())?;
        let [of_scale, of_zero] = self.scale_bytes(i);
        self.check_plane(1, of_scale.len(), scale.len())?;
        self.check_plane(2, of_zero.len(), zero.len())?;
        if let Kind::Columns(codec, geometry) = &self.kind {
            codec.encode_scales(geometry, values, global, self.scale_piece(i), scale, zero);
        }
        Ok(())
    }

    /// Packs a piece into the bytes of it in the first plane. `values` are those of the piece, `sides` the other planes.
    pub fn encode_codes(
        &self,
        i: usize,
        values: &[f32],
        sides: &[&[u8]],
        codes: &mut [u8],
    ) -> Result<(), QuantError> {
        self.check_planes(1, sides)?;
        Codec::check_values(self.piece(i).len(), values.len())?;
        self.check_plane(0, self.piece_bytes(i).len(), codes.len())?;
        match &self.kind {
            Kind::Columns(codec, geometry) => {
                codec.encode_codes(geometry, values, sides, self.piece(i).start, codes);
            }
            Kind::Rows(codec, block) => {
                codes.fill(0);
                codec.encode_all(*block, values, codes);
            }
        }
        Ok(())
    }

    /// Unpacks everything.
    pub(super) fn decode_all(&self, planes: &[&[u8]], mode: Decode) -> Result<Vec<f32>, QuantError> {
        self.check_planes(0, planes)?;
        let mut out = vec![0.0; self.len];
        for (i, out) in out.chunks_mut(PIECE).enumerate() {
            self.decode(i, planes, mode, out)?;
        }
        Ok(out)
    }

    /// Packs everything.
    pub(super) fn encode_all(&self, values: &[f32]) -> Result<Vec<Vec<u8>>, QuantError> {
        Codec::check_values(self.len, values.len())?;
        let mut planes: Vec<Vec<u8>> = self.planes.iter().map(|p| vec![0; p.bytes]).collect();
        let Some((codes, sides)) = planes.split_first_mut() else { return Ok(planes) };
        let mut global = 1.0;
        if let (true, Some(to)) = (self.has_global(), sides.last_mut()) {
            global = self.global(Codec::peak(values));
            to.copy_from_slice(&global.to_le_bytes());
        }
        for i in 0..self.scale_pieces() {
            let [of_scale, of_zero] = self.scale_bytes(i);
            let mut sides = sides.iter_mut();
            let scale = sides.next().and_then(|p| p.get_mut(of_scale)).unwrap_or_default();
            let zero = if of_zero.is_empty() { None } else { sides.next() };
            let zero = zero.and_then(|p| p.get_mut(of_zero)).unwrap_or_default();
            self.encode_scales(i, values, global, scale, zero)?;
        }
        let sides: Vec<&[u8]> = sides.iter().map(Vec::as_slice).collect();
        for (i, values) in values.chunks(PIECE).enumerate() {
            let codes = codes.get_mut(self.piece_bytes(i)).unwrap_or_default();
            self.encode_codes(i, values, &sides, codes)?;
        }
        Ok(planes)
    }
}
