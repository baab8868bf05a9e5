-- answers.sqlite3 of the tests: sqlite3 answers.sqlite3 < answers.sql
PRAGMA page_size = 512;
CREATE TABLE llmd (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    prompt_hash BLOB NOT NULL,
    gen_tokens JSON NOT NULL,
    n_gen_tokens INTEGER NOT NULL
);
-- The hashes are SHA-256 of the tokens [1, 2, 3], [4] and [4].
INSERT INTO llmd (prompt_hash, gen_tokens, n_gen_tokens) VALUES
    (x'4636993d3e1da4e9d6b8f87b79e8f7c6d018580d52661950eabc3845c5897a4d',
        CAST('{"strings": ["An", " owl", "."], "numbers": [900001, 900002, 13]}' AS BLOB), 3),
    (x'fb5e512425fc9449316ec95969ebe71e2d576dbab833d61e2a5b9330fd70ee02', '["Two", " owls."]', 2),
    (x'fb5e512425fc9449316ec95969ebe71e2d576dbab833d61e2a5b9330fd70ee02', '["Three", " owls."]', 2);
CREATE TABLE bare (prompt_hash BLOB, gen_tokens JSON);
CREATE TABLE short (prompt_hash BLOB, gen_tokens JSON);
INSERT INTO short VALUES (x'00', '["a"]');
CREATE TABLE texts (prompt_hash BLOB, gen_tokens JSON);
INSERT INTO texts VALUES (x'fb5e512425fc9449316ec95969ebe71e2d576dbab833d61e2a5b9330fd70ee02', 'no JSON');
CREATE TABLE empty (prompt_hash BLOB, gen_tokens JSON);
INSERT INTO empty VALUES (x'fb5e512425fc9449316ec95969ebe71e2d576dbab833d61e2a5b9330fd70ee02', '[]');
CREATE TABLE numbers (n INTEGER);
