"""An Apache Kafka with TLS and passwords, and the certificates for it, made anew for each test session.

PLAINTEXT   127.0.0.1, between the broker and itself, and for what a test arranges
SECURE      SASL_SSL with PLAIN and SCRAM-SHA-256: server certificate for 127.0.0.1 only
MUTUAL      SSL: the client must show a certificate of the same authority

Who comes by PLAINTEXT may do all; the others may, too, until :meth:`SecureKafka.deny`.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from driftline.connection import KafkaSettings

USER = "trainer"
PASSWORD = "s3cr3t-Pa55-of-the-test"
KEY_PASSWORD = "k3y-Pa55-of-the-test"

_OVERRIDES = """
listeners=PLAINTEXT://127.0.0.1:{{port}},CONTROLLER://127.0.0.1:{{controller}},\
SECURE://127.0.0.1:{secure},MUTUAL://127.0.0.1:{mutual}
advertised.listeners=PLAINTEXT://127.0.0.1:{{port}},SECURE://127.0.0.1:{secure},MUTUAL://127.0.0.1:{mutual}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL,MUTUAL:SSL
inter.broker.listener.name=PLAINTEXT
ssl.keystore.type=PEM
ssl.keystore.location={folder}/server.pem
ssl.truststore.type=PEM
ssl.truststore.location={folder}/ca.pem
listener.name.mutual.ssl.client.auth=required
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
allow.everyone.if.no.acl.found=true
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256
listener.name.secure.plain.sasl.jaas.config=\
org.apache.kafka.common.security.plain.PlainLoginModule required user_{user}="{password}";
listener.name.secure.scram-sha-256.sasl.jaas.config=\
org.apache.kafka.common.security.scram.ScramLoginModule required;
"""


class Authority:
    """A certificate authority with one server and one client certificate, as PEM files in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.ca, self.other_ca = folder / "ca.pem", folder / "other-ca.pem"
        self.client, self.client_key = folder / "client.crt", folder / "client.key"
        self.locked_key = folder / "client-locked.key"
        self._authority("ca")
        self._authority("other-ca")
        self._certificate("server", "subjectAltName=IP:127.0.0.1")
        self._certificate("client", "extendedKeyUsage=clientAuth")
        whole = (folder / "server.key").read_text() + (folder / "server.crt").read_text()
        (folder / "server.pem").write_text(whole + self.ca.read_text())
        self._openssl(
            "pkcs8", "-topk8", "-v2", "aes256", "-in", "client.key", "-out", self.locked_key.name,
            "-passout", f"pass:{KEY_PASSWORD}",
        )  # fmt: skip

    def _authority(self, name: str) -> None:
        self._openssl(
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
            "-subj", f"/CN=driftline test {name}", "-keyout", f"{name}.key", "-out", f"{name}.pem",
        )  # fmt: skip

    def _certificate(self, name: str, extension: str) -> None:
        self._openssl(
            "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
            "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr",
        )  # fmt: skip
        (self.folder / f"{name}.ext").write_text(extension)
        self._openssl(
            "x509", "-req", "-days", "2", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
            "-CAcreateserial", "-extfile", f"{name}.ext", "-out", f"{name}.crt",
        )  # fmt: skip

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.folder, capture_output=True, check=True)


class SecureKafka:
    """The broker, and settings to reach it."""

    def __init__(self, folder: Path, jvm_kafka: ModuleType) -> None:
        self.authority = Authority(folder)
        self._secure, self._mutual = jvm_kafka.free_port(), jvm_kafka.free_port()
        overrides = _OVERRIDES.format(
            secure=self._secure, mutual=self._mutual, folder=folder, user=USER, password=PASSWORD
        )
        self.broker = jvm_kafka.JvmKafka(overrides=overrides)
        self.broker.start()
        self._add_scram_user()

    def _add_scram_user(self) -> None:
        from kafka.admin import ScramMechanism, UserScramCredentialUpsertion

        entry = UserScramCredentialUpsertion(USER, ScramMechanism.SCRAM_SHA_256, PASSWORD.encode())
        with self._admin() as client:
            client.alter_user_scram_credentials([entry])

    def sasl(self, prefix: str, **changes: Any) -> KafkaSettings:
        """Settings with a password (PLAIN unless changed)."""
        given: dict[str, Any] = {
            "bootstrap": f"127.0.0.1:{self._secure}",
            "prefix": prefix,
            "partitions": 2,
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "PLAIN",
            "sasl_username": USER,
            "sasl_password": PASSWORD,
            "ssl_cafile": str(self.authority.ca),
        }
        return KafkaSettings(**(given | changes))

    def mutual(self, prefix: str, **changes: Any) -> KafkaSettings:
        """Settings with a client certificate."""
        given: dict[str, Any] = {
            "bootstrap": f"127.0.0.1:{self._mutual}",
            "prefix": prefix,
            "partitions": 2,
            "security_protocol": "SSL",
            "ssl_cafile": str(self.authority.ca),
            "ssl_certfile": str(self.authority.client),
            "ssl_keyfile": str(self.authority.client_key),
        }
        return KafkaSettings(**(given | changes))

    def limit(self, prefix: str) -> None:
        """From now on the user may do with topics and groups of this prefix what SECURITY.md asks for, and
        nothing else with the cluster."""
        with self._admin() as client:
            client.create_acls(self._rights(prefix))

    def unlimit(self, prefix: str) -> None:
        """Takes :meth:`limit` back."""
        with self._admin() as client:
            client.delete_acls(self._rights(prefix))

    def deny(self, prefix: str) -> None:
        """From now on the user may do nothing with topics of this prefix."""
        with self._admin() as client:
            client.create_acls([_acl(USER, "ALL", "DENY", "TOPIC", prefix)])

    def allow(self, prefix: str) -> None:
        """Takes :meth:`deny` back."""
        with self._admin() as client:
            client.delete_acls([_acl(USER, "ALL", "DENY", "TOPIC", prefix)])

    @staticmethod
    def _rights(prefix: str) -> list[Any]:
        topics = ("DESCRIBE", "DESCRIBE_CONFIGS", "CREATE", "READ", "WRITE")
        return [
            *(_acl(USER, right, "ALLOW", "TOPIC", prefix) for right in topics),
            _acl(USER, "READ", "ALLOW", "GROUP", prefix),
            _acl("nobody", "ALL", "ALLOW", "CLUSTER", "kafka-cluster"),  # so that only nobody may
        ]

    @contextlib.contextmanager
    def _admin(self) -> Iterator[Any]:
        from kafka.admin import KafkaAdminClient

        client = KafkaAdminClient(bootstrap_servers=self.broker.bootstrap)
        try:
            yield client
        finally:
            client.close()

    def close(self) -> None:
        self.broker.close()


def _acl(user: str, right: str, permission: str, kind: str, name: str) -> Any:
    from kafka.admin import (
        ACL,
        ACLOperation,
        ACLPermissionType,
        ACLResourcePatternType,
        ResourcePattern,
        ResourceType,
    )

    pattern = ACLResourcePatternType.LITERAL if kind == "CLUSTER" else ACLResourcePatternType.PREFIXED
    resource = ResourcePattern(ResourceType[kind], name, pattern)
    return ACL(f"User:{user}", "*", ACLOperation[right], ACLPermissionType[permission], resource)
