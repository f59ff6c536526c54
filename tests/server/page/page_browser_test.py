#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The page in headless Chromium, by a person's keys: a live session, each picture, a connection that breaks and comes
back, a browser without WebGL2, and the shader's arithmetic; and, by answers that a test writes, states that a server is
seldom in. INTRAWARP_PAGE_PICTURES names a folder for screenshots."""
import os
import shutil
import sys
import tempfile
import time
import unittest

from page_process import Server, load, wait_for_session
from scripted_page import ScriptedPage, answered, session

if not shutil.which("chromium") or not shutil.which("chromedriver"):
    print("Chromium and its driver are not installed")
    sys.exit(77)

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

PICTURES = os.environ.get("INTRAWARP_PAGE_PICTURES")
ANSWERED = {"OK", "REVIEW", "LATE", "STALE", "NO ANSWER"}

# The largest difference, in grey levels, between what the shader reads of the warped image and the same in float64.
SHADER_ERROR = """
const done = arguments[0];
(async () => {
  const {Warp} = await import('/warp.js');
  const {boxOf, imageAt, mapPoint} = await import('/grid.js');
  const {layOut, pointAt} = await import('/planes.js');
  const page = window.intrawarpPage;
  const {image, field} = page.picture;
  const images = {[image.role]: image, [page.reference.role]: page.reference};
  const canvas = document.createElement('canvas');
  [canvas.width, canvas.height] = [360, 200];
  const warp = Warp.create(canvas);
  const places = layOut(boxOf(images.fixed.grid), page.look.cross, canvas.width, canvas.height);
  warp.draw({...images, field, error: null, mode: 1}, places, true);
  const gl = warp.gl, bytes = new Uint8Array(4 * canvas.width * canvas.height);
  gl.readPixels(0, 0, canvas.width, canvas.height, gl.RGBA, gl.UNSIGNED_BYTE, bytes);
  let worst = 0, sum = 0, count = 0;
  for (const place of places) {
    for (let y = place.y; y < place.y + place.height; y += 3) {
      for (let x = place.x; x < place.x + place.width; x += 3) {
        const at = 4 * ((canvas.height - 1 - y) * canvas.width + x);
        if (bytes[at + 2] !== 255) continue;
        const point = pointAt(place, x + 0.5, y + 0.5);
        const to = mapPoint(field, point);
        const exact = to && imageAt(images.moving, to);
        if (exact === null || Number.isNaN(exact)) continue;
        const shader = images.moving.slope * (bytes[at] * 256 + bytes[at + 1] - 32768) + images.moving.intercept;
        const error = Math.abs(shader - exact);
        worst = Math.max(worst, error); sum += error; ++count;
      }
    }
  }
  done({worst, mean: sum / count, count, step: images.moving.slope});
})().catch((error) => done({failure: String(error)}));
"""


# WCAG's contrast of each element that has text of its own with the nearest background behind it; the canvases aside.
CONTRASTS = """
const luminance = (rgb) => rgb.slice(0, 3).map((c) => c / 255)
  .map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
  .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
const numbers = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
const behind = (element) => {
  for (let at = element; at; at = at.parentElement) {
    const back = numbers(getComputedStyle(at).backgroundColor);
    if (back.length === 3 || back[3] > 0.99) return back;
  }
  return [255, 255, 255];
};
return [...document.querySelectorAll('body *')].filter((e) => e.checkVisibility() && !e.closest('#view, .hidden, dialog') &&
  [...e.childNodes].some((n) => n.nodeType === Node.TEXT_NODE && n.textContent.trim())).map((e) => {
  const [a, b] = [luminance(numbers(getComputedStyle(e).color)), luminance(behind(e))].sort((x, y) => y - x);
  return {text: e.textContent.trim().slice(0, 30), contrast: (a + 0.05) / (b + 0.05)};
});
"""

# The cells of the tables that stick out of their part of the page or of the window, or whose text does.
CUT_CELLS = """
return [...document.querySelectorAll('#engineer th, #engineer td')].filter((cell) => {
  const right = cell.getBoundingClientRect().right;
  const section = cell.closest('section').getBoundingClientRect().right;
  return right > section + 0.5 || right > innerWidth + 0.5 || cell.scrollWidth > cell.clientWidth;
}).map((cell) => cell.textContent);
"""
# How far the lowest part of the page reaches below the footer's upper edge.
HIDDEN_BELOW = """
const lowest = Math.max(...[...document.querySelectorAll('#engineer > section')].map((e) => e.getBoundingClientRect().bottom));
return lowest - document.querySelector('footer').getBoundingClientRect().top;
"""
# Counts the planes of the server that have come, and how many of them were given back.
COUNT_BITMAPS = """
window.bitmaps = {made: 0, closed: 0};
const make = window.createImageBitmap;
window.createImageBitmap = (...from) => make(...from).then((bitmap) => { ++window.bitmaps.made; return bitmap; });
const close = ImageBitmap.prototype.close;
ImageBitmap.prototype.close = function() { ++window.bitmaps.closed; close.call(this); };
"""


def browser(width=1920, height=1080, *flags):
    options = Options()
    for flag in ["--headless=new", "--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--disable-quic",
                 "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
                 "--hide-scrollbars", f"--user-data-dir={tempfile.mkdtemp()}", f"--window-size={width},{height}", *flags]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(service=Service(shutil.which("chromedriver")), options=options)
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                           {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})
    driver.set_script_timeout(120)
    return driver


class Viewer(unittest.TestCase):
    """A browser, and what its person does. The classes below bring `server` and `driver`."""

    def open(self, query=""):
        self.driver.get(f"{self.server.page}/{query}")

    def word(self):
        return self.driver.find_element(By.ID, "word").text

    def wait(self, what, condition, seconds=60):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if condition():
                return
            time.sleep(0.2)
        self.fail(f"{what}: the page says {self.word()}")

    def drawn(self):
        return self.driver.execute_script("return intrawarpPage.counts.drawn")

    def press(self, *keys):
        self.driver.find_element(By.TAG_NAME, "body").send_keys(*keys)

    def shoot(self, name):
        if PICTURES:
            self.driver.save_screenshot(f"{PICTURES}/{name}.png")


class Page(Viewer):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.client = load(cls.server, size=48)
        wait_for_session(cls.server)
        cls.driver = browser()

    @classmethod
    def tearDownClass(cls):
        cls.driver.quit()
        cls.client.terminate()
        cls.client.wait()
        cls.server.stop()

    def test_1_shows_a_live_session(self):
        self.open()
        self.wait("a picture", lambda: self.drawn() > 0)
        self.wait("a verdict", lambda: self.word() in ANSWERED)
        counts = self.driver.execute_script("return intrawarpPage.counts")
        print(f"the first picture was there after {counts['firstPicture']:.0f} ms")
        self.assertNotEqual(self.driver.find_element(By.ID, "age").text, "-")
        self.assertIn("Not for diagnosis", self.driver.find_element(By.TAG_NAME, "footer").text)
        self.assertIn("Frame", self.driver.find_element(By.ID, "view").get_attribute("aria-label"))
        self.assertTrue(self.driver.find_element(By.ID, "spoken").text or self.driver.execute_script(
            "return document.getElementById('spoken').textContent"))
        self.shoot("live")

    def test_2_obeys_keys(self):
        self.open()
        self.wait("a picture", lambda: self.drawn() > 0)
        for key in "1234567":
            before = self.drawn()
            self.press(key)
            self.wait(f"picture {key}", lambda: self.drawn() > before)
            self.assertEqual(self.driver.find_element(By.CSS_SELECTOR, "#modes [aria-checked=true] kbd").text, key)
            self.shoot(f"mode{key}")
        cross = lambda: self.driver.execute_script("return intrawarpPage.look.cross")
        before = cross()
        self.press(Keys.ARROW_RIGHT)
        self.press(Keys.PAGE_UP)
        after = cross()
        self.assertGreater(after[0], before[0])
        self.assertGreater(after[2], before[2])
        self.press("f")
        self.assertFalse(self.driver.find_element(By.ID, "engineer").is_displayed())
        self.shoot("far")
        self.press("f")
        self.press("?")
        self.assertTrue(self.driver.find_element(By.ID, "help").is_displayed())
        self.press(Keys.ESCAPE)

    def test_3_the_shader_computes_what_float64_does(self):
        self.open()
        self.wait("a picture", lambda: self.drawn() > 0)
        found = self.driver.execute_async_script(SHADER_ERROR)
        self.assertNotIn("failure", found)
        print(f"shader and float64 differ by {found['mean']:.3f} grey levels, at most {found['worst']:.3f}, at {found['count']} pixels")
        self.assertGreater(found["count"], 500)
        self.assertLess(found["worst"], 1.0 * max(found["step"], 1) + 0.5)

    def test_4_without_webgl_the_server_draws(self):
        self.open("?png=1")
        self.wait("a plane", lambda: self.drawn() > 0)
        ink = self.driver.execute_script(
            "const c = document.getElementById('pixels'); const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
            "let n = 0; for (let i = 0; i < d.length; i += 4) n += d[i] > 40; return n")
        self.assertGreater(ink, 10000)
        self.shoot("png")

    def test_4a_the_servers_planes_are_given_back(self):
        script = self.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": COUNT_BITMAPS})
        try:
            self.open("?png=1")
            self.wait("planes", lambda: self.drawn() > 3)
        finally:
            self.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)
        made, closed = self.driver.execute_script("return [bitmaps.made, bitmaps.closed]")
        # Three at most are under way.
        self.assertGreater(made, 9)
        self.assertLessEqual(made - closed, 3)

    def test_5_nothing_comes_from_outside_and_nothing_fails(self):
        self.open()
        self.wait("a picture", lambda: self.drawn() > 0)
        names = self.driver.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
        self.assertTrue(all(name.startswith(self.server.page) for name in names), names)
        bad = [line["message"] for line in self.driver.get_log("browser") if "Content Security" in line["message"] or "Uncaught" in line["message"]]
        self.assertEqual(bad, [])

    def told(self):
        """What a screen reader is given: (role, name) of each node that is not ignored, and the live regions' texts."""
        nodes = self.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        text = lambda node, key: str(node.get(key, {}).get("value", ""))
        return [(text(node, "role"), text(node, "name")) for node in nodes if not node["ignored"]]

    def test_5a_a_screen_reader_is_told_what_the_eye_sees(self):
        self.open()
        self.wait("a picture", lambda: self.drawn() > 0)
        self.wait("a verdict", lambda: self.word() in ANSWERED)
        nodes = self.told()
        controls = [node for node in nodes if node[0] in {"button", "combobox", "radio", "radiogroup", "textbox", "slider"}]
        self.assertGreater(len(controls), 8)
        self.assertEqual([role for role, name in controls if not name], [])
        self.assertIn(("heading", self.word()), nodes)
        pictures = [name for role, name in nodes if role in {"image", "img"}]
        self.assertTrue(any("Frame" in name for name in pictures), pictures)
        spoken = self.driver.find_element(By.ID, "spoken").get_attribute("textContent")
        self.assertIn("status", [role for role, _ in nodes])
        self.assertTrue(spoken.strip())
        print("a screen reader is told:", spoken, "|", "; ".join(f"{role} {name}" for role, name in controls + [
            node for node in nodes if node[0] in {"image", "img", "heading"}]))

    def test_5b_the_tab_key_reaches_every_control_in_order(self):
        self.open()
        self.wait("a picture", lambda: self.drawn() > 0)
        wanted = self.driver.execute_script(
            "return [...document.querySelectorAll('select, button, input, [tabindex=\"0\"]')]"
            ".filter((e) => e.checkVisibility() && !e.closest('dialog') && e.tabIndex >= 0).map((e) => e.id || e.textContent.trim())")
        self.driver.execute_script("document.activeElement.blur()")
        reached = []
        for _ in range(len(wanted)):
            self.press(Keys.TAB) if not reached else self.driver.switch_to.active_element.send_keys(Keys.TAB)
            reached.append(self.driver.execute_script(
                "return document.activeElement.id || document.activeElement.textContent.trim()"))
        self.assertEqual(reached, wanted)

    def test_5c_every_text_can_be_read_in_the_dark(self):
        self.open()
        self.wait("a verdict", lambda: self.word() in ANSWERED)
        found = self.driver.execute_script(CONTRASTS)
        self.assertGreater(len(found), 20)
        print(f"contrast of {len(found)} texts: at least {min(each['contrast'] for each in found):.1f}")
        self.assertEqual([each for each in found if each["contrast"] < 4.5], [])

    def test_6_a_session_that_ends_is_not_shown_as_live(self):
        self.open()
        self.wait("a picture", lambda: self.drawn() > 0)
        self.client.terminate()
        self.client.wait()
        self.wait("the end", lambda: self.word() in {"SESSION ENDED", "STALE"}, 20)
        self.assertIn("old", self.driver.find_element(By.ID, "view").get_attribute("class"))
        self.shoot("ended")

    def test_7_a_connection_that_breaks_comes_back(self):
        self.open()
        self.wait("the state", lambda: self.word() == "NO SESSION" or self.word() in ANSWERED)
        self.server.stop()
        self.wait("the break", lambda: self.word() == "NO CONNECTION", 20)
        self.shoot("broken")
        type(self).server = Server(page=self.server.address)
        self.wait("its coming back", lambda: self.word() == "NO SESSION", 30)
        self.shoot("empty")


class Scripted(Viewer):
    @classmethod
    def setUpClass(cls):
        cls.driver = browser()

    @classmethod
    def tearDownClass(cls):
        cls.driver.quit()

    def setUp(self):
        self.server = ScriptedPage()
        self.addCleanup(self.server.stop)
        self.addCleanup(self.driver.get, "about:blank")

    def text(self, name):
        return self.driver.find_element(By.ID, name).text

    def judged(self, **known):
        """What the page says of what is known of a session."""
        known = {"refused": 0, "connected": True, "wanted": "one", "frame": None, "age": None, "failing": 0, "missing": [], **known}
        known["state"] = {"devices": self.server.devices}
        return self.driver.execute_async_script(
            "const done = arguments[1]; import('/condition.js').then((m) => done(m.judge(arguments[0])))", known)

    def test_a_session_that_ends_leaves_no_frames_behind(self):
        one, two = session("one", frames=[answered(1), answered(2)]), session("two", frames=[answered(1)])
        self.server.sessions = [one, two]
        kept = lambda: self.driver.execute_script("return [...intrawarpPage.known.frames].map(([id, list]) => [id, list.length])")
        self.open()
        self.wait("the frames of both", lambda: kept() == [["one", 2], ["two", 1]])
        self.wait("a picture", lambda: self.drawn() > 0)
        self.server.sessions = [two]
        self.wait("the end", lambda: self.word() == "SESSION ENDED")
        self.assertEqual(kept(), [["two", 1]])
        two["frames"].append(answered(2))
        self.wait("a frame of the other one", lambda: kept() == [["two", 2]])

    def test_long_latencies_are_seconds(self):
        self.server.sessions = [session("one", frames=[answered(1, 9999.4)], p50_ms=9999.4, p99_ms=12345.0)]
        self.server.latency_ms = 9999.4
        row = lambda: self.driver.execute_script("return [...document.querySelectorAll('#sessions td')].map((e) => e.textContent)")[-2:]
        self.open()
        self.wait("a short one", lambda: self.text("latency") == "9999 ms")
        self.assertEqual(row(), ["9999 ms", "12.3 s"])
        self.assertEqual(self.text("phases"), "Frame 1: stage 8999.5, answer 999.9 ms")
        self.server.latency_ms = 10000.0
        self.server.sessions[0]["frames"].append(answered(2, 12345.0))
        self.wait("a long one", lambda: self.text("latency") == "10.0 s")
        self.wait("its phases", lambda: self.text("phases") == "Frame 2: stage 11.1, answer 1.2 s")
        self.assertIn("took 12.3 s of 24.7 s", self.driver.find_element(By.ID, "chart").get_attribute("aria-label"))

    def test_states_of_a_session_are_told_apart(self):
        self.open()
        picture = {"frame": {"fate": "ok", "verdict": "ok", "reasons": [], "latency_ms": 50}, "age": 0.1}
        review = {"frame": {"fate": "ok", "verdict": "review", "reasons": [{"cause": "it folds"}], "latency_ms": 50}, "age": 0.1}
        unconnected = "the client is not connected (detached)"
        no_frames = {"part": "frames", "status": 503, "why": "no room"}
        no_image = {"part": "resident image", "status": 503, "why": "no disk"}
        denied = {"part": "frames", "status": 403, "why": "no role"}
        for known, word, why in [
                ({"session": session("one")}, "NO FRAME", "The session waits for its first frame"),
                ({"session": session("one", "OPENING")}, "NO FRAME", "The session is opening"),
                ({"session": session("one", "DETACHED")}, "NO FRAME", unconnected),
                ({"session": session("one"), **picture}, "OK", ""),
                ({"session": session("one", "OPENING"), **picture}, "OK", ""),
                ({"session": session("one", "DETACHED"), **picture}, "OK", unconnected),
                ({"session": session("one", "DETACHED"), **review}, "REVIEW", "it folds; " + unconnected),
                ({"session": session("one"), "missing": [no_frames]}, "NO FRAME", "the server refuses the frames: no room"),
                ({"session": session("one"), "missing": [no_image], **review}, "REVIEW",
                 "it folds; the server refuses the resident image: no disk"),
                ({"session": session("one"), "missing": [denied], **picture}, "NO PERMISSION", "the server refuses the frames: no role"),
                ({"session": session("one", "CLOSED"), **picture}, "SESSION ENDED", "one is closed"),
                ({"session": None, **picture}, "SESSION ENDED", "one is closed"),
                ({"session": None}, "NO SESSION", "one is not open"),
                ({"session": None, "wanted": ""}, "NO SESSION", "The page shows a session as soon as one is open")]:
            with self.subTest(session=known["session"] and known["session"]["state"], word=word, why=why):
                said = self.judged(**known)
                self.assertEqual((said["word"], said["why"]), (word, why))

    def test_a_session_that_opens_is_not_called_unconnected(self):
        self.server.pictures = False
        self.server.sessions = [session("one", "OPENING")]
        self.open()
        self.wait("the opening", lambda: self.word() == "NO FRAME")
        self.assertEqual(self.text("why"), "The session is opening")
        self.server.sessions = [session("one", "DETACHED")]
        self.wait("the leaving", lambda: "not connected" in self.text("why"))

    def test_a_refused_stream_tells_why_and_comes_back(self):
        self.server.sessions = [session("one")]
        self.server.refusals = {"frames": (503, "the audit log cannot be written\n")}
        self.open()
        self.wait("the reason", lambda: self.text("why") == "the server refuses the frames: the audit log cannot be written")
        self.assertEqual(self.word(), "NO FRAME")
        self.server.refusals = {}
        self.wait("its picture", lambda: self.drawn() > 0 and self.text("why") == "")
        self.server.refusals = {"reference": (503, "no room\n")}
        self.open()
        self.wait("the next reason", lambda: self.text("why") == "the server refuses the resident image: no room")
        self.server.refusals = {}
        self.wait("a picture", lambda: self.drawn() > 0 and self.text("why") == "")
        self.server.refusals = {"frames": (403, "the role frame or admin sees sessions\n")}
        self.open()
        self.wait("no permission", lambda: self.word() == "NO PERMISSION")
        self.assertEqual(self.text("why"), "the server refuses the frames: the role frame or admin sees sessions")

    def test_sessions_of_two_owners_with_one_id_are_two(self):
        number = lambda: self.driver.execute_script("return intrawarpPage.picture?.number")
        frames = lambda: self.driver.execute_script("return [...intrawarpPage.known.frames].map(([key, list]) => [key, list.length])")
        names = lambda: self.driver.execute_script(
            "return [...document.querySelectorAll('#sessions td:first-child')].map((e) => e.textContent)")
        chosen = lambda: self.driver.execute_script("return document.getElementById('session').selectedOptions[0].text")
        self.server.caller = "root"
        self.server.sessions = [session("liver", owner="or3", picture=30, frames=[answered(30)]),
                                session("liver", owner="or5", picture=50, frames=[answered(50), answered(51)]),
                                session("knee", owner="or5", picture=70)]
        self.open()
        self.wait("the first one's picture", lambda: number() == 30)
        self.assertEqual(frames(), [["liver/or3", 1], ["liver/or5", 2], ["knee/or5", 0]])
        self.assertEqual(names(), ["liver (or3)", "liver (or5)", "knee"])
        self.press("s")
        self.wait("the second one's picture", lambda: number() == 50)
        self.assertEqual(chosen(), "liver (or5)")
        self.server.sessions = self.server.sessions[:1] + self.server.sessions[2:]
        self.wait("its end", lambda: self.word() == "SESSION ENDED")
        self.assertEqual(self.text("why"), "liver (or5) is closed")
        self.assertEqual(number(), 50)
        self.open("?session=liver/or3")
        self.wait("the one that the address names", lambda: number() == 30 and chosen() == "liver")
        self.server.caller = "or5"
        self.server.sessions.append(session("liver", owner="or5", picture=90))
        self.open("?session=liver")
        self.wait("the own one", lambda: number() == 90)

    def test_another_token_brings_the_pictures_back(self):
        def sign_in():
            self.wait("the question", lambda: self.driver.find_element(By.ID, "sign-in").is_displayed())
            self.driver.find_element(By.ID, "token").send_keys(self.server.token + Keys.ENTER)
        received = lambda: self.driver.execute_script("return intrawarpPage.counts.received")
        self.server.sessions = [session("one")]
        self.server.token = "first"
        self.open()
        sign_in()
        self.wait("a picture", lambda: received() > 0)
        self.server.token = "second"
        sign_in()
        before = received()
        self.wait("another picture", lambda: received() > before, 20)

    def test_every_column_can_be_reached(self):
        self.server.devices = [{**self.server.devices[0], "name": "cuda:0", "model": "NVIDIA H100 80GB HBM3"}]
        name = "3f2c8a70d1b94e6f8a5b7c9d0e1f2a3b"
        self.server.sessions = [session(name, "DETACHED", [answered(1)], p50_ms=12345.6, p99_ms=123456.7)]
        self.addCleanup(self.resize, 1920, 1080)
        for width, height in [(1000, 800), (1280, 800), (1501, 900), (1920, 1080), (700, 800)]:
            with self.subTest(width=width):
                self.resize(width, height)
                self.open()
                self.wait("the session", lambda: name in self.text("sessions"))
                self.assertEqual(self.driver.execute_script(CUT_CELLS), [])
                self.assertLessEqual(self.driver.execute_script(HIDDEN_BELOW), 0.5)
                self.assertEqual(self.driver.execute_script("return document.documentElement.scrollWidth - innerWidth"), 0)
                self.shoot(f"width{width}")

    def resize(self, width, height):
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                                    {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})


if __name__ == "__main__":
    unittest.main(verbosity=2)
