CREATE TABLE seats (number INTEGER PRIMARY KEY, passenger TEXT);
INSERT INTO seats (number) VALUES (1), (2), (3);
