//! Files that mean no good: each ends in an error, soon, and in little memory.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "../common/mod.rs"]
mod common;
mod gguf;
// Without the rest of that crate, which takes long to build.
#[path = "../../../rlx-conformance/src/attacks.rs"]
#[allow(dead_code, reason = "some are about types that a graph wants")]
mod hostile;
mod numpy;
mod safetensors;

use common::Folder;
use rlx_formats::{Archive, Bytes, open};
use rlx_ir::{Error, Result};
use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Duration;

/// Counts the bytes that are in use, and the most that ever were.
struct Counting;

static USED: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all is left to the system's allocator; only sizes are counted.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let used = USED.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(used, Relaxed);
        // SAFETY: the layout is the caller's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        USED.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as above, and so is the pointer.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What a file may take.
const MEMORY: usize = 64 << 20;
/// A second is what it should take; a busy machine may need more, and a hang takes all.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs something within the limits of memory and time.
fn limited<T: Send + 'static>(name: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    // One at a time, or the memory of another would be counted.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let before = USED.load(Relaxed);
    PEAK.store(before, Relaxed);
    let (send, receive) = mpsc::channel();
    let thread = std::thread::spawn(move || send.send(work()).unwrap());
    let got = match receive.recv_timeout(PATIENCE) {
        Ok(got) => got,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("{name}: hangs"),
        Err(mpsc::RecvTimeoutError::Disconnected) => panic!("{name}: {:?}", thread.join()),
    };
    thread.join().unwrap();
    let taken = PEAK.load(Relaxed).saturating_sub(before);
    assert!(taken < MEMORY, "{name}: took {} MiB", taken >> 20);
    got
}

/// Reads all that a file has.
fn consume(archive: Archive) -> Result<usize> {
    archive.entries().iter().try_fold(0, |n, e| Ok(n + archive.tensor(e.name())?.to_tensor()?.len()))
}

fn read_path(path: &Path) -> Result<usize> {
    open(path).and_then(consume)
}

fn refused(name: &str, got: Result<usize>, why: &str) -> Error {
    match got {
        Ok(n) => panic!("{name}: is read, with {n} elements"),
        Err(e) => {
            assert!(e.to_string().contains(why), "{name}: {e}");
            assert!(!e.to_string().contains('\n'), "{name}: {e}");
            e
        }
    }
}

/// A file of these bytes is refused, and so are the bytes in memory.
fn attack(name: &str, file: &str, bytes: &[u8], why: &str) {
    let folder = Folder::new();
    let path = folder.file(file, bytes);
    refused(name, limited(name, move || read_path(&path)), why);
    let bytes = Bytes::from(bytes.to_vec());
    let e = limited(name, move || Archive::from_bytes(bytes).and_then(consume));
    refused(name, e, "");
}

/// Whatever stands in for a byte of a good file, and wherever it ends, nothing worse than an error comes of it.
fn damage(file: &str, good: &[u8]) {
    let folder = Folder::new();
    let path = folder.file(file, good);
    limited("undamaged", move || read_path(&path)).unwrap();
    let good = good.to_vec();
    let name = file.to_string();
    limited(file, move || {
        let read = |bytes: Vec<u8>| Archive::from_bytes(bytes.into()).and_then(consume);
        for len in 0..good.len() {
            let got = read(good[..len].to_vec());
            assert!(got.is_err(), "{name}: {len} of {} bytes are read", good.len());
        }
        for at in 0..good.len() {
            for byte in [0, 0xff, good[at] ^ 0x80, good[at].wrapping_add(1), good[at].wrapping_sub(1)] {
                let mut bytes = good.clone();
                bytes[at] = byte;
                // It may be read: not every byte says something that can be wrong.
                let _ = read(bytes);
            }
        }
    });
}

#[test]
fn pickles_are_refused_with_a_way_out() {
    let way = "save_file(torch.load(";
    for protocol in 2..=5 {
        attack("pickle", "model.pt", &[0x80, protocol, 0x8a, 0x0a, 0x6c, 0xfc], way);
    }
    let zip = numpy::zip(&[("archive/data.pkl", b"\x80\x02}q\x00."), ("archive/version", b"3\n")]);
    attack("zip", "pytorch_model.bin", &zip, way);
    let folder = Folder::new();
    let e = open(folder.file("pytorch_model.bin", &zip)).unwrap_err();
    assert!(e.message().contains("torch.load(\"pytorch_model.bin\""), "{e}");
    let index = folder.file("pytorch_model.bin.index.json", br#"{"weight_map":{"x":"pytorch_model.bin"}}"#);
    refused("index", read_path(&index), way);
}

#[test]
fn what_is_nothing_of_all_this() {
    for bytes in [&b""[..], b"x", b"hello, world", &[0; 100], b"\x7fELF\x02\x01\x01", b"PK", b"<html>"] {
        attack("nothing", "x.dat", bytes, "neither safetensors");
    }
    let folder = Folder::new();
    for (path, why) in [
        (folder.0.clone(), "not a file"),
        (folder.path("gone"), "No such file"),
        ("/dev/zero".into(), "not a file"),
    ] {
        refused("no file", limited("no file", move || read_path(&path)), why);
    }
}
