-- The database that every rollout starts from. Each rollout works on its own copy.
CREATE TABLE books (id INTEGER PRIMARY KEY, title TEXT NOT NULL, author TEXT NOT NULL);
CREATE TABLE loans (book_id INTEGER PRIMARY KEY REFERENCES books, member TEXT NOT NULL);

INSERT INTO books VALUES
    (1, 'Middlemarch', 'George Eliot'),
    (2, 'Solaris', 'Stanislaw Lem'),
    (3, 'Kindred', 'Octavia Butler');
INSERT INTO loans VALUES (2, 'Noor');
