"""The description is made from the route table, and holds."""

from tests.web.conftest import Site


async def test_every_route_is_described(site: Site) -> None:
    document = (await site.client.get("/openapi.json")).json()
    described = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
    assert described == {(route.method, route.path) for route in site.app.routes}
    assert (document["openapi"], document["info"]["version"]) == ("3.1.0", "0.1.0")


async def test_bodies_and_answers_are_the_types_that_serve(site: Site) -> None:
    document = (await site.client.get("/openapi.json")).json()
    operation = document["paths"]["/v1/places/{place}/orders"]["post"]
    assert operation["requestBody"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Order"}
    assert document["components"]["schemas"]["Order"]["additionalProperties"] is False
    assert set(operation["responses"]) == {
        "201",
        "400",
        "401",
        "403",
        "404",
        "408",
        "413",
        "415",
        "422",
        "429",
        "500",
        "503",
    }
    assert operation["security"]


async def test_the_page_needs_nothing_from_elsewhere(site: Site) -> None:
    page = (await site.client.get("/docs")).text
    assert "POST /v1/places/{place}/orders" in page
    assert 'id="validation_failed"' in page
    assert "<script" not in page
    assert "http" not in page.replace("httpx", "")
