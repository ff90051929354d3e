"""check.py notices another number, another offset and another argument."""
import contextlib
import io
import pathlib
import sys
import tempfile

import check

HEADER = """
#define WRONG %d
typedef struct theirs { int a; %s b; } theirs;
extern "C" int vendorCall(int device, %s out);
"""
SOURCE = """
enum { OURS = 4 };
typedef struct pair { int a; int b; } pair;
#define CALLS(X) X(call, (int device, long *out), "vendorCall")

"""


def verdict(number, member, argument):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "vendor.h").write_text(HEADER % (number, member, argument))
        (root / "ours.c").write_text(SOURCE)
        check.JUDGES["cuda"] = check.Judge(
            "vendor.h", "", [root / "ours.c"], [("CALLS", lambda row: row[2].strip('"'), None)],
            {"OURS": "WRONG"}, {"pair": ("theirs", {"": "==", "b": "b"})})
        sys.argv = ["check.py", "cuda", "--include", folder]
        with contextlib.redirect_stdout(io.StringIO()):
            return check.main()


assert verdict(4, "int", "long *") == 0
assert verdict(5, "int", "long *") == 1
assert verdict(4, "long", "long *") == 1
assert verdict(4, "int", "short *") == 1
assert verdict(4, "int", "long *, int more") == 1
assert verdict(4, "int", "double") == 1
