//! One side of a decision in memory, in about 150 bytes per observation.
//!
//! Outputs are kept as fingerprints; vectors are kept unchanged. Request ids are unique: identical repetitions are
//! dropped and counted, contradictory repetitions are an error.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::error::{GateError, Place, Problem};
use crate::fingerprint::{of_explicit, of_text, of_token_ids};
use crate::observation::{Gap, Observation};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Label {
    Model,
    ModelVersion,
    Backend,
    BackendVersion,
    Accelerator,
    Tenant,
    Route,
    Replica,
    Scheduler,
    Error,
}

const LABELS: usize = 10;
const ABSENT: u32 = 0;
const UNKNOWN_NS: u64 = u64::MAX;

/// Number of kinds of exact material: the source's fingerprint, token ids and text. They are compared in this
/// order.
const EXACT: usize = 3;

const OK: u16 = 1;
const STREAMED: u16 = 2;
const MEAN_GAP: u16 = 4;
const HAS_CONTENT: u16 = 8;
const HAS_VECTOR: u16 = 16;
const HAS_PROVENANCE: u16 = 32;
/// The flag of the first kind of exact material; the other flags follow.
const HAS_EXACT: u16 = 64;

/// An observation. Rows of the same request must be equal.
#[derive(Clone, Debug)]
struct Row {
    id: (u32, u32),
    id_hash: u64,
    content: u64,
    exact: [u64; EXACT],
    latency_ns: u64,
    ttft_ns: u64,
    gap_ns: u64,
    kv_usage: f64,
    vector: (u32, u32),
    labels: [u32; LABELS],
    place: Place,
    input: u16,
    flags: u16,
}

/// The observations of one side.
#[derive(Debug)]
pub struct Side {
    rows: Vec<Row>,
    ids: String,
    vectors: Vec<f64>,
    names: Vec<String>,
    by_name: BTreeMap<String, u32>,
    /// The latest index of each label. The next observation often has the same label.
    latest: [u32; LABELS],
    inputs: Vec<String>,
    duplicates: u64,
}

impl Default for Side {
    fn default() -> Self {
        Self::new()
    }
}

impl Side {
    /// A side without observations.
    #[must_use]
    pub fn new() -> Self {
        Self {
            rows: Vec::new(),
            ids: String::new(),
            vectors: Vec::new(),
            names: vec![String::new()],
            by_name: BTreeMap::new(),
            latest: [ABSENT; LABELS],
            inputs: Vec::new(),
            duplicates: 0,
        }
    }

    /// Starts an input. The following observations belong to it.
    pub fn begin(&mut self, name: &str) {
        self.inputs.push(name.to_owned());
    }

    /// Adds an observation.
    ///
    /// # Errors
    /// If there is no room for more observations.
    pub fn add(&mut self, observation: &Observation<'_>, place: Place) -> Result<(), GateError> {
        let input = u16::try_from(self.inputs.len().saturating_sub(1)).unwrap_or(u16::MAX);
        let id = append(&mut self.ids, &observation.request_id);
        let vector = match &observation.vector {
            Some(vector) => {
                let start = self.vectors.len();
                self.vectors.extend_from_slice(vector);
                u32::try_from(start).ok().zip(u32::try_from(vector.len()).ok())
            }
            None => Some((0, 0)),
        };
        let (Some(id), Some(vector)) = (id, vector) else {
            let text = "the side holds too much: expected less than 4 GiB of ids and 32 GiB of vectors; sample it";
            return Err(Problem::new("", text).at(self.inputs.last().map_or("", String::as_str), place).into());
        };
        let exact = [
            observation.fingerprint.as_deref().map(of_explicit),
            observation.token_ids.as_deref().map(of_token_ids),
            observation.text.as_deref().map(of_text),
        ];
        let mut flags = 0;
        let mut set = |flag: u16, is_set: bool| flags |= if is_set { flag } else { 0 };
        set(OK, observation.ok);
        set(STREAMED, observation.is_streamed());
        set(HAS_CONTENT, observation.content.is_some());
        set(HAS_VECTOR, observation.vector.is_some());
        set(HAS_PROVENANCE, observation.provenance.is_some());
        (0..EXACT).for_each(|at| set(HAS_EXACT << at, exact[at].is_some()));
        let gap = observation.gap();
        set(MEAN_GAP, matches!(gap, Some(Gap::Mean(_))));
        let labels = [
            observation.model.as_deref(),
            observation.model_version.as_deref(),
            observation.backend.as_deref(),
            observation.backend_version.as_deref(),
            observation.accelerator.as_deref(),
            observation.tenant.as_deref(),
            observation.route.as_deref(),
            observation.replica.as_deref(),
            observation.scheduler.as_deref(),
            observation.error_class(),
        ];
        let mut indices = [ABSENT; LABELS];
        for (column, label) in labels.into_iter().enumerate() {
            indices[column] = label.map_or(ABSENT, |label| self.intern(column, label));
        }
        self.rows.push(Row {
            id,
            id_hash: of_text(&observation.request_id),
            content: observation.content.as_deref().map_or(0, of_text),
            exact: exact.map(Option::unwrap_or_default),
            latency_ns: observation.latency_ns.unwrap_or(UNKNOWN_NS),
            ttft_ns: observation.first_token_ns().unwrap_or(UNKNOWN_NS),
            gap_ns: gap.map_or(UNKNOWN_NS, |(Gap::P95(ns) | Gap::Mean(ns))| ns),
            kv_usage: observation.kv_usage.unwrap_or(f64::NAN),
            vector,
            labels: indices,
            place,
            input,
            flags,
        });
        Ok(())
    }

    fn intern(&mut self, column: usize, label: &str) -> u32 {
        let latest = self.latest[column];
        if latest != ABSENT && self.names[latest as usize] == label {
            return latest;
        }
        let index = match self.by_name.get(label) {
            Some(index) => *index,
            None => {
                let index = self.names.len() as u32;
                self.names.push(label.to_owned());
                self.by_name.insert(label.to_owned(), index);
                index
            }
        };
        self.latest[column] = index;
        index
    }

    /// Drops repetitions of observations.
    ///
    /// # Errors
    /// If two observations of one request contradict each other.
    pub fn finish(&mut self) -> Result<(), GateError> {
        let mut order: Vec<(u64, u32)> =
            self.rows.iter().enumerate().map(|(index, row)| (row.id_hash, index as u32)).collect();
        order.sort_unstable();
        let mut is_dropped: Vec<u32> = Vec::new();
        for same in order.chunk_by(|a, b| a.0 == b.0).filter(|same| same.len() > 1) {
            for (at, (_, later)) in same.iter().enumerate() {
                let earlier = same[..at]
                    .iter()
                    .map(|(_, index)| *index)
                    .find(|earlier| self.id(*earlier as usize) == self.id(*later as usize));
                let Some(earlier) = earlier else { continue };
                if !self.is_same(earlier as usize, *later as usize) {
                    return Err(self.contradiction(earlier as usize, *later as usize));
                }
                is_dropped.push(*later);
            }
        }
        self.duplicates += is_dropped.len() as u64;
        is_dropped.sort_unstable();
        let mut index = 0;
        self.rows.retain(|_| {
            index += 1;
            is_dropped.binary_search(&(index - 1)).is_err()
        });
        Ok(())
    }

    fn is_same(&self, one: usize, other: usize) -> bool {
        let (a, b) = (&self.rows[one], &self.rows[other]);
        (a.content, a.exact, a.latency_ns, a.ttft_ns, a.gap_ns)
            == (b.content, b.exact, b.latency_ns, b.ttft_ns, b.gap_ns)
            && (a.labels, a.flags, a.kv_usage.to_bits()) == (b.labels, b.flags, b.kv_usage.to_bits())
            && self.vector(one) == self.vector(other)
    }

    fn contradiction(&self, earlier: usize, later: usize) -> GateError {
        let place = |index: usize| (&self.inputs[usize::from(self.rows[index].input)], self.rows[index].place);
        let ((file, at), (name, place)) = (place(earlier), place(later));
        let id = self.id(later);
        let text =
            format!("`{id}` is observed twice with different contents, first in `{file}`, {at}; drop one of them");
        Problem::new("request_id", text).at(name, place).into()
    }

    /// Number of observations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are no observations.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Number of repetitions that were dropped.
    #[must_use]
    pub fn duplicates(&self) -> u64 {
        self.duplicates
    }

    /// The request id of an observation.
    #[must_use]
    pub fn id(&self, index: usize) -> &str {
        let (start, len) = self.rows[index].id;
        &self.ids[start as usize..][..len as usize]
    }

    pub(crate) fn id_hash(&self, index: usize) -> u64 {
        self.rows[index].id_hash
    }

    pub(crate) fn content(&self, index: usize) -> Option<u64> {
        self.has(index, HAS_CONTENT).then(|| self.rows[index].content)
    }

    fn has(&self, index: usize, flag: u16) -> bool {
        self.rows[index].flags & flag != 0
    }

    pub(crate) fn is_ok(&self, index: usize) -> bool {
        self.has(index, OK)
    }

    pub(crate) fn is_streamed(&self, index: usize) -> bool {
        self.has(index, STREAMED)
    }

    pub(crate) fn has_provenance(&self, index: usize) -> bool {
        self.has(index, HAS_PROVENANCE)
    }

    /// Whether the exact material is equal, compared in the first kind that both observations have. None if they
    /// have no kind in common.
    pub(crate) fn has_same_exact(&self, index: usize, other: &Self, other_index: usize) -> Option<bool> {
        let (own, others) = (&self.rows[index], &other.rows[other_index]);
        let common = (0..EXACT).find(|at| own.flags & others.flags & (HAS_EXACT << at) != 0)?;
        Some(own.exact[common] == others.exact[common])
    }

    pub(crate) fn vector(&self, index: usize) -> Option<&[f64]> {
        let (start, len) = self.rows[index].vector;
        let range: Range<usize> = start as usize..start as usize + len as usize;
        self.has(index, HAS_VECTOR).then(|| &self.vectors[range])
    }

    pub(crate) fn latency_ns(&self, index: usize) -> Option<u64> {
        Some(self.rows[index].latency_ns).filter(|ns| *ns != UNKNOWN_NS)
    }

    pub(crate) fn ttft_ns(&self, index: usize) -> Option<u64> {
        Some(self.rows[index].ttft_ns).filter(|ns| *ns != UNKNOWN_NS)
    }

    /// The token gap that stands for a request, and whether it is a mean.
    pub(crate) fn gap_ns(&self, index: usize) -> Option<(u64, bool)> {
        let gap_ns = Some(self.rows[index].gap_ns).filter(|ns| *ns != UNKNOWN_NS)?;
        Some((gap_ns, self.has(index, MEAN_GAP)))
    }

    pub(crate) fn kv_usage(&self, index: usize) -> Option<f64> {
        Some(self.rows[index].kv_usage).filter(|usage| !usage.is_nan())
    }

    /// The index of a label, for [`name`](Self::name); [`ABSENT`] if the label is absent.
    pub(crate) fn label(&self, index: usize, label: Label) -> u32 {
        self.rows[index].labels[label as usize]
    }

    pub(crate) fn name(&self, label: u32) -> Option<&str> {
        (label != ABSENT).then(|| self.names[label as usize].as_str())
    }
}

fn append(arena: &mut String, text: &str) -> Option<(u32, u32)> {
    let range = (u32::try_from(arena.len()).ok()?, u32::try_from(text.len()).ok()?);
    arena.push_str(text);
    u32::try_from(arena.len()).ok().map(|_| range)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::OBSERVATION_VERSION;

    fn observation(id: &str, latency_ns: u64) -> Observation<'_> {
        let (version, text) = (OBSERVATION_VERSION, Some("x".into()));
        let latency_ns = Some(latency_ns);
        Observation { version, request_id: id.into(), ok: true, latency_ns, text, ..Observation::default() }
    }

    fn side(all: &[(&str, u64)]) -> Result<Side, GateError> {
        let mut side = Side::new();
        side.begin("a.jsonl");
        for (index, (id, latency_ns)) in all.iter().enumerate() {
            side.add(&observation(id, *latency_ns), Place::Line(index as u64 + 1))?;
        }
        side.finish()?;
        Ok(side)
    }

    #[test]
    fn repetitions_are_dropped_and_contradictions_refused() {
        let repeated = side(&[("a", 1), ("b", 2), ("a", 1), ("a", 1)]).expect("they are equal");
        assert_eq!((repeated.len(), repeated.duplicates(), repeated.id(1)), (2, 2, "b"));
        let error = side(&[("a", 1), ("b", 2), ("a", 3)]).expect_err("they contradict").to_string();
        assert!(error.contains("`a.jsonl`, line 3, field `request_id`: `a` is observed twice"), "{error}");
        assert!(error.contains("first in `a.jsonl`, line 1"), "{error}");
    }

    #[test]
    fn material_is_compared_in_a_fixed_order() {
        let add = |all: &[Observation<'_>]| {
            let mut side = Side::new();
            side.begin("a");
            all.iter().for_each(|observation| side.add(observation, Place::File).expect("there is room"));
            side
        };
        let with = |token_ids: Option<Vec<u32>>, text: Option<&'static str>| Observation {
            token_ids,
            text: text.map(Into::into),
            ..observation("a", 1)
        };
        let one = add(&[with(Some(vec![1]), Some("x")), with(None, Some("x")), with(Some(vec![2]), None)]);
        assert_eq!(one.has_same_exact(0, &one, 1), Some(true));
        // Token ids are compared before texts.
        let other = add(&[with(Some(vec![2]), Some("x"))]);
        assert_eq!(one.has_same_exact(0, &other, 0), Some(false));
        assert_eq!(one.has_same_exact(1, &one, 2), None);
    }
}
