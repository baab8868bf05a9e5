//! Classes of requests in the router's queue: Dynamo's queue policies.
//!
//! A profile sorts requests into classes. Each class has its own threshold, order, limits and share of the requests
//! that leave the queue. A request names a family or a class without a family. In a family, the number of uncached
//! prompt tokens selects the class. The fields have Dynamo's names.

use serde::Deserialize;
use serde::de::IgnoredAny;

/// The order in which requests of equal strict priority leave the router's queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QueueOrder {
    /// Longest wait first; each unit of priority counts as one more second of waiting.
    #[default]
    Fcfs,
    /// Shortest wait first; each unit of priority counts as one second less of waiting.
    Lcfs,
    /// Weighted shortest processing time: highest ratio of 1 plus priority to uncached prompt tokens first. The
    /// engine with the longest cached prefix determines the uncached tokens.
    Wspt,
}

/// The assignment of requests to classes, as the user writes it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueProfile {
    /// The family of requests that name no family or class, or an unknown name.
    pub default_policy_family: String,
    /// Ranges of uncached prompt tokens; the first starts at 0.
    pub uncached_isl_buckets: Vec<IslBucket>,
    /// The classes: one for each family and bucket, and any number of classes without a family.
    pub policy_classes: Vec<QueueClass>,
}

/// A range of uncached prompt tokens, up to the start of the next range.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IslBucket {
    /// The lowest number of tokens in the range.
    pub min_tokens: u64,
    /// Name of the range.
    pub bucket: String,
}

/// A class of requests.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueClass {
    /// Name of the class.
    pub name: String,
    /// The family that the class belongs to; None for requests that name the class.
    #[serde(default)]
    pub policy_family: Option<String>,
    /// Name of the bucket whose requests the class takes.
    #[serde(default)]
    pub cache_bucket: Option<String>,
    /// The order in which requests leave the queue.
    #[serde(default)]
    pub queue_policy: QueueOrder,
    /// Ignored: only routers of several processes use this field.
    #[serde(default)]
    pub admission: Option<IgnoredAny>,
    /// Uncached prompt tokens that may leave the queue in each round over the classes.
    pub quantum: u64,
    /// An engine is busy if its uncached prompt tokens exceed this number.
    #[serde(default)]
    pub prefill_busy_threshold: Option<u64>,
    /// An engine is also busy if its uncached prompt tokens exceed this multiple of `max_num_batched_tokens`. With
    /// neither threshold, requests do not wait.
    #[serde(default)]
    pub prefill_busy_threshold_frac: Option<f64>,
    /// Maximum number of waiting requests per running engine; further requests are refused.
    #[serde(default)]
    pub request_queue_limit_per_worker: Option<u64>,
    /// Maximum number of waiting prompt tokens per running engine.
    #[serde(default)]
    pub raw_isl_token_queue_limit_per_worker: Option<u64>,
    /// Maximum number of waiting prompt tokens per running engine that the best cache holds.
    #[serde(default)]
    pub cached_token_queue_limit_per_worker: Option<u64>,
}

impl QueueClass {
    fn keeps_back(&self) -> bool {
        self.prefill_busy_threshold.is_some() || self.prefill_busy_threshold_frac.is_some()
    }

    /// Whether an engine with this many uncached prompt tokens takes no request of the class.
    pub(crate) fn is_busy(&self, prefill_tokens: u64, max_num_batched_tokens: u32) -> bool {
        self.prefill_busy_threshold.is_some_and(|most| prefill_tokens > most)
            || self
                .prefill_busy_threshold_frac
                .is_some_and(|share| prefill_tokens as f64 > share * f64::from(max_num_batched_tokens))
    }

    /// Problems of this class alone, not between classes.
    fn problems(&self, buckets: &[IslBucket]) -> Vec<String> {
        let mut problems = Vec::new();
        check_name(&self.name, "a class", &mut problems);
        let mut problem = |text: String| problems.push(format!("class `{}`: {text}", self.name));
        if self.quantum == 0 {
            problem("invalid `quantum`: expected at least 1, got 0".to_owned());
        }
        if self.queue_policy == QueueOrder::Lcfs {
            problem("invalid `queue_policy`: expected \"fcfs\" or \"wspt\", got \"lcfs\"".to_owned());
        }
        if let Some(share) = self.prefill_busy_threshold_frac
            && !(share.is_finite() && share >= 0.0)
        {
            problem(format!(
                "invalid `prefill_busy_threshold_frac`: expected a finite number of at least 0, got {share}"
            ));
        }
        match (&self.policy_family, &self.cache_bucket) {
            (Some(_), Some(bucket)) if !buckets.iter().any(|known| known.bucket == *bucket) => {
                let names: Vec<&str> = buckets.iter().map(|known| known.bucket.as_str()).collect();
                problem(format!("`cache_bucket` \"{bucket}\" is unknown; known are {}", names.join(", ")));
            }
            (Some(family), Some(_)) => check_name(family, "a family", &mut problems),
            (None, None) => {}
            _ => problem("give both `policy_family` and `cache_bucket`, or neither".to_owned()),
        }
        problems
    }
}

fn check_name(name: &str, what: &str, problems: &mut Vec<String>) {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    if name.is_empty() || !name.bytes().all(allowed) {
        problems.push(format!("invalid name of {what} \"{name}\": expected letters, digits, `_`, `.` and `-`"));
    }
}

/// When requests wait in the router instead of in an engine, and their order.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueConfig {
    classes: Vec<QueueClass>,
    /// None if all requests share one class.
    sorting: Option<Sorting>,
}

/// Rules that sort requests into classes.
#[derive(Clone, Debug, PartialEq)]
struct Sorting {
    families: Vec<String>,
    default_family: usize,
    /// Lowest number of tokens of each bucket.
    bucket_starts: Vec<u64>,
    /// Index of each bucket's class, family by family.
    class_of: Vec<usize>,
}

impl QueueConfig {
    /// A single class: a request waits while the outstanding prompt tokens of every engine exceed `threshold` times
    /// `max_num_batched_tokens`.
    #[must_use]
    pub fn single(threshold: f64, order: QueueOrder) -> Self {
        let class = QueueClass {
            name: "default".to_owned(),
            policy_family: None,
            cache_bucket: None,
            queue_policy: order,
            admission: None,
            quantum: 1,
            prefill_busy_threshold: None,
            prefill_busy_threshold_frac: Some(threshold),
            request_queue_limit_per_worker: None,
            raw_isl_token_queue_limit_per_worker: None,
            cached_token_queue_limit_per_worker: None,
        };
        Self { classes: vec![class], sorting: None }
    }

    /// Makes the classes of a profile.
    pub fn with_classes(profile: QueueProfile) -> Result<Self, Vec<String>> {
        let mut problems = bucket_problems(&profile.uncached_isl_buckets);
        problems.extend(profile.policy_classes.iter().flat_map(|class| class.problems(&profile.uncached_isl_buckets)));
        let sorting = sorting(&profile, &mut problems);
        if !problems.is_empty() {
            return Err(problems);
        }
        Ok(Self { classes: profile.policy_classes, sorting: Some(sorting) })
    }

    /// Sets the order of a queue with a single class. The classes of a profile keep their orders.
    #[must_use]
    pub fn in_order(mut self, order: QueueOrder) -> Self {
        if self.sorting.is_none() {
            self.classes[0].queue_policy = order;
        }
        self
    }

    /// Whether requests may name this class or family.
    #[must_use]
    pub fn knows(&self, policy_class: &str) -> bool {
        let Some(sorting) = &self.sorting else { return true };
        self.named(policy_class).is_some() || sorting.families.iter().any(|family| family == policy_class)
    }

    /// The threshold, if there is only one class.
    pub(crate) fn threshold(&self) -> Option<f64> {
        self.classes[0].prefill_busy_threshold_frac.filter(|_| self.sorting.is_none())
    }

    pub(crate) fn classes(&self) -> &[QueueClass] {
        &self.classes
    }

    pub(crate) fn keeps_back(&self, class: usize) -> bool {
        self.classes[class].keeps_back()
    }

    /// The class of a request with this many uncached prompt tokens.
    pub(crate) fn class_of(&self, policy_class: Option<&str>, uncached_tokens: u64) -> usize {
        let Some(sorting) = &self.sorting else { return 0 };
        if let Some(class) = policy_class.and_then(|name| self.named(name)) {
            return class;
        }
        let family = policy_class.and_then(|name| sorting.families.iter().position(|family| family == name));
        let bucket = sorting.bucket_starts.partition_point(|&start| start <= uncached_tokens) - 1;
        sorting.class_of[family.unwrap_or(sorting.default_family) * sorting.bucket_starts.len() + bucket]
    }

    /// The class without a family that has this name.
    fn named(&self, name: &str) -> Option<usize> {
        self.classes.iter().position(|class| class.policy_family.is_none() && class.name == name)
    }
}

fn bucket_problems(buckets: &[IslBucket]) -> Vec<String> {
    let mut problems = Vec::new();
    if buckets.first().is_none_or(|first| first.min_tokens != 0) {
        problems.push("`uncached_isl_buckets`: the first bucket must have `min_tokens` 0".to_owned());
    }
    for pair in buckets.windows(2) {
        if pair[1].min_tokens <= pair[0].min_tokens {
            let (one, other) = (&pair[0].bucket, &pair[1].bucket);
            problems.push(format!(
                "`uncached_isl_buckets`: invalid `min_tokens` of `{other}`: expected above that of `{one}`"
            ));
        }
    }
    for (index, IslBucket { bucket, .. }) in buckets.iter().enumerate() {
        check_name(bucket, "a bucket", &mut problems);
        if buckets[..index].iter().any(|earlier| earlier.bucket == *bucket) {
            problems.push(format!("`uncached_isl_buckets`: bucket `{bucket}` occurs twice"));
        }
    }
    problems
}

/// Builds the table of families and buckets, and reports duplicates and unknown names.
fn sorting(profile: &QueueProfile, problems: &mut Vec<String>) -> Sorting {
    let buckets = &profile.uncached_isl_buckets;
    let mut families: Vec<String> = Vec::new();
    for family in profile.policy_classes.iter().filter_map(|class| class.policy_family.as_ref()) {
        if !families.contains(family) {
            families.push(family.clone());
        }
    }
    for (index, class) in profile.policy_classes.iter().enumerate() {
        if profile.policy_classes[..index].iter().any(|earlier| earlier.name == class.name) {
            problems.push(format!("class `{}` occurs twice", class.name));
        }
        if class.policy_family.is_none() && families.contains(&class.name) {
            problems.push(format!("class `{}` has the name of a family", class.name));
        }
    }
    let default_family = families.iter().position(|family| *family == profile.default_policy_family);
    if default_family.is_none() {
        let known = if families.is_empty() { "none".to_owned() } else { families.join(", ") };
        let name = &profile.default_policy_family;
        problems.push(format!("`default_policy_family` \"{name}\" is the family of no class; known are {known}"));
    }
    let mut class_of = Vec::with_capacity(families.len() * buckets.len());
    for family in &families {
        for IslBucket { bucket, .. } in buckets {
            let takes = |class: &QueueClass| {
                class.policy_family.as_ref() == Some(family) && class.cache_bucket.as_ref() == Some(bucket)
            };
            let mut classes = (0..profile.policy_classes.len()).filter(|&class| takes(&profile.policy_classes[class]));
            match (classes.next(), classes.next()) {
                (None, _) => problems.push(format!("family `{family}` has no class for bucket `{bucket}`")),
                (Some(_), Some(_)) => problems.push(format!("family `{family}` has two classes for bucket `{bucket}`")),
                (Some(class), None) => class_of.push(class),
            }
        }
    }
    Sorting {
        families,
        default_family: default_family.unwrap_or(0),
        bucket_starts: buckets.iter().map(|bucket| bucket.min_tokens).collect(),
        class_of,
    }
}
