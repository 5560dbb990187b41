CREATE TABLE bookings (seat TEXT);
