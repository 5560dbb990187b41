"""The error says why there is no connection; one that waiting does not help ends the run at once."""

import http.server
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from reward_kit.agent.models.litellm import remote_model
from reward_kit.errors import ModelError, ModelSetupError

CLIENTS = pytest.mark.parametrize("client", ["direct", "litellm"])


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-0123456789abcdef")


@contextmanager
def serving(context: ssl.SSLContext | None = None) -> Iterator[int]:
    """The port of a server; with ``context`` it speaks TLS."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign] # prints nothing
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


def self_signed(folder: Path) -> ssl.SSLContext:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    made = made.not_valid_before(now - timedelta(days=1))
    certificate = made.not_valid_after(now + timedelta(days=1)).sign(key, hashes.SHA256())
    file = folder / "server.pem"
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file.write_bytes(certificate.public_bytes(pem) + private)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context


async def fault_of(client: str, url: str) -> ModelError:
    asked = remote_model("openai/gpt-4o-mini", client=client, model_args={"api_base": url}, retries=0)
    with pytest.raises(ModelError) as caught:
        await asked.complete([{"role": "user", "content": "Hello"}])
    await asked.close()
    return caught.value


@CLIENTS
@pytest.mark.parametrize(
    ("spoken", "told", "remedy"),
    [
        (True, "certificate cannot be verified: self-signed certificate", "SSL_CERT_FILE"),
        (False, "it does not speak TLS there", "http://"),
    ],
)
async def test_tls_without_trust_or_where_none_is_spoken_ends_the_run(
    client: str, tmp_path: Path, spoken: bool, told: str, remedy: str
) -> None:
    with serving(self_signed(tmp_path) if spoken else None) as port:
        fault = await fault_of(client, f"https://127.0.0.1:{port}/v1")
    assert isinstance(fault, ModelSetupError)
    assert told in fault.fault.replace("self s", "self-s")
    assert remedy in (fault.remedy or "")


@CLIENTS
async def test_a_refused_connection_may_come_back(client: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
        fault = await fault_of(client, url)
    assert fault.fault == f"cannot connect to {url}: connection refused"
    assert (type(fault), fault.retryable, fault.no_answer) == (ModelError, True, "connection")
