//! Writes the words of a signature and hashes them once.

use smallvec::SmallVec;
use tpu_aten::Settings;
use tpu_base::Scalar;
use xxhash_rust::xxh3::xxh3_128;

/// Collects a signature's words. 128 bits of hash stand for the whole: a collision is less likely than a memory fault.
pub(crate) struct KeyWriter {
    bytes: SmallVec<[u8; 512]>,
    offsets: bool,
}

impl KeyWriter {
    pub(crate) fn new(form: u64, settings: Settings) -> KeyWriter {
        let mut w = KeyWriter { bytes: SmallVec::new(), offsets: true };
        w.raw(form);
        w.raw((settings.default_dtype as u64) << 8 | settings.precision as u64);
        w
    }

    /// Offsets of views are left out.
    pub(crate) fn without_offsets(mut self) -> KeyWriter {
        self.offsets = false;
        self
    }

    #[inline]
    pub(crate) fn offset(&mut self, offset: i64) {
        if self.offsets {
            self.raw(offset as u64);
        }
    }

    /// Makes room for so many more words.
    pub(crate) fn reserve(&mut self, words: usize) {
        self.bytes.reserve(9 * words);
    }

    #[inline]
    pub(crate) fn raw(&mut self, word: u64) {
        self.bytes.extend_from_slice(&word.to_le_bytes());
    }

    #[inline]
    pub(crate) fn tag(&mut self, tag: u8) {
        self.bytes.push(tag);
    }

    #[inline]
    pub(crate) fn word(&mut self, tag: u8, word: u64) {
        self.tag(tag);
        self.raw(word);
    }

    pub(crate) fn list(&mut self, tag: u8, len: usize) {
        self.word(tag, len as u64);
    }

    pub(crate) fn scalar(&mut self, s: Scalar) {
        let (tag, lo, hi) = s.bits();
        self.tag(32 + tag);
        self.raw(lo);
        self.raw(hi);
    }

    pub(crate) fn str(&mut self, s: &str) {
        self.list(10, s.len());
        self.bytes.extend_from_slice(s.as_bytes());
    }

    pub(crate) fn finish(&self) -> u128 {
        xxh3_128(&self.bytes)
    }
}

/// Folds one more node into a segment's running hash.
pub(crate) fn fold(hash: u128, words: &[u64]) -> u128 {
    let mut bytes: SmallVec<[u8; 160]> = SmallVec::new();
    bytes.extend_from_slice(&hash.to_le_bytes());
    words.iter().for_each(|w| bytes.extend_from_slice(&w.to_le_bytes()));
    xxh3_128(&bytes)
}
