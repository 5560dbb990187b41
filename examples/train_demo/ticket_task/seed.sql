CREATE TABLE bookings (passenger TEXT, seat TEXT);
