"""HTTP: routes, problems, paging, limits, OpenAPI. Knows no feature."""
