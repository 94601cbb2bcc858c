"""Services beside the stream: health, reflection, TLS, readiness that covers them, and the
operator's command."""

import json
import socket
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.certificates import make_certificate
from tests.conftest import Urls
from tests.intents.http_client import TradingClient, create, limit
from tests.platform import environment, run_command, serving
from tests.stream.client import ACTION, LIMIT_SECONDS, Client
from tests.tenants import PLENTY, Tenants

SERVICE = "trading.TradingService"
FAILURES = 20  # more than fill again while they are sent


def test_health_needs_no_credential(client: Client) -> None:
    stub = health_pb2_grpc.HealthStub(client.channel)
    for service in ("", SERVICE):
        answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=LIMIT_SECONDS)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.RpcError) as refused:
        stub.Check(health_pb2.HealthCheckRequest(service="nothing"), timeout=LIMIT_SECONDS)
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


def test_reflection_describes_the_whole_service(client: Client) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(client.channel)
    asked = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE),
    ]
    services, file = stub.ServerReflectionInfo(iter(asked), timeout=LIMIT_SECONDS)
    assert {service.name for service in services.list_services_response.service} == {
        SERVICE,
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }
    received = FileDescriptorProto.FromString(
        file.file_descriptor_response.file_descriptor_proto[0]
    )
    assert [method.name for method in received.service[0].method] == [
        "SubscribeEvents",
        "StreamEvents",
    ]


def test_reflection_answers_alike_under_its_present_and_its_former_name(client: Client) -> None:
    request = reflection_pb2.ServerReflectionRequest(
        file_containing_symbol=SERVICE
    ).SerializeToString()
    answers = []
    for version in ("v1", "v1alpha"):
        call: Any = client.channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
        )
        answers += list(call(iter([request]), timeout=LIMIT_SECONDS))
    assert len(answers) == 2
    assert answers[0] == answers[1]


def test_tls_comes_from_files_and_guessing_runs_dry(
    tenants: Tenants, trading_client: TradingClient, tenants_database: Urls, tmp_path: Path
) -> None:
    certificate, key = make_certificate(tmp_path)
    first = certificate.read_bytes()
    files = {"TLS_CERTIFICATE_FILE": str(certificate), "TLS_KEY_FILE": str(key)}
    settings = PLENTY | {"DATABASE_URL": tenants_database.login.reveal(), "ROLES": "stream"} | files
    settings["RATE_LIMIT_FAILURES"] = f"1/{FAILURES}"
    with serving(tmp_path / "data", **settings) as second:
        assert second.client.get("/readyz").status_code == 200
        assert (
            second.client.get("/v1/brokers", headers=tenants.callers["key_all"]).status_code == 404
        )
        encrypted = Client(second.grpc, grpc.ssl_channel_credentials(first))
        follower = encrypted.follow(
            trading_client.headers, trading_client.account["id"], (ACTION,)
        ).subscribed()
        record = trading_client.accepted(create(limit()))
        assert follower.take(1)[0].intent_action.intent_id == record["intent_id"]
        plain = Client(second.grpc)
        assert (
            plain.follow(trading_client.headers, trading_client.account["id"]).ended()[0]
            == "UNAVAILABLE"
        )
        make_certificate(tmp_path)
        renewed = Client(second.grpc, grpc.ssl_channel_credentials(certificate.read_bytes()))
        renewed.follow(trading_client.headers, trading_client.account["id"], (ACTION,)).subscribed()
        assert follower.call.is_active()
        guesses = iter(
            lambda: encrypted.follow({"x-api-key": "tip_paper_guess"}).ended()[0],
            "RESOURCE_EXHAUSTED",
        )
        assert FAILURES <= len(list(guesses)) < 2 * FAILURES
        # Was verified.
        encrypted.follow(
            trading_client.headers, trading_client.account["id"], (ACTION,)
        ).subscribed()
        for client in (encrypted, plain, renewed):
            client.close()


def test_a_failed_handshake_leaves_every_line_of_the_log_json(
    tenants_database: Urls, tmp_path: Path
) -> None:
    certificate, key = make_certificate(tmp_path)
    files = {"TLS_CERTIFICATE_FILE": str(certificate), "TLS_KEY_FILE": str(key)}
    settings = {"DATABASE_URL": tenants_database.login.reveal(), "ROLES": "stream"} | files
    with serving(tmp_path / "data", **settings) as platform:
        host, _, port = platform.grpc.rpartition(":")
        for hello in (b"GET / HTTP/1.1\r\n\r\n", bytes(range(256))):
            with socket.create_connection((host, int(port)), timeout=LIMIT_SECONDS) as plain:
                plain.sendall(hello)
                while plain.recv(1024):
                    pass
    assert [line for line in platform.logs if not isinstance(json.loads(line), dict)] == []


def test_a_certificate_that_is_none_ends_the_start(tmp_path: Path, tenants_database: Urls) -> None:
    certificate, key = make_certificate(tmp_path)
    certificate.write_text("not a certificate")
    files = {"TLS_CERTIFICATE_FILE": str(certificate), "TLS_KEY_FILE": str(key)}
    settings = {"DATABASE_URL": tenants_database.login.reveal()} | files
    done = run_command(environment(tmp_path / "data", settings), "serve")
    assert (done.returncode, "TLS_CERTIFICATE_FILE" in done.stderr) == (1, True)


def test_a_taken_port_ends_the_start(tmp_path: Path, tenants_database: Urls) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = {
            "DATABASE_URL": tenants_database.login.reveal(),
            "GRPC_PORT": str(taken.getsockname()[1]),
        }
        done = run_command(environment(tmp_path / "data", settings), "serve")
    assert (done.returncode, "TRADING_INTENTS_GRPC_PORT" in done.stderr) == (1, True)
