"""The server for coding agents: the protocol, and each tool as one call with the token's own scopes."""

import io
import json

import pytest

from autotune.cli.mcp import TOOLS, VERSIONS, serve
from autotune.errors import UsageError


class Recorder:
    """Stands for a client: remembers what was called, and answers with it."""

    def __init__(self):
        self.calls = []
        self.id = "01X"
        self.best = "schema: x\n"

    def search(self, search_id):
        self.calls.append(("search", search_id))
        return self

    def __getattr__(self, name):
        def call(*words, **more):
            self.calls.append((name, words, more))
            return self if name in ("submit", "verify") else {"called": name}

        return call


def talk(client, *requests):
    out = io.StringIO()
    lines = [one if isinstance(one, str) else json.dumps({"jsonrpc": "2.0", **one}) for one in requests]
    serve(client, io.StringIO("\n".join(lines) + "\n"), out)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def called(client, name, **arguments):
    request = {"id": 1, "method": "tools/call", "params": {"name": name, "arguments": arguments}}
    (answer,) = talk(client, request)
    return answer


def test_a_client_shakes_hands_and_lists_the_tools():
    hello = {"id": 1, "method": "initialize", "params": {"protocolVersion": VERSIONS[-1]}}
    first, ping, listed = talk(
        Recorder(),
        hello,
        {"method": "notifications/initialized"},
        {"id": 2, "method": "ping"},
        {"id": 3, "method": "tools/list"},
    )
    assert first["result"]["protocolVersion"] == VERSIONS[-1]
    assert (ping["id"], ping["result"]) == (2, {})
    tools = {tool["name"]: tool for tool in listed["result"]["tools"]}
    assert set(tools) == set(TOOLS)
    for tool in tools.values():
        assert tool["description"]
        assert set(tool["inputSchema"]["required"]) <= set(tool["inputSchema"]["properties"])


def test_an_unknown_version_gets_the_newest_that_is_spoken():
    (answer,) = talk(Recorder(), {"id": 1, "method": "initialize", "params": {"protocolVersion": "2099"}})
    assert answer["result"]["protocolVersion"] == VERSIONS[0]


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        ("{", -32700),
        ("[]", -32700),
        ({"id": 1, "method": "nothing"}, -32601),
        ({"id": 1, "method": "tools/call", "params": {"name": "nothing"}}, -32602),
    ],
)
def test_what_is_no_request_gets_an_error_and_the_next_one_is_answered(request_, code):
    bad, good = talk(Recorder(), request_, {"id": 2, "method": "ping"})
    assert bad["error"]["code"] == code
    assert good["id"] == 2


def test_each_tool_is_one_call():
    client = Recorder()
    called(client, "submit_search", command=["python", "t.py"], folder="/x", budget="2h", gpus=1)
    name, words, more = client.calls[0]
    assert (name, words) == ("submit", (["python", "t.py"],))
    assert (more["budget"], more["root"], more["gpus"]) == ("2h", "/x", 1)
    for tool in ("get_search", "get_trials", "verify_search", "cancel_search"):
        assert not called(client, tool, search="01X")["result"]["isError"]
    assert called(client, "get_best", search="01X")["result"]["content"][0]["text"] == "schema: x\n"
    assert not called(client, "list_searches")["result"]["isError"]
    assert not called(client, "estimate_search", budget="1h")["result"]["isError"]


def test_an_error_of_the_service_is_a_result_that_an_agent_can_read():
    class Refusing(Recorder):
        def search(self, search_id):
            raise UsageError("this needs a token of scope run", hint="ask an administrator")

    result = called(Refusing(), "cancel_search", search="01X")["result"]
    assert result["isError"]
    assert "scope run\nhint: ask an administrator" in result["content"][0]["text"]


@pytest.mark.parametrize("arguments", [{}, {"search": "01X", "surprise": 1}])
def test_arguments_are_checked(arguments):
    assert called(Recorder(), "get_search", **arguments)["result"]["isError"]
