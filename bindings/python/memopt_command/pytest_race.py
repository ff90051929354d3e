"""``pytest --race``: tests run without a GPU, and one with a stream race fails.

pytest loads this module in every run; nothing is imported before the option is given.
"""

from __future__ import annotations

from typing import Any, Dict, Generator

import pytest


def pytest_addoption(parser: Any) -> None:
    """The options."""
    parser.getgroup("memopt").addoption(
        "--race", action="store_true", help="run tests without a GPU, and fail those with a stream race"
    )


def pytest_configure(config: Any) -> None:
    """With the option torch is replaced before tests are imported: they keep what they import."""
    if config.getoption("--race"):
        config.pluginmanager.register(_Race())


class _Race:
    def __init__(self) -> None:
        from memopt.torch.racing._install import Running

        self._unseen: Dict[str, int] = {}
        self._running = Running()
        self._running.begin()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: Any) -> Generator[None, Any, Any]:
        """Fails the test, with its races, unless it fails by itself. What fixtures did counts, too."""
        result = yield
        found = self._take()
        if found.races:
            pytest.fail("\n".join(map(str, found.races)), pytrace=False)
        return result

    def pytest_runtest_teardown(self) -> None:
        """A test that fails leaves nothing to the next one."""
        self._take()

    def _take(self) -> Any:
        from memopt.torch.racing._reports import Result

        found = Result()
        self._running.take(found)
        for what, count in found.unseen.items():
            self._unseen[what] = self._unseen.get(what, 0) + count
        return found

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """What was not seen."""
        if self._unseen:
            terminalreporter.section("race: not seen, and so not checked")
            for what, count in sorted(self._unseen.items()):
                terminalreporter.write_line("%d x %s" % (count, what))

    def pytest_unconfigure(self) -> None:
        """torch is as before."""
        self._running.end()
