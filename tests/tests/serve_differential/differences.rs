//! All intended differences from vLLM's frontend.

use serde_json::Value;

use super::answer::Mismatch;
use super::case::Case;
use super::good::{CHAT, COMPLETIONS, COUNT_TOKENS, GENERATE, MESSAGES, RESPONSES};

pub(crate) struct Difference {
    /// The difference's description in `docs/reference/serve.md`, word for word.
    pub(crate) documented: &'static str,
    /// Returns `true` if a mismatch in the answers to a request is due to this difference.
    pub(crate) explains: fn(&Case, &Mismatch) -> bool,
}

pub(crate) const DIFFERENCES: &[Difference] = &[
    Difference {
        documented: "`n` up to 128 and lists of prompts are answered, as by the Python frontend.",
        explains: |case, _| {
            let n = [&case.json["n"], &case.json["sampling_params"]["n"]];
            let has_list = case.json["prompt"][0].is_string() || case.json["prompt"][0].is_array();
            n.iter().any(|n| n.as_u64().is_some_and(|n| n != 1)) || (case.path == COMPLETIONS && has_list)
        },
    },
    Difference {
        documented: "Text completions check `bad_words` and `best_of`, which the Rust frontend ignores; a `best_of` \
                     that differs from `n` is refused.",
        explains: |case, _| case.path == COMPLETIONS && (has(case, "bad_words") || has(case, "best_of")),
    },
    Difference {
        documented: "`/v1/messages`, `/v1/responses` and `/ping` are served, as by the Python frontend; the Rust frontend \
                     of 0.33 has none of them.",
        explains: |case, _| [MESSAGES, COUNT_TOKENS, RESPONSES, "/ping"].contains(&case.path),
    },
    Difference {
        documented: "`owned_by` of models is `vcr`, and `/version` has `vcr_version`.",
        explains: |case, mismatch| mismatch.at.ends_with("/owned_by") || case.path == "/version",
    },
    Difference {
        documented: "Parts of a message's content are joined by a line break, as by the Python frontend, and more types of \
                     parts are read.",
        explains: |case, _| {
            let messages = case.json["messages"].as_array().into_iter().flatten();
            let mut contents = messages.filter_map(|message| message["content"].as_array());
            contents.any(|parts| {
                parts.len() > 1 || parts.iter().any(|part| part["type"].is_string() && part["type"] != "text")
            })
        },
    },
    Difference {
        documented: "In a stream, a token that ends within a character delays only that character; `text_offset` counts the \
                     text that was sent.",
        explains: |case, mismatch| {
            let are_near = |Mismatch { theirs, ours, .. }: &Mismatch| {
                theirs.as_u64().zip(ours.as_u64()).is_some_and(|(theirs, ours)| ours > theirs && ours - theirs < 12)
            };
            case.json["stream"] == true && mismatch.at.contains("/text_offset/") && are_near(mismatch)
        },
    },
    Difference {
        documented: "`echo` of a chat does not repeat the last message.",
        explains: |case, mismatch| case.path == CHAT && case.json["echo"] == true && mismatch.at.ends_with("/content"),
    },
    Difference {
        documented: "The error for a list instead of an object does not count the object's fields.",
        explains: |case, mismatch| {
            let counts = |value: &Value| value.as_str().is_some_and(|text| text.contains("elements"));
            [CHAT, COMPLETIONS, GENERATE].contains(&case.path) && counts(&mismatch.theirs)
        },
    },
    Difference {
        documented: "The error for a data-parallel rank that does not exist names the rank.",
        explains: |case, _| case.headers.iter().any(|(name, value)| *name == "X-data-parallel-rank" && value == "7"),
    },
];

fn has(case: &Case, field: &str) -> bool {
    !case.json[field].is_null()
}
