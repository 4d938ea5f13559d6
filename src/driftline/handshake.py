"""Why a broker does not let us in, in words with a remedy: asked before a secured connection, and after a
plain one failed.

Kafka clients tell a wrong password, a certificate that nobody vouches for and a broker that is down with
the same words ("unable to bootstrap"), some of them for ever. So the first steps of a connection are done
once more, plainly: TCP, TLS, and the two requests of a login (``SaslHandshake``, ``SaslAuthenticate``).
Nothing is sent but these, and no secret before TLS has checked the broker's name. A refusal is only called
one where the other side said so; what merely does not answer is away.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator

import msgspec

from driftline.connection import KafkaSettings, ssl_context
from driftline.errors import Refused, Unavailable

TIMEOUT_S = 3.0
_SASL_HANDSHAKE, _SASL_AUTHENTICATE = 17, 36
_UNSUPPORTED_MECHANISM, _NO_LOGIN_HERE = 33, 34
_ANSWER_BYTES_MAX = 1 << 20
_OTHER_HOST = (62, 64)
"""OpenSSL: the certificate names another host, another address."""
_OUT_OF_DATE = (9, 10)


class _Hung(OSError):
    """The other side ended the connection, or said something that is not Kafka."""


def let_in(settings: KafkaSettings, *, timeout_s: float = TIMEOUT_S) -> KafkaSettings:
    """Before a client connects: the settings, with only a server that answers where there is TLS or a login.

    kafka-python begins with any of the servers, and waits for ever for a TLS handshake that one of them does
    not answer (a frozen broker, a dead host behind a proxy). Without TLS and login it is enough that one of
    them takes a connection: then a client's own time limits hold, and one that failed asks :func:`refusal`.

    Raises:
        Refused: none lets us in, for the reason that one of them gave.
        Unavailable: none answers.
    """
    refused: Refused | None = None
    silent: list[str] = []
    plain = settings.security_protocol == "PLAINTEXT"
    for server, error in _greetings(settings, timeout_s, _touch if plain else _greet):
        if error is None and plain:
            return settings
        if error is None:
            return msgspec.structs.replace(settings, bootstrap=server)
        if isinstance(error, Refused):
            refused = refused or error
        else:
            silent.append(f"{server}: {getattr(error, 'strerror', None) or error or type(error).__name__}")
    raise refused or Unavailable(
        f"no broker answers at {'; '.join(silent) or 'no address'} (DRIFTLINE_BOOTSTRAP or --bootstrap names "
        "another one; `driftline broker` starts one for a first look)"
    )


def refusal(settings: KafkaSettings, *, timeout_s: float = TIMEOUT_S) -> Refused | None:
    """Why none of the brokers lets us in; None if one does, or if all are merely away.

    Takes at most about ``timeout_s``, however many servers there are.
    """
    found: Refused | None = None
    for _, error in _greetings(settings, timeout_s, _greet):
        if error is None:
            return None
        if isinstance(error, Refused):
            found = found or error
    return found


def _greetings(
    settings: KafkaSettings, timeout_s: float, greet: Callable[[KafkaSettings, str, float], None]
) -> Iterator[tuple[str, Exception | None]]:
    """Each server, and what it answered; those that come later get an equal part of the time."""
    end_s = time.monotonic() + timeout_s
    servers = settings.servers
    for at, server in enumerate(servers):
        now_s = time.monotonic()
        try:
            greet(settings, server, now_s + max(0.05, (end_s - now_s) / (len(servers) - at)))
        except (Refused, OSError, ValueError, LookupError, struct.error) as error:
            yield server, error  # refused, not there, or not Kafka
        except ImportError:  # a kafka-python that keeps its logins elsewhere: let it try by itself
            yield server, None
        else:
            yield server, None


def _touch(_: KafkaSettings, server: str, end_s: float) -> None:
    """A connection and nothing else. Raises OSError if nobody takes it."""
    with _connected(server, end_s):
        return


def _greet(settings: KafkaSettings, server: str, end_s: float) -> None:
    """The first steps of a connection. Raises Refused, or OSError if nothing (sensible) answers."""
    context = ssl_context(settings)
    try:
        with _connected(server, end_s) as plain, _wrapped(plain, context, server) as link:
            _log_in(_Link(link, end_s), settings)
    except ssl.SSLError as error:
        raise _tls_refusal(settings, server, error, end_s) or error from None
    except OSError as error:
        raise _other_protocol(settings, server, end_s) or error from None


@contextlib.contextmanager
def _connected(server: str, end_s: float) -> Iterator[socket.socket]:
    timeout_s = max(0.05, end_s - time.monotonic())
    with socket.create_connection(_address(server), timeout=timeout_s) as link:
        yield link


def _address(server: str) -> tuple[str, int]:
    """Host and port, as kafka-python reads them. Raises ValueError for a port that is no number.

    >>> _address("PLAINTEXT://[::1]:9093"), _address("SSL://k1"), _address("[::1]")
    (('::1', 9093), ('k1', 9092), ('::1', 9092))
    """
    named = server.rpartition("://")[2]
    host, colon, port = named.rpartition(":")
    if not colon or port.endswith("]"):
        host, port = named, "9092"
    return host.strip("[]"), int(port)


@contextlib.contextmanager
def _wrapped(plain: socket.socket, context: ssl.SSLContext | None, server: str) -> Iterator[socket.socket]:
    if context is None:
        yield plain
        return
    with context.wrap_socket(plain, server_hostname=_address(server)[0]) as link:
        yield link


class _Link:
    """A connection whose every wait ends by the same time, however slowly the other side goes on talking."""

    def __init__(self, link: socket.socket, end_s: float) -> None:
        self._link, self._end_s = link, end_s

    def send(self, data: bytes) -> None:
        self._within()
        self._link.sendall(data)

    def read(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            self._within()
            part = self._link.recv(size - len(found))
            if not part:
                raise _Hung("the connection was closed")
            found += part
        return found

    def _within(self) -> None:
        left_s = self._end_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        self._link.settimeout(left_s)


def _log_in(link: _Link, settings: KafkaSettings) -> None:
    """Asks for a login: what the broker offers, then user and password."""
    wanted = settings.sasl_mechanism or ""
    code, offered = _ask_for_login(link, wanted)
    protocol = settings.security_protocol
    if not wanted:
        if code == _UNSUPPORTED_MECHANISM and offered:  # without an offer it has no login (the embedded one)
            with_login = "SASL_SSL" if protocol == "SSL" else "SASL_PLAINTEXT"
            remedy = (
                f"the broker asks for a login there: write {with_login}, "
                f"with kafka.sasl_mechanism (it offers {offered}), sasl_username and sasl_password"
            )
            raise Refused("kafka.security_protocol", protocol, remedy)
        return
    if code == _NO_LOGIN_HERE:
        remedy = (
            f"the broker has no login on that port: write {'SSL' if 'SSL' in protocol[5:] else 'PLAINTEXT'}"
        )
        raise Refused("kafka.security_protocol", protocol, f"{remedy}, or name the port that has one")
    if code == _UNSUPPORTED_MECHANISM:
        raise Refused("kafka.sasl_mechanism", wanted, f"the broker offers {offered or 'nothing'}")
    _prove(link, settings)


def _ask_for_login(link: _Link, mechanism: str) -> tuple[int, str]:
    """Error code and offered mechanisms of a SaslHandshake, "" if none."""
    answer = _request(link, _SASL_HANDSHAKE, 1, struct.pack(">h", len(mechanism)) + mechanism.encode())
    code, count = struct.unpack_from(">hi", answer)
    at, names = 6, []
    for _ in range(max(0, count)):
        (length,) = struct.unpack_from(">h", answer, at)
        names.append(answer[at + 2 : at + 2 + length].decode(errors="replace"))
        at += 2 + length
    return code, ", ".join(names)


def _prove(link: _Link, settings: KafkaSettings) -> None:
    """User and password, in as many turns as the mechanism takes."""
    from kafka.net.sasl import get_sasl_mechanism

    mechanism = get_sasl_mechanism(settings.sasl_mechanism)(
        sasl_mechanism=settings.sasl_mechanism,
        sasl_plain_username=settings.sasl_username,
        sasl_plain_password=settings.sasl_password,
        security_protocol="SASL_SSL",  # so that it does not warn; the user chose
    )
    while not mechanism.is_done():
        token = mechanism.auth_bytes()
        answer = _request(link, _SASL_AUTHENTICATE, 0, struct.pack(">i", len(token)) + token)
        code, length = struct.unpack_from(">hh", answer)
        said = answer[4 : 4 + max(0, length)]
        if code:
            raise _wrong_password(settings, said.decode(errors="replace"))
        at = 4 + max(0, length)
        (size,) = struct.unpack_from(">i", answer, at)
        try:
            mechanism.receive(answer[at + 4 : at + 4 + max(0, size)])
        except ValueError:  # the broker's own proof is wrong: it does not know the password either
            raise _wrong_password(settings, "the broker could not prove that it knows the password") from None


def _wrong_password(settings: KafkaSettings, said: str) -> Refused:
    remedy = (
        f"the broker refuses user {settings.sasl_username!r} by {settings.sasl_mechanism} ({said[:200]}): "
        "mend kafka.sasl_username, or the password (DRIFTLINE_KAFKA__SASL_PASSWORD, or the file of "
        "kafka.sasl_password_file)"
    )
    return Refused("kafka.sasl_password", "***", remedy)


def _request(link: _Link, key: int, version: int, body: bytes) -> bytes:
    """One request and its answer, without the correlation id."""
    client = b"driftline-handshake"
    request = struct.pack(">hhih", key, version, 1, len(client)) + client + body
    link.send(struct.pack(">i", len(request)) + request)
    (size,) = struct.unpack(">i", link.read(4))
    if not 4 <= size <= _ANSWER_BYTES_MAX:
        raise _Hung("that is not Kafka")
    return link.read(size)[4:]


def _tls_refusal(settings: KafkaSettings, server: str, error: ssl.SSLError, end_s: float) -> Refused | None:
    """What a failed TLS handshake says about the settings."""
    if isinstance(error, ssl.SSLCertVerificationError):
        said = error.verify_message.rstrip(".")
        if error.verify_code in _OTHER_HOST:
            remedy = f"{said}: write a name that the broker's certificate has, or give it one for this name"
            return Refused("kafka.bootstrap", server, remedy)
        if error.verify_code in _OUT_OF_DATE:
            return Refused("kafka.bootstrap", server, f"{said}: renew the broker's certificate")
        remedy = f"the certificate of {server} is not trusted ({said}): name the PEM file of its authority"
        return Refused("kafka.ssl_cafile", settings.ssl_cafile, remedy)
    reason = str(error.reason or "")
    if "ALERT" in reason and ("CERT" in reason or "UNKNOWN_CA" in reason or "HANDSHAKE_FAILURE" in reason):
        remedy = (
            f"the broker at {server} wants a certificate of an authority that it knows "
            f"({reason.replace('_', ' ').lower()}): set kafka.ssl_certfile and kafka.ssl_keyfile"
        )
        return Refused("kafka.ssl_certfile", settings.ssl_certfile, remedy)
    return _other_protocol(settings, server, end_s)


def _other_protocol(settings: KafkaSettings, server: str, end_s: float) -> Refused | None:
    """Whether the port speaks TLS where the settings say it does not, or the other way round."""
    protocol, tls = settings.security_protocol, "SSL" in settings.security_protocol.split("_")
    with contextlib.suppress(OSError, ValueError, struct.error), _connected(server, end_s) as link:
        if tls:
            _ask_for_login(_Link(link, end_s), "")
            remedy = (
                f"{server} speaks no TLS: write {protocol.replace('SSL', 'PLAINTEXT')}, or name its TLS port"
            )
        else:
            anyone = ssl.SSLContext(
                ssl.PROTOCOL_TLS_CLIENT
            )  # only to hear whether it is TLS; nothing is sent
            anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
            anyone.wrap_socket(link).close()
            remedy = (
                f"{server} speaks TLS: write {protocol.replace('PLAINTEXT', 'SSL')}, or name its plain port"
            )
        return Refused("kafka.security_protocol", protocol, remedy)
    return None
