"""`serve`: one process, or a parent with one process for the API and the stream and others for
workers."""
