//! Chat templates compared with Transformers' results, and their limits.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use vcr_text::{ChatTemplate, ContentFormat, TemplateErrorKind, TemplateRequest, Value};

#[derive(Deserialize)]
struct Header {
    now_s: i64,
    special: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Vector {
    template: String,
    messages: Value,
    #[serde(default)]
    tools: Option<Value>,
    #[serde(default)]
    documents: Option<Value>,
    #[serde(default)]
    add_generation_prompt: bool,
    #[serde(default)]
    continue_final_message: bool,
    #[serde(default)]
    kwargs: BTreeMap<String, Value>,
    text: Option<String>,
    error: Option<String>,
    error_type: Option<String>,
}

/// Returns the differences from Transformers' results, and the number of comparisons.
fn differences(folder: &Path, vectors: &Path) -> (Vec<String>, usize) {
    let text = std::fs::read_to_string(vectors).expect("there are vectors");
    let lines: Vec<Box<serde_json::value::RawValue>> = serde_json::from_str(&text).expect("they are JSON");
    let header: Header = serde_json::from_str(lines[0].get()).expect("the header comes first");
    let mut templates: BTreeMap<String, Result<ChatTemplate, String>> = BTreeMap::new();
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate().skip(1) {
        let vector: Vector = serde_json::from_str(line.get()).expect("a vector");
        let name = vector.template;
        let template = templates.entry(name.clone()).or_insert_with(|| {
            let source = std::fs::read_to_string(folder.join(&name)).expect("the template is there");
            ChatTemplate::new(&source, header.special.clone()).map_err(|error| error.to_string())
        });
        let request = TemplateRequest {
            messages: vector.messages,
            tools: vector.tools,
            documents: vector.documents,
            add_generation_prompt: vector.add_generation_prompt,
            continue_final_message: vector.continue_final_message,
            kwargs: vector.kwargs,
            now_s: Some(header.now_s),
        };
        let rendered = match template {
            Ok(template) => template.render(&request),
            Err(error) => {
                found.push(format!("{name}: {error}"));
                continue;
            }
        };
        match (&vector.text, &rendered) {
            (Some(text), Ok(ours)) if text == ours => {}
            (None, Err(error)) => {
                // Errors that a template raises reach the user, so their text must match.
                let is_raised = vector.error_type.as_deref() == Some("TemplateError");
                if is_raised
                    && (error.kind != TemplateErrorKind::Raised || vector.error.as_ref() != Some(&error.reason))
                {
                    found.push(format!("{name}, {index}: expected error {:?}, got {error}", vector.error));
                }
            }
            (Some(text), Ok(ours)) => {
                let same = text.lines().zip(ours.lines()).take_while(|(one, other)| one == other).count();
                let line = |text: &str| text.lines().nth(same).map(str::to_owned);
                found.push(format!("{name}, {index}: expected {:?}, got {:?}", line(text), line(ours)));
            }
            (expected, got) => {
                found.push(format!("{name}, {index}: expected {expected:?} {:?}, got {got:?}", vector.error));
            }
        }
    }
    (found, lines.len() - 1)
}

fn templates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/templates")
}

#[test]
fn templates_render_as_in_transformers() {
    let (found, count) = differences(&templates(), &templates().join("vectors.json"));
    assert!(found.is_empty(), "{} of {count} differ:\n{}", found.len(), found.join("\n"));
    assert!(count > 200);
}

/// Checks other templates, with vectors from `tests/templates/vectors.py FOLDER FILE`.
#[test]
fn further_templates_render_as_in_transformers() {
    let (Some(folder), Some(vectors)) = (std::env::var_os("VCR_TEMPLATES"), std::env::var_os("VCR_TEMPLATE_VECTORS"))
    else {
        return;
    };
    let (found, count) = differences(Path::new(&folder), Path::new(&vectors));
    assert!(found.is_empty(), "{} of {count} differ:\n{}", found.len(), found.join("\n"));
}

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::new(source, BTreeMap::new()).expect("it compiles")
}

fn chat(json: &str) -> TemplateRequest {
    TemplateRequest { messages: serde_json::from_str(json).expect("it is JSON"), ..TemplateRequest::default() }
}

#[test]
fn an_endless_template_ends_with_an_error() {
    let endless = template("{% for a in range(9999) %}\n{% for b in range(9999) %}{{ b }}{% endfor %}{% endfor %}");
    let error = endless.render(&chat("[]")).expect_err("it takes too long");
    assert_eq!((error.kind, error.line), (TemplateErrorKind::Limit, Some(2)), "{error}");
    assert_eq!(endless.check(), Err(error));
    let long = template("{% for a in range(100000000) %}{% endfor %}");
    assert_eq!(long.check().map_err(|error| error.kind), Err(TemplateErrorKind::Limit));
    let deep = template("{% macro again(a) %}{{ again(a) }}{% endmacro %}{{ again(1) }}");
    deep.render(&chat("[]")).expect_err("it calls itself for ever");
}

#[test]
fn a_template_reads_no_files() {
    for source in ["{% include '/etc/passwd' %}", "{% import '/etc/passwd' as x %}", "{% extends '/etc/passwd' %}"] {
        let error = template(source).render(&chat("[]")).expect_err("there is nothing to read from");
        assert!(error.kind == TemplateErrorKind::File && !error.reason.contains("root:"), "{error}");
        assert_eq!(template(source).check(), Err(error));
    }
}

#[test]
fn errors_name_the_line() {
    let error = ChatTemplate::new("fine\n{% if %}", BTreeMap::new()).expect_err("it has no condition");
    assert_eq!((error.kind, error.line), (TemplateErrorKind::Syntax, Some(2)), "{error}");
    let raising = template("\n\n{{ raise_exception('No, ' + messages[0].role) }}");
    let error = raising.render(&chat(r#"[{"role": "user"}]"#)).expect_err("it says no");
    assert_eq!(error.to_string(), "line 3: No, user");
    assert_eq!((error.kind, error.reason.as_str()), (TemplateErrorKind::Raised, "No, user"));
    // Another chat may have the fields that the template requires.
    assert_eq!(raising.check(), Ok(()));
}

#[test]
fn contents_become_what_the_template_takes() {
    let parts = r#"[{"role": "user", "content": [{"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": "b"}]}]"#;
    let joins = template("{% for m in messages %}{{ m.content }}{% endfor %}");
    assert_eq!(joins.content_format(), ContentFormat::String);
    assert_eq!(joins.render_chat(&chat(parts)).expect("it renders"), "<|image|>\na\nb");
    let takes = "{% for m in messages %}{% for p in m.content %}({{ p.type }}{{ p.text }}){% endfor %}{% endfor %}";
    let takes = template(takes);
    assert_eq!(takes.content_format(), ContentFormat::Parts);
    assert_eq!(takes.render_chat(&chat(parts)).expect("it renders"), "(texta)(image)(textb)");
    let text = chat(r#"[{"role": "user", "content": "a"}]"#);
    assert_eq!(takes.render_chat(&text).expect("it renders"), "(texta)");
    assert_eq!(ChatTemplate::builtin().content_format(), ContentFormat::String);
}

#[test]
fn arguments_of_calls_are_parsed_before() {
    let shows = template("{{ messages[0].tool_calls[0].function.arguments.b }}");
    let call = |arguments: &str| {
        let call = serde_json::json!([{"role": "assistant", "content": null,
            "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}]);
        shows.render_chat(&chat(&call.to_string()))
    };
    assert_eq!(call(r#"{"b": [1, "x"]}"#).expect("it renders"), "[1, 'x']");
    assert_eq!(call("").expect("no arguments"), "");
    let error = call("{").expect_err("no JSON");
    assert!(error.reason.starts_with("invalid arguments of a tool call: expected JSON"), "{error}");
}

#[test]
fn the_builtin_template_writes_chats_and_tools() {
    let mut request = chat(
        r#"[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": "{\"b\": 1}"}}]},
        {"role": "tool", "content": "2"}]"#,
    );
    request.add_generation_prompt = true;
    let turns = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<tool_call>{\"name\": \"f\", \"arguments\": \
                 {\"b\": 1}}</tool_call><|im_end|>\n<|im_start|>tool\n2<|im_end|>\n<|im_start|>assistant\n";
    let text = ChatTemplate::builtin().render_chat(&request).expect("it renders");
    assert_eq!(text, format!("<|im_start|>system\nBe brief.<|im_end|>\n{turns}"));
    request.tools = Some(serde_json::from_str(r#"[{"type": "function", "a": 1}]"#).expect("it is JSON"));
    let text = ChatTemplate::builtin().render_chat(&request).expect("it renders");
    let system = "<|im_start|>system\nBe brief.\n\nYou may call these tools:\n{\"type\": \"function\", \"a\": 1}\n\n\
                  Write a call as <tool_call>{\"name\": NAME, \"arguments\": OBJECT}</tool_call>.<|im_end|>\n";
    assert_eq!(text, format!("{system}{turns}"));
}
