"""HTTP plumbing: routes, problems, paging, limits, OpenAPI. Knows no feature."""
