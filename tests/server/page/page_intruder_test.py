#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What strangers and other owners get of the page: nothing, and no way to keep it from others."""
import http.client
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
import unittest

from page_process import CLI, Server, ask, half_open, load, state, token_line, wait_for_session

CROSS_SITE = [{"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}]


class WithoutIdentities(unittest.TestCase):
    def test_requests_of_other_sites_and_names_are_refused(self):
        with Server() as server:
            for headers in CROSS_SITE + [{"Host": "rebound.example"}]:
                self.assertEqual(ask(server, "/api/state", headers=headers)[0], 403, headers)
                self.assertEqual(ask(server, "/", headers=headers)[0], 403, headers)
            self.assertEqual(ask(server, "/api/state", method="POST")[0], 405)
            self.assertEqual(ask(server, "/api/sessions/x/frames", method="PUT")[0], 405)
            self.assertEqual(ask(server, "/api/sessions/x/tip?x=1&y=2&z=3", method="PUT", data=b"x" * 100)[0], 413)
            for path in ["/../etc/passwd", "/%2e%2e/x", "/page.js/", "/api", "/api/sessions//frames", "/api/sessions/a%2fb/frames"]:
                self.assertEqual(ask(server, path)[0], 404, path)

    def test_a_header_without_end_is_cut(self):
        with Server() as server:
            host, port = server.address.split(":")
            connection = socket.create_connection((host, int(port)))
            connection.settimeout(30)
            connection.sendall(b"GET / HTTP/1.1\r\n")
            try:
                for _ in range(200):
                    connection.sendall(b"X: " + b"y" * 1000 + b"\r\n")
                answer = connection.recv(100)
            except OSError:
                answer = b""
            self.assertNotIn(b" 200 ", answer)

    def test_a_thousand_half_open_streams_keep_nobody_out(self):
        with Server() as server:
            state(server)
            before = server.resident_kib()
            connections = []
            for _ in range(1000):
                connections.append(half_open(server.address, "/api/state"))
            begun = time.monotonic()
            state(server)
            waited = time.monotonic() - begun
            time.sleep(12)
            grown = server.resident_kib() - before
            print(f"a viewer waited {waited:.3f} s beside 1000 half-open streams; the server grew by {grown} KiB")
            self.assertLess(waited, 5)
            self.assertLess(grown, 64 << 10)
            for connection in connections:
                connection.close()
            state(server)

    def test_the_memory_of_viewers_who_do_not_read_is_bounded(self):
        with Server() as server:
            client = load(server, size=64)
            try:
                session = wait_for_session(server)["id"]
                slow = [half_open(server.address, f"/api/sessions/{session}/frames") for _ in range(40)]
                time.sleep(8)
                before = server.resident_kib()
                time.sleep(20)
                grown = server.resident_kib() - before
                print(f"beside 40 viewers who do not read the server grew by {grown} KiB in 20 s")
                self.assertLess(grown, 32 << 10)
                self.assertEqual(ask(server, f"/api/sessions/{session}/frames")[0], 200)
                for connection in slow:
                    connection.close()
            finally:
                client.terminate()
                client.wait()


class WithIdentities(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        path = lambda name: os.path.join(cls.folder.name, name)
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
                        "subjectAltName=IP:127.0.0.1", "-keyout", path("key"), "-out", path("cert")], check=True, capture_output=True)
        people = {"owner": ("or3", "frame,stage"), "other": ("or5", "frame"), "stage": ("planning", "stage"), "admin": ("root", "admin")}
        lines = {name: token_line(*who) for name, who in people.items()}
        cls.tokens = {name: token for name, (token, _) in lines.items()}
        with open(path("tokens"), "w") as file:
            file.write("\n".join(line for _, line in lines.values()) + "\n")
        with open(path("owner"), "w") as file:
            file.write(cls.tokens["owner"] + "\n")
        os.chmod(path("owner"), 0o600)
        cls.server = Server(f"--tls_cert={path('cert')}", f"--tls_key={path('key')}", f"--tokens={path('tokens')}")
        cls.client = load(cls.server, f"--tls_ca={path('cert')}", f"--token_file={path('owner')}")

    @classmethod
    def tearDownClass(cls):
        cls.client.terminate()
        cls.client.wait()
        cls.server.stop()
        cls.folder.cleanup()

    def test_no_token_a_wrong_one_and_a_role_that_does_not_suffice(self):
        for path in ["/api/state", "/api/sessions/x/frames", "/api/sessions/x/reference", "/api/sessions/x/planes.png"]:
            self.assertEqual(ask(self.server, path)[0], 401, path)
            self.assertEqual(ask(self.server, path, "wrong")[0], 401, path)
            self.assertEqual(ask(self.server, path, self.tokens["stage"])[0], 403, path)
        self.assertEqual(ask(self.server, "/")[0], 200)  # the files of the page say nothing of the server

    def test_another_owners_session_is_as_one_that_nobody_has(self):
        session = wait_for_session(self.server, self.tokens["owner"])["id"]
        self.assertEqual(state(self.server, self.tokens["other"])["sessions"], [])
        self.assertEqual(state(self.server, self.tokens["admin"])["sessions"][0]["owner"], "or3")
        for what in ["frames", "reference", "planes.png?plane=axial&mode=fixed&x=0&y=0&z=0"]:
            theirs = ask(self.server, f"/api/sessions/{session}/{what}", self.tokens["other"])
            nobodys = ask(self.server, f"/api/sessions/{session[::-1]}/{what}", self.tokens["other"])
            self.assertEqual(theirs[0], 404, what)
            self.assertEqual(theirs[1].replace(session.encode(), b"ID"), nobodys[1].replace(session[::-1].encode(), b"ID"))
        tip = f"/api/sessions/{session}/tip?x=1&y=2&z=3"
        self.assertEqual(ask(self.server, tip, self.tokens["other"], method="PUT")[0], 404)
        self.assertEqual(ask(self.server, tip, self.tokens["owner"], method="PUT")[0], 204)
        self.assertEqual(state(self.server, self.tokens["owner"])["sessions"][0]["tip"]["point"], [1, 2, 3])

    def test_plain_text_gets_no_page(self):
        connection = http.client.HTTPConnection(self.server.address, timeout=10)
        with self.assertRaises((http.client.HTTPException, OSError)):
            connection.request("GET", "/")
            connection.getresponse()


class TwoOwnersWithOneId(unittest.TestCase):
    """Each of two owners has a session "shared"; an admin sees both, and names the owner."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        path = lambda name: os.path.join(self.folder, name)
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
                        "subjectAltName=IP:127.0.0.1", "-keyout", path("key"), "-out", path("cert")], check=True, capture_output=True)
        people = {"or3": "frame,stage", "or5": "frame,stage", "root": "admin"}
        lines = {name: token_line(name, roles) for name, roles in people.items()}
        self.tokens = {name: token for name, (token, _) in lines.items()}
        for name, text in [("tokens", "\n".join(line for _, line in lines.values())), *self.tokens.items()]:
            with open(path(name), "w") as file:
                file.write(text + "\n")
            os.chmod(path(name), 0o600)
        self.server = Server(f"--tls_cert={path('cert')}", f"--tls_key={path('key')}", f"--tokens={path('tokens')}")
        self.addCleanup(lambda: self.server.stop())
        subprocess.run([CLI, "phantom", f"--out={path('pair')}", "--size=24x24x16"], check=True, capture_output=True)
        os.mkdir(path("frames"))
        for number in range(60):
            shutil.copy(path("pair/moving.nii.gz"), path(f"frames/f{number}.nii.gz"))

    def open_session(self, name):
        """Its frames come seldom, so that it stays open while the test looks at it."""
        client = subprocess.Popen(
            [CLI, f"--server={self.server.grpc}", f"--tls_ca={self.folder}/cert", f"--token_file={self.folder}/{name}", "navigate",
             f"--fixed={self.folder}/pair/fixed.nii.gz", f"--frames={self.folder}/frames", "--method=affine", "--rate=0.5",
             "--session=shared"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(client.wait)
        self.addCleanup(client.kill)
        self.assertEqual(wait_for_session(self.server, self.tokens[name])["owner"], name)

    def test_an_admin_tells_them_apart_and_nobody_else_sees_more(self):
        self.open_session("or3")
        self.open_session("or5")
        frames = lambda who, query: ask(self.server, f"/api/sessions/shared/frames{query}", self.tokens[who])
        self.assertEqual(len(state(self.server, self.tokens["root"])["sessions"]), 2)
        self.assertEqual(frames("root", "?owner=or3")[0], 200)
        self.assertEqual(frames("root", "?owner=or5&picture=0")[0], 200)
        self.assertNotEqual(frames("root", "")[0], 200)
        self.assertEqual(frames("root", "?owner=or7")[0], 404)
        for own, other in [("or3", "or5"), ("or5", "or3")]:
            self.assertEqual(frames(own, "")[0], 200)
            self.assertEqual(frames(own, f"?owner={own}")[0], 200)
            self.assertEqual(frames(own, f"?owner={other}"), frames(own, "?owner=nobody"))
            self.assertEqual(frames(own, f"?owner={other}")[0], 404)
        for number, owner in enumerate(["or3", "or5"]):
            tip = f"/api/sessions/shared/tip?x={number}&y=0&z=0&owner={owner}"
            self.assertEqual(ask(self.server, tip, self.tokens["root"], method="PUT")[0], 204)
        self.assertEqual([state(self.server, self.tokens[owner])["sessions"][0]["tip"]["point"][0] for owner in ["or3", "or5"]], [0, 1])


class ChangedCertificate(unittest.TestCase):
    """Certificate and key are replaced while the page is served."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = lambda name: os.path.join(folder.name, name)
        self.make("served", "rsa:2048")
        token, line = token_line("or3", "frame")
        with open(self.path("tokens"), "w") as file:
            file.write(line + "\n")
        self.server = Server(f"--tls_cert={self.path('served.pem')}", f"--tls_key={self.path('served.key')}",
                             f"--tokens={self.path('tokens')}")
        self.addCleanup(lambda: self.server.stop())
        self.host, self.port = self.server.address.split(":")

    def make(self, name, *kind):
        subprocess.run(["openssl", "req", "-x509", "-newkey", *kind, "-nodes", "-days", "2", "-subj", f"/CN={name}", "-addext",
                        "subjectAltName=IP:127.0.0.1", "-keyout", self.path(name + ".key"), "-out", self.path(name + ".pem")],
                       check=True, capture_output=True)

    def text(self, name):
        with open(self.path(name)) as file:
            return file.read()

    def served(self):
        return ssl.get_server_certificate((self.host, int(self.port)))

    def log_lines(self, word):
        with open(f"/proc/{self.server.process.pid}/fd/2") as log:
            return [line for line in log if word in line]

    def log_has(self, word, count=1):
        for _ in range(300):
            if len(self.log_lines(word)) >= count:
                return True
            time.sleep(0.1)
        return False

    def replace(self, name):
        for end in (".key", ".pem"):
            os.rename(self.path(name + end), self.path("served" + end))

    def test_new_handshakes_have_the_new_certificate(self):
        first = self.text("served.pem")
        self.assertEqual(self.served().strip(), first.strip())
        context = ssl.create_default_context(cafile=self.path("served.pem"))
        kept = http.client.HTTPSConnection(self.host, int(self.port), timeout=20, context=context)
        kept.request("GET", "/")
        self.assertEqual(kept.getresponse().read()[:9].lower(), b"<!doctype")
        self.make("next", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
        second = self.text("next.pem")
        self.replace("next")
        for _ in range(300):
            # The connection stays open while the files settle, and after that.
            kept.request("GET", "/")
            self.assertEqual(kept.getresponse().read()[:9].lower(), b"<!doctype")
            if self.served().strip() == second.strip():
                break
            time.sleep(0.1)
        self.assertEqual(self.served().strip(), second.strip())
        verified = ssl.create_default_context(cafile=self.path("served.pem"))
        with socket.create_connection((self.host, int(self.port))) as plain:
            with verified.wrap_socket(plain, server_hostname=self.host) as connection:
                self.assertEqual(connection.getpeercert()["subject"], (((("commonName", "next"),)),))
        kept.close()
        # A broken file leaves the last good one in use.
        with open(self.path("broken"), "w") as file:
            file.write(second[:100])
        os.rename(self.path("broken"), self.path("served.pem"))
        self.assertTrue(self.log_has("event=not_reloaded"))
        self.assertEqual(self.served().strip(), second.strip())

    def test_a_chain_that_only_openssl_takes_leaves_the_page_as_it_was(self):
        first = self.text("served.pem")
        chains = {"a broken second certificate": lambda pem: pem + pem[:200] + pem[-30:], "too long a chain": lambda pem: 17 * pem}
        for number, (what, chain_of) in enumerate(chains.items(), 1):
            with self.subTest(what):
                self.make("next", "rsa:2048")
                chain = chain_of(self.text("next.pem"))
                with open(self.path("next.pem"), "w") as file:
                    file.write(chain)
                self.replace("next")
                # Nobody looks at the page until then.
                self.assertTrue(self.log_has("event=page_not_reloaded", number))
                for _ in range(3):
                    self.assertEqual(self.served().strip(), first.strip())
                self.assertEqual(ask(self.server, "/")[0], 200)
                lines = self.log_lines("event=page_not_reloaded")
                self.assertEqual(len(lines), number)
                self.assertIn("tls_cert", lines[-1])
        self.make("next", "rsa:2048")
        good = self.text("next.pem")
        self.replace("next")
        for _ in range(300):
            if self.served().strip() == good.strip():
                break
            time.sleep(0.1)
        self.assertEqual(self.served().strip(), good.strip())
        self.assertEqual(len(self.log_lines("event=page_not_reloaded")), 2)

    def test_a_chain_is_sent_whole(self):
        self.make("authority", "rsa:2048")
        subprocess.run(["openssl", "req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=leaf", "-keyout", self.path("leaf.key"),
                        "-out", self.path("leaf.csr")], check=True, capture_output=True)
        subprocess.run(["openssl", "x509", "-req", "-in", self.path("leaf.csr"), "-CA", self.path("authority.pem"), "-CAkey",
                        self.path("authority.key"), "-CAcreateserial", "-days", "2", "-out", self.path("leaf.crt")],
                       check=True, capture_output=True)
        with open(self.path("leaf.pem"), "w") as file:
            file.write(self.text("leaf.crt") + self.text("authority.pem"))
        self.replace("leaf")
        for _ in range(300):
            shown = subprocess.run(["openssl", "s_client", "-connect", self.server.address, "-showcerts"], input=b"",
                                   capture_output=True).stdout
            if b"CN = leaf" in shown:
                break
            time.sleep(0.1)
        self.assertEqual(shown.count(b"BEGIN CERTIFICATE"), 2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
