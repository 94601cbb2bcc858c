"""Serves the tools over standard input and output, by the official package `mcp`. Decides nothing
about orders."""

import json
from typing import Any

import mcp_types as types
import msgspec
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError

from trading_intents_client.agents.arguments import input_schema
from trading_intents_client.agents.refusals import explain_error
from trading_intents_client.agents.tools import TOOLS, AgentTool
from trading_intents_client.asynchronous.client import AsyncTradingClient
from trading_intents_client.errors import TradingError

NAME = "trading-intents"
INSTRUCTIONS = (
    "Tools of a trading platform. Amounts are decimal numbers as text. A refusal has a `code`, and "
    "for each limit in `triggered` its `limit`, what was `asked` and what is `left`. Do not repeat "
    "what was refused; after an error with `may_be_recorded` repeat the same call with the same "
    "idempotency_key."
)


def make_server(client: AsyncTradingClient, allow_trading: bool, version: str) -> Server[Any]:
    """Offers what the client's key may use; trading only if that was allowed."""
    by_name = {tool.name: tool for tool in TOOLS if allow_trading or not tool.is_trading}

    async def list_tools(_: Any, __: Any) -> types.ListToolsResult:
        try:
            caller = await client.organization.caller()
        except TradingError as error:
            raise MCPError(types.INTERNAL_ERROR, str(error)) from None
        offered = [each for each in by_name.values() if each.is_offered(caller, allow_trading)]
        return types.ListToolsResult(tools=list(map(_shown, offered)))

    async def call_tool(_: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        tool = by_name.get(params.name)
        if tool is None:
            raise MCPError(types.INVALID_PARAMS, f"there is no tool {params.name}")
        return await _call(client, tool, params.arguments or {})

    return Server(
        NAME,
        version=version,
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def _shown(tool: AgentTool) -> types.Tool:
    hints = types.ToolAnnotations(
        read_only_hint=not tool.is_trading, destructive_hint=tool.is_trading, idempotent_hint=True
    )
    return types.Tool(
        name=tool.name,
        description=tool.description,
        input_schema=input_schema(tool.arguments),
        annotations=hints,
    )


async def _call(
    client: AsyncTradingClient, tool: AgentTool, arguments: dict[str, Any]
) -> types.CallToolResult:
    try:
        asked = msgspec.convert(arguments, tool.arguments)
    except msgspec.ValidationError as error:
        return _result({"code": "invalid_arguments", "detail": str(error)}, is_error=True)
    try:
        return _result(msgspec.to_builtins(await tool.run(client, asked)))
    except ValueError as error:  # of an argument that the client's own checks refuse
        return _result({"code": "invalid_arguments", "detail": str(error)}, is_error=True)
    except TradingError as error:
        return _result(await explain_error(client, error, asked), is_error=True)


def _result(answer: Any, is_error: bool = False) -> types.CallToolResult:
    """Also as text: many clients show their model nothing else."""
    text = types.TextContent(type="text", text=json.dumps(answer))
    return types.CallToolResult(content=[text], structured_content=answer, is_error=is_error)


async def serve_stdio(client: AsyncTradingClient, allow_trading: bool, version: str) -> None:
    """Until standard input ends. A key that the platform does not know is an error at once, not at
    the first call."""
    async with client:
        await client.organization.caller()
        server = make_server(client, allow_trading, version)
        async with stdio_server() as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())
