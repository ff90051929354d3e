"""Opens pages of the built site in a headless Chromium and fails where the browser complains.

    browser.py SITE [PAGE...]

Without PAGEs: the front page, those of the guide and one of each other kind. Wrong are errors of the
console, exceptions, files that do not load, pictures without size, and a front page without its
tables. Exit status 77, a skip, where there is no Chromium.
"""
import json
import os
import pathlib
import select
import shutil
import subprocess
import sys
import tempfile
import time

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
SECONDS = 300  # that an answer may take on a loaded machine
KINDS = ("index.html", "guide_*.html", "recipes.html", "pages.html", "allocator_8h.html")
STATE = """(async () => {
    do // scripts add pictures after the page is loaded
        await new Promise(done => setTimeout(done, 20));
    while ([...document.images].some(x => !x.complete));
    return {
        pictures: [...document.images].filter(x => !x.naturalWidth).map(x => x.src),
        menu: document.querySelectorAll("#main-nav li").length,
        tables: document.querySelectorAll("table.markdownTable").length
    };
})()"""


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

    def open(self, address):
        """The state of a loaded page, and what the browser said of it."""
        self.events = []
        self.call("Page.navigate", url=address)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self.message())
        state = self.call("Runtime.evaluate", expression=STATE, awaitPromise=True, returnByValue=True)
        state = state["result"]["value"]
        return state, complaints(self.events)

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


def wrong(browser, page):
    """What is wrong with a page."""
    state, said = browser.open(page.as_uri())
    yield from said
    for address in state["pictures"]:
        yield "the picture %s is not shown" % address
    if not state["menu"]:
        yield "the menu is empty: its script did not run"
    if page.name == "index.html" and state["tables"] < 2:
        yield "has %d tables" % state["tables"]


def main(site, names):
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        print("no Chromium; apt-get install --no-install-recommends chromium (300 MB) installs one")
        return 77
    pages = [site / name for name in names] or [x for kind in KINDS for x in sorted(site.glob(kind))]
    folder = tempfile.mkdtemp()
    browser = Browser(program, folder)
    try:
        browser.attach()
        found = ["%s: %s" % (page.name, what) for page in pages for what in wrong(browser, page)]
    finally:
        browser.close()
        shutil.rmtree(folder, ignore_errors=True)
    print("\n".join(found) or "%d pages open without a complaint" % len(pages))
    return int(bool(found) or not pages)


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:]))
