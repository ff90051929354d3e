"""Opens pages of the built site in a headless Chromium and fails where the browser complains.

    browser.py SITE

SITE is served on this machine, since the search reads pages that it finds. Opened are all of the guide and
of the interfaces, one of each other kind. Wrong are errors of the console, exceptions, files that do
not load, pictures without size, an empty menu, and a page that is wider than a window of 400 pixels. Then
the switch must make the front page dark, and the search find what readers look for. Exit status 77, a
skip, where there is no Chromium.
"""
import functools
import http.server
import json
import os
import pathlib
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

import site_check

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
SECONDS = 300  # that an answer may take on a loaded machine
KINDS = ("index.html", "docs/guide/*.html", "c/**/*.html", "python/*.html", "docs/*/README.html", "extras/**/*.html")
WIDTH = 400
STATE = """(async () => {
    do // scripts add pictures after the page is loaded
        await new Promise(done => setTimeout(done, 20));
    while ([...document.images].some(x => !x.complete));
    return {
        pictures: [...document.images].filter(x => !x.naturalWidth).map(x => x.src),
        menu: document.querySelectorAll(".sidebar-tree li").length,
        width: document.documentElement.scrollWidth
    };
})()"""
DARK = """(() => {
    const shade = () => getComputedStyle(document.body).backgroundColor, before = shade();
    const seen = new Set([before]);
    for (let k = 0; k < 3; k++) { // automatic, light, dark
        document.querySelector(".theme-toggle").click();
        seen.add(shade());
    }
    return seen.size;
})()"""
RESULTS = """(async () => {
    const searching = () => document.querySelector("#search-results h2")?.innerText.startsWith("Searching");
    for (let k = 0; k < 3000 && searching(); k++)
        await new Promise(done => setTimeout(done, 20));
    return document.querySelectorAll("#search-results li").length;
})()"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Files of the site, without a line for each."""

    def log_message(self, *_):
        pass


class Browser:
    """A Chromium that is spoken to through two pipes: JSON messages, each with a zero byte behind."""

    def __init__(self, program, folder):
        (read_in, self.to), (self.answers, write_out) = os.pipe(), os.pipe()
        # Chromium reads from descriptor 3 and writes to 4.
        pipes = 'exec 3<&%d 4>&%d; exec "$@"' % (read_in, write_out)
        self.process = subprocess.Popen(
            ["bash", "-c", pipes, "browser", program, "--headless", "--no-sandbox", "--disable-gpu",
             "--disable-dev-shm-usage", "--user-data-dir=%s" % folder, "--remote-debugging-pipe"],
            pass_fds=(read_in, write_out), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(read_in)
        os.close(write_out)
        self.count, self.buffer, self.session, self.events = 0, b"", None, []

    def message(self):
        """The next one."""
        end = time.monotonic() + SECONDS
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.answers], [], [], max(0, end - time.monotonic()))
            piece = os.read(self.answers, 1 << 16) if ready else b""
            if not piece:
                sys.exit("the browser %s" % ("ended" if ready else "does not answer"))
            self.buffer += piece
        text, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(text)

    def call(self, method, **params):
        """What a command answers; events on the way are kept."""
        self.count += 1
        command = {"id": self.count, "method": method, "params": params}
        if self.session:
            command["sessionId"] = self.session
        os.write(self.to, json.dumps(command).encode() + b"\0")
        while True:
            message = self.message()
            if message.get("id") == self.count:
                if "error" in message:
                    sys.exit("the browser refuses %s: %s" % (method, message["error"]))
                return message["result"]
            self.events.append(message)

    def attach(self):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")
        self.call("Emulation.setDeviceMetricsOverride", width=WIDTH, height=800, deviceScaleFactor=1, mobile=False)

    def open(self, address):
        """The state of a loaded page, and what the browser said of it."""
        self.events = []
        self.call("Page.navigate", url=address)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self.message())
        state = self.value(STATE)
        return state, complaints(self.events)

    def value(self, expression):
        """What a script in the page returns."""
        found = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        return found["result"].get("value")

    def close(self):
        self.process.terminate()
        self.process.wait()
        os.close(self.to)
        os.close(self.answers)


def complaints(events):
    """What is wrong by the events of a page."""
    addresses, found = {}, []
    for event in events:
        method, params = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            addresses[params["requestId"]] = params["request"]["url"]
        elif method == "Network.responseReceived" and params["response"]["status"] >= 400:
            if not params["response"]["url"].endswith("/favicon.ico"):  # the browser's own wish
                found.append("%(url)s does not load: %(status)d" % params["response"])
        elif method == "Network.loadingFailed" and not params.get("canceled"):
            address = addresses.get(params["requestId"], "a file")
            found.append("%s does not load: %s" % (address, params["errorText"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            if params["entry"]["source"] != "network":
                found.append("console: %s" % params["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
            found.append("console: %s" % " ".join(str(x.get("value")) for x in params["args"]))
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            found.append(details.get("exception", {}).get("description") or details["text"])
    return found


def wrong(browser, address):
    """What is wrong with a page."""
    state, said = browser.open(address)
    yield from said
    for picture in state["pictures"]:
        yield "the picture %s is not shown" % picture
    if not state["menu"]:
        yield "the menu is empty"
    if state["width"] > WIDTH:
        yield "is %d pixels wide in a window of %d" % (state["width"], WIDTH)


def misused(browser, front):
    """What of the switch and of the search does not work."""
    browser.open(front + "index.html")
    if (browser.value(DARK) or 0) < 2:
        yield "index.html: the switch does not make it dark"
    for sought in site_check.SOUGHT:
        _, said = browser.open(front + "search.html?q=" + urllib.parse.quote_plus(sought))
        if not browser.value(RESULTS):
            yield "search.html: finds nothing for %s" % sought
        yield from ("search.html: " + what for what in said)


def main(site):
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        print("no Chromium; apt-get install --no-install-recommends chromium (300 MB) installs one")
        return 77
    paths = [x for kind in KINDS for x in sorted(site.glob(kind))]
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    front = "http://127.0.0.1:%d/" % server.server_port
    folder = tempfile.mkdtemp()
    browser = Browser(program, folder)
    try:
        browser.attach()
        pages = [path.relative_to(site).as_posix() for path in paths]
        found = ["%s: %s" % (page, what) for page in pages for what in wrong(browser, front + page)]
        found += misused(browser, front)
    finally:
        browser.close()
        server.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
    print("\n".join(found) or "%d pages open without a complaint" % len(pages))
    return int(bool(found) or not pages)


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]).resolve()))
