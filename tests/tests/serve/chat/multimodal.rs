//! Images, audio and video in chats.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use vcr_tests::Serve;

const CHAT: &str = "/v1/chat/completions";

/// Data URL of a PNG file's head with this size, and content that distinguishes it.
fn png(width: u32, height: u32, content: u8) -> Value {
    let mut file = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR".to_vec();
    file.extend(width.to_be_bytes().into_iter().chain(height.to_be_bytes()));
    file.extend([8, 6, 0, 0, 0, content, content, content, content]);
    image(&format!("data:image/png;base64,{}", STANDARD.encode(file)))
}

fn image(url: &str) -> Value {
    json!({"type": "image_url", "image_url": {"url": url}})
}

/// Data URL of a silent WAV file.
fn wav(seconds: u32) -> Value {
    let (rate, bytes) = (8000_u32, seconds * 16_000);
    let mut file = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0".to_vec();
    file.extend(rate.to_le_bytes().into_iter().chain((2 * rate).to_le_bytes()));
    file.extend(b"\x02\0\x10\0data");
    file.extend(bytes.to_le_bytes());
    file.resize(file.len() + bytes as usize, 0);
    json!({"type": "input_audio", "input_audio": {"data": STANDARD.encode(file), "format": "wav"}})
}

fn chat(serve: &Serve, parts: &[Value]) -> Value {
    let mut content = vec![json!({"type": "text", "text": "What is this?"})];
    content.extend_from_slice(parts);
    let request = json!({"messages": [{"role": "user", "content": content}], "max_tokens": 2});
    let reply = serve.post(CHAT, &request);
    if reply.status == 200 { reply.body["usage"].clone() } else { reply.body["error"].clone() }
}

fn prompt_tokens(serve: &Serve, parts: &[Value]) -> u64 {
    let usage = chat(serve, parts);
    usage["prompt_tokens"].as_u64().unwrap_or_else(|| panic!("{usage}"))
}

#[test]
fn media_take_tokens_by_their_size() {
    let serve = Serve::start(&[]);
    let (one, url) = (png(1, 1, 0), image("https://example.org/cat.png"));
    let base = prompt_tokens(&serve, std::slice::from_ref(&one)) - 4;
    let more = |part: Value| prompt_tokens(&serve, &[part]) - base;
    assert_eq!(more(png(280, 280, 0)), 100);
    assert_eq!(more(png(300, 20, 0)), 11);
    assert_eq!(more(url.clone()), 256);
    assert_eq!(more(image("data:image/png;base64,AAAA")), 256);
    assert_eq!(more(wav(3)), 75);
    assert_eq!(more(json!({"type": "video_url", "video_url": {"url": "https://example.org/a.mp4"}})), 1024);
    assert_eq!(more(json!({"type": "image_embeds", "image_embeds": "AAAA"})), 256);

    let fixed = Serve::start(&["--image-tokens", "7", "--audio-tokens", "8", "--video-tokens", "9"]);
    let base = prompt_tokens(&fixed, &[one]) - 7;
    assert_eq!(prompt_tokens(&fixed, &[png(999, 999, 0)]) - base, 7);
    assert_eq!(prompt_tokens(&fixed, &[wav(3)]) - base, 8);
    let video = json!({"type": "video_url", "video_url": {"url": "http://a/b"}});
    assert_eq!(prompt_tokens(&fixed, &[video]) - base, 9);
}

/// Each API counts the same number of tokens for the same image.
#[test]
fn all_apis_take_images() {
    let serve = Serve::start(&["--image-tokens", "50"]);
    let url = "data:image/png;base64,AAAA";
    let content = json!([{"type": "text", "text": "What is this?"}, image(url)]);
    let tokens = prompt_tokens(&serve, &[image(url)]);
    let source = json!({"type": "base64", "media_type": "image/png", "data": "AAAA"});
    let blocks = json!([{"type": "text", "text": "What is this?"}, {"type": "image", "source": source}]);
    let request = json!({"model": "sim", "messages": [{"role": "user", "content": blocks}], "max_tokens": 2});
    assert_eq!(serve.post("/v1/messages", &request).body["usage"]["input_tokens"], tokens);
    assert_eq!(serve.post("/v1/messages/count_tokens", &request).body["input_tokens"], tokens);
    let parts = json!([{"type": "input_text", "text": "What is this?"}, {"type": "input_image", "image_url": url}]);
    let response = serve.post("/v1/responses", &json!({"input": [{"role": "user", "content": parts}]})).body;
    assert_eq!(response["usage"]["input_tokens"], tokens, "{response}");
    let messages = json!([{"role": "user", "content": content}]);
    let counted = serve.post("/tokenize", &json!({"messages": messages})).body;
    assert_eq!(counted["count"], tokens);
    let embedded = serve.post("/v1/embeddings", &json!({"messages": messages, "add_generation_prompt": true})).body;
    assert_eq!(embedded["usage"]["prompt_tokens"], tokens);
}

/// Different images stay different although their placeholders are equal. Text before an image is shared.
#[test]
fn the_prefix_cache_tells_images_apart() {
    let serve = Serve::start(&["--enable-prompt-tokens-details"]);
    let system = "You look at pictures and say what you see in them, in few words. ".repeat(8);
    let ask = |part: Value| {
        let content = json!([part, {"type": "text", "text": "What is this, and where was it taken?"}]);
        let messages = json!([{"role": "system", "content": system}, {"role": "user", "content": content}]);
        let body = serve.post(CHAT, &json!({"messages": messages, "max_tokens": 1})).body;
        let usage = &body["usage"];
        let count = |path: &str| usage.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("{body}"));
        (count("/prompt_tokens"), count("/prompt_tokens_details/cached_tokens"))
    };
    let (tokens, cached) = ask(png(560, 560, 1));
    assert_eq!(cached, 0);
    let (_, again) = ask(png(560, 560, 1));
    assert!(again + 16 >= tokens, "{again} of {tokens}");
    let (same_tokens, other) = ask(png(560, 560, 2));
    assert_eq!(same_tokens, tokens);
    let before = serve.post("/tokenize", &json!({"messages": [{"role": "system", "content": system}]})).body["count"]
        .as_u64()
        .expect("a count");
    assert!(other > 0 && other <= before && other + 400 < tokens, "{other} of {tokens}, {before} before");
    // A client's own ID takes precedence over the content.
    let named = |content: u8| {
        let mut part = png(560, 560, content);
        part["uuid"] = json!("the same");
        ask(part).1
    };
    assert_eq!((named(3), named(4)), (other, again));
}

#[test]
fn limits_and_bad_parts_are_refused_as_in_vllm() {
    let serve = Serve::start(&["--limit-mm-per-prompt", r#"{"image": 1, "video": {"count": 0}}"#]);
    let refused = |parts: &[Value]| {
        let error = chat(&serve, parts);
        (error["code"].as_u64(), error["message"].as_str().unwrap_or_default().to_owned())
    };
    let cat = image("http://a/cat.png");
    assert!(prompt_tokens(&serve, std::slice::from_ref(&cat)) > 256);
    for (parts, message) in [
        (vec![cat.clone(), cat], "At most 1 image(s) may be provided in one prompt."),
        (
            vec![json!({"type": "video_url", "video_url": {"url": "http://a/b"}})],
            "At most 0 video(s) may be provided in one prompt.",
        ),
        (vec![json!({"type": "smell"})], "Unsupported chat content part type: 'smell'."),
        (vec![image("data:image/png;base64,&&&")], "invalid base64 in `image_url`"),
        (vec![json!({"type": "image_url"})], "missing `image_url` in a content part"),
        (
            vec![json!({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "ogg"}})],
            "unsupported input_audio format `ogg`",
        ),
    ] {
        let (code, text) = refused(&parts);
        assert!(code == Some(400) && text.contains(message), "{parts:?}: {text}");
    }
    let long = Serve::start(&["--max-model-len", "100"]);
    let error = chat(&long, &[image("http://a/cat.png")]);
    assert!(error["message"].as_str().is_some_and(|text| text.contains("maximum context length is 100")), "{error}");
    vcr_tests::Folder::new()
        .vcr(&["serve", "--port", "0", "--limit-mm-per-prompt", "smell=1"])
        .failed(2, &["expected JSON such as"]);
}

#[test]
fn rendered_images_are_those_of_the_chat() {
    let serve = Serve::start(&["--tokens", "random", "--image-tokens", "40"]);
    let ask = |path: &str, content: u8| {
        let messages = json!([{"role": "user", "content": [png(9, 9, content), {"type": "text", "text": "What?"}]}]);
        serve.post(path, &json!({"messages": messages, "max_tokens": 4, "return_token_ids": true})).body
    };
    let rendered = ask("/v1/chat/completions/render", 1);
    let place = &rendered["features"]["mm_placeholders"]["image"][0];
    assert_eq!(place["length"], 40, "{rendered}");
    let generated = serve.post("/inference/v1/generate", &rendered).body["choices"][0]["token_ids"].clone();
    let chat = |content| ask(CHAT, content)["choices"][0]["token_ids"].clone();
    assert_eq!(generated, chat(1));
    assert_ne!(generated, chat(2), "the image is part of the content");
    let mut broken = rendered.clone();
    broken["features"]["mm_placeholders"]["image"][0]["offset"] = json!(1_000_000);
    let refused = serve.post("/inference/v1/generate", &broken);
    assert_eq!((refused.status, &refused.body["error"]["param"]), (400, &json!("features")));
}
