"""A command's way to the broker and back."""

from tests.conftest import Urls
from tests.execution.floor import executing, open_floor


async def test_an_order_is_sent_acknowledged_and_filled(urls: Urls) -> None:
    async with open_floor(urls) as floor, executing(floor, level="warning"):
        intent = await floor.create()
        await floor.until_status(intent, "NEW")
        floor.fill(await floor.coid(intent))
        order = await floor.until_status(intent, "FILLED")
        assert (order["filled_quantity"], order["average_price"], order["external_order_id"]) == (10, 100, "v1")
        assert floor.venue.journal == [("submit", await floor.coid(intent))]
        await floor.until_rows_are("completed")
        assert await floor.connection() == "connected"
