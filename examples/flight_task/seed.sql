-- The state that every rollout starts from. The rows' clock stands at 2025-05-19, so "tomorrow" is 2025-05-20.
CREATE TABLE flights (
    id              INTEGER PRIMARY KEY,
    origin          TEXT NOT NULL,
    dest            TEXT NOT NULL,
    depart          TEXT NOT NULL,
    arrive          TEXT NOT NULL,
    seats_available INTEGER NOT NULL
);

CREATE TABLE bookings (
    id        TEXT PRIMARY KEY,
    flight_id INTEGER NOT NULL REFERENCES flights (id),
    passenger TEXT NOT NULL,
    status    TEXT NOT NULL CHECK (status IN ('reserved', 'paid'))
);

INSERT INTO flights (id, origin, dest, depart, arrive, seats_available) VALUES
    (1, 'SFO', 'JFK', '2025-05-20 06:30', '2025-05-20 15:05', 4),
    (2, 'SFO', 'JFK', '2025-05-20 08:00', '2025-05-20 16:35', 0),
    (3, 'SFO', 'JFK', '2025-05-20 09:45', '2025-05-20 18:20', 9),
    (4, 'SFO', 'JFK', '2025-05-20 17:30', '2025-05-21 02:05', 12),
    (5, 'SFO', 'JFK', '2025-05-21 08:00', '2025-05-21 16:35', 7),
    (6, 'LAX', 'SEA', '2025-05-22 07:15', '2025-05-22 10:00', 3),
    (7, 'LAX', 'SEA', '2025-05-22 13:40', '2025-05-22 16:25', 15),
    (8, 'SFO', 'BOS', '2025-05-20 06:40', '2025-05-20 15:20', 2),
    (9, 'SFO', 'BOS', '2025-05-20 11:10', '2025-05-20 19:50', 8);

INSERT INTO bookings (id, flight_id, passenger, status) VALUES
    ('7F3A91C2', 5, 'Erin Walsh', 'reserved');

-- A booking takes a seat, and a full flight takes no booking.
CREATE TRIGGER booking_needs_seat BEFORE INSERT ON bookings
WHEN (SELECT seats_available FROM flights WHERE id = NEW.flight_id) <= 0
BEGIN
    SELECT RAISE(ABORT, 'this flight is full');
END;

CREATE TRIGGER booking_takes_seat AFTER INSERT ON bookings
BEGIN
    UPDATE flights SET seats_available = seats_available - 1 WHERE id = NEW.flight_id;
END;
