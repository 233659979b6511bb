//! Lists of accesses, for the words that have more than their cell holds.

use super::shadow::Entry;

/// Lists of entries. Number 0 is no node; a number whose node is of another word is left over from an earlier launch.
#[derive(Default, Debug)]
pub(crate) struct Nodes {
    all: Vec<Node>,
    free: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    word: usize,
    entry: Entry,
    next: u32,
    /// Nodes from here to the end.
    length: u32,
}

impl Nodes {
    fn get(&self, at: u32, word: usize) -> Option<Node> {
        self.all
            .get((at as usize).wrapping_sub(1))
            .copied()
            .filter(|node| node.word == word)
    }

    pub(crate) fn find(
        &self,
        mut at: u32,
        word: usize,
        wanted: impl Fn(&Entry) -> bool,
    ) -> Option<Entry> {
        while let Some(node) = self.get(at, word) {
            if wanted(&node.entry) {
                return Some(node.entry);
            }
            at = node.next;
        }
        None
    }

    /// Whether the list has grown to twice what it had the last time.
    pub(crate) fn is_due(&self, at: u32, word: usize) -> bool {
        self.get(at, word)
            .is_some_and(|node| node.length >= 8 && node.length.is_power_of_two())
    }

    /// The list with a new node in front.
    pub(crate) fn push(&mut self, at: u32, word: usize, entry: Entry) -> u32 {
        let before = self.get(at, word);
        let node = Node {
            word,
            entry,
            next: if before.is_some() { at } else { 0 },
            length: 1 + before.map_or(0, |node| node.length),
        };
        if let Some(free) = self.free.pop() {
            self.all[free as usize - 1] = node;
            return free;
        }
        if self.all.len() >= 1 << 20 {
            return node.next;
        }
        self.all.push(node);
        self.all.len() as u32
    }

    /// The list of those of its entries that are wanted.
    pub(crate) fn keep(
        &mut self,
        mut at: u32,
        word: usize,
        wanted: impl Fn(&Entry) -> bool,
    ) -> u32 {
        let mut kept = Vec::new();
        while let Some(node) = self.get(at, word) {
            if wanted(&node.entry) {
                kept.push(node.entry);
            }
            self.all[at as usize - 1].word = usize::MAX;
            self.free.push(at);
            at = node.next;
        }
        kept.into_iter()
            .rev()
            .fold(0, |list, entry| self.push(list, word, entry))
    }
}
