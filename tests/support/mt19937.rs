//! The generator behind `torch.randint` on the CPU, so that a benchmark's inputs are the peer's to the token.

const N: usize = 624;
const M: usize = 397;

/// Mersenne Twister (Matsumoto and Nishimura, 1998), 32-bit outputs, as `torch.Generator().manual_seed` seeds it.
pub struct Mt19937 {
    state: [u32; N],
    next: usize,
}

impl Mt19937 {
    /// Seeded as `manual_seed(seed)`.
    pub fn new(seed: u32) -> Self {
        let mut state = [seed; N];
        for i in 1..N {
            let last = state[i - 1];
            state[i] = (last ^ (last >> 30))
                .wrapping_mul(1_812_433_253)
                .wrapping_add(i as u32);
        }
        Self { state, next: N }
    }

    /// As one element of `torch.randint(0, bound, …)`, for bounds below 2^32.
    pub fn below(&mut self, bound: u32) -> u32 {
        self.word() % bound
    }

    fn word(&mut self) -> u32 {
        if self.next == N {
            self.twist();
        }
        let mut y = self.state[self.next];
        self.next += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9D2C_5680;
        y ^= (y << 15) & 0xEFC6_0000;
        y ^ (y >> 18)
    }

    fn twist(&mut self) {
        for i in 0..N {
            let y = (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % N] & 0x7FFF_FFFF);
            let odd = if y & 1 == 1 { 0x9908_B0DF } else { 0 };
            self.state[i] = self.state[(i + M) % N] ^ (y >> 1) ^ odd;
        }
        self.next = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_words_are_the_reference_implementations() {
        let mut generator = Mt19937::new(5489);
        let words: Vec<u32> = (0..3).map(|_| generator.word()).collect();
        assert_eq!(words, [3_499_211_612, 581_869_302, 3_890_346_734]);
        // C++ asks of std::mt19937: the 10000th word from the default seed.
        let last = (3..10_000).map(|_| generator.word()).last();
        assert_eq!(last, Some(4_123_659_995));
    }

    #[test]
    fn small_numbers_are_those_of_torch_randint() {
        // torch.manual_seed(0); torch.randint(10, (6,))
        let mut generator = Mt19937::new(0);
        let numbers: Vec<u32> = (0..6).map(|_| generator.below(10)).collect();
        assert_eq!(numbers, [4, 9, 3, 0, 3, 9]);
    }
}
