//! How small codes are packed into the bytes of a block.

/// A run of bytes that holds `bits` bits of each element.
///
/// Elements lie in chunks of `span` bytes: the lowest bits of the bytes belong to the first `span` elements, the next
/// bits to the next `span`, and so on until the bytes are full.
#[derive(Clone, Copy)]
pub(super) struct Field {
    /// First byte within the block.
    pub(super) at: usize,
    pub(super) bits: usize,
    pub(super) span: usize,
}

/// Codes of one array: a field of low bits and perhaps one of high bits above it.
#[derive(Clone, Copy)]
pub(super) struct Codes {
    pub(super) low: Field,
    pub(super) high: Option<Field>,
}

impl Codes {
    pub(super) const fn one(at: usize, bits: usize, span: usize) -> Self {
        Self { low: Field { at, bits, span }, high: None }
    }

    pub(super) const fn with_high(self, at: usize, bits: usize, span: usize) -> Self {
        Self { low: self.low, high: Some(Field { at, bits, span }) }
    }

    /// The codes of a block, one a byte.
    pub(super) fn unpack<const N: usize>(&self, block: &[u8]) -> [u8; N] {
        let mut codes = [0; N];
        self.low.unpack(block, 0, &mut codes);
        if let Some(high) = self.high {
            high.unpack(block, self.low.bits, &mut codes);
        }
        codes
    }

    /// Sets the bits of the codes in a block where they are still 0.
    pub(super) fn pack(&self, codes: &[u8], block: &mut [u8]) {
        self.low.pack(codes, 0, block);
        if let Some(high) = self.high {
            high.pack(codes, self.low.bits, block);
        }
    }
}

impl Field {
    fn mask(&self) -> u8 {
        0xFF >> (8 - self.bits)
    }

    fn chunk(&self) -> usize {
        self.span * (8 / self.bits)
    }

    fn unpack(&self, block: &[u8], lift: usize, codes: &mut [u8]) {
        let bytes = block[self.at..].chunks_exact(self.span);
        for (codes, bytes) in codes.chunks_exact_mut(self.chunk()).zip(bytes) {
            for (part, codes) in codes.chunks_exact_mut(self.span).enumerate() {
                for (code, byte) in codes.iter_mut().zip(bytes) {
                    *code |= ((byte >> (part * self.bits)) & self.mask()) << lift;
                }
            }
        }
    }

    fn pack(&self, codes: &[u8], lift: usize, block: &mut [u8]) {
        let bytes = block[self.at..].chunks_exact_mut(self.span);
        for (codes, bytes) in codes.chunks_exact(self.chunk()).zip(bytes) {
            for (part, codes) in codes.chunks_exact(self.span).enumerate() {
                for (code, byte) in codes.iter().zip(bytes.iter_mut()) {
                    *byte |= ((code >> lift) & self.mask()) << (part * self.bits);
                }
            }
        }
    }
}
