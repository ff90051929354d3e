"""That formats.py counts a file that names the format, and reads the list."""
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import formats

with tempfile.TemporaryDirectory() as folder:
    root = pathlib.Path(folder)
    for name, text in {"kernels/a.h": "MO_STATE_COMPANDED4", "lib/b.c": "mo_quantizec4(x)", "lib/c.c": "COMPANDED",
                       "include/d.h": "a word", "tests/e.c": "COMPANDED4"}.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    assert formats.naming(root, formats.LAST) == {"kernels/a.h", "lib/b.c"}
assert formats.listed("## A new format of states\n\n1. `a/b.c`: x\n2. `c`: `d`\n\n## Next\n1. `e`") == {"a/b.c", "c"}
