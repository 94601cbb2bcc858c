"""The `detail` of an order: the broker's words, or the cause that kept it from being sent."""

import dataclasses

import pytest

from tests.conftest import Urls
from tests.execution.arranged import make_older, set_credential
from tests.execution.in_process_execution import executing, open_in_process
from tests.fakes import Act, FakeVenue, VenueSession
from trading_intents.brokers.port import CommandResult, OrderTicket, Outcome, Setting

SECRET = "s3cr3t-of-the-account"


async def test_an_order_that_its_broker_kept_waiting_says_so(urls: Urls) -> None:
    async with open_in_process(urls) as in_process:
        in_process.venue.is_away = True
        old = await in_process.create()
        await make_older(in_process, 31)
        async with executing(in_process):
            order = await in_process.until_status(old, "EXPIRED")
            assert (order["reason"], order["detail"]) == ("stale", "the broker was not connected")
            young = await in_process.create()
            in_process.venue.is_away = False
            assert (await in_process.until_status(young, "NEW"))["detail"] is None


async def test_an_order_of_an_account_without_credential_says_so(urls: Urls) -> None:
    async with open_in_process(
        urls, venue=FakeVenue("paper", credential_fields=("token",))
    ) as in_process:
        intent = await in_process.create()
        await make_older(in_process, 31)
        async with executing(in_process):
            order = await in_process.until_status(intent, "EXPIRED")
            assert order["detail"] == "the account has no credential for its broker"


async def test_an_order_that_its_session_came_too_late_for_says_so(urls: Urls) -> None:
    async with open_in_process(urls) as in_process:
        intent = await in_process.create()
        await make_older(in_process, 31)
        async with executing(in_process):
            order = await in_process.until_status(intent, "EXPIRED")
            assert order["detail"] == "the broker was not connected"


async def test_an_order_that_a_rate_limit_kept_says_so(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process, max_age_millis=300):
        await in_process.until_connected()
        in_process.venue.acts.append(Act.LIMIT)
        order = await in_process.until_status(await in_process.create(), "EXPIRED")
        assert (order["reason"], order["detail"]) == ("stale", "scripted")


@pytest.mark.usefixtures("soon", "retried_soon")
async def test_an_order_that_was_tried_too_often_says_what_failed(urls: Urls) -> None:
    async with open_in_process(urls) as in_process, executing(in_process, attempt_limit=2):
        in_process.venue.acts += [Act.FAIL, Act.FAIL]
        order = await in_process.until_status(await in_process.create(), "REJECTED")
        assert (order["reason"], order["detail"]) == ("not_delivered", "scripted")


async def refuse(self: VenueSession, ticket: OrderTicket, deadline: float) -> CommandResult:
    text = f"{SECRET} may\nnot\0 " + "x" * 1_000
    return CommandResult(outcome=Outcome.REJECTED, code="no", message=text)


async def test_a_secret_setting_of_an_integration_is_not_shown(
    urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(VenueSession, "submit", refuse)
    async with open_in_process(urls) as in_process:
        settings = (
            Setting(name="PAPER_TOKEN", meaning="Secret.", default=SECRET, is_secret=True),
            Setting(name="PAPER_WORD", meaning="None.", default="may not"),
        )
        integration = dataclasses.replace(in_process.venue.integration, settings=settings)
        async with executing(in_process, integration=integration):
            order = await in_process.until_status(await in_process.create(), "REJECTED")
            assert order["detail"] == "*** may?not? " + "x" * 487
        context = in_process.venue.contexts[-1]
        assert context.settings == {"PAPER_TOKEN": SECRET, "PAPER_WORD": "may not"}


async def test_a_text_is_one_short_line_without_secrets(
    urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(VenueSession, "submit", refuse)
    async with open_in_process(
        urls, venue=FakeVenue("paper", credential_fields=("token",))
    ) as in_process:
        await set_credential(in_process, SECRET)
        async with executing(in_process):
            order = await in_process.until_status(await in_process.create(), "REJECTED")
            assert order["detail"] == "*** may?not? " + "x" * 487
            facts = await in_process.in_process_writer.owner.fetch(
                "SELECT facts::text AS row FROM reports"
            )
            assert not any(SECRET in fact["row"] for fact in facts)
