//! The radix cache: cached prefixes, the locks on them, and the eviction order.
//!
//! The cache is a tree whose edges are runs of page hashes. A page hash covers everything before it, so equal
//! hashes mean equal prefixes, and the first hash of an edge identifies the node below the edge among all
//! nodes. A request locks the path of the pages that it uses. Pages without locks are evictable. The
//! least recently used leaf is evicted first, from its end and no further than necessary. The tree has its own clock,
//! which counts uses. Nodes with the same time are on one path, and two leaves are never on one path, so the eviction
//! order has no ties. No operation scans the tree.

use std::collections::BTreeSet;

use hashbrown::HashTable;

use crate::kv::event::KvEventLog;
use crate::kv::hash::BlockHash;
use crate::seed::mix;

pub(crate) type NodeId = u32;

/// The node above all prefixes. It holds no pages and is never evicted.
pub(crate) const ROOT: NodeId = 0;

#[derive(Debug)]
struct Node {
    /// Hashes on the edge from the parent; empty only for the root.
    pages: Vec<BlockHash>,
    parent: NodeId,
    num_children: u32,
    /// Number of requests that use the node or a node below it.
    locks: u32,
    used_at: u64,
}

/// The part of a sequence that is in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Descent {
    /// The last node whose pages all match.
    node: NodeId,
    /// Number of matching pages down to the end of this node.
    pages: u32,
    /// A child of this node whose first pages match, and how many match.
    partial: Option<(NodeId, u32)>,
    /// Number of matching pages without locks.
    evictable_pages: u32,
}

/// Cached pages of a sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hit {
    /// Number of cached pages that follow in the tree.
    pub(crate) pages: u32,
    /// Number of `pages` without locks. A lock makes a page unevictable.
    pub(crate) evictable_pages: u32,
}

#[derive(Debug)]
pub(crate) struct RadixCache {
    nodes: Vec<Node>,
    vacant: Vec<NodeId>,
    /// Nodes by the first hash of their edge.
    by_first_page: HashTable<NodeId>,
    /// Leaves without locks, least recently used first.
    evictable_leaves: BTreeSet<(u64, NodeId)>,
    num_pages: u32,
    num_evictable_pages: u32,
    clock: u64,
    pub(crate) events: Option<KvEventLog>,
}

impl RadixCache {
    pub(crate) fn new() -> Self {
        let root = Node { pages: Vec::new(), parent: ROOT, num_children: 0, locks: 1, used_at: 0 };
        Self {
            nodes: vec![root],
            vacant: Vec::new(),
            by_first_page: HashTable::new(),
            evictable_leaves: BTreeSet::new(),
            num_pages: 0,
            num_evictable_pages: 0,
            clock: 0,
            events: None,
        }
    }

    pub(crate) fn num_evictable_pages(&self) -> u32 {
        self.num_evictable_pages
    }

    pub(crate) fn find(&self, node: NodeId, hashes: &[BlockHash]) -> Hit {
        let found = self.descend(node, hashes);
        let partial = found.partial.map_or(0, |(_, pages)| pages);
        Hit { pages: found.pages + partial, evictable_pages: found.evictable_pages }
    }

    /// Locks the cached pages that follow `node`, which is the root or locked by the caller. The caller's lock moves
    /// to the last of these pages. Returns the node at which they end.
    pub(crate) fn take(&mut self, node: NodeId, hashes: &[BlockHash]) -> NodeId {
        let found = self.descend(node, hashes);
        let end = self.end_of(found);
        self.lock_below(end, node);
        // When an edge has been split, the other part keeps its time of use.
        let now = self.tick(1);
        self.touch(found.node, now);
        end
    }

    /// Adds pages after `node`, which the caller has locked, with the time of use `used_at`. The lock moves to the
    /// last page. Returns the node of the last page and the number of pages that already existed.
    pub(crate) fn extend(
        &mut self,
        node: NodeId,
        tag: u64,
        hashes: &[BlockHash],
        tokens: &[u32],
        used_at: u64,
    ) -> (NodeId, u32) {
        let found = self.descend(node, hashes);
        let known = found.pages + found.partial.map_or(0, |(_, pages)| pages);
        let mut end = self.end_of(found);
        let new = &hashes[known as usize..];
        if !new.is_empty() {
            if let Some(events) = &mut self.events {
                let parent = self.nodes[end as usize].pages.last().copied();
                let page_tokens = tokens.len() / hashes.len();
                events.stored(tag, parent, new, &tokens[known as usize * page_tokens..]);
            }
            if self.is_free_end(end, node) {
                self.lengthen(end, new);
            } else {
                end = self.add_child(end, new, used_at);
            }
        }
        self.lock_below(end, node);
        self.touch(found.node, used_at);
        (end, known)
    }

    pub(crate) fn unlock(&mut self, node: NodeId) {
        let mut at = node;
        while at != ROOT {
            let Node { locks, .. } = &mut self.nodes[at as usize];
            assert!(*locks > 0, "a prefix was unlocked more often than locked");
            *locks -= 1;
            if *locks == 0 {
                self.become_evictable(at);
            }
            at = self.nodes[at as usize].parent;
        }
    }

    /// Evicts `pages` pages, from the ends of the least recently used leaves.
    ///
    /// # Panics
    /// If fewer pages can be evicted. The caller must have checked that.
    pub(crate) fn evict(&mut self, pages: u32) {
        let mut missing = pages;
        while missing > 0 {
            let &(used_at, leaf) = self.evictable_leaves.first().expect("as many pages are evictable");
            let node = &mut self.nodes[leaf as usize];
            let kept = node.pages.len().saturating_sub(missing as usize);
            missing -= (node.pages.len() - kept) as u32;
            if let Some(events) = &mut self.events {
                node.pages[kept..].iter().rev().for_each(|&hash| events.removed(hash));
            }
            if kept > 0 {
                node.pages.truncate(kept);
            } else {
                self.evictable_leaves.remove(&(used_at, leaf));
                self.remove_leaf(leaf);
            }
        }
        self.num_pages -= pages;
        self.num_evictable_pages -= pages;
    }

    fn remove_leaf(&mut self, leaf: NodeId) {
        let node = &mut self.nodes[leaf as usize];
        let pages = std::mem::take(&mut node.pages);
        let parent = node.parent;
        let entry = self.by_first_page.find_entry(mix(pages[0]), |&id| id == leaf);
        entry.expect("every node can be found by its first page").remove();
        self.vacant.push(leaf);
        let above = &mut self.nodes[parent as usize];
        above.num_children -= 1;
        if above.num_children == 0 && above.locks == 0 {
            self.evictable_leaves.insert((above.used_at, parent));
        }
    }

    fn descend(&self, node: NodeId, hashes: &[BlockHash]) -> Descent {
        let mut found = Descent { node, pages: 0, partial: None, evictable_pages: 0 };
        while let Some(&first) = hashes.get(found.pages as usize) {
            let child = self.by_first_page.find(mix(first), |&id| self.nodes[id as usize].pages[0] == first);
            let Some(&child) = child else { break };
            let rest = &hashes[found.pages as usize..];
            let edge = &self.nodes[child as usize];
            // A hash covers everything before it, so the sequences differ from the first difference on.
            let most = rest.len().min(edge.pages.len());
            let equal =
                if rest[most - 1] == edge.pages[most - 1] { most } else { first_difference(&edge.pages[..most], rest) };
            if edge.locks == 0 {
                found.evictable_pages += equal as u32;
            }
            if equal < edge.pages.len() {
                found.partial = Some((child, equal as u32));
                break;
            }
            found.node = child;
            found.pages += equal as u32;
        }
        found
    }

    /// The node at the end of the match. Splits an edge if necessary.
    fn end_of(&mut self, found: Descent) -> NodeId {
        let Some((child, pages)) = found.partial else { return found.node };
        let lower = self.nodes[child as usize].pages.split_off(pages as usize);
        let Node { locks, used_at, .. } = self.nodes[child as usize];
        let upper_pages = std::mem::replace(&mut self.nodes[child as usize].pages, lower);
        let old = self.by_first_page.find_entry(mix(upper_pages[0]), |&id| id == child);
        old.expect("every node can be found by its first page").remove();
        // The old node becomes the lower part, so locks on it still refer to its end.
        let upper = self.place(Node { pages: upper_pages, parent: found.node, num_children: 1, locks, used_at });
        self.nodes[child as usize].parent = upper;
        self.index(upper);
        self.index(child);
        upper
    }

    /// Whether pages may be added to a node: it has no children, and no lock other than `own`.
    fn is_free_end(&self, node: NodeId, own: NodeId) -> bool {
        let Node { num_children, locks, .. } = self.nodes[node as usize];
        node != ROOT && num_children == 0 && locks == u32::from(node == own)
    }

    fn lengthen(&mut self, node: NodeId, pages: &[BlockHash]) {
        let count = pages.len() as u32;
        let end = &mut self.nodes[node as usize];
        end.pages.extend_from_slice(pages);
        self.num_pages += count;
        self.num_evictable_pages += if end.locks == 0 { count } else { 0 };
    }

    fn add_child(&mut self, parent: NodeId, pages: &[BlockHash], used_at: u64) -> NodeId {
        let count = pages.len() as u32;
        let above = &mut self.nodes[parent as usize];
        above.num_children += 1;
        if above.num_children == 1 && above.locks == 0 {
            self.evictable_leaves.remove(&(above.used_at, parent));
        }
        let child = self.place(Node { pages: pages.to_vec(), parent, num_children: 0, locks: 0, used_at });
        self.index(child);
        self.num_pages += count;
        self.become_evictable(child);
        child
    }

    fn place(&mut self, node: Node) -> NodeId {
        match self.vacant.pop() {
            Some(id) => {
                self.nodes[id as usize] = node;
                id
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as NodeId - 1
            }
        }
    }

    fn index(&mut self, id: NodeId) {
        let nodes = &self.nodes;
        let hash = mix(nodes[id as usize].pages[0]);
        self.by_first_page.insert_unique(hash, id, |&id| mix(nodes[id as usize].pages[0]));
    }

    /// Locks the nodes from `node` up to, but not including, `above`.
    fn lock_below(&mut self, node: NodeId, above: NodeId) {
        let mut at = node;
        while at != above {
            let held = &mut self.nodes[at as usize];
            held.locks += 1;
            if held.locks == 1 {
                self.num_evictable_pages -= held.pages.len() as u32;
                self.evictable_leaves.remove(&(held.used_at, at));
            }
            at = held.parent;
        }
    }

    fn become_evictable(&mut self, id: NodeId) {
        let node = &self.nodes[id as usize];
        self.num_evictable_pages += node.pages.len() as u32;
        if node.num_children == 0 {
            self.evictable_leaves.insert((node.used_at, id));
        }
    }

    /// Advances the clock by `uses` uses, and returns the time of the last use.
    pub(crate) fn tick(&mut self, uses: u64) -> u64 {
        self.clock += uses;
        self.clock
    }

    /// Marks the nodes of a locked path as used at `used_at`, unless they were used later. Locked nodes are not in the
    /// eviction order.
    fn touch(&mut self, node: NodeId, used_at: u64) {
        let mut at = node;
        while at != ROOT {
            let used = &mut self.nodes[at as usize].used_at;
            *used = used_at.max(*used);
            at = self.nodes[at as usize].parent;
        }
    }

    /// Checks all invariants by walking the whole tree.
    ///
    /// # Panics
    /// If links, locks, counts or the eviction order are inconsistent.
    #[cfg(test)]
    fn assert_consistent(&self) {
        let vacant: std::collections::HashSet<NodeId> = self.vacant.iter().copied().collect();
        let mut children = vec![(0, 0); self.nodes.len()];
        let (mut pages, mut evictable, mut leaves) = (0, 0, 0);
        for (id, node) in self.nodes.iter().enumerate().skip(1).filter(|(id, _)| !vacant.contains(&(*id as NodeId))) {
            assert!(!node.pages.is_empty(), "node {id} has no pages");
            let found = self.by_first_page.find(mix(node.pages[0]), |&other| other as usize == id);
            assert!(found.is_some(), "node {id} cannot be found");
            let above = &mut children[node.parent as usize];
            *above = (above.0 + 1, above.1 + node.locks);
            pages += node.pages.len();
            if node.locks == 0 {
                evictable += node.pages.len();
                let listed = self.evictable_leaves.contains(&(node.used_at, id as NodeId));
                assert_eq!(listed, node.num_children == 0, "the order of eviction and node {id} disagree");
                leaves += usize::from(listed);
            }
        }
        for (id, node) in self.nodes.iter().enumerate().filter(|(id, _)| !vacant.contains(&(*id as NodeId))) {
            assert_eq!(node.num_children, children[id].0, "children of node {id}");
            assert!(id == 0 || node.locks >= children[id].1, "locks of node {id} are fewer than those below");
        }
        assert_eq!(pages as u32, self.num_pages);
        assert_eq!(evictable as u32, self.num_evictable_pages);
        assert_eq!(leaves, self.evictable_leaves.len(), "something that is not a leaf is to be evicted");
    }
}

/// Number of equal hashes at the start of two runs that differ. After the first difference, all hashes differ.
fn first_difference(edge: &[BlockHash], rest: &[BlockHash]) -> usize {
    let (mut equal, mut differs) = (0, edge.len() - 1);
    while equal < differs {
        let middle = (equal + differs) / 2;
        if edge[middle] == rest[middle] {
            equal = middle + 1;
        } else {
            differs = middle;
        }
    }
    equal
}

#[cfg(test)]
mod tests;
