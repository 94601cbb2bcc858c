"""The console: files for a browser, which calls the public API and has no powers of its own."""
