//! How tensors are cut into several files.

use crate::array::View;

/// Which tensors go into which file, in order: none has more bytes of them than `most`, unless one tensor alone has.
pub(crate) fn cut<'a, 'b>(tensors: &'b [(&'a str, View<'a>)], most: u64) -> Vec<&'b [(&'a str, View<'a>)]> {
    let (mut cut, mut start, mut bytes) = (Vec::new(), 0, 0u64);
    for (i, (_, view)) in tensors.iter().enumerate() {
        let more = view.len() as u64;
        if i > start && bytes.saturating_add(more) > most {
            cut.extend(tensors.get(start..i));
            (start, bytes) = (i, 0);
        }
        bytes = bytes.saturating_add(more);
    }
    cut.extend(tensors.get(start..));
    cut
}
