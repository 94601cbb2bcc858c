"""The package: strict types, habits by ESLint, form by Prettier, programs of the documents, and a
browser."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.console.conftest import open_browser
from tests.platform import Platform
from tests.sdk_ts.conftest import LIMIT_SECONDS, NAME, PROGRAMS, ROOT, Programs
from trading_intents.config import PREFIX
from trading_intents_client.stream import events
from trading_intents_client.types import accounts, controls, market, operations, trading

pytest_plugins = ("tests.started_dirs",)
pytestmark = pytest.mark.slow

STRICT = ("--strict", "--target", "es2022", "--module", "nodenext", "--skipLibCheck")
DOCUMENTS = {"first": ROOT / "README.md", "program": ROOT / "sdk-ts" / "README.md"}
IN_A_PAGE = """async ([apiKey, id]) => {
    const sdk = await import("/sdk/index.js");
    const client = new sdk.TradingClient({ url: location.origin, apiKey });
    const account = client.account(id);
    const stream = await account.events().open();
    const order = await (await account.buy("AAPL", 2)).wait();
    const kinds = [];
    for await (const event of stream) {
        kinds.push(event.kind);
        if (event.kind === "broker_position") break;
    }
    const wrong = await account.order("x").catch((error) => error.name);
    client.close();
    return [order.order_status, kinds.includes("broker_trade"), wrong];
}"""


def tool(tools: Path, name: str, *options: object, folder: Path) -> None:
    command = [str(tools / "node_modules" / ".bin" / name), *map(str, options)]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def program_of(document: Path) -> str:
    (program,) = re.findall(r"^```ts\n(.*?)^```$", document.read_text(), re.MULTILINE | re.DOTALL)
    return str(program)


def test_eslint_and_prettier_find_nothing(tools: Path, source: Path) -> None:
    tool(tools, "eslint", "--max-warnings", "0", ".", folder=source)
    written = [path for path in (ROOT / "sdk-ts").rglob("*.*s") if "node_modules" not in path.parts]
    forms = [*written, *PROGRAMS.iterdir()]
    tool(tools, "prettier", "--check", "--print-width", "100", *forms, folder=ROOT)


def test_programs_of_the_documents_compile_strictly_and_run(
    tools: Path, package: Path, platform: Platform
) -> None:
    for name, document in DOCUMENTS.items():
        (package / f"{name}.mts").write_text(program_of(document))
    (package / "consumer.mts").write_text((PROGRAMS / "consumer.ts").read_text())
    files = [f"{name}.mts" for name in (*DOCUMENTS, "consumer")]
    tool(tools, "tsc", *STRICT, *files, folder=package)
    shown = {name: run_in_checkout(package / f"{name}.mjs", platform) for name in DOCUMENTS}
    assert re.fullmatch(r"FILLED [\d.]+\n", shown["first"])
    bought, cancelled, wrong, sold = shown["program"].splitlines()
    assert bought.startswith("AAPL 10 ")
    assert cancelled == "CANCELLED"
    assert wrong == "/command/payload/spec/Market/quantity validation_failed"
    assert sold == "sold 10 keep true"


def run_in_checkout(program: Path, platform: Platform) -> str:
    """In the folder of a `make run`, without a setting."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    done = subprocess.run(
        ["node", str(program)],
        cwd=Path(platform.environ[f"{PREFIX}DATA_DIR"]).parent,
        env=environ,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_only_the_module_for_node_needs_node(package: Path) -> None:
    folder = package / "node_modules" / NAME
    manifest = json.loads((folder / "package.json").read_text())
    assert "dependencies" not in manifest
    assert {path.name for path in folder.iterdir()} == {"README.md", "lib", "package.json"}
    modules = {path.name: path.read_text() for path in (folder / "lib").glob("*.js")}
    assert {"index.js", "node.js"} <= modules.keys()
    needing = [name for name, text in modules.items() if re.search(r"\bnode:|process\.", text)]
    assert needing == ["node.js"]
    imported = [each for text in modules.values() for each in re.findall(r'from "(.*?)"', text)]
    assert "./node.js" not in imported
    assert [each for each in imported if not re.match(r"\./[a-z]+\.js|node:", each)] == []


def test_it_trades_in_a_browser(programs: Programs, account_id: str) -> None:
    modules = programs.package / "node_modules" / NAME / "lib"
    with open_browser() as browser:
        # The page's policy allows no scripts, and its own are not what is tested.
        page = browser.new_context(bypass_csp=True).new_page()

        def serve(route: Any) -> None:
            name = route.request.url.rpartition("/")[2]
            route.fulfill(path=modules / name, content_type="text/javascript")

        page.route("**/sdk/*.js", serve)
        page.goto(f"{programs.url}/healthz")
        answer = page.evaluate(IN_A_PAGE, [programs.api_key, account_id])
    assert answer == ["FILLED", True, "NotFound"]


def test_amounts_are_the_fields_that_are_decimals_in_the_python_client(package: Path) -> None:
    amounts = (package / "node_modules" / NAME / "lib" / "amounts.js").read_text()
    listed = re.findall(r'"(\w+)"', amounts[: amounts.index("]")])
    assert listed == sorted(decimal_fields())


def decimal_fields() -> set[str]:
    found = set[str]()
    for module in (accounts, controls, market, operations, trading, events):
        for kind in vars(module).values():
            if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
                fields = msgspec.structs.fields(kind)
                found |= {each.name for each in fields if "Decimal" in str(each.type)}
    return found


def test_the_lock_of_npm_names_no_address() -> None:
    """A registry is the machine's own choice; the hash says that it gave the right thing."""
    text = (ROOT / "sdk-ts" / "package-lock.json").read_text()
    assert "://" not in text
    packages = json.loads(text)["packages"]
    manifest = json.loads((ROOT / "sdk-ts" / "package.json").read_text())
    assert packages.pop("")["devDependencies"] == manifest["devDependencies"]
    assert len(packages) > 100
    assert all(each["integrity"].startswith("sha512-") for each in packages.values())
