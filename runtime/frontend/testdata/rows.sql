-- rows.sqlite3 of the tests: sqlite3 rows.sqlite3 < rows.sql
PRAGMA page_size = 512;
CREATE TABLE rows (id INTEGER PRIMARY KEY AUTOINCREMENT, words TEXT NOT NULL, number INTEGER);
WITH RECURSIVE counted(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM counted WHERE n < 1399)
INSERT INTO rows (words, number)
SELECT replace(hex(zeroblob(CASE WHEN n % 300 = 7 THEN n + 1 ELSE n % 5 + 1 END)), '00', n || '-'),
    (n - 400) * n * n * n * n * n
FROM counted;
ALTER TABLE rows ADD COLUMN late TEXT;
CREATE TABLE kinds (value);
INSERT INTO kinds VALUES (NULL), (1.5), (x'00ff'), (x''), (0), (1);
CREATE TABLE keyed (key TEXT PRIMARY KEY) WITHOUT ROWID;
INSERT INTO keyed VALUES ('a');
VACUUM;
