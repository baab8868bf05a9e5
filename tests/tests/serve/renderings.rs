//! Chat templates that use more than their limits: an error at the start, or of a single request.

use serde_json::{Value, json};
use vcr_tests::{Folder, Serve, byte_tokenizer};

fn model(template: &str) -> Folder {
    let folder = Folder::new();
    std::fs::create_dir(folder.path().join("model")).expect("a temporary folder is writable");
    folder.write("model/tokenizer.json", byte_tokenizer().to_string());
    folder.write("model/chat_template.jinja", template);
    folder
}

/// Lists and texts grow to sizes that neither the template's length nor a limit on instructions bounds.
const ATTACKS: [&str; 6] = [
    "{% set ns = namespace(x=[1]) %}{% for i in range(40) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x | length }}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x ~ '' }}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x|tojson }}",
    "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% for j in range(20) %}{% set ns.x = [ns.x] %}{% endfor \
     %}{% endfor %}{{ ns.x }}",
    "{{ '%100000000s'|format('x') }}",
];

#[test]
fn a_template_that_takes_too_much_is_refused_at_the_start() {
    for template in ATTACKS {
        let folder = model(template);
        folder
            .vcr(&["serve", "model", "--port", "0"])
            .failed(2, &["MODEL model: invalid chat template: ", "the template "]);
    }
}

#[test]
fn a_rendering_that_takes_too_much_fails_alone() {
    let attacks = ATTACKS
        .iter()
        .enumerate()
        .map(|(index, attack)| format!("{{% if messages[0].content == 'attack {index}' %}}{attack}{{% endif %}}"));
    let folder = model(&format!("{}{{{{ messages[0].content }}}}", attacks.collect::<String>()));
    let path = folder.path().join("model").display().to_string();
    let serve = Serve::start(&[&path]);
    let chat = &|content: &str| {
        let body: Value = json!({"messages": [{"role": "user", "content": content}], "max_tokens": 2});
        serve.post("/v1/chat/completions", &body)
    };
    assert_eq!(chat("hello").status, 200);
    // Run fewer attacks at once than there are rendering processes.
    for attacks in (0..ATTACKS.len()).collect::<Vec<_>>().chunks(3) {
        std::thread::scope(|scope| {
            let attacks: Vec<_> =
                attacks.iter().map(|index| scope.spawn(move || chat(&format!("attack {index}")))).collect();
            // Other requests are served during the attacks.
            assert_eq!(chat("hello").status, 200);
            for attack in attacks {
                let reply = attack.join().expect("no assertion");
                assert_eq!(reply.status, 400, "{:?}", reply.body);
                let message = reply.body["error"]["message"].as_str().unwrap_or_default();
                let is_refused = message.contains("the chat cannot be rendered: ") && message.contains("the template ");
                assert!(is_refused, "{message}");
            }
        });
    }
    assert_eq!(chat("hello").status, 200);
}
