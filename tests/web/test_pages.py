"""The pages for people: what this is, at /, and the whole API, at /docs. They need nothing from
elsewhere."""

import asyncio
import re
from html import unescape
from html.parser import HTMLParser
from typing import Any

import httpx
import pytest

from tests.platform import Platform
from tests.web.conftest import Site
from trading_intents.errors import wire_errors
from trading_intents.web import operations
from trading_intents.web.description.openapi import build_openapi

pytest_plugins = ("tests.started_dirs",)

# Elements that close themselves, or that HTML lets one leave open.
NEVER_CLOSED = {"meta", "li", "link"}


class Reader(HTMLParser):
    """Collects what a browser would find in a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loads: list[str] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        if tag not in NEVER_CLOSED:
            self.open.append(tag)
        for name, value in attrs:
            assert not name.startswith("on"), "an inline script"
            assert name != "style", "an inline style"
            if name == "id":
                self.ids.append(value or "")
            if name == "href":
                self.links.append(value or "")
            if name == "src":
                self.loads.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        if tag not in NEVER_CLOSED:
            assert self.open.pop() == tag


async def test_the_description_is_made_once_by_the_first_who_ask(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def counted(*arguments: Any) -> Any:
        made.append(arguments)
        return build_openapi(*arguments)

    monkeypatch.setattr(operations, "build_openapi", counted)
    answers = await asyncio.gather(*map(site.client.get, ("/", "/docs", "/openapi.json", "/docs")))
    assert [answer.status_code for answer in answers] == [200] * 4
    assert len(made) == 1


@pytest.mark.parametrize("path", ["/", "/docs"])
async def test_a_page_needs_nothing_from_elsewhere(site: Site, path: str) -> None:
    answer = await site.client.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    read = Reader(answer.text)
    assert read.open == []
    assert read.loads == []
    assert not {"script", "style", "img", "iframe", "object", "form"} & set(read.names)
    assert read.names.count("link") == 1
    assert all(link.startswith(("/", "#")) and not link.startswith("//") for link in read.links)


@pytest.mark.parametrize("path", ["/", "/docs"])
async def test_the_policy_allows_a_page_files_of_ours_and_nothing_else(
    site: Site, path: str
) -> None:
    answer = await site.client.get(path)
    policy = dict(
        rule.strip().split(" ", 1) for rule in answer.headers["content-security-policy"].split(";")
    )
    assert policy == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "connect-src": "'self'",
        "img-src": "'self' data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
    }
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", ["/", "/docs"])
async def test_a_page_is_for_phones_and_for_the_dark(site: Site, path: str) -> None:
    page = (await site.client.get(path)).text
    assert "width=device-width" in page
    assert "<link rel=stylesheet href=/page.css>" in page
    assert "color-scheme: light dark" in (await site.client.get("/page.css")).text


async def test_every_link_of_a_page_leads_somewhere(site: Site) -> None:
    docs = Reader((await site.client.get("/docs")).text)
    assert len(docs.ids) == len(set(docs.ids))
    for link in {*docs.links, *Reader((await site.client.get("/")).text).links}:
        path, _, anchor = link.partition("#")
        assert anchor in docs.ids if anchor else (await site.client.get(path)).status_code == 200, (
            link
        )


def test_the_first_page_says_what_this_is_and_where_to_go(platform: Platform) -> None:
    page = platform.client.get("/").text
    read = Reader(page)
    assert {"/docs", "/openapi.json", "/healthz", "/readyz"} <= set(read.links)
    assert "Applications submit intents" in page
    assert f"{platform.url}/v1/accounts/$ACCOUNT/intents" in page
    assert 'type": "CREATE' in unescape(page)


def test_the_page_shows_fields_types_examples_and_errors_of_every_operation(
    platform: Platform,
) -> None:
    document = platform.client.get("/openapi.json").json()
    page = platform.client.get("/docs").text
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            section = section_of(page, operation["operationId"])
            assert f"<code>{method.upper()} {path}</code>" in section
            assert operation["x-codeSamples"][0]["source"] in unescape(section)
            for parameter in operation["parameters"]:
                assert f"<code>{parameter['name']}</code>" in section
            for status, response in operation["responses"].items():
                assert f">{status}" in section
                codes = [] if status.startswith("2") else response["description"].split(", ")
                assert all(f"<a href=#{code}>" in section for code in codes)
    submit = section_of(page, "submit_intent")
    assert "<code>command.payload.spec.Limit.limit_price</code>" in submit
    assert "<code>BUY</code>, <code>SELL</code>, <code>SELL_SHORT</code>" in submit
    assert "<code>intent_id</code></td><td>string, format uuid</td><td>required" in submit
    assert "<code>data[].order_status</code>" in section_of(page, "list_orders")


def section_of(page: str, operation_id: str) -> str:
    found = re.search(rf"<section id={operation_id}>(.*?)</section>", page, re.DOTALL)
    assert found, operation_id
    return found[1]


def test_every_code_of_a_problem_is_an_anchor_in_the_page(platform: Platform) -> None:
    read = Reader(platform.client.get("/docs").text)
    assert {error.code for error in wire_errors()} <= set(read.ids)
    problem: httpx.Response = platform.client.get("/v1/accounts")
    assert problem.json()["type"].partition("#")[2] in read.ids
