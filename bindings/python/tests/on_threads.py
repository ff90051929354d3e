"""Work on threads whose exceptions are the test's."""

from __future__ import annotations

import threading


def on_threads(work, arguments=(None,)):
    """work(each) on a thread of its own for each, all at once; what one raises is raised here."""
    errors = []

    def run(each):
        try:
            work(each)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(each,)) for each in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
