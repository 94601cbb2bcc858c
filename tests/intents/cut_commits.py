"""Commits that are cut on their way, and a caller who submits meanwhile."""

from collections.abc import Callable

from tests.platform import Platform
from tests.proxy import Verdict
from tests.tenants import EVERY_PERMISSION, Headers, key

COMMIT = b"commit_"  # how the name of the writer's prepared statement begins


class CutAtCommit:
    """Cuts COMMITs of the writer, which leave together with its writes, while there are cuts left
    to make."""

    def __init__(self) -> None:
        self.made = dict.fromkeys(Verdict, 0)
        self.choose: Callable[[], Verdict] = lambda: Verdict.CUT_UNSENT
        self.left = 0
        self.is_last = self.is_over = False
        """Whether nothing passes any more after a cut."""
        self.after: Verdict | bytes = Verdict.CUT_UNSENT
        """What becomes of the rest then."""

    def look(self, data: bytes) -> Verdict | bytes:
        if self.is_over:
            return self.after
        if COMMIT not in data or self.left <= 0:
            return Verdict.PASS
        self.left -= 1
        self.is_over = self.is_last
        chosen = self.choose()
        self.made[chosen] += 1
        return chosen


def trader(platform: Platform, organization: str = "o") -> tuple[Headers, str]:
    account = {"name": "a", "broker": "paper", "environment": "paper"}
    keys = [key("k", "paper", EVERY_PERMISSION)]
    users = [{"external_id": f"{organization}-admin", "role": "admin"}]
    made = {"external_id": organization, "accounts": [account], "api_keys": keys, "users": users}
    made = platform.provision({"organizations": [made]})["organizations"][0]
    return {
        "x-api-key": made["api_keys"][0]["api_key"]
    }, f"/v1/accounts/{made['accounts'][0]['id']}/intents"
