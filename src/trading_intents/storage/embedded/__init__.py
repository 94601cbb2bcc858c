"""The PostgreSQL that comes with the platform: its folder, its process, and the program that starts
it."""
