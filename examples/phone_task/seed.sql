CREATE TABLE plans (name TEXT PRIMARY KEY, data_gb INTEGER NOT NULL, price INTEGER NOT NULL);
INSERT INTO plans VALUES ('basic', 2, 10), ('plus', 10, 20), ('travel', 20, 35);

CREATE TABLE lines (
    number TEXT PRIMARY KEY,
    customer TEXT NOT NULL,
    plan TEXT NOT NULL REFERENCES plans (name),
    status TEXT NOT NULL CHECK (status IN ('active', 'suspended')),
    roaming INTEGER NOT NULL,
    used_gb INTEGER NOT NULL
);
INSERT INTO lines VALUES ('555-0101', 'Ana', 'basic', 'active', 0, 1);

-- the customer's phone: the user's tools read and change it, the agent has none that see it
CREATE TABLE phone (
    number TEXT PRIMARY KEY REFERENCES lines (number),
    airplane_mode INTEGER NOT NULL,
    mobile_data INTEGER NOT NULL,
    roaming INTEGER NOT NULL,
    signal INTEGER NOT NULL,
    restart_needed INTEGER NOT NULL
);
INSERT INTO phone VALUES ('555-0101', 0, 1, 0, 1, 0);
