"""The API described, from its route table: OpenAPI 3.1 for programs, pages for people."""
