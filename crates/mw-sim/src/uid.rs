//! Pseudorandom uids and suffixes of generated names, derived from the seed.

/// Generator of numbers from a seed (splitmix64).
#[derive(Debug)]
pub(crate) struct Draws(u64);

/// Characters of generated names: no vowels, to avoid words.
const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

impl Draws {
    pub(crate) fn new(seed: u64) -> Draws {
        Draws(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a UUID of version 4.
    pub(crate) fn uid(&mut self) -> String {
        let (high, low) = (self.next(), self.next());
        format!(
            "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
            high >> 32,
            high >> 16 & 0xffff,
            high & 0xfff,
            low >> 48 & 0x3fff | 0x8000,
            low & 0xffff_ffff_ffff
        )
    }

    /// Returns the five characters that follow a `generateName`.
    pub(crate) fn suffix(&mut self) -> String {
        let mut rest = self.next();
        let mut letter = || {
            let drawn = LETTERS.get((rest % 27) as usize).copied().unwrap_or(b'x');
            rest /= 27;
            char::from(drawn)
        };
        (0..5).map(|_| letter()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_uids_and_no_two_are_equal() {
        let draw = |seed| {
            let mut draws = Draws::new(seed);
            (0..100)
                .map(|_| draws.uid())
                .collect::<std::collections::BTreeSet<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        assert_eq!(draw(7).len(), 100);
        assert!(draw(7).iter().all(|uid| uid.len() == 36));
    }
}
