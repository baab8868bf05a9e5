//! A tree of the prompts of a capture, which shows the prefixes that prompts share.
//!
//! A prompt is a chain of hashes, each of which covers everything before it, so prompts with an equal hash share a
//! node. Records are numbered depth-first, so all records below a node form one range of places. "The earliest
//! unused record below this node" is the minimum over that range. A node takes about 40 bytes, however many records
//! share it.

use hashbrown::HashTable;
use vcr_trace::capture::BlockHash;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::playback::params::UNKNOWN;

/// The index of a record in order of arrival.
pub type Row = u32;

const NO_NODE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Node {
    hash: u64,
    parent: u32,
    /// Number of records whose chain ends here.
    num_ending: u32,
    /// Number of records whose chain ends here or within the next block. All have the same number of full blocks.
    num_same: u32,
    /// Number of records whose chain ends here or below.
    num_below: u32,
    /// The first place of these records. The records counted by `num_ending` come first, then the rest of
    /// `num_same`, then the rest of `num_below`.
    first_place: u32,
}

/// An entry of the hash table. It contains half of the hash, so that the table can grow without reading the nodes.
#[derive(Clone, Copy, Debug)]
struct Entry {
    half: u32,
    node: u32,
}

impl Entry {
    fn new(hash: u64, node: u32) -> Self {
        Self { half: hash as u32, node }
    }

    /// The table's hash: every bit depends on all bits of `half`.
    fn key(self) -> u64 {
        u64::from(self.half).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// Shared prefixes of the prompts of a capture.
#[derive(Debug, Default)]
pub(crate) struct PromptTree {
    nodes: Vec<Node>,
    by_hash: HashTable<Entry>,
    /// The place of each record in depth-first order.
    place_of_row: Vec<u32>,
    /// The parameter key of the record at each place, ascending among records with the same prompt. Empty if no
    /// parameters are known.
    params: Vec<u64>,
}

/// A range of places in depth-first order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Places {
    pub(crate) start: u32,
    pub(crate) end: u32,
}

/// Stands in for an unknown hash of a whole prompt: combines its last block and its length.
#[must_use]
pub(crate) fn end_by_length(last_block: Option<BlockHash>, prompt_tokens: u32) -> BlockHash {
    let last = last_block.map_or(0, |hash| hash.0);
    BlockHash(xxh3_64_with_seed(&prompt_tokens.to_le_bytes(), last ^ 0x656e_645f_6f66_5f70))
}

/// Collects the hash chains of records, in capture order.
#[derive(Debug, Default)]
pub(crate) struct PromptTreeBuilder {
    tree: PromptTree,
    /// The last node of each record.
    end_of_row: Vec<u32>,
    /// Whether each node is the end of a prompt, after its last full block.
    is_tail: Vec<bool>,
}

impl PromptTreeBuilder {
    /// Adds a node below `parent`. The hash must be new.
    fn add(&mut self, parent: u32, hash: BlockHash, is_tail: bool) -> u32 {
        let nodes = &mut self.tree.nodes;
        let node = nodes.len() as u32;
        nodes.push(Node { hash: hash.0, parent, num_ending: 0, num_same: 0, num_below: 0, first_place: 0 });
        self.is_tail.push(is_tail);
        let entry = Entry::new(hash.0, node);
        self.tree.by_hash.insert_unique(entry.key(), entry, |other| other.key());
        node
    }

    /// Adds the next record: the hashes of its full blocks and the hash of its whole prompt. If the prompt ends
    /// with a full block, that block's hash is also the end.
    pub(crate) fn push(&mut self, blocks: &[BlockHash], end: BlockHash) {
        // Blocks before a known block are known, and blocks after an unknown block are unknown.
        let num_known = blocks.partition_point(|&hash| self.tree.find_node(hash).is_some());
        let (known, new) = blocks.split_at(num_known);
        let mut last = known.last().and_then(|&hash| self.tree.find_node(hash)).unwrap_or(NO_NODE);
        for &hash in new {
            last = self.add(last, hash, false);
        }
        let known_end = if blocks.last() == Some(&end) { Some(last) } else { self.tree.find_node(end) };
        let end = known_end.unwrap_or_else(|| self.add(last, end, true));
        self.end_of_row.push(end);
    }

    /// Numbers the records. `arrival_order[row]` is the index at which the row's record was pushed, and
    /// `params[index]` its parameter key.
    pub(crate) fn finish(self, arrival_order: &[u32], params: &[u64]) -> PromptTree {
        let Self { mut tree, end_of_row, is_tail } = self;
        for &end in &end_of_row {
            let node = &mut tree.nodes[end as usize];
            node.num_ending += 1;
            node.num_same += 1;
            node.num_below += 1;
        }
        // Children have higher indexes than their parents.
        for index in (0..tree.nodes.len()).rev() {
            let Node { parent, num_below, .. } = tree.nodes[index];
            if parent != NO_NODE {
                let parent = &mut tree.nodes[parent as usize];
                parent.num_below += num_below;
                parent.num_same += if is_tail[index] { num_below } else { 0 };
            }
        }
        // The next free place for each node's children: first ends of prompts, then blocks.
        let mut next_tail: Vec<u32> = Vec::with_capacity(tree.nodes.len());
        let mut next_block: Vec<u32> = Vec::with_capacity(tree.nodes.len());
        let mut next_root = 0;
        for (node, &is_tail) in tree.nodes.iter_mut().zip(&is_tail) {
            let next = match (node.parent, is_tail) {
                (NO_NODE, _) => &mut next_root,
                (parent, true) => &mut next_tail[parent as usize],
                (parent, false) => &mut next_block[parent as usize],
            };
            node.first_place = *next;
            *next += node.num_below;
            next_tail.push(node.first_place + node.num_ending);
            next_block.push(node.first_place + node.num_same);
        }
        let mut next_ending: Vec<u32> = tree.nodes.iter().map(|node| node.first_place).collect();
        let params_of = |row: Row| params[arrival_order[row as usize] as usize];
        let mut rows: Vec<Row> = (0..arrival_order.len() as Row).collect();
        rows.sort_by_key(|&row| params_of(row));
        tree.place_of_row = vec![0; rows.len()];
        if params.iter().any(|&params| params != UNKNOWN) {
            tree.params = vec![UNKNOWN; rows.len()];
        }
        for row in rows {
            let next = &mut next_ending[end_of_row[arrival_order[row as usize] as usize] as usize];
            tree.place_of_row[row as usize] = *next;
            if let Some(params) = tree.params.get_mut(*next as usize) {
                *params = params_of(row);
            }
            *next += 1;
        }
        tree.nodes.shrink_to_fit();
        tree
    }
}

impl PromptTree {
    fn find_node(&self, hash: BlockHash) -> Option<u32> {
        let asked = Entry::new(hash.0, NO_NODE);
        let is_it = |entry: &Entry| entry.half == asked.half && self.nodes[entry.node as usize].hash == hash.0;
        self.by_hash.find(asked.key(), is_it).map(|entry| entry.node)
    }

    fn find(&self, hash: BlockHash) -> Option<&Node> {
        self.find_node(hash).map(|node| &self.nodes[node as usize])
    }

    /// The records whose chain contains `hash`.
    pub(crate) fn below(&self, hash: BlockHash) -> Option<Places> {
        self.find(hash).map(|node| Places { start: node.first_place, end: node.first_place + node.num_below })
    }

    /// The records whose chain ends with `hash`.
    pub(crate) fn ending_at(&self, hash: BlockHash) -> Option<Places> {
        self.find(hash).map(|node| Places { start: node.first_place, end: node.first_place + node.num_ending })
    }

    /// The records with these parameters among `places`, which must share a prompt.
    pub(crate) fn with_params(&self, places: Places, params: u64) -> Places {
        let of_prompt = self.params.get(places.start as usize..places.end as usize).unwrap_or_default();
        let start = of_prompt.partition_point(|&other| other < params);
        let len = of_prompt[start..].partition_point(|&other| other == params);
        Places { start: places.start + start as u32, end: places.start + (start + len) as u32 }
    }

    pub(crate) fn params_of(&self, row: Row) -> u64 {
        self.params.get(self.place_of(row) as usize).copied().unwrap_or(UNKNOWN)
    }

    pub(crate) fn knows_params(&self) -> bool {
        !self.params.is_empty()
    }

    /// The records whose last full block is `hash`.
    pub(crate) fn of_last_block(&self, hash: BlockHash) -> Option<Places> {
        self.find(hash).map(|node| Places { start: node.first_place, end: node.first_place + node.num_same })
    }

    /// The place of a record in depth-first order.
    pub(crate) fn place_of(&self, row: Row) -> u32 {
        self.place_of_row[row as usize]
    }

    pub(crate) fn num_nodes(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node>()
            + self.by_hash.allocation_size()
            + self.place_of_row.capacity() * size_of::<u32>()
            + self.params.capacity() * size_of::<u64>()
    }
}

/// Finds the earliest unused record in any range of places.
#[derive(Clone, Debug)]
pub(crate) struct Unused {
    /// A binary tree of minima. The second half contains the leaves.
    minima: Vec<Row>,
}

const USED: Row = Row::MAX;

impl Unused {
    pub(crate) fn new(tree: &PromptTree) -> Self {
        let count = tree.place_of_row.len();
        let mut minima = vec![USED; 2 * count];
        for (row, &place) in tree.place_of_row.iter().enumerate() {
            minima[count + place as usize] = row as Row;
        }
        for index in (1..count).rev() {
            minima[index] = minima[2 * index].min(minima[2 * index + 1]);
        }
        Self { minima }
    }

    fn num_leaves(&self) -> usize {
        self.minima.len() / 2
    }

    /// The earliest unused record in `places`.
    pub(crate) fn first(&self, places: Places) -> Option<Row> {
        let leaves = self.num_leaves();
        let (mut start, mut end) = (leaves + places.start as usize, leaves + places.end as usize);
        let mut earliest = USED;
        while start < end {
            if start % 2 == 1 {
                earliest = earliest.min(self.minima[start]);
                start += 1;
            }
            if end % 2 == 1 {
                end -= 1;
                earliest = earliest.min(self.minima[end]);
            }
            (start, end) = (start / 2, end / 2);
        }
        (earliest != USED).then_some(earliest)
    }

    pub(crate) fn first_of_all(&self) -> Option<Row> {
        self.first(Places { start: 0, end: self.num_leaves() as u32 })
    }

    /// Whether the record at this place is unused.
    pub(crate) fn has(&self, place: u32) -> bool {
        self.minima[self.num_leaves() + place as usize] != USED
    }

    /// Marks a record as used.
    pub(crate) fn remove(&mut self, place: u32) {
        let mut index = self.num_leaves() + place as usize;
        self.minima[index] = USED;
        while index > 1 {
            index /= 2;
            self.minima[index] = self.minima[2 * index].min(self.minima[2 * index + 1]);
        }
    }
}
